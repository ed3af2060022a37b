"""The offset of the wall clock as a fact, and a step of broker time that an operator asked for."""

import msgspec
import pytest

from cmqd.core.domain_errors import TimeNotRewindable
from cmqd.core.facts.queues import LEASE_BUCKET_MS
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.records import ClockOffset
from support.core import alone
from support.core.builders import ACCOUNT, START_MS, Rig, counts, reread
from support.core.facts import facts
from support.core.rewinds import consume

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
RETENTION_MS = 48 * HOUR_MS


def set_offset(rig: Rig, offset_ms: int) -> None:
    rig.done(rig.broker.set_clock_offset(offset_ms, rig.now_ms))


# ---------------------------------------------------------------------- the fact


def test_a_log_without_a_record_has_no_offset():
    rig = Rig()
    rig.create()

    assert rig.crash().broker.facts.clock_offset_ms == 0


def test_the_offset_is_a_record_and_survives_a_crash_and_a_checkpoint():
    rig = Rig()
    rig.create()
    before = rig.checkpoint()
    set_offset(rig, -YEAR_MS)
    set_offset(rig, -YEAR_MS + 5)
    after = rig.checkpoint()

    for again in (rig.crash(), rig.crash_after(reread(before)), rig.crash_after(reread(after))):
        assert again.broker.facts.clock_offset_ms == -YEAR_MS + 5
        assert facts(again.broker) == facts(rig.broker)


def test_a_checkpoint_of_an_older_version_has_no_offset():
    header = Rig().checkpoint()[0]
    older = msgspec.msgpack.encode(list(msgspec.msgpack.decode(msgspec.msgpack.encode(header)))[:6])

    assert msgspec.msgpack.decode(older, type=AnyPart) == header


def test_an_offset_changes_no_message():
    rig = Rig()
    rig.create(rewind_ms=HOUR_MS)
    rig.send(b"1", b"2")
    rig.receive(most=1)
    before = facts(rig.broker)

    set_offset(rig, 8 * HOUR_MS)

    assert facts(rig.broker) == before | {"clock offset": 8 * HOUR_MS}


# ---------------------------------------------------------------------- a step back


def send_named(rig: Rig, body: bytes, dedup_id: str) -> None:
    rig.done(alone.send(rig.broker, ACCOUNT, "q", [body], None, None, 0, 0, rig.now_ms, [dedup_id]))


def a_year_ahead() -> Rig:
    """A queue with messages in several states, of a broker with a clock a year ahead."""
    rig = Rig()
    rig.now_ms += YEAR_MS
    rig.create(rewind_ms=HOUR_MS, retention_ms=RETENTION_MS, max_delayed=1)
    rig.send(b"rewindable")
    consume(rig, 1)
    rig.now_ms += 1000
    rig.send(b"leased")
    rig.receive(visibility_timeout_ms=12 * HOUR_MS)
    rig.send(b"delayed", delay_ms=HOUR_MS)
    rig.send(b"delayed too", delay_ms=HOUR_MS)
    rig.send(b"numbered", session=7, sequence=1)
    send_named(rig, b"named", "one")
    rig.now_ms += 1000
    return rig


def test_what_is_sent_after_a_step_back_has_the_new_time():
    rig = a_year_ahead().crash(step_to_ms=START_MS)

    rig.send(b"new")

    last = rig.queue().index.next_position - 1
    assert rig.log.stored[rig.queue().queue_id, last].enqueue_ms == START_MS
    assert rig.queue().index.steps.sent_by(last) == START_MS


def test_leases_end_within_the_longest_timeout_and_delays_within_the_longest_delay():
    rig = a_year_ahead().crash(step_to_ms=START_MS)
    rig.settle()
    assert rig.counts() == counts(active=2, in_flight=1, delayed=2, rewindable=1)

    rig.settle(HOUR_MS - 100)
    assert rig.counts()["delayed"] == 2
    rig.settle(200)
    assert rig.counts()["delayed"] == 1, "the one that had no place among the delayed has it from now on"
    rig.settle(HOUR_MS + 200)
    assert rig.counts()["delayed"] == 0
    rig.settle(10 * HOUR_MS - 1000)
    assert rig.counts()["in_flight"] == 1
    rig.settle(1000 + LEASE_BUCKET_MS)
    assert rig.counts()["in_flight"] == 0


