"""The demo against a real server, killed by the demo."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def demo(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cmqd_bench.demo", "--scratch", str(tmp_path / "scratch"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.system
def test_nothing_is_lost_when_the_broker_is_killed_half_way(tmp_path: Path):
    ended = demo(tmp_path, "--messages", "500")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Nothing lost" in ended.stdout
    assert "SIGKILL to processes" in ended.stdout
    assert "started again" in ended.stdout
    assert "make demo-console" in ended.stdout
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.system
def test_any_json_lines_can_be_streamed(tmp_path: Path):
    file = tmp_path / "input.ndjson"
    file.write_text("\n".join(json.dumps({"number": number}) for number in range(70)))

    ended = demo(tmp_path, "--messages", "300", "--input", str(file))

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "70 different ones, gone round until there are 300" in ended.stdout


def test_input_that_is_not_json_is_refused_by_its_line(tmp_path: Path):
    file = tmp_path / "input.ndjson"
    file.write_text('{"a": 1}\n\n{"b": \n')

    ended = demo(tmp_path, "--input", str(file))

    assert ended.returncode == 2
    assert "line 3 of" in ended.stderr
    assert not (tmp_path / "scratch").exists()
