"""Inspection of the data folder at a start: its content, its damage, and the rows and checkpoint to recover from.

Unsealed segments are checked page by page (about 50 ms for 100 MiB), because the sealer and the pager would otherwise
meet a broken page while the broker serves.

The inspection only reads, through read-only connections: a refused start has changed nothing, and damage stays as it
was found. Damaged files are put aside and gaps written off only with ``accept_loss``. The damage of all files is
collected before the start is refused: the operator decides once, with the whole list.

Every LSN from 1 on must be accounted for: by rows, by a dropped segment, or by an accepted loss. So a missing file is
found although segments are not dropped in order.

Four findings resemble damage and are not, because ``accept_loss`` would then discard intact data, or a start be
refused for the sake of rows that were never promised:

- records or files of a newer version (``FolderFormatError``),
- a disk without room for a WAL-index (``_raise_if_full``),
- a damaged checkpoint, while an older checkpoint or the whole log is enough (``_check_replay``),
- rows lost with the power under durability ``os`` (``power_lost``).

With redundancy the folder is a cache of a log in an engine. The first check is whether it is a cache of that log
(``_check_log``), because all later answers depend on it: a damaged cache is put aside and copied again, and a damaged
folder of its own is refused.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import msgspec

from cmqd.log.values import Durability, Finding
from cmqd.storage.folder.catalog import Catalog, SealedFile
from cmqd.storage.folder.data_folder import DataFolder
from cmqd.storage.folder.log_identity import new_log_id, new_start_number
from cmqd.storage.recovery import torn_tail as walcheck
from cmqd.storage.segments.row_inserts import is_disk_full
from cmqd.storage.storage_errors import DamagedError, FolderFormatError, WrongFolder
from cmqd_segment.checkpoint_file import CheckpointError, verify_checkpoint
from cmqd_segment.manifest import (
    MANIFEST_FORMAT,
    MANIFEST_NAME,
    OUTCOMES_SUFFIX,
    SIDE_SUFFIX,
    UNFINISHED,
    CacheOf,
    CheckpointEntry,
    LossEntry,
    Manifest,
    ManifestError,
    OutcomesEntry,
    Restored,
    SegmentEntry,
    SegmentState,
    current_format,
    merge_ranges,
    read_manifest,
    with_start,
    write_manifest,
)
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.rows import decode_records, meta_checksum
from cmqd_segment.schema import SegmentFormatError, open_read_only, read_origin

JUMP_LSN = 1_000_000
"""Distance by which the LSN jumps after a loss: new rows must not get the numbers of lost rows."""


class Leftover(NamedTuple):
    """A segment that was not sealed and holds rows."""

    number: int
    path: Path
    first_lsn: int
    last_lsn: int


class Recovered:
    """Result of the inspection. ``findings`` and ``damage`` grow while the checks run."""

    def __init__(self, folder: DataFolder, manifest: Manifest, accept_loss: bool, has_engine: bool) -> None:
        self.folder = folder
        self.manifest = manifest
        self.accept_loss = accept_loss
        self.has_engine = has_engine
        self.findings: list[Finding] = []
        self.damage: list[str] = []
        self.sealed: list[SealedFile] = []
        self.leftovers: list[Leftover] = []
        self.outcomes: dict[int, OutcomesEntry] = {}
        """Outcomes of the segments whose files are there, by number."""
        self.checkpoints: list[CheckpointEntry] = []
        """Usable checkpoints, oldest first."""
        self.losses: list[LossEntry] = list(manifest.losses)
        """Ranges without rows: of earlier starts and of this start. Checks add to them before the loss is accepted; a
        refused start writes nothing."""
        self.dropping: list[SegmentEntry] = []
        """Segments with files that may be gone already. Their rows count as dropped: a checkpoint covered them when the
        drop was decided."""
        self.empty: list[int] = []
        """Segments without rows, to be removed."""
        self.aside: list[Path] = []
        """Damaged files to put aside; of a WAL, a copy."""
        self.broken_wals: set[int] = set()
        """Segments with a WAL that holds commits beyond the frames that SQLite accepts."""
        self.skip_rows: set[int] = set()
        """LSNs of damaged rows with an accepted loss."""
        self.last_lsn = 0
        self.lost = False
        """Rows may be missing at the end of the log, so LSNs jump."""
        self.created = False
        self.manifest_is_new = False
        """The manifest was rebuilt from the files, because the file in the folder was damaged or missing."""
        self.same_boot = False
        """The manifest was written in this boot of the machine, so the page cache still has the state that the broker
        left."""

    @property
    def checkpoint(self) -> CheckpointEntry | None:
        """Newest usable checkpoint, None if there is none."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def checkpoint_lsn(self) -> int:
        """LSN of the newest usable checkpoint, 0 if there is none. Replay begins above it."""
        return self.checkpoints[-1].lsn if self.checkpoints else 0

    @property
    def has_rows(self) -> bool:
        """True if the folder has rows, or had rows that were reclaimed or lost."""
        return self.last_lsn > 0

    @property
    def restored(self) -> Restored | None:
        """The restore of the log, if no row was written since."""
        restored = self.manifest.restored
        return restored if restored is not None and restored.lsn == self.last_lsn else None

    def catalog(self, durability: Durability, boot_id: str) -> Catalog:
        """Begin the catalog of this start, with an identity for a log that has none."""
        manifest = self.manifest
        catalog = Catalog(self.folder, durability, boot_id)
        catalog.sealed = {file.number: file for file in self.sealed}
        catalog.checkpoints = list(self.checkpoints)
        catalog.losses = self.losses
        catalog.next_number = manifest.next_number
        catalog.names = {name.id: name for name in manifest.names}
        # A new id becomes durable with the first manifest of this start, before any row.
        catalog.log_id = manifest.log_id or new_log_id()
        catalog.former_log_ids = manifest.former_log_ids
        catalog.cache_of = manifest.cache_of
        # The manifests of this start keep the restore, because its first row may never become durable: the next start
        # would then read the wall clock.
        catalog.restored = self.restored
        catalog.starts = manifest.starts
        catalog.standing_pins = manifest.standing_pins
        if not self.has_engine:
            # With an engine the starts are the epochs of the log, the same in the folders of all brokers.
            catalog.starts = with_start(manifest.starts, new_start_number(), self.last_lsn + 1)
        catalog.dropped = merge_ranges(self.reclaimed)
        self._begin_outcomes(catalog)
        return catalog

    def _begin_outcomes(self, catalog: Catalog) -> None:
        """Find the checkpoint up to which outcomes reach: the oldest of the manifest.

        Without a missing row the first round begins with row 1: a crash may have come between the first checkpoint and
        that round. An earlier version may have left rows for hours of reading: its folder begins at a checkpoint.
        """
        listed, oldest = self.manifest.checkpoints, catalog.checkpoints[0] if catalog.checkpoints else None
        catalog.outcomes = self.outcomes
        if oldest is not None and listed[:1] != [oldest]:
            # The oldest is damaged, or was copied from an engine: no round can begin where the last round ended.
            catalog.outcomes = {
                number: msgspec.structs.replace(entry, known_from=oldest.end_lsn, upto=oldest.lsn)
                for number, entry in self.outcomes.items()
            }
        is_old = self.manifest.format < MANIFEST_FORMAT
        if is_old or catalog.dropped or catalog.losses or self.outcomes:
            catalog.outcomes_upto = oldest

    @property
    def reclaimed(self) -> list[tuple[int, int]]:
        """Ranges of rows that were dropped, or were about to be."""
        dropping = [(entry.first_lsn, entry.last_lsn) for entry in self.dropping if entry.rows]
        return [*self.manifest.dropped, *dropping]

    def find(self, kind: str, text: str) -> None:
        """Add a finding for the operator."""
        self.findings.append(Finding(kind, text))

    def found_damage(self, text: str, *aside: Path) -> None:
        """Add damage, and the files to put aside if the damage is accepted."""
        self.damage.append(text)
        self.aside += aside
        self.lost = True
        self.find("damaged", text)


