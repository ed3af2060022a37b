"""The reply gate: no reply leaves before its row is durable, and replies leave in the order of decision."""

import pytest

from cmqd.server.replies.reply_gate import Outgoing, ReplyGate
from cmqd_protocol.messages import Done, Push, TransactionCheck


class Pushed:
    """Keeps the pushes."""

    def __init__(self) -> None:
        self.pushes: list[Outgoing] = []

    def answer(self, reply: Outgoing, queue: str | None = None) -> None:
        self.pushes.append(reply)


class Asker:
    def __init__(self) -> None:
        self.answers: list[tuple[int, str | None]] = []

    def answer(self, reply: Outgoing, queue: str | None = None) -> None:
        assert not isinstance(reply, Push)
        self.answers.append((reply.request_id, queue))


def test_a_reply_waits_until_its_lsn_is_durable() -> None:
    gate, asker = ReplyGate(10), Asker()

    gate.hold(12, asker, Done(1))
    gate.open_to(11)
    assert asker.answers == []
    gate.open_to(12)

    assert asker.answers == [(1, None)]


def test_a_reply_that_depends_on_durable_things_alone_leaves_at_once() -> None:
    gate, asker = ReplyGate(10), Asker()

    gate.hold(10, asker, Done(1))

    assert asker.answers == [(1, None)]


def test_replies_leave_in_the_order_of_their_decision() -> None:
    gate, asker = ReplyGate(0), Asker()
    for request_id, lsn in ((1, 1), (2, 1), (3, 2), (4, 5)):
        gate.hold(lsn, asker, Done(request_id), "q" if request_id == 3 else None)
        gate.check_invariants()

    gate.open_to(4)
    gate.check_invariants()

    assert asker.answers == [(1, None), (2, None), (3, "q")]
    assert len(gate) == 1


def test_replies_of_a_group_are_held_together() -> None:
    gate, one, two = ReplyGate(10), Asker(), Asker()

    gate.hold(11, one, Done(1))
    gate.hold_all([])
    gate.hold_all([(12, one, Done(2), "jobs"), (12, two, Done(3), None)])
    gate.check_invariants()
    gate.open_to(11)
    assert (one.answers, two.answers) == ([(1, None)], [])
    gate.open_to(12)

    assert (one.answers, two.answers) == ([(1, None), (2, "jobs")], [(3, None)])
    gate.hold_all([(12, two, Done(4), None)])
    assert two.answers[-1] == (4, None), "durable already"


def test_a_client_is_alone_while_each_commit_releases_one_reply() -> None:
    gate, asker = ReplyGate(10), Asker()
    assert gate.is_for_lone_client

    gate.hold(11, asker, Done(1))
    assert not gate.is_for_lone_client, "a reply is outstanding"
    gate.open_to(11)
    assert gate.is_for_lone_client

    gate.hold(12, asker, Done(2))
    gate.hold(12, asker, Done(3))
    gate.open_to(12)
    assert not gate.is_for_lone_client, "two clients that were served together come again together"

    gate.hold(13, asker, Done(4))
    gate.open_to(13)
    assert gate.is_for_lone_client


def test_an_answer_may_hold_another_one_while_the_gate_opens() -> None:
    gate, last = ReplyGate(0), Asker()

    class Chaining(Asker):
        def answer(self, reply: Outgoing, queue: str | None = None) -> None:
            super().answer(reply, queue)
            gate.hold(9, last, Done(99))

    gate.hold(1, Chaining(), Done(1))
    gate.open_to(1)

    assert last.answers == []
    gate.open_to(9)
    assert last.answers == [(99, None)]


def test_giving_up_hands_out_what_was_held() -> None:
    gate, asker = ReplyGate(0), Asker()
    gate.hold(1, asker, Done(1))
    gate.hold(2, asker, Done(2))

    assert [reply.request_id for _, reply in gate.take_all()] == [1, 2]
    gate.open_to(2)
    assert asker.answers == []


@pytest.mark.parametrize("lsns", [(2, 1), (3, 3, 1)])
def test_the_invariant_notices_replies_out_of_order(lsns: tuple[int, ...]) -> None:
    gate = ReplyGate(0)
    for lsn in lsns:
        gate.hold(lsn, Asker(), Done(1))

    with pytest.raises(AssertionError):
        gate.check_invariants()


def test_a_push_waits_among_the_replies_and_is_dropped_when_nothing_will_be_durable() -> None:
    class Client:
        def __init__(self) -> None:
            self.told: list[Outgoing] = []

        def answer(self, reply: Outgoing, queue: str | None = None) -> None:
            self.told.append(reply)

    gate, client = ReplyGate(10), Client()
    check = TransactionCheck("q", 1, b"x", None, 2, 3, 1)
    gate.hold(11, client, Done(1))
    gate.hold(11, client, check)
    gate.hold(12, client, Done(2))
    gate.hold(12, client, check)

    gate.open_to(11)

    assert client.told == [Done(1), check]
    assert gate.take_all() == [(client, Done(2))]


def test_replies_that_were_given_up_go_to_stand_ins_when_they_are_durable() -> None:
    gate, asker, stand_in = ReplyGate(0), Asker(), Asker()
    for lsn in (1, 2, 3):
        gate.hold(lsn, asker, Done(lsn), "q")
    overdue = gate.held_so_far - 1

    taken = gate.give_up(overdue, 100, lambda _: stand_in)

    assert [(reply.request_id, queue) for _, reply, queue in taken] == [(1, "q"), (2, "q")]
    assert (len(gate), gate.let_go_so_far, gate.held_so_far) == (3, 2, 3)
    gate.check_invariants()
    gate.open_to(2)
    assert asker.answers == []
    assert stand_in.answers == [(1, "q"), (2, "q")]
    gate.open_to(3)
    assert asker.answers == [(3, "q")]


def test_giving_up_takes_no_more_than_the_limit_and_leaves_what_is_pushed() -> None:
    gate, asker, checker, stand_in = ReplyGate(0), Asker(), Pushed(), Asker()
    push = TransactionCheck("q", 7, b"x", None, 0, 0, 1)
    gate.hold(1, checker, push)
    gate.hold(1, asker, Done(2))
    gate.hold(1, asker, Done(3))

    assert [reply.request_id for _, reply, _ in gate.give_up(3, 2, lambda _: stand_in)] == [2]
    assert [reply.request_id for _, reply, _ in gate.give_up(3, 2, lambda _: stand_in)] == [3]
    assert gate.give_up(3, 2, lambda _: stand_in) == []
    gate.open_to(1)
    assert (checker.pushes, asker.answers) == ([push], []), "nobody waits for a push, so nobody was told anything"
