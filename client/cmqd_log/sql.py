"""SQL over the log: a statement of DuckDB over the tables of :data:`TABLES`, all as of one row of the log.

    with query("data", "SELECT queue, count(*) FROM messages GROUP BY queue") as answer:
        answer.reader.read_all()

The statement is bound twice. The first time, on empty tables, DuckDB's plan names the columns to decode, and the scans
of each table. A table with a single scan is read as a stream, because a reader of Arrow serves one scan and is empty
afterwards. A table with more scans is loaded first, up to a limit. The second time the tables have these columns. Any
other column raises an error when a row of it is read; the statement is then run with all columns.

SQL reaches the tables alone: no file, no network, no extension that must be loaded, no variable of the program.
"""

# duckdb and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from threading import Lock
from typing import Any, Final, NamedTuple, Self, TypeVar

import duckdb
import msgspec
import pyarrow as pa

from cmqd_log.data_folder.folder import open_folder
from cmqd_log.data_folder.plan import View, describe
from cmqd_log.errors import CmqdSourceError, DataLossError, OptionError
from cmqd_log.options import Mode, Options, parse_options
from cmqd_log.queues import queues_of
from cmqd_log.reading.arrow_batches import schema_of
from cmqd_log.scanning import scan
from cmqd_log.schema import COLUMNS, QUEUES, RECEIVES, Table

DEFAULT_MEMORY_LIMIT: Final = 1 << 30
"""Bytes of groups, sorts, joins and loaded tables together; loaded tables have at most half. DuckDB does not count
single texts and lists."""
LEAST_MEMORY_LIMIT: Final = 32 << 20
"""DuckDB needs some blocks for each thread."""
INTERRUPT_SECONDS: Final = 0.1
"""Time between two interrupts of a statement that goes on."""

_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    # Else DuckDB fills the disk of the current folder, which may be the disk of the broker.
    "temp_directory": "",
}
_OF_MESSAGES: Final = {
    "account": "account",
    "queue": "queue",
    "queue_id": "queue_id",
    "position": "position",
    "msg_id": "msg_id",
    "state": "event",
    "enqueue_ts": "enqueue_ts",
    "visible_ts": "visible_ts",
    "ended_ts": "ended_ts",
    "receive_count": "receive_count",
    "lsn": "lsn",
    "row_index": "row_index",
    "dedup_id": "dedup_id",
    "sent_by": "sent_by",
    "received_by": "received_by",
    "left_by": "left_by",
    "as_of_lsn": "as_of_lsn",
}


class Source(NamedTuple):
    """Source of a table."""

    options: Mapping[str, str] | None
    """Options of a scan; None = the list of the queues."""
    columns: Mapping[str, str]
    """The columns of the source by the names of the table."""
    kinds: Mapping[str, str]
    """Types by the columns of the source."""


TABLES: Final = {
    "log": Source({"mode": Mode.EVENTS}, {name: name for name in COLUMNS}, COLUMNS),
    "messages": Source({"mode": Mode.ALL}, _OF_MESSAGES, COLUMNS),
    "receives": Source({"table": Table.RECEIVES}, {name: name for name in RECEIVES}, RECEIVES),
    "queues": Source(None, {name: name for name in QUEUES}, QUEUES),
}
"""``log``: a row for each stored message. ``messages``: a row for each message of a queue, with its state.
``receives``: a row for each receive of a message. ``queues``: a row for each queue that the log names."""

_T = TypeVar("_T")

_UNDECODED: Final = "a column that the plan did not name"


class QueryError(CmqdSourceError):
    """The statement cannot be answered; the text is a sentence about the statement."""


