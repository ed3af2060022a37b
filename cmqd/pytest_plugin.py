"""The pytest plugin of cmqd: fixtures with a broker for each test. Registered by entry point, under the name ``cmqd``.

    cmqd_broker        a LocalBroker: in this process, with ``cmqd_broker.clock``
    cmqd_client        a client of ``cmqd_broker``, for async tests (pytest-asyncio in any mode, or anyio)
    cmqd_sync_client   a client of ``cmqd_broker``, for plain tests (extra ``sync``)
    cmqd_process       a BrokerProcess: a real broker in processes of its own
    cmqd_settings      settings of ``cmqd_broker``, empty; to be overridden by a fixture of this name

pytest loads this module in every session of an environment with cmqd. The broker is therefore imported only when a test
uses a fixture, and the packages of the server need not be installed until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

try:
    # In strict mode pytest-asyncio takes async fixtures by this decorator alone; anyio takes all fixtures.
    from pytest_asyncio import fixture as async_fixture
except ImportError:
    async_fixture = pytest.fixture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from cmqd.testing.broker_process import BrokerProcess
    from cmqd.testing.local_broker import LocalBroker
    from cmqd_client import Client
    from cmqd_client.sync import Client as SyncClient


@pytest.fixture
def cmqd_settings() -> dict[str, Any]:
    """Arguments of ``cmqd_broker``, such as ``{"max_in_flight_per_queue": 10}`` or ``{"clone": "incident"}``; override
    it to change them.
    """
    return {}


@pytest.fixture
def cmqd_broker(cmqd_settings: dict[str, Any]) -> Iterator[LocalBroker]:
    """Yield a broker in this process: empty, over a log in memory, with a clock that the test turns."""
    from cmqd.testing.local_broker import LocalBroker

    with LocalBroker(**cmqd_settings) as broker:
        yield broker


@async_fixture
async def cmqd_client(cmqd_broker: LocalBroker) -> AsyncIterator[Client]:
    """Yield a connected client of ``cmqd_broker``, in the event loop of the test."""
    from cmqd_client import connect

    async with connect(cmqd_broker.url) as client:
        yield client


@pytest.fixture
def cmqd_sync_client(cmqd_broker: LocalBroker) -> Iterator[SyncClient]:
    """Yield a connected synchronous client of ``cmqd_broker``."""
    from cmqd_client.sync import connect

    with connect(cmqd_broker.url) as client:
        yield client


@pytest.fixture
def cmqd_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Yield a real broker in processes of its own, durable, on a free port; a test may kill it and start it again."""
    from cmqd.testing.broker_process import BrokerProcess

    folder = tmp_path / "cmqd"
    folder.mkdir()
    with BrokerProcess(folder) as broker:
        yield broker
