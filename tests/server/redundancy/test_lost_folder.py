"""The machine of a leader is lost with its data folder, and a standby begins with an empty folder."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import cmqd_client
from cmqd_client import Message
from support.engine.replicas import Replicas
from support.eventually import eventually
from support.server.daemons import DaemonOverEngine

MESSAGES = 100_000
BATCH = 250
SEGMENT_BYTES = 1 << 20


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    made = Replicas(tmp_path)
    yield made
    await made.end()


def body(number: int) -> bytes:
    return b"%d/" % number * 8


def checkpoint_lsn(replicas: Replicas) -> int:
    stored = replicas.database.newest_primary().tables.checkpoint
    return 0 if stored is None else stored.lsn


async def test_a_backlog_survives_the_loss_of_the_leader_and_its_folder(replicas: Replicas, tmp_path: Path) -> None:
    """Checkpoints and seals must not let the engine lose a row: in them, every body is in the engine alone."""
    leader = DaemonOverEngine(replicas, tmp_path / "a", {"segment_bytes": SEGMENT_BYTES})
    leader.begin()
    await leader.led()
    log = leader.replica.log
    async with cmqd_client.connect(leader.url) as client:
        queue = await client.create_queue("backlog")
        for first in range(0, MESSAGES, BATCH):
            await queue.send_batch([body(number) for number in range(first, first + BATCH)])
            if first % (MESSAGES // 4) == 0:
                await log.seal_now()
                leader.server.checkpoints.want()
                await eventually(lambda lsn=log.last_lsn: checkpoint_lsn(replicas) >= lsn)
        assert sum(segment.is_sealed for segment in log.closed_segments()) >= 3
    leader.replica.process.service.end()
    assert leader.ended is not None
    assert leader.replica.process.task is not None
    await leader.ended
    await leader.replica.process.task
    shutil.rmtree(tmp_path / "a")

    other = DaemonOverEngine(replicas, tmp_path / "b")
    other.begin()
    await other.led()

    numbers: set[int] = set()
    async with cmqd_client.connect(other.url) as client:
        queue = client.queue("backlog")
        received: list[Message[bytes]] = []
        while received := await queue.receive(BATCH, acknowledge=received):
            for message in received:
                number = int(message.body.split(b"/")[0])
                assert message.body == body(number)
                numbers.add(number)
        info = await queue.attributes()
    assert len(numbers) == MESSAGES
    assert (info.active, info.in_flight) == (0, 0)
    await other.end()
