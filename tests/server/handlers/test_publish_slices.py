"""Publishes with plans of several slices: other clients are served in between, and the order of requests is kept."""

from pathlib import Path
from typing import Any

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.server.admission.memory_budget import MemoryBudget
from cmqd.server.handlers import publishing
from cmqd.server.handlers.publishing import Publishes
from cmqd.server.loop import agenda_timer
from cmqd.server.monitoring.counters import Counters
from cmqd.server.requests.collecting import Collector
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.server.server_rig import RigClient, ServerRig, code_of

QUEUES = 10
MESSAGES = 200


@pytest.fixture(autouse=True)
def one_short_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agenda_timer, "SLICE_S", 0)
    monkeypatch.setattr(publishing, "SLICE_UNITS", 64)


async def with_topic(rig: ServerRig, *names: str) -> RigClient:
    client = await rig.client()
    for name in names or ("news",):
        await client.expect(wire.TopicInfo, wire.CreateTopic, name, {})
        for number in range(QUEUES):
            if name in ("news", ""):
                await client.expect(wire.QueueInfo, wire.CreateQueue, f"queue-{number}", {})
            attributes: Any = {"endpoint": f"queue-{number}", "filter_tags": [f"t{number}"]}
            await client.expect(wire.SubscriptionInfo, wire.Subscribe, name, f"to-{number}", attributes)
    return client


def publish(client: RigClient, count: int = MESSAGES, topic: str = "news", first: int = 0) -> int:
    """Messages that are all matched for the first time."""
    bodies = [b"%d" % (first + number) for number in range(count)]
    tags = [[f"t{number % QUEUES}", f"own-{first + number}"] for number in range(count)]
    return client.begin(wire.PublishMessages(client.next_id(), topic, bodies, tags=tags))


async def read_all(rig: ServerRig, *clients: RigClient, turns: int = 300) -> None:
    for _ in range(turns):
        await rig.turn(1)
        for client in clients:
            client.deliver()
            client.read()
    collector: Any = rig.server.part(Collector)
    assert not rig.server.part(Publishes).lines
    assert (rig.server.admission.collected_bytes, collector._messages) == (0, 0)


def bodies_of(reply: Any) -> list[bytes]:
    assert isinstance(reply, wire.MessagesReceived), reply
    return [message.body for message in reply.messages]


def held(client: RigClient) -> bool:
    return client.connection.is_held


async def test_other_clients_are_served_while_a_publish_is_planned(rig: ServerRig) -> None:
    client, other = await with_topic(rig), await rig.client()
    rows = rig.log.last_lsn
    asked = publish(client)
    await rig.turn(2)
    assert held(client)
    assert rig.log.last_lsn == rows, "nothing is stored before all of it is decided"

    sent = other.begin(wire.SendMessages(other.next_id(), "queue-1", [b"between"]))
    while sent not in other.replies:
        await rig.turn(1)
        other.read()
        client.read()

    assert asked not in client.replies
    await read_all(rig, client, other)
    reply = client.replies[asked]
    assert isinstance(reply, wire.MessagesPublished)
    assert reply.matched == [1] * MESSAGES
    assert rig.log.last_lsn == rows + 2
    got = bodies_of(await other.ask(wire.ReceiveMessages, "queue-1", 100, 0))
    assert got == [b"between", *(b"%d" % number for number in range(1, MESSAGES, QUEUES))]


async def test_later_requests_of_its_client_see_the_publish_and_keep_their_order(rig: ServerRig) -> None:
    client = await with_topic(rig)
    publish(client)
    first = client.begin(wire.ReceiveMessages(client.next_id(), "queue-3", 100, 0))
    second = publish(client, first=1000)
    then = client.begin(wire.ReceiveMessages(client.next_id(), "queue-3", 100, 0))
    last = client.begin(wire.GetTopicAttributes(client.next_id(), "news"))
    await rig.turn(1)

    await read_all(rig, client)

    assert bodies_of(client.replies[first]) == [b"%d" % number for number in range(3, MESSAGES, QUEUES)]
    assert isinstance(client.replies[second], wire.MessagesPublished)
    assert bodies_of(client.replies[then]) == [b"%d" % (1000 + number) for number in range(3, MESSAGES, QUEUES)]
    assert isinstance(client.replies[last], wire.TopicInfo)
    assert list(client.replies) == sorted(client.replies)


@pytest.mark.parametrize("behind", ["send", "publish", "list"])
async def test_a_request_by_which_a_publish_is_found_to_be_long_comes_after_it(rig: ServerRig, behind: str) -> None:
    """The publish is decided because the next request cannot join the publish."""
    client = await with_topic(rig)
    first = publish(client)
    request_id = client.next_id()
    if behind == "send":
        client.begin(wire.SendMessages(request_id, "queue-0", [b"sent"]))
    elif behind == "list":
        client.begin(wire.ListQueues(request_id))
    else:
        client.begin(wire.PublishMessages(request_id, "news", [b"x"] * 100, tags=[["t0"]]))
    assert held(client)
    requests = rig.server.part(Counters).requests

    await read_all(rig, client)

    assert rig.server.part(Counters).requests == requests + 1
    assert isinstance(client.replies[first], wire.MessagesPublished)
    assert list(client.replies)[-2:] == [first, request_id]
    got = bodies_of(await client.ask(wire.ReceiveMessages, "queue-0", 256, 0))
    mine = [b"%d" % number for number in range(0, MESSAGES, QUEUES)]
    assert got == mine + {"send": [b"sent"], "publish": [b"x"] * 100, "list": []}[behind]