def inspect(
    folder: DataFolder, *, accept_loss: bool, durability: Durability, boot_id: str, engine: CacheOf | None = None
) -> Recovered:
    """Check the whole folder, except bodies and the checksums of sealed segments, which are checked at each read.

    Args:
        folder: the locked folder.
        accept_loss: go on without damaged data.
        durability: of the broker.
        boot_id: boot of the machine.
        engine: log that the broker has in an engine, with an empty ``log_id`` while the engine is empty; None without
            redundancy.

    Raises:
        WrongFolder: the folder holds another log than the engine, or is a cache and the broker has no engine.
        DamagedError: the folder is damaged, and ``accept_loss`` is not set.
        FolderFormatError: a newer version wrote into the folder. No file is damaged then, so ``accept_loss`` does not
            help: it would discard data that the newer version understands.
    """
    try:
        return _inspect(folder, accept_loss, durability, boot_id, engine)
    except NewerFormatError as error:
        raise FolderFormatError(str(error)) from error


def _inspect(
    folder: DataFolder, accept_loss: bool, durability: Durability, boot_id: str, engine: CacheOf | None
) -> Recovered:
    manifest, found_in_files = _manifest(folder, accept_loss, durability, engine)
    _check_log(folder, manifest, engine)
    recovered = Recovered(folder, manifest, accept_loss, engine is not None)
    recovered.created = not found_in_files and not (folder.path / MANIFEST_NAME).exists()
    if found_in_files:
        recovered.lost = recovered.manifest_is_new = True
        recovered.find("damaged", "the manifest was lost; it was rebuilt from the files")
    current = current_format(manifest.cache_of)
    if manifest.format < current:
        recovered.find(
            "format_raised",
            f"the data folder had format {manifest.format} and has format {current} from this start on:"
            " older versions of cmqd cannot open it any more",
        )
    # Without fsync only the page cache held the newest rows, and a boot since then has lost them. With fsync a boot
    # explains no missing row.
    power_lost = manifest.durability == Durability.OS and manifest.boot_id != boot_id
    # An unknown boot is not the same boot: a WAL-index from before a loss of power proves nothing.
    recovered.same_boot = bool(boot_id) and manifest.boot_id == boot_id
    if not manifest.clean and not recovered.created:
        recovered.find("unclean_stop", "the previous broker did not stop in order")
    # Checkpoints before segments: the checkpoint decides which rows replay needs, and only these are read in full.
    # Coverage last: it needs the range of every segment, and the losses that the checks have found.
    _check_checkpoints(recovered)
    for entry in manifest.segments:
        _check_outcomes(recovered, entry)
        # The outcomes of a segment change while the segment does not: the catalog has them apart.
        _check_segment(recovered, msgspec.structs.replace(entry, outcomes=None), power_lost)
    _check_coverage(recovered, power_lost)
    if recovered.damage and not accept_loss:
        raise DamagedError(
            "the data folder is damaged and nothing was changed: "
            + "; ".join(recovered.damage)
            + ". Restore it, or start with accept-loss to go on without the lost data"
        )
    if engine is not None and manifest.cache_of is None and recovered.has_rows:
        # By the rows in the files: the manifest may be older than the first of them.
        raise WrongFolder(
            f"the data folder {folder.path} holds rows up to {recovered.last_lsn} of log {manifest.log_id}, written"
            f" without redundancy, and is not a cache of {_name(engine)}; nothing was changed. To join this engine,"
            " start with an empty data folder; to move this folder into an empty engine, use 'cmqd ha import'; to serve"
            " it as it is, set redundancy = none"
        )
    return recovered


