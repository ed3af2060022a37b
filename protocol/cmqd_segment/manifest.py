"""The manifest: the one file that says which files make up a data folder, and in which state each is.

Written whole each time (temporary file, fsync, rename, fsync of the folder), so a reader sees the old or the new one.
A file that is listed and missing is damage; one that is not listed does not belong to the log.
"""

import contextlib
import os
import stat
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from zlib import crc32

import msgspec

from cmqd_segment.newer import NewerFormatError

MANIFEST_FORMAT = 2
"""Covers everything in the folder. A broker that opens a folder of a lower format writes the manifest with this number
before it writes anything else, so that no older version meets data it cannot read under a number it knows."""
MANIFEST_NAME = "manifest"
SEGMENTS = "segments"
CHECKPOINTS = "checkpoints"


class ManifestError(Exception):
    """The manifest is damaged."""


class SegmentState(StrEnum):
    """Life of a segment file: preparing - prepared - active - retired - sealed - dropping - forgotten."""

    PREPARING = "preparing"
    """Being created: may be missing or half made, and holds no rows."""
    PREPARED = "prepared"
    """Empty, next in line. Found with rows at recovery, it became active without the manifest being told."""
    ACTIVE = "active"
    RETIRED = "retired"
    """Takes no more rows; its WAL may still hold some of them. Read it with ``mode=ro``, never immutable."""
    SEALED = "sealed"
    """Complete, checksummed, read-only, and never changed again: read it with ``mode=ro&immutable=1``."""
    DROPPING = "dropping"
    """Nothing in it is wanted: about to be unlinked."""


class SegmentEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the manifest knows of a segment; ranges and counts are exact once it is sealed."""

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
    """Digest of the table ``names`` of a sealed segment: (id, messages, bytes of bodies) of each queue and topic in it.
    Empty if there are more than ``MAX_SOURCES``, or if a name is not known: then the table tells."""

    @property
    def file(self) -> str:
        """Path below the data folder."""
        return segment_file(self.number)


class SourceName(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The name of a queue or topic."""

    id: int
    account: str
    name: str
    is_topic: bool = False


MAX_SOURCES = 32
"""Queues and topics of a segment that its entry in the manifest lists."""
MAX_NAMES = 1_000
"""Names in the manifest. Both keep it small: it is written every few seconds."""


class CheckpointEntry(msgspec.Struct, frozen=True):
    """A checkpoint that is kept."""

    number: int
    lsn: int
    """All that is at or below it is in the checkpoint (``CheckpointHeader.lsn``)."""
    end_lsn: int
    """The checkpoint may hold facts up to this one (``CheckpointEnd.lsn``)."""
    time_ms: int
    bytes: int
    sha256: str

    @property
    def file(self) -> str:
        """Path below the data folder."""
        return checkpoint_file(self.number)


class LossEntry(msgspec.Struct, frozen=True):
    """Rows that were lost to damage, and whose loss the operator accepted: a gap that is no longer news."""

    first_lsn: int
    last_lsn: int
    reason: str


class StartEntry(msgspec.Struct, frozen=True, array_like=True):
    """A start of the broker under which rows were written."""

    number: str
    """Random, hexadecimal."""
    first_lsn: int
    """The first row written under it. The rows of the start before end below it."""


