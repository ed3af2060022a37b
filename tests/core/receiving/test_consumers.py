"""Consumers of queues: their figures, messages in flight and failures, and the bounds of the table."""

from typing import Any

import pytest

from cmqd.core.operations.queues import consumer_list
from cmqd.core.operations.queues.consumer_list import HIDDEN
from cmqd.core.runtime import consumers as bounds
from cmqd.core.runtime.consumers import EXAMINED, IDLE_MS, Consumer
from cmqd_segment.checkpoint import AnyPart
from cmqd_types.actors import NO_ACTOR, Actor
from cmqd_types.inspection import ConsumerInfo
from support.core.alone import Receive, Send
from support.core.builders import ACCOUNT, Rig, end_of

ANN = Actor(ACCOUNT, "AKIDann", "ann", "10.0.0.1")
BEN = Actor(ACCOUNT, "AKIDben", "ben", "10.0.0.2", "10.0.0.9")


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.create()
    return rig


def receive(rig: Rig, actor: Actor, most: int = 16, name: str = "q", wait_ms: int = 0, waiter: int = 1) -> Any:
    request = Receive(most, wait_ms)
    (reply,) = rig.done(rig.broker.receive_all(ACCOUNT, name, [request], [waiter], rig.now_ms, actors=[actor]))
    return [message.receipt_handle for message in reply] if isinstance(reply, list) else reply


def listed(rig: Rig, account: str | None = ACCOUNT, queue: str = "", search: str = "", **named: Any) -> Any:
    place: dict[str, Any] = {"offset": 0, "limit": 100, "now_ms": rig.now_ms} | named
    return end_of(rig.broker.list_consumers(account, queue, search, **place))


def consumers(rig: Rig, **named: Any) -> dict[str, ConsumerInfo]:
    return {info.name: info for info in listed(rig, **named)[1]}


def test_a_consumer_has_its_receives_messages_in_flight_and_failures(rig: Rig) -> None:
    rig.create("dlq")
    rig.set(dead_letter_queue="dlq", dead_letter_max_receives=10)
    rig.send(*[b"%d" % number for number in range(8)])
    start_ms = rig.now_ms
    handles = receive(rig, ANN, 6)
    rig.advance(1_000)
    assert len(receive(rig, BEN, 2)) == 2
    rig.done(rig.broker.delete_all(ACCOUNT, "q", [handles[:1]], rig.now_ms, [ANN]))
    rig.done(rig.broker.release(ACCOUNT, "q", handles[1:2], True, rig.now_ms, actor=ANN))
    rig.done(rig.broker.release(ACCOUNT, "q", handles[2:3], False, rig.now_ms, actor=ANN))
    rejecting = rig.ask(
        lambda waiter_id: rig.broker.dead_letter(ACCOUNT, "q", waiter_id, handles[3:4], ["no"], rig.now_ms, actor=ANN)
    )
    assert not rejecting.failures

    found = consumers(rig)

    ann, ben = found["ann"], found["ben"]
    assert (ann.queue, ann.secret_id, ann.host, ann.stated_by) == ("q", "AKIDann", "10.0.0.1", "")
    assert (ben.host, ben.stated_by) == ("10.0.0.2", "10.0.0.9")
    # One was given back and one rejected. The release that does not count is no failure.
    assert (ann.received, ann.in_flight, ann.failed, ann.waiting) == (6, 2, 2, 0)
    assert (ben.received, ben.in_flight, ben.failed, ben.waiting) == (2, 2, 0, 0)
    assert (ann.since_ms, ann.asked_ms, ann.last_receive_ms) == (start_ms, start_ms, start_ms)
    assert ben.last_receive_ms == start_ms + 1_000


def test_visibility_timeouts_are_failures_of_the_client_that_had_the_message(rig: Rig) -> None:
    rig.send(b"1", b"2", b"3")
    receive(rig, ANN, 2)
    receive(rig, BEN, 1)
    rig.advance(40_000)
    rig.settle()

    found = consumers(rig)

    assert [(found[name].failed, found[name].in_flight) for name in ("ann", "ben")] == [(2, 0), (1, 0)]


def test_receives_that_share_a_record_have_their_own_messages_in_flight(rig: Rig) -> None:
    rig.done(rig.broker.send_all(ACCOUNT, "q", [Send([b"%d" % number]) for number in range(5)], rig.now_ms, [ANN] * 5))
    requests = [Receive(2), Receive(1), Receive(2)]
    rig.done(rig.broker.receive_all(ACCOUNT, "q", requests, [1, 2, 3], rig.now_ms, actors=[ANN, BEN, ANN]))

    found = consumers(rig)

    assert [(found[name].received, found[name].in_flight) for name in ("ann", "ben")] == [(4, 4), (1, 1)]


