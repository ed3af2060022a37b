"""The document of a run: the content of the data folder at the last row of the run.

A run is written after all its files, under a checksum, so a run is whole or not there. The document has the
manifest with which a restored folder begins: sealed segments and checkpoints alone, up to the last row of the run. Most
of the manifest is in files that consecutive runs share (``Part``, ``Rest``).
"""

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Set
from typing import Final, NamedTuple, Self

import msgspec
from msgspec import structs

from cmqd_backup.parts import missing_ranges
from cmqd_backup.refusals import Refused
from cmqd_backup.stores import Store
from cmqd_segment.manifest import (
    MANIFEST_FORMAT,
    CheckpointEntry,
    LossEntry,
    Manifest,
    SegmentEntry,
    SourceName,
    StartEntry,
)

RUNS: Final = "runs"
SEGMENTS: Final = "segments"
CHECKPOINTS: Final = "checkpoints"
ACCOUNTS: Final = "accounts"
PARTS: Final = "parts"
RUN_FORMAT: Final = 1
"""Version of the backup folder. A program refuses a higher number."""
_DIGITS: Final = 16
"""Digits of a checksum in a name: enough to tell files of a number apart. The run has the whole checksum."""

_STORED_NAME: Final = re.compile(rf"[a-z]+/([0-9]{{8,20}})\.[0-9a-f]{{{_DIGITS}}}\.(?:db|ckpt|json)")


class StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a backup."""

    name: str
    """Path below the backup."""
    bytes: int
    sha256: str


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A file with entries of segments."""

    file: StoredFile
    gone: list[tuple[int, int]] = []
    """Ranges of numbers: reclaimed segments of the part, which the run lacks."""


class Rest(msgspec.Struct, frozen=True):
    """The lists of the manifest that seldom change, in a file."""

    names: list[SourceName] = []
    starts: list[StartEntry] = []
    losses: list[LossEntry] = []
    former_log_ids: list[str] = []

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return the lists of a manifest."""
        return cls(manifest.names, manifest.starts, manifest.losses, manifest.former_log_ids)

    def within(self, manifest: Manifest) -> Manifest:
        """Return a manifest with these lists."""
        return structs.replace(manifest, **structs.asdict(self))


class RunName(NamedTuple):
    """The name of a run: enough to find the run of a time among thousands without a read."""

    number: int
    wall_ms: int
    """``Run.wall_ms``."""

    @property
    def path(self) -> str:
        """Path below the backup."""
        return f"{RUNS}/{self.number:08d}.{self.wall_ms}.json"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run; see the module."""

    format: int = RUN_FORMAT
    number: int
    """Ascending; of the newest run plus 1."""
    began_ms: int
    """Wall clock, as ``ended_ms``."""
    ended_ms: int
    last_lsn: int
    """The last row of the run. Every row up to it is in the run, or was reclaimed before."""
    last_ms: int
    """Broker time of that row."""
    offset_ms: int
    """Wall clock less broker time at that row, as the log records it."""
    file_mode: int
    """Mode of the manifest of the folder, and of the restored files."""
    accounts: StoredFile | None = None
    """None: ``--without-secrets``."""
    parts: list[Part] = []
    rest: StoredFile | None = None
    manifest: Manifest
    """Whole after the run is read; the document leaves out the content of ``parts`` and ``rest``. Reclaimed rows are
    the rows of no segment."""

    @property
    def name(self) -> RunName:
        """The name of the document."""
        return RunName(self.number, self.wall_ms)

    @property
    def wall_ms(self) -> int:
        """Time of the last row, by the wall clock."""
        return self.last_ms + self.offset_ms

    @property
    def until_ms(self) -> int:
        """The latest time of which the run is the log: without a later row, the begin of the run."""
        return max(self.wall_ms, self.began_ms)

    @property
    def files(self) -> list[StoredFile]:
        """All files that the run needs."""
        files = [stored_segment(entry) for entry in self.manifest.segments]
        files += [stored_checkpoint(entry) for entry in self.manifest.checkpoints]
        files += [part.file for part in self.parts]
        return files + [file for file in (self.rest, self.accounts) if file is not None]


class _Envelope(msgspec.Struct):
    sha256: str
    run: msgspec.Raw


class _Version(msgspec.Struct):
    format: int


def stored_segment(entry: SegmentEntry) -> StoredFile:
    """Return the file of a sealed segment."""
    name = f"{SEGMENTS}/{entry.number:08d}.{entry.sha256[:_DIGITS]}.db"
    return StoredFile(name, entry.bytes, entry.sha256)


def stored_checkpoint(entry: CheckpointEntry) -> StoredFile:
    """Return the file of a checkpoint."""
    name = f"{CHECKPOINTS}/{entry.number:08d}.{entry.sha256[:_DIGITS]}.ckpt"
    return StoredFile(name, entry.bytes, entry.sha256)


def stored_document(folder: str, content: bytes, number: int) -> StoredFile:
    """Return the file of accounts or of a part, of the first run that has this content."""
    sha256 = hashlib.sha256(content).hexdigest()
    return StoredFile(f"{folder}/{number:08d}.{sha256[:_DIGITS]}.json", len(content), sha256)


