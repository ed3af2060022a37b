"""Sends of several clients that each wait for a single answer join their group together, as if each had gone alone."""

import asyncio
from pathlib import Path

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.server.access.permissions import Permissions
from cmqd.server.monitoring.counters import Counters
from cmqd.server.requests.collecting import MAX_LONE_BYTES, MAX_LONE_SENDS, Collector, LoneSends
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.keys import Role
from support.server.server_rig import RigClient, ServerRig, a_queue, code_of


async def with_queue(rig: ServerRig, clients: int, name: str = "jobs") -> list[RigClient]:
    joined = [await rig.client() for _ in range(clients)]
    await a_queue(joined[0], name)
    return joined


def send(client: RigClient, body: bytes, queue: str = "jobs") -> int:
    return client.begin(wire.SendMessages(client.next_id(), queue, [body]))


def lone_sends(rig: ServerRig) -> LoneSends:
    return rig.server.part(Collector).lone_sends


async def settle(clients: list[RigClient]) -> None:
    for client in clients:
        if not client.transport.lost:
            await client.settle()


async def bodies(client: RigClient, queue: str = "jobs") -> list[bytes]:
    return [message.body for message in await client.receive(queue, 256)]


async def test_the_first_goes_alone_and_the_others_join_it(rig: ServerRig) -> None:
    clients = await with_queue(rig, 5)
    counters = rig.server.part(Counters)
    requests = counters.requests

    ids = [send(client, b"%d" % number) for number, client in enumerate(clients)]
    assert list(lone_sends(rig).sends) == [client.connection for client in clients[1:]]
    await settle(clients)

    replies = [client.replies[request_id] for client, request_id in zip(clients, ids, strict=True)]
    message_ids = [reply.message_ids for reply in replies if isinstance(reply, wire.MessagesSent)]
    assert message_ids == sorted(message_ids)
    assert len(message_ids) == 5
    assert (counters.requests - requests, counters.sent) == (5, 5)
    assert (lone_sends(rig).sends, lone_sends(rig).queue) == ({}, "")
    assert await bodies(clients[0]) == [b"%d" % number for number in range(5)]


async def test_a_later_request_of_a_client_comes_behind_its_send(rig: ServerRig) -> None:
    clients = await with_queue(rig, 3)

    for client in clients:
        send(client, b"x")
    cleared = clients[1].begin(wire.ClearQueue(clients[1].next_id(), "jobs"))
    again = send(clients[1], b"behind")
    await settle(clients)

    assert not isinstance(clients[1].replies[cleared], wire.Error)
    assert isinstance(clients[1].replies[again], wire.MessagesSent)
    assert await bodies(clients[0]) == [b"behind"]


async def test_a_second_send_and_a_run_of_a_client_come_behind_its_first(rig: ServerRig) -> None:
    clients = await with_queue(rig, 3)
    send(clients[0], b"first")
    send(clients[1], b"a1")
    send(clients[2], b"b1")

    send(clients[1], b"a2")
    clients[2].feed(*(wire.SendMessages(clients[2].next_id(), "jobs", [body]) for body in (b"b2", b"b3")))
    await settle(clients)

    assert await bodies(clients[0]) == [b"first", b"a1", b"b1", b"a2", b"b2", b"b3"]


async def test_a_cancel_finds_the_send_decided(rig: ServerRig) -> None:
    clients = await with_queue(rig, 2)
    send(clients[0], b"x")
    sent = send(clients[1], b"y")

    clients[1].cancel(sent)
    assert not lone_sends(rig).sends
    await settle(clients)

    assert isinstance(clients[1].replies[sent], wire.MessagesSent)
    assert await bodies(clients[0]) == [b"x", b"y"]


async def test_the_send_of_a_client_that_disconnects_is_stored(rig: ServerRig) -> None:
    clients = await with_queue(rig, 3)
    for client in clients:
        send(client, b"x")

    clients[1].transport.lose()
    assert not lone_sends(rig).sends
    await settle(clients)

    assert await bodies(clients[0]) == [b"x"] * 3


