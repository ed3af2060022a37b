"""Fixtures of the tests with real processes."""

from collections.abc import AsyncIterator

import pytest

from support.crash.load_topics import Endpoints
from support.crash.power import SEED, new_history


@pytest.fixture
async def endpoints() -> AsyncIterator[Endpoints]:
    """The URLs that a broker under load pushes to."""
    made = Endpoints(new_history(), SEED)
    async with made.receiver:
        yield made
