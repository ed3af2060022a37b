"""A restore to a time is the state then: random operations, states noted in between, and a restore to each.

CMQD_BACKUP_STATES sets the number of states; a measurement takes 20.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cmqd.testing.broker_process import BrokerProcess
from cmqd_client import Client, connect
from cmqd_client.errors import CmqError
from support.processes.environment import plain_environment
from support.processes.running_server import RunningServer

pytestmark = pytest.mark.system

STATES = int(os.environ.get("CMQD_BACKUP_STATES", "4"))
OPERATIONS = 40
"""Operations between two states."""
SEED = 77
HOUR_S = 3600
QUEUES = ("orders", "parcels")


class Noted(NamedTuple):
    """A state, and a time at which it was the newest."""

    at_ms: int
    state: dict[str, Any]


async def state_of(client: Client) -> dict[str, Any]:
    """Return all that clients see of the queues and the topic: settings, and each message with its state."""
    state: dict[str, Any] = {}
    for name in QUEUES:
        queue = client.queue(name)
        details = (await queue.attributes()).details
        state[name] = {field: value for field, value in details.items() if field != "address"}
        start: int | None = 0
        while start is not None:
            page = await queue.peek(256, start=start, states=["active", "in_flight", "delayed", "half", "rewindable"])
            for message in page:
                state[f"{name}/{message.id}"] = (
                    message.body,
                    message.state,
                    message.receive_count,
                    message.enqueue_time,
                )
            start = page.next_start
    page = await client.queues()
    state["queues"] = sorted(page)
    return state


class Worker:
    """A client that calls operations at random."""

    def __init__(self, client: Client, chance: random.Random) -> None:
        self._client = client
        self._chance = chance
        self._held: list[Any] = []
        self._sent = 0

    async def begin(self) -> None:
        await self._client.create_queue("parcels", rewind=HOUR_S, retention=2 * HOUR_S)
        await self._client.create_queue("orders", rewind=HOUR_S)
        topic = await self._client.create_topic("shop")
        await topic.subscribe("all", queue="parcels")

    async def step(self) -> None:
        """Call an operation."""
        chance = self._chance
        queue = self._client.queue(chance.choice(QUEUES))
        match chance.choice(("send", "send", "publish", "receive", "receive", "settle", "settle", "delay", "rare")):
            case "send":
                bodies = [f"{self._number()}".encode() for _ in range(chance.randint(1, 20))]
                await queue.send_batch(bodies)
            case "publish":
                await self._client.topic("shop").publish(f"{self._number()}".encode())
            case "delay":
                await queue.send(f"{self._number()}".encode(), delay=HOUR_S / 2)
            case "receive":
                self._held += await queue.receive(chance.randint(1, 10), wait=0, visibility_timeout=HOUR_S)
            case "settle" if self._held:
                message = self._held.pop(chance.randrange(len(self._held)))
                # After a clear, a rewind or a kill of the broker the lease may be gone.
                with contextlib.suppress(CmqError):
                    await chance.choice((message.delete, message.delete, message.release))()
            case "rare" if chance.random() < 0.3:
                choice = chance.randrange(3)
                if choice == 0:
                    await queue.clear()
                elif choice == 1:
                    await queue.rewind(ago=HOUR_S / 2, strict=False)
                else:
                    await queue.set_attributes(retention=chance.randint(HOUR_S, 4 * HOUR_S))
            case _:
                pass

    def _number(self) -> int:
        self._sent += 1
        return self._sent


def next_ms() -> int:
    """Wait until no row of before has this millisecond, and return it."""
    began_ms = time.time_ns() // 1_000_000
    while (now_ms := time.time_ns() // 1_000_000) < began_ms + 5:
        time.sleep(0.001)
    return now_ms


async def work(url: str, chance: random.Random, noted: list[Noted], is_first: bool) -> None:
    """Call operations, and note the state behind them."""
    async with connect(url, patience=None) as client:
        worker = Worker(client, chance)
        if is_first:
            await worker.begin()
        for _ in range(OPERATIONS):
            await worker.step()
        state = await state_of(client)
        noted.append(Noted(next_ms(), state))
        next_ms()


async def read_state(url: str) -> dict[str, Any]:
    async with connect(url) as client:
        return await state_of(client)


def launch(*arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "cmqd", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=plain_environment(),
    )


def test_a_restore_to_a_time_equals_the_state_then(tmp_path: Path) -> None:
    backup, chance = tmp_path / "backup", random.Random(SEED)
    noted: list[Noted] = []
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker", "--segment-bytes", str(1 << 20)) as broker:
        copying = launch("backup", broker.folder / "data", "--to", backup, "--every", "1s")
        try:
            while not list(backup.glob("runs/*.json")):
                # A log without a row has no backup.
                asyncio.run(touch(broker.url))
                time.sleep(0.05)
            for number in range(STATES):
                asyncio.run(work(broker.url, chance, noted, number == 0))
                if number % 3 == 1:
                    broker.kill()
                    broker.start()
                elif number % 3 == 2:
                    broker.stop()
                    broker.start()
            known = len(list(backup.glob("runs/*.json")))
            while len(list(backup.glob("runs/*.json"))) < known + 2:
                time.sleep(0.05)
        finally:
            copying.send_signal(signal.SIGTERM)
            text, _ = copying.communicate()

    assert len({repr(state) for _, state in noted}) == STATES, "the operations changed nothing"
    for number, (at_ms, state) in enumerate(noted):
        target = tmp_path / f"restored-{number}" / "data"
        at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
        restoring = launch("restore", backup, target, "--to-time", at)
        lines, _ = restoring.communicate()
        assert restoring.returncode == 0, f"{lines}\n{text}"
        with RunningServer(target.parent) as server:
            found = asyncio.run(read_state(server.url))
        assert found == state, f"state {number}"


async def touch(url: str) -> None:
    async with connect(url) as client:
        await client.ensure_queue("first")
