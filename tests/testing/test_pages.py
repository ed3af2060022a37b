"""The programs of the pages about tests and about the synchronous client."""

import subprocess
import sys
from pathlib import Path

from cmqd.testing import LocalBroker
from support.documents.pages import ROOT, blocks_to_run
from support.processes.environment import plain_environment

URL = "cmq://AKID...:SECRET@127.0.0.1:5680"


def run(folder: Path, *arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=plain_environment(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_programs_of_the_testing_page_run(tmp_path: Path) -> None:
    in_process, program, real_process = blocks_to_run(ROOT / "docs/testing.md", "python")
    (tmp_path / "test_in_process.py").write_text(in_process)
    (tmp_path / "test_real_process.py").write_text(real_process)

    tested = run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto")

    assert "3 passed" in tested
    assert run(tmp_path, "-c", program) == "b'one espresso'\n"


def test_the_program_of_the_sync_page_runs(tmp_path: Path) -> None:
    (program,) = blocks_to_run(ROOT / "docs/sync.md", "python")
    with LocalBroker() as broker:
        assert run(tmp_path, "-c", program.replace(URL, broker.url)) == "b'42 apples' 1\n"
