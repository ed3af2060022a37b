"""Delay (spec 2.4) and retention (2.5): messages as time passes."""

import pytest

from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING
from cmqd_segment.records import MessagesExpired
from support.core.builders import ACCOUNT, START_MS, Rig
from support.core.facts import check_lease_buckets, facts


def expiries(rig: Rig) -> list[MessagesExpired]:
    return [record for _, record in rig.log.records() if isinstance(record, MessagesExpired)]


def test_a_delayed_message_is_invisible_until_then_and_counted_apart():
    rig = Rig()
    rig.create()
    rig.send(b"1", delay_ms=1000)

    rig.advance(999)
    assert rig.receive() == []
    assert rig.counts()["delayed"] == 1
    rig.advance(1)

    assert rig.bodies() == [b"1"]


def test_the_default_delay_is_for_sends_that_name_none():
    rig = Rig()
    rig.create(delay_ms=1000)

    rig.send(b"default")
    rig.send(b"none", delay_ms=0)
    rig.send(b"own", b"zero", delay_ms=[2000, 0])

    assert rig.bodies() == [b"none", b"zero"]
    rig.advance(1000)
    assert rig.bodies() == [b"default"]
    rig.advance(1000)
    assert rig.bodies() == [b"own"]


def test_a_delay_is_never_more_than_a_bucket_late_and_survives_a_restart():
    rig = Rig()
    rig.create()
    rig.send(*[b"x"] * 50, delay_ms=[7 * number + 1 for number in range(50)])
    recovered = rig.crash()

    for one in (rig, recovered):
        for _ in range(351):
            one.advance(1)
            due = sum(START_MS + 7 * number + 1 <= one.now_ms - 19 for number in range(50))
            early = sum(START_MS + 7 * number + 1 > one.now_ms for number in range(50))
            assert due <= one.counts()["active"] <= 50 - early


def test_a_delay_longer_than_the_retention_never_ends():
    rig = Rig()
    rig.create()
    rig.send(b"1", delay_ms=61_000)
    rig.set(retention_ms=60_000)

    rig.advance(61_000)

    assert set(rig.counts().values()) == {0}


@pytest.mark.parametrize("state", ["active", "in flight", "delayed"])
def test_a_message_in_any_state_expires_after_its_retention(state: str):
    rig = Rig()
    rig.create()
    rig.send(b"1", delay_ms=3_600_000 if state == "delayed" else 0)
    rig.set(retention_ms=60_000)
    handles = rig.handles(visibility_timeout_ms=43_200_000) if state == "in flight" else []

    rig.advance(59_999)
    assert sum(rig.counts().values()) == 1
    rig.advance(1)

    assert sum(rig.counts().values()) == 0
    assert not handles or rig.delete(*handles) == handles
    assert rig.broker.live_in(rig.queue().queue_id, 0, 10) == 0


def test_an_expired_message_is_not_delivered_even_if_no_tick_came_by():
    rig = Rig()
    rig.create(retention_ms=60_000)
    rig.send(b"1", b"2")
    rig.now_ms += 50
    rig.send(b"3")
    rig.now_ms += 59_960

    assert rig.bodies() == [b"3"]

    assert [record.floor for record in expiries(rig)] == [2]
    assert facts(rig.crash().broker) == facts(rig.broker)


def test_a_receive_that_finds_only_expired_messages_is_answered_empty_or_waits():
    rig = Rig()
    rig.create(retention_ms=60_000)
    rig.send(b"1")
    rig.now_ms += 60_000

    assert rig.wait(wait_ms=0)[1] == []
    assert rig.wait(wait_ms=10)[1] is WAITING


def test_an_expired_message_is_not_delivered_to_a_receive_that_waited_for_its_page():
    rig = Rig()
    rig.create(retention_ms=60_000)
    rig.send(b"1")
    cold = rig.crash()
    waiter, _ = cold.wait()
    cold.now_ms += 60_000

    cold.answer_reads()

    assert cold.replies(waiter) == [[]]


