"""The transport against a server in the test's process, and kombu and Celery against a real broker."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cmqd_client import Client, connect
from support.client.local_server import LocalServer
from support.processes.running_broker import RunningBroker


@pytest.fixture
async def server() -> AsyncIterator[LocalServer]:
    async with LocalServer() as server:
        yield server


@pytest.fixture
async def client(server: LocalServer) -> AsyncIterator[Client]:
    async with connect(server.url, request_timeout=300, connect_timeout=300) as client:
        yield client


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path) as broker:
        yield broker
