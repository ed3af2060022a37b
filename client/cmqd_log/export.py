"""Segments as Parquet files, for analytics over few columns. With pyarrow alone: no Spark, no Java.

A segment becomes a file, ``00000017.parquet``, with the columns of mode ``events``. A sealed segment never changes, so
an earlier export is known by its checksum and left as it is: a repeated export adds the new segments. A folder belongs
to a single selection of queues: files of different selections together would be complete for some queues only.
"""

# pyspark and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cmqd_log.data_folder.plan import Task
from cmqd_log.errors import CmqdSourceError, SegmentReclaimedError
from cmqd_log.files import beside
from cmqd_log.options import parse_options
from cmqd_log.reading.arrow_batches import schema_of
from cmqd_log.reading.planning import plan_batch, unsealed_now
from cmqd_log.reading.tasks import read_task
from cmqd_log.schema import COLUMNS

GROUP_ROWS = 1 << 17
"""Messages of a row group: small enough to be held, large enough to be scanned fast."""
SCHEMA = schema_of(COLUMNS)
_IDENTITY = b"cmqd.segment"
_SELECTION = b"cmqd.queues"
_ACCOUNT_MARK = "@"
"""Prefix of the account in the selection; no name of a queue begins with this prefix."""
_OURS = re.compile(r"\d{8,}\.parquet", re.ASCII)


@dataclass(frozen=True)
class Exported:
    """A segment and its file."""

    segment: int
    file: Path
    messages: int
    bytes: int
    is_new: bool
    """True if this call wrote the file; False if the file existed."""


def plan_export(
    path: str, *, queues: Sequence[str] = (), account: str = "", include_active: bool = False
) -> list[Task]:
    """Plan an export: a task for each segment.

    Raises:
        CmqdSourceError: a name is unknown, or the folder cannot be read.
    """
    given = {"path": path, "includeActive": str(include_active)}
    if queues:
        given["queue"] = ",".join(queues)
    if account:
        given["account"] = account
    return plan_batch(parse_options(given), tuple(COLUMNS))


def unsealed(path: str) -> "tuple[int, int] | None":
    """Return the first and last unsealed row; an export without ``include_active`` leaves these rows out."""
    return unsealed_now(parse_options({"path": path}))


class ExportError(CmqdSourceError):
    """The folder cannot be used; nothing was written."""


def export(tasks: Sequence[Task], folder: Path, *, queues: Sequence[str] = (), account: str = "") -> Iterator[Exported]:
    """Write a file for each task, unless the file exists; whole or not at all.

    A segment that was reclaimed since the plan was made gets no file. ``queues`` and ``account``: as for
    :func:`plan_export`.

    Raises:
        ExportError: the folder has the messages of other queues.
        CmqdSourceError: a segment is damaged.
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    selection = "\n".join([*([_ACCOUNT_MARK + account] if account else []), *sorted(set(queues))]).encode()
    _check_selection(folder, selection)
    for task in tasks:
        extent = task.piece.extent
        file = folder / f"{extent.number:08d}.parquet"
        identity = _identity(task)
        found = _metadata(file)
        if found is not None and found.metadata is not None and found.metadata.get(_IDENTITY) == identity:
            yield Exported(extent.number, file, found.num_rows, file.stat().st_size, False)
            continue
        temporary = beside(file)
        try:
            # Missing rows are an error here whatever the options say: else a file with a part of the segment, or with
            # no message, would count as the whole segment in all later exports.
            whole = replace(task, options=replace(task.options, fail_on_data_loss=True), may_be_reclaimed=False)
            messages = _write(whole, temporary, {_IDENTITY: identity, _SELECTION: selection})
            temporary.replace(file)
        except SegmentReclaimedError:
            continue
        finally:
            temporary.unlink(missing_ok=True)
        yield Exported(extent.number, file, messages, file.stat().st_size, True)


def _check_selection(folder: Path, selection: bytes) -> None:
    for file in sorted(folder.iterdir()):
        found = _metadata(file) if _OURS.fullmatch(file.name) else None
        if found is None or found.metadata is None or _IDENTITY not in found.metadata:
            continue
        there = found.metadata.get(_SELECTION, b"")
        if there != selection:
            raise ExportError(
                f"folder {folder} holds an export of {_described(there)}, and this export is of "
                f"{_described(selection)}; name another folder"
            )


def _described(selection: bytes) -> str:
    lines = selection.decode().split("\n") if selection else []
    queues = ", ".join(repr(line) for line in lines if not line.startswith(_ACCOUNT_MARK)) or "all queues"
    return queues + "".join(f" of account {line[1:]!r}" for line in lines if line.startswith(_ACCOUNT_MARK))


def _identity(task: Task) -> bytes:
    """Return the identity of a file: the segment, the rows of a live segment, the queues, and the number of columns.

    Columns are only ever added, so their number tells the versions of the source apart.
    """
    extent = task.piece.extent
    wanted = "all" if task.wanted is None else ",".join(map(str, sorted(task.wanted)))
    return f"{extent.sha256 or 'live'} {task.piece.above + 1}-{task.piece.upto} {wanted} {len(COLUMNS)}".encode()


def _metadata(file: Path) -> "pq.FileMetaData | None":
    try:
        return pq.read_metadata(file)
    except (OSError, pa.ArrowInvalid):
        return None


def _write(task: Task, file: Path, told: dict[bytes, bytes]) -> int:
    """Write the file of a segment and return the number of its messages."""
    messages = 0
    waiting: list[pa.RecordBatch] = []
    rows = 0
    with pq.ParquetWriter(file, SCHEMA.with_metadata(told), compression="zstd") as writer:
        for batch in read_task(task, SCHEMA):
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting, SCHEMA))
                messages, rows, waiting = messages + rows, 0, []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, SCHEMA))
    return messages + rows