class Answer:
    """The rows of a statement; a context that closes the database."""

    def __init__(self, stack: ExitStack, reader: "pa.RecordBatchReader", as_of_lsn: int) -> None:
        self._stack = stack
        self.reader = reader
        """Reads the rows once. Raises the errors of :func:`query`."""
        self.as_of_lsn = as_of_lsn
        """The row of the log as of which the tables were read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Use(NamedTuple):
    """The use of a table by a statement."""

    columns: Sequence[str]
    is_loaded: bool


def query(
    path: "str | os.PathLike[str]",
    statement: str,
    *,
    as_of_lsn: int | None = None,
    include_active: bool = False,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> Answer:
    """Run a SELECT over the log.

    Args:
        path: the data folder, or the URL of a copy.
        statement: the SQL.
        as_of_lsn: the last row of the log to read; None = the newest row that can be read.
        include_active: also read rows that are not sealed.
        memory_limit: bytes of groups, sorts, joins, and columns of tables that are read more than once.

    Raises:
        QueryError: the statement is no single SELECT, or fails, or needs more memory than the limit.
        OptionError: the log has no such row, or the limit is too low.
        FolderError, DataLossError: the log cannot be read.
    """
    if memory_limit < LEAST_MEMORY_LIMIT:
        raise OptionError("memoryLimit", memory_limit, f"give at least {LEAST_MEMORY_LIMIT:,} bytes")
    options = parse_options({"path": os.fspath(path), "includeActive": str(include_active)})
    with open_folder(options) as folder:
        view = folder.view(include_active=include_active)
    newest = view.hi
    if as_of_lsn is not None and not 0 <= as_of_lsn <= newest:
        raise OptionError("asOfLsn", as_of_lsn, f"the rows of {os.fspath(path)} that can be read end at row {newest}")
    lsn = newest if as_of_lsn is None else as_of_lsn
    if 0 < lsn < newest and all(extent.first_lsn > lsn for extent in view.extents):
        raise DataLossError(f"{describe(view.gaps(1, lsn))} were reclaimed or lost, so no row up to {lsn} can be read")
    text = _checked(statement)
    if lsn < newest:
        view = replace(view, hi=lsn, checkpoints=tuple(entry for entry in view.checkpoints if entry.lsn <= lsn))
    scanned = {"path": os.fspath(path), "includeActive": include_active, "endingLsn": lsn}
    uses = _uses(text)
    if uses is not None:
        try:
            return _answer(text, Tables(options, scanned, memory_limit, view), uses, lsn)
        except QueryError as error:
            if _UNDECODED not in str(error):
                raise
    whole = {name: Use(list(table.columns), True) for name, table in TABLES.items()}
    # Not the tables of before: they count what was loaded, and keep the error of a scan.
    return _answer(text, Tables(options, scanned, memory_limit, view), whole, lsn)


class Tables:
    """The tables of a statement, as scans of the log or loaded."""

    def __init__(self, source: Options, options: Mapping[str, Any], memory_limit: int, view: View) -> None:
        self.source = source
        self._view = view
        self._options = options
        self._limit = memory_limit
        self._loaded = 0
        self._scans = list[_Scan]()
        self.failure: CmqdSourceError | None = None
        """The error that ended a scan; DuckDB shows its text alone."""

    def make(self, name: str, use: Use) -> "pa.RecordBatchReader | pa.Table":
        """Return the columns of a table, under their names in the table.

        Raises:
            QueryError: the table has to be loaded and is larger than the limit.
            FolderError, DataLossError: the log cannot be read.
        """
        table = TABLES[name]
        if table.options is None:
            return self._listed(use.columns)
        columns = [table.columns[column] for column in use.columns]
        clients = not {"received_by", "left_by"}.isdisjoint(columns)
        reader = scan(columns=columns, clients=clients, **table.options, **self._options)
        schema = pa.schema([field.with_name(name) for field, name in zip(reader.schema, use.columns, strict=True)])
        scanned = _Scan(self._watched(reader))
        self._scans.append(scanned)
        del reader  # the frame of an error would keep it, and with it the files of a URL
        batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in scanned)
        if not use.is_loaded:
            return pa.RecordBatchReader.from_batches(schema, batches)
        kept: list[pa.RecordBatch] = []
        for batch in batches:
            self._loaded += batch.nbytes
            if self._loaded > self._limit // 2:
                raise QueryError(
                    f"the statement reads table {name} more than once, and the columns {', '.join(use.columns)} need "
                    f"more than half of the memory limit, {self._limit:,} bytes: name fewer columns, read the table "
                    "once, or raise the memory limit"
                )
            kept.append(batch)
        return pa.Table.from_batches(kept, schema)

    def _listed(self, columns: Sequence[str]) -> "pa.Table":
        with open_folder(self.source) as folder:
            queues = queues_of(folder, self._view)
        rows = [
            {
                "account": queue.account,
                "queue": queue.name,
                "queue_id": queue.id,
                "created_ts": _us(queue.created_ms),
                # A queue may have been created again, or a checkpoint may have its delete.
                "deleted_ts": None if queue.exists else _us(queue.deleted_ms),
                "is_deleted": not queue.exists,
                "messages": queue.messages,
            }
            for queue in queues
        ]
        schema = schema_of(columns, QUEUES)
        return pa.table([pa.array([row[name] for row in rows], schema.field(name).type) for name in columns], schema)

    def memory(self) -> int:
        """Return the bytes of the limit that loaded tables leave."""
        return self._limit - self._loaded

    def close(self) -> None:
        """End the scans, and let go of the files that they fetched."""
        for scanned in self._scans:
            scanned.close()

    def _watched(self, reader: "pa.RecordBatchReader") -> "Generator[pa.RecordBatch]":
        try:
            yield from reader
        except CmqdSourceError as error:
            self.failure = error
            raise


class _Scan:
    """The batches of a scan, which DuckDB takes in threads of its own.

    A statement that fails does not wait for these threads. A generator that runs cannot be closed, so the close waits
    for the batch under way; the threads find the end behind it.
    """

    def __init__(self, batches: "Generator[pa.RecordBatch]") -> None:
        self._batches = batches
        self._one = Lock()

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        return self

    def __next__(self) -> "pa.RecordBatch":
        with self._one:
            return next(self._batches)

    def close(self) -> None:
        """End the scan, in any thread."""
        with self._one:
            self._batches.close()


def _us(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1000


def _answer(statement: str, tables: Tables, uses: Mapping[str, Use], lsn: int) -> Answer:
    with ExitStack() as stack:
        stack.callback(tables.close)
        if len(uses) > 1:
            # Holds the segments of a URL, so that both tables fetch them once.
            stack.enter_context(open_folder(tables.source))
        database = stack.enter_context(duckdb.connect(":memory:", config=_SETTINGS))
        for name, table in TABLES.items():
            use = uses.get(name)
            if use is not None:
                database.register(f"read_{name}", tables.make(name, use))
            _create(database, name, table, use)
        database.execute(f"SET memory_limit = '{tables.memory()}B'")
        database.execute("SET lock_configuration = true")
        steps = _Steps(database, stack.enter_context(ThreadPoolExecutor(1)))
        try:
            reader = steps.run(lambda: database.sql(statement).to_arrow_reader(8192))
        except duckdb.Error as error:
            raise tables.failure or QueryError(_sentence(error)) from error
        watched = pa.RecordBatchReader.from_batches(reader.schema, _told(reader, tables, steps))
        return Answer(stack.pop_all(), watched, lsn)


class _Steps:
    """Run the steps of a statement in a thread.

    DuckDB looks for no signal while it makes the rows of an Arrow reader. In the main thread, Ctrl-C would not end a
    statement without an end.
    """

    def __init__(self, database: "duckdb.DuckDBPyConnection", pool: ThreadPoolExecutor) -> None:
        self._database = database
        self._pool = pool

    def run(self, step: Callable[[], _T]) -> _T:
        running = self._pool.submit(step)
        try:
            return running.result()
        finally:
            # Ctrl-C. An interrupt before the step has begun has no effect, so it is repeated.
            while not running.done():
                self._database.interrupt()
                wait([running], INTERRUPT_SECONDS)


def _told(reader: "pa.RecordBatchReader", tables: Tables, steps: _Steps) -> "Iterator[pa.RecordBatch]":
    try:
        while (batch := steps.run(lambda: next(reader, None))) is not None:
            yield batch
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise tables.failure or QueryError(_sentence(error)) from error


def _create(database: "duckdb.DuckDBPyConnection", name: str, table: Source, use: Use | None) -> None:
    """Create the view of a table: the columns that were read, and columns that raise an error."""
    read = frozenset[str]() if use is None else frozenset(use.columns)
    columns: list[str] = []
    for column, source in table.columns.items():
        kind = _kind_of(table.kinds[source])
        value = f'"{column}"' if column in read else f"error('{_UNDECODED}: {column}')::{kind}"
        columns.append(f'{value} AS "{column}"')
    source = f"read_{name}" if read else "(SELECT 1 LIMIT 0)"
    database.execute(f"CREATE VIEW {name} AS SELECT {', '.join(columns)} FROM {source}")


_KINDS: Final = {
    "bigint": "BIGINT",
    "int": "INTEGER",
    "string": "VARCHAR",
    "binary": "BLOB",
    "boolean": "BOOLEAN",
    "timestamp": "TIMESTAMPTZ",
    "array<string>": "VARCHAR[]",
    "map<string,string>": "MAP(VARCHAR, VARCHAR)",
}


def _kind_of(kind: str) -> str:
    """Return DuckDB's type of a column with a type of the schema."""
    if kind in _KINDS:
        return _KINDS[kind]
    fields = (field.split(":") for field in kind.removeprefix("struct<").removesuffix(">").split(","))
    return f"STRUCT({', '.join(f'{name} {_KINDS[type_]}' for name, type_ in fields)})"


