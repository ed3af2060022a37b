"""A wall clock that jumps while the broker runs: leases, delays, retention, rewinds and signed pushes."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from cmqd_protocol import messages as wire
from cmqd_segment.records import AnyRecord, ClockOffset
from support.server.server_rig import RigClient, ServerRig

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
YEAR_MS = 365 * 24 * HOUR_MS
RETENTION_MS = 2 * HOUR_MS

JUMPS = {"1 h forward": HOUR_MS, "1 h back": -HOUR_MS, "1 year forward": YEAR_MS, "8 h of suspend": 8 * HOUR_MS}
"""The lead of the wall clock afterwards. The monotonic clock stands still in a suspend."""


async def live(rig: ServerRig, seconds: int) -> None:
    """Let time pass on both clocks, compared by the broker."""
    for _ in range(seconds):
        rig.clock.advance(1_000)
        rig.server.beat.examine()
        await rig.tick()


async def status(client: RigClient) -> dict[str, Any]:
    return (await client.expect(wire.ServerStatus, wire.GetServerStatus)).status


def offsets(rig: ServerRig) -> list[int]:
    """Of the records in the log."""
    records: list[AnyRecord] = [record for row in rig.log.disk.rows for record in row.records]
    return [record.offset_ms for record in records if isinstance(record, ClockOffset)]


@dataclass
class Scene:
    """A queue with a message in each state, ten seconds before the wall clock jumps, and a subscription to a URL."""

    rig: ServerRig
    client: RigClient
    jump_ms: int
    deleted_ms: int
    """Time of sending of the deleted message, as read by its receiver."""

    async def counts(self) -> dict[str, int]:
        counts = await self.client.counts("jobs")
        return {state: count for state, count in counts.items() if count}

    async def rewind(self, time_ms: int, ago_ms: int | None = None) -> wire.Rewound:
        return await self.client.expect(wire.Rewound, wire.RewindQueue, "jobs", time_ms, False, ago_ms)


@pytest.fixture(params=JUMPS.values(), ids=list(JUMPS))
async def scene(rig: ServerRig, request: pytest.FixtureRequest) -> Scene:
    client = await rig.client()
    attributes = {"rewind_ms": HOUR_MS, "retention_ms": RETENTION_MS}
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", attributes)
    await client.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    hook = {"protocol": "https", "endpoint": "https://example.com/hook"}
    await client.expect(wire.SubscriptionInfo, wire.Subscribe, "news", "hook", hook)
    await client.send("jobs", b"deleted")
    (deleted,) = await client.receive("jobs")
    await client.expect(wire.HandlesDone, wire.DeleteMessages, "jobs", [deleted.receipt_handle])
    await live(rig, 1)
    await client.send("jobs", b"leased")
    await client.expect(wire.MessagesReceived, wire.ReceiveMessages, "jobs", 1, 0, 10 * MINUTE_MS)
    await client.expect(wire.MessagesSent, wire.SendMessages, "jobs", [b"delayed"], None, 10 * MINUTE_MS)
    await live(rig, 10)
    rig.clock.jump(request.param)
    await live(rig, 1)
    return Scene(rig, client, request.param, deleted.enqueue_ms)


async def test_the_difference_is_recorded_and_shown(scene: Scene) -> None:
    found = await status(scene.client)

    assert found["clock_offset_ms"] == scene.jump_ms
    assert found["time_ms"] == scene.rig.clock.wall()
    assert found["broker_time_ms"] == scene.rig.clock.wall() - scene.jump_ms
    assert offsets(scene.rig) == [scene.jump_ms]
    assert scene.rig.broker.facts.clock_offset_ms == scene.jump_ms


async def test_leases_and_delays_go_on_as_if_nothing_had_happened(scene: Scene) -> None:
    assert await scene.counts() == {"in_flight": 1, "delayed": 1, "rewindable": 1}
    await live(scene.rig, 10 * 60 - 13)
    assert await scene.counts() == {"in_flight": 1, "delayed": 1, "rewindable": 1}

    await live(scene.rig, 4)

    assert await scene.counts() == {"active": 2, "rewindable": 1}
    assert [message.body for message in await scene.client.receive("jobs")] == [b"leased", b"delayed"]


async def test_the_retention_goes_on_as_if_nothing_had_happened(scene: Scene) -> None:
    # Once the wall clock has been ahead for an hour broker time runs faster, by at most 0.5 %.
    await live(scene.rig, RETENTION_MS // 1000 - 13 - 30)
    assert (await scene.counts())["active"] == 2

    await live(scene.rig, 35)

    assert await scene.counts() == {}


async def test_the_time_of_a_message_rewinds_to_it(scene: Scene) -> None:
    rewound = await scene.rewind(scene.deleted_ms)

    assert (rewound.messages, rewound.time_ms, rewound.clamped) == (1, scene.deleted_ms, False)
    assert [message.body for message in await scene.client.receive("jobs")] == [b"deleted"]


async def test_how_long_ago_is_counted_in_broker_time(scene: Scene) -> None:
    """The wall clock does not matter, nor a client's clock that agrees with the wall clock."""
    (leased,) = (await scene.client.expect(wire.MessagesPeeked, wire.PeekMessages, "jobs", 1)).messages
    now_ms = scene.rig.broker_clock.now_ms()

    rewound = await scene.rewind(5, ago_ms=now_ms - leased.enqueue_ms)
    assert (rewound.messages, rewound.time_ms, rewound.clamped) == (0, leased.enqueue_ms, False)
    rewound = await scene.rewind(5, ago_ms=now_ms - scene.deleted_ms)

    assert (rewound.messages, rewound.time_ms) == (1, scene.deleted_ms)
    everything = await scene.rewind(5, ago_ms=1 << 60)
    assert everything.clamped


async def test_a_push_is_signed_with_the_time_of_the_wall_clock(scene: Scene) -> None:
    await scene.client.expect(wire.MessagesPublished, wire.PublishMessages, "news", [b"hello"])
    await scene.rig.turn()

    ((headers, body),) = scene.rig.pusher.requests

    assert headers["webhook-timestamp"] == str(scene.rig.clock.wall() // 1000)
    assert json.loads(body)["publishTime"] == scene.rig.clock.wall() // 1000
    assert scene.rig.pusher.signed_with[0]
    # The core counts the retries in its own time.
    scene.rig.pusher.end("status 500")
    await live(scene.rig, 2)
    assert len(scene.rig.pusher.requests) == 2


async def test_a_jump_back_to_the_right_time_ends_it(scene: Scene) -> None:
    await live(scene.rig, 20)
    scene.rig.clock.jump(-scene.jump_ms)
    await live(scene.rig, 20)

    assert (await status(scene.client))["clock_offset_ms"] == 0
    assert offsets(scene.rig) == [scene.jump_ms, 0]
