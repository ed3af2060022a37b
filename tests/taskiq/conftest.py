"""A broker of taskiq, against a server in the test's process."""

from collections.abc import AsyncIterator

import pytest

from cmqd_taskiq import CmqBroker
from support.client.local_server import LocalServer


@pytest.fixture
async def server() -> AsyncIterator[LocalServer]:
    async with LocalServer() as server:
        yield server


@pytest.fixture
async def broker(server: LocalServer) -> AsyncIterator[CmqBroker]:
    broker = CmqBroker(server.url)
    await broker.startup()
    yield broker
    await broker.shutdown()
