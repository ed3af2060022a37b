"""A broker of ``cmqd.testing`` behind a link that fails to order.

    async with LocalServer() as server:
        async with connect(server.url) as client: ...
        await server.put("orders", b"a")           sets the stage, past the link
        server.advance(3600)                       an hour of the broker: leases end, delays pass, checks are due
        server.link.lose_answer(SendMessages)      see ``faulty_link``

The server begins with the queue ``orders``. The broker's clock runs, and ``advance`` turns it further. Nothing is
posted to a URL: ``server.pushes`` are kept, and a test says how they end.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any, Self

from cmqd.core.outcome import Push
from cmqd.testing import LocalBroker
from cmqd_client import Client, QueueInfo, connect
from support.client.faulty_link import FaultyLink
from support.server.fake_pusher import FakePusher


class LocalServer:
    """See the module."""

    def __init__(self, **settings: Any) -> None:
        self._certificate = settings.get("tls_certificate")
        self._pushers: list[FakePusher] = []
        self.broker = LocalBroker(make_pusher=self._make_pusher, **settings)
        self.link: FaultyLink
        self.admin: Client
        """A client of the account ``admin`` without the link."""

    def _make_pusher(self, **named: Any) -> FakePusher:
        self._pushers.append(FakePusher(**named))
        return self._pushers[-1]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        await self.broker.__aenter__()
        self.link = FaultyLink(self.broker.address)
        await self.link.start()
        tls = ssl.create_default_context(cafile=self._certificate) if self._certificate else None
        self.admin = connect(self.direct_url, tls=tls, patience=300, request_timeout=300, connect_timeout=300)
        await self.admin.open()
        await self.admin.create_queue("orders")

    async def close(self) -> None:
        await self.admin.close()
        await self.link.close()
        await self.broker.__aexit__()

    @property
    def url(self) -> str:
        """The server through the link, with a key of ``admin``."""
        address, _, _ = self.direct_url.rpartition(":")
        return f"{address}:{self.link.port}"

    @property
    def direct_url(self) -> str:
        """The server without the link."""
        return self.broker.url

    def advance(self, seconds: float) -> None:
        """Turn the broker's clock; all that is due then is done."""
        self.broker.clock.advance(seconds)

    @property
    def pushes(self) -> Sequence[Push]:
        """The pushes under way, oldest first."""
        (pusher,) = self._pushers
        return list(pusher.pushes)

    async def end_pushes(self, error: str | None = None, count: int | None = None) -> None:
        """End the oldest ``count`` pushes (None = all) so, together, in the broker's thread."""
        (pusher,) = self._pushers

        async def end() -> None:
            pusher.end(error, count)

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(end(), pusher.named["loop"]))

    async def put(self, queue: str, *bodies: bytes, **options: Any) -> None:
        """Send messages, in batches."""
        for start in range(0, len(bodies), 256):
            await self.admin.queue(queue).send_batch(bodies[start : start + 256], **options)

    async def subscribe(self, topic: str, name: str, queue: str, **options: Any) -> None:
        """Subscribe a queue to a topic."""
        await self.admin.topic(topic).subscribe(name, queue=queue, **options)

    async def bodies(self, queue: str, *states: str) -> list[bytes]:
        """Return the bodies of the messages in these states; without a state, of the active messages."""
        found: list[bytes] = []
        start: int | None = 0
        while start is not None:
            page = await self.admin.queue(queue).peek(256, start=start, states=states or ["active"])
            found += [message.body for message in page]
            start = page.next_start
        return found

    async def wait_bodies(self, queue: str, *bodies: bytes) -> None:
        """Wait until exactly these messages are active."""
        while await self.bodies(queue) != list(bodies):
            pass

    async def info(self, queue: str) -> QueueInfo:
        """Return the queue's attributes and counts."""
        return await self.admin.queue(queue).attributes()

    def hold_moves(self) -> None:
        """Hold redrives up, and refuse sends, as if the disk were nearly full."""
        self.broker.refuse_sends()

    def let_moves_go(self) -> None:
        self.broker.accept_sends()
        self.advance(0)

    async def bury(self, queue: str, dead_letters: str, count: int = 1) -> None:
        """Make the first active messages of a queue dead letters."""
        source = self.admin.queue(queue)
        expected = (await self.info(dead_letters)).active + count
        await source.set_attributes(dead_letter_queue=dead_letters, dead_letter_max_receives=1)
        for _ in range(count):
            await (await source.receive())[0].release()
        while (await self.info(dead_letters)).active < expected:
            pass
        await source.set_attributes(dead_letter_queue="", dead_letter_max_receives=0)

    async def status(self, name: str) -> Any:
        """Return an entry of the server's status."""
        return (await self.admin.status())[name]

    async def wait_status(self, name: str, value: object) -> None:
        """Wait until an entry of the server's status has this value."""
        while await self.status(name) != value:
            pass