# ---------------------------------------------------------------------- what a statement reads


def _checked(statement: str) -> str:
    """Return the statement, a single SELECT.

    Raises:
        QueryError: it is not.
    """
    with duckdb.connect(":memory:", config=_SETTINGS) as database:
        try:
            statements = database.extract_statements(statement)
        except duckdb.Error as error:
            raise QueryError(_sentence(error)) from error
    if len(statements) != 1:
        raise QueryError(f"the text has {len(statements)} statements; give a single SELECT")
    (found,) = statements
    if found.type == duckdb.StatementType.MULTI:
        raise QueryError("a PIVOT names its values: PIVOT messages ON state IN ('active', 'deleted') USING count(*)")
    if found.type != duckdb.StatementType.SELECT:
        raise QueryError(f"the log is read with SELECT alone, and is never changed; {found.type.name} is refused")
    return str(found.query)


def _uses(statement: str) -> dict[str, Use] | None:
    """Return the use of each table that a statement reads, by DuckDB's plan on empty tables; None if it is unreadable.

    Raises:
        QueryError: the statement names unknown tables or columns, or reads anything but the tables.
    """
    with duckdb.connect(":memory:", config=_SETTINGS) as database:
        for name, table in TABLES.items():
            # The plan shows the columns of a scan, and not its table, so the names of the columns tell the table.
            fields = [
                schema_of([source], table.kinds).field(0).with_name(f"{name}.{column}")
                for column, source in table.columns.items()
            ]
            database.register(f"read_{name}", pa.schema(fields).empty_table())
            shown = ", ".join(f'"{name}.{column}" AS "{column}"' for column in table.columns)
            database.execute(f"CREATE VIEW {name} AS SELECT {shown} FROM read_{name}")
        # With push-down a scan need not show the columns of its filters; by statistics an empty table needs no scan.
        database.execute("SET disabled_optimizers = 'filter_pushdown,statistics_propagation'")
        database.execute("SET lock_configuration = true")
        try:
            ((_, plan),) = database.execute(f"EXPLAIN (FORMAT json) {statement}").fetchall()
        except duckdb.Error as error:
            raise QueryError(_sentence(error)) from error
    try:
        return _uses_in(msgspec.json.decode(plan, type=list[_Node]))
    except (msgspec.MsgspecError, KeyError, ValueError):
        return None


class _Node(msgspec.Struct):
    """An operator of DuckDB's plan."""

    name: str
    children: "list[_Node]" = []
    extra_info: dict[str, Any] = {}


def _uses_in(plan: Sequence[_Node]) -> dict[str, Use]:
    uses: dict[str, Use] = {}
    ahead = [(node, False) for node in plan]
    while ahead:
        node, is_repeated = ahead.pop()
        # A recursive part scans its tables again in each round.
        is_repeated = is_repeated or "REC" in node.name
        ahead += [(child, is_repeated) for child in node.children]
        if not node.name.endswith("ARROW_SCAN"):
            continue
        shown: str | list[str] = node.extra_info["Projections"]
        names = [shown] if isinstance(shown, str) else shown
        (name,) = {each.partition(".")[0] for each in names}
        before = uses.get(name)
        wanted = {each.partition(".")[2] for each in names} | set(before.columns if before else ())
        if unknown := wanted - TABLES[name].columns.keys():
            raise ValueError(f"the plan names {unknown}")
        columns = [column for column in TABLES[name].columns if column in wanted]
        uses[name] = Use(columns, is_repeated or before is not None)
    return uses


# ---------------------------------------------------------------------- errors

_KIND = re.compile(r"^(?:INTERNAL )?[A-Z][\w ]*? Error: ")


def _sentence(error: Exception) -> str:
    """Return an error of DuckDB as a sentence, with the way out."""
    text = _KIND.sub("", str(error).split("\n\nLINE ")[0].split("\nCandidate")[0].split("\n\tCandidate")[0])
    text = " ".join(re.sub(r'Did you mean "read_\w+"\?', "", text).split())
    if isinstance(error, duckdb.OutOfMemoryException):
        text = re.split(r" Database is launched| Possible solutions:", text)[0]
        return f"the statement needs more than the memory limit; filter or limit its rows, or raise the limit: {text}"
    if isinstance(error, duckdb.PermissionException):
        return f"SQL reads the tables {', '.join(TABLES)} alone, no files and no extensions: {text}"
    if isinstance(error, duckdb.CatalogException) and " extension" in text:
        return f"{text.partition('. Please')[0]}; extensions are never loaded"
    if isinstance(error, duckdb.CatalogException):
        return f"{text} (the tables are {', '.join(TABLES)}; DESCRIBE log lists columns)"
    return text
