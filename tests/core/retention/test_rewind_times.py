"""Allowed times of a rewind, and the search for the first message."""

import pytest

from cmqd.core.domain_errors import QueueDeleted, TimeNotRewindable
from cmqd.core.outcome import WAITING
from cmqd_types.queues import Rewound
from support.core.builders import START_MS, Rig, counts
from support.core.facts import queue_facts
from support.core.rewinds import HOUR_MS, ask, consume, refused, rewindable

# ---------------------------------------------------------------------- allowed times


def test_a_time_before_the_window_is_clamped_to_the_nearest():
    rig = rewindable(b"1", b"2", gap_ms=1000, rewind_ms=60_000)
    rig.now_ms = START_MS + 60_001

    assert rig.rewind(START_MS) == Rewound(messages=1, time_ms=START_MS + 1, clamped=True)
    assert rig.bodies() == [b"2"]


def test_strict_refuses_a_time_before_the_window_and_names_the_nearest():
    rig = rewindable(b"1", rewind_ms=60_000)
    rig.now_ms = START_MS + 60_001

    error = refused(rig, START_MS, strict=True)

    assert error.details["nearest_ms"] == START_MS + 1
    assert rig.rewind(START_MS + 1, strict=True) == Rewound(messages=0, time_ms=START_MS + 1, clamped=False)


def test_a_time_in_the_future_is_refused_and_now_is_not():
    rig = rewindable(b"1")

    assert refused(rig, rig.now_ms + 1).details["nearest_ms"] == rig.now_ms
    assert rig.rewind(rig.now_ms).messages == 0


@pytest.mark.parametrize("state", ["active", "in memory", "in flight", "delay ended"])
def test_a_time_later_than_the_oldest_unconsumed_message_is_refused_to_the_millisecond(state: str):
    rig = rewindable(b"1", b"2", b"3", b"4", gap_ms=2)
    rig.send(b"oldest", delay_ms=4000 if state == "delay ended" else None)
    oldest_ms = rig.now_ms
    for _ in range(3):
        rig.now_ms += 3
        rig.send(b"of the same step")
    rig.settle(5000)
    if state == "in flight":
        rig.receive()
    if state != "in memory":
        rig = rig.crash()

    error = refused(rig, oldest_ms + 1)

    assert error.details["nearest_ms"] == oldest_ms
    assert rig.rewind(oldest_ms).messages == 0
    assert rig.rewind(oldest_ms - 2).messages == 1


HIDDEN = ("half", "delayed", "delayed beyond max_delayed", "damaged")


def behind_a_message_that_is(state: str) -> Rig:
    """A message that no consumer can receive, and a second later two consumed messages."""
    rig = Rig()
    is_half = state == "half"
    rig.create(rewind_ms=HOUR_MS, transactional=is_half)
    if state == "delayed beyond max_delayed":
        rig.set(max_delayed=1)
        rig.send(b"takes the place", delay_ms=1_800_000)
    if is_half:
        rig.send_half(b"hidden")
    else:
        rig.send(b"hidden", delay_ms=1_800_000 if state.startswith("delayed") else None)
    if state == "damaged":
        rig.log.damaged.add((rig.queue().queue_id, 0))
        rig = rig.crash()
        assert rig.receive() == []
    rig.now_ms += 1000
    for body in (b"1", b"2"):
        if is_half:
            (half,) = rig.send_half(body)
            rig.end(1, half)
        else:
            rig.send(body)
        rig.now_ms += 1000
    consume(rig, 2)
    return rig


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("state", HIDDEN)
def test_a_message_that_no_consumer_can_receive_bounds_no_rewind(state: str, crashed: bool):
    rig = behind_a_message_that_is(state)
    if crashed and state != "damaged":
        rig = rig.crash()
    before = rig.counts()

    assert rig.rewind(START_MS + 2000) == Rewound(messages=1, time_ms=START_MS + 2000, clamped=False)

    assert rig.counts() == {**before, "active": 1, "rewindable": 1}
    assert rig.rewind(START_MS + 2000).messages == 0, "what came back bounds the next one, and no more than that"
    assert refused(rig, START_MS + 2001).details["nearest_ms"] == START_MS + 2000
    assert rig.bodies() == [b"2"]


@pytest.mark.parametrize("state", HIDDEN)
def test_a_message_that_no_consumer_can_receive_is_not_the_oldest_one_told(state: str):
    rig = behind_a_message_that_is(state)

    assert rig.queue().facts()["oldest_message_ms"] is None
    sent_ms = rig.now_ms
    rig.send(b"3") if state != "half" else rig.end(1, *rig.send_half(b"3"))
    assert rig.queue().facts()["oldest_message_ms"] == sent_ms


def test_a_delayed_message_bounds_a_rewind_from_the_end_of_its_delay_on():
    rig = behind_a_message_that_is("delayed")
    assert rig.rewind(START_MS + 2000).messages == 1
    consume(rig, 1)

    rig.settle(1_800_000)

    assert refused(rig, START_MS + 2000).details["nearest_ms"] == START_MS


