"""The gateway's own metrics: CMQ's TCP protocol, API 3.0 and ignored keys, with bounded labels."""

import logging
from typing import Any

import pytest

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.monitoring.own_metrics import TCP_STATES, own_metrics
from support.eventually import eventually
from support.gateway.api3_requests import Api3Calls
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_program import TcpProgram

TCP: dict[str, Any] = {"listen_cmq_tcp": "127.0.0.1:0"}


def figures(rig: GatewayRig) -> dict[str, float]:
    """The samples by name without prefix and labels, ``name label label``."""
    return {
        " ".join([sample.name.removeprefix("cmqd_gateway_"), *sample.labels.values()]): sample.value
        for family in own_metrics(rig.gateway)
        for sample in family.samples
    }


async def test_requests_of_api_3_are_counted_by_action_and_code_and_unknown_actions_share_a_label() -> None:
    async with GatewayRig() as rig:
        calls = Api3Calls(rig)
        await calls.ok("SendCmqMsg", QueueName="orders", MsgContent="x", DelaySeconds=0)
        await calls.fault("SendCmqMsg", QueueName="nowhere", MsgContent="x", DelaySeconds=0)
        await calls.send(calls.prepare("SendCmqMsg", {}, version="2000-01-01"))
        await calls.send(calls.prepare("SendCmqMsg", {}, key=KeySecret(rig.own_key.secret_id, "wrong")))
        for number in range(50):
            await calls.fault(f"Unknown{number}")

        counted = {name: value for name, value in figures(rig).items() if name.startswith("api3_")}

        assert counted == {
            "api3_requests_total SendCmqMsg OK": 1,
            "api3_requests_total SendCmqMsg ResourceNotFound": 1,
            "api3_requests_total SendCmqMsg NoSuchVersion": 1,
            "api3_requests_total SendCmqMsg AuthFailure.SignatureFailure": 1,
            "api3_requests_total other InvalidAction": 50,
        }


async def test_ignored_routing_keys_are_counted_by_door() -> None:
    async with GatewayRig(**TCP) as rig, TcpProgram(rig) as program:
        await rig.server.admin.create_topic("news")
        await program.log_in()
        await program.ask(commands.PUBLISH, topicName="news", msgBody=b"x", routingKey="a.b")
        await rig.call("PublishMessage", topicName="news", msgBody="x", routingKey="a.b")
        await rig.call("PublishMessage", topicName="news", msgBody="x", routingKey="a.b")

        found = figures(rig)

        assert (found["keys_ignored_total api2"], found["keys_ignored_total tcp"]) == (2, 1)


async def test_a_gateway_without_the_tcp_protocol_has_no_metrics_of_it() -> None:
    async with GatewayRig() as rig:
        assert not [name for name in figures(rig) if name.startswith("tcp_")]
        assert [figures(rig)[f"keys_ignored_total {door}"] for door in ("api2", "api3", "tcp")] == [0, 0, 0]


async def test_connections_are_counted_by_state() -> None:
    async with GatewayRig(**TCP) as rig, TcpProgram(rig), TcpProgram(rig) as idle, TcpProgram(rig) as busy:
        await idle.log_in()
        await busy.log_in()
        busy.send(commands.RECEIVE, queueName="orders", pollingWaitSeconds=30)
        await eventually(lambda: figures(rig)["tcp_waiting_receives"] == 1)

        found = figures(rig)

        assert [found[f"tcp_connections {state}"] for state in TCP_STATES] == [1, 1, 1, 0]
        busy.writer.close()
        await eventually(lambda: figures(rig)["tcp_connections busy"] == 0)
        await eventually(lambda: figures(rig)["tcp_waiting_receives"] == 0)


async def test_answers_are_counted_by_command_and_result_and_unknown_commands_share_a_label() -> None:
    async with GatewayRig(**TCP) as rig, TcpProgram(rig) as program:
        await program.log_in()
        await program.ok(commands.SEND, queueName="orders", msgBody=b"x")
        await program.ok(commands.SEND, queueName="orders", msgBody=b"x")
        await program.ask(commands.SEND, queueName="nowhere", msgBody=b"x")
        for number in range(1100, 1200):
            program.write(commands.reply(number, number))
            await program.answer(number)

        found = {name: value for name, value in figures(rig).items() if name.startswith("tcp_answers_total")}

        assert found["tcp_answers_total 1020 0"] == 1
        assert found["tcp_answers_total 1021 0"] == 2
        assert found["tcp_answers_total 1021 4440"] == 1
        assert [value for name, value in found.items() if " other " in name] == [100]
        assert figures(rig)["tcp_received_bytes_total"] > 100 * 10
        assert figures(rig)["tcp_sent_bytes_total"] > 100 * 10


async def test_ends_of_connections_are_counted_by_reason_and_have_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async with GatewayRig(**TCP) as rig:
        rig.clock.hold()
        with caplog.at_level(logging.WARNING, "cmqd.gateway"):
            for _ in range(10):
                async with TcpProgram(rig) as program:
                    program.write(b"GET / HTTP/1.1\r\n\r\n")
                    await program.ended()

            assert figures(rig)["tcp_connections_ended_total no frame"] == 10
            assert figures(rig)["tcp_connections_ended_total silent"] == 0
            lines = [record.getMessage() for record in caplog.records]
            assert len(lines) == 1
            assert "event='cmq_tcp_connection_ended' times=1 reason='no frame' remote='127.0.0.1'" in lines[0]


async def test_checks_are_counted_by_their_end_and_repeats_of_sends() -> None:
    async with GatewayRig(**TCP) as rig, TcpProgram(rig) as program:
        await rig.server.admin.create_queue("payments", transactional=True)
        await program.log_in()
        for _ in range(3):
            await program.ok(commands.SEND, request_id=7, queueName="orders", msgBody=b"x")

        for is_answered in (True, False):
            half = await program.ok(
                commands.SEND, queueName="payments", msgBody=b"x", isTransaction=1, firstQueryInterval=5
            )
            rig.server.advance(10)
            assert (await program.next()).cmd == commands.CHECK
            if is_answered:
                decision = {"msgId": half.ids[0], "state": commands.COMMIT}
                await program.ok(commands.DECIDE, queueName="payments", item=[decision])
        program.writer.close()
        await eventually(lambda: figures(rig)["tcp_checks_total unanswered"] == 1)

        found = figures(rig)

        assert (found["tcp_checks_total asked"], found["tcp_checks_total answered"]) == (2, 1)
        assert found["tcp_repeats_total"] == 2