def _check_log(folder: DataFolder, manifest: Manifest, engine: CacheOf | None) -> None:
    """Compare the log of a cache with the log of the broker. Raises WrongFolder."""
    cache_of = manifest.cache_of
    if cache_of is None or cache_of == engine:
        return
    if engine is None:
        raise WrongFolder(
            f"the data folder {folder.path} is a cache of {cache_of} in an engine, and redundancy is none: the folder"
            " is not synced, and the engine may have newer rows. Nothing was changed. Start with the redundancy and the"
            " engine of this log, or move the log into the folder with 'cmqd ha export'"
        )
    raise WrongFolder(
        f"the data folder {folder.path} is a cache of {cache_of}, and the engine has {_name(engine)}; nothing was"
        " changed. Start with the engine of the folder's log, or with an empty data folder"
    )


def _name(engine: CacheOf) -> str:
    return str(engine) if engine.log_id else f"an empty engine, shard {engine.shard}"


def _manifest(
    folder: DataFolder, accept_loss: bool, durability: Durability, engine: CacheOf | None
) -> tuple[Manifest, bool]:
    """Return the manifest, and whether it was rebuilt from the files. Raises WrongFolder for the files of a cache."""
    # Without files there is no log yet. With files a missing manifest is damage: a new manifest would give the numbers
    # of the rows in these files to new rows.
    files = _segment_files(folder)
    try:
        return read_manifest(folder.path), False
    except FileNotFoundError:
        if not files:
            return Manifest(clean=True, durability=durability), False
        problem = "the manifest is missing, though there are segments"
    except ManifestError as error:
        problem = str(error)
    cache_of = cache_in_segments(folder)
    if engine is None and cache_of is not None:
        # The mark is lost with the manifest, and the rows may be fewer than the engine's.
        raise WrongFolder(
            f"the data folder {folder.path} has no manifest that can be read ({problem}), its segments are of a cache"
            f" of {cache_of} in an engine, and redundancy is none. Nothing was changed. Start with redundancy and the"
            " engine of this log, which copies the folder again"
        )
    if not accept_loss:
        raise DamagedError(
            f"the data folder is damaged and nothing was changed: {problem}. Put back the manifest of a copy that has"
            " the same segments and checkpoints, or start with accept-loss: then the manifest is rebuilt from the"
            " segments and checkpoints, and rows that were reclaimed count as lost"
        )
    # Retired, also if sealed before: only the manifest had the size and the checksum of a sealed file. A retired
    # segment is checked page by page and sealed again.
    segments = [SegmentEntry(number, SegmentState.RETIRED) for number in files]
    checkpoints: list[CheckpointEntry] = []
    log_id = ""
    for path in sorted(folder.checkpoints.glob("*.ckpt")):
        with contextlib.suppress(CheckpointError, ValueError):
            header, end = verify_checkpoint(path)
            size = path.stat().st_size
            # Ascending by number, so the id of the log comes from the newest checkpoint.
            checkpoints.append(CheckpointEntry(int(path.stem), header.lsn, end.lsn, header.time_ms, size, ""))
            log_id = header.log_id
    return (
        Manifest(
            durability=durability,
            segments=segments,
            checkpoints=checkpoints,
            next_number=max(files, default=0) + 1,
            log_id=log_id,
        ),
        True,
    )


