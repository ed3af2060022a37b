"""Files that are fetched from a URL: shared by the plan and the read, and gone afterwards without a cache folder."""

# duckdb and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cmqd_log
from cmq_cli.app import run
from cmq_cli.exitcodes import ExitCode
from cmqd_log import sql
from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.log_files import LogFiles
from cmqd_log.errors import CmqdSourceError, FolderError
from support.spark.log_folder import queue_created, sends, write_folder
from support.spark.log_store import LogStore, serving
from support.storage.log_rig import NOW_MS

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""pyarrow and DuckDB are in the Spark set. No session is needed."""

SEGMENTS, MESSAGES = 3, 300
MODES = ("events", "all")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sealed segments with a hundred messages each."""
    folder = tmp_path_factory.mktemp("store") / "data"
    created = ([queue_created(7, "orders")], [], NOW_MS)
    write_folder(folder, [[created, sends(7, 0, 100)], [sends(7, 100, 100)], [sends(7, 200, 100)]])
    return folder


@pytest.fixture
def store(written: Path) -> Iterator[LogStore]:
    with serving(written.parent) as store:
        yield store


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def files_in(folder: Path, suffix: str = "") -> list[Path]:
    return [path for path in folder.rglob(f"*{suffix}") if path.is_file()]


@pytest.mark.parametrize("mode", MODES)
def test_the_files_of_a_plan_go_with_the_plan(store: LogStore, temporary: Path, mode: str) -> None:
    tasks = cmqd_log.plan(store.url, mode=mode)

    assert store.fetched() == (SEGMENTS if mode == "all" else 0)
    assert list(temporary.iterdir()) == []
    assert sum(cmqd_log.read(task).read_all().num_rows for task in tasks) == MESSAGES
    assert list(temporary.iterdir()) == []


def test_a_scan_of_states_fetches_a_segment_once_and_keeps_none(store: LogStore, temporary: Path) -> None:
    reader = cmqd_log.scan(store.url, ["lsn", "event"], mode="all")

    assert len(files_in(temporary, ".db")) == SEGMENTS
    assert reader.read_all().num_rows == MESSAGES
    assert store.fetched() == SEGMENTS
    assert list(temporary.iterdir()) == []


