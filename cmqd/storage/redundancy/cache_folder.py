"""A data folder that is a cache of a log in an engine, at the start of the storage process.

The rows of the log are durable in the engine; the folder saves their copy at a start, and has the bodies that pages
read. So damage to a cache is no loss: the folder is put aside as a whole, and its rows are copied again. The folder is
put aside, too, if its last row is not a row of the log: the row was read or written while a primary of the engine was
cut off, and no broker answered it.

Only a folder that its manifest, or without it its newest segment, marks as a cache of this log is put aside
(``folder_inspection``). The newest ``KEPT`` caches that were put aside stay: after a fail-over of the engine without
its guards they may have the only copy of a row. Older ones are removed, but not before this broker leads, with a whole
copy of the log in its folder; and files of another log stay for ever.
"""

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import structs

from cmqd.engine.engine_errors import LogRetired
from cmqd.engine.interface import Engine, EngineRow, checksum_of
from cmqd.log.values import Durability
from cmqd.storage.folder.data_folder import DataFolder
from cmqd.storage.recovery.folder_inspection import Recovered, cache_in_segments, inspect
from cmqd.storage.redundancy.following import Tail, rows_behind
from cmqd.storage.storage_errors import DamagedError, WrongFolder
from cmqd.storage.writing.checkpoint_writer import TEMPORARY, publish
from cmqd_segment.manifest import (
    MANIFEST_NAME,
    CacheOf,
    CheckpointEntry,
    ManifestError,
    read_manifest,
    start_of,
    sync_folder,
)
from cmqd_segment.schema import open_read_only

KEPT: Final = 2
"""Caches that are kept in ``set-aside/``."""


def inspect_cache(folder: DataFolder, engine: Engine, shard: int, boot_id: str) -> tuple[Recovered, Tail | None]:
    """Inspect a folder of a broker with redundancy; return the result and the last row. Blocks.

    Raises:
        WrongFolder: the folder is not a cache of the engine's log, and has rows; or the log was exported.
        DamagedError: the folder is damaged, and neither manifest nor segments prove that it is a cache of this log.
        FolderFormatError: see ``inspect``.
        EngineUnavailable: the engine does not answer.
    """
    try:
        log = CacheOf(engine.log_id() or "", shard)
    except LogRetired as retired:
        raise WrongFolder(f"{retired}; start the broker of that folder, with redundancy = none") from None

    def look() -> Recovered:
        return inspect(folder, accept_loss=False, durability=Durability.OS, boot_id=boot_id, engine=log)

    try:
        recovered = look()
    except DamagedError as damage:
        if not _is_cache(folder, log):
            raise
        problem = f"it is damaged: {damage}"
    else:
        tail = _tail(recovered)
        problem = _disagreement(recovered, tail, engine)
        if not problem:
            _mark(recovered, log)
            return recovered, tail
    target = _set_aside(folder)
    recovered = look()
    recovered.find(
        "set_aside",
        f"the cache was moved to {target} and is copied again from the engine, because {problem}; caches there:"
        f" {len(_caches_aside(folder))}, and the newest {KEPT} stay once the copy is complete",
    )
    _mark(recovered, log)
    return recovered, None


def take_checkpoint(recovered: Recovered, engine: Engine) -> None:
    """Copy the newest checkpoint of the engine into the folder, unless the folder has it or a newer one. Blocks.

    To be called before the manifest of this start is written, which lists the file. Raises CheckpointError, OSError.
    """
    entry = copy_checkpoint(engine, recovered.folder, recovered.checkpoints)
    if entry is not None:
        recovered.checkpoints.append(entry)


def copy_checkpoint(
    engine: Engine, folder: DataFolder, checkpoints: Sequence[CheckpointEntry]
) -> CheckpointEntry | None:
    """Copy the newest checkpoint of the engine into the folder, unless these are newer. Blocks.

    The caller lists the file in the manifest. Raises CheckpointError, OSError.
    """
    stored = engine.newest_checkpoint()
    if stored is None or stored.lsn <= max((entry.lsn for entry in checkpoints), default=0):
        return None
    temporary = folder.checkpoints / TEMPORARY
    temporary.write_bytes(stored.data)
    return publish(temporary, folder.path, max((entry.number for entry in checkpoints), default=0) + 1)