def cache_in_segments(folder: DataFolder) -> CacheOf | None:
    """Return the log of which the segments are a cache, by the newest segment that can be read; None if they are not.

    The newest: a log that was imported or exported has segments of both kinds.
    """
    for number in reversed(_segment_files(folder)):
        path = folder.path / SegmentEntry(number, SegmentState.PREPARING).file
        # The table is in the main file from the creation on. A connection that reads the WAL would replace its index.
        with (
            contextlib.suppress(sqlite3.Error, SegmentFormatError),
            contextlib.closing(open_read_only(path, sealed=True)) as raw,
        ):
            origin = read_origin(raw)
            return None if origin.shard is None else CacheOf(origin.log_id, origin.shard)
    return None


def _segment_files(folder: DataFolder) -> list[int]:
    return sorted(int(path.stem) for path in folder.segments.glob("*.db") if path.stem.isdigit())


def _check_checkpoints(recovered: Recovered) -> None:
    """Keep the checkpoints that are whole and belong to this log.

    A whole file can be the wrong file, from a restored backup or another folder. Its facts would then be taken for
    facts of this log.
    """
    known_log_ids = {recovered.manifest.log_id, *recovered.manifest.former_log_ids}
    for entry in recovered.manifest.checkpoints:
        path = recovered.folder.path / entry.file
        try:
            header, end = verify_checkpoint(path)
            if (header.lsn, end.lsn) != (entry.lsn, entry.end_lsn):
                raise CheckpointError(f"{path.name} does not match its entry in the manifest")
            if header.log_id and header.log_id not in known_log_ids:
                raise CheckpointError(f"{path.name} belongs to another log")
            recovered.checkpoints.append(entry)
        except (CheckpointError, FileNotFoundError) as error:
            # Not damage yet: the checkpoint before it, or the log from its beginning, may be enough.
            recovered.find("checkpoint_damaged", f"checkpoint {entry.file} cannot be used: {error}")
            if path.exists():
                recovered.aside.append(path)


