"""Schedules on a real data folder: kills of the storage process between firings, and large bodies."""

from pathlib import Path
from typing import Any

import pytest

from cmqd_protocol import messages as wire
from cmqd_types.messages import ReceivedMessage
from support.formats.broker import FolderBroker, open_folder
from support.server.server_rig import RigClient

pytestmark = pytest.mark.system

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
MIB = 1_048_576


async def info(rig: FolderBroker, client: RigClient) -> wire.ScheduleInfo:
    found = await rig.answer(client, wire.GetSchedule(client.next_id(), "hourly"))
    assert isinstance(found, wire.ScheduleInfo), found
    return found


async def created(rig: FolderBroker, body: bytes) -> RigClient:
    """A client of a broker with a queue for large messages, and an hourly schedule."""
    client = await rig.client()
    queue = wire.CreateQueue(client.next_id(), "orders", {"max_message_bytes": MIB, "retention_ms": 100 * HOUR_MS})
    assert isinstance(await rig.answer(client, queue), wire.QueueInfo)
    attributes: dict[str, Any] = {"queue": "orders", "cron": "0 * * * *", "zone": "Europe/Berlin"}
    schedule = wire.CreateSchedule(client.next_id(), "hourly", attributes, body, {"kind": "report"})
    assert isinstance(await rig.answer(client, schedule), wire.ScheduleInfo)
    return client


async def received(rig: FolderBroker, client: RigClient) -> list[ReceivedMessage]:
    reply = await rig.answer(client, wire.ReceiveMessages(client.next_id(), "orders", 256))
    assert isinstance(reply, wire.MessagesReceived)
    return reply.messages


async def test_a_large_body_comes_back_from_the_log_and_from_a_checkpoint(tmp_path: Path) -> None:
    body = bytes(range(256)) * 4096
    rig = await open_folder(tmp_path, START_MS)
    await created(rig, body)
    await rig.kill()

    for hours, has_checkpoint in ((10, False), (20, True)):
        rig = await open_folder(tmp_path, START_MS + hours * HOUR_MS)
        client = await rig.client()
        await rig.due()
        shown = await info(rig, client)
        # Once for all hours of the downtime.
        assert shown.counts == {"fired": hours // 10, "missed": 0}
        assert (shown.body, shown.headers) == (body, {"kind": "report"})
        (message,) = await received(rig, client)
        assert (message.body, message.headers) == (body, {"kind": "report"})
        if has_checkpoint:
            await rig.stop()
        else:
            await rig.answer(client, wire.DeleteMessages(client.next_id(), "orders", [message.receipt_handle]))
            await rig.checkpoint()
            await rig.kill()


async def test_a_kill_at_any_moment_leaves_message_and_firing_or_neither(tmp_path: Path) -> None:
    rig = await open_folder(tmp_path, START_MS)
    await created(rig, b"go")
    await rig.kill()
    fired = 0
    for hour in range(1, 9):
        rig = await open_folder(tmp_path, START_MS + hour * HOUR_MS)
        client = await rig.client()
        before = await info(rig, client)
        counts = rig.broker.queue_info("admin", "orders").counts
        assert before.counts == {"fired": counts["active"], "missed": 0}
        assert before.counts["fired"] in (fired, fired + 1)
        # The firing is decided, and in half of the rounds not on its way to the disk when the storage dies.
        rig.server.broker_events.tick(rig.broker_clock.now_ms())
        if hour % 2:
            await rig.quiet()
            fired = rig.broker.schedule_info("admin", "hourly").counts["fired"]
        else:
            fired = before.counts["fired"]
        await rig.kill()

    rig = await open_folder(tmp_path, START_MS + 9 * HOUR_MS)
    assert rig.broker.schedule_info("admin", "hourly").counts["fired"] >= 4
    await rig.stop()
