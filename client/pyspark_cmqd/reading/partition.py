"""A partition of a read, batch or stream: the pieces of segments that one task of Spark reads."""

# pyspark and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from cmqd_log.reading.tables import AnyTask


class CmqdPartition(InputPartition):
    """A piece of a segment, or several small pieces read in turn."""

    def __init__(self, tasks: "Sequence[AnyTask]") -> None:
        self.tasks = tasks


def read_partition(partition: InputPartition, columns: StructType) -> "Iterator[pa.RecordBatch]":
    """Yield the messages of a partition. Spark makes up a partition if a plan has none; it has no messages."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from cmqd_log.reading.tables import batches_of

    if isinstance(partition, CmqdPartition):
        schema = to_arrow_schema(columns, timezone="UTC")
        for task in partition.tasks:
            yield from batches_of(task, schema)