def broken(*_: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("fails_in_the_core", [False, True])
async def test_a_failure_leaves_each_send_unknown(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, fails_in_the_core: bool
) -> None:
    clients = await with_queue(rig, 3)

    ids = [send(client, b"x") for client in clients]
    if fails_in_the_core:
        monkeypatch.setattr(rig.broker, "send_all", broken)
    else:
        rig.log.fail(LogFailed("the disk is gone"))
    late = send(clients[0], b"late")
    await settle(clients)

    for client, request_id in [*zip(clients, ids, strict=True), (clients[0], late)]:
        reply = client.replies[request_id]
        assert isinstance(reply, wire.Error)
        assert reply.code == ErrorCode.OUTCOME_UNKNOWN
    assert not lone_sends(rig).sends


async def test_a_failure_ends_the_wait_at_once(rig: ServerRig) -> None:
    clients = await with_queue(rig, 2)
    for client in clients:
        send(client, b"x")

    rig.server.halt.fail(LogFailed("the disk is gone"))

    assert (lone_sends(rig).sends, lone_sends(rig).queue) == ({}, "")


async def test_sends_under_way_are_stored_when_the_server_drains(rig: ServerRig) -> None:
    clients = await with_queue(rig, 3)

    ids = [send(client, b"x") for client in clients]
    draining = asyncio.ensure_future(rig.server.drain(1))
    await settle(clients)
    await draining
    for client in clients:
        client.read()

    replies = [client.replies[request_id] for client, request_id in zip(clients, ids, strict=True)]
    assert [type(reply) for reply in replies] == [wire.MessagesSent] * 3


async def test_each_is_refused_for_itself_without_room(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, busy_pending_bytes=64 * 1024)
    clients = await with_queue(rig, 21)
    rig.log.hold()
    send(clients[20], bytes(50_000))
    await rig.turn()

    ids = [send(client, bytes(1024)) for client in clients[:20]]
    assert len(lone_sends(rig).sends) == 19
    await rig.turn()
    rig.log.let_go()
    await settle(clients)

    replies = [client.replies[request_id] for client, request_id in zip(clients, ids, strict=False)]
    assert [isinstance(reply, wire.MessagesSent) for reply in replies] == [True] * 16 + [False] * 4
    assert {code_of(reply) for reply in replies[16:]} == {"busy"}
    rig.check()
    rig.close()


async def test_a_rate_counts_each_send(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_requests_per_second_per_account=8)
    clients = await with_queue(rig, 12)

    ids = [send(client, b"x") for client in clients]
    assert not lone_sends(rig).sends
    await settle(clients)

    replies = [client.replies[request_id] for client, request_id in zip(clients, ids, strict=True)]
    assert [isinstance(reply, wire.MessagesSent) for reply in replies] == [True] * 7 + [False] * 5
    rig.close()


async def test_sends_behind_a_full_group_leave_no_queue_for_the_next_batch(rig: ServerRig) -> None:
    """With a queue, sends of the next batch would wait without a look at admission, which may refuse all by then."""
    clients = await with_queue(rig, 4)
    send(clients[0], b"first")
    clients[3].begin(wire.SendMessages(clients[3].next_id(), "jobs", [b"x"] * 254))

    for client in clients[1:3]:
        send(client, b"x")
    assert len(lone_sends(rig).sends) == 2
    await settle(clients)

    assert (lone_sends(rig).sends, lone_sends(rig).queue) == ({}, "")
    assert len(await bodies(clients[0])) == 256
    assert len(await bodies(clients[0])) == 1


async def test_no_more_wait_for_each_other_than_the_limit(rig: ServerRig) -> None:
    clients = await with_queue(rig, MAX_LONE_SENDS + 2)

    for number, client in enumerate(clients):
        send(client, b"%d" % number)
    assert len(lone_sends(rig).sends) == 1
    await settle(clients)

    assert await bodies(clients[0]) == [b"%d" % number for number in range(len(clients))]


async def test_other_requests_do_not_wait(rig: ServerRig) -> None:
    """Other queues, headers, batches, large bodies, restricted keys and clients of a gateway: all checks hold."""
    clients = await with_queue(rig, 7)
    await a_queue(clients[0], "other")
    clients[5].connection.use_permissions(Permissions([Role.CONSUME], ["*"]))
    stated = wire.StatedClient("10.0.0.9:1", "shop")
    send(clients[0], b"first")

    send(clients[1], b"other", queue="other")
    clients[2].begin(wire.SendMessages(clients[2].next_id(), "jobs", [b"named"], [{"name": "value"}]))
    clients[3].begin(wire.SendMessages(clients[3].next_id(), "jobs", [b"1", b"2"]))
    send(clients[4], bytes(MAX_LONE_BYTES + 1))
    clients[6].begin(wire.SendMessages(clients[6].next_id(), "jobs", [b"stated"], on_behalf_of=stated))
    refused = send(clients[5], b"refused")
    assert not lone_sends(rig).sends
    await settle(clients)

    assert code_of(clients[5].replies[refused]) == "permission_denied"
    assert await bodies(clients[0]) == [b"first", b"named", b"1", b"2", bytes(MAX_LONE_BYTES + 1), b"stated"]
    assert await bodies(clients[0], "other") == [b"other"]


async def test_a_queue_of_another_account_is_another_queue(rig: ServerRig) -> None:
    (client,) = await with_queue(rig, 1)
    other = await rig.client(await rig.accounts.create_account("admin", "other", 1))
    await a_queue(other)

    send(client, b"admin's")
    send(other, b"other's")
    assert not lone_sends(rig).sends
    await settle([client, other])

    assert await bodies(client) == [b"admin's"]
    assert await bodies(other) == [b"other's"]
