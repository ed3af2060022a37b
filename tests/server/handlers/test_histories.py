"""Histories through the server: lives with names, and what a key may not see."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cmqd.log.values import HistoryAnswer
from cmqd.server.handlers import histories
from cmqd.server.handlers.histories import MAX_READINGS
from cmqd_protocol import messages as wire
from cmqd_types.histories import LifeKind
from support.eventually import eventually
from support.server.server_rig import RigClient, ServerRig, code_of


async def asked(rig: ServerRig, client: RigClient, *arguments: Any, **named: Any) -> Any:
    """The reply to a request that waits for the log."""
    request = client.begin(wire.GetMessageHistory(client.next_id(), *arguments, **named))

    def answered() -> bool:
        client.read()
        return request in client.replies

    await eventually(answered)
    return client.replies.pop(request)


async def history(rig: ServerRig, client: RigClient, *arguments: Any, **named: Any) -> wire.MessageHistory:
    reply = await asked(rig, client, *arguments, **named)
    assert isinstance(reply, wire.MessageHistory), reply
    return reply


def told(reply: wire.MessageHistory) -> list[tuple[str, str]]:
    return [(event.kind, event.queue) for event in reply.events]


async def dead_lettered(client: RigClient) -> tuple[list[int], list[int]]:
    """Send a message, receive it, reject it; returns its ids and the handle."""
    await client.expect(wire.QueueInfo, wire.CreateQueue, "dead", {})
    attributes = {"dead_letter_queue": "dead", "dead_letter_max_receives": 3}
    await client.expect(wire.QueueInfo, wire.CreateQueue, "orders", attributes)
    (sent,) = await client.send("orders", b"x")
    (message,) = await client.receive("orders")
    done = await client.expect(
        wire.HandlesDone, wire.DeadLetterMessages, "orders", [message.receipt_handle], ["no such customer"]
    )
    assert not done.failures
    (dead,) = await client.receive("dead")
    return [sent, dead.message_id], [message.receipt_handle, dead.receipt_handle]


async def test_a_life_is_told_by_any_id_and_by_any_handle(rig: ServerRig) -> None:
    client = await rig.client()
    ids, handles = await dead_lettered(client)
    expected = [
        (LifeKind.SENT, "orders"),
        (LifeKind.RECEIVED, "orders"),
        (LifeKind.DEAD_LETTERED, "dead"),
        (LifeKind.RECEIVED, "dead"),
    ]

    replies = [await history(rig, client, each) for each in ids]
    replies += [await history(rig, client, receipt_handle=each) for each in handles]

    assert [told(reply) for reply in replies] == [expected] * 4
    last = replies[-1]
    assert [(event.text, event.from_queue, event.from_id) for event in last.events[2:3]] == [
        ("no such customer", "orders", ids[0])
    ]
    assert [(place.queue, place.message_id, place.state) for place in last.places] == [
        ("orders", ids[0], "dead_lettered"),
        ("dead", ids[1], "in_flight"),
    ]
    assert last.last_lsn == rig.log.last_lsn


async def test_a_published_message_is_told_with_its_subscriptions(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    await client.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    for name in ("at-once", "late", "gone"):
        attributes = {"endpoint": "jobs", "paused": name != "at-once"}
        await client.expect(wire.SubscriptionInfo, wire.Subscribe, "news", name, attributes)
    (published,) = (await client.expect(wire.MessagesPublished, wire.PublishMessages, "news", [b"x"])).message_ids
    await client.expect(wire.SubscriptionInfo, wire.SetSubscriptionAttributes, "news", "late", {"paused": False})
    await client.settle()
    await client.expect(wire.Done, wire.Unsubscribe, "news", "gone")

    reply = await history(rig, client, published)

    assert [(event.kind, event.queue, event.subscription) for event in reply.events] == [
        (LifeKind.PUBLISHED, "news", ""),
        (LifeKind.COPIED, "jobs", "at-once"),
        (LifeKind.COPIED, "jobs", "late"),
        (LifeKind.DELIVERY_DROPPED, "news", ""),
    ]


async def test_a_message_of_a_deleted_queue_keeps_the_name(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "orders", {})
    (sent,) = await client.send("orders", b"x")
    await client.expect(wire.Done, wire.DeleteQueue, "orders")

    assert told(await history(rig, client, sent)) == [
        (LifeKind.SENT, "orders"),
        (LifeKind.QUEUE_DELETED, "orders"),
    ]


async def test_a_message_of_another_account_is_answered_as_an_id_that_was_never_given(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.KeyList, wire.CreateAccount, "shop")
    other = await rig.client(rig.accounts.first_key("shop"))
    await other.expect(wire.QueueInfo, wire.CreateQueue, "secret", {})
    (sent,) = await other.send("secret", b"x")
    (message,) = await other.receive("secret")
    assert told(await history(rig, other, sent))[0] == (LifeKind.SENT, "secret")

    replies = [
        await asked(rig, client, sent),
        await asked(rig, client, sent + 1_000),
        await asked(rig, client, receipt_handle=message.receipt_handle),
        await asked(rig, client, receipt_handle=message.receipt_handle ^ 1),
    ]

    assert {code_of(reply) for reply in replies} == {"message_not_found"}
    texts = {
        reply.text.replace(f"Msg-{sent:016x}", "M").replace(f"Msg-{sent + 1_000:016x}", "M") for reply in replies[:2]
    }
    assert len(texts) == 1


async def test_names_outside_the_patterns_of_the_key_are_hidden(rig: ServerRig) -> None:
    client = await rig.client()
    ids, _ = await dead_lettered(client)
    team, stranger = [
        await rig.client(await rig.accounts.create_role_key("admin", None, ["read"], [names], 1))
        for names in ("orders", "other*")
    ]

    reply = await history(rig, team, ids[1])

    assert told(reply) == [
        (LifeKind.SENT, "orders"),
        (LifeKind.RECEIVED, "orders"),
        (LifeKind.DEAD_LETTERED, "(hidden)"),
        (LifeKind.RECEIVED, "(hidden)"),
    ]
    assert [place.queue for place in reply.places] == ["orders", "(hidden)"]
    assert code_of(await asked(rig, stranger, ids[1])) == "message_not_found"


async def test_clients_are_told_and_their_hosts_to_keys_that_manage_every_name(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "orders", {})
    (sent,) = await client.send("orders", b"x")
    await client.receive("orders")
    reader = await rig.client(await rig.accounts.create_role_key("admin", None, ["read"], ["orders"], 1))

    keys = [(["read"], ["*"]), (["read", "manage"], ["ord*"]), (["read", "manage"], ["*"])]
    others = [await rig.client(await rig.accounts.create_role_key("admin", None, *key, 1)) for key in keys]
    whole, restricted, *more = [(await history(rig, each, sent)).events for each in (client, reader, *others)]

    # The receive is in a row without the record that gives the client its number: the core has the client.
    actors = [event.actor for event in whole]
    assert actors[0] is not None
    assert actors[0].secret_id.startswith("AKID")
    assert actors[0].host
    assert actors == [actors[0]] * 2
    without_host = [structs.replace(actors[0], host="", stated_by="")] * 2
    assert [event.actor for event in restricted] == without_host
    assert [[event.actor for event in events] for events in more] == [without_host, without_host, actors]


async def test_keys_of_administrative_operations_are_told(rig: ServerRig) -> None:
    client = await rig.client()
    ids, (_, handle) = await dead_lettered(client)
    await client.expect(wire.HandlesDone, wire.ReleaseMessages, "dead", [handle])
    await client.expect(wire.RedriveStatus, wire.StartRedrive, "dead")
    await client.settle()
    await client.expect(wire.Done, wire.ClearQueue, "orders")
    (other,) = await client.send("orders", b"x")
    await client.expect(wire.Done, wire.DeleteQueue, "orders")

    redriven, gone = [(await history(rig, client, each)).events for each in (ids[0], other)]

    assert [event.kind for event in redriven[-2:]] == [LifeKind.REDRIVEN, LifeKind.CLEARED]
    assert gone[-1].kind == LifeKind.QUEUE_DELETED
    sent = redriven[0].actor
    assert sent is not None
    for event in (*redriven[-2:], gone[-1]):
        assert event.actor is not None
        assert (event.actor.account, event.actor.secret_id) == (sent.account, sent.secret_id)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "give one of them"),
        ({"message_id": 1, "receipt_handle": 1}, "give one of them"),
        ({"message_id": 0}, "message_id"),
        ({"message_id": 7 << 52 | 1}, "is of shard 7, and this server has shard 0"),
    ],
)
async def test_a_request_without_a_sense_is_refused(rig: ServerRig, arguments: dict[str, int], text: str) -> None:
    client = await rig.client()

    reply = await client.expect(wire.Error, wire.GetMessageHistory, **arguments)

    assert code_of(reply) == "invalid_argument"
    assert text in reply.text


async def test_histories_under_way_are_limited_and_end_with_their_clients(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await rig.client(), await rig.client()
    await client.expect(wire.KeyList, wire.CreateAccount, "shop")
    shop = await rig.client(rig.accounts.first_key("shop"))
    await client.expect(wire.QueueInfo, wire.CreateQueue, "orders", {})
    (sent,) = await client.send("orders", b"x")
    read_history, cancelled = rig.log.read_history, list[int]()

    async def never(message_id: int, lease: int = 0) -> HistoryAnswer:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(message_id)
            raise
        raise AssertionError

    monkeypatch.setattr(rig.log, "read_history", never)
    monkeypatch.setattr(histories, "LOOK_SECONDS", 0.001)
    requests = [client.begin(wire.GetMessageHistory(client.next_id(), sent)) for _ in range(MAX_READINGS + 3)]
    client.deliver()
    await eventually(lambda: client.read() or len(client.replies) == 3)
    assert [code_of(client.replies[request]) for request in requests[MAX_READINGS:]] == ["busy"] * 3

    shop.begin(wire.GetMessageHistory(shop.next_id(), sent))
    shop.deliver()
    await asyncio.sleep(0.01)
    shop.read()
    assert not shop.replies, "it waits"
    shop.transport.lose()
    client.transport.lose()
    await eventually(lambda: cancelled == [sent] * (MAX_READINGS + 1))
    monkeypatch.setattr(rig.log, "read_history", read_history)

    assert told(await history(rig, other, sent)) == [(LifeKind.SENT, "orders")]


async def test_a_shard_reads_its_own_ids(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, shard=5)
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "orders", {})
    (sent,) = await client.send("orders", b"x")
    (message,) = await client.receive("orders")

    assert told(await history(rig, client, receipt_handle=message.receipt_handle))[-1] == (LifeKind.RECEIVED, "orders")
    assert sent >> 52 == 5
    rig.close()
