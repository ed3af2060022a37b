"""Decisions about rounds, over a catalog without files: changes that are unknown, failures, and a stop in between."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cmqd.storage.folder.catalog import Catalog, SealedFile
from cmqd.storage.outcomes.round import RoundFile
from cmqd.storage.outcomes.rounds import Changes, Rounds
from cmqd_segment.manifest import CheckpointEntry, OutcomesEntry, SegmentEntry, SegmentState


def checkpoint(number: int, lsn: int) -> CheckpointEntry:
    return CheckpointEntry(number, lsn, lsn + 1, 0, 0, "")


async def nothing() -> None:
    pass


class Scene:
    """Two sealed segments, of rows 1 to 10 and 11 to 20, and a checkpoint behind them."""

    def __init__(self, folder: Path, *, is_stopping: bool = False) -> None:
        place: Any = SimpleNamespace(path=folder)
        self.catalog = Catalog(place, "full", "")
        for number in (1, 2):
            entry = SegmentEntry(number, SegmentState.SEALED, first_lsn=number * 10 - 9, last_lsn=number * 10)
            self.catalog.sealed[number] = SealedFile(entry, folder / entry.file, [])
        self.skipped: list[bool] = []
        self.rounds = Rounds(
            self.catalog,
            nothing,
            is_short=lambda: False,
            is_stopping=lambda: is_stopping,
            on_skipped=lambda: self.skipped.append(True),
        )
        self.first = self.add(1, 30)

    def add(self, number: int, lsn: int) -> CheckpointEntry:
        entry = checkpoint(number, lsn)
        self.catalog.checkpoints.append(entry)
        return entry


def test_a_segment_that_the_loop_process_did_not_know_as_closed_may_have_changed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.rounds.tell(Changes([], [], counted=1))
    scene.rounds.note(1)

    assert not scene.rounds.moves(None, scene.first)


def test_segments_that_were_counted_without_a_change_need_no_round(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.rounds.tell(Changes([], [], counted=2))
    scene.rounds.note(1)

    assert scene.rounds.moves(None, scene.first)
    assert scene.catalog.outcomes == dict.fromkeys((1, 2), OutcomesEntry(0, 0, 30))


async def test_a_round_that_fails_is_unknown_to_a_segment_whose_drop_was_expected(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.catalog.dropped = [(21, 25)]
    scene.rounds.tell(Changes([1, 2], [2], counted=2))
    scene.rounds.note(1)

    assert await scene.rounds.run(None, scene.first)

    assert scene.skipped
    assert scene.catalog.outcomes == dict.fromkeys((1, 2), OutcomesEntry(0, 31, 30))


async def test_a_round_that_ends_as_the_broker_stops_is_left_to_the_next_start(tmp_path: Path) -> None:
    scene = Scene(tmp_path, is_stopping=True)
    rounds: Any = scene.rounds

    async def written(_: object) -> list[RoundFile]:
        return [RoundFile(1, 1, 10, "", is_new=False)]

    rounds._run_child = written

    assert not await scene.rounds.run(None, scene.first)

    assert scene.catalog.outcomes == {}
    assert scene.catalog.outcomes_upto is None
