"""The attacks for a moment against a real server: the shape of the report, never its figures."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cmqd_bench.commands.command_line import build_parser
from cmqd_bench.commands.plans import ATTACK_CASES
from support.bench.long_benches import long_bench


@long_bench
@pytest.mark.system
def test_each_attack_is_survived_and_reported(tmp_path: Path) -> None:
    cases = ",".join(f"{kind}:2" for kind in dict(ATTACK_CASES))
    command = [sys.executable, "-m", "cmqd_bench", "attack", "--seconds", "1.2", "--settle", "0", "--cases", cases]

    ended = subprocess.run(
        [*command, "--scratch", str(tmp_path), "--json"], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    assert "cpu" in report["conditions"]
    for figures in report["attacks"]:
        assert figures["attacked"]["unanswered"] == 0, figures
        assert figures["rss_mib"]["before"] > 0
        assert "bytes=0 " not in figures["attacker"]
    assert {figures["attack"] for figures in report["attacks"]} == set(dict(ATTACK_CASES))


@pytest.mark.parametrize("cases", ["zeros", "zeros:0", "nothing:1", "zeros:2000"])
def test_wrong_cases_are_refused(cases: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["attack", "--cases", cases])

    assert "kind:connections" in capsys.readouterr().err
