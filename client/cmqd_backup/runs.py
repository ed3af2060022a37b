"""The document of a run: what the data folder held at the last row of the run.

A run is written after all its files, under a checksum, so a run is whole or not there. It has the manifest of the
folder as a restored folder begins with it: sealed segments and checkpoints alone, up to the last row of the run.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from cmqd_backup.refusals import Refused
from cmqd_backup.stores import Store
from cmqd_segment.manifest import MANIFEST_FORMAT, CheckpointEntry, Manifest, SegmentEntry

RUNS: Final = "runs"
SEGMENTS: Final = "segments"
CHECKPOINTS: Final = "checkpoints"
ACCOUNTS: Final = "accounts"
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
    """Mode of the manifest of the folder, which the restored files get."""
    accounts: StoredFile | None = None
    """None: ``--without-secrets``."""
    manifest: Manifest

    @property
    def wall_ms(self) -> int:
        """Time of the last row, by the wall clock."""
        return self.last_ms + self.offset_ms

    @property
    def until_ms(self) -> int:
        """The latest time of which the run is the log: without a row since the last one, the begin of the run."""
        return max(self.wall_ms, self.began_ms)

    @property
    def files(self) -> list[StoredFile]:
        """All files that the run needs."""
        files = [stored_segment(entry) for entry in self.manifest.segments]
        files += [stored_checkpoint(entry) for entry in self.manifest.checkpoints]
        return files if self.accounts is None else [*files, self.accounts]


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


def stored_accounts(content: bytes, number: int) -> StoredFile:
    """Return the file of the accounts, of the first run that has this content."""
    sha256 = hashlib.sha256(content).hexdigest()
    return StoredFile(f"{ACCOUNTS}/{number:08d}.{sha256[:_DIGITS]}.json", len(content), sha256)


def number_of(name: str) -> int:
    """Return the number in the name of a file. Raises ValueError: no run wrote a file of that name."""
    match = _STORED_NAME.fullmatch(name)
    if match is None:
        raise ValueError(name)
    return int(match[1])


class RunName(NamedTuple):
    """The name of a run: enough to find the run of a time among thousands without reading them."""

    number: int
    wall_ms: int
    """``Run.wall_ms``."""

    @property
    def path(self) -> str:
        """Path below the backup."""
        return f"{RUNS}/{self.number:08d}.{self.wall_ms}.json"


def write_run(store: Store, run: Run) -> None:
    """Write a run, after all its files. Raises OSError."""
    content = msgspec.json.encode(run)
    envelope = _Envelope(hashlib.sha256(content).hexdigest(), msgspec.Raw(content))
    with store.writing(RunName(run.number, run.wall_ms).path) as file:
        file.write(msgspec.json.encode(envelope) + b"\n")


class Runs:
    """The runs of a backup, each read when it is needed."""

    def __init__(self, store: Store) -> None:
        """List the runs. Raises OSError."""
        self._store = store
        self.names: list[RunName] = []
        """Ascending by number."""
        self.faults: list[str] = []
        """A sentence for each run that was to be read and is damaged."""
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
        name = self.names[index].path
        try:
            return _decode(name, self._store.read(name))
        except FileNotFoundError:
            # A backup removes old runs.
            self.faults.append(f"{name} is missing")
        except msgspec.MsgspecError as error:
            self.faults.append(f"{name} is damaged, and is left out: {error}")
        return None

    def first_of(self, indexes: Iterable[int]) -> Run | None:
        """Return the first run that can be read, None if there is none. Raises as ``read``."""
        return next((run for run in map(self.read, indexes) if run is not None), None)

    def newest(self) -> Run | None:
        """Return the newest run. Raises as ``read``."""
        return self.first_of(reversed(range(len(self.names))))

    def all(self) -> list[Run]:
        """Return all runs, ascending. Raises as ``read``."""
        return [run for run in map(self.read, range(len(self.names))) if run is not None]


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
