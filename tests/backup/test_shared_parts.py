"""Documents of many runs over many segments: a run costs what changed, and is read as it was written."""

import contextlib
import io
import random
import tracemalloc
from collections.abc import Generator
from hashlib import sha256
from pathlib import Path
from typing import IO

import pytest
from msgspec import structs

from cmqd_backup.keeping import remove_old
from cmqd_backup.listing import list_backup
from cmqd_backup.parts import MAX_OWN, PART_ENTRIES, divide, missing_ranges
from cmqd_backup.runs import Run, Runs
from cmqd_backup.stores import FolderStore
from cmqd_backup.writing_runs import write_run
from cmqd_segment.manifest import Manifest, SegmentEntry, SegmentState, SourceName, StartEntry
from support.backup.growing_log import GrowingLog, command
from support.storage.log_rig import NOW_MS

ROWS = 10


class MemoryStore(FolderStore):
    """Files in memory, with the bytes that were written."""

    def __init__(self) -> None:
        super().__init__(Path("memory"))
        self.files: dict[str, bytes] = {}
        self.written = 0

    def sizes(self, folder: str) -> dict[str, int]:
        return {name: len(content) for name, content in self.files.items() if name.startswith(f"{folder}/")}

    def read(self, name: str) -> bytes:
        try:
            return self.files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def reading(self, name: str) -> IO[bytes]:
        return io.BytesIO(self.read(name))

    @contextlib.contextmanager
    def writing(self, name: str) -> Generator[IO[bytes]]:
        file = io.BytesIO()
        yield file
        self.files[name] = file.getvalue()
        self.written += len(file.getvalue())

    def remove(self, name: str) -> None:
        self.files.pop(name, None)


def segment(number: int) -> SegmentEntry:
    return SegmentEntry(
        number,
        SegmentState.SEALED,
        first_lsn=(number - 1) * ROWS + 1,
        last_lsn=number * ROWS,
        first_ms=NOW_MS + number * 1000,
        last_ms=NOW_MS + number * 1000 + 999,
        rows=ROWS,
        messages=ROWS,
        bytes=4096,
        sha256=sha256(str(number).encode()).hexdigest(),
        sources=[(each, 10, 1000) for each in range(4)],
    )


class History:
    """Runs over a list of segments that changes."""

    def __init__(self, segments: int) -> None:
        self.store = MemoryStore()
        self.numbers = list(range(1, segments + 1))
        self.runs: list[Run] = []

    def run(self) -> Run:
        """Write a run over the segments of now, as a backup does."""
        runs = Runs(self.store)
        before = runs.newest()
        segments = [segment(number) for number in self.numbers]
        last_lsn = self.numbers[-1] * ROWS
        run = Run(
            number=len(self.runs) + 1,
            began_ms=segments[-1].last_ms,
            ended_ms=segments[-1].last_ms,
            last_lsn=last_lsn,
            last_ms=segments[-1].last_ms,
            offset_ms=0,
            file_mode=0o640,
            manifest=Manifest(
                segments=segments,
                dropped=missing_ranges(segments, [], last_lsn),
                log_id="a" * 32,
                names=[SourceName(each, "admin", f"queue-{each}") for each in range(4)],
                starts=[StartEntry(f"{each:016x}", each) for each in range(1000)],
            ),
        )
        write_run(self.store, run, runs, before)
        self.runs.append(run)
        return run


def as_written(run: Run | None) -> Run:
    """Return a run as its writer had it: without the names of its parts."""
    assert run is not None
    return structs.replace(run, parts=[], rest=None)


def test_a_run_over_thousands_of_segments_costs_what_changed():
    history = History(3000)
    history.run()
    first = history.store.written

    for _ in range(100):
        # As with a history of a fixed time: a segment comes, and the oldest one goes.
        history.numbers = [*history.numbers[1:], history.numbers[-1] + 1]
        history.run()

    whole = 3000 * 250
    assert first > whole
    assert (history.store.written - first) / 100 < whole / 50
    documents = history.store.sizes("runs").values()
    assert max(documents) < (MAX_OWN + 1) * 400 + 4000
    assert max(history.store.sizes("parts").values()) <= PART_ENTRIES * 400
    read = Runs(history.store)
    assert [as_written(read.read(index)) for index in (0, 40, 100)] == [history.runs[index] for index in (0, 40, 100)]


@pytest.mark.parametrize("seed", range(5))
def test_runs_are_read_as_they_were_written_whatever_was_reclaimed(seed: int):
    dice = random.Random(seed)
    history = History(700)
    for _ in range(25):
        history.run()
        reclaimed = set(dice.sample(history.numbers, dice.choice([0, 1, len(history.numbers) // 2])))
        newest = history.numbers[-1]
        history.numbers = [number for number in history.numbers if number not in reclaimed]
        history.numbers += range(newest + 1, newest + 1 + dice.choice([1, 20, 300]))

    read = Runs(history.store)
    assert [as_written(read.read(index)) for index in range(25)] == history.runs
    # Run by run each file is met, and no file that a run lacks.
    files = {file.name for index in range(25) if (run := read.read(index)) is not None for file in run.files}
    assert {file.name for run in read.each() for file in run.files} == files

    assert remove_old(history.store, history.runs[20].wall_ms) == 20

    kept = Runs(history.store)
    assert [as_written(kept.read(index)) for index in range(5)] == history.runs[20:]
    named = {file.name for index in range(5) if (run := kept.read(index)) is not None for file in run.files}
    assert set(history.store.sizes("parts")) == {name for name in named if name.startswith("parts/")}
    assert kept.faults == []


def test_parts_do_not_become_small_and_many():
    parts = [[segment(number) for number in range(first, first + 40)] for first in range(1, 401, 40)]
    live = [part[:25] for part in parts]
    new = [segment(number) for number in range(500, 500 + MAX_OWN + 1)]

    divided = divide([entry for part in [*live, new] for entry in part], parts)

    assert (divided.kept, [len(part) for part in divided.new], divided.own) == ([], [10 * 25 + MAX_OWN + 1], [])


def test_a_list_needs_no_memory_for_the_segments_of_each_run():
    history = History(1000)
    for _ in range(60):
        history.run()
        history.numbers.append(history.numbers[-1] + 1)
    lines: list[str] = []

    tracemalloc.start()
    list_backup(history.store, as_json=True, out=lines.append)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # All runs with all segments take over 30 MB.
    assert peak < 6_000_000
    assert lines[0].count('"number"') == 60


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "changed"])
async def test_a_damaged_part_is_told_once_and_the_next_run_is_whole(tmp_path: Path, is_missing: bool):
    log, backup = GrowingLog(tmp_path / "data"), tmp_path / "backup"
    for _ in range(2):
        await log.grow(2)
        assert command("backup", log.folder, "--to", backup).code == 0
    # The lists that seldom change: a start has its number in there.
    for path in (backup / "parts").iterdir():
        content = path.read_bytes()
        path.unlink()
        if not is_missing:
            path.write_bytes(content.replace(b"names", b"nameZ"))

    listed = command("backup", "list", backup)
    await log.grow(2)
    ended = command("backup", log.folder, "--to", backup)

    assert listed.code == 4
    assert "the runs with this part are left out" in listed.error
    assert ended.code == 0, ended.error
    assert command("restore", backup, tmp_path / "restored").code == 0
