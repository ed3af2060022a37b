"""Rewinding: messages that stay rewindable, and messages that come back."""

import random

import pytest

from cmqd.core.domain_errors import DomainError
from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING
from cmqd_segment.records import QueueRewound
from cmqd_types.messages import ReceivedMessage
from cmqd_types.queues import Rewound
from support.cases import each_case
from support.core.builders import ACCOUNT, START_MS, Rig, counts
from support.core.busy_rig import replayed
from support.core.facts import facts, queue_facts
from support.core.invariants import check_broker
from support.core.rewinds import HOUR_MS, ask, consume, merged_in_replay, refused, rewindable

# ---------------------------------------------------------------------- messages that stay rewindable


def test_deleted_messages_stay_rewindable_while_their_production_time_is_within_the_window():
    rig = rewindable(b"1", b"2", gap_ms=5000, rewind_ms=10_000)
    first, second = range(2)

    rig.settle()
    assert rig.counts() == counts(rewindable=2)
    rig.settle(1100)
    assert list(rig.queue().index.rewindable) == [second]
    assert rig.broker.live_in(rig.queue().queue_id, first, first + 1) == 0
    rig.settle(5000)

    assert rig.counts() == counts()
    assert rig.broker.live_in(rig.queue().queue_id, 0, 2) == 0


def test_a_replay_with_coarser_time_steps_lets_go_of_the_same_messages(monkeypatch: pytest.MonkeyPatch):
    rig = merged_in_replay(monkeypatch)
    queue_id = rig.queue().queue_id

    assert replayed(rig.log.rows).queues[queue_id].index.rewindable == rig.queue().index.rewindable

    rig.now_ms += 1000
    rig.rewind(rig.now_ms - 5_500)
    again = replayed(rig.log.rows).queues[queue_id].index

    assert list(rig.queue().index.active) == list(range(254, 258))
    assert (again.active, again.rewindable) == (rig.queue().index.active, rig.queue().index.rewindable)


def test_it_does_not_matter_when_they_were_deleted():
    rig = Rig()
    rig.create(rewind_ms=10_000)
    rig.send(b"1")
    handles = rig.handles()
    rig.settle(9000)
    rig.delete(*handles)
    assert rig.counts()["rewindable"] == 1

    rig.settle(900)
    assert rig.rewind(START_MS + 1).messages == 0
    assert rig.rewind(START_MS).messages == 1


def test_one_deleted_after_its_window_is_not_rewindable():
    rig = Rig()
    rig.create(rewind_ms=10_000)
    rig.send(b"1")
    handles = rig.handles()
    rig.settle(10_001)
    rig.delete(*handles)

    assert rig.rewind(START_MS).messages == 0
    rig.settle(1000)
    assert rig.counts() == counts()


def test_an_old_message_deleted_late_leaves_with_its_own_window():
    rig = Rig()
    rig.create(rewind_ms=HOUR_MS)
    rig.send(b"old")
    (old,) = rig.handles(visibility_timeout_ms=43_200_000)
    rig.settle(HOUR_MS - 5000)
    rig.send(b"new")
    consume(rig, 1)
    rig.settle(2000)
    rig.delete(old)

    rig.settle(4100)

    assert list(rig.queue().index.rewindable) == [1], "what was planned for the new one was an hour later"


def test_never_longer_than_retention():
    rig = rewindable(b"1", rewind_ms=60_000, retention_ms=60_000)
    rig.settle(59_999 - 1)
    assert rig.rewind(START_MS).messages == 1
    consume(rig, 1)

    rig.settle(60_000)

    assert rig.rewind(rig.now_ms - 60_000).messages == 0
    assert rig.counts() == counts()


def test_retention_is_not_restarted_by_a_rewind():
    rig = rewindable(b"1", b"2", gap_ms=10_000, rewind_ms=60_000, retention_ms=60_000)
    rig.settle(30_000)
    rig.rewind(START_MS)

    rig.settle(10_100)

    assert rig.counts()["active"] == 1
    assert rig.bodies() == [b"2"]


def test_setting_the_window_to_0_drops_them_at_once():
    rig = rewindable(b"1", b"2")

    rig.set(rewind_ms=0)

    assert rig.counts() == counts()
    assert rig.broker.live_in(rig.queue().queue_id, 0, 2) == 0
    rig.set(rewind_ms=HOUR_MS)
    assert rig.rewind(START_MS).messages == 0


def test_without_a_window_deleted_messages_are_gone():
    rig = rewindable(b"1", rewind_ms=0)

    assert rig.counts() == counts()
    error = refused(rig, START_MS)
    assert error.details["nearest_ms"] is None


