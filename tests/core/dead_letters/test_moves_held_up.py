"""Moves write bodies: moves wait while the disk has no room, and few bodies are read at once."""

from cmqd.core.operations.dead_letters.reservations import RETRY_MS
from cmqd.core.runtime.pages import MAX_MOVE_READS
from support.core.builders import ACCOUNT, Rig
from support.core.invariants import check_broker


def dying(rig: Rig, name: str = "q", count: int = 3) -> None:
    """Messages just before the end of their last lease."""
    rig.create(name, dead_letter_queue="dead", dead_letter_max_receives=1)
    rig.send(*[b"%d" % number for number in range(count)], name=name)
    rig.receive(name, visibility_timeout_ms=1000)


def test_dead_letters_stay_receivable_while_moves_are_held_up_and_go_afterwards():
    rig = Rig()
    rig.create("dead")
    dying(rig)
    rig.broker.gates.moves_held_up = "disk nearly full"
    rig.settle(1000)

    assert rig.counts("dead")["active"] == 0
    assert [message.receive_count for message in rig.receive(visibility_timeout_ms=1000)] == [2, 2, 2]
    rig.broker.gates.moves_held_up = ""
    rig.settle(1000 + RETRY_MS)
    assert rig.bodies("dead") == [b"0", b"1", b"2"]


def test_what_was_reserved_when_they_were_held_up_is_released():
    rig = Rig()
    rig.create("dead")
    dying(rig, count=16)
    rig.advance(1000)
    assert rig.queue().index.moving_count == 16

    rig.broker.gates.moves_held_up = "disk nearly full"
    rig.answer(rig.reads[0], at_most=1)

    assert rig.queue().index.moving_count == 0
    assert rig.counts()["active"] == 15, "the page that was under way is moved"
    check_broker(rig.broker)


def test_a_redrive_says_that_it_is_held_up_and_goes_on():
    rig = Rig()
    rig.create("dead")
    dying(rig)
    rig.settle(1000)
    rig.broker.gates.moves_held_up = "disk nearly full"
    rig.redrive("dead")
    rig.settle()

    assert rig.broker.redrive_status(ACCOUNT, "dead").reason == "disk nearly full"
    assert rig.counts("dead")["active"] == 3
    rig.broker.gates.moves_held_up = ""
    rig.settle(RETRY_MS)
    assert rig.broker.redrive_status(ACCOUNT, "dead").reason == "done"
    assert rig.counts()["active"] == 3


def test_few_pages_of_moves_are_read_at_once_and_all_queues_have_their_turn():
    rig = Rig()
    rig.create("dead")
    # Six queues may share a dead-letter queue.
    names = [f"q{number}" for number in range(4 * MAX_MOVE_READS)]
    for number, name in enumerate(names):
        target = f"dead{number // 6}"
        if number % 6 == 0:
            rig.create(target)
        rig.create(name, dead_letter_queue=target, dead_letter_max_receives=1)
        rig.send(b"a", name=name)
        rig.receive(name, visibility_timeout_ms=1000)

    rig.advance(1000)

    assert len(rig.reads) == MAX_MOVE_READS
    rig.delete_queue(names[0])
    while rig.reads:
        rig.answer(rig.reads[0])
        assert len(rig.reads) <= MAX_MOVE_READS
    assert all(rig.counts(name)["active"] == 0 for name in names[1:])
    check_broker(rig.broker)
