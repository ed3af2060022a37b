"""The crew of a run: connections with a producer or a consumer each. Producers and consumers outlive a connection."""

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Protocol

import msgspec

from cmq_cli.bench.objects import Objects, Target
from cmq_cli.bench.plans import Plan, Work
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmqd_client.address import Address
from cmqd_load.connections import Connections
from cmqd_load.consumers import EachConsumer
from cmqd_load.failures import LoadError
from cmqd_load.producers import OpenSender, Producer
from cmqd_load.tally import Gate, Quota, Tally
from cmqd_load.wire import LoadConnection, PublishTemplate, SendTemplate

AHEAD = 16
"""Requests of each consumer by which the producers of a closed loop may be ahead. A producer has a single round trip
for a message and a consumer two, so without a bound the run would measure the growth of a backlog."""
OPEN_DEPTH = 64
"""Requests under way on a connection of an open loop."""
CONNECT_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Pauses before a lost connection is opened again: doubled after a failure, and shortened at random, because all
connections of a server end at the same moment."""
CONNECTION_LOST, CONNECT_FAILED = "connection_lost", "connect_failed"
"""Names of the errors."""


class Actor(Protocol):
    """A producer or consumer on a connection that can be lost."""

    def lose(self, connection: LoadConnection, /) -> None:
        """Take note that the connection is lost."""
        ...

    def resume(self, connection: LoadConnection) -> None:
        """Go on over a new connection."""
        ...


class Crew:
    """Connections and their actors. ``on_failure`` gets the error that ends the run."""

    def __init__(self, tally: Tally, on_failure: Callable[[Exception], object], *, reconnects: bool) -> None:
        self._tally = tally
        self._on_failure = on_failure
        self._reconnects = reconnects
        self._connections = Connections(self._lose)
        self._actors: dict[LoadConnection, tuple[Actor, Sequence[Address]]] = {}
        self._reopening: set[asyncio.Task[None]] = set()

    @property
    def is_cut_off(self) -> bool:
        """True if every connection is lost."""
        return bool(self._reopening) and not self._actors

    async def open(self, servers: Sequence[Sequence[Address]]) -> list[LoadConnection]:
        """Open a connection for each list of addresses, to the first address that answers."""
        return await self._connections.open_each(servers, CONNECT_SECONDS)

    def assign(self, connection: LoadConnection, actor: Actor, addresses: Sequence[Address]) -> None:
        """Take note of the actor of a connection, and of the addresses for its next connection."""
        self._actors[connection] = actor, addresses

    def close(self) -> None:
        """Close all connections."""
        for task in self._reopening:
            task.cancel()
        self._connections.close_all()

    def _lose(self, connection: LoadConnection, error: BaseException) -> None:
        if isinstance(error, LoadError):
            self._on_failure(error)
            return
        self._tally.count_error(CONNECTION_LOST)
        if not self._reconnects:
            self._on_failure(ConnectionError(f"a connection was lost: {error}"))
        if connection in self._actors:
            actor, addresses = self._actors.pop(connection)
            actor.lose(connection)
            if self._reconnects:
                task = asyncio.get_running_loop().create_task(self._reopen(actor, addresses))
                self._reopening.add(task)
                task.add_done_callback(self._reopening.discard)

    async def _reopen(self, actor: Actor, addresses: Sequence[Address]) -> None:
        pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                (connection,) = await self.open([addresses])
            except OSError:
                self._tally.count_error(CONNECT_FAILED)
            else:
                self.assign(connection, actor, addresses)
                actor.resume(connection)
                return


class Loops(msgspec.Struct, frozen=True):
    """The calls that make the load: a call for every consumer, and for every producer of a closed loop."""

    begin: list[Callable[[], object]]
    send: Callable[[int], object] | None
    """Sends a request of the open loop with its intended time; None = a closed loop."""


async def hired(crew: Crew, plan: Plan, work: Work, objects: Objects, tally: Tally, quota: Quota) -> Loops:
    """Open the connections of a run, and return its loops.

    Raises:
        CommandFailed: there are more servers than connections that send.
        OSError: a connection cannot be opened.
    """
    is_open = work.rate is not None
    gate = Gate(AHEAD * work.consumers * plan.batch) if work.consumers and not is_open else None
    begin: list[Callable[[], object]] = []
    polled = [objects.queues[number % len(objects.queues)] for number in range(work.consumers)]
    for connection, target in zip(await crew.open([target.addresses for target in polled]), polled, strict=True):
        consumer = EachConsumer(
            connection, target.name, plan.batch, tally, gate=gate, quota=None if is_open else quota, overlap=is_open
        )
        crew.assign(connection, consumer, target.addresses)
        begin.append(consumer.receive)

    groups = _by_server([objects.topic] if objects.topic else objects.queues)
    if work.producers < len(groups):
        raise CommandFailed(
            f"the queues are on {len(groups)} servers; give at least as many --connections", ExitCode.USAGE
        )
    kind = PublishTemplate if objects.topic else SendTemplate
    templates = [[kind(target.name, batch=plan.batch, size=plan.size) for target in group] for group in groups]
    lines = [groups[number % len(groups)][0].addresses for number in range(work.producers)]
    connections = await crew.open(lines)
    if is_open:
        senders = [
            OpenSender(
                connections[number :: len(groups)], tally, OPEN_DEPTH, batch=plan.batch, timed=not work.consumers
            )
            for number in range(len(groups))
        ]
        for number, (connection, addresses) in enumerate(zip(connections, lines, strict=True)):
            crew.assign(connection, senders[number % len(groups)], addresses)
        ways = [(sender, template) for sender, group in zip(senders, templates, strict=True) for template in group]
        return Loops(begin, _opened(ways, is_random=work.is_poll))
    for number, (connection, addresses) in enumerate(zip(connections, lines, strict=True)):
        own = templates[number % len(groups)]
        # The producers of a server share its queues: a producer has several queues, or a queue several producers.
        rank, producers = number // len(groups), len(range(number % len(groups), work.producers, len(groups)))
        served = own[rank::producers] if producers < len(own) else [own[rank % len(own)]]
        producer = Producer(
            connection,
            served,
            tally,
            gate,
            depth=work.depth,
            copies=work.copies,
            quota=None if work.consumers else quota,
        )
        crew.assign(connection, producer, addresses)
        begin.append(producer.start)
    return Loops(begin, None)


def _opened(ways: Sequence[tuple[OpenSender, SendTemplate]], *, is_random: bool) -> Callable[[int], object]:
    """Return a function that sends to the queues in turn or at random. Every run has the same seed."""
    in_turn, choose = cycle(ways), random.Random(1).choice

    def send(intended_ns: int) -> None:
        sender, template = choose(ways) if is_random else next(in_turn)
        sender.send(template, intended_ns)

    return send


def _by_server(targets: Sequence[Target]) -> list[list[Target]]:
    """Return the targets in groups by their server."""
    groups: dict[tuple[Address, ...], list[Target]] = {}
    for target in targets:
        groups.setdefault(tuple(target.addresses), []).append(target)
    return list(groups.values())
