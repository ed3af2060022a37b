"""A folder of a slow broker, and a folder behind a URL with a key. No Spark."""

import sqlite3
import traceback
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cmqd_log.data_folder import folder as module
from cmqd_log.data_folder.folder import SEALING_SECONDS, Folder
from cmqd_log.data_folder.log_files import LogFiles
from cmqd_log.errors import FolderError
from cmqd_segment.manifest import Manifest, SegmentEntry, SegmentState, write_manifest

pytestmark = pytest.mark.spark


class Clock:
    """A clock that only sleeps move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def live(
    tmp_path: Path, state: SegmentState, clock: Clock, readable_at: float, monkeypatch: pytest.MonkeyPatch
) -> Folder:
    """A folder with a segment that cannot be opened before a time."""
    write_manifest(tmp_path, Manifest(clean=False, next_number=2, segments=[SegmentEntry(1, state)]))

    def extent(_: Folder, entry: SegmentEntry) -> SegmentEntry:
        if clock.now < readable_at:
            raise sqlite3.OperationalError("unable to open database file")
        return replace(entry, first_lsn=1, last_lsn=9)

    monkeypatch.setattr(Folder, "_live_extent", extent)
    return Folder(str(tmp_path))


def test_a_segment_that_is_sealed_slowly_is_waited_for(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    folder = live(tmp_path, SegmentState.RETIRED, clock, clock.now + 30, monkeypatch)

    assert folder.view(include_active=True).hi == 9


def test_it_is_not_waited_for_without_end(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    begun = clock.now
    folder = live(tmp_path, SegmentState.RETIRED, clock, begun + 1e6, monkeypatch)

    with pytest.raises(FolderError, match="unable to open database file"):
        folder.view(include_active=True)

    assert clock.now == pytest.approx(begun + SEALING_SECONDS, abs=1)


def test_a_segment_that_is_never_sealed_is_given_up_soon(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    begun = clock.now
    folder = live(tmp_path, SegmentState.ACTIVE, clock, begun + 30, monkeypatch)

    with pytest.raises(FolderError, match="unable to open database file"):
        folder.view(include_active=True)

    assert clock.now < begun + 2


class FailingFiles:
    """A store with an error that prints the whole URL, as some stores do."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get_file(self, *_: object) -> None:
        raise self._error


@pytest.mark.parametrize("kind", [OSError, FileNotFoundError, RuntimeError])
def test_an_error_of_a_store_does_not_tell_the_key_of_its_url(kind: type[Exception], monkeypatch: pytest.MonkeyPatch):
    url = "memory://ID1:a-key@bucket/data"
    files = FailingFiles(kind(f"GET {url}/manifest: 403"))

    def file_system(_files: LogFiles, _arguments: dict[str, object]) -> tuple[FailingFiles, str]:
        return files, "bucket/data"

    monkeypatch.setattr(LogFiles, "_file_system", file_system)
    folder = Folder(url)

    with pytest.raises(FolderError) as failed:
        folder.manifest()

    told: Any = "".join(traceback.format_exception(failed.value))
    assert "***@bucket/data" in told
    assert "a-key" not in told
