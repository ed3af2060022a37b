"""The client's tests run on asyncio in debug mode, those of its links on uvloop too, with a server per test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from cmqd_client import Client, connect
from support.client.local_server import LocalServer
from support.event_loops import loop_factories
from support.processes.running_broker import RunningBroker
from support.processes.silent_port import reserve_port


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return loop_factories("asyncio", is_about_connections="links" in item.path.parts)


@pytest.fixture
async def server() -> AsyncIterator[LocalServer]:
    async with LocalServer() as server:
        yield server


@pytest.fixture
async def client(server: LocalServer) -> AsyncIterator[Client]:
    async with connect(server.url, patience=300, retries=2, request_timeout=300, connect_timeout=300) as client:
        yield client


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path) as broker:
        yield broker


@pytest.fixture
def silent_ports() -> Iterator[tuple[int, int]]:
    """Two ports of 127.0.0.1 that refuse connections during the test."""
    with reserve_port() as first, reserve_port() as second:
        yield first.getsockname()[1], second.getsockname()[1]
