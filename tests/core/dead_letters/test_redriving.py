"""Redrive: dead letters go back, at a rate, through full targets, restarts and cancels; none is lost or doubled."""

import pytest

from cmqd.core.domain_errors import (
    DeadLetterQueueInUse,
    InvalidArgument,
    QueueNotFound,
    RedriveNotFound,
    RedriveRunning,
)
from cmqd.core.limits import Limits
from cmqd_types.messages import Origin
from cmqd_types.queues import RedriveStatus
from support.core.builders import ACCOUNT, START_MS, Rig, counts
from support.core.facts import facts

VISIBLE_MS = 1000


def with_dead(count: int = 3, limits: Limits | None = None, sources: tuple[str, ...] = ("q",)) -> Rig:
    """This number of dead letters per source, in turn."""
    rig = Rig(limits)
    rig.create("dlq")
    for name in sources:
        rig.create(name, dead_letter_queue="dlq", dead_letter_max_receives=1)
    for number in range(count):
        for name in sources:
            rig.send(b"%s%d" % (name.encode(), number), name=name)
            rig.receive(name, visibility_timeout_ms=VISIBLE_MS)
            rig.settle(VISIBLE_MS + 100)
    assert rig.counts("dlq")["active"] == count * len(sources)
    return rig


def status(rig: Rig) -> RedriveStatus:
    return rig.broker.redrive_status(ACCOUNT, "dlq")


def cancel(rig: Rig) -> RedriveStatus:
    return rig.done(rig.broker.cancel_redrive(ACCOUNT, "dlq", rig.now_ms))


def drained(rig: Rig, name: str = "q") -> list[bytes]:
    """All that is active in a queue, in a broker of its own."""
    again = rig.crash()
    found: list[bytes] = []
    while bodies := again.bodies(name, most=256):
        found += bodies
    return found


# ---------------------------------------------------------------------- where to


@pytest.mark.parametrize("target", [None, "other"])
def test_a_queue_that_never_served_as_a_dead_letter_queue_is_not_redriven(target: str | None):
    rig = Rig()
    rig.create("orders")
    rig.create("other")
    rig.send(b"1", name="orders")

    for again in (rig, rig.crash(), rig.crash_after(rig.checkpoint())):
        before = facts(again.broker)
        with pytest.raises(InvalidArgument, match="has never been a dead-letter queue"):
            again.redrive("orders", target=target)
        assert facts(again.broker) == before
        assert again.counts("orders")["active"] == 1


def test_dead_letters_go_back_also_when_the_queue_serves_no_longer():
    rig = with_dead(2, sources=("a", "b"))
    rig.set("a", dead_letter_queue="")
    rig.delete_queue("b")

    for again in (rig.crash(), rig.crash_after(rig.checkpoint()), rig):
        again.redrive("dlq")
        again.settle()
        assert again.counts("a")["active"] == 2
        assert again.counts("dlq")["active"] == 2
        assert status(again).missing_origins == {"b": 2}


def test_dead_letters_go_back_to_their_origin():
    rig = with_dead(2, sources=("a", "b"))
    waiter, _ = rig.wait("b", wait_ms=20_000)

    started = rig.redrive()
    assert (started.ended_ms, started.moved, started.remaining) == (None, 0, 4)
    rig.settle()

    assert rig.counts("dlq") == counts()
    assert drained(rig, "a") == [b"a0", b"a1"]
    assert [message.body for message in rig.replies(waiter)[0]] == [b"b0", b"b1"]
    assert status(rig) == RedriveStatus(
        queue="dlq",
        target=None,
        max_per_second=None,
        started_ms=started.started_ms,
        ended_ms=rig.now_ms,
        reason="done",
        moved=4,
        remaining=0,
        missing_origins={},
    )


def test_or_to_a_named_queue():
    rig = with_dead(2, sources=("a", "b"))
    rig.create("named", transactional=True)

    rig.redrive(target="named")
    rig.settle()

    assert rig.bodies("named") == [b"a0", b"b0", b"a1", b"b1"]
    assert status(rig).target == "named"


