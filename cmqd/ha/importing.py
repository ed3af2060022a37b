"""``cmqd ha import``: the log of a stopped broker's folder moves into an empty engine (decision 0199).

    check the folder ─► rows, checkpoint, accounts, pins: one transaction ─► read back, compare ─► mark the folder

Until the transaction is committed the engine is empty, and the folder stays a log of its own until its mark, which is
the last step. After an end in between both have the log; the repeat of the command finds the fence of its import as the
newest row of the engine, compares again, and marks the folder.
"""

from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from cmqd.core.facts.numbers import WrongShard
from cmqd.engine.engine_errors import NoPinsColumn
from cmqd.engine.interface import Engine, EngineRow, ImportedLog, StoredAccounts, checksum_of
from cmqd.ha.stopped_folder import StoppedFolder
from cmqd.log.log_errors import LogError, LogFailed
from cmqd.server.access.accounts_file import AccountsFile
from cmqd.server.redundancy.engine_accounts import encode_accounts
from cmqd.storage.folder.data_folder import locked_folder
from cmqd.storage.redundancy.standing_pins import encode_standing_pins
from cmqd.storage.storage_errors import WrongFolder
from cmqd_segment.manifest import CACHE_FORMAT, CacheOf, read_manifest, write_manifest


class Refused(LogError):
    """The folder and the engine are unchanged; the text says why."""


def import_folder(path: Path, engine: Engine, shard: int, out: Callable[[str], object]) -> None:
    """Copy the log of a folder into an empty engine, compare the copy, and mark the folder as its cache. Blocks.

    Args:
        path: of the folder.
        engine: of the shard; the caller closes it.
        shard: number of the shard.
        out: gets lines for the operator.

    Raises:
        LogError: the folder or the engine is refused. The folder was not changed.
        ManifestError, NewerFormatError: the folder cannot be read.
        AccountsFileError: the accounts cannot be used.
        FileNotFoundError: the folder has no manifest.
        OSError: the folder cannot be read, or the mark cannot be written.
    """
    _require_own_log(path)
    with locked_folder(path):
        # Once more: the broker that has just ended may have marked the folder.
        _require_own_log(path)
        folder = StoppedFolder(path)
        log = _log_of(folder, shard)
        out(f"copies log {log.log_id}, rows up to {log.last_lsn}, into the engine")
        try:
            engine.import_log(log)
        except NoPinsColumn as missing:
            names = ", ".join(sorted(pin.name for pin in folder.manifest.standing_pins))
            raise Refused(
                f"{path} has the standing pins of backups ({names}), and {missing}. Without the pins the backups would"
                " have a gap: 'cmq pin delete', while the broker of the folder runs, accepts the gap"
            ) from None
        out("reads the rows back from the engine and compares them")
        _compare(engine, log)
        cache = CacheOf(log.log_id, shard)
        # Without starts: the epochs of an engine's leaders take their place, and imported rows have none.
        # Without standing pins: from now on the names of the engine count.
        marked = structs.replace(folder.manifest, format=CACHE_FORMAT, cache_of=cache, starts=[], standing_pins=[])
        write_manifest(path, marked)
    out(f"{path} is now a cache of {cache}; start its broker with redundancy = postgresql and this engine_url")


def _require_own_log(path: Path) -> None:
    cache_of = read_manifest(path).cache_of
    if cache_of is not None:
        raise WrongFolder(f"{path} is a cache of {cache_of} already; nothing was changed")


def _log_of(folder: StoppedFolder, shard: int) -> ImportedLog:
    """Read all but the rows; make all checks that could refuse the log later. Raises Refused."""
    if not folder.manifest.log_id:
        raise Refused(f"{folder.path} has a log without an id: start its broker once with this version")
    if folder.restored is not None:
        # The engine has no place for the mark of the restore, by which the first start goes on from the last row.
        raise Refused(f"{folder.path} {folder.restored}: start its broker once without redundancy")
    document = AccountsFile(folder.path).read()
    if document is None:
        raise Refused(f"{folder.path} has no accounts.json: without its keys no client could read the log")
    try:
        folder.numbers().take_shard(shard)
    except WrongShard as refusal:
        raise Refused(f"{folder.path} cannot be imported: {refusal}") from None
    return ImportedLog(
        folder.manifest.log_id,
        folder.last_lsn,
        folder.batches,
        folder.checkpoint(),
        encode_accounts(document),
        encode_standing_pins(folder.manifest.standing_pins),
    )


def _compare(engine: Engine, log: ImportedLog) -> None:
    """Compare the engine with the folder; rows of brokers since the import may be there. Raises LogFailed."""
    rows = (row for batch in log.batches() for row in batch)
    stored: EngineRow | None
    for stored in engine.rows(0):
        if stored.lsn > log.last_lsn:
            break
        row = next(rows, None)
        if row is None or (row.lsn, checksum_of(row)) != (stored.lsn, checksum_of(stored)):
            raise LogFailed(f"row {stored.lsn} of the engine is another one; the folder stays a log of its own")
    if (row := next(rows, None)) is not None:
        raise LogFailed(f"row {row.lsn} is missing in the engine; the folder stays a log of its own")
    checkpoint, accounts = engine.newest_checkpoint(), engine.load_accounts()
    is_newer = checkpoint is not None and log.checkpoint is not None and checkpoint.lsn > log.checkpoint.lsn
    if checkpoint != log.checkpoint and not is_newer:
        raise LogFailed("the engine returned another checkpoint; the folder stays a log of its own")
    if accounts is None or (accounts.version == 1 and accounts != StoredAccounts(1, log.accounts)):
        raise LogFailed("the engine returned other accounts; the folder stays a log of its own")
    pins = engine.load_standing_pins() or b""
    # A leader may have changed the pins since. The look comes behind the read: without a row of a leader the pins that
    # were read are those of the import.
    if engine.news().lsn == log.last_lsn + 1 and pins != log.standing_pins:
        raise LogFailed("the engine returned other standing pins; the folder stays a log of its own")
    if engine.log_id() != log.log_id:
        raise LogFailed("the engine returned another log id; the folder stays a log of its own")
