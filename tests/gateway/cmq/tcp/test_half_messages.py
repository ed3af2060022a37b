"""Transactions over CMQ's TCP protocol: half messages, decisions, and the broker's checks as questions to programs."""

import pytest

from cmqd_client import TransactionCheck, TransactionStatus
from cmqd_client.messages.message_ids import printed_id
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp import commands, transaction_checks
from cmqd_gateway.cmq.tcp.connections import Connections
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.local_server import LocalServer
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_producer import TcpProducer

LONGEST_INTERVAL = 300
"""Seconds; the next check of every half message is due after as long."""
COMMIT, ROLL_BACK, UNKNOWN = commands.COMMIT, commands.ROLL_BACK, commands.UNKNOWN


async def another(rig: GatewayRig, client_id: str = "10.0.0.7@DEFAULT", key: KeySecret | None = None) -> TcpProducer:
    """Return a further program that has logged in."""
    program = await TcpProducer(rig).__aenter__()
    assert (await program.log_in(key, client_id)).result == 0
    return program


async def end(program: TcpProducer, connections: Connections) -> None:
    """End a connection, and wait until the gateway has noticed."""
    before = len(connections)
    await program.__aexit__(None, None, None)
    await eventually(lambda: len(connections) < before)


# ---------------------------------------------------------------- half messages


async def test_half_messages_are_delivered_after_the_commit_in_its_order(
    producer: TcpProducer, server: LocalServer
) -> None:
    single = await producer.ok(commands.SEND, queueName="tx", msgBody=b"a", isTransaction=1, firstQueryInterval=5_000)
    ids = [*single.ids, *await producer.half(b"b", b"c")]
    assert await server.bodies("tx") == []
    assert (await server.info("tx")).half == 3

    await producer.commit(ids[2])
    assert (await producer.decide(ROLL_BACK, ids[1])).result == 0
    await producer.commit(ids[0])

    assert await server.bodies("tx") == [b"c", b"a"]
    assert (await server.info("tx")).half == 0


async def test_the_first_interval_is_in_seconds_below_1000_and_in_milliseconds_from_there(
    producer: TcpProducer, server: LocalServer
) -> None:
    seconds, milliseconds = (1, 5, 999), (1_000, 5_500, 3_600_000)
    for interval in (0, *seconds, *milliseconds):
        await producer.half(interval=interval)

    expected = [None, *(1_000 * interval for interval in seconds), *milliseconds]
    assert [request.first_check_ms for request in server.link.of(wire.SendHalfMessages)] == expected


async def test_a_first_interval_out_of_range_is_refused(producer: TcpProducer) -> None:
    for interval in (-1, -(2**31), 3_600_001, 2**31 - 1):
        reply = await producer.ask(
            commands.SEND, queueName="tx", msgBody=b"a", isTransaction=1, firstQueryInterval=interval
        )

        assert (reply.result, reply.error[:7]) == (4000, "(10350)"), interval


async def test_a_plain_queue_takes_no_half_messages(producer: TcpProducer, connections: Connections) -> None:
    reply = await producer.ask(commands.SEND, queueName="orders", msgBody=b"a", isTransaction=1)

    assert (reply.result, reply.error[:7]) == (4490, "(10790)")
    assert connections.checks.queues == 0


# ---------------------------------------------------------------- decisions


async def test_a_decision_is_answered_item_by_item(producer: TcpProducer, server: LocalServer) -> None:
    committed, rolled_back, open_one = await producer.half(b"a", b"b", b"c")
    await producer.commit(committed)
    await producer.decide(ROLL_BACK, rolled_back)
    items = [(committed, COMMIT), (rolled_back, COMMIT), (committed, ROLL_BACK), (2**63, COMMIT), (open_one, 7)]

    reply = await producer.ask(
        commands.DECIDE, queueName="tx", item=[{"msgId": number, "state": state} for number, state in items]
    )

    answer = reply.body("decided")
    assert answer["queueName"] == "tx"
    assert [(item["msgId"], item["state"], item.get("code")) for item in answer["item"]] == [
        (committed, COMMIT, None),
        (rolled_back, UNKNOWN, 4490),
        (committed, UNKNOWN, 4490),
        (2**63, UNKNOWN, 4490),
        (open_one, UNKNOWN, 4000),
    ]
    assert "message" not in answer["item"][0]
    assert "already" in answer["item"][1]["message"]
    assert (reply.result, reply.error[:7]) == (6040, "(10760)")
    assert await server.bodies("tx") == [b"a"]
    assert (await server.info("tx")).half == 1


