"""The load's actors on connections without sockets."""

from typing import Any

import pytest

from cmqd_bench.figures.measure import summary
from cmqd_bench.load.clients import Filler
from cmqd_load.consumers import Consumer
from cmqd_load.failures import RequestFailed
from cmqd_load.producers import OpenSender, Producer
from cmqd_load.tally import Gate, Quota, Tally
from cmqd_load.wire import SendTemplate
from cmqd_protocol.messages import (
    DeleteMessages,
    Error,
    HandleFailure,
    HandlesDone,
    MessagesSent,
    ReceiveMessages,
    SendMessages,
)
from support.bench.load_connection import FakeConnection, received


def a_producer(connection: FakeConnection, tally: Tally, gate: Gate | None = None) -> Producer:
    template = SendTemplate("q", batch=4, size=16)
    return Producer(connection, template, tally, gate)  # pyright: ignore[reportArgumentType]


def a_consumer(connection: FakeConnection, tally: Tally, **options: Any) -> Consumer:
    return Consumer(connection, "q", 8, tally, **options)  # pyright: ignore[reportArgumentType]


async def test_a_producer_has_one_send_outstanding():
    connection, tally = FakeConnection(), Tally()
    a_producer(connection, tally).send()

    (first,) = connection.take()
    connection.answer(MessagesSent(1, [1, 2, 3, 4]))

    assert isinstance(first, SendMessages)
    assert len(connection.take()) == 1
    assert tally.sent == 4
    assert tally.latency.count == 1


async def test_a_producer_that_is_too_far_ahead_waits_for_consumers():
    connection, tally, gate = FakeConnection(), Tally(), Gate(8)
    a_producer(connection, tally, gate).send()

    connection.answer(MessagesSent(1, [1, 2, 3, 4]))
    connection.answer(MessagesSent(1, [5, 6, 7, 8]))
    connection.take()
    gate.consumed(3)
    still_parked = connection.take()
    gate.consumed(1)

    assert still_parked == []
    assert len(connection.take()) == 1


async def test_a_refused_send_is_repeated_and_counted_and_a_failed_one_ends_the_run():
    connection, tally = FakeConnection(), Tally()
    a_producer(connection, tally).send()

    connection.answer(Error(1, 600, "busy", "", retryable=True, retry_after_ms=1))
    with pytest.raises(RequestFailed, match="queue_not_found: no queue"):
        connection.answer(Error(1, 300, "queue_not_found", "no queue 'q'"))

    assert (tally.refused, tally.sent) == (1, 0)


async def test_a_consumer_deletes_what_it_received_in_a_request_of_its_own_and_receives_again():
    connection, tally, gate = FakeConnection(), Tally(), Gate(100)
    gate.sent(2)
    a_consumer(connection, tally, gate=gate).receive()
    (receive,) = connection.take()
    assert isinstance(receive, ReceiveMessages)

    connection.answer(received(1, 11, 12))
    (delete,) = connection.take()
    assert isinstance(delete, DeleteMessages)
    connection.answer(HandlesDone(delete.request_id, []))

    assert delete.receipt_handles == [11, 12]
    assert connection.take() == [receive]
    assert (tally.received, tally.deleted, gate.ahead) == (2, 2, 0)


async def test_an_overlapping_consumer_sends_the_next_receive_with_the_delete():
    connection, tally = FakeConnection(), Tally()
    a_consumer(connection, tally, overlap=True).receive()
    connection.take()

    # The next receive is answered before the delete: two deletes are under way, with different ids.
    connection.answer(received(1, 11))
    connection.answer(received(1, 12, 13))
    deletes = [request for request in connection.take() if isinstance(request, DeleteMessages)]
    for delete in reversed(deletes):
        connection.answer(HandlesDone(delete.request_id, []))

    assert len({delete.request_id for delete in deletes}) == 2
    assert tally.deleted == 3
    assert connection.take() == []


async def test_request_ids_of_deletes_stay_small_and_are_used_in_turn():
    connection, tally = FakeConnection(), Tally()
    a_consumer(connection, tally).receive()
    ids: list[int] = []

    for handle in range(300):
        connection.take()
        connection.answer(received(1, handle))
        (delete,) = connection.take()
        ids.append(delete.request_id)
        connection.answer(HandlesDone(delete.request_id, []))

    assert set(ids) == set(range(2, 128))
    assert tally.deleted == 300


async def test_a_delete_that_fails_ends_the_run():
    connection = FakeConnection()
    a_consumer(connection, Tally()).receive()
    connection.answer(received(1, 11))

    with pytest.raises(RequestFailed, match="a delete failed: not valid"):
        connection.answer(HandlesDone(2, [HandleFailure(11, 402, "not valid")]))


async def test_consumers_stop_when_their_quota_is_deleted():
    connection, quota = FakeConnection(), Quota(2)
    a_consumer(connection, Tally(), quota=quota).receive()
    connection.answer(received(1, 11, 12))
    connection.take()

    connection.answer(HandlesDone(2, []))

    assert quota.done.is_set()
    assert connection.take() == []


async def test_an_empty_receive_is_made_again():
    connection, tally = FakeConnection(), Tally()
    a_consumer(connection, tally).receive()
    connection.take()

    connection.answer(received(1))

    assert isinstance(connection.take()[0], ReceiveMessages)
    assert tally.empty == 1


async def test_a_filler_sends_exactly_what_it_was_told():
    connection, tally = FakeConnection(), Tally()

    def make_frame(request_id: int, count: int) -> bytes:
        return SendTemplate("q", batch=count, size=16).at(0, request_id)

    filler = Filler(
        [connection],  # pyright: ignore[reportArgumentType]
        make_frame,
        messages=10,
        batch=4,
        depth=2,
        tally=tally,
    )
    filler.start()
    sizes: list[int] = []
    for _ in range(10):
        for request in connection.take():
            assert isinstance(request, SendMessages)
            sizes.append(len(request.bodies))
            connection.answer(MessagesSent(request.request_id, [0] * len(request.bodies)))

    assert sizes == [4, 4, 2]
    assert filler.done.is_set()
    assert tally.sent == 10


async def test_an_open_sender_keeps_the_intended_time_of_late_sends():
    connection, tally = FakeConnection(), Tally()
    sender = OpenSender([connection], tally, depth=1)  # pyright: ignore[reportArgumentType]
    template = SendTemplate("q", batch=1, size=16)

    for intended in (100, 200, 300):
        sender.send(template, intended)
    stamps: list[int] = []
    while requests := connection.take():
        for request in requests:
            assert isinstance(request, SendMessages)
            stamps.append(int.from_bytes(request.bodies[0][8:16], "big"))
            connection.answer(MessagesSent(request.request_id, [1]))

    assert stamps == [100, 200, 300]
    assert tally.sent == 3


def a_round(cpu: float, p50: float, rss: float) -> dict[str, Any]:
    return {
        "messages_per_second": 1000 / cpu,
        "server_cpu_us_per_message": cpu,
        "latency_ms": {"p50": p50},
        "server_rss_mib": rss,
    }


def test_rounds_are_summed_up_as_best_cpu_median_latency_and_largest_memory():
    merged = summary([a_round(5, 1.0, 50), a_round(4, 3.0, 40), a_round(6, 2.0, 60)])

    assert merged["server_cpu_us_per_message"] == 4
    assert merged["messages_per_second"] == 250
    assert merged["latency_ms"] == {"p50": 2.0}
    assert merged["server_rss_mib"] == 60
