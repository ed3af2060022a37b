"""Receivers: a process with N HTTP endpoints, each on a port of its own, as cheap as they can be.

An endpoint takes requests on connections that are kept, reads as much of each as tells where it ends, and answers 204;
or, once it is told to hang, takes them and never answers. This module is run as a program. Its first line on standard
output is the list of its ports; then it answers each line on its standard input with one JSON object and ends when that
input ends:

- ``read``: the requests that each endpoint answered since the last ``clear``, and how late they came to the first one
- ``clear``: count anew
- ``hang K``: the endpoints from number K on answer nothing any more

The body of what is posted has to hold the time of publishing (``stamped``), from which the lateness counts.
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

from cmqd_bench.histogram import Histogram

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
STAMP_MARK = b"at="
STAMP_DIGITS = 16
MIN_STAMPED = len(STAMP_MARK) + STAMP_DIGITS
END_SECONDS = 5.0


def stamped(stamp: int, size: int) -> bytes:
    """A body of ``size`` bytes of ASCII, which JSON carries as it is, that begins with a time."""
    return STAMP_MARK + b"%016x" % stamp + b"x" * (size - MIN_STAMPED)


def stamp_in(body: bytes) -> int | None:
    """The time in a body, or in the JSON around it; None if there is none."""
    start = body.find(STAMP_MARK)
    return None if start < 0 else int(body[start + len(STAMP_MARK) : start + MIN_STAMPED], 16)


def split_requests(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Head and body of the requests that are whole, and what is left. Every request must have a Content-Length."""
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
    """One endpoint and what it has answered."""

    __slots__ = ("answered", "hanging", "latency")

    def __init__(self, latency: Histogram | None) -> None:
        self.answered = 0
        self.hanging = False
        self.latency = latency
        """Where to record how late requests are; None = nowhere."""


class EndpointConnection(asyncio.Protocol):
    """One connection to an endpoint."""

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
    """The running process, as its parent sees it."""

    def __init__(self, process: asyncio.subprocess.Process, ports: Sequence[int]) -> None:
        self._process = process
        self.pid = process.pid
        self.urls = [f"http://127.0.0.1:{port}/" for port in ports]

    async def read(self) -> tuple[list[int], dict[str, float]]:
        """Requests that each endpoint answered, and the lateness at the first one in milliseconds."""
        answer = await self._ask("read")
        return answer["answered"], answer["latency_ms"]

    async def clear(self) -> None:
        """Count anew."""
        await self._ask("clear")

    async def hang(self, first: int) -> None:
        """The endpoints from number ``first`` on answer nothing any more."""
        await self._ask(f"hang {first}")

    async def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return await read_line(self._process)


async def read_line(process: asyncio.subprocess.Process) -> Any:
    """One line of JSON. Raises RuntimeError when the process has ended."""
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), END_SECONDS)
    if not line:
        raise RuntimeError("the receiving process has ended")
    return json.loads(line)


@asynccontextmanager
async def receiving(endpoints: int) -> AsyncGenerator[Receivers]:
    """Run the process with so many endpoints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cmqd_bench.receiver", str(endpoints)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Receivers(process, await read_line(process))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


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
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    latency = Histogram()
    endpoints = [Endpoint(None if number else latency) for number in range(count)]
    async with contextlib.AsyncExitStack() as stack:
        ports: list[int] = []
        for endpoint in endpoints:
            server = await loop.create_server(lambda one=endpoint: EndpointConnection(one), "127.0.0.1", 0)
            stack.callback(server.close)
            ports.append(server.sockets[0].getsockname()[1])
        print(json.dumps(ports), flush=True)
        while line := await reader.readline():
            print(json.dumps(_answer(line.decode(), endpoints, latency)), flush=True)


def main() -> None:
    """Run as a process of its own."""
    (count,) = sys.argv[1:]
    uvloop.run(_serve(int(count)))


if __name__ == "__main__":
    main()
