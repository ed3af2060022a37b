"""``cmqd ha export``: a log moves from its engine into a data folder, for ``redundancy = none`` (decision 0199).

    lead, copy, stop ─► compare, row by row ─► accounts.json ─► fsync ─► retire the log in the engine
    ─► remove the mark, and name the standing pins in its place

The folder is a cache of the log until its last step, so that no broker takes it for a log of its own before the engine
has let the log go. In between no broker leads the log at all; the repeat of the command goes on there.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from msgspec import UNSET, structs

from cmqd.engine.engine_errors import LogRetired
from cmqd.engine.interface import Engine, checksum_of
from cmqd.ha.stopped_folder import StoppedFolder
from cmqd.log.log_errors import LogError, LogFailed
from cmqd.log.values import Durability
from cmqd.server.access.accounts_file import AccountsFile
from cmqd.server.redundancy.engine_accounts import decode_accounts
from cmqd.storage.folder.data_folder import locked_folder
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.redundancy.standing_pins import decode_standing_pins
from cmqd_segment.manifest import (
    CHECKPOINTS,
    MANIFEST_FORMAT,
    SEGMENTS,
    CacheOf,
    read_manifest,
    sync_folder,
    write_manifest,
)
from cmqd_segment.rows import NO_QUEUES


class Refused(LogError):
    """The folder and the engine are unchanged; the text says why."""


def export_folder(
    path: Path, engine: Engine, shard: int, open_log: Callable[[], StorageProcessLog], out: Callable[[str], object]
) -> None:
    """Bring a folder up to date from the engine, retire the log there, and make the folder a log of its own. Blocks.

    Args:
        path: of the folder: a cache of the log, or empty, or to be made.
        engine: of the shard; the caller closes it.
        shard: number of the shard.
        open_log: makes the log of a broker with this folder and this engine.
        out: gets lines for the operator.

    Raises:
        LogError: the folder or the engine is refused, or a broker leads.
        ManifestError, NewerFormatError, AccountsFileError, OSError: see ``importing.import_folder``.
    """
    try:
        log_id, is_retired = engine.log_id(), False
    except LogRetired as retired:
        log_id, is_retired = retired.log_id, True
    if log_id is None:
        raise Refused("the engine is empty: there is no log to export")
    cache = CacheOf(log_id, shard)
    _require_cache(path, cache, is_retired=is_retired)
    if not is_retired:
        if not engine.try_lead():
            raise Refused(f"a broker leads {cache}: stop all brokers of the shard first")
        engine.release()
        out(f"copies {cache} from the engine into {path}")
        asyncio.run(copy_log(open_log))
    finish(path, engine, cache, out)


def _require_cache(path: Path, cache: CacheOf, *, is_retired: bool) -> None:
    """Refuse other folders before the first change; a folder that passes is examined again under its lock."""
    try:
        manifest = read_manifest(path)
    except FileNotFoundError:
        if is_retired:
            raise Refused(f"{cache} is retired: it was exported to another folder") from None
        return
    if manifest.cache_of == cache or (manifest.cache_of is None and not is_retired):
        return
    if manifest.cache_of is None and manifest.log_id == cache.log_id:
        raise Refused(f"{path} has been exported already; start its broker with redundancy = none")
    raise Refused(f"{path} is no cache of {cache}; nothing was changed")


async def copy_log(open_log: Callable[[], StorageProcessLog]) -> None:
    """Lead the log as its broker does: copy all rows into the folder, and stop in order."""
    log = open_log()
    try:
        await log.open()
        async for _ in log.recover():
            pass
        await log.close()
    except BaseException:
        await log.kill()
        raise


def finish(path: Path, engine: Engine, cache: CacheOf, out: Callable[[str], object]) -> None:
    """Make a folder with all rows a log of its own. Raises as ``export_folder``."""
    with locked_folder(path):
        folder = StoppedFolder(path, cache)
        out("compares the folder with the engine, row by row")
        _compare(engine, folder)
        stored = engine.load_accounts()
        if stored is None:
            raise Refused(f"the engine has no accounts of {cache}")
        # The key of the gateways belongs to the pair of brokers, and opens nothing here.
        document = structs.replace(decode_accounts(stored), gateway_key=UNSET)
        AccountsFile(path).write(document)
        # By these names the first start holds every row until the backups have told theirs.
        pins = decode_standing_pins(engine.load_standing_pins() or b"")
        _sync(path)
        # Before the mark goes: two brokers with one log would both answer.
        engine.retire(folder.last_lsn)
        own = structs.replace(
            folder.manifest,
            format=MANIFEST_FORMAT,
            cache_of=None,
            durability=Durability.FSYNC.value,
            standing_pins=pins,
        )
        write_manifest(path, own)
    shard = f" and shard = {cache.shard}" if cache.shard else ""
    out(f"{path} has log {cache.log_id} now; start its broker with redundancy = none{shard}")


def _compare(engine: Engine, folder: StoppedFolder) -> None:
    """Check that every row of the engine is in the folder. Raises LogFailed."""
    rows = (row for batch in folder.batches() for row in batch)
    row = next(rows, None)
    for stored in engine.rows(0):
        while row is not None and row.lsn < stored.lsn:
            row = next(rows, None)
        if row is None or row.lsn != stored.lsn:
            # The engine keeps fences between reclaimed rows, and rows whose trim is still to be made.
            is_same = any(first <= stored.lsn <= last for first, last in folder.reclaimed)
        elif stored.is_fence:
            is_same = row.queues == NO_QUEUES
        else:
            is_same = checksum_of(row) == checksum_of(stored)
        if not is_same:
            raise LogFailed(f"row {stored.lsn} of the engine is not in the folder; nothing was changed")


def _sync(path: Path) -> None:
    """Make the files of a cache durable: its segments were written without fsync."""
    for folder in (path / SEGMENTS, path / CHECKPOINTS):
        for file in folder.iterdir():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(folder)
    sync_folder(path)