def _check_segment(recovered: Recovered, entry: SegmentEntry, power_lost: bool) -> None:
    path = recovered.folder.path / entry.file
    match entry.state:
        case SegmentState.DROPPING:
            # Before the search for the file: the crash may have come before or after the unlink.
            recovered.dropping.append(entry)
        case SegmentState.PREPARING:
            # The manifest lists a segment before its file exists, and a segment gets rows only once the manifest calls
            # it prepared. So the file may be missing or half made, and no row is in it.
            recovered.empty.append(entry.number)
        case _ if not path.exists():
            recovered.found_damage(f"segment {entry.file} is missing")
        case SegmentState.SEALED:
            try:
                _check_sealed(recovered, entry, path)
            except (sqlite3.Error, SegmentFormatError, msgspec.MsgspecError) as error:
                _raise_if_full(error)
                recovered.found_damage(f"segment {entry.file} cannot be read: {error}", path)
        case _:
            try:
                _check_leftover(recovered, entry, path, power_lost)
            except (sqlite3.Error, SegmentFormatError, msgspec.MsgspecError) as error:
                _raise_if_full(error)
                recovered.found_damage(f"segment {entry.file} cannot be read: {error}", path, _wal(path))


def _raise_if_full(error: Exception) -> None:
    """Raise an error for lack of space again: a disk without room for a WAL-index is not damage, and accepting a loss
    would discard intact data.
    """
    if isinstance(error, sqlite3.Error) and is_disk_full(error):
        raise error


def _check_sealed(recovered: Recovered, entry: SegmentEntry, path: Path) -> None:
    """Check the size of a sealed segment, and the rows that replay needs.

    The SHA-256 of the file is not compared: each 128 MiB would cost a read of the file and 70 ms of CPU time. A row is
    checked when a page reads it.
    """
    size = path.stat().st_size
    if size != entry.bytes:
        recovered.found_damage(f"segment {entry.file} has {size} bytes instead of {entry.bytes}", path)
        return
    with contextlib.closing(open_read_only(path, sealed=True)) as raw:
        queues = raw.execute("SELECT queue_id, first_position, stop_position FROM sparse ORDER BY queue_id").fetchall()
        if entry.last_lsn > recovered.checkpoint_lsn:
            _check_rows(recovered, raw, entry.file)
    recovered.sealed.append(SealedFile(_with_side(recovered, entry), path, queues))


def _with_side(recovered: Recovered, entry: SegmentEntry) -> SegmentEntry:
    """Return the entry of a sealed segment without its side file if that is missing or has another size.

    Not damage: the segment has all that the side file has, and the broker makes it anew.
    """
    side = entry.side
    if side is None:
        return entry
    try:
        size = (recovered.folder.path / entry.side_file).stat().st_size
    except FileNotFoundError:
        problem = "is missing"
    else:
        if size == side.bytes:
            return entry
        problem = f"has {size} bytes instead of {side.bytes}"
    recovered.find("side_file", f"{entry.side_file} {problem} and is made anew")
    return msgspec.structs.replace(entry, side=None)


