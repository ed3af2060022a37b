"""Tests of labels against subscriptions through the server: slices, their order, and their bounds."""

import asyncio

from cmqd.server.admission.entries_ahead import MAX_ENTRIES_AHEAD
from cmqd_protocol import messages as wire
from cmqd_types.topics import FilterMatch, SubscriptionMatch
from support.server.server_rig import RigClient, ServerRig, code_of

KEY = "7.3.x.a.y"


async def a_client(rig: ServerRig, count: int = 1) -> RigClient:
    """A client of a server with a topic that has ``count`` subscriptions, with five binding keys each."""
    client = await rig.client()
    await client.expect(wire.TopicInfo, wire.CreateTopic, "news", {"filter_type": "routing"})
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    for number in range(count):
        keys = [f"{number}.{plane}.#.x.*.#.y" for plane in range(5)]
        attributes = {"endpoint": "jobs", "binding_keys": keys}
        rig.server.broker.subscribe("admin", "news", f"sub{number:03}", attributes, 1)
    return client


def names(reply: wire.SubscriptionsMatched) -> list[str]:
    return [match.subscription for match in reply.subscriptions if match.matches]


async def test_a_small_topic_is_tested_at_once(rig: ServerRig) -> None:
    client = await a_client(rig)
    await client.expect(
        wire.SubscriptionInfo, wire.Subscribe, "news", "all", {"endpoint": "jobs", "binding_keys": ["#", "0.*"]}
    )

    reply = await client.expect(wire.SubscriptionsMatched, wire.MatchSubscriptions, "news", None, "1.2")

    assert (reply.filter_type, reply.matched) == ("routing", 1)
    assert reply.subscriptions[0] == SubscriptionMatch(
        "all", "queue", "jobs", True, "stored", [FilterMatch("#", True), FilterMatch("0.*", False, 1)]
    )


async def test_wrong_requests_are_refused(rig: ServerRig) -> None:
    client = await a_client(rig)

    assert code_of(await client.ask(wire.MatchSubscriptions, "nowhere", ["red"])) == "topic_not_found"
    assert code_of(await client.ask(wire.MatchSubscriptions, "news", ["red"])) == "invalid_argument"
    assert code_of(await client.ask(wire.MatchSubscriptions, "news", None, "x" * 65)) == "invalid_argument"
    assert code_of(await client.ask(wire.MatchSubscriptions, "news", ["x"] * 11)) == "invalid_argument"


async def test_a_large_topic_is_tested_in_slices_beside_later_requests_of_the_connection(rig: ServerRig) -> None:
    client = await a_client(rig, 500)

    tests = [client.begin(wire.MatchSubscriptions(client.next_id(), "news", None, KEY)) for _ in range(20)]
    later = client.begin(wire.GetQueueAttributes(client.next_id(), "jobs"))
    for _ in range(20):
        await asyncio.sleep(0)
        client.read()
        if later in client.replies:
            break
    assert isinstance(client.replies[later], wire.QueueInfo)
    assert not [request_id for request_id in tests if request_id in client.replies]
    await client.settle()

    for request_id in tests:
        reply = client.replies[request_id]
        assert isinstance(reply, wire.SubscriptionsMatched)
        assert (len(reply.subscriptions), names(reply)) == (500, ["sub007"])


async def test_a_change_of_filters_during_a_test_is_in_its_result(rig: ServerRig) -> None:
    client = await a_client(rig, 500)

    test = client.begin(wire.MatchSubscriptions(client.next_id(), "news", None, KEY))
    later = client.begin(wire.Unsubscribe(client.next_id(), "news", "sub007"))
    await client.settle()

    assert isinstance(client.replies[later], wire.Done)
    reply = client.replies[test]
    assert isinstance(reply, wire.SubscriptionsMatched)
    assert (len(reply.subscriptions), names(reply)) == (499, [])


async def test_other_clients_are_answered_between_the_slices(rig: ServerRig) -> None:
    client = await a_client(rig, 500)
    other = await rig.client()
    long = client.begin(wire.MatchSubscriptions(client.next_id(), "news", None, KEY))
    short = other.begin(wire.GetQueueAttributes(other.next_id(), "jobs"))
    for _ in range(20):
        await asyncio.sleep(0)
        other.read()
        client.read()
        if short in other.replies:
            break
    assert isinstance(other.replies[short], wire.QueueInfo)
    assert long not in client.replies

    for number in range(500):
        rig.server.broker.unsubscribe("admin", "news", f"sub{number:03}", 1)
    rig.server.broker.delete_topic("admin", "news")
    await client.settle()

    assert code_of(client.replies[long]) == "topic_not_found"
    assert code_of(await client.ask(wire.MatchSubscriptions, "news", None, KEY)) == "topic_not_found"


async def test_a_client_that_leaves_ends_its_test(rig: ServerRig) -> None:
    client = await a_client(rig, 500)
    other = await rig.client()
    client.begin(wire.MatchSubscriptions(client.next_id(), "news", None, KEY))
    client.transport.lose()

    reply = await other.expect(wire.SubscriptionsMatched, wire.MatchSubscriptions, "news", None, KEY)

    assert names(reply) == ["sub007"]


async def test_a_key_that_loses_its_role_gets_no_result(rig: ServerRig) -> None:
    client = await a_client(rig, 500)
    key = await rig.accounts.create_role_key("admin", None, ["read"], ["*"], 1)
    reader = await rig.client(key)
    test = reader.begin(wire.MatchSubscriptions(reader.next_id(), "news", None, KEY))
    await client.expect(wire.Done, wire.SetKeyRoles, key.secret_id, ["send"], ["*"])
    await reader.settle()

    assert code_of(reader.replies[test]) == "permission_denied"


async def test_results_that_wait_for_the_disk_are_limited(rig: ServerRig) -> None:
    client = await a_client(rig, 500)
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "jobs", [b"1"]))
    most = MAX_ENTRIES_AHEAD // 500
    tests = [client.begin(wire.MatchSubscriptions(client.next_id(), "news", None, KEY)) for _ in range(most + 3)]
    await client.settle()
    refused = [request_id for request_id in tests if request_id in client.replies]
    assert {code_of(client.replies[request_id]) for request_id in refused} == {"busy"}
    assert refused == tests[most:]

    rig.log.let_go()
    await client.settle()

    assert all(isinstance(client.replies[request_id], wire.SubscriptionsMatched) for request_id in tests[:most])
    reply = await client.expect(wire.SubscriptionsMatched, wire.MatchSubscriptions, "news", None, KEY)
    assert names(reply) == ["sub007"]
