"""Requests to a queue or topic, several under way at once, and in order if the copy is ordered.

Requests leave in order. A request that was refused for a moment, or had its reply lost, would be stored behind later
requests. An ordered copy therefore names, with every request, the last message of the request before, and the broker
stores the request only behind that message: a copy that ended early has stored a beginning of its messages. Only a
single request at a time is sent to a broker without this feature. A topic remembers no message that matches no
subscription: the request behind a message like that is refused once, and published after the reply to the request
before.

A broker without memory for more dedup ids of the account refuses new ids until older ids end. A request waits up to
:data:`MEMORY_PATIENCE_S`, and logs the wait.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from cmqd_client import Client, CmqError, Outgoing, connect
from cmqd_client.address import Address
from cmqd_client.client_names import default_name
from cmqd_client.errors import NotSupported, OutcomeUnknown, OutOfOrder, TooManyRequests
from cmqd_log.copy.pace import Pace
from cmqd_log.copy.requests import Request
from cmqd_log.errors import CmqdSourceError, masked
from cmqd_protocol.limits import MAX_BATCH

MEMORY_PATIENCE_S = 600.0
"""Time for which a request waits for memory for its dedup ids: twice the life of an id."""
IN_FLIGHT = 16
"""Requests under way at once."""

_Send: TypeAlias = Callable[[Request, str | None], Awaitable["Delivered"]]
"""Sends a request; a dedup id is the condition that the queue remembers it, None is not a condition."""

_log = logging.getLogger("cmqd_log")
_sleep = asyncio.sleep


class SendError(CmqdSourceError):
    """The broker refused messages, or could not be reached. Earlier messages stay stored; run the write again."""

    def __init__(self, target: str, sent: int, reason: str) -> None:
        super().__init__(target, sent, reason)
        self.target = target
        self.sent = sent
        """Number of this task's messages with an answer of the broker."""
        self.reason = masked(reason)

    def __str__(self) -> str:
        return f"messages cannot be sent to {self.target} (this task sent {self.sent} before): {self.reason}"


@dataclass(frozen=True)
class Delivered:
    """Messages that the broker has stored on disk."""

    messages: int = 0
    bytes: int = 0
    """Bytes of bodies and headers."""
    requests: int = 0
    matched: int = 0
    """Number of copies, for a topic; publishes that were repeated after a lost reply do not count."""

    def __add__(self, other: "Delivered") -> "Delivered":
        return Delivered(
            self.messages + other.messages,
            self.bytes + other.bytes,
            self.requests + other.requests,
            self.matched + other.matched,
        )


@dataclass(frozen=True, kw_only=True)
class Target:
    """The queue or topic of a copy, and how requests are sent there."""

    address: Address
    queue: str = ""
    """Name of the queue; empty = the target is a topic."""
    topic: str = ""
    retries: int = 10
    request_timeout: float = 10.0
    in_flight: int = IN_FLIGHT
    batch_size: int = MAX_BATCH
    max_rate: float = 0.0
    """Limit of messages a second; 0 = no limit."""
    ordered: bool = False
    tied: bool = True
    """A remembered dedup id proves that its request is stored: no id repeats."""

    @property
    def name(self) -> str:
        """The queue or topic, as text for a user."""
        return f"queue {self.queue!r}" if self.queue else f"topic {self.topic!r}"


@asynccontextmanager
async def sender_to(target: Target, *, product: str, name: str) -> AsyncGenerator["Sender"]:
    """Yield a sender with a connection. A broker that is restarting gets as much time as for a request of the copy.

    Args:
        target: the queue or topic.
        product: the program, for the server.
        name: the program's part of the name of the client, unless the address has a name.

    Raises:
        SendError: the broker refused messages, or could not be reached with all repeats.
    """
    client = connect(
        target.address,
        patience=(target.retries + 1) * target.request_timeout,
        retries=target.retries,
        request_timeout=target.request_timeout,
        product=product,
        name=default_name(name) if target.address.name is None else None,
    )
    sender = Sender(client, target)
    try:
        await client.open()
        try:
            yield sender
        finally:
            await sender.cancel()
            await client.close()
    except CmqError as error:
        raise SendError(target.name, sender.total.messages, f"{type(error).__name__}: {error}") from error


