"""The batch source: plans on the driver, reads on the executors.

Spark calls ``partitions`` once for a plan, in a separate process, and ``read`` on pickled copies; the partition holds
all that a copy needs. Filters are pushed down where Spark has push-down switched on. A pushed-down filter may leave out
rows and need not, because Spark applies all filters again.
"""

# pyspark and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cmqd_log.errors import CmqdSourceError, OptionError
from cmqd_log.options import Options, parse_options, table_of
from cmqd_log.schema import COLUMNS_OF, LOG_ID, OF_THE_LOG, Table
from pyspark_cmqd.reading.columns import check_columns
from pyspark_cmqd.reading.partition import CmqdPartition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_cmqd.reading.stream import CmqdStreamReader, RefusedStream
    from pyspark_cmqd.sending.sink import BatchSink, StreamSink


_TYPES: dict[str, DataType] = {
    "bigint": LongType(),
    "int": IntegerType(),
    "string": StringType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
    "map<string,string>": MapType(StringType(), StringType()),
}


def _type_of(kind: str) -> DataType:
    """Return the type of a DDL string of the schema. Spark's own parser would need the JVM."""
    if kind in _TYPES:
        return _TYPES[kind]
    fields = (field.split(":") for field in kind.removeprefix("struct<").removesuffix(">").split(","))
    return StructType([StructField(name, _TYPES[type_]) for name, type_ in fields])


TABLE = "cmqd.table"
"""Metadata of the first column of a table in a catalog: the options of the table."""
_PROVIDER = "provider"
"""A property that Spark adds to the options when it makes a table."""
_OPTION = "option."


class CmqdDataSource(DataSource):
    """``format("cmqd")``; the options are those of :mod:`cmqd_log.options`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "cmqd"

    def schema(self) -> StructType:
        """Return all columns of the table. The metadata of ``lsn`` names the log, for the dedup ids of the sink.

        Raises:
            OptionError: the table is unknown, or a table of a catalog is created with options that cannot be used.
        """
        of_catalog = table_options(self.options) if _PROVIDER in self.options else None
        given = self.options if of_catalog is None else of_catalog
        table = table_of(given)
        columns = StructType(
            [
                StructField(name, _type_of(kind), metadata=OF_THE_LOG if name == "dedup_id" else None)
                for name, kind in COLUMNS_OF[table].items()
            ]
        )
        metadata: dict[str, Any] = {}
        if of_catalog is not None:
            metadata[TABLE] = of_catalog
        # Rows of receives are no messages, and several have the row of a message.
        if table is Table.LOG and (log_id := _log_id(given)):
            metadata[LOG_ID] = log_id
        if metadata:
            columns.fields[0].metadata = metadata
        return columns

    def reader(self, schema: StructType) -> "CmqdReader":
        """Return the reader of a batch.

        Raises:
            OptionError: an option cannot be used.
        """
        return CmqdReader(parse_options(self._given(schema)), schema)

    def streamReader(self, schema: StructType) -> "CmqdStreamReader | RefusedStream":
        """Return the reader of a stream; of options that cannot be used, a reader whose calls raise OptionError."""
        from pyspark_cmqd.reading.stream import CmqdStreamReader, RefusedStream

        try:
            return CmqdStreamReader(parse_options(self._given(schema)), schema)
        except CmqdSourceError as error:
            return RefusedStream(error)

    def _given(self, schema: StructType) -> Mapping[str, str]:
        """Return the options of a read, with the options of the table if a table is read."""
        if "path" in self.options:
            return self.options
        of_table: dict[str, str] = next(
            (field.metadata[TABLE] for field in schema.fields if TABLE in field.metadata), {}
        )
        if not of_table:
            columns = ", ".join(schema.names)
            raise OptionError(
                "path",
                None,
                "give the data folder of a broker, or the URL of a copy. Of a table that was made with a list of "
                "columns, as in the output of SHOW CREATE TABLE, Spark keeps no folder and no options. With the name, "
                "the options and the folder of the table put in, run: DROP TABLE log; CREATE TABLE log USING cmqd "
                f"OPTIONS (mode 'events') LOCATION '/srv/cmqd/data'; SELECT {columns} FROM log",
            )
        return {**of_table, **self.options}

    def writer(self, schema: StructType, overwrite: bool) -> "BatchSink":
        """Return the writer of a batch; :mod:`pyspark_cmqd.sending.sink_options` lists its options.

        Raises:
            OptionError: an option cannot be used.
            ColumnError: a column is missing or has a wrong type.
        """
        from pyspark_cmqd.sending.sink import BatchSink

        return BatchSink(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamSink":
        """Return the writer of a stream; options and errors as for :meth:`writer`."""
        from pyspark_cmqd.sending.sink import StreamSink

        return StreamSink(schema, self.options, overwrite)


def _log_id(options: Mapping[str, str]) -> str:
    """Return the id of the log; empty if a read with these options will fail, with the error of that read."""
    from cmqd_log.data_folder.folder import open_folder

    if "path" in options:
        with suppress(CmqdSourceError), open_folder(parse_options(options)) as folder:
            return folder.manifest().log_id
    return ""


def table_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the options in the properties of a table, which hold ``OPTIONS`` under prefixed names, and ``LOCATION``.

    The options go into the metadata of a column: Spark does not pass the options of a table to a Python source that
    reads the table, but it passes the columns as they were when the table was created.

    Raises:
        OptionError: an option cannot be used.
    """
    options = {name.removeprefix(_OPTION): value for name, value in properties.items() if name.startswith(_OPTION)}
    if "path" in properties:
        options["path"] = properties["path"]
    parse_options(options)
    return options


class CmqdReader(DataSourceReader):
    """Reader of a batch: reads the rows of the log at the moment of planning."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options.table)
        self.options = options
        self.columns = schema
        self.filters: list[Filter] = []

    @property
    def pushFilters(self) -> "_PushFilters":  # pyright: ignore[reportIncompatibleMethodOverride]
        """See :class:`_PushFilters`."""
        return _PushFilters(self)

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for every segment, or part of a segment, that may hold wanted messages; small parts share
        a partition.

        Raises:
            CmqdSourceError: an option, the folder or requested rows cannot be used.
        """
        from cmqd_log.data_folder.plan import gathered
        from cmqd_log.reading.planning import warn_unsealed
        from cmqd_log.reading.tables import plan_table
        from pyspark_cmqd.reading.pushdown import narrowed

        options = narrowed(self.options, self.filters)
        tasks = plan_table(options, self.columns.names, asked=self.options)
        if not tasks:
            warn_unsealed(options)
        return [CmqdPartition(each) for each in gathered(tasks, options.min_partitions)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of a partition.

        Raises:
            FolderError, DataLossError: a segment cannot be read, or was reclaimed.
        """
        return read_partition(partition, self.columns)


class _PushFilters:
    """``pushFilters`` of the reader, callable with push-down on and off.

    Spark refuses a reader that overrides the method while push-down is off, and detects the override by the function of
    the method. So this object shows the function of the base class; Spark calls the method only with push-down on.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: CmqdReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.filters = list(filters)
        return filters