def test_a_transactional_target_has_them_active_at_once_and_a_default_delay_does_not_hold():
    rig = with_dead()
    rig.create("named", transactional=True, delay_ms=60_000)

    rig.redrive(target="named")
    rig.settle()

    assert rig.counts("named") == counts(active=3)


def test_they_keep_body_headers_and_get_a_new_id_time_and_origin():
    rig = Rig()
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=1)
    (first_id,) = rig.send(b"body", headers=[{"a": "b"}])
    rig.receive(visibility_timeout_ms=VISIBLE_MS)
    rig.settle(VISIBLE_MS + 100)
    dead_ms = rig.now_ms
    rig.now_ms += 1000
    rig.redrive()
    rig.settle()

    (message,) = rig.receive()

    assert (message.body, message.headers, message.receive_count) == (b"body", {"a": "b"}, 1)
    assert message.enqueue_ms == rig.now_ms
    assert message.origin is not None
    assert message.origin == Origin("dlq", message.origin.message_id, dead_ms, 0, "redrive")
    assert len({first_id, message.origin.message_id, message.message_id}) == 3


def test_messages_in_flight_delayed_or_sent_later_stay():
    rig = with_dead(2)
    rig.receive("dlq", most=1)
    rig.send(b"delayed", name="dlq", delay_ms=60_000)
    rig.redrive()
    rig.send(b"later", name="dlq")
    rig.settle()

    assert rig.counts("dlq") == counts(active=1, in_flight=1, delayed=1)
    assert drained(rig) == [b"q1"]


@pytest.mark.parametrize("target", ["dlq", "nowhere"])
def test_a_target_that_is_none_is_refused(target: str):
    rig = with_dead()
    before = facts(rig.broker)

    with pytest.raises(InvalidArgument):
        rig.redrive(target=target)

    assert facts(rig.broker) == before


def test_a_redrive_that_cannot_be_started_is_refused():
    rig = with_dead()
    for error, name, most in (
        (QueueNotFound, "nowhere", None),
        (InvalidArgument, "q", None),
        (InvalidArgument, "dlq", 0),
        (InvalidArgument, "dlq", 1_000_001),
    ):
        with pytest.raises(error):
            rig.redrive(name, max_per_second=most)
    with pytest.raises(RedriveNotFound):
        status(rig)
    with pytest.raises(RedriveNotFound):
        cancel(rig)
    rig.redrive()
    with pytest.raises(RedriveRunning):
        rig.redrive()


# ---------------------------------------------------------------------- rates


