"""The journal of a replay names its log, and goes on with that log alone."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from cmqd_log.copy.counting import count, plan_count
from cmqd_log.copy.journal import Journal, JournalError
from cmqd_log.copy.slices import check_log
from cmqd_log.options import parse_options
from cmqd_segment.manifest import read_manifest
from support.spark.log_folder import queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""Segments are written by a storage process. No session is needed."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write_folder(folder, [[([queue_created(7, "orders")], [], NOW_MS), sends(7, 0, 10), sends(7, 10, 10)]])
    return folder


def journal_of(folder: Path, **changed: Any) -> Journal:
    """The journal of a run that was begun with a folder."""
    counted = count(plan_count(parse_options({"path": str(folder)})), lambda _: True, 10)
    given: dict[str, Any] = {
        "run": "r-0123456789ab",
        "source": {"path": str(folder)},
        "position": counted.position,
        "log_id": counted.log_id,
        "start": counted.start,
        "events": ["sent"],
        "queue": "orders-replay",
        "target_id": 7,
        "server": "cmq://id:***@host:5680",
        "master": "local[2]",
        "slices": counted.slices,
    }
    return Journal(**{**given, **changed})


def test_a_run_notes_its_log(folder: Path):
    manifest = read_manifest(folder)
    journal = journal_of(folder)

    check_log(journal)

    assert (journal.log_id, journal.start) == (manifest.log_id, manifest.starts[0].number)


def test_a_run_does_not_go_on_with_another_log_of_the_same_rows(folder: Path, tmp_path: Path):
    """The first row of the next slice is the same in both: its checksum does not tell them apart."""
    other = tmp_path / "other"
    write_folder(other, [[([queue_created(7, "orders")], [], NOW_MS), sends(7, 0, 10), sends(7, 10, 10)]])
    journal = journal_of(folder)
    journal.source["path"] = str(other)

    with pytest.raises(JournalError, match=r"does not hold the log of the run: .* belongs to log"):
        check_log(journal)


def test_a_run_does_not_go_on_with_a_restored_folder_that_grew_anew(folder: Path, tmp_path: Path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    for data in (folder, copy):
        write_folder(data, [[sends(7, 20, 10)]])
    journal = journal_of(folder)
    journal.source["path"] = str(copy)

    with pytest.raises(JournalError, match="restored from an older copy"):
        check_log(journal)


def test_a_journal_of_an_earlier_version_is_taken_once_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture):
    journal = journal_of(folder, log_id="", start="")

    check_log(journal)

    manifest = read_manifest(folder)
    assert (journal.log_id, journal.start) == (manifest.log_id, manifest.starts[0].number)
    check_log(journal)
    assert len(caplog.records) == 1
    with pytest.raises(JournalError, match="end before row"):
        check_log(journal_of(folder, log_id="", start="", position=1_000))