def _check_outcomes(recovered: Recovered, entry: SegmentEntry) -> None:
    """Keep the outcomes of a segment if their file is there, with its size.

    Not damage: the log is whole without the file, and readers tell the messages that it told as unknown.
    """
    outcomes = entry.outcomes
    if outcomes is None or entry.state is SegmentState.DROPPING:
        return
    file = entry.outcomes_file
    if file:
        try:
            size = (recovered.folder.path / file).stat().st_size
        except FileNotFoundError:
            recovered.find("outcomes", f"{file} is missing: how messages left is unknown as far as it alone told it")
            return
        if size != outcomes.bytes:
            text = f"{file} has {size} bytes instead of {outcomes.bytes}: how messages left is unknown as far as it"
            recovered.find("outcomes", f"{text} alone told it")
            return
    recovered.outcomes[entry.number] = outcomes


def _check_leftover(recovered: Recovered, entry: SegmentEntry, path: Path, power_lost: bool) -> None:
    """Check a segment that was active, retired or prepared when the broker stopped.

    The order of the evidence: the WAL-index as the writer left it, the headers of the WAL, the database, and last the
    WAL-index that the check has made. A connection replaces the index, so the order cannot change.
    """
    wal = _wal(path)
    # Before any connection opens the database: see ``torn_tail``.
    index = walcheck.read_index(_shm(path)) if recovered.same_boot else None
    wal_walk = walcheck.walk(wal) if wal.exists() else None
    lack = None if index is None else walcheck.find_lack(wal, wal_walk, index)
    if wal_walk is None and lack is None and entry.state in (SegmentState.ACTIVE, SegmentState.PREPARED):
        # An active or prepared segment has a WAL file from its preparation until it is sealed.
        lack = "is missing"
    with contextlib.ExitStack() as stack:
        # The index is the only witness of the missing frames, and a connection would rebuild the index from the frames
        # that are left. A second start would then accept the loss in silence, so the connection gets links instead.
        opened = stack.enter_context(_linked(recovered.folder, path)) if lack and wal_walk is not None else path
        raw = stack.enter_context(contextlib.closing(open_read_only(opened, sealed=wal_walk is None)))
        # Before the rows are counted: the count of a broken database proves nothing.
        (problem,) = raw.execute("PRAGMA quick_check(1)").fetchone()
        if problem != "ok":
            recovered.found_damage(f"segment {entry.file} is damaged: {problem}", path, wal)
            return
        first, last = raw.execute("SELECT min(lsn), max(lsn) FROM log").fetchone()
        (rows,) = raw.execute("SELECT count(*) FROM log").fetchone()
        if last is not None:
            if rows != last - first + 1:
                recovered.found_damage(f"segment {entry.file} has {rows} rows between LSN {first} and {last}")
            if last > recovered.checkpoint_lsn:
                _check_rows(recovered, raw, entry.file)
    # The connection is closed by now, since a plain file handle on the open database would drop SQLite's locks.
    # The lack first: a WAL that lacks durable frames is damage even if SQLite accepts every frame that is left.
    if lack:
        recovered.broken_wals.add(entry.number)
        loss = f"its rows after {last} are gone" if last is not None else "all its rows are gone"
        recovered.found_damage(f"the WAL of segment {entry.file} {lack}: {loss}", wal)
    elif wal_walk is not None and wal_walk.frames:
        _judge_wal(recovered, entry, path, wal_walk, power_lost)
    if last is None:
        recovered.empty.append(entry.number)
    else:
        recovered.leftovers.append(Leftover(entry.number, path, first, last))


