"""Repeats over CMQ's TCP protocol: a send or publish that comes again within a connection is stored once."""

from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.connections import Connections
from support.client.local_server import LocalServer
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_producer import TcpProducer
from support.gateway.tcp_program import TcpProgram


async def test_a_repeat_within_a_connection_is_stored_once(
    rig: GatewayRig, producer: TcpProducer, server: LocalServer, connections: Connections
) -> None:
    sends = [
        await producer.ok(commands.SEND, queueName="orders", msgBody=b"a", request_id=1),
        await producer.ok(commands.SEND, queueName="orders", msgBody=b"a", request_id=1),
        await producer.ok(commands.SEND, queueName="orders", msgBody=b"a", request_id=2),
        await producer.ok(commands.SEND, queueName="orders", msgBody=b"b", request_id=1),
        await producer.ok(commands.BATCH_SEND, queueName="orders", msgBody=[b"a"], request_id=1),
        await producer.ok(commands.SEND, queueName="orders", msgBody=b"a"),
        await producer.ok(commands.SEND, queueName="orders", msgBody=b"a"),
    ]

    assert sends[0].ids == sends[1].ids
    assert len({tuple(send.ids) for send in sends}) == 6
    assert len(await server.bodies("orders")) == 6
    assert connections.repeats.repeats == 1
    async with TcpProgram(rig) as other:
        await other.log_in()
        await other.ok(commands.SEND, queueName="orders", msgBody=b"a", request_id=1)
        assert len(await server.bodies("orders")) == 7


async def test_a_repeat_of_a_send_that_is_under_way_waits_for_its_ids(
    producer: TcpProducer, server: LocalServer, connections: Connections
) -> None:
    server.link.hold()
    numbers = [
        producer.send(commands.SEND, queueName="orders", msgBody=b"a", request_id=9, seqno=seqno)
        for seqno in (500, 501, 500)
    ]
    await eventually(lambda: connections.repeats.repeats == 2)
    server.link.let_go()

    replies = [await producer.answer(number) for number in numbers]

    assert len({tuple(reply.ids) for reply in replies}) == 1
    assert await server.bodies("orders") == [b"a"]


async def test_repeated_half_messages_and_publishes_are_stored_once(producer: TcpProducer, server: LocalServer) -> None:
    await server.admin.create_topic("news")
    await server.subscribe("news", "copies", "orders")

    halves = [await producer.half(b"a", b"b", request_id=3) for _ in range(2)]
    publishes = [await producer.ok(commands.PUBLISH, topicName="news", msgBody=b"n", request_id=4) for _ in range(2)]

    assert halves[0] == halves[1]
    assert publishes[0].ids == publishes[1].ids
    assert (await server.info("tx")).half == 2
    await server.wait_bodies("orders", b"n")


async def test_a_refused_send_is_tried_again(producer: TcpProducer, server: LocalServer) -> None:
    assert (await producer.ask(commands.SEND, queueName="later", msgBody=b"a", request_id=1)).result == 4440
    await server.admin.create_queue("later")

    await producer.ok(commands.SEND, queueName="later", msgBody=b"a", request_id=1)

    assert await server.bodies("later") == [b"a"]
