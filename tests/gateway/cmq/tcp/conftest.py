"""A gateway with a listener of CMQ's TCP protocol, and programs that have logged in."""

from collections.abc import AsyncGenerator

import pytest

from cmqd_gateway.cmq.tcp.connections import Connections
from support.gateway.gateway_rig import GatewayRig
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
