"""Deliveries through the server: peeks, retries and drops of one message, and the deliveries of a message."""

import pytest

from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire
from support.server.server_rig import RigClient, ServerRig, code_of


async def a_topic(rig: ServerRig) -> tuple[RigClient, list[int]]:
    """A client, and the ids of three messages that wait for ``jobs``, paused."""
    client = await rig.client()
    await client.expect(wire.TopicInfo, wire.EnsureTopic, "news", {})
    await client.expect(wire.QueueInfo, wire.EnsureQueue, "jobs", {})
    await client.expect(wire.SubscriptionInfo, wire.Subscribe, "news", "jobs", {"endpoint": "jobs", "paused": True})
    published = await client.expect(wire.MessagesPublished, wire.PublishMessages, "news", [b"a", b"b", b"c"])
    return client, published.message_ids


async def peek(client: RigClient, *more: object) -> wire.DeliveriesPeeked:
    return await client.expect(wire.DeliveriesPeeked, wire.PeekDeliveries, "news", "jobs", *more)


async def test_waiting_messages_are_peeked_dropped_and_retried(rig: ServerRig) -> None:
    client, ids = await a_topic(rig)

    page = await peek(client, 2, 0, True)
    assert [(one.message_id, one.state, one.body) for one in page.messages] == [
        (ids[0], "waiting", b"a"),
        (ids[1], "waiting", b"b"),
    ]
    assert page.next_start == 2
    assert [one.body for one in (await peek(client, 2, 2, False)).messages] == [None]

    assert (await client.expect(wire.DeliveriesDone, wire.DropDelivery, "news", "jobs", ids[1])).messages == 1
    assert (await client.expect(wire.DeliveriesDone, wire.RetryDelivery, "news", "jobs", ids[0])).messages == 1
    assert code_of(await client.ask(wire.DropDelivery, "news", "jobs", ids[1])) == "message_not_waiting"
    assert code_of(await client.ask(wire.RetryDelivery, "news", "jobs", ids[1])) == "message_not_waiting"
    assert [one.message_id for one in (await peek(client)).messages] == [ids[0], ids[2]]


async def test_the_deliveries_of_a_message(rig: ServerRig) -> None:
    client, ids = await a_topic(rig)
    await client.expect(wire.SubscriptionInfo, wire.SetSubscriptionAttributes, "news", "jobs", {"paused": False})
    await client.settle()
    published = await client.expect(wire.MessagesPublished, wire.PublishMessages, "news", [b"d"])
    copies = {one.body: one.message_id for one in await client.receive("jobs", 16)}

    late = await client.expect(wire.MessageDeliveries, wire.GetMessageDeliveries, "news", ids[0])
    at_once = await client.expect(wire.MessageDeliveries, wire.GetMessageDeliveries, "news", published.message_ids[0])

    assert [(one.subscription, one.state, one.copy_id) for one in late.deliveries] == [("jobs", "delivered", None)]
    assert [(one.subscription, one.state, one.copy_id) for one in at_once.deliveries] == [
        ("jobs", "delivered", copies[b"d"])
    ]
    unknown = await client.ask(wire.GetMessageDeliveries, "news", published.message_ids[0] + 500)
    assert code_of(unknown) == "message_not_published"


@pytest.mark.parametrize("kind", [wire.RetryDelivery, wire.DropDelivery])
async def test_a_missing_topic_or_subscription_is_refused(rig: ServerRig, kind: type[wire.Request]) -> None:
    client, ids = await a_topic(rig)

    assert code_of(await client.ask(kind, "nowhere", "jobs", ids[0])) == "topic_not_found"
    assert code_of(await client.ask(kind, "news", "nobody", ids[0])) == "subscription_not_found"
    assert code_of(await client.ask(kind, "news", "jobs", 0)) == "invalid_argument"
    assert code_of(await client.ask(wire.PeekDeliveries, "news", "nobody")) == "subscription_not_found"
    assert code_of(await client.ask(wire.PeekDeliveries, "news", "jobs", 257)) == "invalid_argument"
    assert code_of(await client.ask(wire.GetMessageDeliveries, "nowhere", 1)) == "topic_not_found"


async def test_a_drop_is_answered_when_it_is_durable(rig: ServerRig) -> None:
    client, ids = await a_topic(rig)
    rig.log.hold()

    asking = client.begin(wire.DropDelivery(client.next_id(), "news", "jobs", ids[0]))
    await client.settle()
    assert asking not in client.replies, "the row is not durable"
    rig.log.let_go()
    await client.settle()

    assert client.replies[asking] == wire.DeliveriesDone(asking, 1)


async def test_a_request_that_is_cancelled_during_its_reads_changes_nothing(rig: ServerRig) -> None:
    client, ids = await a_topic(rig)
    rig.log.hold_pages()
    asking = client.begin(wire.DropDelivery(client.next_id(), "news", "jobs", ids[0]))
    await client.settle()

    client.cancel(asking)
    await client.settle()
    rig.log.let_pages_go()
    await client.settle()

    assert code_of(client.replies[asking]) == "cancelled"
    assert len((await peek(client)).messages) == 3


async def test_a_client_that_goes_away_during_its_reads_leaves_nothing_behind(rig: ServerRig) -> None:
    client, ids = await a_topic(rig)
    other = await rig.client()
    rig.log.hold_pages()
    other.begin(wire.DropDelivery(other.next_id(), "news", "jobs", ids[0]))
    await other.settle()
    other.transport.lose()
    await client.settle()
    rig.log.let_pages_go()
    await client.settle()

    assert len(rig.server.part(WaitingRequests)) == 0
    assert len(rig.server.broker.runtime.lookups) == 0
    assert len((await peek(client)).messages) == 3


async def test_pipelined_look_ups_are_bounded_and_all_answered(rig: ServerRig) -> None:
    client, ids = await a_topic(rig)
    limit = rig.server.settings.max_unread_receives
    rig.log.hold_pages()
    asked = [client.begin(wire.GetMessageDeliveries(client.next_id(), "news", ids[0])) for _ in range(limit + 20)]
    await client.settle()

    assert len(rig.server.broker.runtime.lookups) == limit
    rig.log.let_pages_go()
    await client.settle()

    assert all(isinstance(client.replies[one], wire.MessageDeliveries) for one in asked)
