"""Rewind, dead letters and redrive through the server."""

from typing import Any

from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire
from cmqd_types.messages import Origin
from support.server.server_rig import RigClient, ServerRig, code_of


async def consume(client: RigClient, queue: str) -> list[int]:
    """Receive and delete all active messages; returns the ids."""
    received = await client.receive(queue)
    handles = [message.receipt_handle for message in received]
    await client.expect(wire.HandlesDone, wire.DeleteMessages, queue, handles)
    return [message.message_id for message in received]


async def a_consumed_queue(rig: ServerRig) -> tuple[RigClient, list[int], list[int]]:
    """A client, the ids of four messages, sent 10 ms apart and deleted, and their times."""
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {"rewind_ms": 60_000})
    ids: list[int] = []
    times: list[int] = []
    for _ in range(4):
        ids += await client.send("jobs", b"x")
        times.append(rig.clock.now_ms())
        rig.clock.advance(10)
        await rig.turn()
    assert await consume(client, "jobs") == ids
    return client, ids, times


async def test_deleted_messages_come_back_from_a_time_on(rig: ServerRig) -> None:
    client, ids, times = await a_consumed_queue(rig)
    assert (await client.counts("jobs"))["rewindable"] == 4
    peek = wire.PeekMessages
    peeked = await client.expect(wire.MessagesPeeked, peek, "jobs", 16, 0, ["rewindable"])
    assert [(message.message_id, message.state) for message in peeked.messages] == [(one, "rewindable") for one in ids]
    assert (await client.expect(wire.MessagesPeeked, peek, "jobs")).messages == []

    rewound = await client.expect(wire.Rewound, wire.RewindQueue, "jobs", times[2])

    assert (rewound.messages, rewound.time_ms, rewound.clamped) == (2, times[2], False)
    received = await client.receive("jobs")
    assert [(message.message_id, message.receive_count) for message in received] == [(ids[2], 1), (ids[3], 1)]
    rig.check()


async def test_a_time_before_the_window_is_moved_or_refused(rig: ServerRig) -> None:
    client, ids, times = await a_consumed_queue(rig)
    nearest_ms = rig.clock.now_ms() - 60_000

    refused = await client.expect(wire.Error, wire.RewindQueue, "jobs", times[0] - 100_000, True)
    assert (refused.name, refused.retryable) == ("time_not_rewindable", False)
    assert refused.details is not None
    assert refused.details.pop("sentence")
    assert refused.details == {"field": "time_ms", "value": times[0] - 100_000, "nearest_ms": nearest_ms}
    rewound = await client.expect(wire.Rewound, wire.RewindQueue, "jobs", times[0] - 100_000)

    assert (rewound.messages, rewound.time_ms, rewound.clamped) == (len(ids), nearest_ms, True)


async def test_a_preview_counts_and_changes_nothing(rig: ServerRig) -> None:
    client, ids, times = await a_consumed_queue(rig)
    now_ms = rig.clock.now_ms()

    preview = await client.expect(wire.RewindPreview, wire.PreviewRewind, "jobs", times[2])
    ago = await client.expect(wire.RewindPreview, wire.PreviewRewind, "jobs", None, now_ms - times[1])
    window = await client.expect(wire.RewindPreview, wire.PreviewRewind, "jobs")

    assert (preview.messages, preview.time_ms, preview.clamped) == (2, times[2], False)
    assert (preview.earliest_ms, preview.latest_ms) == (now_ms - 60_000, now_ms)
    assert (ago.messages, ago.time_ms) == (3, times[1])
    assert (window.messages, window.time_ms) == (len(ids), now_ms - 60_000)
    assert (await client.counts("jobs"))["rewindable"] == len(ids)
    refused = await client.expect(wire.Error, wire.PreviewRewind, "jobs", now_ms + 1)
    assert refused.name == "time_not_rewindable"
    rig.check()


async def test_previews_that_read_the_log_are_bounded_and_all_answered(rig: ServerRig) -> None:
    client, _, times = await a_consumed_queue(rig)
    limit = rig.server.settings.max_unread_receives
    rig.log.hold_pages()
    asked = [client.begin(wire.PreviewRewind(client.next_id(), "jobs", times[1])) for _ in range(limit + 20)]
    await client.settle()

    assert len(rig.server.part(WaitingRequests)) == limit
    rig.log.let_pages_go()
    await client.settle()

    assert {getattr(client.replies[one], "messages", None) for one in asked} == {3}
    assert len(rig.server.part(WaitingRequests)) == 0


async def test_a_cancelled_preview_ends(rig: ServerRig) -> None:
    client, _, times = await a_consumed_queue(rig)
    rig.log.hold_pages()
    waiting = client.begin(wire.PreviewRewind(client.next_id(), "jobs", times[1]))
    await client.settle()

    client.cancel(waiting)
    rig.log.let_pages_go()
    await client.settle()

    assert code_of(client.replies[waiting]) == "cancelled"
    assert len(rig.server.part(WaitingRequests)) == 0


async def test_without_a_window_nothing_can_be_rewound(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})

    refused = await client.expect(wire.Error, wire.RewindQueue, "jobs", rig.clock.now_ms())

    assert refused.name == "time_not_rewindable"
    assert refused.details is not None
    assert refused.details["nearest_ms"] is None


async def begin_to_rewind(rig: ServerRig, client: RigClient, time_ms: int) -> int:
    """A rewind that waits for the log; the log is held."""
    rig.log.hold()
    for name in ("one", "two"):
        # A commit is under way with the first row; later rows are held back.
        client.begin(wire.CreateQueue(client.next_id(), name, {}))
        await rig.turn()
    request_id = client.begin(wire.RewindQueue(client.next_id(), "jobs", time_ms))
    await client.settle()
    assert request_id not in client.replies
    assert len(rig.server.part(WaitingRequests)) == 1
    return request_id


