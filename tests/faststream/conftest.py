"""A server in the test's process for brokers of FastStream."""

from collections.abc import AsyncIterator

import pytest

from support.client.local_server import LocalServer


@pytest.fixture
async def server() -> AsyncIterator[LocalServer]:
    async with LocalServer() as server:
        yield server
