"""The columns of a query, compared with the columns of the source."""

# pyright: reportUnknownMemberType=false

from pyspark.sql.types import StructType

from cmqd_log.errors import OptionError
from cmqd_log.schema import COLUMNS_OF, Table


def check_columns(columns: StructType, table: Table) -> None:
    """Check that all columns are columns of the table, with the types of the source.

    Arrow could cast to many other types, but pushed-down filters are read in the types of the source.

    Raises:
        OptionError: a column is unknown or has another type.
    """
    known = COLUMNS_OF[table]
    for column in columns:
        kind = known.get(column.name)
        if kind is None:
            raise OptionError("schema", column.name, f"columns are {', '.join(known)}")
        if column.dataType.simpleString() != kind:
            given = f"{column.name} {column.dataType.simpleString()}"
            raise OptionError("schema", given, f"{column.name} has type {kind}; cast it in the query")
