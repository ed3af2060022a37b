"""The loads of ``cmq bench``: their options, and the work that the options describe."""

from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from cyclopts import Group, Parameter
from cyclopts.validators import Number

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.options import Bytes, Flag
from cmq_cli.session import Seconds
from cmqd_load.limits import MAX_DEPTH, MIN_BODY
from cmqd_protocol.limits import MAX_BATCH, MAX_BATCH_BYTES

MAX_BODIES_BYTES = 512 * 1024 * 1024
MAX_CONNECTIONS = 20_000
MAX_QUEUES = 10_000
MIN_RATE, MAX_RATE = 0.001, 1_000_000
MIN_SECONDS, MAX_SECONDS = 0.1, 86_400
POLLS_PER_QUEUE = 10
"""Waiting receives of a queue: more than one, so that the order of arrival matters."""
POLL_SENDERS = 8

_LOAD = Parameter(group=Group("Load", sort_key=1))
_OBJECTS = Parameter(group=Group("Queues", sort_key=2))
_RUN = Parameter(group=Group("Run", sort_key=3))

REPLY = "request to reply"
RECEIPT = "send to receipt"
INTENDED_REPLY = "intended time of sending to reply"
INTENDED_RECEIPT = "intended time of sending to receipt"
"""Meanings of a latency. An open loop counts from the intended time: a stall of the server then counts for each message
that was due meanwhile, and not for the few messages under way alone (coordinated omission)."""


class Generator(Enum):
    """Programs that make the load."""

    PYTHON = "python"
    NATIVE = "native"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a run."""

    load: str
    producers: int
    consumers: int
    queues: int
    latency: str
    depth: int = 1
    """Requests under way for each producer of a closed loop."""
    rate: float | None = None
    """Messages a second of an open loop; None = a closed loop."""
    is_fanout: bool = False
    """Producers publish to a topic, to which all queues are subscribed."""
    is_poll: bool = False
    """The queue of each message is chosen at random."""

    @property
    def copies(self) -> int:
        """Return the number of copies of a sent message that consumers get."""
        return self.queues if self.is_fanout else 1


Connections = Annotated[
    int, Parameter(validator=Number(gte=1, lte=MAX_CONNECTIONS), help="Connections that send."), _LOAD
]
Consumers = Annotated[
    int | None,
    Parameter(
        validator=Number(gte=0, lte=MAX_CONNECTIONS),
        help="Connections that receive and delete; by default as many as send, and one at least for each queue.",
    ),
    _LOAD,
]
Queues = Annotated[int, Parameter(validator=Number(gte=1, lte=MAX_QUEUES), help="Number of queues."), _OBJECTS]
Rate = Annotated[
    float,
    Parameter(
        validator=Number(gte=MIN_RATE, lte=MAX_RATE),
        help="Messages a second, sent at their times whether or not the server keeps up (an open loop).",
    ),
    _LOAD,
]
OptionalRate = Annotated[
    float | None,
    Parameter(
        validator=Number(gte=MIN_RATE, lte=MAX_RATE),
        help="Messages a second, sent at their times whether or not the server keeps up (an open loop). By default the "
        "next request leaves when the last is answered (a closed loop).",
    ),
    _LOAD,
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Plan:
    """Options of all loads."""

    load: ClassVar[str]

    size: Annotated[Bytes, Parameter(help=f"Bytes of each body: {MIN_BODY} to 1MiB."), _LOAD] = 256
    batch: Annotated[
        int, Parameter(validator=Number(gte=1, lte=MAX_BATCH), help="Messages of a request: 1 to 256."), _LOAD
    ] = 1
    duration: Annotated[Seconds, Parameter(help="Measured time, up to 1d.", show_default="10s"), _RUN] = 10.0
    warm_up: Annotated[
        Seconds, Parameter(help="Time under load before the measured time.", show_default="2s"), _RUN
    ] = 2.0
    messages: Annotated[
        int | None, Parameter(validator=Number(gte=1), help="End after about this many messages, if earlier."), _RUN
    ] = None
    reconnect: Annotated[
        bool,
        Parameter(help="Open lost connections again, and count the losses; otherwise the first loss ends the run."),
        _RUN,
    ] = True
    generator: Annotated[
        Generator,
        Parameter(help="Program that makes the load; native is the faster one in C, in a checkout with a compiler."),
        _RUN,
    ] = Generator.PYTHON
    hgrm: Annotated[Path | None, Parameter(help="File for the percentiles, in the form of HdrHistogram."), _RUN] = None
    html: Annotated[Path | None, Parameter(help="File for a page with curves, which loads no file."), _RUN] = None

    def work(self) -> Work:
        """Return the work."""
        raise NotImplementedError

    @property
    def existing(self) -> tuple[str | None, bool]:
        """Return the name of the queue, None = a new name; and True if the queue may exist before."""
        return None, False

    def check(self) -> Work:
        """Check options that depend on each other, and return the work.

        Raises:
            CommandFailed: the options cannot be used.
        """
        work = self.work()
        if not MIN_BODY <= self.size <= MAX_BATCH_BYTES:
            raise _usage(f"--size is {self.size}; it must be {MIN_BODY} to {MAX_BATCH_BYTES} bytes")
        if self.batch * self.size > MAX_BATCH_BYTES:
            raise _usage(
                f"--batch {self.batch} of --size {self.size} is over {MAX_BATCH_BYTES} bytes, the limit of a request"
            )
        if work.queues * self.batch * self.size > MAX_BODIES_BYTES:
            raise _usage(
                f"--batch {self.batch} of --size {self.size} for {work.queues} queues takes more than "
                f"{MAX_BODIES_BYTES // 1024**2} MiB of memory: a request is kept for each queue"
            )
        if not MIN_SECONDS <= self.duration <= MAX_SECONDS:
            raise _usage(f"--duration is {self.duration:g} s; it must be {MIN_SECONDS} s to 1d")
        if self.warm_up > MAX_SECONDS:
            raise _usage(f"--warm-up is {self.warm_up:g} s; it must be at most 1d")
        if 0 < work.consumers < work.queues:
            raise _usage(f"--consumers is {work.consumers}; it must be at least the number of queues, {work.queues}")
        name, may_exist = self.existing
        if may_exist and name is None:
            raise _usage("--use-existing needs the name of the queue: --queue")
        return work

    def as_document(self) -> dict[str, Any]:
        """Return the options for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else str(value) if isinstance(value, Path) else value