def test_a_consumer_of_an_empty_queue_waits_and_counts_what_comes(rig: Rig) -> None:
    receive(rig, ANN, wait_ms=20_000, waiter=7)
    waiting = consumers(rig)["ann"]
    assert (waiting.waiting, waiting.received, waiting.last_receive_ms) == (1, 0, None)

    rig.advance(500)
    rig.send(b"1", b"2")

    served = consumers(rig)["ann"]
    assert (served.waiting, served.received, served.in_flight, served.last_receive_ms) == (0, 2, 2, rig.now_ms)


def test_a_client_that_is_gone_for_an_hour_is_listed_only_while_it_holds_messages(rig: Rig) -> None:
    rig.send(b"1")
    (handle,) = receive(rig, ANN)
    rig.hide(handle, timeout_ms=2 * IDLE_MS)
    receive(rig, BEN)
    rig.advance(IDLE_MS + 1)
    rig.settle()
    assert [info.name for info in listed(rig)[1]] == ["ann"]

    rig.delete(handle)

    assert listed(rig) == (0, [])
    assert rig.broker.parts.runtime.consumers.count(ACCOUNT) == 0


@pytest.mark.parametrize("is_checkpoint", [False, True])
def test_after_a_restart_the_clients_of_messages_in_flight_are_known(rig: Rig, is_checkpoint: bool) -> None:
    rig.send(*[b"%d" % number for number in range(9)])
    for actor, most in ((ANN, 2), (BEN, 3), (NO_ACTOR, 1), (ANN, 1)):
        receive(rig, actor, most)
        rig.advance(1_000)
    rig.settle()
    before = consumers(rig)
    again = rig.crash_after(rig.checkpoint()) if is_checkpoint else rig.crash()

    found = consumers(again)

    assert {name: info.in_flight for name, info in found.items()} == {"ann": 3, "ben": 3}
    assert [(found["ben"].secret_id, found["ben"].host, found["ben"].stated_by)] == [
        ("AKIDben", "10.0.0.2", "10.0.0.9")
    ]
    # Figures count since the start; the time is that of the newest message that the client holds.
    assert [(info.received, info.failed) for info in found.values()] == [(0, 0), (0, 0)]
    assert [found[name].last_receive_ms for name in found] == [before[name].last_receive_ms for name in found]
    receive(again, ANN, 1)
    again.answer_reads()
    assert (consumers(again)["ann"].received, consumers(again)["ann"].in_flight) == (1, 4)
    # Messages that time out are failures of their clients, if these ask again, and nobody holds them any more.
    receive(again, BEN, 1)
    again.advance(40_000)
    again.settle()
    assert (consumers(again)["ben"].failed, consumers(again)["ben"].in_flight) == (4, 0)


def test_a_client_keeps_its_number_while_checkpoints_have_a_lease_of_it(rig: Rig) -> None:
    rig.send(b"1")
    (handle,) = receive(rig, ANN)
    rig.hide(handle, timeout_ms=10 * IDLE_MS)
    actors = rig.broker.facts.actors
    parts: list[AnyPart] = []
    for _ in range(4):
        rig.advance(1_000)
        parts = list(rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms, rig.log.last_lsn))

    assert actors.known_number(ANN) == 1
    assert consumers(rig.crash_after(parts))["ann"].in_flight == 1
    rig.delete(handle)
    for _ in range(3):
        list(rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms, rig.log.last_lsn))
    assert actors.known_number(ANN) == 0


def test_a_list_has_pages_searches_and_a_queue(rig: Rig) -> None:
    rig.create("other")
    for name in ("q", "other"):
        for actor in (BEN, ANN):
            receive(rig, actor, name=name)

    order = [("other", "ann"), ("other", "ben"), ("q", "ann"), ("q", "ben")]
    assert [(info.queue, info.name) for info in listed(rig)[1]] == order
    total, page = listed(rig, offset=1, limit=2)
    assert (total, [(info.queue, info.name) for info in page]) == (4, order[1:3])
    assert [info.queue for info in listed(rig, search="ben")[1]] == ["other", "q"]
    assert [info.queue for info in listed(rig, search="akidann")[1]] == ["other", "q"]
    assert [info.name for info in listed(rig, queue="q")[1]] == ["ann", "ben"]
    assert listed(rig, search="10.0.0.2")[0] == 2
    assert listed(rig, account="another") == (0, [])
    assert listed(rig, account=None)[0] == 4
    assert [info.queue for info in listed(rig, shows="q".__eq__)[1]] == ["q", "q"]


def test_hidden_hosts_are_neither_shown_nor_searched(rig: Rig) -> None:
    receive(rig, BEN)

    (info,) = listed(rig, shows_hosts=False)[1]

    assert (info.host, info.stated_by) == (HIDDEN, HIDDEN)
    assert listed(rig, shows_hosts=False, search="10.0.0.2")[0] == 0


def test_a_list_of_many_queues_is_made_in_steps(rig: Rig) -> None:
    for number in range(50):
        rig.create(f"many-{number}")
        receive(rig, ANN, name=f"many-{number}")

    steps = rig.broker.list_consumers(ACCOUNT, "", "", 0, 1_000, rig.now_ms, most_compared=10)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            total, page = end.value
            break
        count += 1

    assert (total, len(page)) == (50, 50)
    assert count >= 5


