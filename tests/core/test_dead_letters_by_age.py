"""Dead letters by age: whose clock started before the queue had a policy."""

from support.core_builders import START_MS, Rig

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
