"""The demo with Spark, against a real server and a real session, in small."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cmqd_bench.demo import __main__ as program
from cmqd_bench.demo import spark
from cmqd_bench.demo.input import Source
from cmqd_bench.demo.spark import Proofs, Traffic


@pytest.mark.spark
@pytest.mark.system
def test_spark_and_broker_agree(tmp_path: Path):
    file = tmp_path / "input.ndjson"
    lines = [{"routing_key": f"orders.{number % 3}", "body": {"number": number}} for number in range(50)]
    file.write_text("\n".join(map(json.dumps, lines)))
    command = [sys.executable, "-m", "cmqd_bench.demo", "--spark", "--scratch", str(tmp_path / "scratch")]
    command += ["--messages", "300", "--input", str(file)]

    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "All of it agrees" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    rows = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert "│ demo-everything │ deleted │ 150 │ │ 150 │" in rows
    assert "│ demo-everything │ in_flight │ 15 │ 15 │ 15 │" in rows
    assert "│ orders.0 │ 102 │ 102 │" in rows
    assert any(row.startswith("│ replayed │ 100 │") for row in rows)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_books_tell_the_expected_state_of_each_copy():
    traffic = Traffic(Source("test", [b"one", b"two", b"three"], ["a.b", "a.c", "a.b"]), 30)

    traffic.departed["everything", "deleted"] = set(range(10))
    traffic.departed["everything", "in_flight"] = {11}
    traffic.departed["exact", "dead_lettered"] = {0}

    assert traffic.states_of("everything") == {"deleted": 10, "in_flight": 1, "active": 19}
    assert traffic.states_of("exact") == {"dead_lettered": 1, "active": 19}
    assert traffic.states_of("nobody") == {}
    assert traffic.by_key() == {"a.b": 20, "a.c": 10}
    assert list(traffic.middle_numbers) == list(range(10, 20))


def test_a_single_false_statement_is_enough():
    proofs = Proofs()
    proofs.add("one", 1, "is", True)
    assert proofs.hold

    proofs.add("two", 2, "is not", False)
    assert not proofs.hold


@pytest.mark.parametrize("agrees", [True, False])
def test_the_exit_code_tells_if_all_counts_agree(agrees: bool, monkeypatch: pytest.MonkeyPatch):
    def run_demo(*_: object) -> bool:
        return agrees

    monkeypatch.setattr(sys, "argv", ["demo", "--spark"])
    monkeypatch.setattr(spark, "run_demo", run_demo)
    monkeypatch.setattr(signal, "signal", print)

    assert program.main() == (0 if agrees else 1)


def test_input_that_is_not_json_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "input.ndjson"
    file.write_text("{")
    monkeypatch.setattr(sys, "argv", ["demo", "--spark", "--input", str(file)])
    monkeypatch.setattr(signal, "signal", print)

    with pytest.raises(SystemExit, match="2"):
        program.main()