def test_clients_beyond_the_bounds_receive_and_are_not_listed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_OF_QUEUE", 2)
    monkeypatch.setattr(bounds, "MAX_OF_ACCOUNT", 3)
    rig.create("other")
    clients = [Actor(ACCOUNT, "AKIDann", f"client {number}") for number in range(4)]
    for name in ("q", "other"):
        for client in clients:
            receive(rig, client, name=name)

    assert [(info.queue, info.name) for info in listed(rig)[1]] == [
        ("other", "client 0"),
        ("q", "client 0"),
        ("q", "client 1"),
    ]
    rig.send(b"1")
    assert len(receive(rig, clients[3])) == 1
    # The room of a deleted queue is free again, and idle consumers make room for others.
    rig.delete_queue("other")
    rig.advance(IDLE_MS + 1)
    receive(rig, clients[2])
    assert [info.name for info in listed(rig)[1]] == ["client 2"]
    assert rig.broker.parts.runtime.consumers.count(ACCOUNT) == 1


def test_a_client_beyond_the_bound_costs_a_look_at_few_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients can invent names, and each receive of an unlisted client looks for room."""
    monkeypatch.setattr(bounds, "MAX_OF_QUEUE", 50)
    examined: list[Consumer] = []

    def is_idle(consumer: Consumer, now_ms: int) -> bool:
        examined.append(consumer)
        return bounds_is_idle(consumer, now_ms)

    bounds_is_idle = bounds.is_idle
    monkeypatch.setattr(bounds, "is_idle", is_idle)
    clients = [Actor(ACCOUNT, "AKIDann", f"client {number}") for number in range(80)]
    for client in clients:
        receive(rig, client)
    assert 0 < len(examined) <= 30 * EXAMINED
    assert len(listed(rig)[1]) == 50

    # The looks go through the whole table: the only idle consumer is found.
    rig.advance(IDLE_MS + 1)
    for client in clients[:31] + clients[32:50]:
        receive(rig, client)
    for client in clients[50:]:
        receive(rig, client)
    (queue,) = rig.broker.parts.runtime.queues.values()
    assert clients[31] not in queue.consumers
    assert len(queue.consumers) == 50


def test_an_idle_consumer_of_another_queue_makes_room_in_a_full_account(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_OF_ACCOUNT", 6)
    names = [f"queue-{number}" for number in range(3)]
    clients = [Actor(ACCOUNT, "AKIDann", f"client {number}") for number in range(4)]
    for name in names:
        rig.create(name)
        for client in clients[:2]:
            receive(rig, client, name=name)
    rig.advance(IDLE_MS + 1)
    # All but a consumer of the last queue still ask.
    for name in names:
        receive(rig, clients[0], name=name)
    for name in names[:2]:
        receive(rig, clients[1], name=name)

    # A call examines a queue, and an unlisted client asks again and again.
    for _ in range(3):
        receive(rig, clients[3], name="q")

    assert [(info.queue, info.name) for info in listed(rig)[1]] == [
        ("q", "client 3"),
        *[(name, client) for name in names[:2] for client in ("client 0", "client 1")],
        ("queue-2", "client 0"),
    ]
    receive(rig, clients[2], name="q")
    assert "client 2" not in consumers(rig)
    rig.delete_queue("queue-0")
    rig.delete_queue("queue-1")
    assert rig.broker.parts.runtime.consumers.count(ACCOUNT) == 2


def test_a_receive_that_is_refused_is_a_request_of_a_consumer(rig: Rig) -> None:
    receive(rig, ANN, most=0)

    assert consumers(rig)["ann"].asked_ms == rig.now_ms


def test_many_leases_and_waits_are_not_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_list, "COUNTED", 1)
    rig.send(b"1", b"2")
    receive(rig, ANN)
    for waiter in (11, 12):
        receive(rig, ANN, wait_ms=20_000, waiter=waiter)

    found = consumers(rig)["ann"]

    assert (found.in_flight, found.waiting) == (None, None)


def test_clients_without_a_key_are_not_listed(rig: Rig) -> None:
    receive(rig, NO_ACTOR)

    assert listed(rig) == (0, [])


def test_metrics_count_the_clients_that_asked_lately(rig: Rig) -> None:
    receive(rig, ANN)
    rig.advance(1_000)
    receive(rig, BEN)

    def count(since_ms: int) -> list[int | None]:
        page, _ = rig.broker.queue_metrics(ACCOUNT, ("", ""), 10, consumers_since_ms=since_ms)
        top = end_of(rig.broker.top_metrics(ACCOUNT, 10, consumers_since_ms=since_ms))
        assert [queue.consumers for queue in page] == [queue.consumers for queue in top.queues]
        return [queue.consumers for queue in page]

    assert count(0) == [2]
    assert count(rig.now_ms) == [1]
    assert count(rig.now_ms + 1) == [0]
