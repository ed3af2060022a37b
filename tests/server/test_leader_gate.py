"""No reply of a broker with redundancy leaves without a recent proof that the broker leads."""

from cmqd.server.leader_gate import LeaderGate
from cmqd.server.reply_gate import Outgoing
from cmqd_protocol.messages import Done


class Client:
    def __init__(self) -> None:
        self.answers: list[int] = []

    def answer(self, reply: Outgoing, queue: str | None = None) -> None:
        assert isinstance(reply, Done)
        self.answers.append(reply.request_id)


class Rig:
    """A gate at durable LSN 5, with a clock and proofs that the test decides."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.proved_s = 100.0
        self.asked: list[float] = []
        self.client = Client()
        self.gate = LeaderGate(
            5, clock_s=lambda: self.now_s, proved_s=lambda: self.proved_s, ask=lambda: self.asked.append(self.now_s)
        )

    def reply(self, number: int, lsn: int = 5) -> None:
        self.gate.hold(lsn, self.client, Done(number))
        self.gate.check_invariants()

    def proof(self, asked_s: float, lsn: int = 5) -> None:
        """The answer to a commit that was handed over at this time."""
        self.proved_s = asked_s
        self.gate.open_to(lsn)
        self.gate.check_invariants()


def test_a_reply_without_a_row_leaves_at_once_while_the_proof_is_recent() -> None:
    rig = Rig()
    rig.now_s = 100.9

    rig.reply(1)

    assert rig.client.answers == [1]
    assert rig.asked == []


def test_a_reply_without_a_row_waits_for_a_new_proof() -> None:
    """The first request of a broker that was stopped and goes on, before any of its timers."""
    rig = Rig()
    rig.now_s = 160.0

    rig.reply(1)
    rig.reply(2)

    assert rig.client.answers == []
    assert rig.asked == [160.0], "one proof for all"
    rig.now_s = 160.1
    rig.proof(160.0)
    assert rig.client.answers == [1, 2]
    rig.reply(3)
    assert rig.client.answers == [1, 2, 3]


def test_an_answer_that_lay_unread_proves_nothing_that_came_later() -> None:
    """The broker was stopped between the hand-over of a commit and the reading of its answer."""
    rig = Rig()
    rig.now_s = 160.0
    rig.reply(1)
    rig.now_s = 220.0
    rig.reply(2)

    rig.proof(160.0)

    assert rig.client.answers == [1]
    assert rig.asked == [160.0, 220.0]
    rig.proof(220.0)
    assert rig.client.answers == [1, 2]


def test_a_commit_that_was_handed_over_long_ago_asks_for_a_proof() -> None:
    rig = Rig()
    rig.reply(1, lsn=6)
    rig.now_s = 105.0

    rig.proof(100.0, lsn=6)

    assert rig.client.answers == []
    assert rig.asked == [105.0]
    rig.proof(105.0, lsn=6)
    assert rig.client.answers == [1]


def test_slow_proofs_still_release_replies() -> None:
    """Each proof takes longer than it counts, and replies come all the time."""
    rig = Rig()
    rig.now_s = 200.0
    for number in range(5):
        rig.reply(2 * number)
        rig.now_s += 2
        rig.reply(2 * number + 1)
        rig.proof(rig.asked[-1])

    assert rig.client.answers == list(range(8))


def test_a_reply_with_a_row_waits_for_its_row_alone() -> None:
    rig = Rig()
    rig.now_s = 160.0
    rig.reply(1, lsn=6)
    assert rig.asked == []

    rig.proof(160.0, lsn=6)

    assert rig.client.answers == [1]
