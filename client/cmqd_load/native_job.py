"""A job of the load generator: open connections and prepared requests; and the outcome that the generator reports.

The generator gets the connections as inherited descriptors and the job as lines of text on standard input; ``load.c``
reads the job in ``read_job``.
"""

import socket
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from cmqd_load.failures import LoadError
from cmqd_load.histogram import Histogram, highest_in

MARK = b"@cmqd-bench:"
STAMP_DIGITS = 16
MIN_NATIVE_BODY = len(MARK) + STAMP_DIGITS
"""Smallest body: the mark and a time."""
NOISE = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
SECOND = b"second "
"""Start of a line with the figures so far."""
END_SECONDS = 60.0
"""Time for the replies that are still to come after the measured time."""


def body_of(size: int, seed: int = 0) -> bytes:
    """Return a body of ``size`` bytes (at least ``MIN_NATIVE_BODY``): the mark, an empty time, then printable noise.

    Printable, because one of the peers takes text only. The noise is the same in all runs.
    """
    if size < MIN_NATIVE_BODY:
        raise ValueError(f"a body has at least {MIN_NATIVE_BODY} bytes, not {size}")
    state, noise = seed + 1, bytearray()
    for _ in range(size - MIN_NATIVE_BODY):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        noise.append(NOISE[state >> 58])
    return MARK + b"0" * STAMP_DIGITS + bytes(noise)


@dataclass(frozen=True, slots=True)
class Request:
    """The bytes of a request, with the positions that the generator patches."""

    data: bytes
    messages: int = 1
    """Messages that a send contains, or a receive asks for at most."""
    replies: int = 1
    """Replies that complete the request, for protocols whose replies come in order."""
    number_at: int | None = None
    """Position of the request's number; None = the protocol has none."""
    is_stamped: bool = False
    """True for a send: its bodies get the time of sending."""

    def stamps(self) -> list[int]:
        """Return the positions of the times of all bodies."""
        positions: list[int] = []
        if self.is_stamped:
            start = self.data.find(MARK)
            while start >= 0:
                positions.append(start + len(MARK))
                start = self.data.find(MARK, start + MIN_NATIVE_BODY)
        return positions

    def line(self, name: str = "request") -> str:
        """Return the request as a line of a job."""
        stamps = self.stamps()
        number_at = -1 if self.number_at is None else self.number_at
        fields = [self.messages, self.replies, number_at, len(stamps), *stamps, self.data.hex() or "-"]
        return f"{name} " + " ".join(map(str, fields))


@dataclass(frozen=True, slots=True)
class Line:
    """A connection of the load: an authenticated socket and the request that it repeats."""

    socket: socket.socket
    request: Request
    settle: bytes = b""
    """The bytes of a delete that the protocol needs, such as the start of the request, up to its handles."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A queue on the way of the walkers, with its requests."""

    send: Request
    receive: Request
    settle: bytes
    """As of ``Line``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of one measurement."""

    protocol: str
    queue: str
    producers: Sequence[Line] = ()
    consumers: Sequence[Line] = ()
    stops: Sequence[Stop] = ()
    walkers: Sequence[socket.socket] = ()
    """Connections that send to a stop, receive, delete, and go on to the next stop, one request at a time; of cmqd.
    Walkers share no stop as long as there are enough. The latency of ``pairs`` counts from a walker's send."""
    group: str = ""
    """Name of the group of consumers, where the protocol needs one."""
    acknowledges: bool = False
    """Deletes travel inside the next receive."""
    outstanding: int = 1
    """Requests under way for each producer."""
    warm_up: float = 1.0
    seconds: float = 4.0
    rate: float = 0.0
    """Sends a second of an open loop; 0 = the next send follows a reply."""
    limit: int = 0
    """Messages after which the run ends; 0 = no limit."""
    ahead: int = 0
    """Messages that producers may be ahead of consumers; 0 = no bound."""
    records: Literal["sends", "pairs", "stamps"] = "sends"
    """The measured latency: of a send, of receive + delete, or from sending to receipt."""

    reports_seconds: bool = False
    """Report the figures so far each second of the measured time."""

    def sockets(self) -> list[socket.socket]:
        """Return all connections."""
        return [*(line.socket for line in (*self.producers, *self.consumers)), *self.walkers]

    def text(self) -> str:
        """Return the lines of the job."""
        lines = [
            f"protocol {self.protocol}",
            f"queue {self.queue}",
            f"warm_up_ms {round(self.warm_up * 1000)}",
            f"measure_ms {round(self.seconds * 1000)}",
            f"rate {self.rate}",
            f"limit {self.limit}",
            f"ahead {self.ahead}",
            f"records {self.records}",
            f"acknowledges {int(self.acknowledges)}",
            f"reports_seconds {int(self.reports_seconds)}",
        ]
        if self.group:
            lines.append(f"group {self.group}")
        lines += _connection_lines("produce", self.producers, self.outstanding)
        lines += _connection_lines("consume", self.consumers, 1)
        for stop in self.stops:
            lines += [stop.send.line("send"), stop.receive.line(), f"settle {stop.settle.hex()}", "stop -"]
        for index, walker in enumerate(self.walkers):
            lines.append(f"connection {walker.fileno()} walk {index % len(self.stops)} {len(self.walkers)}")
        return "\n".join(lines) + "\n"