def _mark(recovered: Recovered, log: CacheOf) -> None:
    """Mark a folder without rows as a cache, in the first manifest of this start.

    The manifest can list a checkpoint of the engine: after an end before its first row, it would be of another log.
    """
    if log.log_id:
        recovered.manifest = structs.replace(recovered.manifest, log_id=log.log_id, cache_of=log)


def _is_cache(folder: DataFolder, log: CacheOf) -> bool:
    try:
        return read_manifest(folder.path).cache_of == log
    except (FileNotFoundError, ManifestError):
        return cache_in_segments(folder) == log


def _disagreement(recovered: Recovered, tail: Tail | None, engine: Engine) -> str:
    """Return the reason for which the folder is not the beginning of the engine's log; empty = the folder is the
    beginning."""
    if recovered.lost:
        return "rows were lost with the power"
    if not recovered.has_rows:
        return ""
    if tail is None:
        return f"its last row {recovered.last_lsn} is gone"
    if rows_behind(engine, tail) is None:
        return f"its last row {tail.lsn} is not the row {tail.lsn} of the engine"
    return ""


def _tail(recovered: Recovered) -> Tail | None:
    """Read the last row of the folder; None without a row of that number."""
    files = [(leftover.first_lsn, leftover.last_lsn, leftover.path, False) for leftover in recovered.leftovers]
    files += [(file.entry.first_lsn, file.last_lsn, file.path, True) for file in recovered.sealed]
    for first, last, path, sealed in files:
        if first <= recovered.last_lsn == last:
            with closing(open_read_only(path, sealed=sealed)) as raw:
                return _read_tail(raw, recovered)
    return None


def _read_tail(raw: sqlite3.Connection, recovered: Recovered) -> Tail:
    lsn, time_ms, messages, queues, meta, data = raw.execute(
        "SELECT lsn, time_ms, messages, queues, meta, data FROM log WHERE lsn = ?", (recovered.last_lsn,)
    ).fetchone()
    # The starts of a cache are the epochs of its leaders, with hexadecimal numbers.
    epoch = int(start_of(recovered.manifest.starts, lsn) or "0", 16)
    return Tail(lsn, epoch, checksum_of(EngineRow(lsn, epoch, time_ms, messages, queues, meta, data)), time_ms)


def remove_old_caches(folder: DataFolder, log: CacheOf) -> list[Path]:
    """Remove the caches of a log that were put aside, but the newest; return the removed. Raises OSError. Blocks."""
    old = [path for path in _caches_aside(folder)[:-KEPT] if _is_cache(DataFolder(path), log)]
    for path in old:
        shutil.rmtree(path)
    return old


def _caches_aside(folder: DataFolder) -> list[Path]:
    """Return the caches that were put aside, the oldest first."""
    return sorted(folder.set_aside.glob("cache.*"), key=_number_of)


def _number_of(path: Path) -> int:
    number = path.suffix.removeprefix(".")
    return int(number) if number.isdecimal() else 0


def _set_aside(folder: DataFolder) -> Path:
    """Put the whole log of a folder aside, the manifest last: a crash in between leaves a marked folder with missing
    files, which the next start puts aside in turn.
    """
    target = folder.set_aside / f"cache.{max(map(_number_of, _caches_aside(folder)), default=0) + 1}"
    target.mkdir(parents=True)
    for path in (folder.set_aside, target):
        # The mask of the process is made for files, and takes the right to enter a folder away.
        path.chmod(0o750)
    for path in (folder.segments, folder.checkpoints, folder.path / MANIFEST_NAME):
        if path.exists():
            path.replace(target / path.name)
    sync_folder(target)
    sync_folder(folder.set_aside)
    folder.create()
    return target
