"""Lives read from segments with damage: a row that cannot be read is a gap, and no error."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from cmqd_types.histories import LifeKind
from support.storage.log_rig import LogRig, OpenProcess

pytestmark = pytest.mark.system


def damage_row(folder: Path, lsn: int) -> None:
    path = folder / "segments" / "00000001.db"
    path.chmod(0o644)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("UPDATE log SET meta_crc = meta_crc + 1 WHERE lsn = ?", (lsn,))


async def told(rig: LogRig, position: int) -> list[tuple[str, int, int]] | None:
    history = (await rig.log.read_history(1000 + position)).history
    return None if history is None else [(event.kind, event.first_lsn, event.last_lsn) for event in history.events]


async def test_damaged_rows_are_told_as_missing(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    for position in range(90):
        await rig.store(1, position, 1)
    await rig.checkpoint()
    await rig.log.close()
    for lsn in (5, 6, 80):
        damage_row(folder, lsn)
    rig = await open_process()

    assert await told(rig, 3) == [(LifeKind.SENT, 0, 0), (LifeKind.ROWS_MISSING, 5, 80)]
    assert await told(rig, 6) == [(LifeKind.SENT, 0, 0), (LifeKind.ROWS_MISSING, 80, 80)]
    assert await told(rig, 85) == [(LifeKind.SENT, 0, 0)]
    # The row that stored it is damaged, which the list of lost rows does not have.
    assert await told(rig, 4) is None
    assert not rig.fatal
