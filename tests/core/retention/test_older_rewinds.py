"""Logs without rewind floors in their records: core and Spark replay these logs by the old rule, with equal results."""

import json
import tarfile
from pathlib import Path

import pytest

from support.formats.rewinds import ARCHIVE, lets_go, rows_in, states_in

NAMES = ("many-steps", "stepped-clock", "busy-1", "busy-2", "busy-3")


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(tmp_path, filter="tar")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_a_log_without_rewind_floors_gives_the_states_that_it_gave(name: str, folders: Path):
    expected = json.loads((folders / "expected.json").read_text())[name]

    assert json.loads(json.dumps(states_in(folders / name))) == expected


def test_the_archive_holds_rewinds_and_changed_windows_without_the_field(folders: Path):
    records = [record for name in NAMES for _, row in rows_in(folders / name) for record in row if lets_go(record)]

    assert {getattr(record, "rewind_floor", None) for record in records} == {-1}
    assert len({type(record) for record in records}) == 2
