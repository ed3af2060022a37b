"""Sends, receives and deletes of several clients in one call: every client gets the same as alone."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import (
    BacklogFull,
    DomainError,
    InvalidArgument,
    MessageTooLarge,
    QueueNotFound,
    TooManyInFlight,
)
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import Limits
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.outcome import WAITING, HandlesDone, Outcome, ReceivedAfterDeletes
from cmqd_segment.records import MessagesDeleted, MessagesReceived, MessagesSent
from cmqd_types.messages import ReceivedMessage
from support.cases import each_case
from support.core import alone as single
from support.core.alone import Receive, Send
from support.core.builders import ACCOUNT, NaiveLog, Rig
from support.core.facts import facts
from support.core.invariants import check_broker


def send_all(rig: Rig, *requests: Send, name: str = "q") -> list[Sequence[int] | DomainError]:
    return rig.done(rig.broker.send_all(ACCOUNT, name, requests, rig.now_ms))


def receive_all(rig: Rig, *requests: Receive, first_waiter: int = 1000) -> list[Any]:
    waiters = range(first_waiter, first_waiter + len(requests))
    return rig.done(rig.broker.receive_all(ACCOUNT, "q", requests, waiters, rig.now_ms))


def delete_all(rig: Rig, *requests: list[int]) -> list[Any]:
    return rig.done(rig.broker.delete_all(ACCOUNT, "q", requests, rig.now_ms))


def rig_with_queue(**attributes: Any) -> Rig:
    rig = Rig()
    rig.create(**attributes)
    return rig


# ---------------------------------------------------------------------- a single record


def test_neighbours_share_a_record() -> None:
    rig = rig_with_queue()
    before = rig.log.last_lsn

    first, second, third = send_all(rig, Send([b"a"], session=7, sequence=1), Send([b"b", b"c"]), Send([b"d"]))

    records = [record for _, record in rig.log.records() if isinstance(record, MessagesSent)]
    assert rig.log.last_lsn == before + 1
    assert [record.sizes for record in records] == [[1, 1, 1, 1]]
    assert records[0].numbered == [7, 1, first[0], 1]  # pyright: ignore[reportIndexIssue]
    assert [*first, *second, *third] == list(range(first[0], first[0] + 4))  # pyright: ignore
    assert rig.bodies() == [b"a", b"b", b"c", b"d"]


def test_the_record_of_a_lone_send_has_its_number_once() -> None:
    rig = rig_with_queue()

    send_all(rig, Send([b"a", b"b"], session=7, sequence=1))

    (record,) = [record for _, record in rig.log.records() if isinstance(record, MessagesSent)]
    assert (record.session, record.sequence, record.numbered) == (7, 1, [])


def test_receives_and_deletes_share_one_too() -> None:
    rig = rig_with_queue()
    rig.send(*[b"%d" % number for number in range(5)])

    got = receive_all(rig, Receive(2), Receive(1), Receive(16))
    handles = [[message.receipt_handle for message in messages] for messages in got]
    done = delete_all(rig, *handles)

    assert [[message.body for message in messages] for messages in got] == [[b"0", b"1"], [b"2"], [b"3", b"4"]]
    kinds = [type(record) for _, record in rig.log.records()]
    assert kinds.count(MessagesReceived) == kinds.count(MessagesDeleted) == 1
    assert [list(reply.failures) for reply in done] == [[], [], []]
    assert rig.counts()["active"] == rig.counts()["in_flight"] == 0


def test_waiting_receives_are_served_in_one_step_in_order() -> None:
    rig = rig_with_queue()
    waiters = [rig.wait(most=most, wait_ms=30_000)[0] for most in (1, 2, 16, 1)]

    send_all(rig, *[Send([b"%d" % number]) for number in range(5)])

    assert [(waiter, [message.body for message in messages]) for waiter, messages in rig.woken] == [
        (waiters[0], [b"0"]),
        (waiters[1], [b"1", b"2"]),
        (waiters[2], [b"3", b"4"]),
    ]
    assert sum(isinstance(record, MessagesReceived) for _, record in rig.log.records()) == 1
    assert rig.counts()["waiting_receives"] == 1


def test_a_waiting_receive_with_another_timeout_has_its_own() -> None:
    rig = rig_with_queue()
    for timeout_ms in (1_000, 1_000, 2_000):
        rig.wait(most=1, wait_ms=30_000, visibility_timeout_ms=timeout_ms)

    rig.send(b"1", b"2", b"3")

    assert [messages[0].next_visible_ms - rig.now_ms for _, messages in rig.woken] == [1_000, 1_000, 2_000]


# ---------------------------------------------------------------------- requests apart


def test_one_that_is_refused_hinders_none_of_the_others() -> None:
    rig = rig_with_queue(max_message_bytes=1024)

    replies = send_all(rig, Send([b"a"]), Send([bytes(1025)]), Send([]), Send([b"b"]))

    assert [type(reply) for reply in replies] == [range, MessageTooLarge, InvalidArgument, range]
    assert rig.bodies() == [b"a", b"b"]


def test_a_send_without_bodies_is_refused_beside_a_send_with_two() -> None:
    rig = rig_with_queue()

    replies = send_all(rig, Send([b"a", b"b"]), Send([]))

    assert [type(reply) for reply in replies] == [range, InvalidArgument]
    assert rig.bodies() == [b"a", b"b"]


def test_batches_within_all_limits_get_their_ids_in_order() -> None:
    rig = rig_with_queue()

    first, second, third = send_all(rig, Send([b"a", b"b"]), Send([b"c"]), Send([b"d", b"e"]))

    ids = [list(reply) for reply in (first, second, third) if not isinstance(reply, DomainError)]
    assert ids == [[ids[0][0] + offset for offset in offsets] for offsets in ((0, 1), (2,), (3, 4))]
    assert rig.bodies() == [b"a", b"b", b"c", b"d", b"e"]


def test_sends_that_fit_one_by_one_and_not_together_are_all_stored() -> None:
    rig = rig_with_queue(max_message_bytes=1024 * 1024)

    replies = send_all(rig, *[Send([bytes(500_000)]) for _ in range(3)])

    assert [len(reply) for reply in replies if not isinstance(reply, DomainError)] == [1, 1, 1]


def test_the_backlog_is_full_for_a_late_send() -> None:
    rig = rig_with_queue()
    rig.force(max_backlog=3)

    replies = send_all(rig, Send([b"a", b"b"]), Send([b"c", b"d"]), Send([b"e"]), Send([b"f"]))

    assert [type(reply) for reply in replies] == [range, BacklogFull, range, BacklogFull]
    assert rig.bodies() == [b"a", b"b", b"e"]


def test_a_repeat_over_another_connection_in_the_same_call_is_stored_once() -> None:
    rig = rig_with_queue()

    first, again, other = send_all(
        rig,
        Send([b"a"], session=7, sequence=1),
        Send([b"a"], session=7, sequence=1),
        Send([b"b"], session=7, sequence=2),
    )

    assert first == again != other
    assert rig.bodies() == [b"a", b"b"]
    assert send_all(rig, Send([b"a"], session=7, sequence=1), Send([b"b"], session=7, sequence=2)) == [first, other]
    assert rig.counts()["active"] == 0


def test_repeats_are_known_after_a_restart() -> None:
    rig = rig_with_queue()
    ids = send_all(rig, *[Send([b"%d" % number], session=number + 1, sequence=9) for number in range(3)])

    recovered = rig.crash()

    assert [recovered.send(b"%d" % number, session=number + 1, sequence=9) for number in range(3)] == [
        told(one) for one in ids
    ]
    assert recovered.counts()["active"] == 3


def test_a_handle_in_two_deletes_is_of_use_in_the_first() -> None:
    rig = rig_with_queue()
    rig.send(b"a", b"b")
    one, two = rig.handles()

    first, second, third = delete_all(rig, [one], [one, two], [])

    assert list(first.failures) == []
    assert [failure.receipt_handle for failure in second.failures] == [one]
    assert isinstance(third, InvalidArgument)
    assert rig.counts()["in_flight"] == 0


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("count", [0, 257])
def test_a_delete_with_a_wrong_number_of_handles_leaves_the_handles_of_the_others(place: int, count: int) -> None:
    rig = rig_with_queue()
    rig.send(b"a", b"b")
    one, two = rig.handles()
    requests = [[one], [two]]
    requests.insert(place, [one] * count)

    replies = delete_all(rig, *requests)

    assert isinstance(replies.pop(place), InvalidArgument)
    assert [(reply.done, list(reply.failures)) for reply in replies] == [(1, []), (1, [])]
    assert rig.counts()["in_flight"] == 0


@each_case("place", [0, 1, 2])
@each_case("bad", [Receive(0), Receive(257), Receive(1, wait_ms=-1), Receive(1, wait_ms=10**9)])
def test_a_refused_receive_leaves_the_others_their_messages(bad: Receive, place: int) -> None:
    rig = rig_with_queue()
    rig.send(b"a", b"b", b"c")
    requests = [Receive(1), Receive(1)]
    requests.insert(place, bad)

    replies = receive_all(rig, *requests)

    assert isinstance(replies.pop(place), InvalidArgument)
    assert [message.body for reply in replies for message in reply] == [b"a", b"b"]


def test_receives_that_find_nothing_wait_or_come_back_empty() -> None:
    rig = rig_with_queue()
    rig.send(b"a", b"b")

    replies = receive_all(rig, Receive(1), Receive(0), Receive(5), Receive(1), Receive(1, wait_ms=1_000))

    assert [type(reply) for reply in replies[:3]] == [list, InvalidArgument, list]
    assert [len(replies[0]), len(replies[2])] == [1, 1]
    assert replies[3:] == [[], WAITING]


def test_the_limit_in_flight_is_for_all_together() -> None:
    rig = Rig(Limits(max_in_flight=3))
    rig.create()
    rig.send(*[b"x"] * 5)

    replies = receive_all(rig, Receive(2), Receive(2), Receive(1))

    assert [len(reply) for reply in replies[:2]] == [2, 1]
    assert isinstance(replies[2], TooManyInFlight)


def test_a_list_of_delays_is_checked_though_it_is_empty() -> None:
    rig = rig_with_queue(delay_ms=60_000)

    replies = send_all(rig, Send([b"a"], delay_ms=[]), Send([b"b"], delay_ms=[]), Send([b"c"], delay_ms=0))

    assert [type(reply) for reply in replies] == [InvalidArgument, InvalidArgument, list]


def test_large_messages_are_shared_out_as_they_would_be_alone() -> None:
    rig = rig_with_queue(max_message_bytes=1_048_576)
    for number in range(12):
        rig.send(bytes([number]) * 300_000)

    replies = receive_all(rig, *[Receive(2)] * 6)

    assert [len(reply) for reply in replies] == [2] * 6


def test_receives_that_are_served_one_by_one_are_tried_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_with_queue(max_message_bytes=1_048_576)
    for number in range(6):
        rig.send(bytes([number]) * 600_000)
    tried: list[int] = []
    take = Serving.take

    def counted(serving: Serving, queue: Queue, wanted: Sequence[int], *rest: Any) -> list[ReceivedMessage] | None:
        tried.append(len(wanted))
        return take(serving, queue, wanted, *rest)

    monkeypatch.setattr(Serving, "take", counted)

    replies = receive_all(rig, *[Receive(1)] * 6)

    assert [len(reply) for reply in replies] == [1] * 6
    assert tried == [6, 1, 1, 1, 1, 1]


def test_a_queue_that_is_not_there_is_told_once() -> None:
    rig = Rig()
    for call in (send_all, receive_all, delete_all):
        with pytest.raises(QueueNotFound):
            call(rig, Send([b"a"]))  # pyright: ignore[reportArgumentType]


# ---------------------------------------------------------------------- the same as in sequence

sends = st.lists(
    st.one_of(
        st.builds(Send, st.lists(st.sampled_from([b"a", b"bb", bytes(1025)]), max_size=3)),
        st.builds(Send, st.just([b"n"]), session=st.integers(1, 2), sequence=st.integers(1, 4), delay_ms=st.just(0)),
        st.builds(Send, st.just([b"d"]), delay_ms=st.sampled_from([500, 4_000, 999_999_999])),
        st.builds(Send, st.just([b"h"]), headers=st.just([{"k": "v"}])),
        st.builds(Send, st.just([b"i"]), dedup_ids=st.sampled_from([["x"], ["y"], [None]])),
    ),
    max_size=6,
)
timeouts = st.sampled_from([None, 1_000, 2_000, -5])
acknowledged = st.lists(st.integers(0, 20), max_size=4)
receives = st.lists(
    st.one_of(
        st.builds(Receive, st.integers(-1, 4), st.sampled_from([0, -1]), timeouts),
        # A receive of several messages gets the messages of several sends, and not the first message alone.
        st.builds(Receive, st.just(1), st.sampled_from([None, 5_000]), timeouts),
        st.builds(Receive, st.integers(0, 4), st.just(0), timeouts, acknowledged),
        st.builds(Receive, st.just(1), st.sampled_from([None, 5_000]), timeouts, acknowledged),
    ),
    max_size=6,
)
deletes = st.lists(st.lists(st.integers(0, 20), max_size=4), max_size=5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), sends),
        st.tuples(st.just("receive"), receives),
        st.tuples(st.just("delete"), deletes),
        st.tuples(st.just("pass"), st.sampled_from([1, 600, 1_500])),
    ),
    max_size=12,
)


SMALL_WINDOW, WHOLE_WINDOW = 1_500, 1 << 20
"""Memory for some of the messages, and for all."""


def small(log: NaiveLog | None = None, window_bytes: int = SMALL_WINDOW) -> Rig:
    limits = Limits(max_in_flight=6, window_bytes=window_bytes, page_messages=2, max_batch_bytes=2_000)
    rig = Rig(limits, log=log)
    rig.create(max_message_bytes=1024, polling_wait_ms=1_000)
    rig.force(max_backlog=9)
    return rig


def told(reply: Any) -> Any:
    """A reply that can be compared."""
    if isinstance(reply, DomainError):
        return type(reply), reply.text
    if isinstance(reply, ReceivedAfterDeletes):
        return reply.deletes, told(reply.reply)
    return reply if reply is WAITING or isinstance(reply, HandlesDone) else list(reply)


def alone(rig: Rig, ask: Callable[[Broker], Outcome[Any]]) -> Any:
    """The reply to a request by itself, or its refusal."""
    try:
        return rig.done(ask(rig.broker))
    except DomainError as refusal:
        return refusal


def send_alone(rig: Rig, one: Send) -> Any:
    numbers = (one.session, one.sequence)
    return alone(
        rig,
        lambda broker: single.send(
            broker, ACCOUNT, "q", one.bodies, one.headers, one.delay_ms, *numbers, rig.now_ms, one.dedup_ids
        ),
    )


def receive_alone(rig: Rig, one: Receive, waiter: int) -> Any:
    return alone(
        rig,
        lambda broker: single.receive(
            broker,
            ACCOUNT,
            "q",
            waiter,
            one.max_messages,
            one.wait_ms,
            one.visibility_timeout_ms,
            rig.now_ms,
            one.acknowledge,
        ),
    )


def receive_each_alone(rig: Rig, requests: list[Receive], first_waiter: int) -> list[Any]:
    """The deletes of all requests by themselves, then the receives. A request that is not valid is refused whole."""
    deletes: list[Any] = []
    for number, one in enumerate(requests, first_waiter):
        handles = one.acknowledge
        is_valid = one.max_messages >= 1 and one.visibility_timeout_ms != -5 and handles
        if handles is None:
            deletes.append(None)
        elif is_valid:
            deletes.append(delete_alone(rig, handles))
        else:
            deletes.append(receive_alone(rig, one, number))
    replies: list[Any] = []
    for number, (one, done) in enumerate(zip(requests, deletes, strict=True), first_waiter):
        if isinstance(done, DomainError):
            replies.append(done)
            continue
        reply = receive_alone(rig, msgspec.structs.replace(one, acknowledge=None), number)
        replies.append(reply if done is None else ReceivedAfterDeletes(done, reply))
    return replies


def delete_alone(rig: Rig, handles: list[int]) -> Any:
    return alone(rig, lambda broker: single.delete(broker, ACCOUNT, "q", handles, rig.now_ms))


@pytest.mark.parametrize("window_bytes", [SMALL_WINDOW, WHOLE_WINDOW])
@given(steps=steps)
def test_deciding_together_equals_deciding_one_by_one(steps: list[tuple[str, Any]], window_bytes: int) -> None:
    together, one_by_one = small(window_bytes=window_bytes), small(window_bytes=window_bytes)
    handles: list[int] = [0]
    waiter = 0

    for step, asked in steps:
        replies: list[Any] = []
        expected: list[Any] = []
        if step == "pass":
            for rig in (together, one_by_one):
                rig.advance(asked)
        elif step == "send":
            replies = list(send_all(together, *asked))
            expected = [send_alone(one_by_one, one) for one in asked]
        elif step == "delete":
            chosen: list[list[int]] = [[handles[one % len(handles)] for one in some] for some in asked]
            replies = delete_all(together, *chosen)
            expected = [delete_alone(one_by_one, some) for some in chosen]
        else:
            waiter += 100
            chosen_requests: list[Receive] = [
                msgspec.structs.replace(
                    one,
                    acknowledge=one.acknowledge and [handles[each % len(handles)] for each in one.acknowledge],
                    # Messages for a waiting receive need no room in memory: of a batch more messages stay in a small
                    # window than of the same messages one by one, and a later receive gets more.
                    wait_ms=0 if window_bytes == SMALL_WINDOW and one.wait_ms != -1 else one.wait_ms,
                )
                for one in asked
            ]
            replies = receive_all(together, *chosen_requests, first_waiter=waiter)
            expected = receive_each_alone(one_by_one, chosen_requests, waiter)
            received: list[Any] = [
                reply.reply if isinstance(reply, ReceivedAfterDeletes) else reply for reply in replies
            ]
            handles += handles_of(
                reply for reply in received if reply is not WAITING and not isinstance(reply, DomainError)
            )
        assert list(map(told, replies)) == list(map(told, expected))
        for rig in (together, one_by_one):
            rig.answer_reads()
            check_broker(rig.broker)
        assert together.woken == one_by_one.woken
        handles += handles_of(messages for _, messages in together.woken)

    ours, theirs, recovered = facts(together.broker), facts(one_by_one.broker), facts(together.crash().broker)
    for one in (ours, theirs, recovered):
        # The count of reserved numbers depends on the count of requested numbers.
        del one["reserved"]
    assert ours == theirs == recovered


def handles_of(replies: Iterable[list[ReceivedMessage]]) -> list[int]:
    return [message.receipt_handle for messages in replies for message in messages]
