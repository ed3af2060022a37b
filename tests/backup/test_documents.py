"""The drill of docs/backup.md, run as printed, with the restored folder in the place of its second broker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cmqd.testing.broker_process import BrokerProcess
from support.documents.pages import ROOT, blocks_to_run
from support.processes.environment import plain_environment

pytestmark = pytest.mark.system


def swap(broker: BrokerProcess, keep_as: Path, data: Path) -> None:
    """Restart the broker over other data."""
    broker.stop()
    (broker.folder / "data").rename(keep_as)
    data.rename(broker.folder / "data")
    broker.start()


def test_the_drill_runs(tmp_path: Path) -> None:
    outputs: list[str] = []
    with BrokerProcess(tmp_path) as broker:
        environment = plain_environment() | {
            "CMQ_URL": broker.url,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

        def run(text: str) -> None:
            command = ["bash", "-euo", "pipefail", "-c", text]
            ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"
            outputs.append(ran.stdout)

        for text in blocks_to_run(ROOT / "docs/backup.md", "sh"):
            if not text.startswith("cmq peek"):
                run(text)
                continue
            # The page starts a second broker over the restored folder.
            swap(broker, tmp_path / "original", tmp_path / "restored")
            run(text)
            swap(broker, tmp_path / "restored", tmp_path / "original")

    peeked = next(output for output in outputs if "order 1" in output)
    assert "order 2" in peeked
    assert any("cut off: rows" in output for output in outputs)
    assert any("is a clone" in output for output in outputs)