def _connection_lines(role: str, lines: Iterable[Line], outstanding: int) -> list[str]:
    text: list[str] = []
    last: Request | None = None
    settle = b""
    for line in lines:
        if line.request is not last:
            text.append(line.request.line())
            last = line.request
        if line.settle != settle:
            text.append(f"settle {line.settle.hex()}")
            settle = line.settle
        text.append(f"connection {line.socket.fileno()} {role} {outstanding}")
    return text


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The report of the generator. Counts are of the measured time, totals of the whole run."""

    seconds: float
    sent: int
    received: int
    deleted: int
    empty: int
    """Receives that brought no message, of the whole run."""
    total_sent: int
    total_received: int
    total_deleted: int
    unanswered: int
    """Deletes inside receives without a reply at the end: done or not."""
    cpu_seconds: float
    """CPU of the generator in the measured time."""
    wakeups: int
    latency: list[tuple[int, int]]
    late: list[tuple[int, int]]
    """How late the sends of an open loop left, because of the generator, the machine or the broker."""

    def latencies(self) -> Histogram:
        """Return the measured latencies, in microseconds."""
        return _histogram(self.latency)

    def lateness(self) -> Histogram:
        """Return how late the sends of an open loop left, in microseconds."""
        return _histogram(self.late)


def _histogram(buckets: Iterable[tuple[int, int]]) -> Histogram:
    histogram = Histogram()
    for bucket, count in buckets:
        histogram.record(highest_in(bucket), count)
    return histogram


class _Failure(msgspec.Struct, frozen=True):
    error: str


def parse_report(text: bytes) -> Outcome:
    """Read the generator's last line.

    Raises:
        LoadError: the line names an error, or is no report.
    """
    try:
        return msgspec.json.decode(text, type=Outcome)
    except msgspec.MsgspecError:
        pass
    try:
        failure = msgspec.json.decode(text, type=_Failure)
    except msgspec.MsgspecError:
        raise LoadError(f"the load generator ended without a report: {text[:200]!r}") from None
    raise LoadError(failure.error)


def run(
    program: Path,
    job: Job,
    *,
    on_start: Callable[[], object] = str,
    on_end: Callable[[], object] = str,
    on_second: Callable[[Outcome], object] = str,
    on_process: Callable[[subprocess.Popen[bytes]], object] = str,
) -> Outcome:
    """Run a job; ``on_start`` and ``on_end`` are called when the measured time begins and ends.

    ``on_second`` gets the figures so far, ``on_process`` the process, which another thread may kill.

    Raises:
        LoadError: the broker answered with an error, ended, or owed a reply for 30 s.
    """
    descriptors = [connection.fileno() for connection in job.sockets()]
    for connection in job.sockets():
        connection.setblocking(False)
    with subprocess.Popen(
        [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=descriptors
    ) as process:
        on_process(process)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(job.text().encode())
            process.stdin.close()
            last = b""
            for line in process.stdout:
                if line == b"start\n":
                    on_start()
                elif line == b"end\n":
                    on_end()
                elif line.startswith(SECOND):
                    on_second(parse_report(line.removeprefix(SECOND)))
                else:
                    last = line
            process.wait(END_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
    return parse_report(last)
