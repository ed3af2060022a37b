"""Rows of a DataFrame as messages: Arrow batches in, requests out. Pure.

A request has neighbouring rows: at most as many as the option ``batchSize`` allows, and at most 1 MiB of bodies and
headers. A row is identified by its number within its partition.
"""

# pyspark and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from cmqd_log.copy.requests import MAX_REQUEST_BYTES, Request
from cmqd_log.errors import CmqdSourceError
from cmqd_log.schema import COLUMNS
from cmqd_protocol.limits import MAX_DEDUP_ID_BYTES
from pyspark_cmqd.sending.default_ids import DefaultIds

ROWS_OF_A_LOG = ("lsn", "row_index")
"""Columns that name a row of a log, if a frame has both with the types of the source."""


class ColumnError(CmqdSourceError, ValueError):
    """A column is missing or of a type that cannot be sent; nothing was sent."""

    def __init__(self, column: str, text: str) -> None:
        super().__init__(column, text)
        self.column = column
        self.text = text

    def __str__(self) -> str:
        return f"column {self.column!r} {self.text}"


class RowError(CmqdSourceError, ValueError):
    """A value of a row cannot be sent. Earlier rows, and rows of other partitions, may have been sent."""

    def __init__(self, column: str, row: int, text: str) -> None:
        super().__init__(column, row, text)
        self.column = column
        self.row = row
        self.text = text

    def __str__(self) -> str:
        return f"column {self.column!r} of row {self.row} of its partition {self.text}"


def chosen_columns(
    types: Mapping[str, str], columns: Mapping[str, str], named: frozenset[str], roles: Sequence[str]
) -> dict[str, str]:
    """Return the columns of the DataFrame by role; ``ROWS_OF_A_LOG`` are roles too.

    Args:
        types: name of the type (``DataType.simpleString``) by column of the DataFrame.
        columns: column by role, as the options have it.
        named: roles with a column that must exist.
        roles: roles of the target.

    Raises:
        ColumnError: a column is missing or has a wrong type.
    """
    chosen: dict[str, str] = {}
    for role in roles:
        column = columns[role]
        found = types.get(column)
        if found is None:
            if role in named:
                raise ColumnError(
                    column, f"is missing; it is the column of {role}, and the rows have {', '.join(types)}"
                )
            continue
        if not _TYPES[role](found):
            raise ColumnError(column, f"has type {found}; the column of {role} must be {_ALLOWED[role]}")
        chosen[role] = column
    if all(types.get(name) == COLUMNS[name] for name in ROWS_OF_A_LOG):
        chosen |= {name: name for name in ROWS_OF_A_LOG}
    return chosen


_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_TYPES: dict[str, Callable[[str], bool]] = {
    "body": lambda kind: kind in ("binary", "string"),
    "headers": lambda kind: kind == "map<string,string>",
    "delay": lambda kind: kind in _WHOLE or kind in ("float", "double") or kind.startswith("decimal"),
    "tags": lambda kind: kind == "array<string>",
    "routing_key": lambda kind: kind == "string",
    "dedup_id": lambda kind: kind == "string" or kind in _WHOLE,
}
_ALLOWED = {
    "body": "binary or string",
    "headers": "map<string,string>",
    "delay": "a number of seconds",
    "tags": "array<string>",
    "routing_key": "string",
    "dedup_id": "string or a whole number",
}


