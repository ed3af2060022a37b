"""Origins of moved messages in replies."""

from cmqd.core.limits import Limits
from support.core.builders import Rig


def test_origins_count_towards_the_size_of_a_reply():
    """Else a full reply of small dead letters with many headers would exceed a frame."""
    rig = Rig(Limits(max_batch_bytes=1024))
    rig.create("dead")
    rig.create(dead_letter_queue="dead", dead_letter_max_receives=1)
    for _ in range(20):
        rig.send(b"x" * 40)
    rig.receive(most=20, visibility_timeout_ms=1000)
    rig.settle(1100)
    assert rig.counts("dead")["active"] == 20

    received = rig.receive("dead", most=20)

    assert len(received) == 1024 // (40 + 128)
    assert all(message.origin is not None for message in received)
