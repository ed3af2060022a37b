"""A standby, which has no loop process that counts, keeps outcomes before it replaces its checkpoint."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cmqd.storage.redundancy import following
from cmqd_segment.manifest import read_manifest
from cmqd_segment.records import unpack_runs
from support.core.builders import Rig
from support.engine.replicas import Replica, Replicas
from support.eventually import eventually
from support.spark.log_folder import rows_of
from support.storage.outcome_rig import entries_of

pytestmark = pytest.mark.system
ROW_BYTES = 30_000


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    made = Replicas(tmp_path)
    yield made
    await made.end()


class Leader:
    """A leader that writes the rows of a core. The first row of the log is the leader's own."""

    def __init__(self, replica: Replica, standby: Replica) -> None:
        self.replica = replica
        self.standby = standby
        self.core = Rig()
        self.core.log.rows.append([])
        self.upto = 1

    async def write(self) -> None:
        """Write each row, and wait until the standby has it: its segments end by their size."""
        for records, bodies, time_ms in rows_of(self.core)[self.upto :]:
            self.upto += 1
            assert self.replica.rig.log.append(records, bodies, time_ms) == self.upto
            await self.replica.rig.commit()
            await eventually(lambda: len(self.standby.rig.rows) == self.upto)

    async def pad(self) -> None:
        """Write rows for some segments of the standby."""
        for _ in range(6):
            self.core.send(bytes(ROW_BYTES), name="pad")
        await self.write()

    async def checkpoint(self) -> None:
        done = len(self.replica.rig.checkpoints_done)
        for part in self.core.checkpoint():
            self.replica.rig.log.write_checkpoint(part)
        await self.replica.rig.until(lambda: len(self.replica.rig.checkpoints_done) > done)


async def test_a_standby_keeps_how_messages_left_before_the_rows_go(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(following, "UPKEEP_POLLS", 1)
    standby = replicas.broker("b", segment_bytes=1 << 16)
    leader = Leader(await replicas.leader("a"), standby)
    opening = asyncio.create_task(standby.rig.open())
    core = leader.core
    core.create("q")
    core.create("pad")
    for _ in range(4):
        core.send(bytes(ROW_BYTES))
    await leader.write()
    await leader.replica.log.seal_now()
    await leader.pad()
    core.delete(*core.handles(most=4)[:3])
    await leader.pad()
    await leader.replica.log.seal_now()
    core.create("later")
    await leader.write()
    for _ in range(2):
        await leader.checkpoint()
    _, middle = leader.replica.log.closed_segments()

    assert await leader.replica.log.drop_segments([middle.number], leader.upto) == [middle.number]

    await eventually(lambda: len(read_manifest(standby.folder).dropped) > 0)
    manifest = read_manifest(standby.folder)
    (checkpoint,) = manifest.checkpoints
    told = [entry for segment in manifest.segments for entry in entries_of(standby.folder, segment)]
    assert {(entry.reason, *entry.receive_counts) for entry in told} == {("deleted", 1)}
    # The messages are in two segments of the standby.
    assert [position for entry in told for position in unpack_runs(entry.positions)] == [0, 1, 2]
    first, *_ = manifest.segments
    assert first.outcomes is not None
    assert (first.outcomes.known_from, first.outcomes.upto) == (0, checkpoint.lsn)
    (gone,) = manifest.dropped
    assert gone[0] <= told[0].lsn <= gone[1]
    opening.cancel()
    await standby.log.close()
