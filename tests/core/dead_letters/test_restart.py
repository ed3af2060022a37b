"""Dead letters over a restart: no receive beyond the limit."""

from support.core.builders import Rig


def died_at_the_crash() -> Rig:
    """A broker after its start, with a message after the end of its last lease."""
    rig = Rig()
    rig.create("dead")
    rig.create(dead_letter_queue="dead", dead_letter_max_receives=1)
    rig.send(b"a")
    rig.handles(visibility_timeout_ms=1000)
    rig.advance(1000)
    return rig.crash()


def test_a_receive_before_the_first_tick_does_not_get_a_message_after_its_last_receive():
    rig = died_at_the_crash()

    assert rig.receive() == []

    rig.settle()
    assert rig.bodies("dead") == [b"a"]


def test_it_is_received_all_the_same_while_the_dead_letter_queue_takes_none():
    rig = Rig()
    rig.create("dead")
    rig.send(b"before", name="dead")
    rig.create(dead_letter_queue="dead", dead_letter_max_receives=1)
    rig.send(b"a")
    rig.handles(visibility_timeout_ms=1000)
    rig.advance(1000)
    rig = rig.crash()

    assert [message.receive_count for message in rig.receive()] == [2]