def test_a_scan_of_events_has_a_segment_at_a_time(store: LogStore, temporary: Path) -> None:
    here = [len(files_in(temporary, ".db")) for _ in cmqd_log.scan(store.url, ["lsn"], batchRows=30)]

    assert (min(here), max(here)) == (0, 1), "the last batch of a segment comes after its end"
    assert store.fetched() == SEGMENTS
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("batches", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_the_files_of_an_abandoned_reader_go(store: LogStore, temporary: Path, mode: str, batches: int) -> None:
    reader = cmqd_log.scan(store.url, ["lsn"], mode=mode, batchRows=30)
    for _ in range(batches):
        reader.read_next_batch()
    assert bool(files_in(temporary)) == (mode == "all" or batches > 0)

    del reader

    assert list(temporary.iterdir()) == []


def test_the_files_of_a_reader_go_at_the_end_of_the_program(store: LogStore, temporary: Path) -> None:
    text = "import os, sys, cmqd_log\nr = cmqd_log.scan(sys.argv[1], ['lsn'], mode='all', batchRows=30)\n"
    text += "r.read_next_batch()\nprint(len(os.listdir(os.environ['TMPDIR'])))\nsys.r = r\n"

    ran = subprocess.run(
        [sys.executable, "-c", text, store.url],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout == "1\n"
    assert list(temporary.iterdir()) == []


def test_the_files_go_after_an_error(store: LogStore, temporary: Path) -> None:
    store.breaks_off = True

    with pytest.raises(FolderError, match=r"segment .* cannot be read") as plan_failed:
        cmqd_log.plan(store.url, mode="all")
    assert list(temporary.iterdir()) == []
    reader = cmqd_log.scan(store.url, ["lsn"])
    with pytest.raises(FolderError, match=r"segment .* cannot be read") as read_failed:
        reader.read_all()

    assert list(temporary.iterdir()) == []
    assert plan_failed.traceback
    assert read_failed.traceback, "the frames of the errors exist"


@pytest.mark.parametrize("mode", MODES)
def test_the_files_go_after_an_interrupt(
    store: LogStore, temporary: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    located = LogFiles.located
    fetched: list[str] = []

    def interrupted(files: LogFiles, file: str, sha256: str) -> Path:
        fetched.append(file)
        if len(fetched) == SEGMENTS:
            assert files_in(temporary) or mode == "events"
            raise KeyboardInterrupt
        return located(files, file, sha256)

    monkeypatch.setattr(LogFiles, "located", interrupted)

    with pytest.raises(KeyboardInterrupt) as caught:
        cmqd_log.scan(store.url, ["lsn"], mode=mode).read_all()

    assert list(temporary.iterdir()) == []
    assert caught.traceback


def test_a_cache_folder_keeps_the_files(store: LogStore, temporary: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for mode in MODES:
        assert cmqd_log.scan(store.url, ["lsn"], mode=mode, cacheFolder=str(cache)).read_all().num_rows == MESSAGES

    assert store.fetched() == SEGMENTS == len(files_in(cache, ".db"))
    assert list(temporary.iterdir()) == []


def test_the_readers_of_a_url_share_their_files_until_the_last_one_ends(store: LogStore, temporary: Path) -> None:
    first = cmqd_log.scan(store.url, ["lsn"], mode="all")
    second = cmqd_log.scan(store.url, ["lsn"], mode="all")
    assert store.fetched() == SEGMENTS

    first.read_all()
    assert len(files_in(temporary, ".db")) == SEGMENTS
    second.read_all()

    assert store.fetched() == SEGMENTS
    assert list(temporary.iterdir()) == []


def test_a_fork_removes_no_files_of_its_parent(store: LogStore, temporary: Path) -> None:
    with Folder(store.url) as folder:
        extent = folder.view(include_active=False).extents[0]
        with folder.opened(extent):
            pass
        child = os.fork()
        if not child:
            folder.close()
            os._exit(0)
        os.waitpid(child, 0)

        assert len(files_in(temporary, ".db")) == 1
    assert list(temporary.iterdir()) == []


def rows(url: str, statement: str, **options: Any) -> list[tuple[Any, ...]]:
    with sql.query(url, statement, **options) as answer:
        return [tuple(row.values()) for row in answer.reader.read_all().to_pylist()]


def test_a_statement_fetches_a_segment_once_and_keeps_none(store: LogStore, temporary: Path) -> None:
    both = "SELECT count(*) FROM log JOIN messages USING (msg_id) WHERE state = 'active'"

    assert rows(store.url, both) == [(MESSAGES,)]
    assert store.fetched() == SEGMENTS
    assert rows(store.url, "SELECT count(*) FROM log a JOIN log b USING (lsn, row_index)") == [(MESSAGES,)]
    assert store.fetched() == 2 * SEGMENTS
    assert list(temporary.iterdir()) == []


def test_an_answer_that_is_not_read_and_a_refused_statement_keep_no_files(store: LogStore, temporary: Path) -> None:
    with sql.query(store.url, "SELECT lsn FROM messages"):
        assert files_in(temporary)
    assert list(temporary.iterdir()) == []

    with pytest.raises(CmqdSourceError) as failed:
        rows(store.url, "SELECT m.msg_id::INT FROM messages m JOIN log USING (msg_id)")
    assert list(temporary.iterdir()) == []
    with pytest.raises(CmqdSourceError) as refused:
        rows(store.url, "SELECT count(*) FROM messages a JOIN messages b USING (msg_id::INT)")
    assert list(temporary.iterdir()) == []
    assert failed.traceback
    assert refused.traceback, "the frames of the errors exist"


def test_commands_keep_no_files(store: LogStore, temporary: Path, capfd: pytest.CaptureFixture[str]) -> None:
    query = ["log", "query", "SELECT count(*) AS n FROM messages", "--path", store.url, "--output", "json"]

    assert run(query) == ExitCode.OK
    assert capfd.readouterr().out == f'[\n{{"n":{MESSAGES}}}\n]\n'
    assert run(["log", "queues", "--path", store.url]) == ExitCode.OK
    assert list(temporary.iterdir()) == []
