"""Leases with the shard in their upper 12 bits, beside leases from before that."""

import pytest

from cmqd_types.messages import GONE_DELETED, GONE_MOVED
from cmqd_types.shards import SHARD_SHIFT
from support.core import alone
from support.core.builders import ACCOUNT, Rig
from support.core.facts import facts
from support.core.invariants import check_broker

HOUR_MS = 3_600_000
SHARDS = [1, 2047, 2048, 4095]
"""The last two have leases above 2**63."""


def held(shard: int, count: int) -> tuple[Rig, list[int]]:
    """A broker of a shard, with leases that an earlier version numbered from 1."""
    rig = Rig()
    numbers = rig.broker.facts.numbers
    numbers.take_shard(shard)
    numbers.next_lease = numbers.lease_until = 1
    rig.create("dlq")
    rig.create(dead_letter_queue="dlq", dead_letter_max_receives=5)
    rig.send(*(b"old %d" % number for number in range(count)))
    handles = rig.handles(visibility_timeout_ms=HOUR_MS)
    assert leases_of(rig) == list(range(1, count + 1))
    return rig, handles


def leases_of(rig: Rig) -> list[int]:
    return sorted(rig.queue().index.leases.by_number)


def upgraded(rig: Rig, shard: int) -> Rig:
    """The broker after a crash and a start of this version."""
    again = rig.crash()
    again.broker.take_shard(shard)
    return again


def refusals(rig: Rig, *handles: int) -> list[int]:
    done = rig.done(alone.delete(rig.broker, ACCOUNT, "q", list(handles), rig.now_ms))
    assert [failure.receipt_handle for failure in done.failures] == list(handles)
    return [failure.gone for failure in done.failures]


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize("checkpoint", [True, False])
def test_leases_of_both_kinds_share_records_and_survive_a_crash(shard: int, checkpoint: bool) -> None:
    rig, old = held(shard, 6)
    rig = upgraded(rig, shard)
    rig.send(*(b"new %d" % number for number in range(6)))
    new = rig.handles(visibility_timeout_ms=HOUR_MS)
    assert [lease >> SHARD_SHIFT for lease in leases_of(rig)] == [0] * 6 + [shard] * 6

    assert rig.delete(old[0], new[0]) == []
    assert rig.reject(old[1], new[1]) == {}
    parts = rig.checkpoint()
    rig.hide(old[2], new[2], timeout_ms=2 * HOUR_MS)
    assert rig.release(old[3], new[3]) == []
    assert rig.delete(new[4], old[4]) == []
    check_broker(rig.broker)
    again = rig.crash_after(parts) if checkpoint else rig.crash()

    assert facts(again.broker) == facts(rig.broker)
    assert refusals(again, old[0], new[0], old[4], new[4]) == [GONE_DELETED] * 4
    assert refusals(again, old[1], new[1], old[3], new[3]) == [GONE_MOVED, GONE_MOVED, 0, 0]
    assert sorted(again.bodies()) == [b"new 3", b"old 3"]
    again.settle(HOUR_MS + 1_000)
    assert sorted(again.bodies()) == [b"new 3", b"new 5", b"old 3", b"old 5"]
    assert again.delete(old[2], new[2]) == []
    assert all(lease >> SHARD_SHIFT == shard for lease in leases_of(again))
    check_broker(again.broker)


@pytest.mark.parametrize("shard", [0, *SHARDS])
def test_a_handle_of_another_shard_is_invalid(shard: int) -> None:
    rig, _ = held(shard, 1)
    rig = upgraded(rig, shard)
    rig.send(b"new", b"newer")
    rig.handles(visibility_timeout_ms=HOUR_MS)
    newest = leases_of(rig)[-1]
    before = facts(rig.broker)
    others = [rig.broker.handles.handle(newest ^ other << SHARD_SHIFT) for other in (1, 2, 2048)]

    assert refusals(rig, *others) == [0, 0, 0]

    assert facts(rig.broker) == before
