"""Searches through the server: messages by dedup id and header, and what a key may not see."""

from typing import Any

import pytest

from cmqd.server.handlers import histories
from cmqd.server.handlers.histories import MAX_MESSAGES, SEARCHED_MS
from cmqd_protocol import messages as wire
from cmqd_reading import message_search
from support.eventually import eventually
from support.server.server_rig import RigClient, ServerRig, code_of

ORDER = ("order", "4711")


async def asked(client: RigClient, *arguments: Any, **named: Any) -> Any:
    """The reply to a request that waits for the log."""
    request = client.begin(wire.FindMessages(client.next_id(), *arguments, **named))

    def answered() -> bool:
        client.read()
        assert client.ended is None, client.ended
        return request in client.replies

    await eventually(answered)
    return client.replies.pop(request)


async def searched(client: RigClient, *arguments: Any, **named: Any) -> wire.MessagesFound:
    reply = await asked(client, *arguments, **named)
    assert isinstance(reply, wire.MessagesFound), reply
    return reply


def ids_of(reply: wire.MessagesFound) -> list[int]:
    return [message.message_id for message in reply.messages]


async def every_id(client: RigClient, *arguments: Any, **named: Any) -> list[int]:
    """The ids of all slices."""
    ids: list[int] = []
    start: tuple[int, int] | None = None
    while True:
        reply = await searched(client, *arguments, **named, start=start)
        ids += ids_of(reply)
        if reply.next is None:
            return ids
        assert reply.next > (start or (0, 0))
        start = reply.next


async def send(client: RigClient, queue: str, count: int = 1, dedup_id: str | None = None) -> list[int]:
    reply = await client.expect(
        *(wire.MessagesSent, wire.SendMessages, queue, [b"x"] * count),
        headers=[dict([ORDER])] * count,
        dedup_ids=None if dedup_id is None else [dedup_id],
    )
    return reply.message_ids


async def a_queue(client: RigClient, name: str) -> None:
    await client.expect(wire.QueueInfo, wire.CreateQueue, name, {})


async def reader(rig: ServerRig, role: str, names: str) -> RigClient:
    return await rig.client(await rig.accounts.create_role_key("admin", None, [role], [names], 1))


async def test_messages_are_found_with_queue_and_time(rig: ServerRig) -> None:
    client = await rig.client()
    for name in ("orders", "mails"):
        await a_queue(client, name)
    (first,), (other,) = await send(client, "orders", dedup_id="order-4711"), await send(client, "mails")

    reply = await searched(client, "orders", header=ORDER)

    (message,) = reply.messages
    assert (message.message_id, message.source, message.sent_ms) == (first, "orders", rig.clock.now_ms())
    assert (reply.missing, reply.next) == ([], None)
    assert reply.from_ms == rig.clock.now_ms() - SEARCHED_MS
    assert ids_of(await searched(client, header=ORDER)) == [first, other]
    assert ids_of(await searched(client, dedup_id="order-4711")) == [first]
    assert ids_of(await searched(client, "mails", dedup_id="order-4711")) == []


async def test_a_published_message_is_found_at_its_topic(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client, "orders")
    await client.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    await client.expect(wire.SubscriptionInfo, wire.Subscribe, "news", "copies", {"endpoint": "orders"})
    published = await client.expect(
        wire.MessagesPublished, wire.PublishMessages, "news", [b"x"], headers=[dict([ORDER])]
    )

    reply = await searched(client, header=ORDER)

    assert [(each.message_id, each.source) for each in reply.messages] == [(published.message_ids[0], "news")]
    assert ids_of(await searched(client, "news", header=ORDER)) == published.message_ids
    assert ids_of(await searched(client, "orders", header=ORDER)) == []


async def test_messages_of_another_account_say_nothing(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.KeyList, wire.CreateAccount, "shop")
    shop = await rig.client(rig.accounts.first_key("shop"))
    for each in (client, shop):
        await a_queue(each, "orders")
    await send(client, "orders", 100)
    await a_queue(client, "private")
    (own,) = await send(shop, "orders")
    await client.expect(wire.Done, wire.DeleteQueue, "orders")

    # Messages of the other account do not count either.
    for arguments in ((), ("orders",)):
        reply = await searched(shop, *arguments, header=ORDER, max_messages=1)
        assert (ids_of(reply), reply.next) == ([own], None)
    refusals = [await asked(shop, name, header=ORDER) for name in ("private", "absent", "x" * 500, "o.*", "")]
    assert {code_of(reply) for reply in refusals} == {"queue_not_found"}
    assert refusals[0].text.replace("private", "absent") == refusals[1].text


async def test_a_key_needs_the_role_and_the_name(rig: ServerRig) -> None:
    client = await rig.client()
    for name in ("orders", "mails"):
        await a_queue(client, name)
    (own,) = await send(client, "orders")
    await send(client, "mails")
    restricted = await reader(rig, "read", "ord*")

    assert ids_of(await searched(restricted, "orders", header=ORDER)) == [own]
    for client, arguments in (
        (restricted, ("mails",)),
        (restricted, ()),
        (await reader(rig, "send", "*"), ("orders",)),
        (await reader(rig, "consume", "*"), ("orders",)),
    ):
        assert code_of(await asked(client, *arguments, header=ORDER)) == "permission_denied"


