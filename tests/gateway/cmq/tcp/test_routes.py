"""QueryQueueRoute and QueryTopicRoute of API 2.0: the addresses of CMQ's TCP protocol."""

import asyncio
import sys

import pytest

from cmqd_gateway.cmq.operations.routes import route_addresses
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.connections import Connections
from cmqd_gateway.process.gateway_settings import Settings, SettingsError
from support.gateway.cmq_calls import CmqCalls
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_program import TcpProgram


async def test_the_route_is_the_host_of_the_request_with_the_port_of_the_listener(
    rig: GatewayRig, calls: CmqCalls, connections: Connections
) -> None:
    for action, name in (("QueryQueueRoute", "queueName"), ("QueryTopicRoute", "topicName")):
        answer = await calls.ok(action, **{name: "unknown"})
        assert answer == {"addr": [f"127.0.0.1:{connections.address[1]}"]}
        # As CMQ's TCP SDK asks: by GET, and its nonce may be 0.
        asked = await rig.call(action, method="GET", **{name: "orders"}, Nonce=0, SignatureMethod="HmacSHA256")
        assert asked["addr"] == answer["addr"]


async def test_an_unknown_queue_of_a_route_is_refused_at_its_first_use(program: TcpProgram) -> None:
    refused = await program.ask(commands.SEND, queueName="unknown", msgBody=b"x")

    assert (refused.result, refused.error[:7]) == (4440, "(10100)")


async def test_set_addresses_are_the_answer() -> None:
    addresses = ("one.example:5682", "10.0.0.2:5682")
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0", cmq_tcp_addresses=addresses) as rig:
        assert await CmqCalls(rig).ok("QueryQueueRoute", queueName="orders") == {"addr": list(addresses)}


async def test_a_gateway_without_the_listener_refuses_with_the_reason() -> None:
    async with GatewayRig() as rig:
        refused = await CmqCalls(rig).refused("QueryQueueRoute", queueName="orders")

    assert refused.reason is Reason.ACTION_UNKNOWN
    assert "listen_cmq_tcp" in refused.message


@pytest.mark.parametrize(
    ("host", "route"),
    [("mq.example", "mq.example:7"), ("mq.example:5681", "mq.example:7"), ("10.0.0.1:80", "10.0.0.1:7")],
)
def test_the_port_of_http_is_no_part_of_a_route(host: str, route: str) -> None:
    assert list(route_addresses(Settings(), 7, host)) == [route]


@pytest.mark.parametrize("host", ["[::1]:5681", "[2001:db8::1]", "", ":5681"])
def test_a_host_that_no_route_can_name_is_refused(host: str) -> None:
    with pytest.raises(Refusal) as refused:
        route_addresses(Settings(), 7, host)

    assert refused.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize("address", ["[::1]:5682", "mq.example", "mq.example:0", ":5682"])
def test_an_address_that_no_program_can_read_is_refused_at_the_start(address: str) -> None:
    with pytest.raises(SettingsError, match="cmq_tcp_addresses"):
        Settings(listen_cmq_tcp="127.0.0.1:0", cmq_tcp_addresses=(address,))


def test_addresses_need_the_listener() -> None:
    with pytest.raises(SettingsError, match="cmq_tcp_addresses needs listen_cmq_tcp"):
        Settings(cmq_tcp_addresses=("mq.example:5682",))


async def test_a_gateway_without_the_listener_imports_none_of_the_protocol() -> None:
    program = (
        "import sys, cmqd_gateway.server, cmqd_gateway.process.command;"
        "print([name for name in sys.modules if name.startswith('cmqd_gateway.cmq.tcp')])"
    )
    ran = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    output, _ = await ran.communicate()

    assert output == b"[]\n"
