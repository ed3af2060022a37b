"""Records name the clients of requests: by their connections, and by the clients that a gateway states."""

from typing import Any

from cmqd_protocol import messages as wire
from cmqd_protocol.frames import frame
from cmqd_protocol.messages import encoder
from cmqd_segment.actor_runs import actor_numbers
from cmqd_segment.records import (
    ActorSeen,
    MessagesDeadLettered,
    MessagesDeleted,
    MessagesPublished,
    MessagesReceived,
    MessagesReleased,
    MessagesSent,
    TransactionsEnded,
    VisibilityChanged,
    unpack_runs,
)
from cmqd_types.actors import Actor, StatedClient
from support.server.server_rig import RigClient, ServerRig, a_queue

GATEWAY = StatedClient("web 7", "192.0.2.7")


def named(rig: ServerRig, kind: type[Any]) -> list[list[str]]:
    """Name and host of the client of each message, by records of a kind."""
    known = {0: "-"}
    found: list[list[str]] = []
    for row in rig.log.disk.rows:
        for record in row.records:
            if isinstance(record, ActorSeen):
                actor = record.actor
                known[record.number] = f"{actor.name}@{actor.host}" + (f" by {actor.stated_by}" * bool(actor.stated_by))
            elif isinstance(record, kind):
                each: Any = record
                if isinstance(each, MessagesSent | MessagesPublished):
                    count = len(each.sizes)
                else:
                    count = len(unpack_runs(each.positions if hasattr(each, "positions") else each.leases))
                found.append([known[number] for number in actor_numbers(each.actors, count)])
    return found


async def worker(rig: ServerRig, name: str) -> RigClient:
    return await rig.client(name=name)


async def test_a_request_is_of_the_client_of_its_connection(rig: ServerRig) -> None:
    ann, ben = await worker(rig, "ann"), await worker(rig, "ben")
    await a_queue(ann, "jobs")

    await ann.send("jobs", b"1")
    (message,) = await ben.receive("jobs")
    await ann.expect(wire.HandlesDone, wire.DeleteMessages, "jobs", [message.receipt_handle])

    assert named(rig, MessagesSent) == named(rig, MessagesDeleted) == [["ann@127.0.0.1"]]
    assert named(rig, MessagesReceived) == [["ben@127.0.0.1"]]


async def test_a_client_that_changes_no_message_gets_no_number(rig: ServerRig) -> None:
    client = await worker(rig, "ann")
    await a_queue(client, "jobs")
    assert await client.receive("jobs") == []
    await client.ask(wire.SendMessages, "jobs", [b""])
    await client.ask(wire.PeekMessages, "jobs")

    assert not any(isinstance(record, ActorSeen) for row in rig.log.disk.rows for record in row.records)


async def test_requests_of_an_io_batch_share_a_record_with_all_their_clients(rig: ServerRig) -> None:
    clients = [await worker(rig, name) for name in ("ann", "ben", "clio")]
    await a_queue(clients[0], "jobs")
    for client in clients:
        client.begin(wire.SendMessages(client.next_id(), "jobs", [b"x"]))
    await clients[0].settle()

    assert named(rig, MessagesSent) == [["ann@127.0.0.1", "ben@127.0.0.1", "clio@127.0.0.1"]]


async def test_a_run_of_sends_is_of_one_client(rig: ServerRig) -> None:
    ann, ben = await worker(rig, "ann"), await worker(rig, "ben")
    await a_queue(ann, "jobs")
    for client in (ann, ben):
        run = [wire.SendMessages(client.next_id(), "jobs", [b"x"]) for _ in range(3)]
        client.transport.bring(b"".join(frame(encoder.encode(request)) for request in run))
    await ann.settle()

    assert named(rig, MessagesSent) == [["ann@127.0.0.1"] * 3 + ["ben@127.0.0.1"] * 3]


async def test_a_gateway_states_the_client_of_each_request(rig: ServerRig) -> None:
    gateway = await worker(rig, "gateway")
    await a_queue(gateway, "jobs")
    stated = [StatedClient("web 1", "192.0.2.1"), StatedClient("web 2"), None]
    for client in stated:
        gateway.begin(wire.SendMessages(gateway.next_id(), "jobs", [b"x"], on_behalf_of=client))
    await gateway.settle()

    assert [name for names in named(rig, MessagesSent) for name in names] == [
        "web 1@192.0.2.1 by 127.0.0.1",
        "web 2@127.0.0.1",
        "gateway@127.0.0.1",
    ]


async def test_every_operation_takes_the_stated_client(rig: ServerRig) -> None:
    client = await worker(rig, "gateway")
    await a_queue(client, "dead")
    await a_queue(
        client,
        "jobs",
        transactional=True,
        dead_letter_queue="dead",
        dead_letter_max_receives=9,
    )
    await client.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    await client.expect(wire.SubscriptionInfo, wire.Subscribe, "news", "jobs", {"endpoint": "jobs"})

    async def ask(make: Any, *arguments: Any) -> Any:
        return await client.ask(make, *arguments, on_behalf_of=GATEWAY)

    await ask(wire.SendMessages, "jobs", [b"1", b"2", b"3"])
    received = await ask(wire.ReceiveMessages, "jobs", 3, 0)
    first, second, third = (message.receipt_handle for message in received.messages)
    await ask(wire.ChangeVisibility, "jobs", [first], 60_000)
    await ask(wire.ReleaseMessages, "jobs", [first])
    await ask(wire.DeleteMessages, "jobs", [second])
    await ask(wire.DeadLetterMessages, "jobs", [third], ["no"])
    half = await ask(wire.SendHalfMessages, "jobs", [b"4"])
    await ask(wire.EndTransactions, "jobs", half.message_ids, [wire.ROLL_BACK])
    await ask(wire.PublishMessages, "news", [b"5"])

    expected = "web 7@192.0.2.7 by 127.0.0.1"
    for kind in (
        MessagesReceived,
        VisibilityChanged,
        MessagesReleased,
        MessagesDeleted,
        MessagesDeadLettered,
        TransactionsEnded,
        MessagesPublished,
    ):
        assert {name for names in named(rig, kind) for name in names} == {expected}, kind
    # A dead letter is stored by the broker.
    assert named(rig, MessagesSent) == [[expected] * 3, ["-"], [expected]]


async def test_messages_that_a_lost_connection_gives_back_name_no_client(rig: ServerRig) -> None:
    ann, ben = await worker(rig, "ann"), await worker(rig, "ben")
    await a_queue(ann, "jobs")
    await ann.send("jobs", b"1")
    ben.transport.stuck = True
    ben.begin(wire.ReceiveMessages(ben.next_id(), "jobs", 1, 0))
    await rig.turn()
    ben.transport.lose()
    await ann.settle()

    assert named(rig, MessagesReleased) == [["-"]]


async def test_a_client_keeps_its_number_over_connections(rig: ServerRig) -> None:
    first = await worker(rig, "ann")
    await a_queue(first, "jobs")
    await first.send("jobs", b"1")
    second = await worker(rig, "ann")
    await second.send("jobs", b"2")

    seen = [record for row in rig.log.disk.rows for record in row.records if isinstance(record, ActorSeen)]
    key = rig.accounts.first_key("admin")
    assert seen == [ActorSeen(1, Actor("admin", key.secret_id, "ann", "127.0.0.1"))]
