"""``cmq segment export``: no Spark, no Java, but pyarrow."""

# pyarrow tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from cmq_cli.app import run
from cmq_cli.exitcodes import ExitCode
from cmqd_log import export as module
from cmqd_log.reading.arrow_batches import arrow_type
from cmqd_log.schema import COLUMNS
from support.spark.log_folder import queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS, body

pytestmark = pytest.mark.spark

ORDERS, BILLS = 7, 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Orders in both segments, bills in the second."""
    created = [queue_created(ORDERS, "orders"), queue_created(BILLS, "bills")]
    folder = tmp_path / "data"
    write_folder(
        folder,
        [[(created, [], NOW_MS), sends(ORDERS, 0, 100)], [sends(ORDERS, 100, 50), sends(BILLS, 0, 20)]],
    )
    return folder


def export(folder: Path, to: Path, *more: str) -> int:
    return run(["segment", "export", "--path", str(folder), "--to", str(to), *more, "--output", "json"])


def test_a_segment_becomes_a_file_with_all_columns(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert export(folder, tmp_path / "out") == ExitCode.OK

    told = json.loads(capfd.readouterr().out)
    assert [(one["messages"], one["new"]) for one in told] == [(100, True), (70, True)]
    table = pq.read_table(tmp_path / "out" / "00000001.parquet")
    assert table.column_names == list(COLUMNS)
    assert table["body"].to_pylist() == [body(ORDERS, position) for position in range(100)]
    assert set(table["queue"].to_pylist()) == {"orders"}
    both = pq.read_table(tmp_path / "out")
    assert both.num_rows == 170
    assert sorted(map(str, (tmp_path / "out").iterdir())) == [one["file"] for one in told]


def test_the_queues_of_one_account(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    theirs = structs.replace(queue_created(BILLS, "orders"), account="other")
    created = [queue_created(ORDERS, "orders"), theirs]
    write_folder(tmp_path / "data", [[(created, [], NOW_MS), sends(ORDERS, 0, 10), sends(BILLS, 0, 5)]])
    out = tmp_path / "out"

    assert export(tmp_path / "data", out, "--queue", "orders", "--account", "other") == ExitCode.OK
    table = pq.read_table(out)
    assert set(zip(table["account"].to_pylist(), table["queue"].to_pylist(), strict=True)) == {("other", "orders")}
    assert table.num_rows == 5
    capfd.readouterr()
    assert export(tmp_path / "data", out, "--queue", "orders") == ExitCode.FAILED
    assert "holds an export of 'orders' of account 'other', and this export is of 'orders'" in capfd.readouterr().err


def test_a_file_with_fewer_columns_is_written_anew(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {name: kind for name, kind in COLUMNS.items() if name != "account"}
    with monkeypatch.context() as older:
        older.setattr(module, "COLUMNS", columns)
        older.setattr(module, "SCHEMA", pa.schema([pa.field(name, arrow_type(name)) for name in columns]))
        assert export(folder, tmp_path / "out") == ExitCode.OK
    capfd.readouterr()

    assert export(folder, tmp_path / "out") == ExitCode.OK

    assert [one["new"] for one in json.loads(capfd.readouterr().out)] == [True, True]
    assert pq.read_table(tmp_path / "out").column_names == list(COLUMNS)


def test_an_exported_file_is_left_unchanged(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert export(folder, out) == ExitCode.OK
    first, second = sorted(out.iterdir())
    second.write_bytes(b"torn")
    before = first.stat()
    capfd.readouterr()

    assert export(folder, out) == ExitCode.OK

    assert [one["new"] for one in json.loads(capfd.readouterr().out)] == [False, True]
    assert first.stat().st_ino == before.st_ino
    assert pq.read_table(out).num_rows == 170


def test_a_folder_is_of_one_selection(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert export(folder, out) == ExitCode.OK

    assert export(folder, out, "--queue", "bills") == ExitCode.FAILED
    assert "holds an export of all queues, and this export is of 'bills'; name another folder" in capfd.readouterr().err
    assert pq.read_table(out).num_rows == 170

    assert export(folder, tmp_path / "bills", "--queue", "bills") == ExitCode.OK
    assert export(folder, tmp_path / "bills") == ExitCode.FAILED
    assert export(folder, tmp_path / "bills", "--queue", "bills") == ExitCode.OK
    assert pq.read_table(tmp_path / "bills").num_rows == 20


def test_two_exports_at_once_do_not_write_into_one_file(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / ".00000001.parquet.part").write_bytes(b"of another one")

    assert export(folder, out) == ExitCode.OK

    assert (out / ".00000001.parquet.part").read_bytes() == b"of another one"


def test_one_queue_may_be_exported(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert export(folder, tmp_path / "out", "--queue", "bills", "--all") == ExitCode.OK
    assert [one["messages"] for one in json.loads(capfd.readouterr().out)] == [20]

    assert export(folder, tmp_path / "out", "--queue", "nowhere") == ExitCode.USAGE
    assert "has no queue of this name" in capfd.readouterr().err


def test_an_export_that_cannot_be_made_fails_with_the_reason(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert export(tmp_path / "none", tmp_path / "out") == ExitCode.FAILED
    assert "it has no manifest" in capfd.readouterr().err

    monkeypatch.setitem(sys.modules, "cmqd_log.export", None)
    assert export(folder, tmp_path / "out") == ExitCode.FAILED
    assert "cmqd[log]" in capfd.readouterr().err