def test_expiry_of_many_messages_at_the_head_is_one_record():
    rig = Rig()
    rig.create(retention_ms=60_000)
    for _ in range(50):
        rig.send(*[b"x"] * 100)
    rig.now_ms += 60_050
    rig.send(b"new")

    assert rig.bodies() == [b"new"]
    assert len(expiries(rig)) == 1


def test_a_shorter_retention_expires_old_messages_and_a_longer_one_saves_the_others():
    rig = Rig()
    rig.create(retention_ms=120_000)
    rig.send(b"1")
    rig.advance(61_000)
    rig.send(b"2")

    rig.set(retention_ms=60_000)
    rig.advance(0)
    assert rig.counts()["active"] == 1
    rig.set(retention_ms=120_000)
    rig.advance(100_000)
    assert rig.bodies() == [b"2"]
    rig.advance(20_000)

    assert sum(rig.counts().values()) == 0


def test_retention_counts_from_the_send_however_often_it_was_received():
    rig = Rig()
    rig.create(retention_ms=60_000)
    rig.send(b"1")
    for _ in range(5):
        rig.advance(10_000)
        rig.release(*rig.handles())

    rig.advance(10_000)

    assert sum(rig.counts().values()) == 0


def test_send_times_never_decrease_within_a_queue():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    rig.now_ms -= 5000
    rig.send(b"2", delay_ms=1000)
    rig.send(b"3")

    assert [message.enqueue_ms for message in rig.receive()] == [START_MS, START_MS]
    rig.now_ms = START_MS
    rig.advance(1000)
    assert rig.bodies() == [b"2"]


def test_steps_of_messages_that_are_gone_are_forgotten():
    rig = Rig()
    queue = rig.create(retention_ms=60_000)
    for _ in range(700):
        rig.send(b"x")
        rig.delete(*rig.handles())
        rig.advance(100)

    assert len(queue.index.steps) <= 64
    rig.advance(60_000)
    assert len(queue.index.steps) == 0


def test_steps_before_the_oldest_live_message_go_when_they_expire():
    rig = Rig()
    queue = rig.create(retention_ms=60_000)
    for _ in range(5):
        rig.send(b"x")
        rig.advance(1000)
    rig.delete(*rig.handles(most=3))

    rig.advance(57_100)

    assert not expiries(rig)
    assert len(queue.index.steps) == 2


def test_a_floor_over_a_large_backlog_is_one_record_and_one_tick():
    rig = Rig()
    rig.create(retention_ms=60_000)
    for _ in range(400):
        rig.send(*[b"x"] * 256)

    assert rig.advance(60_000) <= 2
    assert [record.floor for record in expiries(rig)] == [102_400]


def test_many_leases_that_end_together_are_settled_in_slices():
    rig = Rig(Limits(tick_items=200))
    rig.create()
    for _ in range(40):
        rig.send(*[b"x"] * 250)
        rig.receive(most=250, visibility_timeout_ms=1000)
    rig.now_ms += 1100
    slices: list[int] = []

    while rig.due():
        before = rig.counts()["active"]
        rig.tick()
        slices.append(rig.counts()["active"] - before)

    assert max(slices) <= 250
    assert sum(slices) == 10_000
    assert len(slices) == 40


def test_many_single_leases_that_end_together_are_settled_in_slices():
    rig = Rig(Limits(tick_items=50))
    rig.create()
    rig.send(*[b"x"] * 256)
    for _ in range(256):
        rig.receive(most=1, visibility_timeout_ms=1000)

    assert rig.advance(1100) == 6
    assert rig.counts()["active"] == 256


def test_many_delays_that_end_together_are_settled_in_slices():
    rig = Rig(Limits(tick_items=100))
    rig.create()
    for _ in range(4):
        rig.send(*[b"x"] * 250, delay_ms=1000)

    assert rig.advance(1000) == 10
    assert rig.counts()["active"] == 1000