class Sender:
    """Sends requests in turn over the connection of a client."""

    def __init__(self, client: Client, target: Target) -> None:
        self.total = Delivered()
        """Messages with an answer of the broker."""
        self._send = _patient(_sender(client, target))
        self._target = target
        self._pace = Pace(target.max_rate) if target.max_rate else None
        self._under_way: set[asyncio.Task[Delivered]] = set()
        self._before: tuple[asyncio.Task[Delivered], str] | None = None
        most = target.batch_size
        self.most: int = most if self._pace is None else min(most, self._pace.most_at_once)
        """Maximum number of messages of a request."""

    async def add(self, request: Request) -> None:
        """Send a request as soon as the rate and the requests under way allow. Raises the failure of a request."""
        if self._pace is not None:
            await asyncio.sleep(self._pace.wait_seconds(len(request.bodies), time.monotonic()))
        while len(self._under_way) >= self._target.in_flight:
            await self._one_ended()
        if self._target.ordered:
            sending = _in_order(self._send, request, self._before, self._target.tied)
        else:
            sending = self._send(request, None)
        task = asyncio.ensure_future(sending)
        self._before = task, request.dedup_ids[-1]
        self._under_way.add(task)

    async def drain(self) -> None:
        """Return when the broker has answered all requests. Raises the failure of a request."""
        while self._under_way:
            await self._one_ended()

    async def cancel(self) -> None:
        """End all requests that are under way."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _one_ended(self) -> None:
        done, self._under_way = await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        self.total = sum((task.result() for task in done if task.exception() is None), self.total)
        for task in done:
            task.result()


async def _in_order(
    send: _Send, request: Request, before: "tuple[asyncio.Task[Delivered], str] | None", tied: bool
) -> Delivered:
    """Send a request; store it behind the request before, or not at all.

    ``tied``: a remembered dedup id proves that its request is stored. Then a request is sent while the request before
    is in progress, on the condition that the broker has the last message of the request before. If the broker has not,
    because that request was refused, lost or not sent yet, this request stores nothing. It is sent again without the
    condition when the request before is stored, because then all earlier requests are stored. If not ``tied``, a
    request is sent only then.
    """
    if before is None:
        return await send(request, None)
    previous, last_dedup_id = before
    if not previous.done():
        try:
            if tied:
                return await send(request, last_dedup_id)
        except (OutOfOrder, NotSupported, OutcomeUnknown):
            # OutcomeUnknown: an attempt was lost, and its repeat refused. If the lost attempt is stored after all, its
            # rows are in order, and the broker drops the rows of the next attempt by their dedup ids.
            pass
        # ``wait`` instead of an await of the task: a cancel of this task must not cancel the task before.
        await asyncio.wait([previous])
    # Raises the failure of the request before: a request behind a failed request must not be stored.
    previous.result()
    return await send(request, None)


def _patient(send: _Send) -> _Send:
    """Return ``send`` with pauses while the account has no memory for more dedup ids."""

    async def patient(request: Request, after: str | None) -> Delivered:
        waited_s = 0.0
        while True:
            try:
                return await send(request, after)
            except TooManyRequests as refusal:
                pause_s = refusal.retry_after or 0.0
                if "oldest_ends_ms" not in refusal.details or waited_s + pause_s > MEMORY_PATIENCE_S:
                    raise
                _log.warning("waiting %.0f s for room for dedup ids: %s", pause_s, refusal.text)
                await _sleep(pause_s)
                waited_s += max(pause_s, 1.0)

    return patient


def _sender(client: Client, target: Target) -> _Send:
    """Return the function that sends a request to the queue, or publishes it to the topic."""
    if target.queue:
        queue = client.queue(target.queue)

        async def send(request: Request, after: str | None) -> Delivered:
            await queue.send_batch(_messages(request), dedup_ids=request.dedup_ids, after=after)
            return Delivered(len(request.bodies), request.size, 1)

        return send
    topic = client.topic(target.topic)

    async def publish(request: Request, after: str | None) -> Delivered:
        published = await topic.publish_batch(
            request.bodies,
            tags=request.tags,
            routing_keys=request.routing_keys,
            headers=request.headers,
            dedup_ids=request.dedup_ids,
            after=after,
        )
        return Delivered(len(request.bodies), request.size, 1, sum(one.matched or 0 for one in published))

    return publish


def _messages(request: Request) -> "Sequence[bytes | Outgoing]":
    if request.headers is None and request.delays is None:
        return request.bodies
    count = len(request.bodies)
    headers = request.headers or [None] * count
    delays = request.delays or [None] * count
    return [Outgoing(*one) for one in zip(request.bodies, headers, delays, strict=True)]
