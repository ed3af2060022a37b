"""Peek (spec 2.3): look without receiving; touches no count, order or lease."""

from collections.abc import Sequence

import pytest

from cmqd.core.domain_errors import InvalidArgument
from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING, Waiting
from cmqd_types.messages import MessagesPeeked, PeekedMessage
from support.cases import each_case
from support.core.builders import ACCOUNT, START_MS, Rig, counts
from support.core.facts import facts
from support.core.invariants import check_broker

PEEKER = 1000


def peek(rig: Rig, start: int = 0, most: int = 16, states: Sequence[str] | None = None) -> MessagesPeeked:
    before = facts(rig.broker)
    reply = rig.done(rig.broker.peek(ACCOUNT, "q", PEEKER, start, most, rig.now_ms, states))
    if isinstance(reply, Waiting):
        seen = len(rig.replies(PEEKER))
        rig.answer_reads()
        *_, reply = rig.replies(PEEKER)
        assert len(rig.replies(PEEKER)) == seen + 1
    assert facts(rig.broker) == before
    return reply


def browse(rig: Rig, most: int = 16, states: Sequence[str] | None = None) -> list[PeekedMessage]:
    """All pages."""
    seen: list[PeekedMessage] = []
    start: int | None = 0
    while start is not None:
        page = peek(rig, start, most, states)
        seen.extend(page.messages)
        start = page.next_start
    return seen


@pytest.mark.parametrize("in_memory", [True, False])
def test_messages_of_every_state_are_shown_in_order_of_sending(in_memory: bool):
    rig = Rig()
    rig.create(max_delayed=1)
    rig.send(b"back", b"held", b"new", headers=[None, {"k": "v"}, None])
    rig.release(*rig.handles(most=1))
    rig.receive(most=2)
    rig.release(rig.broker.handles.handles(2, 1)[0])
    rig.send(b"late", b"later", delay_ms=[1000, 2000])

    seen = browse(rig if in_memory else rig.crash())

    assert [(one.body, one.state, one.receive_count, one.visible_ms) for one in seen] == [
        (b"back", "active", 2, 0),
        (b"held", "in_flight", 1, 0),
        (b"new", "active", 0, 0),
        (b"late", "delayed", 0, START_MS + 1000),
        (b"later", "delayed", 0, START_MS + 2000),
    ]
    assert seen[1].headers == {"k": "v"}


def test_pages_follow_one_another_until_there_is_no_more():
    rig = Rig()
    rig.create()
    rig.send(*[b"%d" % number for number in range(7)])

    assert [peek(rig, start, 3).next_start for start in (0, 3, 6, 7)] == [3, 6, None, None]
    assert [one.body for one in browse(rig, 3)] == [b"%d" % number for number in range(7)]


def test_an_empty_queue_shows_nothing():
    rig = Rig()
    rig.create()

    assert peek(rig) == MessagesPeeked(messages=[], next_start=None)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_page_stops_before_its_limit_of_bodies_and_headers(in_memory: bool):
    rig = Rig(Limits(max_batch_bytes=1000))
    rig.create()
    for _ in range(5):
        rig.send(bytes(200), headers=[{"name": "v" * 196}])
    if not in_memory:
        rig = rig.crash()

    assert len(peek(rig).messages) == 2
    assert len(browse(rig)) == 5


def test_a_message_larger_than_the_limit_is_shown_alone():
    rig = Rig(Limits(max_batch_bytes=100))
    rig.create()
    rig.send(bytes(300))
    rig.send(bytes(300))

    assert len(browse(rig)) == 2
    assert len(browse(rig.crash())) == 2


def test_unreadable_messages_are_left_out():
    rig = Rig()
    queue = rig.create()
    rig.send(b"1", b"2", b"3")
    rig.log.damaged.update({(queue.queue_id, 1), (queue.queue_id, 2)})

    assert [one.body for one in browse(rig.crash(), 1)] == [b"1"]


def test_what_a_peek_cannot_read_is_counted_like_what_a_receive_cannot_read():
    rig = Rig()
    queue = rig.create(transactional=True, max_delayed=1)
    rig.send(b"1", b"2")
    rig.send(b"delayed", b"overflow", delay_ms=1000)
    rig.send_half(b"half", b"half")
    rig.log.damaged.update((queue.queue_id, position) for position in range(1, 6))
    cold = rig.crash()
    cold.done(cold.broker.peek(ACCOUNT, "q", PEEKER, 0, 16, cold.now_ms))

    (read,) = cold.reads
    found = cold.answer(read)
    again = cold.done(cold.broker.peek(ACCOUNT, "q", PEEKER, 0, 16, cold.now_ms)), cold.answer(cold.reads[0])

    assert found == 4
    assert again == (WAITING, 0)
    assert cold.counts() == counts(active=1, delayed=1, half=2, damaged=2)
    check_broker(cold.broker)
    assert cold.bodies() == [b"1"]


