"""Messages on a journey: sent to a folder, served over an engine, and served from a folder again."""

import json
from pathlib import Path

import cmqd_client
from cmqd_client import Message


class Journey:
    """The calls of a client in each of the three places, and what it has got; every call expects its answer."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self._lease: Message[bytes] | None = None

    async def begin(self, url: str) -> None:
        """In the folder: send, delete some, release one behind a receive, and keep a lease."""
        async with cmqd_client.connect(url) as client:
            queue = await client.create_queue("orders")
            await self._send(queue, range(40))
            await self._take(queue, 5)
            (message,) = await queue.receive()
            assert (message.body, message.receive_count) == (b"body 5", 1)
            await message.release()
            (self._lease,) = await queue.receive(visibility_timeout=3600)
            assert self._lease.body == b"body 5"

    async def go_on(self, url: str, first: int) -> None:
        """In the next place: the lease and the counts of the last place are valid; then the same again."""
        async with cmqd_client.connect(url) as client:
            queue = client.queue("orders")
            assert self._lease is not None
            assert (await queue.attributes()).in_flight == 1
            await queue.change_visibility(self._lease.receipt_handle, 1800)
            await queue.release(self._lease.receipt_handle)
            (message,) = await queue.receive()
            assert (message.body, message.receive_count) == (self._lease.body, self._lease.receive_count + 1)
            self.received.append(message.body)
            await message.delete()
            await self._send(queue, range(first, first + 10))
            await self._take(queue, 5)
            (self._lease,) = await queue.receive(visibility_timeout=3600)

    async def end(self, url: str) -> None:
        """Delete the last lease, and receive the rest."""
        async with cmqd_client.connect(url) as client:
            queue = client.queue("orders")
            assert self._lease is not None
            self.received.append(self._lease.body)
            await queue.delete(self._lease.receipt_handle)
            while messages := await queue.receive(max_messages=16):
                for message in messages:
                    assert message.receive_count == 1
                    self.received.append(message.body)
                    await message.delete()
            attributes = await queue.attributes()
            assert (attributes.active, attributes.in_flight) == (0, 0)
        assert sorted(self.received) == sorted(self.sent)

    async def _send(self, queue: "cmqd_client.Queue[bytes]", numbers: range) -> None:
        bodies = [f"body {number}".encode() for number in numbers]
        self.sent += bodies
        for body in bodies:
            await queue.send(body)

    async def _take(self, queue: "cmqd_client.Queue[bytes]", count: int) -> None:
        for _ in range(count):
            (message,) = await queue.receive()
            self.received.append(message.body)
            await message.delete()


def with_port(url: str, ready_file: Path) -> str:
    """Return a URL with the port that a broker has written into its ready file."""
    return f"{url.rpartition(':')[0]}:{json.loads(ready_file.read_text())['port']}"