class Manifest(msgspec.Struct, frozen=True):
    """See the module."""

    format: int = MANIFEST_FORMAT
    clean: bool = False
    """Whether the broker that wrote it stopped in order: then every segment with rows is sealed."""
    durability: str = "fsync"
    boot_id: str = ""
    """Boot of the machine under which the folder was last opened: tells a crash of the broker from a loss of power."""
    next_number: int = 1
    """Of the next segment to be made; numbers are not used twice."""
    segments: list[SegmentEntry] = []
    """Ascending by number, and by LSN."""
    checkpoints: list[CheckpointEntry] = []
    """Ascending by number; the last is the newest."""
    dropped: list[tuple[int, int]] = []
    """Ranges (first LSN, last LSN) of rows that were reclaimed, ascending and merged. Together with the segments and
    the losses they cover every LSN from 1 on: any other gap is damage."""
    losses: list[LossEntry] = []
    log_id: str = ""
    """Random, hexadecimal; made with the folder and kept by copies of it. Empty in format 1."""
    former_log_ids: list[str] = []
    """Ids from before the folder was told to be a log of its own; checkpoints may still name them."""
    names: list[SourceName] = []
    """Of all ids in ``sources`` of the segments, ascending; at most ``MAX_NAMES``."""
    starts: list[StartEntry] = []
    """Ascending by LSN, the newest at the end; at most ``MAX_STARTS``."""


MAX_STARTS = 1_000
"""Starts that the manifest keeps. Of rows from before the oldest kept start only the ``log_id`` can be compared: at a
restart a day that is after some three years."""


def with_start(starts: Sequence[StartEntry], number: str, first_lsn: int) -> list[StartEntry]:
    """Return the starts with a new one that writes its first row at ``first_lsn``.

    A start whose rows would begin there or later has written none that became durable, and is forgotten.
    """
    kept = [entry for entry in starts if entry.first_lsn < first_lsn]
    return [*kept, StartEntry(number, first_lsn)][-MAX_STARTS:]


def start_of(starts: Sequence[StartEntry], lsn: int) -> str:
    """Return the number of the start under which a row was written; empty if that start is not known (any more)."""
    place = bisect_right(starts, lsn, key=lambda entry: entry.first_lsn)
    return starts[place - 1].number if place else ""


class _Envelope(msgspec.Struct):
    format: int
    checksum: str = ""


def segment_file(number: int) -> str:
    """Path of a segment below the data folder."""
    return f"{SEGMENTS}/{number:08d}.db"


def checkpoint_file(number: int) -> str:
    """Path of a checkpoint below the data folder."""
    return f"{CHECKPOINTS}/{number:08d}.ckpt"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder.

    Raises:
        FileNotFoundError: there is none.
        ManifestError: it is damaged.
        NewerFormatError: a newer version wrote it.
    """
    text = (folder / MANIFEST_NAME).read_bytes()
    try:
        envelope = msgspec.json.decode(text, type=_Envelope)
        version = envelope.format
        has_checksum = bool(envelope.checksum) or 1 < version <= MANIFEST_FORMAT
        if has_checksum and envelope.checksum != _checksum(text[: text.rfind(b",")]):
            raise ManifestError("the manifest cannot be read: its checksum is wrong")
        if version > MANIFEST_FORMAT:
            raise NewerFormatError(f"the data folder has format {version}; this version knows up to {MANIFEST_FORMAT}")
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ManifestError(f"the manifest cannot be read: {error}") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest; on return it is durable. Blocks for two fsyncs. Raises OSError, leaving the old one."""
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1).removesuffix(b"\n}")
    text = content + f',\n "checksum": "{_checksum(content)}"\n}}\n'.encode()
    temporary = folder / f"{MANIFEST_NAME}.tmp"
    with temporary.open("wb") as file:
        with contextlib.suppress(FileNotFoundError):
            # The mode of the manifest is that of the folder's files, whatever the mask of this process.
            os.fchmod(file.fileno(), stat.S_IMODE((folder / MANIFEST_NAME).stat().st_mode))
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MANIFEST_NAME)
    sync_folder(folder)


def _checksum(content: bytes) -> str:
    """Return what the key ``checksum`` says of the bytes before the comma in front of it.

    JSON alone does not show damage: a flipped bit in a key makes it an unknown one, which readers ignore, and in a
    number another number.
    """
    return f"{crc32(content):08x}"


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def merge_ranges(covered: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges (first, last), both included, ascending and merged where they touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(covered):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged
