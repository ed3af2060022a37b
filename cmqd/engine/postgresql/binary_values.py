"""Values of PostgreSQL: arrays for its statements, and single values of its results, in binary."""

from collections.abc import Iterable, Sequence
from struct import Struct, pack
from typing import TYPE_CHECKING, Final

from cmqd.engine.interface import Buffer

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_ARRAY_HEADER: Final = Struct(">5i")
_ONE_DIMENSION: Final = 1
_WITHOUT_NULLS: Final = 0
_FIRST_INDEX: Final = 1
_INT8_OID: Final = 20
_INT4_OID: Final = 23
_BYTEA_OID: Final = 17


def text_array(values: Iterable[object]) -> bytes:
    """Return an array of numbers or simple words as text."""
    return "{{{}}}".format(",".join(f'"{value}"' for value in values)).encode()


def _header(oid: int, count: int) -> bytes:
    return _ARRAY_HEADER.pack(_ONE_DIMENSION, _WITHOUT_NULLS, oid, count, _FIRST_INDEX)


def bigints(values: Sequence[int]) -> bytes:
    """Return an array of ``bigint`` in binary."""
    return _header(_INT8_OID, len(values)) + b"".join([pack(">iq", 8, value) for value in values])


def ints(values: Sequence[int]) -> bytes:
    """Return an array of ``int`` in binary."""
    return _header(_INT4_OID, len(values)) + b"".join([pack(">ii", 4, value) for value in values])


def byte_strings(values: Sequence[Buffer]) -> bytes:
    """Return an array of ``bytea`` in binary."""
    pieces: list[Buffer] = [_header(_BYTEA_OID, len(values))]
    for value in values:
        pieces += (len(value).to_bytes(4, "big"), value)
    return b"".join(pieces)


def value_of(result: "PGresult", row: int, column: int) -> bytes:
    """Return a value that no query leaves NULL."""
    value = result.get_value(row, column)
    assert value is not None, "the column is NULL"
    return value


def int_of(result: "PGresult", row: int, column: int) -> int:
    """Return a number that no query leaves NULL."""
    return int.from_bytes(value_of(result, row, column), "big", signed=True)


def int_or_none(result: "PGresult", row: int, column: int) -> int | None:
    """Return a number; None for NULL."""
    return None if result.get_value(row, column) is None else int_of(result, row, column)
