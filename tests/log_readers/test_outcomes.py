"""Messages that left their queues in rows that are gone: told by outcomes beside the segment, or not told at all."""

# pyarrow tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import logging
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest
from log_readers.test_modes import read, write_with_checkpoints
from msgspec import structs

from cmqd_log.errors import UnknownOutcomeError
from cmqd_segment.manifest import OutcomesEntry, outcomes_file, read_manifest, write_manifest
from cmqd_segment.outcomes import Outcome, OutcomesHeader, encode_outcomes
from support.core.builders import Rig
from support.spark.log_folder import drop_segment
from support.storage.outcome_rig import OutcomeRig
from support.storage.ways_to_leave import WAYS, lives

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""Segments are written by a storage process. No session is needed."""


@pytest.fixture
def stuck(tmp_path: Path) -> tuple[Path, Rig]:
    """Of 100 messages 99 were received and deleted; the rows of that are gone."""
    rig = Rig()
    rig.create("q")
    rig.send(*[b"x"] * 100)
    sent, older = rig.log.last_lsn, rig.checkpoint()
    rig.delete(*rig.handles(most=16)[1:])
    for _ in range(6):
        rig.delete(*rig.handles(most=14))
    rig.settle(60_000)
    left, newer = rig.log.last_lsn, rig.checkpoint()
    rig.create("other")
    folder = tmp_path / "data"
    asyncio.run(write_with_checkpoints(folder, rig, {sent: older, left: newer, rig.log.last_lsn: []}))
    drop_segment(folder, sent + 1)
    return folder, rig


def test_without_outcomes_the_log_says_that_it_cannot_tell(
    stuck: tuple[Path, Rig], caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = stuck

    told = [(state, count) for _, _, state, count, _ in read(folder, mode="all")]

    assert told == [("active", 1), *[("gone", None)] * 99]
    with pytest.raises(UnknownOutcomeError, match=r"of 99 messages .* cannot tell of 99 .* no longer has rows 3 to "):
        read(folder, mode="consumed")
    with caplog.at_level(logging.WARNING, "cmqd_log"):
        assert read(folder, mode="consumed", failOnDataLoss="false") == []
    assert "cannot tell of 99" in caplog.text


def with_outcomes(folder: Path, queue_id: int, positions: list[int]) -> Path:
    """The folder with outcomes of its first segment; return their file."""
    manifest = read_manifest(folder)
    entry = manifest.segments[0]
    outcome = Outcome(queue_id, entry.last_lsn + 2, 0, "deleted", 1_700_000_000_005, positions, [1])
    content = encode_outcomes(OutcomesHeader(entry.number, entry.first_lsn, 1), [outcome])
    path = folder / outcomes_file(entry.number, 1)
    path.write_bytes(content)
    upto = manifest.checkpoints[-1].lsn
    listed = structs.replace(entry, outcomes=OutcomesEntry(1, 0, upto, len(content), sha256(content).hexdigest()))
    write_manifest(folder, structs.replace(manifest, segments=[listed, *manifest.segments[1:]]))
    return path


def test_outcomes_take_the_place_of_rows_that_are_gone(stuck: tuple[Path, Rig]) -> None:
    folder, rig = stuck
    with_outcomes(folder, rig.queue("q").queue_id, [1, 99])

    assert [(state, count) for _, _, state, count, _ in read(folder, mode="consumed")] == [("deleted", 1)] * 99
    assert [state for _, _, state, *_ in read(folder, mode="all")] == ["active", *["deleted"] * 99]


@pytest.mark.parametrize("fault", ["missing", "truncated", "flipped", "of another segment"])
def test_outcomes_that_cannot_be_used_are_lost_and_never_wrong(stuck: tuple[Path, Rig], fault: str) -> None:
    folder, rig = stuck
    path = with_outcomes(folder, rig.queue("q").queue_id, [1, 99])
    data = path.read_bytes()
    match fault:
        case "missing":
            path.unlink()
        case "truncated":
            path.write_bytes(data[:-1])
        case "flipped":
            path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
        case _:
            number = read_manifest(folder).segments[0].number
            path.write_bytes(encode_outcomes(OutcomesHeader(number + 1, 1, 1), []).ljust(len(data), b"\0"))

    with pytest.raises(UnknownOutcomeError, match="cannot tell of 99"):
        read(folder, mode="consumed")


def test_the_messages_that_outcomes_do_not_name_are_counted(stuck: tuple[Path, Rig]) -> None:
    folder, rig = stuck
    with_outcomes(folder, rig.queue("q").queue_id, [1, 90])

    with pytest.raises(UnknownOutcomeError, match=r"of 99 messages .* cannot tell of 9 "):
        read(folder, mode="consumed")


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