async def test_messages_of_deleted_queues_are_found_without_a_name(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client, "orders")
    (gone,) = await send(client, "orders")
    await client.expect(wire.Done, wire.DeleteQueue, "orders")

    assert ids_of(await searched(client, header=ORDER)) == [gone]
    assert code_of(await asked(client, "orders", header=ORDER)) == "queue_not_found"
    await a_queue(client, "orders")
    (new,) = await send(client, "orders")
    assert ids_of(await searched(client, "orders", header=ORDER)) == [gone, new]


@pytest.mark.parametrize("most", [1, 7, MAX_MESSAGES])
async def test_slices_together_are_the_whole(rig: ServerRig, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(message_search, "SEARCHED_BYTES", 2048)
    client = await rig.client()
    await a_queue(client, "orders")
    sent = [each for count in (3, 200, 1, 1, 1) for each in await send(client, "orders", count)]

    assert await every_id(client, "orders", header=ORDER, max_messages=most) == sent
    first = await searched(client, "orders", header=ORDER, max_messages=most)
    assert len(first.messages) <= most
    assert first.next is not None


async def test_the_range_of_time_is_that_of_the_sends(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client, "orders")
    (old,) = await send(client, "orders")
    rig.clock.advance(SEARCHED_MS + 1)
    now_ms = rig.clock.now_ms()
    (new,) = await send(client, "orders")

    assert ids_of(await searched(client, "orders", header=ORDER)) == [new]
    assert ids_of(await searched(client, "orders", header=ORDER, from_ms=0)) == [old, new]
    assert ids_of(await searched(client, "orders", header=ORDER, from_ms=0, to_ms=now_ms)) == [old]
    far = 2**64 - 1
    for from_ms, to_ms in ((now_ms + 1, None), (far, None), (now_ms + 1, far), (0, 1)):
        assert ids_of(await searched(client, "orders", header=ORDER, from_ms=from_ms, to_ms=to_ms)) == []
    assert ids_of(await searched(client, "orders", header=ORDER, from_ms=0, start=(far, far))) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "give one of them"),
        ({"dedup_id": "a", "header": ORDER}, "give one of them"),
        ({"header": ORDER, "max_messages": 0}, "max_messages"),
        ({"header": ORDER, "max_messages": MAX_MESSAGES + 1}, "max_messages"),
        ({"header": ORDER, "from_ms": 5, "to_ms": 5}, "to_ms is behind from_ms"),
        ({"header": ORDER, "from_ms": 2**64 - 1, "to_ms": 0}, "to_ms is behind from_ms"),
        ({"header": ("order", "x" * (1 << 20))}, "header"),
        ({"header": ("x" * (1 << 20), "4711")}, "header"),
        ({"dedup_id": ""}, "dedup_id"),
        ({"dedup_id": "x" * 65}, "dedup_id"),
    ],
)
async def test_a_request_without_a_sense_is_refused(rig: ServerRig, arguments: dict[str, Any], text: str) -> None:
    client = await rig.client()
    await a_queue(client, "orders")
    (sent,) = await send(client, "orders")

    reply = await asked(client, "orders", **arguments)

    assert code_of(reply) in ("invalid_argument", "malformed_request"), reply
    assert text in reply.text
    assert ids_of(await searched(client, "orders", header=ORDER)) == [sent], "the connection goes on"


@pytest.mark.parametrize(
    "header", [("", ""), ("", "4711"), ("order", ""), (".*", ".*"), ("order", "47.."), ("\x00", "é")]
)
async def test_names_and_values_are_compared_as_they_are(rig: ServerRig, header: tuple[str, str]) -> None:
    client = await rig.client()
    await a_queue(client, "orders")
    await send(client, "orders")

    assert ids_of(await searched(client, "orders", header=header)) == []
    reply = await client.expect(wire.MessagesSent, wire.SendMessages, "orders", [b"x"], headers=[dict([header])])
    assert ids_of(await searched(client, "orders", header=header)) == reply.message_ids


async def test_searches_count_among_the_histories_under_way(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MAX_READINGS", 2)
    client = await rig.client()
    await a_queue(client, "orders")
    await send(client, "orders")
    requests = [client.begin(wire.FindMessages(client.next_id(), "orders", header=ORDER)) for _ in range(3)]
    client.deliver()

    await eventually(lambda: client.read() or len(client.replies) == 3)

    assert [type(client.replies[request]) for request in requests] == [wire.MessagesFound] * 2 + [wire.Error]
    assert code_of(client.replies[requests[2]]) == "busy"


async def test_many_messages_of_another_account_say_nothing(rig: ServerRig) -> None:
    """An answer that was full of them would tell that another account has the header."""
    client = await rig.client()
    await client.expect(wire.KeyList, wire.CreateAccount, "shop")
    shop = await rig.client(rig.accounts.first_key("shop"))
    for each in (client, shop):
        await a_queue(each, "orders")
    for _ in range(3):
        await send(client, "orders", MAX_MESSAGES)
    (own,) = await send(shop, "orders")

    for arguments in ((), ("orders",)):
        reply = await searched(shop, *arguments, header=ORDER)
        assert (ids_of(reply), reply.next) == ([own], None)


async def test_many_messages_of_names_outside_the_patterns_say_nothing(rig: ServerRig) -> None:
    client = await rig.client()
    for name in ("orders", "mails"):
        await a_queue(client, name)
    for _ in range(2):
        await send(client, "mails", MAX_MESSAGES)
    (own,) = await send(client, "orders")
    restricted = await reader(rig, "read", "ord*")

    reply = await searched(restricted, "orders", header=ORDER)

    assert (ids_of(reply), reply.next) == ([own], None)
