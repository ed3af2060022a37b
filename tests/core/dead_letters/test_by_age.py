"""Dead letters by age: messages from before the queue had a policy."""

import pytest
from pyroaring import BitMap64

from cmqd.core.operations.dead_letters.search import active_below
from support.core.builders import START_MS, Rig

HOUR_MS = 3_600_000
AFTER_MS = 300_000


def test_a_delay_that_ended_before_the_policy_was_set_counts_as_it_does_later():
    rig = Rig()
    rig.create("dead")
    rig.create()
    rig.send(b"delayed", delay_ms=HOUR_MS)
    rig.send(b"at once")
    rig.settle(HOUR_MS + 1000)

    rig.set(dead_letter_queue="dead", dead_letter_after_ms=AFTER_MS)
    rig.settle(1000)

    assert rig.counts("dead")["active"] == 1
    assert rig.bodies("dead") == [b"at once"]
    assert rig.counts()["active"] == 1, "it has been active for two seconds"
    rig.settle(AFTER_MS)
    assert b"delayed" in rig.bodies("dead")


def test_a_rewind_before_the_policy_was_set_starts_the_clock_anew():
    rig = Rig()
    rig.create("dead")
    rig.create(rewind_ms=24 * HOUR_MS)
    rig.send(b"read before")
    rig.delete(*rig.handles())
    rig.settle(HOUR_MS)
    rig.rewind(START_MS)

    rig.set(dead_letter_queue="dead", dead_letter_after_ms=AFTER_MS)
    rig.settle(AFTER_MS - 1000)
    assert rig.counts()["active"] == 1

    rig = rig.crash()
    rig.settle(3000)
    assert rig.counts()["active"] == 0
    assert rig.bodies("dead") == [b"read before"]


def test_many_delays_that_ended_before_the_policy_was_set_keep_their_times():
    rig = Rig()
    rig.create("dead")
    rig.create()
    for second in (3, 1, 2, 1):
        rig.send(b"delayed", b"delayed", delay_ms=HOUR_MS - second * 1000)
    rig.settle(HOUR_MS + 5000)

    rig.set(dead_letter_queue="dead", dead_letter_after_ms=AFTER_MS)
    rig.settle(1000)

    assert rig.counts()["active"] == 8
    entries = rig.queue().index.activation_entries()
    assert [len(BitMap64.deserialize(packed)) for _, packed in entries] == [2, 2, 4]
    assert [ms for ms, _ in entries] == sorted(ms for ms, _ in entries)
    rig.settle(AFTER_MS)
    assert rig.counts("dead")["active"] == 8


def test_leases_that_end_while_the_dead_letter_queue_is_full_do_not_seek_dead_letters_each_time():
    rig = Rig()
    rig.create("dead")
    rig.force("dead", max_backlog=1)
    rig.create(dead_letter_queue="dead", dead_letter_after_ms=AFTER_MS)
    rig.send(b"full", name="dead")
    rig.send(b"old")
    rig.settle(AFTER_MS + 1000)
    assert rig.counts()["active"] == 1

    for _ in range(3):
        rig.release(*rig.handles())
        assert rig.counts()["active"] == 1
    rig.delete(*rig.handles("dead"), name="dead")
    rig.settle(2000)

    assert rig.counts()["active"] == 0
    assert rig.bodies("dead") == [b"old"]


@pytest.mark.parametrize(
    "active",
    [
        BitMap64(range(3, 1000)),
        BitMap64([5]),
        BitMap64([5, 10_000_000_000]),
        BitMap64(range(10_000_000_000, 10_000_100_000)),
        BitMap64(range(100_000_000)),
        BitMap64(range(0, 10_000_000_000, 1_000_000)),
    ],
    ids=["short", "one", "two far apart", "after many", "long", "scattered"],
)
def test_what_stands_below_a_position_is_found_however_far_it_is_spread(active: BitMap64):
    rig = Rig()
    index = rig.create().index
    index.active, index.active_count = active, len(active)
    index.next_position = active[-1] + 1
    for stop in (0, 6, 70_000, 5_000_000_000, 10_000_050_000):
        expected = BitMap64(active)
        expected.remove_range(stop, 1 << 40)
        assert active_below(index, min(stop, index.next_position)) == expected