async def test_a_rewind_waits_for_the_log(rig: ServerRig) -> None:
    client, ids, times = await a_consumed_queue(rig)
    waiting = await begin_to_rewind(rig, client, times[1])

    rig.log.let_go()
    await client.settle()

    assert client.replies[waiting] == wire.Rewound(waiting, messages=3, time_ms=times[1], clamped=False)
    assert await consume(client, "jobs") == ids[1:]
    rig.check()


async def test_a_cancelled_rewind_has_changed_nothing(rig: ServerRig) -> None:
    client, _, times = await a_consumed_queue(rig)
    waiting = await begin_to_rewind(rig, client, times[1])

    client.cancel(waiting)
    rig.log.let_go()
    await client.settle()

    assert code_of(client.replies[waiting]) == "cancelled"
    assert await client.receive("jobs") == []
    assert len(rig.server.part(WaitingRequests)) == 0
    rig.check()


async def test_a_rewind_at_a_deleted_queue_ends(rig: ServerRig) -> None:
    client, _, times = await a_consumed_queue(rig)
    waiting = await begin_to_rewind(rig, client, times[1])

    client.begin(wire.DeleteQueue(client.next_id(), "jobs"))
    rig.log.let_go()
    await client.settle()

    assert code_of(client.replies[waiting]) == "queue_deleted"


async def test_a_client_that_is_gone_rewinds_nothing(rig: ServerRig) -> None:
    client, _, times = await a_consumed_queue(rig)
    await begin_to_rewind(rig, client, times[1])

    client.transport.lose()
    rig.log.let_go()
    await rig.turn()

    assert (await (await rig.client()).counts("jobs"))["active"] == 0
    rig.check()


async def test_a_decision_waits_for_a_page_and_cannot_be_cancelled(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "pay", {"transactional": True})
    (message_id,) = await client.send_half("pay", b"body")
    broker: Any = rig.broker
    (queue,) = broker.queues.values()
    window = broker.runtime.queues[queue.queue_id].window
    broker.runtime.budget.drop_half(queue.queue_id, window, list(window.half))
    rig.log.hold()
    for name in ("one", "two"):
        client.begin(wire.CreateQueue(client.next_id(), name, {}))
        await rig.turn()
    deciding = client.begin(wire.EndTransactions(client.next_id(), "pay", [message_id], [wire.COMMIT]))
    await client.settle()
    assert len(rig.server.part(WaitingRequests)) == 1

    client.cancel(deciding)
    await client.settle()
    assert deciding not in client.replies
    rig.log.let_go()
    await client.settle()

    assert client.replies[deciding] == wire.TransactionsEnded(deciding, [])
    assert [message.body for message in await client.receive("pay")] == [b"body"]
    rig.check()


async def test_dead_letters_and_their_way_back(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "dead", {})
    policy = {"dead_letter_queue": "dead", "dead_letter_max_receives": 1}
    made = await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", policy)
    assert made.attributes.items() >= policy.items()
    sources = await client.expect(wire.QueueList, wire.ListDeadLetterSources, "dead")
    assert (sources.total, sources.queues) == (1, [(made.queue_id, "jobs")])
    in_use = await client.expect(wire.Error, wire.DeleteQueue, "dead")
    assert (in_use.name, in_use.details) == ("dead_letter_queue_in_use", {"queue": "dead", "sources": ["jobs"]})

    (message_id,) = await client.send("jobs", b"x")
    sent_ms = rig.clock.now_ms()
    assert len(await client.receive("jobs")) == 1
    for _ in range(3):
        rig.clock.advance(30_000)
        await rig.tick()
    (dead,) = (await client.expect(wire.MessagesPeeked, wire.PeekMessages, "dead")).messages
    assert dead.origin == Origin("jobs", message_id, sent_ms, 1, "receives")

    assert code_of(await client.ask(wire.GetRedrive, "dead")) == "redrive_not_found"
    started = await client.expect(wire.RedriveStatus, wire.StartRedrive, "dead", None, 100)
    assert (started.queue, started.target, started.max_per_second, started.ended_ms) == ("dead", None, 100, None)
    assert (started.moved, started.remaining, started.missing_origins) == (0, 1, {})
    again = await client.expect(wire.Error, wire.StartRedrive, "dead")
    assert (again.name, again.details) == ("redrive_running", {"queue": "dead"})
    for _ in range(3):
        rig.clock.advance(1_000)
        await rig.tick()
    done = await client.expect(wire.RedriveStatus, wire.GetRedrive, "dead")
    assert (done.reason, done.moved, done.remaining) == ("done", 1, 0)
    (back,) = await client.receive("jobs")
    assert back.origin is not None
    assert (back.origin.queue, back.origin.message_id, back.origin.reason) == ("dead", dead.message_id, "redrive")
    assert (await client.expect(wire.RedriveStatus, wire.CancelRedrive, "dead")).reason == "done"
    rig.check()


async def test_a_send_under_a_dedup_id_is_stored_once(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    make = wire.SendMessages
    first = await client.expect(wire.MessagesSent, make, "jobs", [b"a"], None, None, 0, 0, ["order-1"])

    again = await client.expect(wire.MessagesSent, make, "jobs", [b"a"], None, None, 0, 0, ["order-1"])

    assert again.message_ids == first.message_ids
    assert len(await client.receive("jobs")) == 1
    long = await client.expect(wire.Error, make, "jobs", [b"a"], None, None, 0, 0, ["ä" * 40])
    assert (long.name, (long.details or {})["field"]) == ("invalid_argument", "dedup_ids")
