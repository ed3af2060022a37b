"""The journal of a replay: slices of the log, and possible repeats. Pure, but for the journal file.

A *run* sends the messages of a range of the log to a queue, or publishes them to a topic. The range is cut into
*slices*, ranges of whole rows, which are sent in turn. The journal counts the slices done. The journal is written
before the first slice and after every slice, so that a run that was stopped, or killed, resumes with the unfinished
slice, from the start of the slice. Messages of the slice that are stored already are not stored again, because a
message has the same dedup id in every attempt, as long as the broker remembers the id: :data:`REMEMBERED_S`, and a
million ids.
"""

import fcntl
import os
import re
import secrets
import time
from bisect import bisect_left
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from cmqd_log.errors import CmqdSourceError
from cmqd_log.files import write_whole

JOURNAL_FORMAT = 1
SLICE_MESSAGES = 50_000
"""Messages of a slice: less than a second of a replay at full speed. Larger slices would repeat more after a stop; in
smaller slices the writes of the journal would count, and the half second that Spark needs for a slice."""
SLICE_SECONDS = 1
"""Seconds that a slice takes at a given rate."""
LEAST_SLICE_MESSAGES = 100
"""A slow run has slices of as many messages, or of :data:`MOST_SLICE_SECONDS`: the journal has an entry for each."""
MOST_SLICE_SECONDS = 10
"""Far less than the broker remembers dedup ids."""
REMEMBERED_S = 300.0
"""Time for which the broker remembers dedup ids."""
MOST_SLICE_MESSAGES = 1_000_000
"""Number of dedup ids that the broker remembers per queue."""

LEFT_OUT = frozenset({"half", "rolled_back"})
"""Events and states of messages that no consumer was to receive."""

_NEVER_AGAIN = re.compile(r"(local(\[(\d+|\*)\])?)?", re.ASCII)
"""Masters that do not run a failed task again; ``local[2,4]`` and ``local-cluster[...]`` do."""
_RUN = re.compile(r"r-[0-9a-f]{12}", re.ASCII)


class JournalError(CmqdSourceError):
    """A run cannot begin or continue with this journal; no message was sent."""


class Slice(msgspec.Struct, frozen=True):
    """Rows ``first_lsn`` to ``last_lsn``, both included, and the number of their messages to send."""

    first_lsn: int
    last_lsn: int
    messages: int
    bytes: int = 0
    """Bytes of the bodies."""
    check: int = 0
    """Checksum of the first row, to recognize a different log."""

    def __str__(self) -> str:
        rows = f"row {self.first_lsn}" if self.first_lsn == self.last_lsn else f"rows {self.first_lsn}-{self.last_lsn}"
        return f"{rows}, {self.messages:,} messages"


class Slicer:
    """Cuts rows into slices, as they are counted."""

    def __init__(self, most: int, gaps: Sequence[tuple[int, int]] = ()) -> None:
        """Begin without rows.

        Args:
            most: maximum number of messages of a slice; a row with more messages is a slice of its own.
            gaps: ranges of missing rows; no slice spans a gap.
        """
        self._most = most
        self._gap_starts = [first for first, _ in gaps]
        self._slices: list[Slice] = []
        self._first = self._last = self._messages = self._bytes = 0

    def add(self, lsn: int, messages: int, size: int) -> None:
        """Add messages of a row. Rows come in ascending order; a row may come several times."""
        if self._messages and lsn != self._last:
            is_full = self._messages + messages > self._most
            if is_full or bisect_left(self._gap_starts, lsn) != bisect_left(self._gap_starts, self._last):
                self._cut()
        if not self._messages:
            self._first = lsn
        self._last = lsn
        self._messages += messages
        self._bytes += size

    def slices(self) -> list[Slice]:
        """Return all slices."""
        self._cut()
        return self._slices

    def _cut(self) -> None:
        if self._messages:
            self._slices.append(Slice(self._first, self._last, self._messages, self._bytes))
            self._messages = self._bytes = 0


