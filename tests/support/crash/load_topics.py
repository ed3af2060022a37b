"""Workers about topics, and the endpoints that get the pushes.

One topic with several subscriptions:

    apples, pears     queues, by filter tags; both get messages with both tags
    strict            a queue for all messages; refuses large bodies at times, so large bodies come later
    fickle            a queue for all messages; deleted and created again, and messages wait while it does not exist
    healthy           a URL for all messages that always answers 200
    flaky             a URL for apples that now and then fails, hangs, or drops the connection
    down              a URL for plums that fails until its repair
    weeded            a URL for plums and quinces that fails until its repair; messages are dropped one by one

The tags of a message stand in its body, so that a worker that repeats the message knows the tags.
"""

import asyncio
import base64
import hmac
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from zlib import crc32

from aiohttp import web

from support.crash.load import NumberedProducer, NumberedSend, new_bodies
from support.crash.load_moves import DedupProducer, DedupSend
from support.crash.promises.history import History, Operation, Outcome, Pushed
from support.crash.session import Session
from support.server.webhook_receiver import WebhookReceiver

TOPIC = "fruit"
APPLES, PEARS, STRICT, FICKLE = "apples", "pears", "strict", "fickle"
TOPIC_QUEUES = (APPLES, PEARS, STRICT, FICKLE)
HEALTHY, FLAKY, DOWN, WEEDED = "healthy", "flaky", "down", "weeded"
ENDPOINTS = (HEALTHY, FLAKY, DOWN, WEEDED)
FILTERS = {
    APPLES: ("apple",),
    PEARS: ("pear", "quince"),
    FLAKY: ("apple",),
    DOWN: ("plum",),
    WEEDED: ("plum", "quince"),
}
PUSH_FLAGS = ("--push-allow-loopback", "--push-timeout-ms", "1000")

SMALL, LARGE = 1_024, 1_048_576
_TAGS = (("apple",), ("pear",), ("apple", "pear"), ("quince",), ("apple",), (), ("plum",))
_SOME_ABOVE_SMALL = 1_500
_PAGE = 64
_HUNG_SECONDS = 2.0
"""Beyond the broker's patience."""


def published_bodies(chance: random.Random, name: str, numbers: "count[int]", size: int) -> list[bytes]:
    """Bodies of sends, with the tags between the number and the rest."""
    bodies: list[bytes] = []
    for body in new_bodies(chance, name, numbers, size):
        sender, number, rest = body.split(b"/", 2)
        more = chance.randbytes(_SOME_ABOVE_SMALL) if chance.random() < 0.1 else b""
        bodies.append(b"/".join((sender, number, "+".join(chance.choice(_TAGS)).encode(), rest + more)))
    return bodies


def tags_of(body: bytes) -> list[str]:
    """The tags of a published body."""
    return [tag.decode() for tag in body.split(b"/", 3)[2].split(b"+") if tag]


class NumberedPublisher(NumberedProducer):
    """Numbered publishes, repeated until answered, and now and then once more."""

    def _any_target(self) -> str:
        return TOPIC

    def _new_bodies(self, size: int) -> list[bytes]:
        return published_bodies(self._chance, self.name, self._numbers, size)

    async def _send(self, session: Session, send: NumberedSend) -> Operation:
        tags = list(map(tags_of, send.bodies))
        session_number, sequence = self._session_number, send.sequence
        return await session.publish(send.target, send.bodies, tags, session=session_number, sequence=sequence)


class DedupPublisher(DedupProducer):
    """Publishes with dedup ids, repeated until answered, and now and then once more, also next to new messages."""

    def _any_target(self) -> str:
        return TOPIC

    def _new_bodies(self, size: int) -> list[bytes]:
        return published_bodies(self._chance, self.name, self._numbers, size)

    async def _send(self, session: Session, send: DedupSend) -> Operation:
        tags = list(map(tags_of, send.bodies))
        return await session.publish(send.target, send.bodies, tags, dedup_ids=send.dedup_ids)


@dataclass
class Publisher:
    """Plain publishes without repeats; with headers at times."""

    name: str
    seed: int
    pause_seconds: float

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._numbers = count()

    async def work(self, session: Session) -> None:
        chance = self._chance
        while True:
            bodies = published_bodies(chance, self.name, self._numbers, chance.choice((1, 1, 4, 16)))
            headers = {"worker": self.name} if chance.random() < 0.3 else None
            await session.publish(TOPIC, bodies, list(map(tags_of, bodies)), headers=headers)
            await asyncio.sleep(self.pause_seconds)


@dataclass
class Troublemaker:
    """Makes two queues refuse copies at times: ``strict`` large copies, ``fickle`` all, because it does not exist."""

    seed: int

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    async def work(self, session: Session) -> None:
        chance = self._chance
        while True:
            await session.set_attributes(STRICT, {"max_message_bytes": SMALL})
            if chance.random() < 0.6:
                await session.delete_queue(FICKLE)
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            await session.create_queue(FICKLE, {})
            await session.set_attributes(STRICT, {"max_message_bytes": LARGE})
            await asyncio.sleep(chance.uniform(0.0, 0.2))
            # Lives are too short for many retries to come due by themselves.
            for name in (STRICT, FICKLE):
                await session.retry_now(TOPIC, name)
            await asyncio.sleep(chance.uniform(0.0, 0.2))


