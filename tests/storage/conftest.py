"""What several tests of storage need."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cmqd.log.errors import LogFailed
from support.log_rig import LogRig, OpenProcess, ProcessPlace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder that does not exist yet."""
    return tmp_path / "data"


@pytest.fixture
async def open_process(folder: Path) -> AsyncIterator[OpenProcess]:
    """Open the folder with a storage process of its own; settings by keyword."""
    rigs: list[LogRig] = []

    async def open_one(**settings: object) -> LogRig:
        rig = LogRig(ProcessPlace(folder, **settings).log())
        rigs.append(rig)
        await rig.open()
        return rig

    yield open_one
    for rig in rigs:
        try:
            await rig.log.close()
        except LogFailed:
            pass
