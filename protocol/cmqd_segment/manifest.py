"""The manifest: the list of the files of a data folder, with their states.

Written whole each time (temporary file, fsync, rename, fsync of the folder), so a reader sees the old manifest or the
new one. A listed file that is missing is damage; an unlisted file does not belong to the log.
"""

import contextlib
import os
import stat
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from cmqd_segment.checksums import crc32
from cmqd_segment.newer import NewerFormatError

MANIFEST_FORMAT = 4
"""Version of the whole folder. A broker that opens a folder of a lower format writes the manifest with this number
before any other file, so that no older version meets data it cannot read under a number it knows."""
CACHE_FORMAT = 5
"""The format of a folder that is a cache of an engine (``Manifest.cache_of``); otherwise the same as
``MANIFEST_FORMAT``. A version that does not know the mark would take the cache, which is neither synced nor complete,
for the only copy of the log, and write to it: the number makes such a version refuse the folder."""
CACHE_FORMATS = (3, CACHE_FORMAT)
"""The formats of caches, of this version and of earlier versions: 3 is a cache of format 2."""
MANIFEST_NAME = "manifest"
SEGMENTS = "segments"
SIDE_SUFFIX = ".side"
OUTCOMES_SUFFIX = ".outcomes"
CHECKPOINTS = "checkpoints"
UNFINISHED = "restore-unfinished"
"""Name of a file in a folder that a restore or clone fills; it goes after the manifest is written."""


class ManifestError(Exception):
    """The manifest is damaged."""


class SegmentState(StrEnum):
    """Life of a segment file: preparing - prepared - active - retired - sealed - dropping - forgotten."""

    PREPARING = "preparing"
    """Being created: may be missing or half made, and holds no rows."""
    PREPARED = "prepared"
    """Empty, next in line. A prepared segment with rows became active before the manifest was written."""
    ACTIVE = "active"
    RETIRED = "retired"
    """Closed for rows; its WAL may still hold some of the rows. Read with ``mode=ro``, never immutable."""
    SEALED = "sealed"
    """Complete, checksummed, read-only, and never changed again: read with ``mode=ro&immutable=1``."""
    DROPPING = "dropping"
    """Without live messages: about to be unlinked."""


class SideEntry(msgspec.Struct, frozen=True):
    """The side file of a sealed segment (``side``)."""

    bytes: int
    sha256: str
    """Of the whole file, hexadecimal."""


class OutcomesEntry(msgspec.Struct, frozen=True):
    """The outcomes of a segment's messages (``outcomes``)."""

    generation: int
    """Number of the file of this segment; 0 = no message has left yet, and there is no file."""
    known_from: int
    """The entries have all outcomes of rows above this LSN ..."""
    upto: int
    """... up to this LSN, and may have later outcomes. Below ``known_from``: none."""
    bytes: int = 0
    sha256: str = ""
    """Of the whole file, hexadecimal."""


class SegmentEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The manifest's entry of a segment. Ranges and counts are exact once the segment is sealed."""

    number: int
    state: SegmentState
    first_lsn: int = 0
    last_lsn: int = 0
    """First above last, or both 0: no rows."""
    first_ms: int = 0
    last_ms: int = 0
    rows: int = 0
    messages: int = 0
    bytes: int = 0
    """Size of the file."""
    sha256: str = ""
    """Of the whole file, hexadecimal; sealed segments only."""
    sources: list[tuple[int, int, int]] = []
    """Digest of the table ``names`` of a sealed segment: (id, messages, bytes of bodies) of each queue and topic. Empty
    if there are more than ``MAX_SOURCES``, or if a name is unknown; then the table has the names."""
    side: SideEntry | None = None
    """The side file of a sealed segment; None if it is still to be made."""
    outcomes: OutcomesEntry | None = None
    """How messages left their queues by rows that may be reclaimed; None = nothing is known but the rows that are
    there."""

    @property
    def file(self) -> str:
        """Path below the data folder."""
        return segment_file(self.number)

    @property
    def side_file(self) -> str:
        """Path of the side file below the data folder."""
        return f"{SEGMENTS}/{self.number:08d}{SIDE_SUFFIX}"

    @property
    def outcomes_file(self) -> str:
        """Path of the file of outcomes below the data folder; empty if there is none."""
        if self.outcomes is None or not self.outcomes.generation:
            return ""
        return outcomes_file(self.number, self.outcomes.generation)


