"""No reply of a broker with redundancy leaves without a recent proof that the broker leads."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cmqd.server.binary.accepted_connection import AcceptedConnection
from cmqd.server.clients.absent_client import AbsentClient
from cmqd.server.clients.key_watchers import KeyWatchers
from cmqd.server.redundancy.leader_gate import LeaderGate
from cmqd.server.replies.reply_gate import Outgoing, ReplyGate
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import Done, MessagesReceived
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.messages import ReceivedMessage
from support.server.led_log import LedLog
from support.server.server_rig import ServerRig, code_of


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
        self.replies = ReplyGate(5)
        self.gate = LeaderGate(
            self.replies,
            clock_s=lambda: self.now_s,
            proved_s=lambda: self.proved_s,
            ask=lambda: self.asked.append(self.now_s),
        )

    def reply(self, number: int, lsn: int = 5) -> None:
        self.gate.hold(lsn, self.client, Done(number))
        self.replies.check_invariants()

    def proof(self, asked_s: float, lsn: int = 5) -> None:
        """The answer to a commit that was handed over at this time."""
        self.proved_s = asked_s
        self.gate.open_to(lsn)
        self.replies.check_invariants()


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


def test_messages_of_a_reply_that_was_given_up_go_back_without_a_recent_proof() -> None:
    """Every commit takes longer than a proof counts: the messages would stay leased until the end of their leases."""
    rig = Rig()
    given_back: list[str] = []
    absent = AbsentClient("admin", lambda _account, queue, _messages: given_back.append(queue))
    rig.gate.hold(6, rig.client, MessagesReceived(1, list[ReceivedMessage]()), "orders")
    rig.replies.give_up(1, 10, lambda _asker: absent)
    rig.now_s = 200.0

    rig.proof(100.0, lsn=6)

    assert given_back == ["orders"]


def test_a_step_of_a_leader_waits_for_a_proof_that_was_asked_for_later() -> None:
    rig = Rig()
    taken: list[int] = []
    rig.gate.when_led(lambda: taken.append(0))
    rig.now_s = 160.0
    rig.gate.when_led(lambda: taken.append(1))
    rig.now_s = 170.0
    rig.gate.when_led(lambda: taken.append(2))
    assert (taken, rig.asked) == ([0], [160.0])

    rig.now_s = 180.0
    rig.proof(160.0)

    assert (taken, rig.asked) == ([0, 1], [160.0, 180.0])
    rig.proof(180.0)
    assert taken == [0, 1, 2]


def test_a_step_that_is_forgotten_is_not_taken() -> None:
    rig = Rig()
    rig.now_s = 160.0
    taken: list[int] = []
    steps = [partial(taken.append, number) for number in range(3)]
    for step in steps:
        rig.gate.when_led(step)

    rig.gate.forget(steps[1])
    rig.proof(160.0)

    assert taken == [0, 2]


@pytest.fixture
async def led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ServerRig, LedLog]]:
    """A server whose last proof is from long ago, as of a broker that was stopped and goes on."""
    monkeypatch.setattr("cmqd.testing.server_in_memory.MemoryLog", LedLog)
    rig = await ServerRig.make(tmp_path, max_requests_per_second_per_account=1)
    log = rig.log
    assert isinstance(log, LedLog)
    yield rig, log
    rig.check()
    rig.close()


async def test_a_wrong_key_is_refused_behind_a_proof(led: tuple[ServerRig, LedLog]) -> None:
    """Another leader may have made the key, which this broker does not know."""
    rig, log = led
    client = rig.connect(secret_key="wrong")
    await client.settle()
    assert (client.ended, log.asked) == (None, 1)

    log.proof_arrives()
    await client.settle()

    assert client.ended is not None
    assert client.ended.code == ErrorCode.AUTHENTICATION_FAILED
    assert client.transport.lost


async def test_a_welcome_leaves_behind_a_proof_and_the_replies_behind_the_welcome(
    led: tuple[ServerRig, LedLog],
) -> None:
    """Another leader may have disabled the key."""
    rig, log = led
    client = rig.connect()
    await client.settle()
    assert (client.opened, log.asked) == (None, 1)
    other = rig.connect()
    await other.settle()
    assert (other.opened, log.asked) == (None, 1), "one proof for all"

    log.proof_arrives()
    await client.settle()
    await other.settle()

    assert client.opened is not None
    assert other.opened is not None
    assert isinstance(await client.ask(wire.GetServerStatus), wire.ServerStatus)


async def test_a_handshake_that_was_never_proved_ends_without_a_word(led: tuple[ServerRig, LedLog]) -> None:
    rig, _ = led
    client = rig.connect()
    await client.settle()

    client.connection.end(ErrorCode.SHUTTING_DOWN, "the end")
    await client.settle()

    assert client.transport.lost
    assert (client.opened, client.ended) == (None, None)


async def test_a_connection_that_ends_before_its_proof_is_not_kept(led: tuple[ServerRig, LedLog]) -> None:
    """The engine may be silent for an hour, while clients come and go."""
    rig, _ = led
    clients = [rig.connect() for _ in range(3)]
    for client in clients:
        await client.settle()
    gate: Any = rig.server.part(LeaderGate)
    assert len(gate._steps) == 3

    for client in clients[:2]:
        client.transport.abort()
        await client.settle()

    assert [step.__self__ for step in gate._steps] == [clients[2].connection]


async def test_a_secret_that_waits_for_a_proof_arrives_before_the_change_of_its_key(
    led: tuple[ServerRig, LedLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that got the change first would keep the former secret."""
    rig, log = led
    log.proof_arrives()
    secret_id = rig.accounts.first_key("admin").secret_id
    gateway = await rig.client(await rig.accounts.create_role_key("admin", None, ["gateway"], ["*"], 1))
    rig.server.part(KeyWatchers).add(gateway.connection)
    log.now_s += 3600  # the machine was suspended
    order: list[str] = []
    answer = AcceptedConnection.answer

    def note(connection: AcceptedConnection, reply: Outgoing, queue: str | None = None) -> None:
        order.append(type(reply).__name__)
        answer(connection, reply, queue)

    monkeypatch.setattr(AcceptedConnection, "answer", note)
    gateway.begin(wire.GetKeySecret(gateway.next_id(), secret_id))
    await gateway.settle()
    rig.server.part(KeyWatchers).changed(secret_id, "disabled")
    assert order == []

    log.proof_arrives()

    assert order == ["KeySecret", "KeyChanged"]


async def test_a_refusal_at_admission_leaves_behind_a_proof(led: tuple[ServerRig, LedLog]) -> None:
    rig, log = led
    log.proof_arrives()
    client = await rig.client()
    await client.ask(wire.ListQueues)
    log.now_s += 3600  # the machine was suspended

    request_id = client.begin(wire.ListQueues(client.next_id()))
    await client.settle()

    assert (client.replies, log.asked) == ({}, 1)
    log.proof_arrives()
    await client.settle()
    assert code_of(client.replies[request_id]) == "too_many_requests"
