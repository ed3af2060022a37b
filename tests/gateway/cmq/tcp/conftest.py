"""A gateway with a listener of CMQ's TCP protocol, and programs that have logged in."""

from collections.abc import AsyncGenerator

import pytest

from cmqd_client.events import ClientState
from cmqd_gateway.cmq.tcp.connections import Connections
from support.client.local_server import LocalServer
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_producer import TcpProducer
from support.gateway.tcp_program import TcpProgram


@pytest.fixture
async def rig() -> AsyncGenerator[GatewayRig]:
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0") as rig:
        yield rig


@pytest.fixture
def connections(rig: GatewayRig) -> Connections:
    assert rig.gateway.cmq_tcp is not None
    return rig.gateway.cmq_tcp


@pytest.fixture
async def program(rig: GatewayRig) -> AsyncGenerator[TcpProgram]:
    """A program that has logged in with the admin's key."""
    async with TcpProgram(rig) as program:
        assert (await program.log_in()).result == 0
        yield program


@pytest.fixture
async def server(rig: GatewayRig) -> LocalServer:
    """The broker, with the transactional queue ``tx``."""
    await rig.server.admin.create_queue("tx", transactional=True)
    return rig.server


@pytest.fixture
async def producer(rig: GatewayRig, server: LocalServer) -> AsyncGenerator[TcpProducer]:
    """A producer that has logged in with the admin's key."""
    async with TcpProducer(rig) as producer:
        await producer.log_in()
        yield producer
    # The connection for checks may be on its way: the end of the broker would leave its socket open.
    states = ClientState.CONNECTED, ClientState.CLOSED
    await eventually(lambda: all(client.state in states for client in rig.clients))
