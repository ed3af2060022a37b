"""The fold of receives against a model that looks at the memory of the broker, with all rows and with missing rows."""

import random
from collections.abc import Collection, Sequence

import pytest

from cmqd_reading.receive_fold import Receive, ReceiveFold
from cmqd_segment.checkpoint import AnyPart, CheckpointHeader, QueueSlice
from support.cases import naming
from support.core.builders import Rig
from support.core.receive_model import Seen, Work

CUT = {"expired", "cleared", "queue_deleted"}


def folded(
    work: Work, upto: int, missing: Collection[int] = (), checkpoints: Sequence[list[AnyPart]] = ()
) -> list[Receive]:
    """The receives up to a row, by a fold that gets the rows that are not missing."""
    fold = ReceiveFold()
    for parts in checkpoints:
        assert fold.load(parts, upto)
    found: list[Receive] = []
    gap = 0
    for lsn in range(1, upto + 1):
        if lsn in missing:
            gap = gap or lsn
            continue
        if gap:
            found += fold.miss(gap, lsn - 1)
            gap = 0
        found += fold.apply(lsn, work.log.times[lsn - 1], work.log.rows[lsn - 1])
    if gap:
        found += fold.miss(gap, upto)
    return [*found, *fold.finish(upto)]


def assert_told(told: Receive, seen: Seen, missing: Collection[int] = ()) -> None:
    """The receive is told as the model saw it, with nothing where missing rows leave it open."""
    is_begun = seen.from_lsn not in missing
    assert (told.from_ms, told.from_lsn) == ((seen.from_ms, seen.from_lsn) if is_begun else (0, 0))
    last = seen.ended_lsn or 1 << 60
    is_whole = is_begun and not any(seen.from_lsn < lsn <= last for lsn in missing)
    assert told.position == seen.position or (told.position == -1 and not is_begun)
    assert told.until_ms == seen.until_ms or (told.until_ms == 0 and not is_whole)
    if seen.ended_lsn in missing:
        assert (told.how, told.ended_ms, told.ended_lsn) == ("gone", 0, 0)
    elif told.how == "gone":
        # A floor and the end of a queue name no lease.
        assert not is_whole
        assert CUT.intersection(seen.hows)
        assert (told.ended_ms, told.ended_lsn) == (0, 0)
    else:
        assert told.how in (seen.hows or ("",))
        assert (told.ended_ms, told.ended_lsn) == (seen.ended_ms, seen.ended_lsn)


def must_be_told(seen: Seen, missing: Collection[int], upto: int) -> bool:
    """True if a readable row names the lease, or the receive is under way at the last row."""
    rows = [seen.from_lsn, *seen.changes]
    if seen.ended_lsn and not CUT.intersection(seen.hows):
        rows.append(seen.ended_lsn)
    return not seen.hows or any(lsn not in missing for lsn in rows)


def test_all_receives_are_told_as_the_broker_had_them() -> None:
    hows: set[str] = set()
    for seed in range(12):
        with naming(seed):
            work = Work(seed, steps_back=seed % 3 == 0)
            work.run(400)

            told = folded(work, work.log.last_lsn)

            seen = work.log.seen
            assert sorted(receive.lease for receive in told) == sorted(seen)
            for receive in told:
                assert_told(receive, seen[receive.lease])
            ends = [receive.ended_lsn for receive in told if receive.how]
            assert ends == sorted(each.ended_lsn for each in seen.values() if each.hows)
            hows.update(receive.how for receive in told)
    assert hows == {"", "deleted", "dead_lettered", "released", "lease_ended", *CUT}


def header_lsn(parts: Sequence[AnyPart]) -> int:
    header = parts[0]
    assert isinstance(header, CheckpointHeader)
    return header.lsn


@pytest.mark.parametrize("seed", range(24))
def test_behind_missing_rows_nothing_is_told_that_is_not_so(seed: int) -> None:
    work = Work(seed)
    work.run(400)
    upto = work.log.last_lsn
    choose = random.Random(seed)
    checkpoints = [
        parts
        for parts in work.checkpoints[-3:]
        if all(part.lsn <= upto for part in parts if isinstance(part, QueueSlice))
    ]
    missing: set[int] = set()
    for _ in range(choose.randrange(1, 5)):
        first = choose.randrange(1, header_lsn(checkpoints[-1]))
        missing.update(range(first, min(first + choose.randrange(1, 60), header_lsn(checkpoints[-1])) + 1))

    told = folded(work, upto, missing, checkpoints)

    leases = [receive.lease for receive in told]
    assert len(leases) == len(set(leases))
    assert set(leases) <= work.log.seen.keys()
    assert {seen.lease for seen in work.log.seen.values() if must_be_told(seen, missing, upto)} <= set(leases)
    for receive in told:
        assert_told(receive, work.log.seen[receive.lease], missing)


def test_a_delete_that_names_several_unknown_leases_places_none() -> None:
    rig = Rig()
    rig.create("q")
    rig.send(b"a", b"b", b"c")
    handles = rig.handles()
    received = rig.log.last_lsn
    rig.delete(*handles)
    fold = ReceiveFold()

    told = [*fold.miss(1, received), *fold.apply(received + 1, rig.now_ms, rig.log.rows[received])]

    assert [(each.lease, each.position, each.how) for each in told] == [
        (lease, -1, "deleted") for lease in rig.broker.handles.leases(handles)
    ]