def _usage(text: str) -> CommandFailed:
    return CommandFailed(text, ExitCode.USAGE)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class QueuePlan(Plan):
    """Options of loads whose queues may exist before the run."""

    queues: Queues = 1
    queue: Annotated[
        str | None,
        Parameter(help="Name of the queue; with several --queues the start of their names. By default a new name."),
        _OBJECTS,
    ] = None
    use_existing: Annotated[
        Flag,
        Parameter(
            help="Run on existing queues, and keep the queues after the run. The run receives and deletes their "
            "messages, too, and can leave messages of its own."
        ),
        _OBJECTS,
    ] = False

    @property
    def existing(self) -> tuple[str | None, bool]:
        """Return the name of the queue, None = a new name; and True if the queue may exist before."""
        return self.queue, self.use_existing


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SendPlan(QueuePlan):
    """Options of ``cmq bench send``."""

    load: ClassVar[str] = "send"

    connections: Connections = 8
    outstanding: Annotated[
        int,
        Parameter(
            validator=Number(gte=1, lte=MAX_DEPTH),
            help=f"Requests under way on each connection of a closed loop: 1 to {MAX_DEPTH}.",
        ),
        _LOAD,
    ] = 1
    rate: OptionalRate = None

    def work(self) -> Work:
        """Return the work."""
        if self.rate is not None and self.outstanding != 1:
            raise _usage("--outstanding belongs to a closed loop; with --rate a request waits for no other")
        return Work(
            load=self.load,
            producers=self.connections,
            consumers=0,
            queues=self.queues,
            depth=self.outstanding,
            rate=self.rate,
            latency=REPLY if self.rate is None else INTENDED_REPLY,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CyclePlan(QueuePlan):
    """Options of ``cmq bench cycle``."""

    load: ClassVar[str] = "cycle"

    connections: Connections = 8
    consumers: Consumers = None

    def work(self) -> Work:
        """Return the work."""
        if self.consumers == 0:
            raise _usage("--consumers is 0; it must be at least 1 (cmq bench send has no consumers)")
        by_default = max(self.connections, self.queues)
        return Work(
            load=self.load,
            producers=self.connections,
            consumers=by_default if self.consumers is None else self.consumers,
            queues=self.queues,
            latency=RECEIPT,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RatePlan(CyclePlan):
    """Options of ``cmq bench rate``: a cycle at a rate."""

    load: ClassVar[str] = "rate"

    rate: Rate = 1000.0

    def work(self) -> Work:
        """Return the work."""
        return msgspec.structs.replace(super().work(), rate=self.rate, latency=INTENDED_RECEIPT)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FanoutPlan(Plan):
    """Options of ``cmq bench fanout``."""

    load: ClassVar[str] = "fanout"

    subscribers: Annotated[
        int,
        Parameter(validator=Number(gte=1, lte=500), help="Queues that get a copy of each message: 1 to 500."),
        _OBJECTS,
    ] = 10
    connections: Annotated[
        int, Parameter(validator=Number(gte=1, lte=MAX_CONNECTIONS), help="Connections that publish."), _LOAD
    ] = 4
    consumers: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=0, lte=MAX_CONNECTIONS),
            help="Connections that receive and delete the copies; one for each queue by default, 0 = the copies stay.",
        ),
        _LOAD,
    ] = None
    rate: OptionalRate = None

    def work(self) -> Work:
        """Return the work."""
        consumers = self.subscribers if self.consumers is None else self.consumers
        is_open = self.rate is not None
        if consumers:
            latency = INTENDED_RECEIPT if is_open else RECEIPT
        else:
            latency = INTENDED_REPLY if is_open else REPLY
        return Work(
            load=self.load,
            producers=self.connections,
            consumers=consumers,
            queues=self.subscribers,
            rate=self.rate,
            is_fanout=True,
            latency=latency,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PollPlan(Plan):
    """Options of ``cmq bench poll``."""

    load: ClassVar[str] = "poll"

    connections: Annotated[
        int,
        Parameter(validator=Number(gte=1, lte=MAX_CONNECTIONS), help="Connections that wait in a long poll."),
        _LOAD,
    ] = 1000
    rate: Annotated[
        float,
        Parameter(validator=Number(gte=MIN_RATE, lte=MAX_RATE), help="Messages a second; each wakes a connection."),
        _LOAD,
    ] = 100.0
    queues: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1, lte=MAX_QUEUES),
            help=f"Number of queues; by default one for {POLLS_PER_QUEUE} connections.",
        ),
        _OBJECTS,
    ] = None

    def work(self) -> Work:
        """Return the work."""
        return Work(
            load=self.load,
            producers=min(POLL_SENDERS, self.connections),
            consumers=self.connections,
            queues=self.queues or min(MAX_QUEUES, max(1, self.connections // POLLS_PER_QUEUE)),
            rate=self.rate,
            is_poll=True,
            latency=INTENDED_RECEIPT,
        )