@contextlib.contextmanager
def _linked(folder: DataFolder, path: Path) -> Generator[Path]:
    """Link database and WAL under other names, for a connection that must leave the WAL-index untouched.

    Links and not copies: a WAL has 128 MiB, and the disk may be full. Yields the database itself if the file system has
    no links, or no room for a link. This start still finds the lack then; only the next start would not.
    """
    scratch = folder.path / "inspection"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir()
        for file in (path, _wal(path)):
            os.link(file, scratch / file.name)
    except OSError:
        yield path
    else:
        yield scratch / path.name
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _judge_wal(
    recovered: Recovered, entry: SegmentEntry, path: Path, wal_walk: walcheck.Walk, power_lost: bool
) -> None:
    """Judge the frames that SQLite does not accept: damage, rows lost with the power, or a torn tail.

    Only damage has to be accepted. The commits of the other two were never promised to be durable.
    """
    # The index that the connection of the check has just made: it names the frames that SQLite accepts.
    index = walcheck.read_index(_shm(path))
    if index is None:
        recovered.broken_wals.add(entry.number)
        recovered.found_damage(
            f"the frames that SQLite accepts of the WAL of {entry.file} cannot be determined", _wal(path)
        )
        return
    verdict = walcheck.judge(wal_walk, index.frames)
    if verdict.commits_beyond:
        recovered.broken_wals.add(entry.number)
    if verdict.damaged and not power_lost:
        recovered.found_damage(
            f"the WAL of segment {entry.file} is damaged after frame {index.frames} of {wal_walk.frames}:"
            f" {verdict.commits_beyond} commits beyond it cannot be read",
            _wal(path),
        )
    elif verdict.commits_beyond and power_lost:
        # Without fsync the system writes pages in any order. A page that was not written before the power loss was
        # never promised to a client.
        recovered.lost = True
        recovered.find("lost", f"{verdict.commits_beyond} commits without fsync were lost with the power")
    elif verdict.frames_beyond:
        recovered.find(
            "torn_tail",
            f"an unfinished commit of {verdict.frames_beyond} frames at the end of {entry.file} was dropped",
        )


def _check_rows(recovered: Recovered, raw: sqlite3.Connection, file: str) -> None:
    """Check the checksums of the rows that recovery will replay. Rows below the checkpoint are checked when they are
    read: a wrong row there costs its own messages, and not the facts.
    """
    cursor = raw.execute(
        "SELECT lsn, time_ms, messages, queues, meta_crc, meta FROM log WHERE lsn > ? ORDER BY lsn",
        (recovered.checkpoint_lsn,),
    )
    for lsn, time_ms, messages, queues, checksum, meta in cursor:
        # A damaged row stays in its file when its loss is accepted. A later start must skip the row as well, because
        # the state since then was built without the row.
        if any(entry.first_lsn <= lsn <= entry.last_lsn for entry in recovered.manifest.losses):
            recovered.skip_rows.add(lsn)
        elif meta_checksum(lsn, time_ms, messages, queues, meta) != checksum:
            recovered.found_damage(f"row {lsn} of segment {file} does not match its checksum")
            # The row alone is lost. Ending the log here would cost every later row, and they are sound.
            recovered.skip_rows.add(lsn)
            recovered.losses.append(LossEntry(lsn, lsn, "wrong checksum"))
        else:
            # Raises for records of a newer version, before the start has changed anything.
            decode_records(meta)


def _check_coverage(recovered: Recovered, power_lost: bool) -> None:
    """Check that every LSN from 1 on is accounted for, and that replay can begin at the checkpoint."""
    manifest = recovered.manifest
    in_segments = [(file.entry.first_lsn, file.entry.last_lsn) for file in recovered.sealed if file.entry.rows]
    in_segments += [(leftover.first_lsn, leftover.last_lsn) for leftover in recovered.leftovers]
    reclaimed = recovered.reclaimed
    lost = [(entry.first_lsn, entry.last_lsn) for entry in recovered.losses]
    # The manifest is written while rows arrive, so it may name durable rows that no file holds any more.
    named = [entry.last_lsn for entry in manifest.segments]
    if manifest.cache_of is None:
        # A cache can have a checkpoint of the engine ahead of the rows that are still to be copied.
        named += [entry.end_lsn for entry in recovered.checkpoints]
    last_known = max([0, *(last for _, last in (*in_segments, *reclaimed, *lost)), *named])
    next_lsn = 1
    # The last pair stands behind the last known row, so that a gap at the end is found like any other gap.
    for first, last in (*merge_ranges([*in_segments, *reclaimed, *lost]), (last_known + 1, last_known + 1)):
        if first > next_lsn:
            _found_gap(recovered, next_lsn, first - 1, power_lost)
        next_lsn = last + 1
    # Before ``lost`` is read: a missing checkpoint is a loss too.
    _check_replay(recovered, reclaimed)
    recovered.last_lsn = last_known
    if recovered.lost:
        # The number of rows in a damaged end is unknown, and a client may know the numbers of their messages.
        recovered.last_lsn = last_known + JUMP_LSN
        recovered.losses.append(LossEntry(last_known + 1, last_known + JUMP_LSN, "may have been lost at the end"))


