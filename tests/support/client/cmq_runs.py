"""Runs of the command line in a test: a server in a thread of its own, and the result of a run."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar, cast

import msgspec

from support.client.local_server import LocalServer
from support.eventually import eventually

T = TypeVar("T")


class ThreadedServer:
    """A server beside the test; ``do`` runs a coroutine in the server's loop, and waits for the result."""

    def __init__(self) -> None:
        self.local: LocalServer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._await(self._start())

    async def _start(self) -> None:
        self.local = LocalServer()
        await self.local.start()

    def _await(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def do(self, function: Callable[..., Awaitable[T] | T], *arguments: Any, **options: Any) -> T:
        async def call() -> T:
            result = function(*arguments, **options)
            return await cast("Awaitable[T]", result) if isawaitable(result) else cast("T", result)

        return self._await(call())

    def when(self, condition: Callable[[], object], function: Callable[[], object]) -> None:
        """Call ``function`` on the loop of the server as soon as the condition holds."""

        async def wait() -> None:
            await eventually(condition)
            if isawaitable(result := function()):
                await result

        asyncio.run_coroutine_threadsafe(wait(), self._loop)

    def close(self) -> None:
        self._await(self.local.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Ran(msgspec.Struct):
    """The result of a run."""

    code: int
    out: str
    err: str
    data: bytes

    @property
    def json(self) -> Any:
        """The single document on standard output."""
        return json.loads(self.out)

    @property
    def json_error(self) -> Any:
        """The single document on standard error."""
        return json.loads(self.err)

    @property
    def lines(self) -> list[Any]:
        """The documents of a stream."""
        return [json.loads(line) for line in self.out.splitlines()]


Cmq = Callable[..., Ran]
