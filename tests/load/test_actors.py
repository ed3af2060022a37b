"""Producers, consumers and their counts: slots, lost connections, and bounds."""

from collections.abc import Callable
from typing import Any

import pytest

from cmqd_load import producers
from cmqd_load.consumers import Consumer, EachConsumer
from cmqd_load.failures import RequestFailed
from cmqd_load.producers import NOT_SENT, OpenSender, Producer
from cmqd_load.tally import MAX_KINDS, OTHER_KINDS, Gate, Quota, Tally
from cmqd_load.wire import SendTemplate, random_body, stamp_of
from cmqd_protocol.messages import (
    DeleteMessages,
    Error,
    HandleFailure,
    HandlesDone,
    MessagesReceived,
    MessagesSent,
    ReceiveMessages,
    SendMessages,
    encoder,
)
from cmqd_types.messages import ReceivedMessage
from support.bench.load_connection import FakeConnection, received


def kept_in(calls: list[Any]) -> Callable[..., None]:
    """Return a timer that keeps the calls in a list."""

    def later(_seconds: float, *call: Any) -> None:
        calls.append(call)

    return later


def sends(connection: FakeConnection) -> list[SendMessages]:
    return [request for request in connection.take() if isinstance(request, SendMessages)]


def a_producer(connection: FakeConnection, tally: Tally, *queues: str, **options: Any) -> Producer:
    templates = [SendTemplate(queue, batch=2, size=16) for queue in queues]
    return Producer(connection, templates, tally, **options)  # pyright: ignore[reportArgumentType]


def an_open_sender(connections: list[FakeConnection], tally: Tally, **options: Any) -> OpenSender:
    return OpenSender(connections, tally, **options)  # pyright: ignore[reportArgumentType]


TEMPLATE = SendTemplate("q", batch=1, size=16)


async def test_a_producer_keeps_its_depth_under_way_and_takes_its_queues_in_turn() -> None:
    connection, tally = FakeConnection(), Tally()
    a_producer(connection, tally, "a", "b", depth=3).start()

    first = sends(connection)
    connection.answer(MessagesSent(2, [1, 2]))
    (second,) = sends(connection)

    assert [(send.request_id, send.queue) for send in first] == [(1, "a"), (2, "b"), (3, "a")]
    assert (second.request_id, second.queue) == (2, "b")
    assert (tally.sent, tally.latency.count) == (2, 1)


async def test_a_producer_sends_on_a_new_connection_what_is_under_way_and_nothing_else() -> None:
    old, new, gate = FakeConnection(), FakeConnection(), Gate(2)
    producer = a_producer(old, Tally(), "q", gate=gate, depth=2)
    producer.start()
    old.answer(MessagesSent(1, [1, 2]))  # the gate is full: slot 1 is parked

    producer.lose(old)  # pyright: ignore[reportArgumentType]
    producer.resume(new)  # pyright: ignore[reportArgumentType]
    resumed = [send.request_id for send in sends(new)]
    gate.consumed(2)

    assert resumed == [2]
    assert [send.request_id for send in sends(new)] == [1]


async def test_a_quota_ends_a_producer() -> None:
    connection, quota = FakeConnection(), Quota(4)
    a_producer(connection, Tally(), "q", quota=quota).start()

    for _ in range(2):
        (send,) = sends(connection)
        connection.answer(MessagesSent(send.request_id, [1, 2]))

    assert sends(connection) == []
    assert quota.done.is_set()


async def test_a_refused_request_of_an_open_loop_is_repeated_with_its_intended_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, tally = FakeConnection(), Tally()
    sender = an_open_sender([connection], tally)
    later: list[Any] = []
    monkeypatch.setattr(sender, "_later", kept_in(later))
    sender.send(TEMPLATE, 123)
    (refused,) = sends(connection)

    connection.answer(Error(refused.request_id, 600, "busy", "", retryable=True))
    ((repeat, *arguments),) = later
    repeat(*arguments)

    assert [stamp_of(send.bodies[0]) for send in sends(connection)] == [123]
    assert tally.errors == {"busy": 1}


async def test_an_open_loop_leaves_a_lost_connection_and_uses_the_next() -> None:
    first, second, third = FakeConnection(), FakeConnection(), FakeConnection()
    sender = an_open_sender([first, second], Tally(), depth=1)
    sender.send(TEMPLATE, 1)

    sender.lose(first)  # pyright: ignore[reportArgumentType]
    sender.send(TEMPLATE, 2)
    sender.send(TEMPLATE, 3)
    sent = [len(sends(connection)) for connection in (first, second)]
    sender.resume(third)  # pyright: ignore[reportArgumentType]

    assert sent == [1, 1]
    assert [stamp_of(send.bodies[0]) for send in sends(third)] == [3]


