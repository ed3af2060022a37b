"""A real server over a log in memory, in the process of the test, behind a link that fails to order.

    async with LocalServer() as server:
        async with connect(server.url) as client: ...
        await server.put("orders", b"a")           sets the stage, past the link
        server.advance(3600)                       an hour of the broker: leases end, delays pass, checks are due
        server.link.lose_answer(SendMessages)      see ``faulty_link``

The server begins with the queue ``orders``. The broker's clock runs, and ``advance`` turns it further. Nothing is
posted to a URL: ``server.pusher`` keeps the requests, and a test says how they end.
"""

import ssl
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from cmqd.log.values import LogState
from cmqd_client import Client, QueueInfo, connect
from cmqd_protocol.errors import ErrorCode
from support.fake_clock import FakeClock
from support.fake_pusher import FakePusher
from support.faulty_link import FaultyLink
from support.server_rig import ServerRig


class LocalServer:
    """See the module."""

    def __init__(self, **settings: Any) -> None:
        self._settings: dict[str, Any] = {"listen": "127.0.0.1:0"} | settings
        self._folder = tempfile.TemporaryDirectory()
        started_ms = _monotonic_ms()
        # The wall clock of this machine, because tests compare times of the server with their own.
        self.clock = FakeClock(time.time_ns() // 1_000_000, lambda: _monotonic_ms() - started_ms)
        self.rig: ServerRig
        self.link: FaultyLink
        self.admin: Client
        """A client of the account ``admin`` without the link."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        self.rig = await ServerRig.make(
            Path(self._folder.name), clock=self.clock, timer=time.perf_counter, **self._settings
        )
        self.link = FaultyLink(await self.rig.server.start())
        await self.link.start()
        certificate = self._settings.get("tls_certificate")
        tls = ssl.create_default_context(cafile=certificate) if certificate else None
        self.admin = connect(self.direct_url, tls=tls, patience=300, request_timeout=300, connect_timeout=300)
        await self.admin.open()
        await self.admin.create_queue("orders")

    async def close(self) -> None:
        await self.admin.close()
        await self.link.stop()
        self.rig.close()
        await self.rig.server.tasks.wait(10)
        await self.rig.server.close_connections(ErrorCode.SHUTTING_DOWN, "the test is over", 0.1)
        self._folder.cleanup()

    @property
    def url(self) -> str:
        """The server through the link, with a key of ``admin``."""
        return self._url(self.link.port)

    @property
    def direct_url(self) -> str:
        """The server without the link."""
        return self._url(self.link.server_address[1])

    def _url(self, port: int) -> str:
        key = self.rig.accounts.first_key("admin")
        return f"cmq://{key.secret_id}:{key.secret_key}@127.0.0.1:{port}"

    @property
    def pusher(self) -> FakePusher:
        return self.rig.pusher

    def advance(self, seconds: float) -> None:
        """Turn the broker's clock; all that is due then begins at once."""
        self.clock.advance(round(seconds * 1000))
        self.rig.server.agenda_timer.clock_moved()

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
        self.rig.server.storage_state(LogState(True, "disk nearly full", 0, 0, 0))

    def let_moves_go(self) -> None:
        self.rig.server.storage_state(LogState(False, "", 0, 0, 0))
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

    @property
    def checkers(self) -> int:
        """Registrations of connections as checkers."""
        return len(self.rig.server.checkers)

    @property
    def waiting_receives(self) -> int:
        return len(self.rig.server.waiting_requests)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
