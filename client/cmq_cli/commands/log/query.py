"""``cmq log query``: SQL over the log, from the data folder, without the broker."""

# pyarrow tells pyright little of its types.
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

import base64
import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from cmq_cli.commands.log.log_queues import queues
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.options import Bytes, CurrentSession, DataPath, IncludeActive
from cmq_cli.output import Output, OutputForm
from cmq_cli.spark import connector_errors, show_unsealed
from cmq_cli.values import printable

if TYPE_CHECKING:
    import pyarrow as pa

app = App(name="log", help="The log, read from a data folder: its queues, and SQL over its messages.")
app.command(queues)

# str: with pandas installed, pyarrow gives times of nanoseconds within lists and structures as objects of pandas.
_encode = msgspec.json.Encoder(decimal_format="number", enc_hook=str).encode
"""A sum is a decimal in Arrow, and a number of JSON."""

SHOWN_ROWS = 1000
"""Rows of a table; the other forms of output have all rows."""


@app.command
def query(
    sql: str,
    *,
    path: DataPath,
    as_of_lsn: int | None = None,
    include_active: IncludeActive = False,
    memory_limit: Annotated[Bytes, Parameter(show_default="1GiB")] = 1 << 30,
    session: CurrentSession,
) -> None:
    """Run a SELECT of DuckDB over the tables log, messages, receives and queues of a data folder.

    log has a row for each stored message, messages a row for each message of a queue with its state, receives a row for
    each receive of a message, queues a row for each queue. DESCRIBE log lists the columns. The rows go to standard
    output, also as csv or parquet (--output). Needs the extra cmqd[sql].

    Parameters
    ----------
    sql
        The statement, a single SELECT.
    as_of_lsn
        Read the log up to this row; the newest sealed row otherwise.
    memory_limit
        Memory of groups, sorts, joins, and tables that the statement reads more than once; no disk is used.
    """
    output = session.output
    with connector_errors("sql"):
        from cmqd_log import sql as log_sql
        from cmqd_log.options import parse_options
        from cmqd_log.reading.planning import unsealed_now

        try:
            with log_sql.query(
                path, sql, as_of_lsn=as_of_lsn, include_active=include_active, memory_limit=memory_limit
            ) as answer:
                _print(output, session.form, answer.reader)
        except log_sql.QueryError as error:
            raise CommandFailed(str(error), ExitCode.USAGE) from error
        if as_of_lsn is None and not include_active and (rows := unsealed_now(parse_options({"path": path}))):
            output.remark(show_unsealed(*rows))


def _print(output: Output, form: OutputForm, reader: "pa.RecordBatchReader") -> None:
    names = _unique(reader.schema.names)
    reader = _without_intervals(reader)
    if form is OutputForm.PARQUET:
        _write_parquet(reader, names)
    elif form is OutputForm.CSV:
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows([_text(value) for value in row] for row in _rows(reader))
    elif form is OutputForm.JSON:
        # Row by row, because the answer may be larger than the memory.
        write = sys.stdout.buffer.write
        write(b"[")
        for number, row in enumerate(_rows(reader)):
            write((b",\n" if number else b"\n") + _encode(dict(zip(names, row, strict=True))))
        write(b"\n]\n")
        sys.stdout.buffer.flush()
    else:
        _show(output, reader, names)


def _show(output: Output, reader: "pa.RecordBatchReader", names: Sequence[str]) -> None:
    import pyarrow as pa

    rows = _rows(reader)
    shown = [[_cell(value) for value in row] for row, _ in zip(rows, range(SHOWN_ROWS), strict=False)]
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    columns = [
        f"{name}#" if any(is_kind(kind) for is_kind in numbers) else name
        for name, kind in zip(names, reader.schema.types, strict=True)
    ]
    output.table(columns, shown)
    if next(rows, None) is not None:
        output.remark(f"the first {SHOWN_ROWS:,} rows; --output csv, json and parquet have all rows")


def _write_parquet(reader: "pa.RecordBatchReader", names: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if sys.stdout.isatty():
        raise CommandFailed("parquet is for files: add > answer.parquet to the command", ExitCode.USAGE)
    schema = pa.schema([field.with_name(name) for field, name in zip(reader.schema, names, strict=True)])
    try:
        with pq.ParquetWriter(sys.stdout.buffer, schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    except pa.ArrowNotImplementedError as error:
        text = f"parquet has no type for a column of the answer; cast the column, as in a::VARCHAR: {error}"
        raise CommandFailed(text, ExitCode.USAGE) from error


def _rows(reader: "pa.RecordBatchReader") -> Iterator[tuple[Any, ...]]:
    for batch in reader:
        yield from zip(*map(_values, batch.columns), strict=True)


def _values(column: "pa.Array") -> list[Any]:
    import pyarrow as pa

    # A map with keys of text is an object of JSON; other maps are lists of pairs.
    is_object = pa.types.is_map(column.type) and pa.types.is_string(column.type.key_type)
    # Times of nanoseconds would depend on the values, and on pandas, which pyarrow uses where it is installed.
    is_text = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    try:
        values = column.cast(pa.string()).to_pylist() if is_text else column.to_pylist()
    except (OverflowError, ValueError):
        # Python has no times before year 1 or after year 9999.
        try:
            return column.cast(pa.string()).to_pylist()
        except pa.ArrowException as error:
            text = f"a time of the answer is out of range; cast the column, as in a::VARCHAR: {error}"
            raise CommandFailed(text, ExitCode.USAGE) from error
    return [None if value is None else dict(value) for value in values] if is_object else values


def _without_intervals(reader: "pa.RecordBatchReader") -> "pa.RecordBatchReader":
    """Return the rows with intervals as text: Parquet and JSON have no intervals."""
    import pyarrow as pa

    kind = pa.month_day_nano_interval()
    places = [place for place, field in enumerate(reader.schema) if field.type == kind]
    if not places:
        return reader
    schema = reader.schema
    for place in places:
        schema = schema.set(place, schema.field(place).with_type(pa.string()))

    def batches() -> "Iterator[pa.RecordBatch]":
        for batch in reader:
            columns = batch.columns
            for place in places:
                columns[place] = pa.array(map(_interval, columns[place].to_pylist()), pa.string())
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _interval(value: Any) -> str | None:
    """Return an interval as DuckDB writes it: ``1 month 2 days 00:16:04.5``."""
    if value is None:
        return None
    months, days, nanoseconds = value
    counts = (("year", abs(months) // 12), ("month", abs(months) % 12))
    parts = [_count(-count if months < 0 else count, unit) for unit, count in counts if count]
    if days:
        parts.append(_count(days, "day"))
    if nanoseconds or not parts:
        seconds, rest = divmod(abs(nanoseconds), 1_000_000_000)
        fraction = f".{rest:09}".rstrip("0") if rest else ""
        sign = "-" if nanoseconds < 0 else ""
        parts.append(f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}")
    return " ".join(parts)


def _count(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if abs(count) == 1 else 's'}"


def _unique(names: Iterable[str]) -> list[str]:
    """Return the names, with numbers behind repeated names: a document has each name once."""
    found: list[str] = []
    for name in names:
        unique, number = name, 2
        while unique in found:
            unique, number = f"{name}_{number}", number + 1
        found.append(unique)
    return found


def _cell(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            return printable(value.decode())
        except UnicodeDecodeError:
            return _text(value)
    return printable(_text(value))


def _text(value: Any) -> str:
    """Return a value as text: binary as base64, lists and structures as JSON, nothing for NULL."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, list | dict | tuple):
        return _encode(value).decode()
    return str(value)
