"""Memory of a gateway under a flood by strangers: resident memory, second by second.

Strangers know a SecretId, because ids stand in every request, but no secret. Kinds of connections:

    signatures    small sends with a known id and a wrong signature
    ids           small sends with unknown ids, a new id per send
    forms         forms of 1 MiB with a known id and a wrong signature: the gateway hashes them for all possible hosts
    slow          forms of 4 MB without their last byte
    heads         heads of many fields without an end
    keys          the JSON API with wrong pairs

A sixth of the time the broker is stopped: requests wait for answers about their keys, with their bodies in memory.
"""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from cmqd_bench.http.load import PATH
from cmqd_bench.http.servers import HttpServer
from cmqd_bench.machine.processes import rss_kib

CONNECTIONS = 16
"""Connections of each kind."""
SLOW_CONNECTIONS = 200
"""Connections with unfinished bodies, and with unfinished heads: more together than the budget of the gateway."""
SAMPLE_SECONDS = 1.0

_numbers = itertools.count(1 << 40)


def form(secret_id: str, filler_bytes: int = 0) -> bytes:
    """Return a send with a signature of another secret."""
    parameters = (
        f"Action=SendMessage&queueName=flood&msgBody=x&SecretId={secret_id}&Nonce={next(_numbers)}"
        f"&Timestamp={int(time.time())}&Signature=AAAAAAAAAAAAAAAAAAAAAAAAAAA%3D"
    )
    return parameters.encode() + (b"&filler=" + b"x" * filler_bytes if filler_bytes else b"")


def post(body: bytes) -> bytes:
    """Return a request of API 2.0."""
    return b"POST %s HTTP/1.1\r\nHost: flood\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(body)) + body


def requests_of(secret_id: str) -> dict[str, Callable[[], bytes]]:
    """Return the makers of requests, by kind; see the module."""
    large = b"&filler=" + b"x" * (1 << 20)
    unfinished = post(form(secret_id, 4_000_000))[:-1]
    head = b"POST %s HTTP/1.1\r\nHost: flood\r\n" % PATH.encode() + b"".join(
        b"X-%d: %s\r\n" % (number, b"x" * 16_000) for number in range(100)
    )
    return {
        "signatures": lambda: post(form(secret_id)),
        "ids": lambda: post(form(f"unknown{next(_numbers)}")),
        "forms": lambda: post(form(secret_id) + large),
        "slow": lambda: unfinished,
        "heads": lambda: head,
        "keys": lambda: (
            b"GET /api/v1/queues HTTP/1.1\r\nHost: flood\r\nAuthorization: Bearer %s:wrong\r\n\r\n" % secret_id.encode()
        ),
    }


async def flood_memory(
    server: HttpServer, broker_pids: Sequence[int], seconds: float, secret_id: str
) -> dict[str, Any]:
    """Flood a gateway for some seconds; return the gateway's memory before, meanwhile, and without connections."""
    before = rss_kib(server.pids)
    samples: list[int] = []
    async with _strangers(server, secret_id) as answered:
        stopped_from, stopped_to = seconds / 2, seconds / 2 + seconds / 6
        started, is_stopped = time.monotonic(), False
        try:
            while (passed := time.monotonic() - started) < seconds:
                await asyncio.sleep(min(SAMPLE_SECONDS, seconds / 12))
                samples.append(rss_kib(server.pids))
                if is_stopped != (stopped_from <= passed < stopped_to):
                    is_stopped = not is_stopped
                    _signal(broker_pids, signal.SIGSTOP if is_stopped else signal.SIGCONT)
        finally:
            _signal(broker_pids, signal.SIGCONT)
    await asyncio.sleep(min(SAMPLE_SECONDS, seconds / 12))
    # On a busy machine a short flood has a single sample.
    half = max(1, len(samples) // 2)
    mib = [round(sample / 1024, 1) for sample in samples]
    return {
        "flood_seconds": seconds,
        "flood_answers": dict(answered),
        "flood_rss_before_mib": round(before / 1024, 1),
        "flood_rss_mib": mib,
        "flood_rss_max_mib": max(mib),
        "flood_rss_max_first_half_mib": max(mib[:half]),
        "flood_rss_after_mib": round(rss_kib(server.pids) / 1024, 1),
    }


@asynccontextmanager
async def _strangers(server: HttpServer, secret_id: str) -> AsyncGenerator[dict[str, int]]:
    """Run the strangers; yields the numbers of answers by kind."""
    answered: dict[str, int] = {}
    tasks: list[asyncio.Task[None]] = []
    for kind, make in requests_of(secret_id).items():
        answered[kind] = 0
        count = SLOW_CONNECTIONS if kind in ("slow", "heads") else CONNECTIONS
        tasks += [asyncio.create_task(_stranger(server, kind, make, answered)) for _ in range(count)]
    try:
        yield answered
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stranger(server: HttpServer, kind: str, make: Callable[[], bytes], answered: dict[str, int]) -> None:
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(server.host, server.port)
            try:
                while True:
                    writer.write(make())
                    await writer.drain()
                    head = await reader.readuntil(b"\r\n\r\n")
                    _, found, rest = head.lower().partition(b"content-length: ")
                    await reader.readexactly(int(rest.partition(b"\r\n")[0]) if found else 0)
                    answered[kind] += 1
                    if b"connection: close" in head.lower() or kind in ("slow", "heads"):
                        break
            finally:
                writer.transport.abort()
        # The gateway refused this connection: the next connection comes a moment later.
        await asyncio.sleep(0.05)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
