"""The drill of docs/backup.md, run as printed, with its second broker at a free port."""

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from cmqd.testing.broker_process import BrokerProcess
from support.documents.pages import ROOT, blocks, blocks_to_run
from support.processes.environment import plain_environment

pytestmark = pytest.mark.system


def test_the_drill_runs(tmp_path: Path) -> None:
    outputs: list[str] = []
    with BrokerProcess(tmp_path) as broker:
        environment = plain_environment() | {
            "CMQ_CONTEXT_FILE": "data/admin.context.toml",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

        def run(text: str) -> None:
            command = ["bash", "-euo", "pipefail", "-c", text]
            ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"
            outputs.append(ran.stdout)

        for text in blocks_to_run(ROOT / "docs/backup.md", "sh"):
            if text.startswith("mv data"):
                broker.stop()
                run(text)
                broker.start()
            elif "restored/admin.context.toml" in text:
                with second_broker(tmp_path):
                    run(text)
            else:
                run(text)

    restored, lost = (output for output in outputs if "order 1" in output)
    assert ("order 2" in restored, "order 3" in restored) == (True, False)
    assert ("order 2" in lost, "order 3" in lost) == (True, True)
    assert any("cut off: rows" in output for output in outputs)
    assert any("is a clone" in output for output in outputs)


@contextlib.contextmanager
def second_broker(folder: Path) -> Generator[None]:
    """Start a broker over the restored folder, as the page says, at a free port."""
    ready = folder / "second-ready"
    (command,) = [block.text for block in blocks(ROOT / "docs/backup.md", "sh") if block.text.startswith("cmqd serve")]
    arguments = shlex.split(command.replace("127.0.0.1:5690", "127.0.0.1:0"))[1:]
    broker = subprocess.Popen(
        [sys.executable, "-m", "cmqd", *arguments, "--ready-file", ready],
        cwd=folder,
        env=plain_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not ready.exists():
            assert broker.poll() is None
            time.sleep(0.01)
        yield
    finally:
        broker.terminate()
        broker.wait()
