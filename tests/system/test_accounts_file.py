"""The accounts file of a real server: damage, loss, hand edits and power failures."""

import asyncio
import hashlib
import json
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cmqd.server.access.accounts_file import Document
from cmqd_client import connect
from cmqd_client.errors import AccountNotEmpty, CmqError
from support.client.raw_client import RawClient
from support.crash.traces.disk import Unsynced, disk_after
from support.crash.traces.trace import AnyEvent, read_trace
from support.crash.traces.tracing import start_traced
from support.processes.running_server import RunningServer, ServerFailedError

pytestmark = pytest.mark.system


def as_version_1(folder: Path) -> dict[str, Any]:
    """Rewrite the accounts file as a server of version 1 would; returns its content."""
    content: dict[str, Any] = {"version": 1, **json.loads((folder / "accounts.json").read_text())["content"]}
    (folder / "accounts.json").write_text(json.dumps(content, indent=2))
    (folder / "accounts.json.1").unlink()
    return content


def test_a_byte_that_is_not_utf_8_is_refused_and_no_log_line_shows_a_secret(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        server.stop()
        path = server.data / "accounts.json"
        document = json.loads(path.read_text())
        handle_key = document.get("content", document)["handle_key"]
        damaged = bytearray(path.read_bytes())
        damaged[damaged.index(b'"admin"') + 2] = 0xFF
        path.write_bytes(damaged)

        with pytest.raises(ServerFailedError, match=r"(?s)code 4.*accounts\.json\.1"):
            server.start()

    assert "handle_key" not in server.log
    assert not any(str(word) in server.log for word in handle_key)
    assert "Traceback" not in server.log
    assert "locals" not in server.log


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_in_the_log_shows_no_local_variables(tmp_path: Path, log_format: str) -> None:
    """The fault is made in a real process: the log is opened by a function that fails with a secret in its hands."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from cmqd.__main__ import main\n"
        "from cmqd.server.process import daemon\n"
        "def broken(*_):\n"
        "    handle_key = 'S3CR3T' + '-IN-A-LOCAL'\n"
        "    raise RuntimeError('broken on purpose')\n"
        "daemon.open_accounts = broken\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    server = RunningServer(tmp_path, "--log-format", log_format, program=(sys.executable, str(program)))

    with pytest.raises(ServerFailedError, match="code 1"):
        server.start()

    assert "broken on purpose" in server.log, "the traceback itself must be there"
    assert "S3CR3T-IN-A-LOCAL" not in server.log
    assert "locals" not in server.log


def test_a_traceback_of_the_storage_process_shows_no_local_variables(tmp_path: Path) -> None:
    """``sitecustomize`` breaks a method in both processes of the server; only the storage process calls the method."""
    (tmp_path / "sitecustomize.py").write_text(
        "import cmqd.storage.folder.data_folder\n"
        "def broken(self):\n"
        "    body = 'S3CR3T' + '-IN-A-LOCAL'\n"
        "    raise RuntimeError('broken on purpose')\n"
        "cmqd.storage.folder.data_folder.DataFolder.create = broken\n"
    )
    server = RunningServer(tmp_path, environment={"PYTHONPATH": str(tmp_path)})

    with pytest.raises(ServerFailedError, match=r"code \d"):
        server.start()

    assert "Traceback" in server.log
    assert "broken on purpose" in server.log
    assert "S3CR3T-IN-A-LOCAL" not in server.log


def test_a_traceback_of_cmq_shows_no_local_variables(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from cmq_cli.__main__ import main\n"
        "from cmqd_client.client import Client\n"
        "async def broken(*_, **__):\n"
        "    secret_key = 'S3CR3T' + '-IN-A-LOCAL'\n"
        "    raise RuntimeError('broken on purpose')\n"
        "Client.open = broken\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )

    ended = subprocess.run(
        [sys.executable, str(program), "--url", "cmq://a:b@127.0.0.1:1", "account", "list"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode != 0
    assert "broken on purpose" in ended.stdout + ended.stderr
    assert "S3CR3T-IN-A-LOCAL" not in ended.stdout + ended.stderr


def test_a_wrong_checksum_refuses_to_start_with_accept_loss_too_and_the_copy_restores_everything(
    tmp_path: Path,
) -> None:
    with RunningServer(tmp_path) as server:
        url = server.url
        server.stop()
        path = server.data / "accounts.json"
        copy = server.data / "accounts.json.1"
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        path.write_text(path.read_text().replace('"enabled": true', '"enabled": false'))

        for flags in ((), ("--accept-loss",)):
            with pytest.raises(ServerFailedError, match=r"(?s)code 4.*checksum.*accounts\.json\.1"):
                server.start(*flags)
        path.write_bytes(copy.read_bytes())
        server.start()

        assert server.url.split("@")[0] == url.split("@")[0]


async def test_a_log_with_a_queue_and_no_accounts_refuses_to_start_and_makes_no_admin(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        async with connect(server.url) as client:
            await client.create_queue("jobs")
        server.stop()
        for path in server.data.glob("accounts.json*"):
            path.rename(tmp_path / path.name)

        for flags in ((), ("--accept-loss",)):
            with pytest.raises(ServerFailedError, match=r"(?s)code 4.*accounts\.json is missing.*1 queue"):
                server.start(*flags)
            assert not (server.data / "accounts.json").exists()

        (tmp_path / "accounts.json").rename(server.data / "accounts.json")
        server.start()
        async with connect(server.url) as client:
            assert (await client.queues()).names == ["jobs"]
        assert (server.data / "accounts.json.1").exists(), "a missing copy is made again at the start"


def test_an_empty_log_without_accounts_is_a_new_folder(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        first = server.url
        server.stop()
        for path in server.data.glob("accounts.json*"):
            path.unlink()
        server.start()

        assert server.url.split("@")[0] != first.split("@")[0]
        with RawClient(server.url):
            pass


def test_a_file_of_version_1_is_taken_once_and_rewritten_with_a_checksum(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        key = server.url.split("@")[0]
        server.stop()
        old = as_version_1(server.data)
        server.start()
        assert server.url.split("@")[0] == key
        server.stop()
        path = server.data / "accounts.json"
        text = path.read_text()
        document = json.loads(text)
        assert document["version"] == 2
        assert {"version": 1, **document["content"]} == old
        content = text[text.index('"content": ') + len('"content": ') : text.rindex("}")].strip()
        assert document["sha256"] == hashlib.sha256(content.encode()).hexdigest()
        # Put back beside a copy with a checksum: the file is old, or lost its checksum.
        path.write_text(json.dumps(old))
        with pytest.raises(ServerFailedError, match=r"(?s)code 4.*version 1.*accounts\.json\.1"):
            server.start()


async def test_a_lost_admin_key_is_replaced_while_the_broker_is_stopped(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        async with connect(server.url) as client:
            await client.create_queue("jobs")
        running = run_cmqd("accounts", "new-key", "admin", "--data", str(server.data))
        assert (running.returncode, "stop the broker first" in running.stdout) == (4, True)
        server.stop()

        done = run_cmqd("accounts", "new-key", "admin", "--data", str(server.data))
        assert done.returncode == 0, done.stdout + done.stderr
        secret_id, secret_key = (line.split()[1] for line in done.stdout.splitlines() if line.startswith("  Secret"))

        server.start()
        async with connect(f"cmq://{secret_id}:{secret_key}@{server.host}:{server.port}") as client:
            assert (await client.queues()).names == ["jobs"]
        assert secret_key not in server.log


async def test_an_account_that_was_deleted_stays_deleted_after_kill_nine_and_its_queues_too(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        async with connect(server.url) as admin:
            key = await admin.accounts.create("other")
            async with connect(f"cmq://{key.secret_id}:{key.secret_key}@{server.host}:{server.port}") as other:
                await other.create_queue("jobs")
                with pytest.raises(AccountNotEmpty):
                    await admin.accounts.delete("other")
                await other.delete_queue("jobs")
                await admin.accounts.delete("other")
        server.kill()
        server.start()
        async with connect(server.url) as admin:
            assert await admin.accounts.list() == ["admin"]
            assert (await admin.accounts.queues()).queues == []


def run_cmqd(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "cmqd", *arguments], capture_output=True, text=True, check=False)


_WRITER = """
import asyncio, sys, time
from pathlib import Path
from cmqd.server.access.accounts import open_accounts

async def work():
    accounts, _ = open_accounts(Path("."), 5)
    await accounts.save_new()
    print("admin", time.monotonic_ns(), flush=True)
    for number in range(4):
        await accounts.create_account("admin", f"account-{number}", 6)
        print(f"account-{number}", time.monotonic_ns(), flush=True)
    await accounts.delete_account("admin", "account-1", lambda: None, lambda _: None, lambda: asyncio.sleep(0))
    print("-account-1", time.monotonic_ns(), flush=True)
    await accounts.import_key("admin", None, "AKIDold", "0123456789abcdef", ["send"], ["*"], 6)
    print("AKIDold=send", time.monotonic_ns(), flush=True)
    await accounts.set_key_roles("admin", None, "AKIDold", ["consume"], ["orders-*"])
    print("AKIDold=consume", time.monotonic_ns(), flush=True)
    await accounts.set_key_roles("admin", None, "AKIDold", ["admin", "manage", "send", "consume", "read"], ["*"])
    print("AKIDold=admin+manage+send+consume+read", time.monotonic_ns(), flush=True)

asyncio.run(work())
"""


def test_a_power_failure_at_any_moment_leaves_a_whole_file_and_a_whole_copy(tmp_path: Path) -> None:
    """Cut after every event of the trace: all answered changes are in the file and in the copy, and both are sound."""
    acknowledged, events = _run_traced(tmp_path)
    states: list[set[str]] = []
    for name, _ in acknowledged:
        before = states[-1] if states else set[str]()
        replaced = {other for other in before if other.partition("=")[0] == name.partition("=")[0]}
        states.append(before - {name[1:]} if name.startswith("-") else before - replaced | {name})
    from cmqd.server.access.accounts_file import AccountsFile

    chance = random.Random(1)
    first_at = acknowledged[0][1]
    checked = 0
    for cut, event in enumerate(events):
        if event.at_ns < first_at:
            continue
        steps = sum(at_ns <= event.at_ns for _, at_ns in acknowledged)
        for unsynced in Unsynced:
            rebuilt = tmp_path / f"rebuilt-{cut}-{unsynced.name}"
            disk_after(events[:cut], unsynced, chance).write_to(rebuilt)
            document = AccountsFile(rebuilt).read()
            assert document is not None
            at = states.index(_state_of(document))
            assert at in {steps - 1, steps}, "as answered last, or one change further"
            for path in rebuilt.glob("accounts.json.1"):
                # The copy is at most one change behind the file.
                assert states.index(_state_of(AccountsFile.decode(path.read_bytes()).document)) in {at - 1, at}
            checked += 1
    assert checked > 50


def _state_of(document: Document) -> set[str]:
    """Accounts, and roles of imported keys, in the words of the traced program."""
    imported = [key for key in document.keys if key.secret_id == "AKIDold"]
    return {*document.accounts, *(f"AKIDold={'+'.join(key.roles)}" for key in imported)}


async def test_roles_that_were_answered_are_there_after_kills(tmp_path: Path) -> None:
    """Each kill comes while changes are requested: the roles are as answered last, or as in the request under way."""
    words = ("send", "consume", "read", "manage")
    with RunningServer(tmp_path) as server:
        async with connect(server.url) as client:
            secret_id = (await client.accounts.create_key(roles=["send"], names=["orders-*"])).secret_id
        answered = "send"
        for kill in range(5):
            changes = 0
            client = connect(server.url, patience=1, retries=0)
            await client.open()
            killer = asyncio.get_running_loop().call_later(0.01 * (kill + 1), server.process.kill)
            under_way = answered
            try:
                while True:
                    under_way = words[changes % len(words)]
                    await client.accounts.set_key_roles(secret_id, roles=[under_way], names=["orders-*"])
                    answered = under_way
                    changes += 1
            except CmqError:
                pass
            killer.cancel()
            await client.close()
            server.process.wait()
            server.start()
            async with connect(server.url) as again:
                [key] = [key for key in await again.accounts.keys() if key.secret_id == secret_id]
            assert key.roles in ((answered,), (under_way,))
            assert key.names == ("orders-*",)
            answered = key.roles[0]


def _run_traced(tmp_path: Path) -> tuple[list[tuple[str, int]], list[AnyEvent]]:
    program = tmp_path / "program.py"
    program.write_text(_WRITER)
    folder = tmp_path / "folder"
    folder.mkdir()
    output = tmp_path / "output"
    with output.open("wb") as stream:
        traced = start_traced(
            ["/usr/bin/env", "-C", str(folder), sys.executable, str(program)],
            folder=folder,
            trace_file=tmp_path / "trace",
            stdout=stream.fileno(),
        )
        assert traced.wait() == 0
    pairs = [line.split() for line in output.read_text().splitlines()]
    return [(name, int(at_ns)) for name, at_ns in pairs], read_trace(tmp_path / "trace")