@pytest.mark.parametrize("rate", [1, 3, 15, 40])
def test_it_is_rate_limited_from_the_first_second_on(rate: int):
    rig = with_dead(12, sources=("a", "b", "c", "d", "e"))
    rig.redrive(max_per_second=rate)
    moved: list[int] = []
    for _ in range(200):
        moved.append(status(rig).moved)
        rig.settle(20)

    for at in range(50, 200):
        assert moved[at] - moved[at - 50] <= rate + max(1, rate // 10), "within a second"
    assert moved[-1] >= min(60, int(rate * 3.9)), "no slower than it may"
    assert status(rig).max_per_second == rate


def test_it_says_how_far_it_is():
    rig = with_dead(6)
    rig.redrive(max_per_second=2)
    rig.settle(1000)

    now = status(rig)
    assert now.moved + now.remaining == 6
    assert 0 < now.moved < 6
    assert rig.counts("dlq")["active"] == now.remaining
    assert now.ended_ms is None


# ---------------------------------------------------------------------- cancelled


def test_a_redrive_can_be_cancelled_and_moved_messages_stay_moved():
    rig = with_dead(6)
    rig.redrive(max_per_second=2)
    rig.settle(1000)
    moved = status(rig).moved

    ended = cancel(rig)
    rig.settle(10_000)

    assert (ended.reason, ended.moved, ended.ended_ms is None) == ("cancelled", moved, False)
    assert status(rig) == ended == cancel(rig) == rig.crash().broker.redrive_status(ACCOUNT, "dlq")
    assert rig.counts("dlq")["active"] == 6 - moved
    assert drained(rig, "dlq") == [b"q%d" % number for number in range(moved, 6)]


@pytest.mark.parametrize("again", [False, True])
def test_cancelled_while_a_page_is_read_and_maybe_started_again(again: bool):
    rig = with_dead(6)
    rig.redrive()
    rig.advance(0)
    assert len(rig.reads) == 1
    waiter, _ = rig.wait("dlq", most=1, wait_ms=20_000)
    cancel(rig)
    if again:
        rig.redrive()

    rig.settle()

    everything = [b"q%d" % number for number in range(6)]
    if again:
        assert rig.replies(waiter) == []
        assert drained(rig) == everything
        assert (status(rig).reason, status(rig).moved) == ("done", 6)
    else:
        assert [message.body for message in rig.replies(waiter)[0]] == [b"q0"]
        assert drained(rig, "dlq") == everything[1:]
        assert (status(rig).reason, status(rig).moved) == ("cancelled", 0)


# ---------------------------------------------------------------------- full and missing targets


@pytest.mark.parametrize("page", [2, 100])
@pytest.mark.parametrize("at_most", [None, 1, 3])
def test_a_full_target_pauses_it_and_it_goes_on_in_order(page: int, at_most: int | None):
    rig = with_dead(8, Limits(page_messages=page))
    rig.force(max_backlog=3)
    rig.redrive()

    def settle(ms: int) -> None:
        rig.now_ms += ms
        while rig.reads or rig.due():
            if rig.reads:
                rig.answer(rig.reads[0], at_most=at_most)
            else:
                rig.tick()

    settle(0)
    now = status(rig)
    assert (now.moved, now.remaining, now.ended_ms) == (3, 5, None)
    assert now.reason == "target full: q"
    assert rig.counts("dlq") == counts(active=5)
    got: list[bytes] = []
    for _ in range(20):
        settle(1000)
        handles = rig.receive(most=2)
        got += [message.body for message in handles]
        if handles:
            rig.delete(*[message.receipt_handle for message in handles])
    assert got == [b"q%d" % number for number in range(8)]
    assert (status(rig).reason, status(rig).moved) == ("done", 8)


def test_held_up_dead_letters_can_be_received():
    rig = with_dead(3)
    rig.force(max_backlog=0)
    rig.redrive()
    rig.settle()

    assert rig.bodies("dlq") == [b"q0", b"q1", b"q2"]


def test_a_missing_origin_is_reported_while_it_runs_after_its_end_and_after_a_restart():
    rig = with_dead(3, sources=("a", "b"))
    rig.send(b"sent there", name="dlq")
    rig.delete_queue("a")
    rig.redrive(max_per_second=10)
    rig.settle(100)
    assert status(rig).missing_origins.get("a", 0) > 0
    restarted = rig.crash()
    for again in (rig, restarted):
        for _ in range(20):
            again.settle(500)

        for one in (again, again.crash(), again.crash_after(again.checkpoint())):
            ended = status(one)
            assert ended.reason == "done"
            assert ended.missing_origins == {"a": 3, "(no origin)": 1}
            assert ended.moved == 3
        assert drained(again, "dlq") == [b"a0", b"a1", b"a2", b"sent there"]
        assert drained(again, "b") == [b"b0", b"b1", b"b2"]


def test_one_too_large_for_its_target_stays_and_is_reported():
    rig = with_dead(2)
    rig.create("small", max_message_bytes=1024)
    rig.send(b"x" * 1025, name="dlq")
    rig.redrive(target="small")
    rig.settle()

    assert status(rig).missing_origins == {"small": 1}
    assert rig.counts("dlq")["active"] == 1


def test_a_target_deleted_in_the_middle_is_reported_and_the_rest_stays():
    rig = with_dead(6)
    rig.create("named")
    rig.redrive(target="named", max_per_second=2)
    rig.settle(600)
    moved = status(rig).moved
    rig.delete_queue("named")
    rig.settle(10_000)

    ended = status(rig)
    assert (ended.reason, ended.moved) == ("done", moved)
    assert ended.missing_origins == {"named": 6 - moved}
    assert rig.counts("dlq")["active"] == 6 - moved


def test_the_redriven_queue_deleted_in_the_middle_ends_it():
    rig = with_dead(3)
    rig.redrive()
    rig.advance(0)
    with pytest.raises(DeadLetterQueueInUse):
        rig.delete_queue("dlq")
    rig.set(dead_letter_queue="")
    rig.delete_queue("dlq")
    rig.settle()

    assert rig.counts("q") == counts()


def test_cleared_in_the_middle_it_is_done():
    rig = with_dead(3)
    rig.redrive()
    rig.advance(0)
    rig.clear("dlq")
    rig.settle()

    assert (status(rig).reason, status(rig).moved) == ("done", 0)


def test_expired_ones_do_not_keep_it_from_ending():
    rig = with_dead(1)
    rig.set("dlq", retention_ms=60_000)
    rig.settle(30_000)
    rig.send(b"young", name="dlq")
    rig.queue("dlq").index.steps._ends[0] = rig.now_ms  # pyright: ignore[reportPrivateUsage]
    rig.now_ms += 40_000
    rig.create("named")
    rig.redrive(target="named")
    rig.settle()

    assert rig.bodies("named") == [b"young"]
    assert status(rig).reason == "done"


def test_what_cannot_be_read_does_not_keep_it_from_ending():
    rig = with_dead(3)
    rig.log.damaged.add((rig.queue("dlq").queue_id, 1))
    rig.redrive()
    rig.settle()

    assert drained(rig) == [b"q0", b"q2"]
    assert (status(rig).reason, rig.counts("dlq")) == ("done", counts(damaged=1))


# ---------------------------------------------------------------------- restarts


@pytest.mark.parametrize("by", ["log", "checkpoint"])
def test_it_is_resumable_after_a_restart_at_any_page(by: str):
    rig = with_dead(7, Limits(page_messages=2))
    rig.redrive()
    for pages in range(5):
        again = rig.crash() if by == "log" else rig.crash_after(rig.checkpoint())
        assert facts(again.broker)["queues"] == facts(rig.broker)["queues"]
        assert status(again).moved == min(2 * pages, 7)
        again.settle()
        assert drained(again) == [b"q%d" % number for number in range(7)]
        assert (status(again).reason, status(again).moved) == ("done", 7)
        assert again.counts("dlq") == counts()
        rig.advance(0)
        if rig.reads:
            rig.answer(rig.reads[0])


def test_slices_taken_in_between_come_to_the_same():
    rig = with_dead(7, Limits(page_messages=2))
    rig.redrive()
    rig.advance(0)
    taken = list(_answering(rig))
    rig.settle()

    again = rig.crash_after(taken)

    assert facts(again.broker)["queues"] == facts(rig.broker)["queues"]
    assert status(again) == status(rig)


def _answering(rig: Rig):
    """The parts of a checkpoint, with a page of a move between any two."""
    for part in rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms):
        yield part
        if rig.reads:
            rig.answer(rig.reads[0])


def test_a_redrive_of_nothing_is_done_at_once():
    rig = Rig()
    rig.create("dlq")
    rig.create("q", dead_letter_queue="dlq", dead_letter_max_receives=1)
    rig.redrive(target=None)
    rig.settle()

    assert status(rig) == RedriveStatus(
        queue="dlq",
        target=None,
        max_per_second=None,
        started_ms=START_MS,
        ended_ms=START_MS,
        reason="done",
        moved=0,
        remaining=0,
        missing_origins={},
    )


def test_a_second_one_counts_from_the_start():
    rig = with_dead(2)
    rig.redrive()
    rig.settle()
    rig.send(b"1", name="dlq")
    rig.create("named")
    rig.redrive(target="named")
    rig.settle()

    assert (status(rig).moved, status(rig).target) == (1, "named")


def test_attributes_changed_meanwhile_do_not_disturb_it():
    rig = with_dead(6)
    rig.redrive(max_per_second=2)
    rig.settle(600)
    rig.set("dlq", rewind_ms=60_000)
    for _ in range(50):
        rig.settle(100)

    assert (status(rig).reason, status(rig).moved) == ("done", 6)
    assert drained(rig) == [b"q%d" % number for number in range(6)]
