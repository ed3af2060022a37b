"""The lowest Spark of the source: 4.2, the first with admission control of Python streams."""

# pyspark tells pyright little of its types.
# pyright: reportMissingTypeStubs=false

from importlib.util import find_spec

import pyspark

from cmqd_log.errors import CmqdSourceError


class OldSparkError(CmqdSourceError, ImportError):
    """Spark is too old for the source and the sink."""

    def __str__(self) -> str:
        return (
            'format("cmqd") needs Spark 4.2 or later, the first with admission control of Python streams, and this is '
            f"Spark {pyspark.__version__}"
        )


def has_admission_control() -> bool:
    """Test Spark for the needed classes. Vendors have version numbers of their own, so the number tells too little."""
    return find_spec("pyspark.sql.streaming.datasource") is not None
