"""Side files in place of segments: plans of folders and of URLs, and segments where a side file is of no use."""

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from cmqd_log.data_folder import log_files, side_files
from cmqd_log.data_folder.folder import Folder
from cmqd_log.options import parse_options
from cmqd_log.reading.planning import plan_batch, share_of
from cmqd_reading.naming import names_message
from cmqd_segment.manifest import MAX_SOURCES, read_manifest, write_manifest
from cmqd_segment.side import LIKELY_PLAN_BYTES
from support.spark.log_folder import Row, add_checkpoint, queue_created, sends, write_folder
from support.spark.log_store import LogStore, serving
from support.storage.log_rig import NOW_MS

if TYPE_CHECKING:
    from cmqd_log.data_folder.plan import Task

pytestmark = pytest.mark.system

QUEUES = MAX_SOURCES + 8
"""More than the manifest lists of a segment."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sealed segments with messages of many queues; queue 1 has messages in the second alone."""
    folder = tmp_path_factory.mktemp("written") / "data"
    first: list[Row] = [([queue_created(number, f"q{number}")], [], NOW_MS) for number in range(1, QUEUES + 1)]
    others = range(2, QUEUES + 1)
    write_folder(
        folder,
        [
            [*first, *(sends(number, 0, 3) for number in others)],
            [sends(1, 0, 5), *(sends(number, 3, 3) for number in others)],
            [sends(number, 6, 3) for number in others],
        ],
    )
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "store" / "data"))