async def test_publishes_of_others_to_the_same_topic_stand_in_line_and_to_other_topics_do_not(rig: ServerRig) -> None:
    client = await with_topic(rig, "news", "other-news")
    second, third = await rig.client(), await rig.client()
    first_id = publish(client)
    await rig.turn(2)

    second_id = publish(second, 1, first=1000)
    third_id = publish(third, 1, "other-news", first=2000)
    while third_id not in third.replies:
        await rig.turn(1)
        for each in (client, second, third):
            each.read()
    assert second_id not in second.replies
    assert first_id not in client.replies
    assert held(second)
    assert not held(third)

    await read_all(rig, client, second, third)
    replies = [client.replies[first_id], second.replies[second_id]]
    ids = [reply.message_ids for reply in replies if isinstance(reply, wire.MessagesPublished)]
    assert max(ids[0]) < min(ids[1])
    got = bodies_of(await client.ask(wire.ReceiveMessages, "queue-0", 100, 0))
    assert got == [b"2000", *(b"%d" % number for number in range(0, MESSAGES, QUEUES)), b"1000"]


async def test_topics_take_turns(rig: ServerRig) -> None:
    client, other = await with_topic(rig, "news", "other-news"), await rig.client()
    long_id, short_id = publish(client), publish(other, 50, "other-news")

    while short_id not in other.replies:
        await rig.turn(1)
        other.read()
        client.read()

    assert long_id not in client.replies
    await read_all(rig, client, other)
    assert isinstance(client.replies[long_id], wire.MessagesPublished)


async def test_a_repeat_over_another_connection_waits_and_gets_the_same_ids(rig: ServerRig) -> None:
    client, other = await with_topic(rig), await rig.client()
    bodies = [b"%d" % number for number in range(MESSAGES)]
    tags = [[f"t{number % QUEUES}", f"own-{number}"] for number in range(MESSAGES)]
    asked = [
        each.begin(wire.PublishMessages(each.next_id(), "news", bodies, tags=tags, session=7, sequence=1))
        for each in (client, other)
    ]

    await read_all(rig, client, other)

    first, again = client.replies[asked[0]], other.replies[asked[1]]
    assert isinstance(first, wire.MessagesPublished)
    assert isinstance(again, wire.MessagesPublished)
    assert again.message_ids == first.message_ids
    assert len(bodies_of(await client.ask(wire.ReceiveMessages, "queue-0", 256, 0))) == MESSAGES // QUEUES


async def test_receives_that_were_parked_keep_their_order_beside_a_publish(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_unread_receives=2)
    client = await with_topic(rig)
    await client.send("queue-0", b"1", b"2", b"3", b"4", b"5")
    rig.log.hold()
    receives = [client.begin(wire.ReceiveMessages(client.next_id(), "queue-0", 1, 0)) for _ in range(5)]
    asked = publish(client)
    await rig.turn(2)
    assert held(client)

    rig.log.let_go()
    await read_all(rig, client)

    got = [bodies_of(client.replies[request_id]) for request_id in receives]
    assert got == [[b"1"], [b"2"], [b"3"], [b"4"], [b"5"]]
    assert isinstance(client.replies[asked], wire.MessagesPublished)
    rig.close()


async def test_what_stands_behind_a_publish_is_counted_and_answered_once(rig: ServerRig) -> None:
    client = await with_topic(rig)
    before = rig.server.part(Counters).requests
    asked = publish(client)
    behind = [client.begin(wire.SendMessages(client.next_id(), "queue-0", [b"%d" % number])) for number in range(3)]
    behind.append(client.begin(wire.ListQueues(client.next_id())))
    await rig.turn(1)
    assert held(client)

    await read_all(rig, client)

    assert list(client.replies) == [asked, *behind]
    assert rig.server.part(Counters).requests == before + 5


async def test_input_that_comes_all_the_same_while_a_publish_is_planned_waits(rig: ServerRig) -> None:
    """Under TLS a read may have been under way when the connection was held."""
    client = await with_topic(rig)
    asked = publish(client)
    await rig.turn(2)
    assert held(client)

    client.machine.send(wire.ListQueues(client.next_id()))
    client.connection.data_received(b"".join(client.machine.data_to_send(0)))
    await read_all(rig, client)

    assert list(client.replies) == [asked, asked + 1]