def number_of(name: str) -> int:
    """Return the number in the name of a file. Raises ValueError: no run wrote a file of that name."""
    match = _STORED_NAME.fullmatch(name)
    if match is None:
        raise ValueError(name)
    return int(match[1])


def document_of(run: Run) -> bytes:
    """Return the content of the document of a run."""
    content = msgspec.json.encode(run)
    return msgspec.json.encode(_Envelope(hashlib.sha256(content).hexdigest(), msgspec.Raw(content))) + b"\n"


class _PartFault(Exception):
    """A part is missing or damaged."""


class Runs:
    """The runs of a backup, read on demand."""

    def __init__(self, store: Store) -> None:
        """List the runs. Raises OSError."""
        self._store = store
        self.names: list[RunName] = []
        """Ascending by number."""
        self.faults: list[str] = []
        """A sentence for every damaged run or part that was read."""
        self._entries: dict[str, list[SegmentEntry]] = {}
        """Of the parts of the run that was read last."""
        for name in store.sizes(RUNS):
            with contextlib.suppress(ValueError):
                number, wall_ms, kind = name.partition("/")[2].split(".")
                if kind == "json":
                    self.names.append(RunName(int(number), int(wall_ms)))
        self.names.sort()

    def read(self, index: int) -> Run | None:
        """Return a run by its place among the names; None if it is damaged.

        Raises:
            Refused: a newer version wrote the run.
            OSError: the backup cannot be read.
        """
        return self._read(index, frozenset())

    def _read(self, index: int, known: Set[str]) -> Run | None:
        """Read a run without the segments of ``known`` parts. Raises as ``read``."""
        name = self.names[index].path
        try:
            run = _decode(name, self._store.read(name))
            names = {part.file.name for part in run.parts}
            self._entries = {part: entries for part, entries in self._entries.items() if part in names}
            return self._with_parts(run, known)
        except FileNotFoundError:
            # A backup removes old runs.
            fault = f"{name} is missing"
        except msgspec.MsgspecError as error:
            fault = f"{name} is damaged, and is left out: {error}"
        except _PartFault as error:
            # Once for all its runs.
            fault = f"{error}: the runs with this part are left out"
        if fault not in self.faults:
            self.faults.append(fault)
        return None

    def _with_parts(self, run: Run, known: Set[str]) -> Run:
        """Raises _PartFault, OSError, msgspec.MsgspecError."""
        segments = list(run.manifest.segments)
        for part in run.parts:
            if part.file.name not in known:
                gone = {number for first, last in part.gone for number in range(first, last + 1)}
                segments += [entry for entry in self.entries(part) if entry.number not in gone]
        segments.sort(key=lambda entry: entry.number)
        manifest = structs.replace(run.manifest, segments=segments)
        if run.rest is not None and run.rest.name not in known:
            manifest = msgspec.json.decode(self._content(run.rest), type=Rest).within(manifest)
        if not known:
            losses = [(loss.first_lsn, loss.last_lsn) for loss in manifest.losses]
            manifest = structs.replace(manifest, dropped=missing_ranges(segments, losses, run.last_lsn))
        return structs.replace(run, manifest=manifest)

    def entries(self, part: Part) -> list[SegmentEntry]:
        """Return all entries of a part. Raises OSError."""
        name = part.file.name
        if name not in self._entries:
            self._entries[name] = msgspec.json.decode(self._content(part.file), type=list[SegmentEntry])
        return self._entries[name]

    def _content(self, file: StoredFile) -> bytes:
        """Raises _PartFault, OSError."""
        try:
            content = self._store.read(file.name)
        except FileNotFoundError:
            raise _PartFault(f"{file.name} is missing") from None
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise _PartFault(f"{file.name} does not match its checksum")
        return content

    def first_of(self, indexes: Iterable[int]) -> Run | None:
        """Return the first run that can be read, None if there is none. Raises as ``read``."""
        return next((run for run in map(self.read, indexes) if run is not None), None)

    def newest(self) -> Run | None:
        """Return the newest run. Raises as ``read``."""
        return self.first_of(reversed(range(len(self.names))))

    def each(self) -> Iterator[Run]:
        """Yield all runs, ascending; with the segments that the run before lacks, and a few more.

        Thousands of runs with all their segments would not fit in memory. Raises as ``read``.
        """
        known: Set[str] = frozenset()
        for index in range(len(self.names)):
            run = self._read(index, known)
            if run is not None:
                known = {part.file.name for part in run.parts} | {run.rest.name if run.rest else ""}
                yield run


def _decode(name: str, content: bytes) -> Run:
    """Raises msgspec.MsgspecError, Refused."""
    envelope = msgspec.json.decode(content, type=_Envelope)
    if hashlib.sha256(envelope.run).hexdigest() != envelope.sha256:
        raise msgspec.ValidationError("its checksum is wrong")
    if msgspec.json.decode(envelope.run, type=_Version).format > RUN_FORMAT:
        raise Refused(f"{name} was written by a newer version: use a newer cmqd")
    run = msgspec.json.decode(envelope.run, type=Run)
    if run.manifest.format > MANIFEST_FORMAT:
        raise Refused(
            f"the log of {name} has format {run.manifest.format}, and this version knows up to {MANIFEST_FORMAT}:"
            " use a newer cmqd"
        )
    return run