async def test_commits_stand_when_the_roll_backs_of_the_same_request_are_refused(
    rig: GatewayRig, producer: TcpProducer, server: LocalServer
) -> None:
    committed, rolled_back = await producer.half(b"a", b"b")
    server.link.carry_out(wire.EndTransactions)
    server.link.refuse(wire.EndTransactions, ErrorCode.PERMISSION_DENIED, "a sentence of the broker")

    reply = await producer.ask(
        commands.DECIDE,
        queueName="tx",
        item=[{"msgId": rolled_back, "state": ROLL_BACK}, {"msgId": committed, "state": COMMIT}],
    )

    assert [(item["msgId"], item["state"], item.get("code")) for item in reply.body("decided")["item"]] == [
        (rolled_back, UNKNOWN, 4000),
        (committed, COMMIT, None),
    ]
    assert (reply.result, reply.error[:7]) == (6040, "(10760)")
    assert await server.bodies("tx") == [b"a"]


async def test_a_decision_about_no_or_too_many_messages_is_refused(producer: TcpProducer) -> None:
    for count in (0, 17, 10_000):
        reply = await producer.decide(COMMIT, *range(1, count + 1))

        assert (reply.result, reply.bodies) == (4000, []), count


async def test_any_connection_and_gateway_decides(rig: GatewayRig, producer: TcpProducer, server: LocalServer) -> None:
    first, second = await producer.half(b"a", b"b")
    other = await another(rig, "10.0.0.8@DEFAULT")
    await other.commit(first)
    async with GatewayRig(beside=rig, listen_cmq_tcp="127.0.0.1:0") as elsewhere:
        distant = await another(elsewhere)
        await distant.commit(second, first)
        await distant.__aexit__(None, None, None)
    await other.__aexit__(None, None, None)

    assert await server.bodies("tx") == [b"a", b"b"]
    # Decided already: the repeats change nothing.
    await producer.commit(first, second)
    assert (await producer.decide(ROLL_BACK, first)).result == 4490


async def test_a_key_without_the_role_decides_nothing(
    rig: GatewayRig, producer: TcpProducer, server: LocalServer
) -> None:
    (number,) = await producer.half()
    made = await server.admin.accounts.create_key(roles=["consume"])
    assert made.secret_key is not None
    reader = await another(rig, key=rig.add_key(made.secret_id, made.secret_key))

    reply = await reader.decide(COMMIT, number)

    assert (reply.result, reply.error[:7]) == (4000, "(10461)")
    await reader.__aexit__(None, None, None)


# ---------------------------------------------------------------- checks


async def test_a_check_is_a_question_and_stays_open_until_the_decision(
    producer: TcpProducer, server: LocalServer, connections: Connections
) -> None:
    (number,) = await producer.half()
    await server.wait_status("checkers", 1)

    server.advance(LONGEST_INTERVAL)

    assert await producer.check() == number
    assert not server.link.of(wire.EndTransactions)
    await producer.commit(number)
    assert await server.bodies("tx") == [b"a"]
    assert (connections.checks.asked, connections.checks.answered, connections.checks.unanswered) == (1, 1, 0)


async def test_a_program_that_cannot_tell_is_asked_as_often_as_the_queue_says(
    producer: TcpProducer, server: LocalServer
) -> None:
    await server.admin.queue("tx").set_attributes(max_checks=4)
    (number,) = await producer.half()
    await server.wait_status("checkers", 1)

    for _ in range(4):
        server.advance(LONGEST_INTERVAL)
        assert await producer.check() == number
    server.advance(LONGEST_INTERVAL)
    (last,) = await producer.half(b"later")
    server.advance(LONGEST_INTERVAL)

    assert await producer.check() == last
    page = await server.admin.queue("tx").half_messages()
    assert [(half.id, half.checks) for half in page] == [(printed_id(number), 4), (printed_id(last), 1)]
    await producer.decide(ROLL_BACK, number, last)
    assert (await server.info("tx")).half == 0


async def test_the_check_of_a_connection_that_ends_goes_to_the_next_one_and_costs_no_further_check(
    rig: GatewayRig, producer: TcpProducer, server: LocalServer, connections: Connections
) -> None:
    newer = await another(rig, "10.0.0.8@DEFAULT")
    (number,) = await producer.half()
    (other_number,) = await newer.half()
    await server.wait_status("checkers", 1)
    server.advance(LONGEST_INTERVAL)
    assert {await newer.check(), await newer.check()} == {number, other_number}

    await end(newer, connections)

    assert {await producer.check(), await producer.check()} == {number, other_number}
    page = await server.admin.queue("tx").half_messages()
    assert [half.checks for half in page] == [1, 1]
    await producer.commit(number, other_number)


