"""The demo's topic: every message is also published, to queues and to a URL, and the books list the copies."""

import asyncio
import base64
import hmac
import importlib.util
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

from cmqd_bench.audience import URL, Audience, choose_subscribers
from cmqd_bench.receiver import ANSWER, split_requests
from cmqd_bench.source import Source
from cmqd_client import Client, CmqError, ContentFormat, Queue, Topic

TOPIC = "demo-topic"
RECEIVE_BATCH = 32
CONSUMERS = 2
"""Consumers per subscriber queue."""


def has_http() -> bool:
    """Return True if the broker can push: aiohttp (the extra ``http``) is installed."""
    return importlib.util.find_spec("aiohttp") is not None


def is_genuine(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Verify the signature of a push according to Standard Webhooks."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    return any(hmac.compare_digest(expected, each) for each in headers["webhook-signature"].split())


class Broadcast:
    """See the module. ``pause`` waits after an error that may be tried again, and raises any other."""

    def __init__(
        self,
        source: Source,
        number_header: str,
        visibility_timeout: float,
        pause: Callable[[CmqError], Awaitable[None]],
    ) -> None:
        self.audience = Audience(
            choose_subscribers(source.routing_keys, url=has_http()), source.routing_key, source.body
        )
        self._source = source
        self._number_header = number_header
        self._visibility_timeout = visibility_timeout
        self._pause = pause
        self._secret = ""
        self._ended = False

    async def create(self, client: Client, url: str) -> None:
        """Create the topic, and a queue and a subscription per subscriber; the URL subscriber gets ``url`` instead."""
        longest = max(65_536, self._source.longest)
        topic = await client.create_topic(TOPIC, filter_type="routing", max_message_bytes=longest)
        for name, binding_keys in self.audience.subscribers.items():
            if name == URL:
                made = await topic.subscribe(
                    name, url=url, binding_keys=binding_keys, content_format=ContentFormat.SIMPLIFIED
                )
                self._secret = made.secret or ""
                continue
            queue = await client.create_queue(
                self.queue_of(name), visibility_timeout=self._visibility_timeout, max_message_bytes=longest
            )
            await topic.subscribe(name, queue=queue, binding_keys=binding_keys)

    def queue_of(self, name: str) -> str:
        """The name of a subscriber's queue."""
        return f"demo-{name}"

    @property
    def queues(self) -> Sequence[str]:
        """Names of the subscribers that have a queue."""
        return [name for name in self.audience.subscribers if name != URL]

    # ------------------------------------------------------------------ publishing

    async def publish(self, topic: Topic, numbers: Sequence[int]) -> None:
        """Publish the messages in one step; return after the answer, also across a restart."""
        self.audience.attempt(numbers)
        bodies = [self._source.body(number) for number in numbers]
        keys = [self._source.routing_key(number) for number in numbers]
        headers = [{self._number_header: str(number)} for number in numbers]
        while True:
            try:
                done = await topic.publish_batch(bodies, routing_keys=keys, headers=headers)
            except CmqError as error:
                # The client has repeated the publish already; a new publish may store the messages twice.
                await self._pause(error)
            else:
                self.audience.publish(numbers, [(each.id, each.matched) for each in done])
                return

    # ------------------------------------------------------------------ receiving

    async def consume(self, name: str, queue: Queue) -> None:
        """Receive and delete a subscriber's copies until the end."""
        while not self._ended:
            try:
                messages = await queue.receive(RECEIVE_BATCH, wait=0.5)
                for message in messages:
                    number = message.headers.get(self._number_header, "")
                    self.audience.receive(name, int(number) if number.isdigit() else None, message.body)
                if messages:
                    await queue.delete_batch(messages)
            except CmqError as error:
                await self._pause(error)

    async def left(self, client: Client) -> int:
        """Messages with missing copies, or with an unanswered delivery."""
        info = await client.topic(TOPIC).attributes()
        counts = [info.retained]
        for name in self.queues:
            found = await client.queue(self.queue_of(name)).attributes()
            counts.append(found.active + found.in_flight + found.delayed)
        return sum(counts)

    def end(self) -> None:
        """Stop the consumers: no further messages are published."""
        self._ended = True

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        """Run the endpoint of the URL subscriber and yield its URL."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Hook(self._on_push), "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        finally:
            # Not wait_closed(): the broker keeps its connections, and is killed after this.
            server.close()

    def _on_push(self, headers: Mapping[str, str], body: bytes) -> None:
        genuine = is_genuine(self._secret, headers, body)
        self.audience.receive_push(URL, headers["x-cmq-message-id"], body, genuine=genuine)


class _Hook(asyncio.Protocol):
    """A connection to the endpoint: every push is recorded, then answered."""

    def __init__(self, on_push: Callable[[Mapping[str, str], bytes], None]) -> None:
        self._on_push = on_push
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's in all but inheritance.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        requests, self._buffer = split_requests(self._buffer + data)
        for head, body in requests:
            fields = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
            self._on_push({name.lower(): value.strip() for name, _, value in fields}, body)
            self._transport.write(ANSWER)