def test_cleared_messages_are_not_rewindable():
    rig = rewindable(b"1")
    rig.send(b"2")

    rig.clear()

    assert rig.rewind(START_MS).messages == 0
    assert rig.counts() == counts()


def test_expired_messages_are_not_rewindable():
    rig = Rig()
    rig.create(rewind_ms=60_000, retention_ms=60_000)
    rig.send(b"1")
    rig.settle(60_000)

    assert rig.rewind(START_MS).messages == 0
    assert rig.counts() == counts()


def test_rolled_back_messages_are_not_rewindable():
    rig = Rig()
    rig.create(rewind_ms=HOUR_MS, transactional=True)
    rolled_back, committed = rig.send_half(b"1", b"2")
    rig.end(2, rolled_back)
    rig.end(1, committed)
    consume(rig, 1)

    assert rig.rewind(START_MS).messages == 1
    assert rig.bodies() == [b"2"]


def test_dead_lettered_messages_are_not_rewindable():
    rig = Rig()
    rig.create("dlq")
    rig.create(rewind_ms=HOUR_MS, dead_letter_queue="dlq", dead_letter_max_receives=1)
    rig.send(b"1")
    rig.receive(visibility_timeout_ms=1000)
    rig.settle(1100)
    assert rig.counts("dlq")["active"] == 1

    assert rig.counts() == counts()
    assert rig.rewind(START_MS).messages == 0


# ---------------------------------------------------------------------- messages that come back


@each_case("cold", [False, True])
@each_case("first", range(12))
def test_every_message_produced_at_or_after_the_time_becomes_active_to_the_millisecond(first: int, cold: bool):
    # Steps of 100 ms: the twelve messages stand in two steps.
    rig = rewindable(*[b"%d" % number for number in range(12)], gap_ms=11)
    rig = rig.crash() if cold else rig

    just_after = rig.rewind(START_MS + 11 * first + 1)
    assert just_after == Rewound(messages=11 - first, time_ms=START_MS + 11 * first + 1, clamped=False)
    assert consume(rig, 11 - first) == [b"%d" % number for number in range(first + 1, 12)]
    just_at = rig.rewind(START_MS + 11 * first)
    assert just_at == Rewound(messages=12 - first, time_ms=START_MS + 11 * first, clamped=False)

    assert rig.counts() == counts(active=12 - first, rewindable=first)
    assert consume(rig, 12 - first) == [b"%d" % number for number in range(first, 12)]
    assert rig.receive() == []


def test_messages_of_one_millisecond_come_back_together():
    rig = rewindable(*[b"%d" % number for number in range(9)], gap_ms=0)

    rig.now_ms += 1
    assert rig.rewind(START_MS + 1).messages == 0
    assert rig.rewind(START_MS).messages == 9


def test_they_come_in_order_of_production_whatever_the_order_of_deletion():
    rig = Rig()
    rig.create(rewind_ms=HOUR_MS)
    for number in range(6):
        rig.send(b"%d" % number)
        rig.now_ms += 5
    handles = rig.handles()
    for at in (4, 0, 5, 2, 1, 3):
        rig.delete(handles[at])

    rig.rewind(START_MS + 5)

    assert rig.bodies() == [b"1", b"2", b"3", b"4", b"5"]


def test_rewound_messages_stand_before_later_sends():
    rig = rewindable(b"1", b"2", gap_ms=500)
    rig.send(b"3")
    rig.now_ms += 1

    rig.rewind(START_MS)

    assert rig.bodies() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("kept", [3, 1000])
def test_what_is_in_memory_is_delivered_once_and_behind_what_comes_back(kept: int):
    # The window holds the backlog of newer messages; the rewound messages are in the log alone.
    rig = rewindable(
        *[b"a%d" % number for number in range(10)], limits=Limits(page_messages=4, window_bytes=330 * kept)
    )
    rig.send(*[b"b%d" % number for number in range(10)])

    assert rig.rewind(START_MS + 3).messages == 7
    rig.send(*[b"c%d" % number for number in range(5)])

    expected = [b"a%d" % number for number in range(3, 10)]
    expected += [b"b%d" % number for number in range(10)] + [b"c%d" % number for number in range(5)]
    got: list[bytes] = []
    while messages := rig.receive(most=3):
        got += [message.body for message in messages]
        check_broker(rig.broker)
    assert got == expected


def test_a_page_under_way_when_a_rewind_happens_does_not_upset_the_order():
    rig = rewindable(*[b"a%d" % number for number in range(6)], limits=Limits(page_messages=2))
    rig.send(*[b"b%d" % number for number in range(6)])
    rig = rig.crash()
    waiter, reply = rig.wait(most=1)
    assert reply is WAITING
    (page,) = rig.reads
    assert ask(rig, 99, START_MS) == Rewound(messages=6, time_ms=START_MS, clamped=False)

    rig.answer(page)
    rig.answer_reads()
    got = [message.body for message in rig.replies(waiter)[0]]
    while len(got) < 12:
        got += rig.bodies(most=1)

    assert got == [b"a%d" % number for number in range(6)] + [b"b%d" % number for number in range(6)]
    assert rig.receive() == []