async def test_after_the_last_connection_a_native_producer_is_asked(
    rig: GatewayRig, producer: TcpProducer, server: LocalServer, connections: Connections
) -> None:
    (number,) = await producer.half()
    await server.wait_status("checkers", 1)
    server.advance(LONGEST_INTERVAL)
    assert await producer.check() == number
    asked: list[str] = []

    def checker(check: TransactionCheck) -> TransactionStatus:
        asked.append(check.id)
        return TransactionStatus.COMMIT

    async with server.admin.transaction_producer("tx", checker):
        assert asked == []
        await end(producer, connections)
        await server.wait_bodies("tx", b"a")
    assert asked == [printed_id(number)]
    assert await server.status("checkers") == 0


async def test_a_program_that_connects_again_is_asked_before_it_sends(
    rig: GatewayRig, producer: TcpProducer, server: LocalServer, connections: Connections
) -> None:
    (number,) = await producer.half()
    await end(producer, connections)
    await server.wait_status("checkers", 0)

    again = await another(rig)
    await server.wait_status("checkers", 1)
    server.advance(LONGEST_INTERVAL)

    assert await again.check() == number
    await again.commit(number)
    await end(again, connections)
    await server.wait_status("checkers", 0)


async def test_a_consumer_of_the_same_host_and_key_does_not_keep_a_transaction_from_its_decision(
    rig: GatewayRig, producer: TcpProducer, server: LocalServer, connections: Connections
) -> None:
    (number,) = await producer.half()
    await end(producer, connections)
    again = await another(rig)
    consumer = await another(rig)
    await server.wait_status("checkers", 1)

    server.advance(LONGEST_INTERVAL)
    assert await consumer.check() == number
    assert again.unread_checks == 0
    server.advance(LONGEST_INTERVAL)
    assert await again.check() == number
    await again.commit(number)

    assert await server.bodies("tx") == [b"a"]
    for program in (again, consumer):
        await end(program, connections)


async def test_two_gateways_ask_in_turn(rig: GatewayRig, producer: TcpProducer, server: LocalServer) -> None:
    (number,) = await producer.half()
    async with GatewayRig(beside=rig, listen_cmq_tcp="127.0.0.1:0") as elsewhere:
        other = await another(elsewhere)
        (other_number,) = await other.half(b"b")
        await server.wait_status("checkers", 2)
        for _ in range(2):
            server.advance(LONGEST_INTERVAL)
            assert {await producer.check(), await other.check()} == {number, other_number}
        # The check of the gateway that ends is due again at once, here.
        await other.__aexit__(None, None, None)
    assert await producer.check() in (number, other_number)
    await producer.commit(number, other_number)

    assert sorted(await server.bodies("tx")) == [b"a", b"b"]


async def test_a_lost_connection_to_the_broker_registers_anew_and_the_check_is_asked_again(
    rig: GatewayRig, producer: TcpProducer, server: LocalServer
) -> None:
    (number,) = await producer.half()
    await server.wait_status("checkers", 1)
    server.advance(LONGEST_INTERVAL)
    assert await producer.check() == number

    for connection in list(server.link.connections):
        connection.drop()

    assert await producer.check() == number
    await producer.commit(number)
    assert await server.bodies("tx") == [b"a"]


async def test_a_decision_that_the_broker_refuses_for_now_leaves_the_check_open(
    producer: TcpProducer, server: LocalServer, connections: Connections
) -> None:
    (number,) = await producer.half()
    await server.wait_status("checkers", 1)
    server.advance(LONGEST_INTERVAL)
    await producer.check()
    server.link.refuse(wire.EndTransactions, ErrorCode.INTERNAL_ERROR)

    assert (await producer.decide(COMMIT, number)).result not in (0, 4490)
    assert connections.checks.answered == 0
    await producer.commit(number)
    assert connections.checks.answered == 1


async def test_too_many_checkers_are_one_line_in_the_log(
    producer: TcpProducer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transaction_checks, "MAX_CHECKERS", 0)

    for _ in range(3):
        await producer.half()

    assert caplog.text.count("half_message_without_checker") == 1


async def test_the_end_of_the_gateway_ends_the_registrations(rig: GatewayRig, server: LocalServer) -> None:
    async with GatewayRig(beside=rig, listen_cmq_tcp="127.0.0.1:0") as elsewhere:
        program = await another(elsewhere)
        await program.half()
        await server.wait_status("checkers", 1)
    await server.wait_status("checkers", 0)
    await program.__aexit__(None, None, None)
