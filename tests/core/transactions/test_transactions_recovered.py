"""Transactions over crashes and checkpoints."""

from collections.abc import Collection
from itertools import pairwise

from cmqd.core.broker import Broker
from cmqd.core.limits import Limits
from cmqd.core.operations.transactions.half_messages import COMMIT, ROLL_BACK, UNKNOWN
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.records import MessagesSent
from support.cases import each_case
from support.core import alone
from support.core.builders import ACCOUNT, KEY, START_MS, NaiveLog, Rig
from support.core.facts import facts
from support.core.half_messages import asked, checkers, decide, listed, transactional
from support.core.invariants import check_broker


def eventful() -> Rig:
    """A log with all kinds of events of half messages."""
    rig = transactional(Limits(tick_items=4), retention_ms=600_000)
    first = rig.send_half(*[b"a%d" % number for number in range(6)])
    rig.send(b"plain")
    checkers(rig)
    rig.settle(5000)
    decide(rig, (first[0], COMMIT), (first[1], ROLL_BACK), (first[2], UNKNOWN))
    second = rig.send_half(b"b0", b"b1", first_check_ms=1000)
    rig.settle(1000)
    rig.delete(rig.receive()[0].receipt_handle)
    rig.settle(9000)
    decide(rig, (second[1], COMMIT), (first[3], COMMIT))
    dedup = alone.send_half(rig.broker, ACCOUNT, "q", [b"c0", b"c1"], None, None, 7, 1, rig.now_ms, ["x", None])
    third = list(rig.done(dedup))
    rig.set(max_checks=2)
    rig.settle(100_000)
    rig.set(max_checks=5)
    decide(rig, (third[0], ROLL_BACK))
    checkers(rig, False)
    rig.settle(400_000)
    rig.send_half(b"d0")
    rig.clear()
    last = rig.send_half(b"e0", b"e1", b"e2")
    decide(rig, (last[1], COMMIT))
    rig.settle(6000)
    return rig


EVENTFUL = eventful()
ROWS = len(EVENTFUL.log.rows)


def without(missing: Collection[int]) -> NaiveLog:
    """The log of these events without some rows."""
    log = NaiveLog()
    whole = EVENTFUL.log
    log.rows = [[] if lsn in missing else list(row) for lsn, row in enumerate(whole.rows, 1)]
    for _, record in log.records():
        if isinstance(record, MessagesSent):
            stop = record.first_position + len(record.sizes)
            keys = [(record.queue_id, position) for position in range(record.first_position, stop)]
            log.stored.update((key, whole.stored[key]) for key in keys)
    return log


def crashed_after(rows: int) -> Rig:
    """A broker that was killed when this number of rows was durable; a row is written whole or not at all."""
    return Rig(EVENTFUL.limits, log=without(range(rows + 1, ROWS + 1))).crash()


def test_a_restart_from_the_log_alone_comes_to_the_same():
    again = EVENTFUL.crash()
    again.settle()  # both forget dedup ids after their time

    assert facts(again.broker) == facts(EVENTFUL.broker)


@each_case("rows", range(ROWS + 1))
def test_a_crash_after_any_row_leaves_a_broker_that_works(rows: int):
    rig = crashed_after(rows)
    if not rig.broker.queues:
        return
    checkers(rig)

    # All that is undecided can be decided, once.
    half = [one.message_id for one in listed(rig)]
    active = rig.counts()["active"]
    fresh = [one for one in half if decide(rig, (one, COMMIT)) == []]
    assert rig.counts()["half"] == 0
    assert rig.counts()["active"] == active + len(fresh)
    assert decide(rig, *[(one, COMMIT) for one in fresh]) == [] if fresh else True
    rig.settle(400_000)
    assert asked(rig) == []


@each_case("rows", range(ROWS + 1))
def test_checks_go_on_after_a_crash_after_any_row(rows: int):
    rig = crashed_after(rows)
    if not rig.broker.queues:
        return
    checkers(rig)
    most = rig.queue().index.attributes.max_checks
    expected = sum(most - min(most, one.checks) for one in listed(rig))
    rig.now_ms = max([START_MS, rig.queue().index.last_enqueue_ms])
    rig.set(retention_ms=1_296_000_000)

    for _ in range(40):
        rig.settle(300_000)

    assert len(rig.checks) == expected
    assert [one.checks for one in listed(rig)] == [max(most, one.checks) for one in listed(rig)]


def test_a_restart_from_a_checkpoint_and_what_follows_comes_to_the_same():
    rig = transactional(Limits(tick_items=4))
    ids: list[int] = []
    taken: list[list[AnyPart]] = []

    def step(rig: Rig) -> None:
        taken.append(rig.checkpoint())
        for parts in taken:
            again = rig.crash_after(parts)
            assert facts(again.broker)["queues"] == facts(rig.broker)["queues"]
            checkers(again)
            again.now_ms = rig.now_ms
            again.settle(300_000)
            asked_about = {check.message.position for check in again.checks}
            may_be = set(again.queue().index.half)
            assert asked_about == may_be, "a half message that was due was forgotten"

    ids += rig.send_half(b"1", b"2", b"3", b"4", b"5")
    step(rig)
    decide(rig, (ids[0], COMMIT), (ids[1], ROLL_BACK))
    step(rig)
    rig.settle(6000)  # due, without a checker
    step(rig)
    checkers(rig)
    rig.settle()
    step(rig)
    decide(rig, (ids[2], UNKNOWN))
    step(rig)
    checkers(rig, False)
    rig.settle(20_000)
    step(rig)
    rig.set(max_checks=20)
    decide(rig, (ids[3], COMMIT))
    step(rig)


GAPS = [(lsn,) for lsn in range(1, ROWS + 1)] + list(pairwise(range(1, ROWS + 1)))


@each_case("missing", GAPS, ids=str)
def test_any_rows_may_be_missing(missing: tuple[int, ...]):
    broker = Broker(KEY, EVENTFUL.limits)
    broker.begin_salvage()
    log = without(missing)
    for lsn, record in log.records():
        broker.replay(record, lsn)
        check_broker(broker)
    log.append(broker.recovered(lost=True))
    rig = Rig(EVENTFUL.limits, broker, log)
    rig.now_ms = EVENTFUL.now_ms
    if not broker.queues:
        return
    if not rig.queue().index.attributes.transactional:
        return
    half = listed(rig)
    for one in half:
        assert decide(rig, (one.message_id, COMMIT)) == [] or one.enqueue_ms + 600_000 <= rig.now_ms
    rig.settle(10_000)
    check_broker(broker)
