"""The pytest plugin, in sessions of its own: as a user's project sees it, with and without pytest-asyncio."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ASYNC_TEST = """
async def test_a_lease_ends(cmqd_broker, cmqd_client):
    queue = await cmqd_client.create_queue("orders", visibility_timeout=30)
    await queue.send(b"a")
    await queue.receive()
    cmqd_broker.clock.advance(hours=3)
    assert (await queue.receive())[0].receive_count == 2
"""

PLAIN_TEST = """
import pytest
from cmqd_client.errors import TooManyQueues

@pytest.fixture
def cmqd_settings():
    return {"max_queues_per_account": 1}

def test_settings_reach_the_broker(cmqd_sync_client):
    cmqd_sync_client.create_queue("one")
    with pytest.raises(TooManyQueues):
        cmqd_sync_client.create_queue("two")

def test_each_test_has_a_broker_of_its_own(cmqd_sync_client):
    assert cmqd_sync_client.queues().names == []
"""

PROCESS_TEST = """
from cmqd_client.sync import connect

def test_the_real_broker(cmqd_process):
    with connect(cmqd_process.url) as client:
        assert client.status()["durability"] == "fsync"
"""

LAZY_TEST = """
import sys

def test_no_broker_was_imported():
    assert "cmqd.pytest_plugin" in sys.modules
    assert [name for name in sys.modules if name.split(".")[0] in {"pyroaring", "structlog", "aiosqlite"}] == []
    assert "cmqd.server" not in sys.modules
"""


def run(folder: Path, test: str, *options: str, code: int = 0) -> str:
    """Run a test file in a session of its own; return the output."""
    (folder / "test_users.py").write_text(test)
    # An option of a plugin that is switched off would be an unknown option.
    scope = "" if "no:asyncio" in options else "asyncio_default_fixture_loop_scope = function\n"
    (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{scope}")
    # Where an older installation of this checkout has no entry point yet, the plugin is named.
    named = [] if entry_points(group="pytest11", name="cmqd") else ["-p", "cmqd.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *named, *options, "test_users.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout


def marked(test: str, mark: str) -> str:
    """Return the test with a mark."""
    return "import pytest\n" + test.replace("async def", f"@pytest.mark.{mark}\nasync def")


def test_the_plugin_is_registered_by_entry_point() -> None:
    (entry,) = entry_points(group="pytest11", name="cmqd")

    assert entry.value == "cmqd.pytest_plugin"


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_an_async_test_has_a_broker_and_a_client(tmp_path: Path, mode: str) -> None:
    test = (
        ASYNC_TEST
        if mode == "auto"
        else ASYNC_TEST.replace("async def", "@__import__('pytest').mark.asyncio\nasync def")
    )

    assert "1 passed" in run(tmp_path, test, "-o", f"asyncio_mode={mode}")


def test_an_async_test_of_anyio_has_them_too(tmp_path: Path) -> None:
    test = (
        marked(ASYNC_TEST, "anyio")
        + """
@pytest.fixture
def anyio_backend():
    return "asyncio"
"""
    )

    assert "1 passed" in run(tmp_path, test, "-p", "no:asyncio")


def test_a_plain_test_has_a_client_and_settings_of_its_own(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path, PLAIN_TEST)


@pytest.mark.system
def test_the_real_broker_is_a_fixture(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, PROCESS_TEST)


def test_a_session_without_a_fixture_imports_no_broker(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, LAZY_TEST)


def test_the_fixtures_explain_themselves(tmp_path: Path) -> None:
    output = run(tmp_path, "def test_nothing():\n    pass\n", "--fixtures", "-v")

    for name in ("cmqd_broker", "cmqd_client", "cmqd_sync_client", "cmqd_process", "cmqd_settings"):
        assert f"{name} --" in output
