"""The logs that the conformance suite runs over."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cmqd.log.errors import LogFailed
from support.log_rig import LogRig, MemoryPlace, OpenRig, Place, ProcessPlace


def in_memory(_folder: Path) -> Place:
    return MemoryPlace()


LOGS = [
    pytest.param(in_memory, id="memory"),
    pytest.param(ProcessPlace, id="process", marks=pytest.mark.system),
]
"""A line per implementation of the interface: its place, given a folder that does not exist yet."""


@pytest.fixture(params=LOGS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a log is kept."""
    return request.param(tmp_path / "data")


@pytest.fixture
async def open_rig(place: Place) -> AsyncIterator[OpenRig]:
    """Open the log of the place."""
    rigs: list[LogRig] = []

    async def open_one() -> LogRig:
        rig = LogRig(place.log())
        rigs.append(rig)
        await rig.open()
        return rig

    yield open_one
    for rig in rigs:
        try:
            await rig.log.close()
        except LogFailed:
            pass  # a test crashed or closed the log itself
