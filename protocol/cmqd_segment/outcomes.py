"""The outcomes of a segment: how its messages left their queues, beside the segment.

A segment stays while one of its messages is wanted, and the rows that tell how the others left may be reclaimed. The
file repeats these facts, entry for entry in the order of the log:

    file = magic frame*          frames as in a checkpoint: header, entries in parts, end

Each generation is a file of its own, which replaces the one before whole. The entry of the segment in the manifest
names the generation, its size and SHA-256, and the rows that the entries cover (``SegmentEntry.outcomes``).

A file grows with the departures and returns of its messages. Reads and writes therefore hold a part of it at a time, so
that a merge of many files takes little memory, and an open file for the moment of a read alone.
"""

from collections.abc import Iterable, Iterator
from hashlib import file_digest
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from cmqd_segment.checkpoint_file import FRAME_HEAD_BYTES, CheckpointError, check_magic, frame, read_payload
from cmqd_segment.newer import known_tags, raise_if_newer
from cmqd_segment.records import Runs, count_runs, ranges

MAGIC: Final = b"CMQDOUT1"
RETURNED: Final = "returned"
"""Reason of an entry whose messages came back by a rewind. All other reasons are states of ``cmqd_reading.states``."""
ENTRIES_IN_PART: Final = 256


class OutcomesError(Exception):
    """The file is not the whole, undamaged file of outcomes of its segment."""


class Outcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Messages of one queue that left by one record, or came back.

    A row has the records of many operations, so the row alone does not tell two entries apart: a delete and a rewind
    can share a row, and name the same messages.
    """

    queue_id: int
    lsn: int
    """Row of the record."""
    record: int
    """Index of the record in its row."""
    reason: str
    time_ms: int
    """Time of the record; of a record without a time, that of its row."""
    positions: Runs
    receive_counts: Runs
    """Receives of the messages until then, in the order of the positions: a single number for all of them, or runs
    (messages, receives)."""


class OutcomesPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A frame of the file; see the module."""


class OutcomesHeader(OutcomesPart, frozen=True, tag=1):
    """The first part."""

    segment: int
    """Number of the segment."""
    first_lsn: int
    """First row of the segment."""
    generation: int


class OutcomesEntries(OutcomesPart, frozen=True, tag=2):
    """Entries that follow those of the part before."""

    entries: list[Outcome]


class OutcomesEnd(OutcomesPart, frozen=True, tag=3):
    """The last part."""

    parts: int
    """Number of parts before the end: a shorter file is damaged."""


AnyOutcomesPart: TypeAlias = OutcomesHeader | OutcomesEntries | OutcomesEnd

_parts = msgspec.msgpack.Decoder(AnyOutcomesPart)
_TAGS = known_tags(AnyOutcomesPart)
_encode = msgspec.msgpack.Encoder().encode