async def test_the_messages_that_wait_in_an_open_loop_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_WAITING", 2)
    tally = Tally()
    sender = an_open_sender([FakeConnection()], tally, depth=1)

    for intended in range(1, 6):
        sender.send(TEMPLATE, intended)

    assert tally.errors == {NOT_SENT: 2}


async def test_an_open_loop_without_consumers_measures_from_the_intended_time_to_the_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "monotonic_ns", lambda: 9_000_000)
    connection, tally = FakeConnection(), Tally()
    tally.since_ns = 2_000_000
    sender = an_open_sender([connection], tally, timed=True)

    for intended in (1_000_000, 2_000_000):  # the first is of the warm-up
        sender.send(TEMPLATE, intended)
        connection.answer(MessagesSent(sends(connection)[0].request_id, [1]))

    assert (tally.sent, tally.latency.count, tally.latency.maximum) == (2, 1, 7_000)


def a_consumer(connection: FakeConnection, tally: Tally, **options: Any) -> Consumer:
    return Consumer(connection, "q", 8, tally, **options)  # pyright: ignore[reportArgumentType]


async def test_a_tolerant_run_counts_deletes_that_fail_by_name_and_goes_on() -> None:
    connection, tally = FakeConnection(), Tally(is_tolerant=True)
    a_consumer(connection, tally).receive()
    connection.answer(received(1, 11, 12, 13))

    connection.answer(
        HandlesDone(2, [HandleFailure(11, 402, "not valid"), HandleFailure(12, 9999, "of a newer server")])
    )

    assert tally.errors == {"receipt_handle_invalid": 1, "error_9999": 1}
    assert tally.deleted == 1
    assert isinstance(connection.take()[-1], ReceiveMessages)


async def test_a_delete_that_is_refused_for_now_does_not_stop_a_tolerant_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, tally, gate = FakeConnection(), Tally(is_tolerant=True), Gate(10)
    gate.sent(1)
    consumer = a_consumer(connection, tally, gate=gate)
    later: list[Any] = []
    monkeypatch.setattr(consumer, "_later", kept_in(later))
    consumer.receive()
    connection.answer(received(1, 11))

    connection.answer(Error(2, 600, "busy", "", retryable=True))

    assert (tally.errors, gate.ahead, later) == ({"busy": 1}, 0, [(consumer.receive,)])


async def test_a_lost_connection_of_a_consumer_frees_the_gate_and_the_next_receives() -> None:
    old, new, gate = FakeConnection(), FakeConnection(), Gate(10)
    gate.sent(2)
    consumer = a_consumer(old, Tally(), gate=gate)
    consumer.receive()
    old.answer(received(1, 11, 12))

    consumer.lose(old)  # pyright: ignore[reportArgumentType]
    consumer.resume(new)  # pyright: ignore[reportArgumentType]

    assert gate.ahead == 0
    assert [type(request) for request in new.take()] == [ReceiveMessages]


async def test_the_latency_of_each_message_of_a_reply_counts_but_not_of_other_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cmqd_load.consumers.monotonic_ns", lambda: 10_000_000)
    connection, tally = FakeConnection(), Tally()
    tally.since_ns = 5_000_000
    consumer = EachConsumer(connection, "q", 8, tally)  # pyright: ignore[reportArgumentType]
    consumer.receive()
    bodies = [random_body(16, 4_000_000), random_body(16, 6_000_000), b"of another program", random_body(16, 9_000_000)]

    connection.answer(
        MessagesReceived(1, [ReceivedMessage(number, number, body, 0, 0, 0, 1) for number, body in enumerate(bodies)])
    )

    assert (tally.received, tally.latency.count) == (4, 2)
    assert (tally.latency.minimum, tally.latency.maximum) == (1_000, 4_000)
    assert isinstance(connection.take()[-1], DeleteMessages)


def test_kinds_of_errors_are_bounded_in_number_and_length() -> None:
    tally, total = Tally(), Tally()

    for number in range(MAX_KINDS + 10):
        tally.count_error(f"{'x' * 100}{number:03}"[-100:] + "y" * 1000)
        tally.count_error(f"kind {number}")
    total.add(tally)
    total.add(tally)

    assert len(tally.errors) <= MAX_KINDS + 1
    assert tally.errors[OTHER_KINDS] > 0
    assert max(map(len, tally.errors)) == 64
    assert total.refused == 2 * tally.refused == 4 * (MAX_KINDS + 10)


def test_a_refusal_for_good_keeps_the_servers_error() -> None:
    payload = encoder.encode(Error(1, 300, "queue_not_found", "no queue 'q'"))

    with pytest.raises(RequestFailed) as failed:
        Tally().refuse(payload, payload[2])

    assert failed.value.error is not None
    assert failed.value.error.name == "queue_not_found"
