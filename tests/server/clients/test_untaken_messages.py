"""Messages and replies for a connection that is cancelled, closed or dead."""

from cmqd.server.monitoring.counters import Counters
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire
from cmqd_protocol.frames import frame
from support.server.server_rig import ServerRig, a_queue, code_of


async def test_messages_of_a_connection_that_died_before_they_were_durable_come_back_uncounted(rig: ServerRig) -> None:
    sender, receiver = await rig.client(), await rig.client()
    await a_queue(sender)
    await sender.send("jobs", b"x", b"y")
    rig.log.hold()
    receiver.begin(wire.ReceiveMessages(receiver.next_id(), "jobs", 2))
    await rig.turn()

    receiver.transport.lose()
    rig.log.let_go()
    await rig.turn()

    again = await sender.receive("jobs")
    assert [(message.body, message.receive_count) for message in again] == [(b"x", 1), (b"y", 1)]
    assert rig.server.part(Counters).given_back == 2


async def test_messages_that_a_dead_connection_did_not_take_go_to_the_next_waiter_at_once(rig: ServerRig) -> None:
    sender, dying, waiting = await rig.client(), await rig.client(), await rig.client()
    await a_queue(sender)
    dying.begin(wire.ReceiveMessages(dying.next_id(), "jobs", 1, 5_000))
    await dying.settle()
    second = waiting.begin(wire.ReceiveMessages(waiting.next_id(), "jobs", 1, 5_000))
    await waiting.settle()
    rig.log.hold()
    sender.begin(wire.SendMessages(sender.next_id(), "jobs", [b"x"]))
    await rig.turn()

    dying.transport.lose()
    rig.log.let_go()
    await waiting.settle()

    reply = waiting.replies[second]
    assert isinstance(reply, wire.MessagesReceived)
    assert [(message.body, message.receive_count) for message in reply.messages] == [(b"x", 1)]


async def test_a_dead_connection_waits_for_nothing(rig: ServerRig) -> None:
    sender, dying = await rig.client(), await rig.client()
    await a_queue(sender)
    for _ in range(3):
        dying.begin(wire.ReceiveMessages(dying.next_id(), "jobs", 1, 5_000))
    await dying.settle()

    dying.transport.lose()

    assert len(rig.server.part(WaitingRequests)) == 0
    assert (await sender.counts("jobs"))["waiting_receives"] == 0
    await sender.send("jobs", b"x")
    assert [message.receive_count for message in await sender.receive("jobs")] == [1]


async def test_a_cancelled_wait_is_answered_cancelled_and_takes_nothing(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    waiting = client.begin(wire.ReceiveMessages(client.next_id(), "jobs", 1, 5_000))
    await client.settle()

    client.cancel(waiting)
    await client.settle()
    await client.send("jobs", b"x")

    assert code_of(client.replies[waiting]) == "cancelled"
    assert (await client.counts("jobs"))["active"] == 1


async def test_the_number_of_a_cancelled_request_can_be_used_again(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    request = wire.ReceiveMessages(500, "jobs", 1, 20_000)
    for body in (b"first", b"second"):
        client.begin(request)
        await client.settle()
        client.cancel(500)
        await client.settle()
        assert code_of(client.replies.pop(500)) == "cancelled"

        client.begin(request)
        await client.settle()
        await client.send("jobs", body)

        received = client.replies.pop(500)
        assert isinstance(received, wire.MessagesReceived)
        assert [message.body for message in received.messages] == [body]


async def test_messages_that_crossed_a_cancellation_come_back_uncounted(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    await client.send("jobs", b"x")
    rig.log.hold()
    receiving = client.begin(wire.ReceiveMessages(client.next_id(), "jobs"))
    sending = client.begin(wire.SendMessages(client.next_id(), "jobs", [b"y"]))
    await rig.turn()

    client.cancel(receiving)
    client.cancel(sending)
    await rig.turn()
    assert client.replies == {}
    rig.log.let_go()
    await client.settle()

    assert code_of(client.replies[receiving]) == "cancelled"
    assert isinstance(client.replies[sending], wire.MessagesSent), "what is done cannot be cancelled"
    again = await client.receive("jobs")
    assert [(message.body, message.receive_count) for message in again] == [(b"x", 1), (b"y", 1)]


async def test_messages_for_a_connection_that_is_being_closed_come_back(rig: ServerRig) -> None:
    client, other = await rig.client(), await rig.client()
    await a_queue(client)
    await client.send("jobs", b"x")
    rig.log.hold()
    client.begin(wire.ReceiveMessages(client.next_id(), "jobs"))
    await rig.turn()

    client.connection.data_received(frame(b"\xc1"))
    rig.log.let_go()
    await rig.turn()

    assert [message.receive_count for message in await other.receive("jobs")] == [1]
