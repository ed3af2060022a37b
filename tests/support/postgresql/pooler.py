"""A connection pooler over loopback, in a thread of its own: a backend for each transaction, or for each client."""

import asyncio
import threading
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from contextlib import suppress
from types import TracebackType

_ENCRYPTION_CODES = (80877103, 80877104)
"""Requests for TLS and for GSSAPI ahead of the startup packet."""


class Pooler:
    """A pooler for one server. Use as a context.

    Args:
        target_port: port of the server.
        changes_backends: False: a client keeps its backend, as in session mode.
        invents_ids: clients are told an id that is no backend's.
    """

    def __init__(self, target_port: int, *, changes_backends: bool, invents_ids: bool) -> None:
        self._target_port = target_port
        self._changes_backends = changes_backends
        self._invents_ids = invents_ids
        self._idle: list[tuple[int, StreamReader, StreamWriter]] = []
        self._made = 0
        self._writers: list[StreamWriter] = []
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pooler", daemon=True)
        self.port = 0

    def __enter__(self) -> "Pooler":
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._listener = listening.result()
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(IncompleteReadError, OSError, asyncio.CancelledError):
            await self._pool(reader, writer)
        writer.transport.abort()

    async def _pool(self, reader: StreamReader, writer: StreamWriter) -> None:
        startup = await _packet(reader)
        while int.from_bytes(startup[4:8], "big") in _ENCRYPTION_CODES:
            writer.write(b"N")
            startup = await _packet(reader)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers.append(server_writer)
        server_writer.write(startup)
        self._made += 1
        backend = (self._made, server_reader, server_writer)
        await self._answer(server_reader, writer)
        if self._changes_backends:
            self._idle.append(backend)
        while True:
            kind, message = await _message(reader)
            if kind == b"X":
                return
            if self._changes_backends:
                # The oldest: clients that come one after the other share a backend.
                self._idle.sort(key=lambda one: one[0])
                while not self._idle:  # noqa: ASYNC110, a test of a second
                    await asyncio.sleep(0.001)
                backend = self._idle.pop(0)
            is_idle = False
            while not is_idle:
                backend[2].write(message)
                if kind in (b"Q", b"S"):
                    is_idle = await self._answer(backend[1], writer) == b"I"
                if not is_idle:
                    kind, message = await _message(reader)
            if self._changes_backends:
                self._idle.append(backend)

    async def _end(self) -> None:
        assert self._listener is not None
        self._listener.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        # The transports close in the next turns of the loop.
        await asyncio.sleep(0.01)

    async def _answer(self, server: StreamReader, client: StreamWriter) -> bytes:
        """Pass messages of the server on, up to a "ready for query"; return its state."""
        while True:
            kind, message = await _message(server)
            if kind == b"K" and self._invents_ids:
                message = message[:5] + (1_000_000 + self._made).to_bytes(4, "big") + message[9:]
            client.write(message)
            if kind == b"Z":
                return message[5:6]


async def _packet(reader: StreamReader) -> bytes:
    length = await reader.readexactly(4)
    return length + await reader.readexactly(int.from_bytes(length, "big") - 4)


async def _message(reader: StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    return kind, kind + await _packet(reader)
