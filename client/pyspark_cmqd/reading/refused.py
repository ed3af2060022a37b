"""In place of the source in a Spark that is too old: each use is an error with the needed version. Imported by Spark
4.0 and 4.1 alone.
"""

# pyspark tells pyright little of its types.
# pyright: reportMissingTypeStubs=false

from collections.abc import Mapping
from typing import NoReturn

from pyspark.sql.datasource import DataSource

from pyspark_cmqd.versions import OldSparkError


class CmqdDataSource(DataSource):
    """``format("cmqd")``, refused. An error of the import would break all other Python sources of the session, too."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "cmqd"

    def __init__(self, options: Mapping[str, str]) -> NoReturn:
        """Refuse any use.

        Raises:
            OldSparkError: always.
        """
        raise OldSparkError()