def slice_messages(rate: "int | None", wanted: "int | None" = None) -> int:
    """Return the maximum number of messages of a slice: ``wanted`` if given, within limits, else by the rate."""
    most = min(wanted or SLICE_MESSAGES, MOST_SLICE_MESSAGES)
    if rate is None:
        return most
    if wanted is None:
        most = min(most, max(rate * SLICE_SECONDS, LEAST_SLICE_MESSAGES))
    return max(1, min(most, rate * MOST_SLICE_SECONDS))


class Doubt(msgspec.Struct, frozen=True):
    """A slice with messages that may have been stored twice."""

    first_lsn: int
    last_lsn: int
    messages: int
    """Maximum number of these messages."""
    seconds: float
    """Seconds from the beginning of the slice's first attempt to the end of its last attempt."""

    def __str__(self) -> str:
        return f"rows {self.first_lsn} to {self.last_lsn}, up to {self.messages:,} messages"


class Journal(msgspec.Struct, kw_only=True):
    """State of a run, complete enough to continue the run, without the key of the server."""

    format: int = JOURNAL_FORMAT
    run: str
    source: dict[str, str]
    """Options of the source, with ``path``; without the range."""
    starting_ms: int | None = None
    ending_ms: int | None = None
    position: int
    """The row of the count: rows above are not replayed, and modes show the states at this row."""
    log_id: str = ""
    """Id of the log; empty in journals of earlier versions until the run is resumed, like ``start``."""
    start: str = ""
    """Number of the broker's start that wrote the row at ``position``."""
    events: list[str]
    """Events (or states) that are sent."""
    queue: str = ""
    topic: str = ""
    routing: bool = False
    """True if the target is a routing topic."""
    target_id: int
    """Id of the queue or topic: a new id under the same name is a new target."""
    server: str
    """URL of the server, without the key."""
    mark: bool = False
    allow_data_loss: bool = False
    rate: Annotated[int, msgspec.Meta(ge=1)] | None = None
    parallel: Annotated[int, msgspec.Meta(ge=1)] = 1
    master: str = ""
    """The master of Spark; empty = the run is sent without Spark."""
    slices: list[Slice]
    done: int = 0
    """Number of slices that were sent whole."""
    sent: int = 0
    """Number of messages in the finished slices."""
    sent_bytes: int = 0
    seconds: float = 0.0
    """Seconds spent on the finished slices."""
    attempts: int = 0
    """Number of attempts at the next slice."""
    begun: float = 0.0
    """Start of the first attempt at the next slice, in seconds since 1970."""
    doubts: list[Doubt] = []

    @property
    def messages(self) -> int:
        """Number of messages in all slices."""
        return sum(one.messages for one in self.slices)

    @property
    def is_done(self) -> bool:
        """True if all slices are sent."""
        return self.done == len(self.slices)

    @property
    def next_slice(self) -> Slice:
        """The first unfinished slice."""
        return self.slices[self.done]

    @property
    def target(self) -> str:
        """The queue or topic, as text for a user."""
        return f"queue {self.queue!r}" if self.queue else f"topic {self.topic!r}"

    def begin(self, now: float) -> None:
        """Note the beginning of an attempt at the next slice."""
        if not self.attempts:
            self.begun = now
        self.attempts += 1

    def end(self, sent: int, seconds: float, now: float) -> "Doubt | None":
        """Note that the next slice was sent; return whether some messages of the slice may have been stored twice.

        Repeats within the time that the broker remembers are not stored again. A slice that was sent in a single
        attempt has no repeats, unless a cluster of Spark repeated a task.
        """
        one = self.next_slice
        repeated = self.attempts > 1 or _NEVER_AGAIN.fullmatch(self.master) is None
        doubt = None
        if repeated and not 0 <= now - self.begun <= REMEMBERED_S:
            doubt = Doubt(one.first_lsn, one.last_lsn, one.messages, round(now - self.begun, 3))
            self.doubts.append(doubt)
        self.done += 1
        self.sent += sent
        self.sent_bytes += one.bytes
        self.seconds += seconds
        self.attempts, self.begun = 0, 0.0
        return doubt