class EncodedEntries:
    """Entries as frames: a tenth of the memory of the entries themselves."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._last: list[Outcome] = []

    def add(self, entry: Outcome) -> None:
        """Add an entry behind the others."""
        self._last.append(entry)
        if len(self._last) == ENTRIES_IN_PART:
            self._frames.append(frame(_encode(OutcomesEntries(self._last))))
            self._last = []

    def __iter__(self) -> Iterator[Outcome]:
        for part in self._frames:
            decoded = _parts.decode(memoryview(part)[FRAME_HEAD_BYTES:])
            assert isinstance(decoded, OutcomesEntries)
            yield from decoded.entries
        yield from self._last


def _frames(entries: Iterable[Outcome]) -> Iterator[bytes]:
    rest = iter(entries)
    while part := list(islice(rest, ENTRIES_IN_PART)):
        yield frame(_encode(OutcomesEntries(part)))


def outcome_chunks(header: OutcomesHeader, entries: Iterable[Outcome]) -> Iterator[bytes]:
    """Yield the content of a file, by parts."""
    yield MAGIC + frame(_encode(header))
    parts = 1
    for part in _frames(entries):
        yield part
        parts += 1
    yield frame(_encode(OutcomesEnd(parts)))


def encode_outcomes(header: OutcomesHeader, entries: Iterable[Outcome]) -> bytes:
    """Return the content of a file."""
    return b"".join(outcome_chunks(header, entries))


def read_outcomes(path: Path, segment: int, first_lsn: int, generation: int) -> Iterator[Outcome]:
    """Yield the entries of a file, in the order of the log. Damage may be found behind the first entries: see
    ``check_outcomes``.

    Raises:
        OutcomesError: the file is damaged, or of another segment or generation.
        NewerFormatError: a newer version wrote the file.
        OSError: the file cannot be read.
    """
    part: AnyOutcomesPart | None = None
    parts = 0
    before = (0, 0)
    try:
        for payload in _payloads(path):
            if isinstance(part, OutcomesEnd):
                raise OutcomesError(f"{path.name} has parts behind its end")
            part = _decoded(payload)
            if parts == 0 and part != OutcomesHeader(segment, first_lsn, generation):
                raise OutcomesError(f"{path.name} is not generation {generation} of segment {segment}")
            if isinstance(part, OutcomesEntries):
                for entry in part.entries:
                    before = _checked(path, entry, before)
                    yield entry
            elif isinstance(part, OutcomesHeader) and parts:
                raise OutcomesError(f"{path.name} has a second header")
            elif isinstance(part, OutcomesEnd) and part.parts != parts:
                raise OutcomesError(f"{path.name} has {parts} parts before its end, which counts {part.parts}")
            parts += 1
    except (CheckpointError, msgspec.MsgspecError) as error:
        raise OutcomesError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(part, OutcomesEnd):
        raise OutcomesError(f"{path.name} was not finished")


def check_outcomes(path: Path, segment: int, first_lsn: int, generation: int, sha256: str) -> None:
    """Read the whole file, and compare it with its checksum in the manifest. Raises as ``read_outcomes``."""
    with path.open("rb") as file:
        if file_digest(file, "sha256").hexdigest() != sha256:
            raise OutcomesError(f"{path.name} does not match its checksum in the manifest")
    for _ in read_outcomes(path, segment, first_lsn, generation):
        pass


def _payloads(path: Path) -> Iterator[bytes]:
    place = 0
    while True:
        with path.open("rb") as file:
            if not place:
                check_magic(file, path, MAGIC)
            else:
                file.seek(place)
            payload = read_payload(file, path)
            place = file.tell()
        if payload is None:
            return
        yield payload


def _decoded(payload: bytes) -> AnyOutcomesPart:
    try:
        return _parts.decode(payload)
    except msgspec.ValidationError:
        raise_if_newer("file of outcomes holds parts", [payload], _TAGS)
        raise


def _checked(path: Path, entry: Outcome, before: tuple[int, int]) -> tuple[int, int]:
    """Check an entry; return its row and record, which ascend."""
    here = (entry.lsn, entry.record)
    counts = entry.receive_counts
    covered = count_runs(entry.positions)
    is_sound = len(counts) == 1 or (len(counts) % 2 == 0 and sum(counts[::2]) == covered)
    if here < before or not covered or len(entry.positions) % 2 or not is_sound:
        raise OutcomesError(f"{path.name} has an entry of row {entry.lsn} that cannot be")
    return here


def pack_counts(positions: Runs, counts: dict[int, int], default: int) -> Runs:
    """Return the receive counts of an entry.

    Args:
        positions: of the entry.
        counts: receive counts of positions that differ from the default.
        default: receive count of all others.
    """
    if not counts:
        return [default]
    runs: Runs = []

    def add(messages: int, count: int) -> None:
        if messages and runs and runs[-1] == count:
            runs[-2] += messages
        elif messages:
            runs.extend((messages, count))

    differing = iter(sorted(counts))
    position = next(differing, None)
    for start, stop in ranges(positions):
        while position is not None and position < start:
            position = next(differing, None)
        while position is not None and position < stop:
            add(position - start, default)
            add(1, counts[position])
            start, position = position + 1, next(differing, None)
        add(stop - start, default)
    return runs[1:] if len(runs) == 2 else runs


def counted(entry: Outcome) -> Iterable[tuple[int, int, int]]:
    """Yield the ranges of positions of an entry as (start, stop, receive count)."""
    counts = entry.receive_counts
    if len(counts) == 1:
        for start, stop in ranges(entry.positions):
            yield start, stop, counts[0]
        return
    index, left = 0, counts[0]
    for first, stop in ranges(entry.positions):
        start = first
        while start < stop:
            if not left:
                index += 2
                left = counts[index]
            end = min(stop, start + left)
            yield start, end, counts[index + 1]
            left -= end - start
            start = end
