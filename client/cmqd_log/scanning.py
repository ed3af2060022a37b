"""Scans: the messages of a log as Arrow batches, in one process or divided among several.

    reader = scan("data", ["msg_id", "body"], queue="orders", mode="backlog")

    tasks = plan("data", ["msg_id", "body"], minPartitions=4)
    with ProcessPoolExecutor() as pool:
        tables = pool.map(table_of, tasks)  # def table_of(task): return cmqd_log.read(task).read_all()

Options, columns and errors are those of the source of Spark (``cmqd_log.options``). The option ``table`` chooses what a
row is. A reader serves a single scan, and is empty afterwards, without an error: ``read_all`` makes a table that can be
read again.
"""

# pyarrow tells pyright little of its types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from cmqd_log.data_folder.folder import open_folder
from cmqd_log.errors import OptionError
from cmqd_log.options import Options, parse_options
from cmqd_log.reading.arrow_batches import schema_of
from cmqd_log.reading.planning import warn_unsealed
from cmqd_log.reading.tables import AnyTask, batches_of, plan_table
from cmqd_log.schema import COLUMNS_OF

Value: TypeAlias = "str | int | datetime | Iterable[str] | Mapping[str, object]"
"""Value of an option: as the table of options writes it, or as the type of Python that it stands for."""


def plan(path: "str | os.PathLike[str]", columns: "Sequence[str] | None" = None, **options: Value) -> list[AnyTask]:
    """Plan a read of the log at this moment, as tasks that can be pickled.

    The tasks together have each message once. In the order of the list they are in the order of the log. Table
    ``receives`` is a single task.

    Args:
        path: the data folder of a broker, a copy of it, or the URL of one.
        columns: names of the columns, in order; None = all.
        options: the options of ``cmqd_log.options``; lists, numbers and times may be values of Python.

    Raises:
        OptionError: an option or a column cannot be used.
        CmqdSourceError: the folder or requested rows cannot be read.
    """
    return _planned(*_checked(path, columns, options))


def read(task: AnyTask) -> "pa.RecordBatchReader":
    """Return the messages, or receives, of a task.

    The reader raises:
        FolderError, DataLossError: a segment cannot be read, or was reclaimed.
    """
    return _reader(task.options, task.columns, [task], ExitStack())


def scan(
    path: "str | os.PathLike[str]", columns: "Sequence[str] | None" = None, **options: Value
) -> "pa.RecordBatchReader":
    """Return the messages of the log at this moment, in the order of the log; arguments and errors as for :func:`plan`.

    Memory is bounded by a batch: ``batchRows`` messages, or 32 MiB of bodies. Table ``receives`` is in the order in
    which the receives ended, and holds the receives under way in memory, too.

    The reader raises:
        FolderError, DataLossError: a segment cannot be read, or was reclaimed.
    """
    given, names = _checked(path, columns, options)
    with ExitStack() as kept:
        if given.is_of_queues:
            # The plan fetches the segments of a URL, which the read uses again. Of events, the read alone fetches a
            # segment, and removes it before the next.
            kept.enter_context(open_folder(given))
        return _reader(given, names, _planned(given, names), kept.pop_all())


def _checked(
    path: "str | os.PathLike[str]", columns: "Sequence[str] | None", options: Mapping[str, Value]
) -> tuple[Options, list[str]]:
    """Return the options and the names of the columns.

    Raises:
        OptionError: an option or a column cannot be used.
    """
    given = parse_options({"path": os.fspath(path), **{name: _text(name, value) for name, value in options.items()}})
    known = COLUMNS_OF[given.table]
    names = list(known) if columns is None else list(columns)
    if isinstance(columns, str) or not names:
        # Batches without a column have no rows.
        raise OptionError("columns", columns, "give a list with at least one column, or None for all columns")
    for name in names:
        if name not in known:
            raise OptionError("columns", name, f"columns are {', '.join(known)}")
    return given, names


def _planned(given: Options, names: Sequence[str]) -> list[AnyTask]:
    tasks = plan_table(given, names)
    if not tasks:
        warn_unsealed(given)
    return tasks


def _reader(
    given: Options, columns: Sequence[str], tasks: Sequence[AnyTask], kept: ExitStack
) -> "pa.RecordBatchReader":
    schema = schema_of(columns, COLUMNS_OF[given.table])
    return pa.RecordBatchReader.from_batches(schema, _batches(tasks, schema, kept))


def _batches(tasks: Sequence[AnyTask], schema: "pa.Schema", kept: ExitStack) -> "Iterator[pa.RecordBatch]":
    with kept:
        for task in tasks:
            yield from batches_of(task, schema)


def _text(name: str, value: Value) -> str:
    """Return the text of an option.

    Raises:
        OptionError: the type of the value is that of no option.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return msgspec.json.encode(value).decode()
    if isinstance(value, str | int):
        return str(value)
    other: Any = value
    texts: list[Any] = list(other) if hasattr(other, "__iter__") else [other]
    if not all(isinstance(text, str) for text in texts):
        raise OptionError(
            name, repr(value), "give a text, a number, a time, or a list of texts; leave out other options"
        )
    return ",".join(texts)