def test_they_come_for_all_consumers_up_to_now():
    rig = rewindable(b"1", b"2", b"3")
    waiter_a, _ = rig.wait(most=2, wait_ms=10_000)
    waiter_b, _ = rig.wait(most=2, wait_ms=10_000)

    assert rig.rewind(START_MS).messages == 3
    rig.answer_reads()

    assert [message.body for message in rig.replies(waiter_a)[0]] == [b"1", b"2"]
    assert [message.body for message in rig.replies(waiter_b)[0]] == [b"3"]


def test_messages_in_the_backlog_or_in_flight_are_not_touched():
    rig = Rig()
    rig.create(rewind_ms=HOUR_MS)
    rig.send(b"0", b"1", b"2", b"3")
    handles = rig.handles(most=3)
    rig.delete(handles[0])
    in_flight = handles[1]

    assert rig.rewind(START_MS).messages == 1

    assert rig.counts() == counts(active=2, in_flight=2)
    assert rig.delete(in_flight) == []
    assert rig.bodies() == [b"0", b"3"]


def test_rewound_messages_keep_id_and_production_time_and_their_receive_count_starts_at_0():
    rig = Rig()
    rig.create(rewind_ms=HOUR_MS)
    (message_id,) = rig.send(b"1", headers=[{"a": "b"}])
    for _ in range(3):
        (message,) = rig.receive(visibility_timeout_ms=1000)
        rig.settle(1000)
    (message,) = rig.receive()
    assert message.receive_count == 4
    rig.delete(message.receipt_handle)

    rig.rewind(START_MS)
    for again in (rig.crash(), rig):
        (message,) = again.receive()

        assert (message.message_id, message.enqueue_ms, message.receive_count) == (message_id, START_MS, 1)
        assert message.first_receive_ms == again.now_ms
        assert message.headers == {"a": "b"}


def test_a_handle_from_before_means_nothing_afterwards():
    rig = Rig()
    rig.create(rewind_ms=HOUR_MS)
    rig.send(b"1")
    (old,) = rig.handles()
    rig.delete(old)
    rig.rewind(START_MS)
    (new,) = rig.handles()

    assert rig.delete(old) == [old]
    assert rig.delete(new) == []


def test_a_message_that_was_received_often_before_it_was_deleted_is_not_a_dead_letter():
    rig = Rig()
    rig.create("dlq")
    rig.force("dlq", max_backlog=0)
    rig.create(rewind_ms=HOUR_MS, dead_letter_queue="dlq", dead_letter_max_receives=1)
    rig.send(b"1")
    rig.receive(visibility_timeout_ms=1000)
    rig.advance(1000)
    rig.delete(*rig.handles())
    rig.rewind(START_MS)
    rig.force("dlq", max_backlog=10)

    rig.settle(5000)

    assert rig.counts("dlq")["active"] == 0
    assert rig.counts()["active"] == 1


def test_rewinding_again_simply_sets_the_time_anew():
    rig = rewindable(*[b"%d" % number for number in range(6)])
    assert rig.rewind(START_MS + 4).messages == 2
    assert rig.rewind(START_MS + 1).messages == 3
    assert rig.rewind(START_MS + 1).messages == 0
    assert consume(rig, 5) == [b"1", b"2", b"3", b"4", b"5"]

    assert rig.rewind(START_MS + 2).messages == 4
    assert consume(rig, 4) == [b"2", b"3", b"4", b"5"]


def test_a_rewind_may_exceed_the_backlog():
    rig = rewindable(b"1", b"2")
    rig.force(max_backlog=1)

    assert rig.rewind(START_MS).messages == 2
    assert rig.bodies() == [b"1", b"2"]


# ---------------------------------------------------------------------- after a crash


def test_a_rewind_survives_a_crash():
    rig = rewindable(*[b"%d" % number for number in range(6)])
    rig.rewind(START_MS + 2)
    again = rig.crash()

    assert facts(again.broker)["queues"] == facts(rig.broker)["queues"]
    assert again.bodies() == [b"2", b"3", b"4", b"5"]
    assert again.rewind(START_MS).messages == 2


