"""A backlog outlives the broker that took it: the servers have it, over seals, checkpoints and trims."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import cmqd_client
from cmqd_client import Queue
from support.crash.broker import CrashingBroker, Victim
from support.mixed_faults.stored import broken_rows, stored_rows
from support.postgresql.installation import Installation
from support.postgresql.servers import PostgresCluster

MESSAGES = 100_000
CHURNED = 20_000
BATCH = 256
SEGMENT_BYTES = 1 << 20

pytestmark = [
    pytest.mark.system,
    pytest.mark.postgresql,
    pytest.mark.skipif("CMQD_ALL_HAZARDS" not in os.environ, reason="runs in make test-all PARTS=redundancy"),
]


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster(Installation.of_session()) as cluster:
        yield cluster


@pytest.fixture
def pair(cluster: PostgresCluster, tmp_path: Path) -> Iterator[tuple[CrashingBroker, CrashingBroker]]:
    def broker(name: str) -> CrashingBroker:
        (tmp_path / name).mkdir()
        flags = ("--redundancy", "postgresql", "--engine-url", cluster.url(name))
        return CrashingBroker(tmp_path / name, flags=(*flags, "--segment-bytes", str(SEGMENT_BYTES)))

    first, second = broker("a"), broker("b")
    yield first, second
    first.clean_up()
    second.clean_up()


async def test_a_broker_with_an_empty_folder_has_the_whole_backlog(
    cluster: PostgresCluster, pair: tuple[CrashingBroker, CrashingBroker]
) -> None:
    first, second = pair
    ready = await asyncio.to_thread(first.start)
    async with cmqd_client.connect(ready.url) as client:
        backlog, churn = [await client.create_queue(name) for name in ("backlog", "churn")]
        # Rows of consumed messages, in segments of their own: the leader drops and trims them.
        await fill(churn, CHURNED)
        assert len(await consume(churn)) == CHURNED
        await fill(backlog, MESSAGES)
    rows = stored_rows(cluster.n1)
    assert len(list((first.data / "segments").glob("*"))) > 10, "the log was not cut into segments"
    assert rows[0].checkpoint_lsn > rows[-1].lsn // 2, "no checkpoint followed the seals"
    assert len(rows) < rows[-1].lsn, "no row was trimmed"
    await asyncio.to_thread(first.kill, Victim.BOTH)

    ready = await asyncio.to_thread(second.start)
    async with cmqd_client.connect(ready.url) as client:
        assert (await client.queue("backlog").attributes()).active == MESSAGES
        received = await consume(client.queue("backlog"))
    assert received == {body_of(number) for number in range(MESSAGES)}
    assert await asyncio.to_thread(second.stop) == 0
    assert list(broken_rows(stored_rows(cluster.n1))) == []


def body_of(number: int) -> bytes:
    return b"%08d/" % number * 16


async def fill(queue: Queue, count: int) -> None:
    for first in range(0, count, BATCH):
        await queue.send_batch([body_of(number) for number in range(first, min(first + BATCH, count))])


async def consume(queue: Queue) -> set[bytes]:
    """Receive and delete all messages. A body that comes twice is a failure."""
    bodies: list[bytes] = []
    messages = await queue.receive(BATCH)
    while messages:
        bodies += [message.body for message in messages]
        messages = await queue.receive(BATCH, acknowledge=messages)
    assert len(bodies) == len(set(bodies))
    return set(bodies)
