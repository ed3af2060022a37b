"""A leader that is cut off from its engine ends waiting receives, so that their clients look for another leader."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cmqd.log.values import BrokerSeen, EngineStatus, EngineView
from cmqd.server.redundancy.stalled_receives import ANSWERED_AT_ONCE, STALLED_AFTER_S, StalledReceives
from cmqd_protocol import messages as wire
from cmqd_protocol.features import ClientFeature
from support.server.led_log import LedLog
from support.server.server_rig import RigClient, ServerRig, a_queue, code_of

WORDS = (ClientFeature.STALLED_RECEIVES,)


class Led:
    """A leader with a client that understands stalls, and an older client."""

    def __init__(self, rig: ServerRig) -> None:
        self.rig = rig
        log = rig.log
        assert isinstance(log, LedLog)
        self.log = log
        log.proof_arrives()

    async def clients(self) -> tuple[RigClient, RigClient]:
        return await self.rig.client(features=WORDS), await self.rig.client()

    def cut_off(self, for_s: float) -> None:
        """The engine has been silent for so long since an append or a proof was handed over."""
        self.log.unanswered_s = self.log.now_s
        self.log.now_s += for_s

    async def beat(self) -> None:
        self.rig.server.part(StalledReceives).beat()
        await self.rig.turn()


@pytest.fixture
async def led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Led]:
    monkeypatch.setattr("cmqd.testing.server_in_memory.MemoryLog", LedLog)
    rig = await ServerRig.make(tmp_path)
    yield Led(rig)
    rig.check()
    rig.close()


async def waiting(client: RigClient, **named: Any) -> int:
    request_id = client.begin(wire.ReceiveMessages(client.next_id(), "jobs", 1, 30_000, **named))
    await client.settle()
    assert request_id not in client.replies
    return request_id


async def test_a_waiting_receive_is_answered_once_the_log_was_silent_for_3_s(led: Led) -> None:
    client, older = await led.clients()
    await a_queue(client)
    first, second = await waiting(client), await waiting(older)
    led.cut_off(STALLED_AFTER_S - 0.1)
    await led.beat()
    await client.settle()
    assert client.replies == {}

    led.log.now_s += 0.2
    await led.beat()
    await client.settle()
    await older.settle()

    reply: Any = client.replies.pop(first)
    assert (code_of(reply), reply.retryable, reply.retry_after_ms) == ("busy", True, 1_000)
    assert reply.details == {"stalled": True}
    assert second not in older.replies, "an older client would use up a repeat"


async def test_a_receive_that_begins_during_the_stall_is_answered_with_the_next_beat(led: Led) -> None:
    client, _ = await led.clients()
    await a_queue(client)
    led.cut_off(STALLED_AFTER_S)
    await led.beat()

    request_id = await waiting(client)
    await led.beat()
    await client.settle()

    assert code_of(client.replies.pop(request_id)) == "busy"


async def test_a_stall_that_is_over_ends_no_receive(led: Led) -> None:
    client, _ = await led.clients()
    await a_queue(client)
    await waiting(client)
    led.cut_off(10)
    led.log.unanswered_s = None

    await led.beat()
    await client.settle()

    assert client.replies == {}


async def test_more_receives_than_fit_a_turn_are_all_answered(led: Led) -> None:
    client, _ = await led.clients()
    await a_queue(client)
    requests = {await waiting(client) for _ in range(ANSWERED_AT_ONCE + 2)}
    led.cut_off(STALLED_AFTER_S)

    await led.beat()
    await client.settle()

    assert set(client.replies) == requests


async def test_a_stall_that_ends_between_two_slices_ends_no_further_receive(led: Led) -> None:
    client, _ = await led.clients()
    await a_queue(client)
    for _ in range(ANSWERED_AT_ONCE + 2):
        await waiting(client)
    led.cut_off(STALLED_AFTER_S)

    led.rig.server.part(StalledReceives).beat()
    led.log.unanswered_s = None
    await led.rig.turn()
    await client.settle()

    assert len(client.replies) == ANSWERED_AT_ONCE


async def test_a_waiting_receive_with_deletes_has_an_unknown_outcome(led: Led) -> None:
    """Its deletes may be durable, or not: only a reply of a leader may tell."""
    client, _ = await led.clients()
    await a_queue(client)
    await client.send("jobs", b"a")
    (message,) = await client.receive("jobs")
    request_id = await waiting(client, acknowledge=[message.receipt_handle])
    led.cut_off(STALLED_AFTER_S)

    await led.beat()
    await client.settle()

    reply: Any = client.replies.pop(request_id)
    assert (code_of(reply), reply.retry_after_ms) == ("outcome_unknown", 1_000), "no repeat with each beat"


async def test_messages_at_the_gate_go_back_uncounted_when_the_engine_answers_after_all(led: Led) -> None:
    client, older = await led.clients()
    await a_queue(client)
    await client.send("jobs", b"a", b"b")
    led.log.hold()
    first, second = await waiting(client), await waiting(older)
    led.cut_off(STALLED_AFTER_S)

    await led.beat()
    await client.settle()

    assert code_of(client.replies.pop(first)) == "outcome_unknown"
    assert client.connection.unread_receives == 0
    led.log.unanswered_s = None
    led.log.proof_arrives()
    led.log.let_go()
    await client.settle()
    await older.settle()
    reply: Any = older.replies.pop(second)
    assert [message.body for message in reply.messages] == [b"b"]
    await led.rig.turn()
    again = await client.receive("jobs")
    assert [(message.body, message.receive_count) for message in again] == [(b"a", 1)]


async def test_a_beat_examines_the_replies_alone_that_came_to_the_gate_since_the_last(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand senders wait at the gate for as long as the stall lasts, and there is a beat each second."""
    examined: list[object] = []
    give_up = StalledReceives._give_up  # pyright: ignore[reportPrivateUsage]

    def counted(self: StalledReceives, asker: Any, reply: Any, queue: str | None) -> Any:
        examined.append(reply)
        return give_up(self, asker, reply, queue)

    monkeypatch.setattr(StalledReceives, "_give_up", counted)
    client, older = await led.clients()
    await a_queue(client)
    led.log.hold()
    sends = ANSWERED_AT_ONCE + 2
    for _ in range(sends):
        older.begin(wire.SendMessages(older.next_id(), "jobs", [b"a"]))
    await older.settle()
    led.cut_off(STALLED_AFTER_S)

    led.rig.server.part(StalledReceives).beat()
    assert len(examined) == ANSWERED_AT_ONCE, "the rest in the next turn of the loop"
    await led.rig.turn()
    assert len(examined) == sends

    request_id = await waiting(client)
    await led.beat()
    await client.settle()

    assert code_of(client.replies.pop(request_id)) == "outcome_unknown"
    assert len(examined) == sends + 1
    led.log.unanswered_s = None
    led.log.proof_arrives()
    led.log.let_go()
    await older.settle()
    assert len(older.replies) == sends
    older.replies.clear()


async def test_the_welcome_of_a_leader_names_the_brokers_of_its_log(led: Led) -> None:
    alone = await led.rig.client()
    own = [led.rig.server.location["address"]]
    assert alone.opened is not None
    assert alone.opened.facts.addresses == tuple(own)
    seen = [BrokerSeen(own[0], "p", 1, True), BrokerSeen("b:5680", "q", 1, False)]
    led.log.engine_status = EngineStatus(view=EngineView(1, 1, seen, []))

    client = await led.rig.client()

    assert client.opened is not None
    assert client.opened.facts.addresses == (own[0], "b:5680")
