"""The loads of the curves: a load prepares a step on a running broker, and gives the connections and requests of the C
generator.

All steps of a curve run on the same broker, in rising order: the broker of a step with 10,000 queues has the queues of
the steps before. The connections of a step are closed after the step.
"""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cmqd_bench.peers.cmqd_peer import CmqdPeer
from cmqd_bench.peers.works import at_rate
from cmqd_load.failures import LoadError
from cmqd_load.native_job import Job, Line, Outcome, Stop, body_of, run
from cmqd_load.native_requests import NUMBER, WAIT_MS, delete_start, receive_request, request_of, send_request
from cmqd_load.wire import frame
from cmqd_protocol.limits import MAX_BATCH, MAX_BATCH_BYTES
from cmqd_protocol.messages import (
    CreateQueue,
    CreateTopic,
    MessagesPublished,
    PublishMessages,
    ReceiveMessages,
    Request,
    Subscribe,
    reply_decoder,
)

BODY = 256
MANY = 64
FEW = 16
"""Connections of a curve about anything else: many for single messages, few for batches and large bodies."""
BACKLOG_BATCH = 16
FILL_LINES, FILL_OUTSTANDING = 4, 4
SLOWEST_FILL = 10_000
"""Messages a second, below which filling a queue fails."""
WAITERS_PER_QUEUE = 10
PUBLISHED_TAG = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The work of a step."""

    items: Callable[[Outcome], int]
    """The completed items of the measured time."""
    producers: Sequence[Line] = ()
    consumers: Sequence[Line] = ()
    stops: Sequence[Stop] = ()
    walkers: Sequence[socket.socket] = ()
    outstanding: int = 1
    rate: float = 0.0
    records: Literal["sends", "pairs", "stamps"] = "pairs"

    def job(self, *, warm_up: float, seconds: float) -> Job:
        """Return the job of the generator."""
        return Job(
            protocol="cmqd",
            queue="-",
            producers=self.producers,
            consumers=self.consumers,
            stops=self.stops,
            walkers=self.walkers,
            outstanding=self.outstanding,
            rate=self.rate,
            records=self.records,
            warm_up=warm_up,
            seconds=seconds,
        )


def _sent(outcome: Outcome) -> int:
    return outcome.sent


def _deleted(outcome: Outcome) -> int:
    return outcome.deleted


def stop_at(queue: str, batch: int, size: int) -> Stop:
    """Return the requests of a queue on the way of the walkers."""
    return Stop(
        send_request(queue, [body_of(size)] * batch),
        receive_request(queue, batch),
        delete_start(queue, batch),
    )


class Site:
    """A running broker, and what earlier steps of the curve made there."""

    def __init__(self, peer: CmqdPeer, program: Path) -> None:
        self.stack = ExitStack()
        """Closed at the end of a step."""
        self._peer = peer
        self._program = program
        self._queues: set[str] = set()
        self._filled = 0

    def connect(self, count: int) -> list[socket.socket]:
        """Open connections until the end of the step."""
        return [self.stack.enter_context(self._peer.connect()) for _ in range(count)]

    def ask(self, messages: Sequence[Request]) -> list[bytes]:
        """Send administrative requests; return the payloads of their replies."""
        return self._peer.ask_all(messages)

    def queues(self, names: Sequence[str]) -> None:
        """Create the queues that do not exist."""
        missing = [name for name in names if name not in self._queues]
        self.ask([CreateQueue(1, name, {"max_message_bytes": MAX_BATCH_BYTES}) for name in missing])
        self._queues.update(missing)

    def fill(self, queue: str, messages: int) -> None:
        """Send messages until ``messages`` were sent by this method.

        Raises:
            LoadError: the broker takes fewer than ``SLOWEST_FILL`` messages a second.
        """
        missing = messages - self._filled
        if missing <= 0:
            return
        batch = min(MAX_BATCH, missing)
        request = send_request(queue, [body_of(BODY)] * batch)
        with ExitStack() as stack:
            lines = [Line(stack.enter_context(self._peer.connect()), request) for _ in range(FILL_LINES)]
            job = Job(
                protocol="cmqd",
                queue=queue,
                producers=lines,
                outstanding=FILL_OUTSTANDING,
                warm_up=0,
                seconds=60 + missing / SLOWEST_FILL,
                limit=missing,
            )
            outcome = run(self._program, job)
        if outcome.total_sent < missing:
            raise LoadError(f"the broker took {outcome.total_sent:,} of {missing:,} messages")
        # The kernel writes gigabytes of dirty pages for seconds after a fill. Commits beside that wait for the disk and
        # hold fewer messages each: a cliff that belongs to the fill, not to the backlog.
        os.sync()
        self._filled += outcome.total_sent

    def walk(self, names: Sequence[str], connections: int, *, batch: int = 1, size: int = BODY) -> Load:
        """Let connections walk through queues; a message is completed when its delete is answered."""
        self.queues(names)
        stops = [stop_at(name, batch, size) for name in names]
        return Load(items=_deleted, stops=stops, walkers=self.connect(connections))


Prepare = Callable[[Site, int], Load]
"""Prepares a step of a curve."""


def queues(site: Site, step: int) -> Load:
    """Walk through ``step`` queues."""
    return site.walk([f"queue-{number}" for number in range(step)], MANY)


def connections(site: Site, step: int) -> Load:
    """Send on ``step`` connections; a message is completed when its send is answered."""
    site.queues(["queue"])
    send = send_request("queue", [body_of(BODY)])
    return Load(items=_sent, producers=[Line(each, send) for each in site.connect(step)], records="sends")


def waiting(site: Site, step: int) -> Load:
    """Walk through a queue while ``step`` connections wait at other queues, which get no message."""
    silent = [f"silent-{number}" for number in range(-(-step // WAITERS_PER_QUEUE))]
    site.queues(silent)
    # All connections first: a wait that began before thousands of connects would end within the step.
    for index, connection in enumerate(site.connect(step)):
        connection.sendall(frame(ReceiveMessages(NUMBER, silent[index % len(silent)], 1, WAIT_MS)))
    return site.walk(["queue"], MANY)


def backlog(site: Site, step: int) -> Load:
    """Send to the end of a queue that holds ``step`` messages, and receive from its head."""
    site.queues(["queue"])
    site.fill("queue", step)
    return site.walk(["queue"], FEW, batch=BACKLOG_BATCH)


def subscribers(site: Site, step: int) -> Load:
    """Publish to a topic with ``step`` subscribed queues; each copy counts.

    Raises:
        LoadError: a message matched another number of subscriptions.
    """
    topic = f"topic-{step}"
    names = [f"{topic}-{number}" for number in range(step)]
    site.queues(names)
    site.ask([CreateTopic(1, topic, {"filter_type": "tag"})])
    site.ask([Subscribe(1, topic, name, {"endpoint": name}) for name in names])
    publish = PublishMessages(NUMBER, topic, [body_of(BODY)], tags=[[PUBLISHED_TAG]])
    (answer,) = site.ask([publish])
    reply = reply_decoder.decode(answer)
    if not isinstance(reply, MessagesPublished) or reply.matched != [step]:
        raise LoadError(f"a message did not match all {step} subscriptions: {reply}")
    request = request_of(publish, 1, is_stamped=True)
    return Load(
        items=lambda outcome: outcome.sent * step,
        producers=[Line(each, request) for each in site.connect(FEW)],
        records="sends",
    )


def body(site: Site, step: int) -> Load:
    """Walk with bodies of ``step`` bytes."""
    return site.walk(["queue"], FEW, size=step)


def batch(site: Site, step: int) -> Load:
    """Walk with ``step`` messages per request."""
    return site.walk([f"queue-{step}"], FEW, batch=step)


def rate(site: Site, step: int) -> Load:
    """Send ``step`` single messages a second in an open loop to waiting receives."""
    # A queue of its own: a rate above the capacity of the machine leaves a backlog behind.
    queue, work = f"rate-{step}", at_rate(step)
    site.queues([queue])
    stop = stop_at(queue, 1, BODY)
    return Load(
        items=_deleted,
        producers=[Line(each, stop.send) for each in site.connect(work.producers)],
        consumers=[Line(each, stop.receive, stop.settle) for each in site.connect(work.consumers)],
        outstanding=work.outstanding,
        rate=work.rate,
        records=work.records,
    )
