"""Sends, receives and deletes of several clients within an I/O batch are decided in a single call per kind."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.server.access.permissions import Permissions
from cmqd.server.binary.accepted_connection import AcceptedConnection
from cmqd.server.clients.client import Client
from cmqd.server.monitoring.counters import Counters
from cmqd.server.replies.reply_gate import Outgoing
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests import collecting
from cmqd.server.requests.dispatch import Dispatcher
from cmqd_protocol import messages as wire
from cmqd_protocol.frames import frame
from cmqd_protocol.messages import encoder
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_segment.records import ActorSeen
from cmqd_types.keys import Role
from support.server.server_rig import RigClient, ServerRig, code_of


async def with_queue(rig: ServerRig, clients: int, **attributes: Any) -> list[RigClient]:
    joined = [await rig.client() for _ in range(clients)]
    await joined[0].expect(wire.QueueInfo, wire.CreateQueue, "jobs", attributes)
    return joined


def note_calls(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(operation, number of requests) of the calls of the core."""
    calls: list[tuple[str, int]] = []
    for name in ("send_all", "receive_all", "delete_all"):
        real = getattr(rig.broker, name)

        def noted(
            account: str, queue: str, requests: Any, *rest: Any, _name: str = name, _real: Any = real, **named: Any
        ) -> Any:
            calls.append((_name, len(requests)))
            return _real(account, queue, requests, *rest, **named)

        monkeypatch.setattr(rig.broker, name, noted)
    return calls


def send(client: RigClient, *bodies: bytes, queue: str = "jobs") -> int:
    return client.begin(wire.SendMessages(client.next_id(), queue, list(bodies)))


def receive(client: RigClient, most: int = 1, wait_ms: int = 0) -> int:
    return client.begin(wire.ReceiveMessages(client.next_id(), "jobs", most, wait_ms))


async def settle(clients: list[RigClient]) -> None:
    for client in clients:
        await client.settle()