def damaged_in_flight() -> tuple[Rig, int]:
    """A message in flight that a peek found to be damaged, beside a healthy one in flight; the handle of the first."""
    rig = Rig()
    queue = rig.create()
    rig.send(b"1", b"2")
    handle, _ = rig.handles(visibility_timeout_ms=1000)
    rig.log.damaged.add((queue.queue_id, 0))
    rig.done(rig.broker.peek(ACCOUNT, "q", PEEKER, 0, 16, rig.now_ms))
    assert rig.answer(rig.reads[0]) == 1
    return rig, handle


def test_a_damaged_message_in_flight_is_counted_as_damaged_and_set_aside_when_its_lease_ends():
    rig, _ = damaged_in_flight()

    assert rig.counts() == counts(in_flight=1, damaged=1)
    rig.done(rig.broker.peek(ACCOUNT, "q", PEEKER, 0, 16, rig.now_ms))
    assert rig.answer(rig.reads[0]) == 0, "counted once"
    check_broker(rig.broker)
    rig.advance(1000)
    assert rig.counts() == counts(active=1, damaged=1)
    assert rig.bodies() == [b"2"]
    check_broker(rig.broker)
    assert rig.crash().counts() == counts(active=1, in_flight=1)


def test_a_damaged_message_in_flight_can_be_deleted_released_and_cleared():
    rig, handle = damaged_in_flight()
    assert rig.delete(handle) == []
    assert rig.counts() == counts(in_flight=1)
    check_broker(rig.broker)

    rig, handle = damaged_in_flight()
    parts = rig.checkpoint()
    assert rig.release(handle) == []
    assert rig.counts() == counts(in_flight=1, damaged=1)
    check_broker(rig.broker)
    assert rig.crash_after(parts).counts() == counts(active=1, in_flight=1), "a restart forgets what cannot be read"

    rig, _ = damaged_in_flight()
    rig.clear()
    assert rig.counts() == counts()
    check_broker(rig.broker)


def test_messages_that_are_gone_when_the_page_comes_are_left_out():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    cold = rig.crash()
    cold.done(cold.broker.peek(ACCOUNT, "q", PEEKER, 0, 2, cold.now_ms))
    (read,) = cold.reads
    handles = [cold.broker.handles.handles(cold.broker.facts.numbers.next_lease, 1)[0]]
    assert cold.receive(most=1)
    cold.delete(*handles)

    if read in cold.reads:
        cold.answer(read)

    (reply,) = cold.replies(PEEKER)
    assert [one.body for one in reply.messages][-1:] == [b"2"]


def test_a_page_that_brings_nothing_is_asked_for_again_by_the_next_peek():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    cold = rig.crash()
    cold.done(cold.broker.peek(ACCOUNT, "q", PEEKER, 0, 2, cold.now_ms))

    cold.done(cold.broker.pages_read(cold.reads[0].read_id, [], [], cold.now_ms))

    assert cold.replies(PEEKER) == [MessagesPeeked(messages=[], next_start=0)]


def test_a_cancelled_peek_is_not_answered():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    cold = rig.crash()
    cold.done(cold.broker.peek(ACCOUNT, "q", PEEKER, 0, 2, cold.now_ms))
    cold.done(cold.broker.peek(ACCOUNT, "q", PEEKER + 1, 0, 2, cold.now_ms))

    assert cold.broker.cancel_receive(PEEKER + 1)
    cold.answer_reads()

    assert [waiter for waiter, _ in cold.woken] == [PEEKER]


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_expired_message_is_not_shown_even_if_no_tick_came_by(in_memory: bool):
    rig = Rig()
    rig.create(retention_ms=60_000)
    rig.send(b"1")
    rig.now_ms += 50
    rig.send(b"2")
    rig.now_ms += 59_949
    rig = rig if in_memory else rig.crash()
    assert [one.body for one in browse(rig)] == [b"1", b"2"]

    rig.now_ms += 1

    assert [one.body for one in browse(rig, 1)] == [b"2"]