def test_pruned_messages_do_not_come_back_after_a_crash():
    rig = rewindable(b"1", b"2", gap_ms=1000, rewind_ms=60_000)
    rig.set(rewind_ms=10_000)
    rig.settle(7000)
    rig.set(rewind_ms=60_000)
    assert rig.counts()["rewindable"] == 2
    rig.set(rewind_ms=8500)
    rig.set(rewind_ms=60_000)
    assert rig.rewind(START_MS).messages == 1

    again = rig.crash()

    assert queue_facts(again.queue()) == queue_facts(rig.queue())
    assert again.bodies() == [b"2"]
    assert again.rewind(START_MS).messages == 0


def test_segments_are_free_of_messages_pruned_before_a_crash():
    rig = rewindable(b"1", b"2", gap_ms=1000, rewind_ms=10_000)
    rig.settle(8500)
    queue_id = rig.queue().queue_id
    again = rig.crash()

    again.settle()

    assert [again.broker.live_in(queue_id, at, at + 1) for at in range(2)] == [0, 1]


def test_a_checkpoint_keeps_rewindable_messages():
    rig = rewindable(*[b"%d" % number for number in range(6)])
    parts = rig.checkpoint()
    rig.rewind(START_MS + 4)
    again = rig.crash_after(parts)

    assert facts(again.broker)["queues"] == facts(rig.broker)["queues"]
    assert again.rewind(START_MS + 1).messages == 3


# ---------------------------------------------------------------------- many


def test_a_million_messages_are_rewound_as_a_set(monkeypatch: pytest.MonkeyPatch):
    rig = Rig()
    queue = rig.create(rewind_ms=HOUR_MS)
    index = queue.index
    index.next_position = 1_000_000
    index.steps.note(0, START_MS)
    index.steps.note(500_000, START_MS + 10_000)
    index.last_enqueue_ms = START_MS + 10_000
    index.rewindable.add_range(0, 1_000_000)
    rig.now_ms += 20_000

    outcome = rig.broker.rewind(ACCOUNT, "q", 1, START_MS + 5000, False, rig.now_ms)

    assert outcome.reply == Rewound(messages=500_000, time_ms=START_MS + 5000, clamped=False)
    (record,) = outcome.records
    assert record == QueueRewound(queue.queue_id, 500_000, 1_000_000, rig.now_ms, 0)
    check_broker(rig.broker)


@each_case("seed", range(40))
def test_whatever_happens_in_between_nothing_is_lost_or_doubled_or_out_of_order(seed: int):
    """Sends, deletes, rewinds and crashes at random, pages answered at any time and in parts; against a plain list."""
    chance = random.Random(seed)
    rig = Rig(Limits(page_messages=3, page_bytes=40, window_bytes=chance.choice([700, 2000, 1_000_000])))
    rig.create(rewind_ms=HOUR_MS)
    sent: dict[bytes, int] = {}
    active: list[bytes] = []
    deleted: set[bytes] = set()
    waiter_id = 1000
    for _ in range(120):
        rig.now_ms += chance.choice([0, 1, 3, 40])
        match chance.randrange(6):
            case 0 | 1:
                bodies = [b"%04d" % (len(sent) + at) for at in range(chance.randint(1, 3))]
                rig.send(*bodies)
                sent.update((body, rig.now_ms) for body in bodies)
                active += bodies
            case 2 | 3:
                messages: list[ReceivedMessage] = rig.receive(most=chance.randint(1, 4))
                got = [message.body for message in messages]
                assert got == active[: len(got)]
                assert bool(got) == bool(active)
                del active[: len(got)]
                rig.delete(*[message.receipt_handle for message in messages]) if messages else None
                deleted.update(got)
            case 4:
                waiter_id += 1
                latest_ms = min((sent[body] for body in active), default=rig.now_ms)
                time_ms = chance.randint(latest_ms - 100, latest_ms)
                reply = ask(rig, waiter_id, time_ms)
                while reply is WAITING and not rig.replies(waiter_id):
                    if chance.random() < 0.3:
                        # Other reads are answered in between, and the rest of time goes on.
                        rig.now_ms += 1
                        rig.tick()
                    rig.answer(chance.choice(rig.reads), at_most=chance.choice([1, 2, 9]))
                reply = reply if reply is not WAITING else rig.replies(waiter_id)[0]
                back = {body for body in deleted if sent[body] >= time_ms}
                assert not isinstance(reply, DomainError)
                assert reply.messages == len(back)
                deleted -= back
                active = sorted([*active, *back])
            case _ if chance.random() < 0.3:
                rig = rig.crash()
            case _:
                if rig.reads:
                    rig.answer(chance.choice(rig.reads), at_most=chance.choice([1, 2, 9]))
        check_broker(rig.broker)
        assert rig.counts()["rewindable"] == len(deleted)
        assert rig.counts()["active"] == len(active)
    assert queue_facts(rig.crash().queue()) == queue_facts(rig.queue())