def new_run() -> str:
    """Return a name for a run. With a message id behind the name it is the dedup id of a message: 35 bytes of 64."""
    return f"r-{secrets.token_hex(6)}"


def journal_folder(environment: Mapping[str, str]) -> Path:
    """Return the default folder of journals."""
    base = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "cmq" / "replays"


def journal_file(run: str, folder: Path) -> Path:
    """Return the journal file of a run; ``run`` is the name of the run or the file itself."""
    return folder / f"{run}.json" if _RUN.fullmatch(run) else Path(run)


def states_file(journal: Path) -> Path:
    """Return the file with the states of messages, which a run has in all modes but ``events``."""
    return journal.with_name(f"{journal.name}.states")


def clear_up(journal: Journal, file: Path) -> None:
    """Remove the files of a finished run, but for its journal. The caller holds the lock, and a later holder finds the
    run done.
    """
    if journal.is_done:
        states_file(file).unlink(missing_ok=True)
        _lock_file(file).unlink(missing_ok=True)


def write_journal(journal: Journal, file: Path) -> None:
    """Replace the journal durably; after a loss of power the file has either the old or the new content.

    Raises:
        JournalError: the file cannot be written.
    """
    try:
        write_whole(file, msgspec.json.format(msgspec.json.encode(journal)))
    except OSError as error:
        raise JournalError(f"the journal {file} cannot be written: {error}") from error


def read_journal(file: Path) -> Journal:
    """Read a journal.

    Raises:
        JournalError: the file is missing, malformed or of a newer version.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise JournalError(f"no run can be resumed: the journal {file} does not exist") from None
    except OSError as error:
        raise JournalError(f"the journal {file} cannot be read: {error}") from error
    try:
        journal = msgspec.json.decode(content, type=Journal)
    except msgspec.MsgspecError as error:
        raise JournalError(f"{file} is not the journal of a replay: {error}") from error
    if journal.format != JOURNAL_FORMAT or not 0 <= journal.done <= len(journal.slices):
        raise JournalError(
            f"the journal {file} has format {journal.format}, and this version of cmqd reads {JOURNAL_FORMAT}"
        )
    return journal


@contextmanager
def locked(file: Path) -> Generator[None]:
    """Hold the lock of a run, so that a single process works on it; a lock ends with its process.

    Raises:
        JournalError: another process works on the run.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(_lock_file(file), os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError as error:
        raise JournalError(f"the journal {file} cannot be written: {error}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalError("another process is carrying out this run; wait for its end, or stop it") from None
        yield
    finally:
        os.close(handle)


def _lock_file(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}.lock")


class Meter:
    """Measures the speed of a replay; ``str()`` gives progress and remaining time."""

    WINDOW_S = 30.0

    def __init__(self, total: int, done: int = 0, now: "float | None" = None) -> None:
        self.total = total
        self.done = done
        self._marks = [(time.monotonic() if now is None else now, done)]

    def advance(self, messages: int, now: "float | None" = None) -> None:
        """Count messages that were sent."""
        now = time.monotonic() if now is None else now
        self.done += messages
        self._marks.append((now, self.done))
        while len(self._marks) > 2 and now - self._marks[1][0] > self.WINDOW_S:
            del self._marks[0]

    @property
    def rate(self) -> float:
        """Recent rate in messages a second."""
        (first, before), (last, after) = self._marks[0], self._marks[-1]
        return (after - before) / (last - first) if last > first else 0.0

    def __str__(self) -> str:
        rate = self.rate
        if not rate:
            return ""
        minutes, seconds = divmod(round((self.total - self.done) / rate), 60)
        hours, minutes = divmod(minutes, 60)
        left = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
        return f"{rate:,.0f}/s, {left} left"
