"""The gateway's tests run on uvloop, those of its connections on asyncio too, with a broker and a gateway per test."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

import pytest
import structlog

from support.client.local_server import LocalServer
from support.event_loops import loop_factories
from support.gateway.cmq_calls import CmqCalls
from support.gateway.gateway_rig import GatewayRig
from support.gateway.rest_calls import RestCalls


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    is_about_connections = item.path.parent == Path(__file__).parent or "tcp" in item.path.parts
    return loop_factories("uvloop", is_about_connections=is_about_connections)


@pytest.fixture(autouse=True)
def logs_unconfigured() -> None:
    """Undo the configuration that tests of other rooms leave, as ``structlog.testing.capture_logs`` does.

    With a configuration the gateway's lines would not reach ``caplog``.
    """
    structlog.reset_defaults()


@pytest.fixture
async def rig() -> AsyncGenerator[GatewayRig]:
    async with GatewayRig() as rig:
        yield rig


@pytest.fixture
def calls(rig: GatewayRig) -> CmqCalls:
    return CmqCalls(rig)


@pytest.fixture
def server(rig: GatewayRig) -> LocalServer:
    """The broker behind the gateway, past the gateway."""
    return rig.server


@pytest.fixture
def rest(rig: GatewayRig) -> RestCalls:
    return RestCalls(rig)