def requests_of(
    batch: pa.RecordBatch, columns: Mapping[str, str], defaults: DefaultIds, first_row: int, most: int
) -> Iterator[Request]:
    """Yield the rows of an Arrow batch as requests, in order.

    Args:
        batch: the rows.
        columns: column by role; see ``chosen_columns``.
        defaults: the ids of rows without an id of their own.
        first_row: number of the first row within the partition.
        most: maximum number of messages of a request.

    Raises:
        RowError, DoubledRowsError: a row cannot be sent; the requests with the rows of earlier batches were yielded.
    """
    count = batch.num_rows
    body_column = batch.column(columns["body"])
    bodies: list[Any] = body_column.cast(pa.large_binary()).to_pylist()
    if body_column.null_count:
        row = next(place for place, body in enumerate(bodies) if body is None)
        raise RowError(columns["body"], first_row + row, "is null; a message must have a body")
    sizes = [len(body) for body in bodies]
    if 0 in sizes:
        raise RowError(columns["body"], first_row + sizes.index(0), "is empty; a body must have at least 1 byte")
    headers = _headers(batch, columns, first_row)
    if headers is not None:
        for place, named in enumerate(headers):
            if named:
                sizes[place] += sum(len(name.encode()) + len(value.encode()) for name, value in named.items())
    ids = _dedup_ids(batch, columns, defaults, first_row)
    delays = _delays(batch, columns, first_row)
    tags = _tags(batch, columns, first_row)
    keys = _values(batch, columns, "routing_key")
    for low, high in _cuts(sizes, count, most):
        chosen_keys = None if keys is None else [key or "" for key in keys[low:high]]
        yield Request(
            bodies=bodies[low:high],
            dedup_ids=ids[low:high],
            headers=None if headers is None else headers[low:high],
            delays=None if delays is None else delays[low:high],
            tags=None if tags is None else tags[low:high],
            routing_keys=chosen_keys if chosen_keys is not None and any(chosen_keys) else None,
            size=sum(sizes[low:high]),
        )


def _cuts(sizes: Sequence[int], count: int, most: int) -> Iterator[tuple[int, int]]:
    low = 0
    while low < count:
        high = min(low + most, count)
        if sum(sizes[low:high]) > MAX_REQUEST_BYTES:
            size = 0
            for place in range(low, high):
                size += sizes[place]
                if size > MAX_REQUEST_BYTES:
                    high = max(place, low + 1)
                    break
        yield low, high
        low = high


def _values(batch: pa.RecordBatch, columns: Mapping[str, str], role: str) -> list[Any] | None:
    """Return the values of a column; None if the column is missing or all of its values are null."""
    column = columns.get(role)
    if column is None:
        return None
    values = batch.column(column)
    return None if values.null_count == len(values) else values.to_pylist()


def _headers(batch: pa.RecordBatch, columns: Mapping[str, str], first_row: int) -> list[dict[str, str] | None] | None:
    values = _values(batch, columns, "headers")
    if values is None:
        return None
    headers: list[dict[str, str] | None] = []
    for place, pairs in enumerate(values):
        named: dict[str, str] = dict(pairs) if pairs else {}
        if None in named.values():
            raise RowError(columns["headers"], first_row + place, "has a header with a null value")
        headers.append(named or None)
    return headers if any(headers) else None


def _delays(batch: pa.RecordBatch, columns: Mapping[str, str], first_row: int) -> list[float | None] | None:
    values = _values(batch, columns, "delay")
    if values is None:
        return None
    for place, value in enumerate(values):
        if value is not None and not value >= 0:
            raise RowError(columns["delay"], first_row + place, f"is {value}; a delay must not be negative")
    return [None if value is None else float(value) for value in values]


def _tags(batch: pa.RecordBatch, columns: Mapping[str, str], first_row: int) -> list[list[str]] | None:
    values = _values(batch, columns, "tags")
    if values is None:
        return None
    for place, tags in enumerate(values):
        if tags and None in tags:
            raise RowError(columns["tags"], first_row + place, "has a tag that is null")
    return [tags or [] for tags in values] if any(values) else None


def _dedup_ids(batch: pa.RecordBatch, columns: Mapping[str, str], defaults: DefaultIds, first_row: int) -> list[str]:
    values = _values(batch, columns, "dedup_id")
    numbers = range(first_row, first_row + batch.num_rows)
    lsns, indices = (_values(batch, columns, role) or repeat(None) for role in ROWS_OF_A_LOG)
    rows = zip(numbers, lsns, indices, strict=False)
    if values is None:
        return defaults.take(rows)
    others = iter(defaults.take([row for row, value in zip(rows, values, strict=True) if value is None]))
    ids: list[str] = []
    for number, value in zip(numbers, values, strict=True):
        text = next(others) if value is None else str(value)
        if not 1 <= len(text.encode()) <= MAX_DEDUP_ID_BYTES:
            raise RowError(
                columns["dedup_id"], number, f"is {text!r}; a dedup id must have 1 to {MAX_DEDUP_ID_BYTES} bytes"
            )
        ids.append(text)
    return ids
