"""Consumers whose deletes ride in receives, against a server with a clock that the test turns."""

import pytest

from cmqd_client import Client, ConsumedMessage, connect
from cmqd_client.consumers import intake
from cmqd_client.consumers.consumer import MessageStream
from cmqd_client.consumers.intake import RIDING_WAIT_MS
from cmqd_protocol import messages as wire
from cmqd_protocol.features import Feature
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.consumer_parts import PAUSES, options, running, source
from support.client.faulty_link import LinkConnection
from support.client.local_server import LocalServer
from support.client.turned_clock import TurnedClock
from support.eventually import eventually


async def counts(server: LocalServer) -> tuple[int, int]:
    info = await server.info("orders")
    return info.active, info.in_flight


def ridden(server: LocalServer) -> list[int]:
    """Numbers of deletes in each receive that had any."""
    return [len(request.acknowledge) for request in server.link.of(wire.ReceiveMessages) if request.acknowledge]


async def none_left(server: LocalServer) -> None:
    while await counts(server) != (0, 0):
        pass


async def lost_to_another(server: LocalServer) -> None:
    """Let the lease of the only message end, and another consumer receive the message for long."""
    server.advance(31)
    assert await server.admin.queue("orders").receive(visibility_timeout=3600)


def told_as_handled_again(caplog: pytest.LogCaptureFixture) -> int:
    return [getattr(record, "event", "") for record in caplog.records].count("handled_again")


async def test_each_message_of_a_sequential_consumer_costs_one_request(client: Client, server: LocalServer) -> None:
    clock = TurnedClock()
    await server.put("orders", *[b"%d" % number for number in range(10)])
    bodies: list[bytes] = []

    async def handle(message: ConsumedMessage) -> None:
        bodies.append(message.body)

    async with running(client, handle, clock, prefetch=0) as consumer:
        await eventually(lambda: consumer.statistics().deleted == 10)
        await server.link.wait_handled(wire.ReceiveMessages, 12)

    assert bodies == [b"%d" % number for number in range(10)]
    assert server.link.of(wire.DeleteMessages) == []
    assert ridden(server) == [1] * 10
    # The last delete rides in a receive that finds no message, and waits only for a moment; then a receive waits long.
    waits = [request.wait_ms for request in server.link.of(wire.ReceiveMessages)]
    assert waits == [30_000, *[RIDING_WAIT_MS] * 10, 30_000]
    assert (consumer.statistics().lost, consumer.statistics().held) == (0, 0)


async def test_a_message_counts_as_deleted_with_the_reply(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"1")

    async def handle(message: ConsumedMessage) -> None:
        server.link.hold()

    async with running(client, handle, TurnedClock(), prefetch=0) as consumer:
        await none_left(server)
        assert (consumer.statistics().deleted, consumer.statistics().ending) == (0, 1)
        server.link.let_go()
        await eventually(lambda: consumer.statistics().deleted == 1)