class SourceName(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The name of a queue or topic."""

    id: int
    account: str
    name: str
    is_topic: bool = False


MAX_SOURCES = 32
"""Queues and topics of a segment that its entry in the manifest lists."""
MAX_NAMES = 1_000
"""Limit of names in the manifest. Both limits keep the manifest small: it is written every few seconds."""


class CheckpointEntry(msgspec.Struct, frozen=True):
    """A checkpoint that is kept."""

    number: int
    lsn: int
    """The checkpoint holds all facts of rows at or below this LSN (``CheckpointHeader.lsn``)."""
    end_lsn: int
    """The checkpoint may hold facts of rows up to this LSN (``CheckpointEnd.lsn``)."""
    time_ms: int
    bytes: int
    sha256: str

    @property
    def file(self) -> str:
        """Path below the data folder."""
        return checkpoint_file(self.number)


class LossEntry(msgspec.Struct, frozen=True):
    """Rows lost to damage, with a loss that the operator accepted: the gap is not reported again."""

    first_lsn: int
    last_lsn: int
    reason: str


class StartEntry(msgspec.Struct, frozen=True, array_like=True):
    """A start of the broker after which rows were written."""

    number: str
    """Random, hexadecimal."""
    first_lsn: int
    """The first row of this start. The rows of the previous start end below it."""


class StandingPinEntry(msgspec.Struct, frozen=True, array_like=True):
    """A backup for which the broker keeps rows until they are copied."""

    name: str
    copied_ms: int
    """Broker time of the last copy that the backup had told before the manifest was written."""
    every_ms: int
    """Interval of the copies."""


class CacheOf(msgspec.Struct, frozen=True):
    """The log of which a folder is a cache: the engine has the rows, the folder has unsynced copies."""

    log_id: str
    """Identity of the log, as the engine keeps it."""
    shard: int

    def __str__(self) -> str:
        return f"log {self.log_id}, shard {self.shard}"


class Restored(msgspec.Struct, frozen=True, array_like=True):
    """The restore of a log from a backup, or its making as a clone. In force until a row behind the restored rows is
    durable: the first start writes that row, and tells clock and counters of the restore before.
    """

    lsn: int
    """The last restored row."""
    time_ms: int
    """Broker time of that row, from which broker time goes on: not from the wall clock, by which messages would have
    expired."""
    aged_ms: int
    """Age that sessions and dedup ids gain (``LogRestored.aged_ms``)."""
    is_clone: bool = False
    """The log was made by ``cmqd clone``, of the messages that waited in another log."""

    def __str__(self) -> str:
        """Return the origin of the log as a part of a sentence."""
        return "is a clone" if self.is_clone else "was restored from a backup"


class Manifest(msgspec.Struct, frozen=True):
    """The files of a data folder, with their states; see the module."""

    format: int = MANIFEST_FORMAT
    clean: bool = False
    """Whether the broker stopped in order: then every segment with rows is sealed."""
    durability: str = "fsync"
    boot_id: str = ""
    """Boot of the machine in which the folder was last opened: tells a crash of the broker from a loss of power."""
    next_number: int = 1
    """Of the next segment to be made; numbers are not used twice."""
    segments: list[SegmentEntry] = []
    """Ascending by number, and by LSN."""
    checkpoints: list[CheckpointEntry] = []
    """Ascending by number; the last is the newest."""
    dropped: list[tuple[int, int]] = []
    """Ranges (first LSN, last LSN) of reclaimed rows, ascending and merged. Together with the segments and the losses
    they cover every LSN from 1 on: any other gap is damage."""
    losses: list[LossEntry] = []
    log_id: str = ""
    """Random, hexadecimal, made with the folder and kept by its copies. Empty in format 1."""
    former_log_ids: list[str] = []
    """Earlier ids of the log, from before ``cmqd new-log-id``; checkpoints may still name them."""
    names: list[SourceName] = []
    """Of all ids in ``sources`` of the segments, ascending; at most ``MAX_NAMES``."""
    starts: list[StartEntry] = []
    """Ascending by LSN, the newest at the end; at most ``MAX_STARTS``."""
    standing_pins: list[StandingPinEntry] = []
    """Backups that hold rows. Their rows are told anew after each start, so a restored folder holds everything until
    then."""
    cache_of: CacheOf | None = None
    """Set in a folder of one of the ``CACHE_FORMATS``, and in no other."""
    restored: Restored | None = None
    """Set by ``cmqd restore``. Without effect once the log has a row above ``Restored.lsn``."""


def current_format(cache_of: CacheOf | None) -> int:
    """Return the format that this version gives to a folder."""
    return MANIFEST_FORMAT if cache_of is None else CACHE_FORMAT


MAX_STARTS = 1_000
"""Starts that the manifest keeps. Of rows from before the oldest kept start only the ``log_id`` can be compared: at a
restart a day that is after some three years."""


def with_start(starts: Sequence[StartEntry], number: str, first_lsn: int) -> list[StartEntry]:
    """Return the starts with a new start that writes its first row at ``first_lsn``.

    A start with a first row at or above ``first_lsn`` has written no durable row, and is forgotten.
    """
    kept = [entry for entry in starts if entry.first_lsn < first_lsn]
    return [*kept, StartEntry(number, first_lsn)][-MAX_STARTS:]


def start_of(starts: Sequence[StartEntry], lsn: int) -> str:
    """Return the number of the start that wrote a row; empty if the start is not in the list."""
    index = bisect_right(starts, lsn, key=lambda entry: entry.first_lsn)
    return starts[index - 1].number if index else ""


class _Envelope(msgspec.Struct):
    format: int
    checksum: str = ""


def segment_file(number: int) -> str:
    """Return the path of a segment below the data folder."""
    return f"{SEGMENTS}/{number:08d}.db"


def outcomes_file(number: int, generation: int) -> str:
    """Return the path of a file of outcomes below the data folder."""
    return f"{SEGMENTS}/{number:08d}.{generation}{OUTCOMES_SUFFIX}"


def checkpoint_file(number: int) -> str:
    """Return the path of a checkpoint below the data folder."""
    return f"{CHECKPOINTS}/{number:08d}.ckpt"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder.

    Raises:
        FileNotFoundError: the folder has no manifest.
        ManifestError: the manifest is damaged.
        NewerFormatError: a newer version wrote the manifest.
    """
    text = (folder / MANIFEST_NAME).read_bytes()
    try:
        envelope = msgspec.json.decode(text, type=_Envelope)
        version = envelope.format
        has_checksum = bool(envelope.checksum) or 1 < version <= CACHE_FORMAT
        if has_checksum and envelope.checksum != _checksum(text[: text.rfind(b",")]):
            raise ManifestError("the manifest cannot be read: its checksum is wrong")
        if version > CACHE_FORMAT:
            raise NewerFormatError(f"the data folder has format {version}; this version knows up to {CACHE_FORMAT}")
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ManifestError(f"the manifest cannot be read: {error}") from error
    if (version in CACHE_FORMATS) != (manifest.cache_of is not None):
        raise ManifestError("the manifest cannot be read: format and mark of a cache do not agree")
    return manifest


def write_manifest(folder: Path, manifest: Manifest, mode: int | None = None) -> None:
    """Replace the manifest; on return the new manifest is durable. Blocks for two fsyncs. Raises OSError and leaves the
    old manifest.

    ``mode``: of the first manifest of a folder; None = by the mask of this process. A later manifest keeps its mode.
    """
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1).removesuffix(b"\n}")
    text = content + f',\n "checksum": "{_checksum(content)}"\n}}\n'.encode()
    temporary = folder / f"{MANIFEST_NAME}.tmp"
    with temporary.open("wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        with contextlib.suppress(FileNotFoundError):
            # The mode of the manifest is the mode of the folder's files, with any mask of this process.
            os.fchmod(file.fileno(), stat.S_IMODE((folder / MANIFEST_NAME).stat().st_mode))
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MANIFEST_NAME)
    sync_folder(folder)


def _checksum(content: bytes) -> str:
    """Compute the value of the key ``checksum`` over the bytes before the comma in front of the key.

    JSON alone does not show damage: a flipped bit turns a key into an unknown key, which readers ignore, and a number
    into another number.
    """
    return f"{crc32(content):08x}"


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def merge_ranges(covered: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges (first, last), both included, where they touch; ascending."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(covered):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


MAX_RANGES = 100
"""Ranges of rows in an answer about the log."""


def ranges_between(merged: Sequence[tuple[int, int]], above: int, upto: int) -> list[tuple[int, int]]:
    """Return the parts of merged ranges with rows above ``above`` up to ``upto``; beyond ``MAX_RANGES`` the last part
    spans the rest.
    """
    parts = [(max(first, above + 1), min(last, upto)) for first, last in merged if last > above and first <= upto]
    return parts if len(parts) <= MAX_RANGES else [*parts[: MAX_RANGES - 1], (parts[MAX_RANGES - 1][0], parts[-1][1])]
