"""Leases of a shard, with a folder from before leases had the shard, and kills of the storage process."""

from pathlib import Path

import pytest

from cmqd_protocol import messages as wire
from cmqd_types.messages import GONE_DELETED
from cmqd_types.shards import SHARD_SHIFT
from support.formats.broker import FolderBroker, open_folder
from support.formats.content import BEGIN_MS, HOUR_MS
from support.formats.shard_leases import SHARD, unpack_leases
from support.server.server_rig import RigClient

pytestmark = pytest.mark.system


async def opened(folder: Path, seconds: int) -> tuple[FolderBroker, RigClient]:
    rig = await open_folder(folder, BEGIN_MS + 1_000 * seconds, shard=SHARD)
    return rig, await rig.client()


async def received(rig: FolderBroker, client: RigClient, count: int) -> list[int]:
    reply = await rig.answer(client, wire.ReceiveMessages(client.next_id(), "orders", count, 0, HOUR_MS))
    assert isinstance(reply, wire.MessagesReceived)
    assert len(reply.messages) == count
    return [message.receipt_handle for message in reply.messages]


async def failures(rig: FolderBroker, client: RigClient, *handles: int) -> list[tuple[int, int | None]]:
    reply = await rig.answer(client, wire.DeleteMessages(client.next_id(), "orders", list(handles)))
    assert isinstance(reply, wire.HandlesDone)
    return [(failure.receipt_handle, failure.gone) for failure in reply.failures]


def shards_of(rig: FolderBroker) -> list[int]:
    (queue,) = rig.broker.queues.values()
    return sorted(lease >> SHARD_SHIFT for lease in queue.index.leases.by_number)


async def test_handles_from_before_the_shard_stay_valid_and_later_leases_have_the_shard(tmp_path: Path) -> None:
    folder, old = unpack_leases(tmp_path)
    rig, client = await opened(folder, 1)
    assert shards_of(rig) == [0, 0, 0]

    first = await received(rig, client, 1)
    assert shards_of(rig) == [0, 0, 0, SHARD]
    assert await failures(rig, client, old[0]) == []
    await rig.kill()

    rig, client = await opened(folder, 2)
    assert shards_of(rig) == [0, 0, SHARD]
    second = await received(rig, client, 1)
    assert await failures(rig, client, old[0], old[1]) == [(old[0], GONE_DELETED)]
    await rig.checkpoint()
    third = await received(rig, client, 1)
    await rig.kill()

    rig, client = await opened(folder, 3)
    assert shards_of(rig) == [0, SHARD, SHARD, SHARD]
    assert len({*old, *first, *second, *third}) == 6
    assert await failures(rig, client, old[1], old[2], *first, *second, *third) == [(old[1], GONE_DELETED)]
    assert shards_of(rig) == []
    await rig.stop()
