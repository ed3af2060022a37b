"""The first start behind a restore: counters jump, and promises to producers age."""

import pytest

from cmqd.core.broker import Broker
from cmqd.core.facts.numbers import JUMP
from cmqd.core.limits import Limits
from cmqd_segment.records import LogRestored, NumbersReserved
from support.core import alone
from support.core.builders import ACCOUNT, KEY, Rig, every
from support.core.facts import facts

MINUTE_MS = 60_000


def send_named(rig: Rig, body: bytes, dedup_id: str) -> list[int]:
    return list(rig.done(alone.send(rig.broker, ACCOUNT, "q", [body], None, None, 0, 0, rig.now_ms, [dedup_id])))


def restored(rig: Rig, aged_ms: int) -> Rig:
    """Recover from all rows, as the first start behind a restore does."""
    broker = Broker(KEY, rig.limits, calendar=every)
    for lsn, record in rig.log.records():
        broker.replay(record, lsn)
    records = broker.recovered(restored=LogRestored(rig.now_ms, aged_ms))
    rig.log.append(list(records))
    again = Rig(rig.limits, broker, rig.log)
    again.now_ms = rig.now_ms
    return again


def test_the_counters_jump_and_no_fact_is_given_up():
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2")
    rig.receive(most=1)
    before, totals = facts(rig.broker), rig.queue().index.totals

    again = restored(rig, 0)

    reserved, mark = [record for _, record in again.log.records()][-2:]
    assert isinstance(reserved, NumbersReserved)
    assert reserved.message_id_until >= before["reserved"][0] + JUMP
    assert mark == LogRestored(rig.now_ms, 0)
    after = facts(again.broker)
    assert all(number >= old + JUMP for number, old in zip(after["reserved"], before["reserved"], strict=True))
    assert after | {"reserved": None} == before | {"reserved": None}
    assert again.queue().index.totals == totals


def test_a_handle_from_the_part_that_was_cut_off_fits_no_new_lease():
    rig = Rig()
    rig.create()
    rig.send(b"1")
    rows = list(rig.log.rows)
    (cut_off,) = rig.receive()
    rig.log.rows = rows

    again = restored(rig, 0)
    (new,) = again.receive()

    assert new.message_id == cut_off.message_id
    assert again.delete(cut_off.receipt_handle) == [cut_off.receipt_handle]
    assert again.delete(new.receipt_handle) == []


@pytest.mark.parametrize("crashes", [0, 1, 2])
def test_dedup_ids_and_sessions_age_by_the_time_of_the_wall_clock(crashes: int):
    limits = Limits(dedup_life_ms=5 * MINUTE_MS, session_life_ms=5 * MINUTE_MS)
    young, old = Rig(limits), Rig(limits)
    for rig in (young, old):
        rig.create()
        send_named(rig, b"1", "order 1")
        rig.send(b"2", session=7, sequence=1)

    # A repeat a minute later is a repeat; six minutes later it is a new message.
    young, old = restored(young, MINUTE_MS), restored(old, 6 * MINUTE_MS)
    for _ in range(crashes):
        young, old = young.crash(), old.crash()
    for rig in (young, old):
        rig.tick()
        send_named(rig, b"1", "order 1")
        rig.send(b"2", session=7, sequence=1)

    assert young.queue().index.live_count == 2
    assert old.queue().index.live_count == 4


def test_a_checkpoint_behind_the_restore_does_not_age_twice():
    limits = Limits(dedup_life_ms=5 * MINUTE_MS, session_life_ms=5 * MINUTE_MS)
    rig = Rig(limits)
    rig.create()
    before = rig.checkpoint()
    send_named(rig, b"1", "order 1")
    rig.send(b"2", session=7, sequence=1)
    rig = restored(rig, 3 * MINUTE_MS)
    behind = rig.checkpoint()

    for parts in (before, behind):
        again = rig.crash_after(parts)
        send_named(again, b"1", "order 1")
        again.send(b"2", session=7, sequence=1)
        assert again.queue().index.live_count == 2