@pytest.fixture
def store(folder: Path) -> Iterator[LogStore]:
    with serving(folder.parent) as store:
        yield store


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the segments that are opened."""
    numbers: list[int] = []
    original = Folder._open  # pyright: ignore[reportPrivateUsage]

    def noting(self: Folder, extent: Any) -> Any:
        numbers.append(extent.number)
        return original(self, extent)

    monkeypatch.setattr(Folder, "_open", noting)
    return numbers


def plan(path: str, cache: Path, **options: str) -> "list[Task]":
    return plan_batch(parse_options({"path": path, "cacheFolder": str(cache), **options}), ["lsn", "queue"])


def segments_of(tasks: "list[Task]") -> list[int]:
    return sorted({task.piece.extent.number for task in tasks})


def without_checkpoints(folder: Path) -> None:
    """Leave names and sizes to the side files and the segments alone."""
    write_manifest(folder, structs.replace(read_manifest(folder), checkpoints=[], names=[]))


def test_a_plan_of_a_folder_opens_no_segment(folder: Path, tmp_path: Path, opened: list[int]) -> None:
    without_checkpoints(folder)
    second = read_manifest(folder).segments[1]
    assert second.sources == []

    assert segments_of(plan(str(folder), tmp_path, queue="q1")) == [second.number]

    assert opened == []


def test_a_plan_of_a_url_fetches_side_files_alone(folder: Path, store: LogStore, tmp_path: Path) -> None:
    without_checkpoints(folder)
    second = read_manifest(folder).segments[1]

    assert segments_of(plan(store.url, tmp_path / "cache", queue="q1")) == [second.number]

    assert (store.fetched(".side"), store.fetched(".db")) == (3, 0)
    assert {wanted for path, wanted in store.asked if path.endswith(".side")} == {f"bytes=0-{LIKELY_PLAN_BYTES - 1}"}
    store.asked.clear()
    plan(store.url, tmp_path / "cache", queue="q1")
    assert store.fetched(".side") == 0, "part one is in the cache"


SEGMENTS = 11
FIFTY = range(50)


@pytest.fixture
def fifty(tmp_path: Path) -> Iterator[LogStore]:
    """Eleven segments with messages of 50 queues each, and a checkpoint as of the newest row, by URL."""
    folder = tmp_path / "fifty" / "data"
    names = {number + 1: f"queue-{number:02d}" for number in FIFTY}
    created: Row = ([queue_created(number, name) for number, name in names.items()], [], NOW_MS)
    segments = [[sends(number, 2 * place, 2) for number in names] for place in range(SEGMENTS)]
    write_folder(folder, [[created, *segments[0]], *segments[1:]])
    newest = read_manifest(folder).segments[-1].last_lsn
    write_manifest(folder, structs.replace(read_manifest(folder), checkpoints=[]))
    add_checkpoint(folder, newest, names, active=2 * SEGMENTS)
    with serving(folder.parent) as store:
        yield store


@pytest.mark.parametrize("mode", ["events", "backlog"])
def test_a_plan_of_a_queue_among_fifty_fetches_no_segment(fifty: LogStore, tmp_path: Path, mode: str) -> None:
    """The backlog begins at the checkpoint, and no row follows."""
    tasks = plan(fifty.url, tmp_path / "cache", queue="queue-07", mode=mode)

    assert len(segments_of(tasks)) == SEGMENTS
    assert {task.wanted for task in tasks} == {frozenset({8})}
    assert (fifty.fetched(".side"), fifty.fetched(".db")) == (SEGMENTS, 0)
    assert fifty.fetched("/manifest") >= 1
    assert sum("/checkpoints/" in path for path, _ in fifty.asked) == 1


def test_a_long_part_one_takes_a_second_range(
    folder: Path, store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_checkpoints(folder)
    monkeypatch.setattr(log_files, "LIKELY_PLAN_BYTES", 100)

    assert len(segments_of(plan(store.url, tmp_path / "cache", queue="q1"))) == 1
    assert len(segments_of(plan(str(folder), tmp_path / "cache", queue="q1"))) == 1

    assert (store.fetched(".side"), store.fetched(".db")) == (6, 0)
    for path in folder.glob("segments/*.side"):
        ranges = [wanted for asked, wanted in store.asked if asked.endswith(path.name)]
        assert ranges[0] == "bytes=0-99"
        assert 100 < int(ranges[1].removeprefix("bytes=0-")) < path.stat().st_size - 1


def test_side_files_of_a_url_are_fetched_together(folder: Path, store: LogStore, tmp_path: Path) -> None:
    without_checkpoints(folder)
    store.meeting = (".side", threading.Barrier(3))

    assert len(segments_of(plan(store.url, tmp_path / "cache", queue="q1"))) == 1


def test_positions_for_states_come_from_side_files(folder: Path, tmp_path: Path, opened: list[int]) -> None:
    numbers = [entry.number for entry in read_manifest(folder).segments]
    tasks = plan(str(folder), tmp_path, mode="backlog", queue="q1")

    assert segments_of(tasks) == [numbers[1]]
    assert opened == numbers, "each once, for the fold of its rows"


def missing(path: Path) -> None:
    path.unlink()


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def truncated(path: Path) -> None:
    data = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(data[: len(data) // 2])


def swapped(path: Path) -> None:
    data = path.with_name("00000001.side").read_bytes()
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [missing, damaged, truncated, swapped])
@pytest.mark.parametrize("kind", ["folder", "url"])
def test_a_segment_is_read_where_its_side_file_is_of_no_use(
    folder: Path,
    store: LogStore,
    tmp_path: Path,
    opened: list[int],
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[Path], None],
    kind: str,
) -> None:
    without_checkpoints(folder)
    second = read_manifest(folder).segments[1]
    harm(folder / second.side_file)

    with caplog.at_level(logging.WARNING):
        tasks = plan(store.url if kind == "url" else str(folder), tmp_path / "cache", queue="q1")

    assert second.number in segments_of(tasks)
    assert set(opened) == {second.number}
    assert f"the side file {second.side_file} cannot be used" in caplog.text


def test_the_tasks_of_a_stream_do_not_depend_on_side_files(folder: Path, store: LogStore, tmp_path: Path) -> None:
    """A repeated batch must get the same tasks, and the segment may have got its side file meanwhile."""
    reader = Folder(store.url, str(tmp_path / "cache"))
    extent = reader.view(include_active=False).extents[1]

    shares = [
        share_of(reader, each, frozenset({1}), is_stream)
        for each in (extent, structs.replace(extent, side=None))
        for is_stream in (True, False)
    ]

    assert shares == [1.0, pytest.approx(5 / (5 + 3 * (QUEUES - 1)), abs=0.01), 1.0, 1.0]


@pytest.mark.parametrize("kind", ["folder", "url"])
def test_ids_and_named_messages_are_read_for_histories(
    folder: Path, store: LogStore, tmp_path: Path, kind: str
) -> None:
    reader = Folder(store.url if kind == "url" else str(folder), str(tmp_path / "cache"))
    for place, extent in enumerate(reader.view(include_active=False).extents):
        parts = reader.sides.named(extent)
        assert parts is not None
        ids, history = parts
        assert ids.may_store(1_000_000) == (place == 1)
        assert names_message(history, 1, 4) == (place == 1)
        assert not names_message(history, 1, 5)
        assert reader.sides.named(structs.replace(extent, side=None)) is None
        damaged(folder / extent.side_file)
        other = Folder(reader.path, str(tmp_path / f"other-{place}"))
        assert other.sides.named(extent) is None


def test_at_most_sixteen_are_read_together(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    workers: list[int] = []
    pool = side_files.ThreadPoolExecutor

    def counted(count: int) -> Any:
        workers.append(count)
        return pool(count)

    monkeypatch.setattr(side_files, "ThreadPoolExecutor", counted)
    reader = Folder(str(folder))
    extents = reader.view(include_active=False).extents
    copies = [structs.replace(extent, sha256=f"{number}{extent.sha256}") for extent in extents for number in range(9)]

    reader.sides.read_ahead(copies)
    reader.sides.read_ahead(copies)
    reader.sides.read_ahead(extents)

    assert workers == [16, 3]