def _found_gap(recovered: Recovered, first: int, last: int, power_lost: bool) -> None:
    text = f"rows {first} to {last} are missing"
    if power_lost:
        recovered.lost = True
        recovered.find("lost", text)
    else:
        recovered.found_damage(text)
    recovered.losses.append(LossEntry(first, last, "missing"))


def _check_replay(recovered: Recovered, reclaimed: list[tuple[int, int]]) -> None:
    """Check that no row above the checkpoint was dropped.

    Such a row is missing when the newer checkpoint is unusable and no older checkpoint covers the drop, or when no
    checkpoint is left.
    """
    lsn = recovered.checkpoint_lsn
    for _first, last in merge_ranges(reclaimed):
        if last > lsn:
            recovered.found_damage(
                f"no usable checkpoint covers the rows up to {last} that were dropped"
                if lsn == 0
                else f"the newest usable checkpoint ends at row {lsn}, but rows up to {last} were dropped"
            )
            return


def put_right(recovered: Recovered) -> None:
    """Change the folder before the new manifest is written: put aside damaged and unknown files.

    Files are moved and not deleted, except half-written files of the broker itself: the operator may find another way
    to read them.
    """
    folder = recovered.folder
    # A restore that was killed behind its manifest left the mark. If the manifest is lost later, a restore into the
    # folder would take the log for its own unfinished work, and clear it.
    (folder.path / UNFINISHED).unlink(missing_ok=True)
    if recovered.manifest_is_new and (folder.path / MANIFEST_NAME).exists():
        # A copy, because the next line overwrites the file, and the operator may need it to find the cause.
        target = folder.put_aside(folder.path / MANIFEST_NAME, keep=True)
        recovered.find("set_aside", f"the damaged manifest was copied to {target}")
    if recovered.lost:
        # Before the damaged files go. If the start ended between the two steps, the folder would seem whole, and the
        # next start would give the numbers of lost rows to new rows.
        # The format of a folder of its own: a damaged cache is put aside as a whole, and does not come here.
        with_losses = msgspec.structs.replace(recovered.manifest, format=MANIFEST_FORMAT, losses=recovered.losses)
        write_manifest(folder.path, with_losses)
    for path in dict.fromkeys(recovered.aside):
        if not path.exists():
            continue
        # A WAL beside a database that stays is copied: SQLite still reads its valid frames.
        keep = path.name.endswith("-wal") and path.with_name(path.name.removesuffix("-wal")) not in recovered.aside
        target = folder.put_aside(path, keep=keep)
        recovered.find("set_aside", f"{path.name} was {'copied' if keep else 'moved'} to {target}")
    # By the manifest of the start before: files that are new in this start do not exist yet.
    for path in folder.strangers(recovered.manifest):
        if path.suffix in (".tmp", SIDE_SUFFIX, OUTCOMES_SUFFIX) or path.name.endswith(("-shm", "-journal")):
            # A half-written file of the broker itself, without value, or a file beside a segment that came before its
            # manifest, or stayed behind it.
            path.unlink()
            continue
        target = folder.put_aside(path)
        recovered.find("set_aside", f"{path.name} is not in the manifest and was moved to {target}")


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _shm(path: Path) -> Path:
    return path.with_name(path.name + "-shm")