async def test_a_cancel_neither_loses_the_publish_nor_answers_it_early(rig: ServerRig) -> None:
    client = await with_topic(rig)
    asked = publish(client)
    await rig.turn(2)

    client.cancel(asked)
    await rig.turn(1)
    client.read()
    assert asked not in client.replies
    await read_all(rig, client)

    assert isinstance(client.replies[asked], wire.MessagesPublished)


async def test_the_publish_of_a_connection_that_is_lost_meanwhile_is_carried_out(rig: ServerRig) -> None:
    client, other = await with_topic(rig), await rig.client()
    publish(client)
    await rig.turn(2)
    assert held(client)

    client.transport.lose()
    await read_all(rig, other)

    assert len(bodies_of(await other.ask(wire.ReceiveMessages, "queue-7", 100, 0))) == MESSAGES // QUEUES


async def test_a_publish_that_is_decided_because_its_connection_is_lost_is_carried_out(rig: ServerRig) -> None:
    client, other = await with_topic(rig), await rig.client()
    publish(client)

    client.transport.lose()
    await read_all(rig, other)

    assert len(bodies_of(await other.ask(wire.ReceiveMessages, "queue-7", 100, 0))) == MESSAGES // QUEUES


async def test_a_drain_finishes_what_is_being_planned_and_refuses_what_stands_behind_it(rig: ServerRig) -> None:
    client, other = await with_topic(rig), await rig.client()
    asked = publish(client)
    behind = client.begin(wire.SendMessages(client.next_id(), "queue-0", [b"late"]))
    in_line = publish(other, 1, first=1000)
    await rig.turn(2)

    await rig.server.drain(5)
    client.read()
    other.read()

    assert isinstance(client.replies[asked], wire.MessagesPublished)
    assert isinstance(other.replies[in_line], wire.MessagesPublished)
    assert code_of(client.replies[behind]) == "shutting_down"
    assert rig.broker.facts.queues.find("admin", "queue-0").index.live_count == MESSAGES // QUEUES + 1


async def test_a_failure_meanwhile_leaves_it_unknown_and_not_done(rig: ServerRig) -> None:
    client, other = await with_topic(rig), await rig.client()
    asked, in_line = publish(client), publish(other, 1, first=1000)
    await rig.turn(2)

    rig.log.fail(LogFailed("no more"))
    await read_all(rig, client, other)

    assert code_of(client.replies[asked]) == code_of(other.replies[in_line]) == "outcome_unknown"
    assert rig.broker.facts.queues.find("admin", "queue-0").index.live_count == 0


async def test_a_bug_while_it_is_planned_leaves_it_unknown_once(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await with_topic(rig)
    asked = publish(client)
    await rig.turn(2)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.broker, "apply_publish", broken)
    await read_all(rig, client)

    assert code_of(client.replies[asked]) == "outcome_unknown"
    assert [type(failure) for failure in rig.failures] == [ZeroDivisionError]
    rig.failures.clear()


async def test_a_topic_that_is_deleted_meanwhile_is_not_found(rig: ServerRig) -> None:
    client, other = await with_topic(rig), await rig.client()
    asked = publish(client)
    await rig.turn(2)

    for number in range(QUEUES):
        other.begin(wire.Unsubscribe(other.next_id(), "news", f"to-{number}"))
    other.begin(wire.DeleteTopic(other.next_id(), "news"))
    await read_all(rig, client, other)

    assert code_of(client.replies[asked]) == ErrorCode.TOPIC_NOT_FOUND.name.lower()


async def test_a_large_request_behind_a_publish_counts_for_the_memory_budget(rig: ServerRig) -> None:
    client = await with_topic(rig)
    publish(client)
    send = client.begin(wire.SendMessages(client.next_id(), "queue-0", [bytes(60_000)] * 16))
    rig.give_turns()
    assert held(client)
    assert rig.server.part(MemoryBudget).held_bytes >= 960_000

    await read_all(rig, client)

    assert isinstance(client.replies[send], wire.MessagesSent)
    assert rig.server.part(MemoryBudget).held_bytes == 0


async def test_a_publish_that_is_being_planned_counts_for_busy(rig: ServerRig) -> None:
    client = await with_topic(rig)
    publish(client)
    await rig.turn(2)

    assert rig.server.admission.collected_bytes > 0
    await read_all(rig, client)


async def test_much_that_is_collected_is_decided_before_the_wake_up_ends(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work for all queues together would hold the loop at the end of the I/O batch."""
    monkeypatch.setattr("cmqd.server.requests.collecting.MAX_COLLECTED", 20)
    client = await with_topic(rig)
    clients = [await rig.client() for _ in range(QUEUES)]
    rows = rig.log.last_lsn
    for number, each in enumerate(clients):
        each.begin(wire.SendMessages(each.next_id(), f"queue-{number}", [b"x"] * 5))
        assert (rig.broker.facts.queues.find("admin", f"queue-{number}").index.live_count > 0) == (number % 4 == 3)
    await read_all(rig, client, *clients)

    assert rig.log.last_lsn > rows
    assert all(queue.index.live_count == 5 for queue in rig.broker.queues.values())
