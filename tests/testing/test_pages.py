"""The programs of the pages about tests and about the synchronous client."""

import shlex
import subprocess
import sys
from pathlib import Path

from cmqd.testing import BrokerProcess, LocalBroker
from cmqd_client.sync import connect
from support.backup.growing_log import command
from support.documents.pages import ROOT, blocks_to_run
from support.processes.environment import plain_environment

URL = "cmq://AKID...:SECRET@127.0.0.1:5680"


def run(folder: Path, *arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=plain_environment(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def make_incident(folder: Path) -> None:
    """Make the backup of the page, and the clone by the command of the page."""
    (folder / "production").mkdir()
    with BrokerProcess(folder / "production") as broker, connect(broker.url) as client:
        client.create_queue("orders-dead")
        orders = client.create_queue("orders", dead_letter_queue="orders-dead", dead_letter_max_receives=5)
        orders.send(b'{"order": 4711, "card": "4111-1111"}', headers={"x-customer": "7"})
        orders.send(b'{"order": 4712, "card": "4222-2222"}')
        for message in orders.receive(2):
            message.reject("no such customer")
        assert command("backup", broker.folder / "data", "--to", folder / "backup").code == 0
    (line,) = blocks_to_run(ROOT / "docs/testing.md", "sh")
    run(folder, "-m", *shlex.split(line))


def test_the_programs_of_the_testing_page_run(tmp_path: Path) -> None:
    in_process, program, dead_letters, real_process = blocks_to_run(ROOT / "docs/testing.md", "python")
    make_incident(tmp_path)
    (tmp_path / "test_in_process.py").write_text(in_process)
    (tmp_path / "test_dead_letters.py").write_text(dead_letters)
    (tmp_path / "test_real_process.py").write_text(real_process)

    tested = run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto")

    assert "4 passed" in tested
    assert run(tmp_path, "-c", program) == "b'one espresso'\n"


def test_the_program_of_the_sync_page_runs(tmp_path: Path) -> None:
    (program,) = blocks_to_run(ROOT / "docs/sync.md", "python")
    with LocalBroker() as broker:
        assert run(tmp_path, "-c", program.replace(URL, broker.url)) == "b'42 apples' 1\n"