async def test_a_delete_that_fails_in_a_receive_that_waits_is_told_like_a_failed_delete(
    client: Client, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    await server.put("orders", b"1")

    async def handle(message: ConsumedMessage) -> None:
        await lost_to_another(server)

    async with running(client, handle, TurnedClock(), prefetch=0) as consumer:
        await eventually(lambda: ridden(server) and not consumer.statistics().held)

    assert (consumer.statistics().deleted, consumer.statistics().lost) == (0, 1)
    assert told_as_handled_again(caplog) == 1
    assert server.link.of(wire.DeleteMessages) == []


async def test_a_stop_waits_for_the_result_of_deletes_that_ride(
    client: Client, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    await server.put("orders", b"1")
    is_lost = False

    async def handle(message: ConsumedMessage) -> None:
        if is_lost:
            await lost_to_another(server)

    async with running(client, handle, TurnedClock(), prefetch=0) as deleted:
        await none_left(server)
    await server.put("orders", b"2")
    is_lost = True
    async with running(client, handle, TurnedClock(), prefetch=0) as lost:
        await eventually(lambda: ridden(server) == [1, 1])

    assert (deleted.statistics().deleted, deleted.statistics().lost) == (1, 0)
    assert (lost.statistics().deleted, lost.statistics().lost) == (0, 1)
    assert told_as_handled_again(caplog) == 1
    assert server.link.of(wire.DeleteMessages) == []


async def test_a_stop_gives_a_receive_with_deletes_no_longer_than_other_settlements(
    client: Client, server: LocalServer
) -> None:
    # The short lease makes the attempts short, and ends nowhere: neither clock runs.
    server.broker.clock.stop()
    await server.put("orders", b"1")

    async def handle(message: ConsumedMessage) -> None:
        server.link.ignore(wire.ReceiveMessages, times=100)

    async with running(client, handle, TurnedClock(), prefetch=0, lease=1.0) as consumer:
        await eventually(lambda: ridden(server))

    assert consumer.statistics().deleted == 1
    assert server.link.of(wire.DeleteMessages)


async def test_a_stop_does_not_wait_for_a_receive_whose_deletes_are_done(
    client: Client, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "ATTEMPT_SECONDS", 3600)
    await server.put("orders", b"1")

    def refuse_after_deletes(_: LinkConnection, request: wire.Request) -> wire.AnyReply:
        refusal = wire.error(request.request_id, ErrorCode.TOO_MANY_IN_FLIGHT, "full")
        return wire.MessagesReceived(request.request_id, [], [], refusal)

    async def handle(message: ConsumedMessage) -> None:
        server.link.answer(wire.ReceiveMessages, refuse_after_deletes)
        server.link.ignore(wire.ReceiveMessages, times=100)

    async with running(client, handle, TurnedClock(), prefetch=0, lease=43_200) as consumer:
        await server.link.wait_handled(wire.ReceiveMessages, 3)

    assert (consumer.statistics().deleted, consumer.statistics().lost) == (1, 0)
    assert [len(request.acknowledge or ()) for request in server.link.of(wire.ReceiveMessages)] == [0, 1, 0]


async def test_an_older_server_gets_deletes_of_their_own(server: LocalServer) -> None:
    server.link.features = [word for word in Feature if word is not Feature.ACKNOWLEDGE]
    await server.put("orders", b"1", b"2", b"3")

    async def handle(message: ConsumedMessage) -> None: ...

    async with (
        connect(server.url) as client,
        running(client, handle, TurnedClock(), prefetch=0) as consumer,
    ):
        await eventually(lambda: consumer.statistics().deleted == 3)

    assert ridden(server) == []
    assert len(server.link.of(wire.DeleteMessages)) == 3


async def test_a_lost_answer_is_repeated_and_counts_as_deleted(client: Client, server: LocalServer) -> None:
    clock = TurnedClock()
    await server.put("orders", b"1", b"2")

    async def handle(message: ConsumedMessage) -> None:
        if message.body == b"1":
            server.link.lose_answer(wire.ReceiveMessages)

    async with running(client, handle, clock, prefetch=0) as consumer:
        await server.link.wait_handled(wire.ReceiveMessages, 3)
        await server.wait_status("waiting_receives", 1)
        # The message of the lost answer returns when its lease ends.
        server.advance(31)
        await eventually(lambda: consumer.statistics().deleted == 2)

    assert ridden(server) == [1, 1, 1]
    assert consumer.statistics().lost == 0


async def test_a_handle_that_ended_is_told_as_handled_again(
    client: Client, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = TurnedClock()
    await server.put("orders", b"1")
    receives: list[int] = []

    async def handle(message: ConsumedMessage) -> None:
        receives.append(message.receive_count)
        if message.receive_count == 1:
            server.advance(31)
            while await counts(server) != (1, 0):
                pass

    async with running(client, handle, clock, prefetch=0) as consumer:
        await eventually(lambda: clock.advance(0.01) or consumer.statistics().deleted == 1)

    assert receives == [1, 2]
    assert consumer.statistics().lost == 1
    assert told_as_handled_again(caplog) == 1


async def test_in_order_the_delete_rides_too_and_the_order_stays(client: Client, server: LocalServer) -> None:
    clock = TurnedClock()
    await server.put("orders", b"1", b"2", b"3")
    bodies: list[bytes] = []

    async def handle(message: ConsumedMessage) -> None:
        bodies.append(message.body)
        if message.body == b"2" and message.receive_count == 1:
            raise ValueError("once")

    async with running(client, handle, clock, concurrency=1, ordered=True) as consumer:
        await eventually(lambda: bodies == [b"1", b"2"] and not consumer.statistics().begun)
        clock.advance(PAUSES.first_delay)
        # In small steps: on a slow machine large steps would end the leases.
        await eventually(lambda: clock.advance(0.01) or consumer.statistics().deleted == 3)

    assert bodies == [b"1", b"2", b"2", b"3"]
    assert sum(ridden(server)) >= 2


async def test_slow_traffic_does_not_ride(client: Client, server: LocalServer) -> None:
    """A receive that brought fewer messages than requested emptied the queue: the next would wait."""
    await server.put("orders", b"1", b"2")

    async def handle(message: ConsumedMessage) -> None: ...

    async with running(client, handle, TurnedClock(), concurrency=4, prefetch=0) as consumer:
        await eventually(lambda: consumer.statistics().deleted == 2)

    assert ridden(server) == []


async def test_a_stream_of_messages_rides(client: Client, server: LocalServer) -> None:
    clock = TurnedClock()
    await server.put("orders", *[b"x"] * 5)
    stream = MessageStream(source(client), options(clock, concurrency=None, prefetch=0))
    taken = 0
    async with stream:
        async for message in stream:
            async with message.process():
                taken += 1
            if taken == 5:
                break

    assert sum(ridden(server)) == 4
    assert await counts(server) == (0, 0)
