"""Starts of the real server over a log with times that differ from the wall clock."""

import asyncio
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cmqd_client import Client, connect
from cmqd_client.errors import TimeNotRewindable
from support.processes.running_server import RunningServer
from support.server.lived_log import HOUR_MS, lived

pytestmark = pytest.mark.system

YEAR_MS = 365 * 24 * HOUR_MS
SLACK_MS = 60_000


async def facts(client: Client) -> tuple[Mapping[str, Any], dict[str, int]]:
    """The status, and the counts of the queue."""
    info = await client.queue("jobs").attributes()
    counts = {"active": info.active, "in_flight": info.in_flight, "rewindable": info.rewindable}
    return await client.status(), counts


def events(server: RunningServer, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


JSON = ("--log-format", "json")


async def rewind_and_send(url: str) -> dict[str, int]:
    """Requests that must work under any clock; returns the counts from before."""
    async with connect(url) as client:
        queue = client.queue("jobs")
        _, counts = await facts(client)
        assert (await queue.rewind(ago=7200 if counts["rewindable"] else 0, strict=False)).messages == counts[
            "rewindable"
        ]
        (message, *_) = (await queue.peek(1)).messages
        await queue.rewind(message.enqueue_time)
        await queue.send(b"more")
    return counts


async def status_of(url: str) -> Mapping[str, Any]:
    async with connect(url) as client:
        status = await client.status()
    assert abs(status["time_ms"] - wall_ms()) < SLACK_MS, "the wall clock is right to the outside"
    assert status["time_ms"] - status["broker_time_ms"] == pytest.approx(status["clock_offset_ms"], abs=100)
    return status


def test_after_a_start_a_year_ahead_the_difference_stays_until_the_wall_clock_is_adopted(tmp_path: Path) -> None:
    server = RunningServer(tmp_path, *JSON)
    asyncio.run(lived(server.data, wall_ms() + YEAR_MS))

    with server:
        assert asyncio.run(status_of(server.url))["clock_offset_ms"] == pytest.approx(-YEAR_MS, abs=SLACK_MS)
        assert asyncio.run(rewind_and_send(server.url)) == {"active": 1, "in_flight": 1, "rewindable": 1}
        assert len(events(server, "clock_offset")) == 1
        server.kill()
        server.start()
        assert asyncio.run(status_of(server.url))["clock_offset_ms"] == pytest.approx(-YEAR_MS, abs=SLACK_MS)
        server.stop()

        server.start("--adopt-wall-clock")
        assert len(events(server, "clock_adopted")) == 1
        assert abs(asyncio.run(status_of(server.url))["clock_offset_ms"]) < SLACK_MS
        asyncio.run(look_after_the_step(server.url))
        server.kill()
        for flags in ((), ("--adopt-wall-clock",)):
            server.start(*flags)
            assert abs(asyncio.run(status_of(server.url))["clock_offset_ms"]) < SLACK_MS
            asyncio.run(look_after_the_step(server.url))
            server.stop()
        assert len(events(server, "clock_adopted")) == 1


async def look_after_the_step(url: str) -> None:
    async with connect(url) as client:
        queue = client.queue("jobs")
        _, counts = await facts(client)
        assert counts["in_flight"] == 1
        assert counts["active"] >= 3
        sent = await queue.send(b"new")
        (new,) = [one for one in (await queue.peek(10)).messages if one.id == sent.id]
        assert abs(new.enqueue_time - datetime.now(UTC)) < timedelta(minutes=1)
        with pytest.raises(TimeNotRewindable):
            await queue.rewind((wall_ms() + YEAR_MS) / 1000)


def test_a_recorded_offset_counts_at_the_next_start(tmp_path: Path) -> None:
    server = RunningServer(tmp_path, *JSON)
    stopped_ms = 600_000
    asyncio.run(lived(server.data, wall_ms() - 8 * HOUR_MS - stopped_ms, 8 * HOUR_MS))

    with server:
        status = asyncio.run(status_of(server.url))
        assert status["clock_offset_ms"] == pytest.approx(8 * HOUR_MS, abs=SLACK_MS)
        assert asyncio.run(rewind_and_send(server.url)) == {"active": 1, "in_flight": 1, "rewindable": 1}
        server.kill()
        server.start()
        assert asyncio.run(status_of(server.url))["clock_offset_ms"] == pytest.approx(8 * HOUR_MS, abs=SLACK_MS)
        server.stop()

        server.start("--adopt-wall-clock")
        assert abs(asyncio.run(status_of(server.url))["clock_offset_ms"]) < SLACK_MS
        server.stop()
