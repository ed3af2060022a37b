"""Fixtures of the edge's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.server.server_rig import ServerRig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ServerRig]:
    """A server over a log in memory, with default settings."""
    made = await ServerRig.make(tmp_path)
    yield made
    made.check()
    made.close()