def test_what_was_found_damaged_is_shown_if_it_can_be_read_again():
    rig = Rig()
    queue = rig.create(max_delayed=1)
    rig.send(b"1")
    rig.send(b"2", b"3", delay_ms=1000)
    rig.log.damaged.update({(queue.queue_id, 0), (queue.queue_id, 2)})
    cold = rig.crash()
    assert cold.receive() == []
    cold.advance(1020)
    cold.answer_reads()
    assert cold.counts()["damaged"] == 2
    cold.log.damaged.clear()

    assert [(one.body, one.state) for one in browse(cold)] == [(b"1", "active"), (b"2", "active"), (b"3", "delayed")]


# ---------------------------------------------------------------- states


def every_state() -> Rig:
    """Active 1 5 9, in flight 2 6, delayed 3 7 (for want of a place), half 4 8, rewindable 0 10."""
    rig = Rig()
    rig.create("q", transactional=True, rewind_ms=60_000, max_delayed=1)
    rig.send(b"0", b"1", b"2")
    handles = rig.handles(most=3)
    rig.delete(handles[0])
    rig.release(handles[1])
    rig.send(b"3", delay_ms=1000)
    rig.send_half(b"4")
    rig.send(b"5", b"6")
    spare = rig.handles(most=3)
    rig.release(*spare[:2])
    rig.send(b"7", delay_ms=1000)
    rig.send_half(b"8")
    rig.send(b"9", b"10")
    handles = rig.handles(most=4)
    rig.release(*handles[:3])
    rig.delete(handles[3])
    return rig


STATES = {
    "active": [b"1", b"5", b"9"],
    "in_flight": [b"2", b"6"],
    "delayed": [b"3", b"7"],
    "half": [b"4", b"8"],
    "rewindable": [b"0", b"10"],
}


@each_case("in_memory", [True, False])
@each_case("most", [1, 2, 16])
@each_case("chosen", range(1, 32))
def test_any_states_can_be_asked_for(chosen: int, most: int, in_memory: bool):
    rig = every_state()
    states = [state for bit, state in enumerate(STATES) if chosen >> bit & 1]
    expected = sorted((body, state) for state in states for body in STATES[state])

    seen = browse(rig if in_memory else rig.crash(), most, states)

    assert [(one.body, one.state) for one in seen] == sorted(expected, key=lambda one: int(one[0]))


def test_all_but_the_rewindable_are_shown_if_no_states_are_named():
    seen = browse(every_state())

    assert [one.body for one in seen] == [b"%d" % number for number in range(1, 10)]
    assert [one.visible_ms for one in seen if one.state == "half"] == [0, 0]


@pytest.mark.parametrize("states", [[], ["gone"], ["active", "half", ""]])
def test_states_that_do_not_exist_are_refused(states: list[str]):
    rig = every_state()

    with pytest.raises(InvalidArgument, match="states"):
        peek(rig, states=states)


def test_what_changes_its_state_while_its_page_is_read_is_shown_only_if_asked_for():
    rig = every_state().crash()
    rig.done(rig.broker.peek(ACCOUNT, "q", PEEKER, 0, 16, rig.now_ms, ["delayed"]))
    (read,) = rig.reads
    rig.now_ms += 1020
    rig.tick()

    rig.answer(read)

    (reply,) = rig.replies(PEEKER)
    assert [one.body for one in reply.messages] == [b"7"]


def test_what_can_be_rewound_no_more_is_not_shown():
    rig = every_state()
    rig.now_ms += 60_000
    assert len(browse(rig, states=["rewindable"])) == 2

    rig.now_ms += 1

    assert browse(rig, states=["rewindable"]) == []


def test_states_far_apart_are_looked_for_in_stretches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd.core.operations.receiving.peek.STRETCH", 2)
    monkeypatch.setattr("cmqd.core.operations.receiving.peek.MOST_STRETCHES", 3)
    rig = Rig()
    rig.create()
    rig.send(b"first")
    rig.handles()
    rig.send(*[b"x"] * 20)
    held = rig.handles(most=20)
    rig.release(*held[:19])

    page = peek(rig, 1, 5, ["in_flight"])

    assert (page.messages, page.next_start) == ([], 7)
    assert [one.body for one in browse(rig, 5, ["in_flight"])] == [b"first", b"x"]
    assert [one.body for one in browse(rig, 5, ["half"])] == []