def test_an_oldest_message_that_cannot_be_read_is_taken_as_late_as_it_may_be():
    rig = rewindable(b"1", b"2")
    rig.send(b"oldest")
    rig.log.damaged.add((rig.queue().queue_id, 2))
    rig = rig.crash()

    assert rig.rewind(START_MS).messages == 2


def test_with_an_unconsumed_message_from_before_the_window_its_start_is_allowed_and_nothing_later():
    rig = Rig()
    rig.create(rewind_ms=10_000)
    rig.send(b"left")
    rig.receive(visibility_timeout_ms=43_200_000)
    rig.now_ms += 20_000
    rig.send(b"1")
    consume(rig, 1)
    rig.now_ms += 5000

    error = refused(rig, rig.now_ms - 5000)
    nearest_ms = error.details["nearest_ms"]

    assert nearest_ms == rig.now_ms - 10_000
    assert rig.rewind(nearest_ms, strict=True) == Rewound(messages=1, time_ms=nearest_ms, clamped=False)


# ---------------------------------------------------------------------- during the search for the boundary


def halfway(rewind_ms: int = HOUR_MS) -> Rig:
    """A rewind to the fourth of nine messages of a time step, waiting for a page; its waiter is 99."""
    rig = rewindable(*[b"%d" % number for number in range(9)], gap_ms=10, rewind_ms=rewind_ms)
    assert ask(rig, 99, START_MS + 35) is WAITING
    assert len(rig.reads) == 1
    return rig


def test_what_is_sent_and_deleted_meanwhile_is_not_in_the_way():
    rig = halfway()
    rig.send(b"new", b"newer")
    rig.delete(*rig.handles(most=1))

    rig.answer_reads()

    assert rig.replies(99) == [Rewound(messages=6, time_ms=START_MS + 35, clamped=False)]
    assert rig.bodies() == [b"4", b"5", b"6", b"7", b"8", b"new", b"newer"]


def test_a_message_cleared_meanwhile_does_not_come_back():
    rig = halfway()
    rig.clear()
    rig.send(b"new")

    rig.answer_reads()

    assert rig.replies(99) == [Rewound(messages=0, time_ms=START_MS + 35, clamped=False)]
    assert rig.bodies() == [b"new"]


def test_another_rewind_meanwhile_takes_its_part():
    rig = halfway()
    (read,) = rig.reads
    assert ask(rig, 100, START_MS + 65) is WAITING
    while rig.reads != [read]:
        rig.answer(rig.reads[1])
    assert rig.replies(100) == [Rewound(messages=2, time_ms=START_MS + 65, clamped=False)]

    rig.answer_reads()

    assert rig.replies(99) == [Rewound(messages=3, time_ms=START_MS + 35, clamped=False)]
    assert rig.bodies() == [b"4", b"5", b"6", b"7", b"8"]


def test_a_queue_deleted_meanwhile_is_told():
    rig = halfway()
    rig.delete_queue()
    rig.create(rewind_ms=HOUR_MS)

    rig.answer_reads()

    (error,) = rig.replies(99)
    assert isinstance(error, QueueDeleted)
    assert rig.counts() == counts()


@pytest.mark.parametrize("on_again", [False, True])
def test_a_window_taken_away_meanwhile_is_told(on_again: bool):
    rig = halfway()
    rig.set(rewind_ms=0)
    if on_again:
        rig.set(rewind_ms=HOUR_MS)

    rig.answer_reads()

    (reply,) = rig.replies(99)
    assert (
        reply == Rewound(messages=0, time_ms=START_MS + 35, clamped=False)
        if on_again
        else isinstance(reply, TimeNotRewindable)
    )
    assert rig.counts() == counts()


def test_a_cancelled_rewind_does_nothing():
    rig = halfway()
    assert rig.broker.cancel_receive(99)

    rig.answer_reads()

    assert rig.replies(99) == []
    assert rig.counts() == counts(rewindable=9)


def test_messages_that_leave_the_window_meanwhile_do_not_come_back_then_or_after_a_crash():
    rig = halfway(rewind_ms=60_000)
    rig.advance(60_200)
    rig.answer_reads()

    assert rig.replies(99) == [Rewound(messages=0, time_ms=START_MS + 35, clamped=False)]
    again = rig.crash()
    again.settle()
    assert again.counts() == counts()


@pytest.mark.parametrize("damaged", range(9))
def test_a_message_that_cannot_be_read_does_not_hide_the_boundary(damaged: int):
    rig = rewindable(*[b"%d" % number for number in range(9)], gap_ms=10)
    rig.log.damaged.add((rig.queue().queue_id, damaged))

    rig.rewind(START_MS + 35)
    assert queue_facts(rig.crash().queue()) == queue_facts(rig.queue())

    assert rig.bodies() == [b"%d" % number for number in range(4, 9) if number != damaged]


def test_if_none_can_be_read_all_of_the_step_come_back_as_damaged():
    rig = rewindable(*[b"%d" % number for number in range(3)], gap_ms=10)
    rig.log.damaged.update((rig.queue().queue_id, position) for position in range(3))

    rig.rewind(START_MS + 15)

    assert rig.receive() == []
    assert rig.counts() == counts(damaged=3)