def test_leases_of_cleared_messages_are_forgotten_when_they_end():
    rig = Rig()
    queue = rig.create()
    rig.send(b"1", b"2")
    rig.receive()
    rig.clear()
    assert len(queue.index.leases.by_number) == 2

    rig.advance(31_000)

    assert not queue.index.leases.by_number
    assert rig.broker.next_deadline_ms() is None or not rig.due()


def test_replayed_leases_of_cleared_messages_do_not_come_back():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    rig.receive()
    rig.clear()

    recovered = rig.crash()
    recovered.advance(31_000)

    assert set(recovered.counts().values()) == {0}


def test_stale_leases_are_swept_long_before_they_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd.core.operations.receiving.lease_sweep.LEASE_SWEEP_ABOVE", 100)
    rig = Rig()
    queue = rig.create()
    rig.broker.parts.lease_sweep.sweep_above = 100
    rig.create("gone")
    rig.send(b"x", name="gone")
    rig.receive("gone", visibility_timeout_ms=43_200_000)
    rig.delete_queue("gone")
    for number in range(2000):
        rig.send(b"x", b"y")
        handle, other = rig.handles(visibility_timeout_ms=43_200_000)
        rig.delete(handle)
        if number > 5:
            rig.delete(other)
        rig.now_ms += 100

    assert len(queue.index.leases.by_number) == 6
    held = sum(len(pairs) for _, pairs in queue.index.leases.buckets.of_queue(queue.queue_id))
    assert held < 600
    check_lease_buckets(queue)
    rig.advance(43_200_100)
    assert rig.counts()["active"] == 6


@pytest.mark.parametrize("timeouts_ms", [[43_200_000], [43_200_000, 1_000_000], [10_000_000_000]])
def test_leases_that_are_only_moved_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch, timeouts_ms: list[int]):
    monkeypatch.setattr("cmqd.core.operations.receiving.lease_sweep.LEASE_SWEEP_ABOVE", 100)
    rig = Rig(Limits(max_visibility_timeout_ms=10_000_000_000))
    queue = rig.create()
    rig.broker.parts.lease_sweep.sweep_above = 100
    rig.send(b"x", b"y")
    handles = rig.handles(visibility_timeout_ms=43_200_000)
    for number in range(2000):
        rig.now_ms += 100
        rig.hide(*handles, timeout_ms=timeouts_ms[number % len(timeouts_ms)])

    assert sum(len(pairs) for _, pairs in queue.index.leases.buckets.of_queue(queue.queue_id)) < 300
    check_lease_buckets(queue)


def test_a_sweep_keeps_what_was_due_and_put_back():
    rig = Rig(Limits(tick_items=2))
    rig.create()
    rig.send(*[b"x"] * 8)
    for _ in range(8):
        rig.handles(most=1, visibility_timeout_ms=1000)
    rig.now_ms += 1000
    rig.tick()
    for _ in range(10):
        rig.broker.parts.lease_sweep.sweep(rig.now_ms)

    rig.advance(0)
    assert rig.counts()["active"] == 8


def test_a_quiet_broker_has_no_next_deadline():
    rig = Rig()
    rig.create()

    assert rig.broker.next_deadline_ms() is None
    rig.tick()
    assert not rig.log.rows[1:]


def test_an_outdated_expiry_of_a_queue_is_passed_over():
    rig = Rig()
    rig.create(retention_ms=120_000)
    rig.send(b"1")
    rig.set(retention_ms=60_000)
    rig.set(retention_ms=120_000)

    rig.advance(119_999)
    assert rig.counts()["active"] == 1
    rig.advance(1)

    assert rig.counts()["active"] == 0
    assert rig.done(rig.broker.set_queue_attributes(ACCOUNT, "q", {}, rig.now_ms)).counts["active"] == 0
