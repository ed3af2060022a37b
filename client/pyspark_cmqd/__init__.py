"""Spark reads the log of cmqd: ``spark.read.format("cmqd")``, ``spark.readStream.format("cmqd")``.

Spark imports every package named ``pyspark_*`` when a session looks for any Python data source, and a failing import
breaks all sources. So this package imports its parts on the first access to ``DefaultSource``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_cmqd.reading.source import CmqdDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_cmqd.versions import OldSparkError, has_admission_control

        if has_admission_control():
            from pyspark_cmqd.reading.source import CmqdDataSource

            return CmqdDataSource
        try:
            from pyspark_cmqd.reading.refused import CmqdDataSource as RefusedSource
        except ImportError as error:
            # Spark 3 has no Python sources, and never comes here by itself.
            raise OldSparkError() from error
        return RefusedSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "DefaultSource"]
