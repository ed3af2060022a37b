"""Links between programs that a test can cut: byte pipes over loopback, in a thread of their own.

A cut link is silent: bytes that either end sends wait in the link, connections are accepted and lead nowhere. Neither
end sees a close. ``mend`` lets all of it through, as a network does that repeats its packets. ``stall`` silences the
connections of the moment for ever, as a proxy that hangs; later ones pass. ``reset`` closes the connections.

The kernel of this machine answers the keepalives of both ends, so a cut link does not look like a machine without power
to TCP: a program notices the cut by deadlines of its own.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from support.closing_listeners import close_listener

_CHUNK_BYTES = 1 << 16
Result = TypeVar("Result")


class Link:
    """A link to a port of loopback; made by ``Links``."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def listen(self) -> None:
        self._listener = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Before the task runs: ``Links.close`` may cancel the task before its first step.
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_whole = self._is_whole
        try:
            await is_whole.wait()
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            except OSError:
                return
            self._writers.add(far_writer)
            ways = ((reader, far_writer), (far_reader, writer))
            pumps = [asyncio.create_task(self._pump(*ends, is_whole)) for ends in ways]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                far_writer.transport.abort()
                self._writers.discard(far_writer)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_whole: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await is_whole.wait()
                writer.write(data)
                await writer.drain()
            # The end of a connection does not pass a cut either.
            await is_whole.wait()

    async def cut(self) -> None:
        self._is_whole.clear()

    async def mend(self) -> None:
        self._is_whole.set()

    async def stall(self) -> None:
        self._is_whole.clear()
        self._is_whole = asyncio.Event()
        self._is_whole.set()

    async def reset(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        if self._listener is not None:
            await close_listener(self._listener)
        await self.reset()


class Links:
    """The thread of all links of a cluster; its methods may be called from any other thread."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def join(self, source: str, target: str, target_port: int) -> int:
        """Make the link from a program to another, once, and return the port at which the source connects."""
        link = self._links.get((source, target))
        if link is None:
            link = self._call(self._make(target_port))
            self._links[source, target] = link
        return link.port

    def cut(self, *ends: str) -> None:
        """Cut every link between two of these programs."""
        self._each(ends, Link.cut)

    def mend(self, *ends: str) -> None:
        """Undo ``cut``; without names, of all links."""
        self._each(ends or self.names(), Link.mend)

    def stall(self, *ends: str) -> None:
        """Silence the present connections of every link between two of these programs, for ever."""
        self._each(ends, Link.stall)

    def reset(self, *ends: str) -> None:
        """Close the connections of every link between two of these programs."""
        self._each(ends, Link.reset)

    def names(self) -> tuple[str, ...]:
        """Return the programs at the ends of all links."""
        return tuple({name for ends in self._links for name in ends})

    def close(self) -> None:
        for link in self._links.values():
            self._call(link.close())
        self._call(self._end_tasks())
        for link in self._links.values():
            self._call(link.reset())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _each(self, ends: tuple[str, ...], step: Callable[[Link], Coroutine[Any, Any, None]]) -> None:
        for (source, target), link in self._links.items():
            if source in ends and target in ends:
                self._call(step(link))

    async def _make(self, target_port: int) -> Link:
        link = Link(target_port)
        await link.listen()
        return link

    @staticmethod
    async def _end_tasks() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, step: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result()