async def test_one_call_and_one_row_for_each_kind(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = await with_queue(rig, 6)
    calls = note_calls(rig, monkeypatch)
    lsn = rig.log.last_lsn

    asked = [receive(client) for client in clients[3:]]
    for number, client in enumerate(clients[:3]):
        send(client, b"%d" % number)
    assert calls == [], "nothing is decided before the I/O batch ends"
    await settle(clients)

    assert calls == [("send_all", 3), ("receive_all", 3)], "sends come first, whoever asked first"
    assert rig.log.last_lsn == lsn + 1
    got = [client.replies[request_id] for client, request_id in zip(clients[3:], asked, strict=True)]
    bodies = [message.body for one in got if isinstance(one, wire.MessagesReceived) for message in one.messages]
    assert bodies == [b"0", b"1", b"2"]

    for client, one in zip(clients[3:], got, strict=True):
        assert isinstance(one, wire.MessagesReceived)
        client.begin(wire.DeleteMessages(client.next_id(), "jobs", [one.messages[0].receipt_handle]))
    await settle(clients)
    assert calls[2:] == [("delete_all", 3)]
    assert rig.server.part(Counters).snapshot()["deleted"] == 3
    assert (await clients[0].counts("jobs"))["in_flight"] == 0


async def test_each_is_refused_for_itself(rig: ServerRig) -> None:
    clients = await with_queue(rig, 3, max_message_bytes=1024)

    ids = [send(client, body) for client, body in zip(clients, (b"a", bytes(1025), b"b"), strict=True)]
    await settle(clients)

    replies = [client.replies[request_id] for client, request_id in zip(clients, ids, strict=True)]
    assert isinstance(replies[0], wire.MessagesSent)
    assert code_of(replies[1]) == "message_too_large"
    assert isinstance(replies[2], wire.MessagesSent)
    assert rig.server.part(Counters).sent == 2


@pytest.mark.parametrize("make", ["send", "receive", "delete"])
async def test_a_missing_queue_is_told_to_each(rig: ServerRig, make: str) -> None:
    clients = [await rig.client() for _ in range(2)]
    requests: dict[str, Callable[[int], wire.Request]] = {
        "send": lambda number: wire.SendMessages(number, "nowhere", [b"x"]),
        "receive": lambda number: wire.ReceiveMessages(number, "nowhere", 1, 0),
        "delete": lambda number: wire.DeleteMessages(number, "nowhere", [1]),
    }

    ids = [client.begin(requests[make](client.next_id())) for client in clients]
    await settle(clients)

    told = [code_of(client.replies[request_id]) for client, request_id in zip(clients, ids, strict=True)]
    assert told == ["queue_not_found"] * 2
    assert [client.connection.unread_receives for client in clients] == [0, 0]


async def test_requests_of_one_client_have_effect_in_their_order(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (client,) = await with_queue(rig, 1)
    calls = note_calls(rig, monkeypatch)

    requests = [
        wire.ReceiveMessages(client.next_id(), "jobs", 16, 0),
        wire.SendMessages(client.next_id(), "jobs", [b"one"]),
        wire.SendMessages(client.next_id(), "jobs", [b"two"]),
        wire.ReceiveMessages(client.next_id(), "jobs", 1, 0),
        wire.ReceiveMessages(client.next_id(), "jobs", 16, 0),
        wire.ClearQueue(client.next_id(), "jobs"),
        wire.SendMessages(client.next_id(), "jobs", [b"three"]),
    ]
    for request in requests:
        client.machine.send(request)
    await client.settle()

    assert calls == [("receive_all", 1), ("send_all", 2), ("receive_all", 2), ("send_all", 1)]
    got = [client.replies[requests[place].request_id] for place in (0, 3, 4)]
    bodies = [[message.body for message in one.messages] for one in got if isinstance(one, wire.MessagesReceived)]
    assert bodies == [[], [b"one"], [b"two"]]
    assert [message.body for message in await client.receive("jobs")] == [b"three"]


async def test_two_queues_of_one_client_keep_their_order(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    (client,) = await with_queue(rig, 1)
    await client.expect(wire.QueueInfo, wire.CreateQueue, "other", {})
    calls = note_calls(rig, monkeypatch)

    for queue in ("jobs", "jobs", "other", "jobs"):
        client.machine.send(wire.SendMessages(client.next_id(), queue, [b"x"]))
    await client.settle()

    assert calls == [("send_all", 2), ("send_all", 1), ("send_all", 1)]


@pytest.mark.parametrize(
    ("count", "size", "together"), [(1, 10, 256), (100, 10, 2), (1, 30_000, 2), (1, 400_000, 1), (256, 10, 1)]
)
async def test_no_more_is_collected_than_a_batch_may_be(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, count: int, size: int, together: int
) -> None:
    (client,) = await with_queue(rig, 1, max_message_bytes=1_048_576)
    calls = note_calls(rig, monkeypatch)

    for _ in range(together + 1):
        client.machine.send(wire.SendMessages(client.next_id(), "jobs", [bytes(size)] * count))
    client.deliver()
    rig.give_turns()
    assert [requests for _, requests in calls] == [together] * (1 + (together == 1))
    await client.settle()

    assert sum(requests for _, requests in calls) == together + 1
    assert len(client.replies) == together + 1
    assert collecting.MAX_MESSAGES == 256


class TestReceives:
    async def test_a_client_that_goes_away_leaves_nothing_in_flight(self, rig: ServerRig) -> None:
        one, two = await with_queue(rig, 2)
        await one.send("jobs", b"x")

        receive(two)
        two.transport.lose()
        await one.settle()

        assert (await one.counts("jobs")) == (await one.counts("jobs")) | {"active": 1, "in_flight": 0}
        (message,) = await one.receive("jobs")
        assert message.receive_count == 1

    async def test_a_client_that_goes_away_waits_no_longer(self, rig: ServerRig) -> None:
        one, two = await with_queue(rig, 2)

        receive(two, wait_ms=30_000)
        two.transport.lose()
        await one.settle()

        assert len(rig.server.part(WaitingRequests)) == 0
        assert (await one.counts("jobs"))["waiting_receives"] == 0

    async def test_one_is_cancelled_in_the_wake_up_in_which_it_came(self, rig: ServerRig) -> None:
        one, two = await with_queue(rig, 2)

        waiting = receive(two, wait_ms=30_000)
        two.cancel(waiting)
        await settle([one, two])
        assert code_of(two.replies[waiting]) == "cancelled"

        await one.send("jobs", b"x")
        taking = receive(two)
        two.cancel(taking)
        await settle([one, two])
        assert code_of(two.replies[taking]) == "cancelled"
        (message,) = await one.receive("jobs")
        assert (message.body, message.receive_count) == (b"x", 1), "as if it had not been received"

    async def test_no_more_are_answered_ahead_of_the_reader_than_the_limit(self, tmp_path: Path) -> None:
        rig = await ServerRig.make(tmp_path, max_unread_receives=2)
        (client,) = await with_queue(rig, 1)
        await client.send("jobs", *[b"%d" % number for number in range(6)])
        rig.log.hold()

        ids = [receive(client) for _ in range(6)]
        await rig.turn()

        assert client.connection.unread_receives == 2
        assert rig.broker.queue_info("admin", "jobs").counts["in_flight"] == 2
        rig.log.let_go()
        await client.settle()
        bodies: list[bytes] = []
        for request_id in ids:
            reply = client.replies[request_id]
            assert isinstance(reply, wire.MessagesReceived)
            bodies += [message.body for message in reply.messages]
        assert bodies == [b"%d" % number for number in range(6)]
        assert client.connection.unread_receives == 0
        rig.close()

    async def test_those_that_wait_are_no_unread_ones(self, tmp_path: Path) -> None:
        rig = await ServerRig.make(tmp_path, max_unread_receives=2)
        one, two = await with_queue(rig, 2)

        for _ in range(7):
            receive(two, wait_ms=30_000)
        await settle([one, two])

        assert len(rig.server.part(WaitingRequests)) == 7
        assert two.connection.unread_receives == 0
        await one.send("jobs", *[b"%d" % number for number in range(7)])
        await settle([one, two])
        assert len(two.replies) == 7
        rig.close()

    async def test_those_that_were_parked_are_all_taken_up_again(self, tmp_path: Path) -> None:
        rig = await ServerRig.make(tmp_path, max_unread_receives=2)
        one, two = await with_queue(rig, 2)
        await one.expect(wire.QueueInfo, wire.CreateQueue, "other", {})
        await one.send("jobs", b"1", b"2")
        rig.log.hold()

        for _ in range(5):
            receive(two, wait_ms=30_000)
        last = two.begin(wire.ReceiveMessages(two.next_id(), "other", 1, 30_000))
        await rig.turn()
        rig.log.let_go()
        await settle([one, two])

        assert len(rig.server.part(WaitingRequests)) == 4
        await one.send("other", b"x")
        await settle([one, two])
        assert isinstance(two.replies[last], wire.MessagesReceived)
        rig.close()

    @pytest.mark.parametrize("cold", [False, True])
    async def test_receives_that_find_messages_are_served_although_the_account_has_its_limit_of_waiting_ones(
        self, tmp_path: Path, cold: bool
    ) -> None:
        rig = await ServerRig.make(tmp_path, max_waiting_receives_per_account=1)
        waiting, asking = await with_queue(rig, 2)
        await asking.expect(wire.QueueInfo, wire.CreateQueue, "full", {})
        await asking.send("full", *[b"x"] * 3)
        receive(waiting, wait_ms=30_000)
        await settle([waiting, asking])
        assert len(rig.server.part(WaitingRequests)) == 1
        if cold:
            rig.broker.runtime.queues[rig.broker.facts.queues.find("admin", "full").queue_id].window.messages.clear()

        found = await asking.expect(wire.MessagesReceived, wire.ReceiveMessages, "full", 1, 30_000)
        empty = await asking.expect(wire.MessagesReceived, wire.ReceiveMessages, "jobs", 1, 0)
        refused = await asking.expect(wire.Error, wire.ReceiveMessages, "jobs", 1, 30_000)

        assert len(found.messages) == 1
        assert empty.messages == []
        assert (refused.name, refused.retry_after_ms, refused.details) == ("too_many_requests", 1_000, {"limit": 1})
        rig.close()

    async def test_peeks_are_no_waiting_receives(self, tmp_path: Path) -> None:
        rig = await ServerRig.make(tmp_path, max_waiting_receives_per_account=1)
        (client,) = await with_queue(rig, 1)
        await client.send("jobs", b"x")
        rig.broker.runtime.queues[rig.broker.facts.queues.find("admin", "jobs").queue_id].window.messages.clear()
        client.begin(wire.PeekMessages(client.next_id(), "jobs"))
        await client.expect(wire.QueueInfo, wire.CreateQueue, "empty", {})

        client.begin(wire.ReceiveMessages(client.next_id(), "empty", 1, 30_000))
        await client.settle()

        assert len(rig.server.part(WaitingRequests)) == 1
        rig.close()

    async def test_no_more_wait_than_the_account_may(self, tmp_path: Path) -> None:
        rig = await ServerRig.make(tmp_path, max_waiting_receives_per_account=3)
        clients = await with_queue(rig, 5)
        await clients[0].send("jobs", b"x")

        ids = [receive(client, wait_ms=30_000) for client in clients]
        await settle(clients)

        assert isinstance(clients[0].replies[ids[0]], wire.MessagesReceived)
        assert len(rig.server.part(WaitingRequests)) == 3
        assert code_of(clients[4].replies[ids[4]]) == "too_many_requests"
        clients[1].transport.lose()
        receive(clients[4], wait_ms=30_000)
        await settle(clients[2:])
        assert len(rig.server.part(WaitingRequests)) == 3
        rig.close()


async def test_requests_collected_when_the_server_drains_are_answered(rig: ServerRig) -> None:
    one, two = await with_queue(rig, 2)

    sent = send(one, b"x", b"y")
    waiting = receive(two, most=1, wait_ms=30_000)
    taking = receive(two, most=16, wait_ms=30_000)
    empty = receive(two, wait_ms=30_000)
    draining = asyncio.ensure_future(rig.server.drain(1))
    await settle([one, two])
    await draining
    for client in (one, two):
        client.read()

    assert isinstance(one.replies[sent], wire.MessagesSent)
    for request_id, count in ((waiting, 1), (taking, 1)):
        reply = two.replies[request_id]
        assert isinstance(reply, wire.MessagesReceived)
        assert len(reply.messages) == count
    assert code_of(two.replies[empty]) == "shutting_down"


async def test_what_is_collected_when_the_storage_fails_has_an_unknown_outcome(rig: ServerRig) -> None:
    one, two = await with_queue(rig, 2)

    sent, asked = send(one, b"x"), receive(two, wait_ms=30_000)
    rig.log.fail(LogFailed("the disk is gone"))
    await settle([one, two])

    for client, request_id in ((one, sent), (two, asked)):
        reply = client.replies[request_id]
        assert isinstance(reply, wire.Error)
        assert reply.code == ErrorCode.OUTCOME_UNKNOWN


async def test_collected_requests_count_as_pending(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, busy_pending_bytes=64 * 1024)
    clients = [await rig.client() for _ in range(10)]
    for number, client in enumerate(clients):
        await client.expect(wire.QueueInfo, wire.CreateQueue, f"q{number}", {})

    ids = [send(client, bytes(20_000), queue=f"q{number}") for number, client in enumerate(clients)]
    await settle(clients)

    replies = [client.replies[request_id] for client, request_id in zip(clients, ids, strict=True)]
    assert [isinstance(reply, wire.MessagesSent) for reply in replies] == [True] * 4 + [False] * 6
    assert {code_of(reply) for reply in replies[4:]} == {"busy"}
    rig.close()


async def with_queues(rig: ServerRig, count: int) -> list[RigClient]:
    """A client for each of the queues q0, q1, ..."""
    clients = [await rig.client() for _ in range(count)]
    for number, client in enumerate(clients):
        await client.expect(wire.QueueInfo, wire.CreateQueue, f"q{number}", {})
    return clients


def note_appends(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of records of each append to the log, without the record of the client."""
    appends: list[int] = []
    real = rig.log.append

    def noted(records: Any, bodies: Any, now_ms: int) -> Any:
        appends.append(sum(not isinstance(record, ActorSeen) for record in records))
        return real(records, bodies, now_ms)

    monkeypatch.setattr(rig.log, "append", noted)
    return appends


class TestQueuesOfAnIoBatch:
    async def test_share_an_append_for_each_operation(self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        clients = await with_queues(rig, 4)
        appends = note_appends(rig, monkeypatch)

        sent = [send(client, b"%d" % number, queue=f"q{number}") for number, client in enumerate(clients)]
        asked = [client.begin(wire.ReceiveMessages(client.next_id(), "q0", 1, 0)) for client in clients[:1]]
        await settle(clients)

        # The first client's receive came behind its own send, which was decided before it, alone.
        assert appends == [1, 3, 1]
        for number, (client, request_id) in enumerate(zip(clients, sent, strict=True)):
            assert isinstance(client.replies[request_id], wire.MessagesSent)
            if number:
                assert [message.body for message in await client.receive(f"q{number}")] == [b"%d" % number]
        reply = clients[0].replies[asked[0]]
        assert isinstance(reply, wire.MessagesReceived)
        assert [message.body for message in reply.messages] == [b"0"]

    async def test_fill_no_more_than_a_row_of_the_log(self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        clients = await with_queues(rig, 5)
        appends = note_appends(rig, monkeypatch)

        for number, client in enumerate(clients):
            send(client, bytes(30_000), queue=f"q{number}")
        await settle(clients)

        assert appends == [2, 2, 1]

    async def test_are_refused_each_for_itself(self, rig: ServerRig) -> None:
        clients = await with_queues(rig, 3)

        ids = [send(client, b"x", queue=name) for client, name in zip(clients, ("q0", "nowhere", "q2"), strict=True)]
        await settle(clients)

        replies = [client.replies[request_id] for client, request_id in zip(clients, ids, strict=True)]
        assert isinstance(replies[0], wire.MessagesSent)
        assert code_of(replies[1]) == "queue_not_found"
        assert isinstance(replies[2], wire.MessagesSent)

    async def test_have_their_effects_before_the_next_operation(self, tmp_path: Path) -> None:
        rig = await ServerRig.make(tmp_path, max_waiting_receives_per_account=1)
        clients = await with_queues(rig, 3)
        waiting = clients[0].begin(wire.ReceiveMessages(clients[0].next_id(), "q0", 1, 30_000))
        await settle(clients)

        send(clients[1], b"x", queue="q0")
        second = clients[2].begin(wire.ReceiveMessages(clients[2].next_id(), "q2", 1, 30_000))
        await settle(clients)

        assert isinstance(clients[0].replies[waiting], wire.MessagesReceived)
        assert second not in clients[2].replies, "the wait that the send ended does not count against the receive"
        rig.check()
        rig.close()

    @pytest.mark.parametrize("broken_queue", ["q0", "q1", "q2"])
    async def test_are_unknown_after_a_bug_in_one_of_them(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch, broken_queue: str
    ) -> None:
        clients = await with_queues(rig, 3)
        real = rig.broker.receive_all

        def broken(account: str, name: str, *rest: Any, **named: Any) -> Any:
            if name == broken_queue:
                raise RuntimeError("a bug")
            return real(account, name, *rest, **named)

        monkeypatch.setattr(rig.broker, "receive_all", broken)
        await clients[0].send("q0", b"x")
        lsn = rig.log.last_lsn
        ids = [
            client.begin(wire.ReceiveMessages(client.next_id(), f"q{number}", 1, 30_000))
            for number, client in enumerate(clients)
        ]
        await settle(clients)

        assert rig.log.last_lsn == lsn, "a receive that was decided before the bug is not appended"
        for client, request_id in zip(clients, ids, strict=True):
            reply = client.replies[request_id]
            assert isinstance(reply, wire.Error)
            assert reply.code == ErrorCode.OUTCOME_UNKNOWN
            assert not client.transport.lost
        await rig.server.end("a bug", 0.1)


async def test_room_in_the_log_is_found_anew_after_a_decision(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, busy_pending_bytes=64 * 1024)
    clients = await with_queue(rig, 8)
    rig.log.hold()

    ids: list[int] = []
    for client in clients:
        # Each in an I/O batch of its own: no request is collected beside it.
        ids.append(send(client, bytes(20_000)))
        await rig.turn()
    rig.log.let_go()
    await settle(clients)

    replies = [client.replies[request_id] for client, request_id in zip(clients, ids, strict=True)]
    assert [isinstance(reply, wire.MessagesSent) for reply in replies] == [True] * 4 + [False] * 4
    await clients[0].send("jobs", b"there is room again")
    rig.close()


async def test_a_disk_that_fills_up_refuses_the_next_io_batch(rig: ServerRig) -> None:
    (client,) = await with_queue(rig, 1)
    await client.send("jobs", b"fits")

    rig.server.admission.sends_refused = "the disk is nearly full"
    refused = await client.ask(wire.SendMessages, "jobs", [b"does not"])

    assert code_of(refused) == "disk_nearly_full"


async def test_a_disk_that_fills_up_refuses_sends_after_a_request_that_was_not_collected(rig: ServerRig) -> None:
    (client,) = await with_queue(rig, 1)
    # Examines the log as sends do, and joins no group.
    assert code_of(await client.ask(wire.SendHalfMessages, "jobs", [b"half"])) == "not_transactional"

    rig.server.admission.sends_refused = "the disk is nearly full"
    refused = await client.ask(wire.SendMessages, "jobs", [b"does not"])

    assert code_of(refused) == "disk_nearly_full"


def said(reply: wire.AnyReply) -> object:
    """A reply without its receipt handles, which differ from server to server."""
    if not isinstance(reply, wire.MessagesReceived):
        return reply
    return [(message.message_id, message.body, message.receive_count) for message in reply.messages]


class TestRuns:
    """Sends of a client that arrive in a single read join their group together."""

    async def test_plain_sends_to_a_queue_go_together_and_keep_their_order(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, other = await with_queue(rig, 2)
        calls = note_calls(rig, monkeypatch)
        alone: list[wire.Request] = []

        def dispatch(_: Client, request: wire.Request) -> None:
            alone.append(request)

        monkeypatch.setattr(rig.server.part(Dispatcher), "dispatch", dispatch)
        requests, sent = rig.server.part(Counters).requests, rig.server.part(Counters).sent

        asked = [wire.SendMessages(client.next_id(), "jobs", [b"%d" % number]) for number in range(300)]
        for request in asked:
            client.machine.send(request)
        client.deliver()
        monkeypatch.undo()
        await settle([client, other])

        assert alone == []
        assert calls == [("send_all", 256)], "a full group is decided at once"
        assert rig.server.part(Counters).requests - requests == rig.server.part(Counters).sent - sent == 300
        replies = [client.replies[request.request_id] for request in asked]
        ids = [reply.message_ids for reply in replies if isinstance(reply, wire.MessagesSent)]
        assert len(ids) == 300
        assert ids == sorted(ids)
        bodies: list[bytes] = []
        while received := await other.receive("jobs", 16):
            bodies += [message.body for message in received]
        assert bodies == [b"%d" % number for number in range(300)]

    @pytest.mark.parametrize("seed", range(12))
    async def test_requests_have_the_same_outcome_together_as_one_by_one(self, tmp_path: Path, seed: int) -> None:
        random = Random(seed)
        settings: dict[str, Any] = random.choice([{}, {"max_requests_per_second_per_account": 40}])
        rigs = [await ServerRig.make(tmp_path / name, **settings) for name in ("one", "two")]
        clients = [(await with_queue(rig, 1))[0] for rig in rigs]
        for client in clients:
            await client.expect(wire.QueueInfo, wire.CreateQueue, "more", {"max_message_bytes": 1024})
        kinds: list[Callable[[int], wire.Request]] = [
            lambda number: wire.SendMessages(number, "jobs", [b"x" * random.choice((1, 256))]),
            lambda number: wire.SendMessages(number, "more", [b"x" * random.choice((0, 1, 2048))]),
            lambda number: wire.SendMessages(number, "none", [b"x"]),
            lambda number: wire.SendMessages(number, "jobs", [b"x"] * random.choice((1, 3, 100))),
            lambda number: wire.SendMessages(number, "jobs", [b"x"], headers=[{"k": "v"}]),
            lambda number: wire.SendMessages(number, "jobs", [b"x"], session=7, sequence=number),
            lambda number: wire.SendMessages(number, "jobs", [bytes(3_000)]),
            lambda number: wire.ReceiveMessages(number, "jobs", 3, 0),
            lambda number: wire.ListQueues(number),
        ]
        for _ in range(12):
            asked: list[wire.Request] = []
            for _ in range(random.choice((1, 3))):
                # Mostly runs of the first kind.
                make = random.choice([kinds[0], random.choice(kinds)])
                asked += [make(clients[0].next_id()) for _ in range(random.choice((1, 2, 20, 300)))]
            clients[1]._last_id = clients[0]._last_id  # pyright: ignore[reportPrivateUsage]
            stream = b"".join(frame(encoder.encode(request)) for request in asked)
            together, apart = clients
            for request in asked:
                together.machine.send(request)
                apart.machine.send(request)
                for data in apart.machine.data_to_send(0):
                    apart.connection.data_received(data)
            assert b"".join(together.machine.data_to_send(0)) == stream
            together.connection.data_received(stream)
            await settle(clients)
            assert {number: said(reply) for number, reply in together.replies.items()} == {
                number: said(reply) for number, reply in apart.replies.items()
            }
            assert len(together.replies) == len(asked)
            for client in clients:
                client.replies.clear()
        assert rigs[0].server.part(Counters) == rigs[1].server.part(Counters)
        for rig in rigs:
            rig.close()

    async def test_a_run_beyond_the_room_in_the_log_is_refused_from_there_on(self, tmp_path: Path) -> None:
        rig = await ServerRig.make(tmp_path, busy_pending_bytes=64 * 1024)
        (client,) = await with_queue(rig, 1)
        rig.log.hold()
        for _ in range(4):
            send(client, bytes(14_000))
            await rig.turn()

        asked = [wire.SendMessages(client.next_id(), "jobs", [bytes(1_000)]) for _ in range(15)]
        for request in asked:
            client.machine.send(request)
        client.deliver()
        rig.log.let_go()
        await client.settle()

        replies = [client.replies[request.request_id] for request in asked]
        accepted = [isinstance(reply, wire.MessagesSent) for reply in replies]
        assert accepted == sorted(accepted, reverse=True)
        assert 5 <= sum(accepted) <= 10
        assert {code_of(reply) for reply in replies[sum(accepted) :]} == {"busy"}
        rig.close()

    async def test_an_earlier_request_for_another_operation_is_decided_first(self, rig: ServerRig) -> None:
        (client,) = await with_queue(rig, 1)

        asked = receive(client, most=16)
        for _ in range(3):
            client.machine.send(wire.SendMessages(client.next_id(), "jobs", [b"x"]))
        client.deliver()
        await client.settle()

        reply = client.replies[asked]
        assert isinstance(reply, wire.MessagesReceived)
        assert reply.messages == []
        assert len(await client.receive("jobs", 16)) == 3

    async def test_a_key_for_some_names_is_checked_for_each_request(self, rig: ServerRig) -> None:
        (client,) = await with_queue(rig, 1)
        client.connection.use_permissions(Permissions([Role.SEND], ["other*"]))
        for _ in range(3):
            client.machine.send(wire.SendMessages(client.next_id(), "jobs", [b"x"]))
        client.deliver()
        await client.settle()

        assert {code_of(reply) for reply in list(client.replies.values())[-3:]} == {"permission_denied"}


class TestABug:
    async def test_while_it_decides_ends_all_and_touches_the_log_no_more(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = await with_queue(rig, 2)

        def broken(*_arguments: Any) -> Any:
            raise RuntimeError("a bug")

        monkeypatch.setattr(rig.broker, "receive_all", broken)
        lsn = rig.log.last_lsn
        ids = [(two, send(two, b"y")), (one, receive(one)), (one, send(one, b"x")), (two, send(two, b"z"))]
        await settle([one, two])

        assert rig.log.last_lsn == lsn
        for client, request_id in ids:
            reply = client.replies[request_id]
            assert isinstance(reply, wire.Error)
            assert reply.code == ErrorCode.OUTCOME_UNKNOWN
        await rig.server.end("a bug", 0.1)

    async def test_when_some_wait_already_each_is_answered_once(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = await with_queue(rig, 2)
        await one.send("jobs", b"x")

        def broken(*_arguments: Any) -> Any:
            raise RuntimeError("a bug")

        monkeypatch.setattr(rig.log, "append", broken)
        ids = [(one, receive(one, wait_ms=30_000)), (two, receive(two, wait_ms=30_000))]
        await settle([one, two])

        for client, request_id in ids:
            reply = client.replies[request_id]
            assert isinstance(reply, wire.Error)
            assert reply.code == ErrorCode.OUTCOME_UNKNOWN
        assert not one.transport.lost
        assert not two.transport.lost

    async def test_in_an_answer_that_is_durable_already_ends_the_server(
        self, rig: ServerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, other = await with_queue(rig, 2)
        answer = AcceptedConnection.answer

        def broken(connection: AcceptedConnection, reply: Outgoing, queue: str | None = None) -> None:
            if isinstance(reply, wire.MessagesReceived):
                raise ValueError("a bug")
            answer(connection, reply, queue)

        monkeypatch.setattr(AcceptedConnection, "answer", broken)
        # Without messages and records: the reply depends on rows that are durable.
        client.begin(wire.ReceiveMessages(client.next_id(), "jobs", 1, 0))
        await client.settle()

        assert [str(failure) for failure in rig.failures] == ["a bug"]
        assert code_of(await other.ask(wire.SendMessages, "jobs", [b"x"])) == "outcome_unknown"
        await rig.server.end("a bug", 0.1)
