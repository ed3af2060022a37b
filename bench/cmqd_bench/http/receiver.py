"""Receivers: a process with N HTTP endpoints, a port per endpoint, as cheap as possible.

An endpoint takes requests on persistent connections, parses only the length of a request, and answers 204; a hanging
endpoint takes requests and never answers. This module is run as a program. The first line on standard output is the
list of its ports. After that the program answers every line on standard input with a JSON object:

- ``read``: the requests answered by every endpoint since the last ``clear``, and the lateness at the first endpoint
- ``clear``: reset the counts
- ``hang K``: the endpoints from number K on stop answering

The posted body must contain the time of publishing (``stamped``), because the lateness counts from that time.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from time import monotonic_ns
from typing import Any, cast

import uvloop

from cmqd_bench.machine.children import Child, child, standard_input
from cmqd_load.histogram import Histogram

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
STAMP_MARK = b"at="
STAMP_DIGITS = 16
MIN_STAMPED = len(STAMP_MARK) + STAMP_DIGITS


def stamped(stamp: int, size: int) -> bytes:
    """Return a body of ``size`` bytes that begins with a time: ASCII, so that JSON carries the body unescaped."""
    return STAMP_MARK + b"%016x" % stamp + b"x" * (size - MIN_STAMPED)


def stamp_in(body: bytes) -> int | None:
    """Return the time in a body, or in the JSON around a body; None if the time is missing."""
    start = body.find(STAMP_MARK)
    return None if start < 0 else int(body[start + len(STAMP_MARK) : start + MIN_STAMPED], 16)


def split_requests(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return head and body of the complete requests, and the rest. Every request must have a Content-Length."""
    requests: list[tuple[bytes, bytes]] = []
    while (end := data.find(HEAD_END)) >= 0:
        head = data[:end].lower()
        at = head.find(LENGTH)
        if at < 0:
            raise ValueError("a request without Content-Length")
        length = int(head[at + len(LENGTH) :].split(b"\r\n", 1)[0])
        body_at = end + len(HEAD_END)
        if len(data) < body_at + length:
            break
        requests.append((data[:end], data[body_at : body_at + length]))
        data = data[body_at + length :]
    return requests, data


class Endpoint:
    """An endpoint and its counts of answers."""

    __slots__ = ("answered", "hanging", "latency")

    def __init__(self, latency: Histogram | None) -> None:
        self.answered = 0
        self.hanging = False
        self.latency = latency
        """Where to record how late requests are; None = nowhere."""


class EndpointConnection(asyncio.Protocol):
    """A connection to an endpoint."""

    __slots__ = ("_buffer", "_endpoint", "_transport")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        requests, self._buffer = split_requests(self._buffer + data)
        endpoint = self._endpoint
        if endpoint.hanging or not requests:
            return
        endpoint.answered += len(requests)
        self._transport.write(ANSWER * len(requests))
        if endpoint.latency is not None:
            for _, body in requests:
                if (stamp := stamp_in(body)) is not None:
                    endpoint.latency.record((monotonic_ns() - stamp) // 1000)


class Receivers:
    """The running process, as seen by its parent."""

    def __init__(self, program: Child, ports: Sequence[int]) -> None:
        self._program = program
        self.pid = program.pid
        self.urls = [f"http://127.0.0.1:{port}/" for port in ports]

    async def read(self) -> tuple[list[int], dict[str, float]]:
        """Return the answered requests by endpoint, and the lateness at the first endpoint in milliseconds."""
        answer = json.loads(await self._program.ask("read"))
        return answer["answered"], answer["latency_ms"]

    async def clear(self) -> None:
        """Reset the counts."""
        await self._program.ask("clear")

    async def hang(self, first: int) -> None:
        """Make the endpoints from number ``first`` on stop answering."""
        await self._program.ask(f"hang {first}")


@asynccontextmanager
async def receiving(endpoints: int) -> AsyncGenerator[Receivers]:
    """Run the process with ``endpoints`` endpoints."""
    async with child(__name__, str(endpoints)) as program:
        yield Receivers(program, json.loads(await program.read()))


def _answer(line: str, endpoints: Sequence[Endpoint], latency: Histogram) -> dict[str, Any]:
    match line.split():
        case ["read"]:
            return {"answered": [each.answered for each in endpoints], "latency_ms": latency.milliseconds()}
        case ["clear"]:
            latency.clear()
            for each in endpoints:
                each.answered = 0
        case ["hang", first]:
            for each in endpoints[int(first) :]:
                each.hanging = True
        case _:
            raise ValueError(line)
    return {}


async def _serve(count: int) -> None:
    loop, questions = asyncio.get_running_loop(), await standard_input()
    latency = Histogram()
    endpoints = [Endpoint(None if number else latency) for number in range(count)]
    async with contextlib.AsyncExitStack() as stack:
        ports: list[int] = []
        for endpoint in endpoints:
            server = await loop.create_server(lambda one=endpoint: EndpointConnection(one), "127.0.0.1", 0)
            stack.callback(server.close)
            ports.append(server.sockets[0].getsockname()[1])
        print(json.dumps(ports), flush=True)
        while line := await questions.readline():
            print(json.dumps(_answer(line.decode(), endpoints, latency)), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
