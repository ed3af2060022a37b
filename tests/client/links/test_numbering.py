"""Numbers of sends."""

import itertools
import random

from cmqd_client.links.numbering import WINDOW, SendNumbering, Session


def test_sends_are_numbered_from_one_in_one_session() -> None:
    numbering = SendNumbering(lambda: 77)
    numbers: list[tuple[int, int]] = []
    for _ in range(5000):
        session, sequence = numbering.next()
        numbers.append((session.number, sequence))
        session.answered(sequence)
    assert numbers == [(77, sequence) for sequence in range(1, 5001)]


def test_zero_is_no_session() -> None:
    assert SendNumbering(lambda: 0).next()[0].number == 1


def test_no_unanswered_number_falls_out_of_the_servers_memory() -> None:
    sessions = itertools.count(1)
    numbering = SendNumbering(lambda: next(sessions))
    chance = random.Random(5)
    under_way: list[tuple[Session, int]] = []
    last: dict[int, int] = {}
    for _ in range(20_000):
        session, sequence = numbering.next()
        last[session.number] = sequence
        under_way.append((session, sequence))
        # Far more under way than the window holds, answered in any order.
        while len(under_way) > 3000 or (under_way and chance.random() < 0.3):
            answered, number = under_way.pop(chance.randrange(len(under_way)))
            answered.answered(number)
        if sequence % 50 == 0:
            assert all(last[one.number] - number < WINDOW for one, number in under_way)
    assert len(last) > 1


def test_a_send_that_is_never_answered_starts_a_new_session_in_time() -> None:
    sessions = itertools.count(1)
    numbering = SendNumbering(lambda: next(sessions))
    stuck, _ = numbering.next()
    for _ in range(2 * WINDOW):
        session, sequence = numbering.next()
        session.answered(sequence)
    assert stuck.number == 1
    assert stuck.last < WINDOW
    assert numbering.next()[0].number == 2
