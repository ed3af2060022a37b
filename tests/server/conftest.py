"""Fixtures of the edge's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.edge_rig import EdgeRig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[EdgeRig]:
    """An edge over a log in memory, with default settings."""
    made = await EdgeRig.make(tmp_path)
    yield made
    made.check()
    made.close()