def test_a_shorter_lease_is_left_as_it_is():
    rig = Rig()
    rig.create()
    rig.now_ms += HOUR_MS
    rig.send(b"1")
    (message,) = rig.receive(visibility_timeout_ms=60_000)
    rig = rig.crash(step_to_ms=START_MS)

    (held,) = rig.queue().index.leases.by_number.values()

    assert held.deadline_ms == message.next_visible_ms


def test_retention_and_the_rewind_window_begin_anew():
    rig = a_year_ahead().crash(step_to_ms=START_MS)

    rig.settle(HOUR_MS - 1000)
    assert rig.counts()["rewindable"] == 1
    rig.settle(3000)
    assert rig.counts()["rewindable"] == 0
    rig.settle(RETENTION_MS - HOUR_MS - 10_000)
    assert rig.broker.live_in(rig.queue().queue_id, 0, 10) == 5
    rig.settle(10_000)
    assert rig.counts() == counts()


def test_a_rewind_goes_by_the_new_time_and_the_old_times_are_refused():
    rig = a_year_ahead().crash(step_to_ms=START_MS)
    for hours in (1, 1, 10):
        rig.settle(hours * HOUR_MS + 200)
    rig.set(rewind_ms=24 * HOUR_MS)
    consume(rig, 5)
    rig.now_ms += 1000
    rig.send(b"new")
    sent_ms = rig.now_ms
    consume(rig, 1)

    with pytest.raises(TimeNotRewindable, match="lies in the future"):
        rig.rewind(START_MS + YEAR_MS)
    assert rig.rewind(sent_ms).messages == 1
    assert rig.rewind(START_MS).messages == 5


def test_sessions_and_dedup_ids_are_forgotten_in_time():
    rig = a_year_ahead().crash(step_to_ms=START_MS)
    assert rig.broker.facts.promises.sessions.keys()
    assert rig.queue().has_dedup_ids

    rig.settle(rig.limits.dedup_life_ms + 20_000)
    assert not rig.queue().has_dedup_ids
    rig.settle(rig.limits.session_life_ms)

    assert not rig.broker.facts.promises.sessions.keys()


def test_published_messages_go_by_the_new_time_too():
    rig = Rig()
    rig.now_ms += YEAR_MS
    rig.create()
    rig.done(rig.broker.create_topic(ACCOUNT, "news", {}, rig.now_ms))
    rig.subscribe("q")
    rig.publish(b"old")
    rig = rig.crash(step_to_ms=START_MS)

    rig.publish(b"new")

    last = rig.queue().index.next_position - 1
    assert rig.queue().index.steps.sent_by(last) == START_MS
    (topic,) = rig.broker.topics.values()
    assert topic.last_enqueue_ms == START_MS


@pytest.mark.parametrize("when", ["before", "after", "later"])
def test_a_step_survives_a_crash_and_a_checkpoint_at_any_time(when: str):
    ahead = a_year_ahead()
    taken = reread(ahead.checkpoint())
    rig = ahead.crash(step_to_ms=START_MS)
    if when == "after":
        taken = reread(rig.checkpoint())
    rig.settle(1000)
    rig.send(b"new", session=7, sequence=2)
    send_named(rig, b"named", "two")
    rig.receive(most=16, visibility_timeout_ms=12 * HOUR_MS)
    rig.send(b"newer", delay_ms=HOUR_MS)
    if when == "later":
        taken = reread(rig.checkpoint())

    assert any(isinstance(record, ClockOffset) and record.stepped for _, record in rig.log.records())
    for again in (rig.crash(), rig.crash_after(taken)):
        assert facts(again.broker) == facts(rig.broker)
        steps, same = again.queue().index.steps, rig.queue().index.steps
        assert [steps.sent_by(position) for position in range(9)] == [same.sent_by(position) for position in range(9)]


def test_a_step_forward_changes_no_time():
    rig = a_year_ahead()
    before = facts(rig.crash().broker)

    stepped = rig.crash(step_to_ms=rig.now_ms + YEAR_MS)

    assert facts(stepped.broker) == before