@dataclass
class Weeder:
    """Looks at the messages that wait for a subscription, and drops or retries them one by one.

    A third of all messages is dropped, always the same third: the others must come at the end. A drop without an answer
    is made again.
    """

    seed: int
    pause_seconds: float = 0.02

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._weeds: dict[int, bytes] = {}
        self._others: dict[int, bytes] = {}

    async def work(self, session: Session) -> None:
        # Side by side: a look takes as long as many drops, and a kill must find drops under way.
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look(session))
            group.create_task(self._weed(session))

    async def _look(self, session: Session) -> None:
        start = 0
        while True:
            page = await session.peek_deliveries(TOPIC, WEEDED, _PAGE, start)
            start = page.next_start or 0
            for message_id, body in page.messages:
                (self._others if crc32(body) % 3 else self._weeds)[message_id] = body
            await asyncio.sleep(self.pause_seconds)

    async def _weed(self, session: Session) -> None:
        chance = self._chance
        while True:
            if self._weeds and (not self._others or chance.random() < 0.8):
                message_id = next(iter(self._weeds))
                await session.drop_delivery(TOPIC, WEEDED, message_id, self._weeds[message_id])
                # Dropped, or refused because an earlier drop without an answer was carried out.
                self._weeds.pop(message_id, None)
            elif self._others:
                message_id = chance.choice(list(self._others))
                await session.retry_delivery(TOPIC, WEEDED, message_id, self._others[message_id])
            else:
                await asyncio.sleep(self.pause_seconds)


@dataclass
class Watcher:
    """Asks how many messages are pending."""

    pause_seconds: float = 0.1

    async def work(self, session: Session) -> None:
        while True:
            for name in ENDPOINTS:
                await session.get_subscription(TOPIC, name)
            await asyncio.sleep(self.pause_seconds)


@dataclass
class Endpoints:
    """The URLs of the subscriptions; they record all requests and answer as their names say."""

    history: History
    seed: int
    is_repaired: bool = False
    """All answer 200 from now on."""
    receiver: WebhookReceiver = field(default_factory=WebhookReceiver)
    secrets: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        for name in ENDPOINTS:
            self.receiver.always(f"/{name}", self._answer)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        called_ns = time.monotonic_ns()
        name = request.path.removeprefix("/")
        # The receiver has read the request, and has just stored it; the history has it from here on.
        body = self.receiver.received.pop().body
        status = self._status_for(name)

        def record(status: int) -> None:
            push = Pushed(
                queue=TOPIC,
                called_ns=called_ns,
                answered_ns=time.monotonic_ns(),
                subscription=name,
                message_id=int(request.headers["x-cmq-message-id"].removeprefix("Msg-"), 16),
                body=self.history.shared(_published_body(request, body)),
                tags=frozenset(filter(None, request.headers.get("x-cmq-message-tag", "").split(","))),
                status=status,
                is_signed=is_signed(request, body, self.secrets.get(name, "")),
                started_s=int(request.headers["webhook-timestamp"]),
            )
            self.history.operations.append(push)

        if status:
            record(status)
            return web.Response(status=status)
        record(0)
        if self._chance.random() < 0.5:
            await asyncio.sleep(_HUNG_SECONDS)
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)

    def _status_for(self, name: str) -> int:
        """0 = none is given."""
        if self.is_repaired or name == HEALTHY:
            return 200
        if name in (DOWN, WEEDED):
            return 503
        return self._chance.choices((200, 503, 302, 0), (0.7, 0.2, 0.05, 0.05))[0]


async def create_topic(session: Session, endpoints: Endpoints) -> None:
    """The topic with its queues and subscriptions."""
    await session.create_topic(TOPIC)
    for name in TOPIC_QUEUES:
        await session.create_queue(name, {})
        await session.subscribe(TOPIC, name, endpoint=name, filter_tags=FILTERS.get(name, ()))
    for name in ENDPOINTS:
        made = await session.subscribe(
            TOPIC,
            name,
            endpoint=endpoints.receiver.url(f"/{name}"),
            filter_tags=FILTERS.get(name, ()),
            content_format="simplified" if name == FLAKY else "json",
        )
        endpoints.secrets[name] = made.secret


async def deliver_all(session: Session, endpoints: Endpoints, *, seconds: float) -> None:
    """Repair the endpoints and wait until all pending messages are delivered; the last counts are in the history.

    Gives up after ``seconds``: then the counts in the history show the messages that are left.
    """
    endpoints.is_repaired = True
    await session.create_queue(FICKLE, {})
    await session.set_attributes(STRICT, {"max_message_bytes": LARGE})
    deadline = asyncio.get_running_loop().time() + seconds
    for name in (*ENDPOINTS, *TOPIC_QUEUES):
        while True:
            await session.retry_now(TOPIC, name)
            await asyncio.sleep(0.1)
            told = await session.get_subscription(TOPIC, name)
            pending = told.counts.get("waiting", 0) + told.counts.get("in_retry", 0)
            late = asyncio.get_running_loop().time() > deadline
            if told.outcome is not Outcome.DONE or not pending or late:
                break
    await session.get_topic(TOPIC)


def _published_body(request: web.BaseRequest, body: bytes) -> bytes:
    """The published body, out of either format."""
    if not body.startswith(b"{"):
        return body
    text: str = json.loads(body)["msgBody"]
    if request.headers.get("x-cmq-body-encoding") == "base64":
        return base64.b64decode(text)
    return text.encode()


def is_signed(request: web.BaseRequest, body: bytes, secret: str) -> bool:
    """True if a signature is that of Standard Webhooks, with this secret."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    headers = request.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    return bool(key) and wanted in headers.get("webhook-signature", "").split(" ")


def pushes_of(history: History, name: str) -> Sequence[Pushed]:
    """All that came to an endpoint."""
    return [push for push in history.of_kind(Pushed) if push.subscription == name]
