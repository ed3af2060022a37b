"""Rewind, dead letters, redrive, dedup ids and the related attributes."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from cmqd_client import Client, Outgoing, Queue, connect
from cmqd_client.errors import (
    DeadLetterQueueInUse,
    InvalidArgument,
    OutcomeUnknown,
    QueueDiffers,
    RedriveNotFound,
    RedriveRunning,
    TimeNotRewindable,
)
from cmqd_protocol import messages as wire
from support.client.local_server import LocalServer

EPOCH = datetime.fromtimestamp(0, UTC)


async def _deleted(server: LocalServer, client: Client, *bodies: bytes) -> Queue:
    """A queue with a window of an hour, in which these messages were deleted."""
    queue = await client.create_queue("jobs", rewind=timedelta(hours=1))
    await queue.send_batch(bodies)
    await queue.delete_batch(await queue.receive(256))
    return queue


async def test_a_rewind_is_previewed(client: Client, server: LocalServer) -> None:
    queue = await _deleted(server, client, b"a", b"b")

    whole = await queue.preview_rewind()
    ago = await queue.preview_rewind(ago=60)
    at = await queue.preview_rewind(whole.latest)

    assert (whole.messages, whole.clamped, ago.messages) == (2, False, 2)
    assert whole.latest - whole.earliest == timedelta(hours=1)
    assert whole.oldest is not None
    assert whole.earliest <= whole.oldest <= whole.latest
    assert at.time == whole.latest
    assert [(one.time_ms is None, one.ago_ms) for one in server.link.of(wire.PreviewRewind)][:2] == [
        (True, None),
        (False, 60_000),
    ]
    assert (await queue.attributes()).rewindable == 2
    with pytest.raises(TimeNotRewindable) as refused:
        await queue.preview_rewind(datetime.now(UTC) + timedelta(days=9))
    assert refused.value.nearest is not None
    with pytest.raises(TypeError, match="not both"):
        await queue.preview_rewind(whole.latest, ago=5)
    with pytest.raises(ValueError, match="negative"):
        await queue.preview_rewind(ago=-5)


async def test_queues_are_listed_by_a_figure(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b")
    await client.create_queue("parcels")

    page = await client.queue_summaries(sort="active", descending=True, limit=1)
    empty = await client.queue_summaries(search="par", selection="with_messages")

    assert ([(queue.queue, queue.active) for queue in page.queues], page.total) == ([("orders", 2)], 2)
    assert (empty.queues, empty.total) == ([], 0)
    assert page.time.tzinfo is not None


# ---------------------------------------------------------------------- dedup ids


async def test_a_message_with_a_dedup_id_is_stored_once(client: Client, server: LocalServer) -> None:
    queue = client.queue("orders")

    first = await queue.send(b"one", dedup_id="order-7")
    second = await queue.send(b"one again", dedup_id="order-7")
    await queue.send(b"two")

    assert first.id == second.id
    assert await server.bodies("orders") == [b"one", b"two"]
    requests = server.link.of(wire.SendMessages)
    assert [request.dedup_ids for request in requests] == [["order-7"], ["order-7"], None]
    # Numbered too: a repeat after a lost answer is known by its number already.
    assert len({request.sequence for request in requests}) == 3


async def test_a_batch_has_dedup_ids_of_its_messages(client: Client, server: LocalServer) -> None:
    queue = client.queue("orders")

    await queue.send_batch([b"a", Outgoing(b"b", dedup_id="B"), b"c"], dedup_ids=["A", "ignored", None])
    again = await queue.send_batch([Outgoing(b"a", dedup_id="A"), b"d"])

    first, second = server.link.of(wire.SendMessages)
    assert (first.dedup_ids, second.dedup_ids) == (["A", "B", None], ["A", None])
    assert await server.bodies("orders") == [b"a", b"b", b"c", b"d"]
    assert again.ids[0] == (await client.queue("orders").peek(1)).messages[0].id


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_dedup_ids_must_be_as_many_as_messages(client: Client, server: LocalServer, count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} dedup_ids for 2 messages"):
        await client.queue("orders").send_batch([b"a", b"b"], dedup_ids=["x"] * count)
    assert not server.link.handled


# ---------------------------------------------------------------------- rewind


async def test_deleted_messages_come_back(client: Client, server: LocalServer) -> None:
    queue = await _deleted(server, client, b"a", b"b")
    assert (await queue.attributes()).rewindable == 2

    rewound = await queue.rewind(datetime.now(UTC) - timedelta(minutes=10))

    assert (rewound.messages, rewound.clamped) == (2, False)
    assert [message.body for message in await queue.receive(2)] == [b"a", b"b"]


async def test_times_are_datetimes_with_a_zone_or_seconds(client: Client, server: LocalServer) -> None:
    queue = await _deleted(server, client)
    moment = datetime.now().astimezone().replace(microsecond=123_000) - timedelta(minutes=1)

    assert (await queue.rewind(moment)).time == moment
    assert (await queue.rewind(moment.timestamp())).time == moment


@pytest.mark.parametrize(
    ("wrong", "error", "why"),
    [
        (datetime(2026, 1, 1), ValueError, "names no zone"),
        (datetime(1969, 1, 1, tzinfo=UTC), ValueError, "is 1969-01-01T00:00:00.00:00; it must not lie before 1970"),
        (-1.0, ValueError, "is not a time"),
        (0, ValueError, "is not a time"),
        (600, ValueError, r"that many seconds ago write rewind\(ago=...\)"),
        (1_700_000_000_000, ValueError, "is not a time"),
        (float("nan"), ValueError, "is not a time"),
        (timedelta(minutes=30), TypeError, r"is the duration .*; for a time that long ago write rewind\(ago=...\)"),
        (True, TypeError, "not True"),
        ("now", TypeError, "not 'now'"),
    ],
)
async def test_a_duration_or_a_number_that_is_no_time_is_refused(
    client: Client, server: LocalServer, wrong: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        await client.queue("orders").rewind(wrong)
    assert not server.link.of(wire.RewindQueue)


async def test_how_long_ago_is_counted_by_the_server(client: Client, server: LocalServer) -> None:
    queue = await _deleted(server, client, b"a")

    assert (await queue.rewind(ago=600)).messages == 1
    assert (await queue.rewind(ago=timedelta(minutes=1))).messages == 0

    assert [request.ago_ms for request in server.link.of(wire.RewindQueue)] == [600_000, 60_000]
    for arguments, error in (({}, TypeError), ({"time": 5, "ago": 5}, TypeError), ({"ago": -1}, ValueError)):
        with pytest.raises(error):
            await queue.rewind(**arguments)  # pyright: ignore[reportArgumentType]


async def test_an_older_server_is_told_the_time_by_this_machines_clock(server: LocalServer) -> None:
    server.link.features = ()
    before_ms = int(datetime.now(UTC).timestamp() * 1000)

    async with connect(server.url) as client:
        queue = await _deleted(server, client, b"a")
        assert (await queue.rewind(ago=600)).messages == 1

    (request,) = server.link.of(wire.RewindQueue)
    assert request.ago_ms is None
    assert before_ms - 600_000 <= request.time_ms <= before_ms - 600_000 + 60_000


async def test_a_time_before_the_window_is_clamped_or_refused(client: Client, server: LocalServer) -> None:
    queue = await _deleted(server, client, b"a")

    with pytest.raises(TimeNotRewindable) as caught:
        await queue.rewind(EPOCH)
    rewound = await queue.rewind(EPOCH, strict=False)

    assert caught.value.nearest is not None
    assert abs(caught.value.nearest - rewound.time) < timedelta(seconds=10)
    assert caught.value.__notes__ == [f"The nearest possible time is {caught.value.nearest}."]
    assert (rewound.messages, rewound.clamped) == (1, True)
    with pytest.raises(TimeNotRewindable) as caught:
        await client.queue("orders").rewind(EPOCH, strict=False)
    assert caught.value.nearest is None


# ---------------------------------------------------------------------- dead letters


async def test_a_dead_letter_shows_its_origin(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_queue("dead")
    sent = await client.queue("orders").send(b"a", headers={"k": "v"})
    await server.bury("orders", "dead")
    dead = client.queue("dead")

    (peeked,) = await dead.peek()
    (message,) = await dead.receive()

    assert message.origin == peeked.origin
    assert message.origin is not None
    assert (message.origin.queue, message.origin.id, message.origin.reason) == ("orders", sent.id, "receives")
    assert message.origin.enqueue_time <= message.enqueue_time
    assert message.id != sent.id
    await server.put("orders", b"b")
    assert (await client.queue("orders").receive())[0].origin is None


async def test_a_dead_letter_queue_knows_its_sources_and_stays(client: Client) -> None:
    await client.create_queue("dead")
    for name in ("b", "a"):
        await client.create_queue(name, dead_letter_queue="dead", dead_letter_max_receives=3)
    dead = client.queue("dead")

    assert await dead.dead_letter_sources() == ["a", "b"]
    assert (await dead.attributes()).dead_letter_sources == ["a", "b"]
    assert await client.queue("a").dead_letter_sources() == []
    with pytest.raises(DeadLetterQueueInUse) as caught:
        await client.delete_queue("dead")
    assert caught.value.sources == ["a", "b"]


async def test_dead_letters_are_redriven(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_queue("dead")
    await server.put("orders", b"a", b"b")
    await server.bury("orders", "dead", 2)
    await server.put("dead", b"c")
    dead = client.queue("dead")
    with pytest.raises(RedriveNotFound, match="never been redriven"):
        await dead.redrive_status()

    redrive = await dead.redrive(max_per_second=100)
    while redrive.running:
        redrive = await dead.redrive_status()

    assert not redrive.running
    assert (redrive.moved, redrive.remaining, redrive.reason) == (2, 0, "done")
    assert (redrive.target, redrive.max_per_second, redrive.missing_origins) == (None, 100, {"(no origin)": 1})
    assert redrive.end_time is not None
    assert (await client.queue("orders").receive())[0].origin is not None


async def test_a_redrive_is_watched_and_cancelled(client: Client, server: LocalServer) -> None:
    await server.admin.create_queue("dead")
    await server.put("orders", b"a")
    await server.bury("orders", "dead")
    server.hold_moves()
    dead = client.queue("dead")

    started = await dead.redrive("orders")
    assert (started.running, started.remaining) == (True, 1)
    with pytest.raises(RedriveRunning):
        await dead.redrive("orders")
    while (await dead.redrive_status()).reason != "disk nearly full":
        pass
    ended = await dead.cancel_redrive()

    assert (ended.running, ended.reason, ended.moved, ended.target) == (False, "cancelled", 0, "orders")
    with pytest.raises(InvalidArgument):
        await dead.redrive("nowhere")


async def _rewind(queue: Queue) -> object:
    return await queue.rewind(EPOCH, strict=False)


async def _redrive(queue: Queue) -> object:
    return await queue.redrive()


@pytest.mark.parametrize(
    ("kind", "call"),
    [(wire.RewindQueue, _rewind), (wire.StartRedrive, _redrive)],
)
async def test_what_is_not_safe_to_repeat_is_not_repeated(
    client: Client, server: LocalServer, kind: type[wire.Request], call: Callable[[Queue], Awaitable[object]]
) -> None:
    server.link.lose_answer(kind)

    with pytest.raises(OutcomeUnknown):
        await call(client.queue("orders"))

    assert len(server.link.of(kind)) == 1


async def test_what_is_safe_is_repeated(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_queue("tx", transactional=True)
    for kind in (wire.CancelRedrive, wire.GetRedrive, wire.ListDeadLetterSources, wire.ListHalfMessages):
        server.link.lose_answer(kind)
    await server.admin.create_queue("dead")
    await server.put("orders", b"a")
    await server.bury("orders", "dead")
    dead = client.queue("dead")
    await dead.redrive()
    await server.wait_bodies("orders", b"a")

    assert (await dead.cancel_redrive()).reason == "done"
    assert (await dead.redrive_status()).reason == "done"
    assert await dead.dead_letter_sources() == []
    assert not (await client.queue("tx").half_messages()).messages


# ---------------------------------------------------------------------- attributes and peek


async def test_attributes_of_the_model_round_trip(client: Client, server: LocalServer) -> None:
    await server.admin.ensure_queue("dead")
    queue = await client.create_queue(
        "jobs",
        rewind=timedelta(days=1),
        dead_letter_queue="dead",
        dead_letter_after=600,
        transactional=True,
        first_check=1.5,
        max_checks=3,
    )

    (request,) = server.link.of(wire.CreateQueue)
    assert request.attributes == {
        "rewind_ms": 86_400_000,
        "dead_letter_queue": "dead",
        "dead_letter_after_ms": 600_000,
        "transactional": True,
        "first_check_ms": 1500,
        "max_checks": 3,
    }
    info = await queue.attributes()
    assert (info.rewind, info.dead_letter_queue, info.dead_letter_after) == (86_400.0, "dead", 600.0)
    assert (info.dead_letter_max_receives, info.transactional, info.first_check, info.max_checks) == (0, True, 1.5, 3)
    assert await queue.set_attributes(**info.attributes())


async def test_a_queue_that_goes_when_it_is_unused(client: Client, server: LocalServer) -> None:
    queue = await client.create_queue("replies", auto_delete_after=timedelta(minutes=1), auto_delete_only_empty=False)

    (request,) = server.link.of(wire.CreateQueue)
    assert request.attributes == {"auto_delete_after_ms": 60_000, "auto_delete_only_empty": False}
    info = await queue.attributes()
    assert (info.auto_delete_after, info.auto_delete_only_empty) == (60.0, False)
    with pytest.raises(InvalidArgument, match="at least 1 min"):
        await queue.set_attributes(auto_delete_after=59)
    assert not (await queue.set_attributes(auto_delete_after=0)).auto_delete_after


async def test_attributes_that_the_server_does_not_know_are_not_sent_back_to_it(client: Client) -> None:
    info = await (await client.create_queue("jobs")).attributes()
    details = {name: value for name, value in info.details.items() if not name.startswith("auto_delete")}

    older = msgspec.structs.replace(info, details=details).attributes()

    assert info.attributes().keys() - older.keys() == {"auto_delete_after", "auto_delete_only_empty"}


@pytest.mark.parametrize("wrong", [{"transactional": 1}, {"dead_letter_queue": None}, {"max_checks": 1.5}])
async def test_attributes_have_their_types(client: Client, server: LocalServer, wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        await client.create_queue("jobs", **wrong)
    assert not server.link.handled


async def test_ensure_tells_the_difference_in_units_of_the_client(client: Client) -> None:
    await client.create_queue("jobs", rewind=60)

    with pytest.raises(QueueDiffers) as caught:
        await client.ensure_queue("jobs", rewind=90, max_checks=3, transactional=True)

    assert caught.value.difference == {"rewind": (60.0, 90.0), "max_checks": (15, 3), "transactional": (False, True)}


async def test_peek_chooses_by_state(client: Client, server: LocalServer) -> None:
    queue = await _deleted(server, client, b"deleted")
    await queue.send(b"active")
    await queue.send(b"delayed", delay=60)

    assert [one.body for one in await queue.peek()] == [b"active", b"delayed"]
    assert [(one.body, one.state) for one in await queue.peek(states=["rewindable"])] == [(b"deleted", "rewindable")]
    assert [one.body for one in await queue.peek(states=("delayed",))] == [b"delayed"]
