"""How messages left, by the connector, when the broker has reclaimed the rows that told it."""

# pyarrow tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections import Counter
from pathlib import Path

import pytest
from spark.reading.test_modes import read

from cmqd_log.errors import UnknownOutcomeError
from support.storage.outcome_rig import OutcomeRig
from support.storage.ways_to_leave import WAYS, lives

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""Segments are written by a storage process. No session is needed."""


async def reclaimed(name: str, folder: Path) -> OutcomeRig:
    """A stopped broker with the first segment alone, from which the messages left in this way."""
    rig = await lives(folder, WAYS[name], at_each_step=True)
    await rig.leave_behind()
    await rig.drop_behind_first()
    await rig.rig.log.close()
    return rig


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.told])
async def test_states_and_counts_are_those_of_the_whole_log(name: str, tmp_path: Path) -> None:
    await reclaimed(name, tmp_path / "data")

    told = [row for row in read(tmp_path / "data", mode="all", includeActive="true") if row[0] == "q"]

    # A committed half message is told at its other position.
    expected = {key: count for key, count in WAYS[name].told.items() if key[0] != "committed"}
    assert Counter((state, count) for _, _, state, count, _ in told) == expected
    consumed = Counter(row for row in told if row[2] == "deleted")
    assert Counter(row for row in read(tmp_path / "data", mode="consumed") if row[0] == "q") == consumed


async def test_of_a_message_that_keeps_its_segment_the_neighbours_are_consumed(tmp_path: Path) -> None:
    rig = await reclaimed("deleted but one", tmp_path / "data")

    assert rig.manifest.dropped
    rows = read(tmp_path / "data", mode="consumed", queue="q")
    assert [(state, count) for _, _, state, count, _ in rows] == [("deleted", 1)] * 99


async def test_without_the_file_nothing_is_told_as_consumed(tmp_path: Path) -> None:
    rig = await reclaimed("deleted but one", tmp_path / "data")
    (file,) = (tmp_path / "data" / "segments").glob("*.outcomes")
    file.unlink()

    with pytest.raises(UnknownOutcomeError, match="cannot tell of 99 "):
        read(tmp_path / "data", mode="consumed", queue="q")
    told = read(tmp_path / "data", mode="all", queue="q")
    assert Counter((state, count) for _, _, state, count, _ in told) == {("active", 1): 1, ("gone", None): 99}
    assert rig.manifest.dropped
