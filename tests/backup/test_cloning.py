"""Clones of real brokers: what is equal to the source, what is hidden, and what a clone does not do."""

import asyncio
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cmqd_backup.cloning import cloning
from cmqd_backup.restores import targets
from cmqd_client import Client, connect
from cmqd_client.errors import CmqError
from cmqd_segment.manifest import read_manifest
from support.backup.growing_log import command
from support.processes.environment import plain_environment
from support.processes.running_server import RunningServer
from support.server.webhook_receiver import WebhookReceiver, answer

pytestmark = pytest.mark.system

SECRET = "5f3a9c-planted"
STATES = ["active", "in_flight", "delayed", "half"]
QUEUES = ("orders", "dead", "parcels", "money", "late")


async def fill(url: str, webhook: str, secrets: dict[str, str]) -> None:
    """Put a message into each state, and the secret into every place that takes text."""
    async with connect(url, name=f"{SECRET}-client") as client:
        await client.create_queue("dead")
        await client.create_queue("orders", dead_letter_queue="dead", dead_letter_max_receives=5, rewind=3600)
        await client.create_queue("parcels")
        await client.create_queue("money", transactional=True)
        await client.create_queue("late")
        orders, dead = client.queue("orders"), client.queue("dead")
        secret = SECRET.encode()
        body = b'{"card": "%s", "sum": 7}' % secret
        await orders.send(b'{"card": "%s", "deleted": 1}' % secret)
        await (await orders.receive(1, wait=1))[0].delete()
        await orders.send(body)
        await (await orders.receive(1, wait=1))[0].reject(f"bad {SECRET}")
        sent = [
            await orders.send(body, headers={"x-card": SECRET, "x-other": SECRET}),
            await orders.send(body, dedup_id=f"{SECRET}-1"),
            await orders.send(b"plain " + secret),
        ]
        assert len(sent) == 3
        for _ in range(3):
            (taken,) = await orders.receive(1, wait=1)
            await taken.release()
        held = await orders.receive(2, wait=1, visibility_timeout=600)
        assert len(held) == 2
        await client.queue("late").send(body, delay=1800)
        await client.queue("money").send_half_batch([body])
        topic = await client.create_topic("shop")
        await topic.subscribe("all", queue="parcels")
        hook = await topic.subscribe("hook", url=f"{webhook}/{SECRET}")
        secrets["push secret"] = str(hook.secret)
        await topic.publish(body, tags=[SECRET], headers={"x-card": SECRET})
        await client.schedules.create("nightly", "parcels", "* * * * *", body, headers={"x-other": SECRET})
        key = await client.accounts.create("shop")
        secrets["key"], secrets["key id"] = str(key.secret_key), key.secret_id
        assert await dead.receive(1, wait=0, visibility_timeout=600)


async def state_of(client: Client) -> dict[str, list[Any]]:
    """All messages by queue, in order, with what consumers see of them."""
    state: dict[str, list[Any]] = {}
    for name in QUEUES:
        messages: list[Any] = []
        start: int | None = 0
        while start is not None:
            page = await client.queue(name).peek(256, start=start, states=STATES)
            for each in page:
                is_in_flight = each.state == "in_flight"
                state_name = "active" if is_in_flight else each.state
                messages.append(
                    (each.id, state_name, each.body, each.receive_count, each.enqueue_time, each.headers, each.origin)
                )
            start = page.next_start
        state[name] = messages
    return state


async def read_state(url: str) -> dict[str, list[Any]]:
    async with connect(url) as client:
        return await state_of(client)


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Source:
    """The folder of a stopped broker that had a webhook, and its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "source"
        self.folder.mkdir()
        self.server = RunningServer(self.folder, "--push-allow-loopback", "--push-allow-private")
        self.secrets: dict[str, str] = {}
        self.state: dict[str, list[Any]] = {}

    @property
    def data(self) -> Path:
        return self.server.data

    async def make(self) -> None:
        async with WebhookReceiver() as receiver:
            receiver.always(f"/{SECRET}", answer(503))
            with self.server as server:
                await fill(server.url, f"http://127.0.0.1:{receiver.port}", self.secrets)
                await receiver.wait_for(1)
                self.state = await read_state(server.url)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    made = Source(tmp_path_factory.mktemp("cloned"))
    asyncio.run(made.make())
    return made


def test_messages_ids_and_order_are_those_of_the_source(source: Source, tmp_path: Path):
    clone = RunningServer(tmp_path)

    ended = command("clone", source.data, clone.data)

    assert ended.code == 0, ended.error
    assert "messages in 5 queues" in ended.lines
    with clone as server:
        assert asyncio.run(read_state(server.url)) == source.state
        assert "the log is a clone: broker time goes on from its last row" in server.log
        server.kill()
        server.start()
        assert asyncio.run(read_state(server.url)) == source.state
    assert source.state["orders"][0][3] == 4


def test_a_secret_is_in_no_byte_of_a_masked_clone(source: Source, tmp_path: Path):
    assert any(SECRET.encode() in content for content in content_of(source.data).values())

    ended = command("clone", source.data, tmp_path / "clone", "--mask", "$.card", "--mask", "x-card")

    assert ended.code == 0, ended.error
    for name, content in content_of(tmp_path / "clone").items():
        for text in (SECRET, SECRET.encode("utf-16-le").decode("latin-1"), *source.secrets.values()):
            assert text.encode("latin-1") not in content, (name, text)
    mine = read_manifest(tmp_path / "clone")
    assert read_manifest(source.data).log_id not in (mine.log_id, *mine.former_log_ids)
    assert mine.names == []


def test_a_masked_clone_has_its_messages(source: Source, tmp_path: Path):
    clone = RunningServer(tmp_path)
    ended = command("clone", source.data, clone.data, "--mask", "$.card", "--mask", "x-card")

    with clone as server:
        state = asyncio.run(read_state(server.url))

    assert "bodies that were replaced whole: 1." in ended.lines
    masked = b'{"card":"***","sum":7}'
    assert [each[2] for each in state["orders"]] == [masked, masked, bytes(len(b"plain " + SECRET.encode()))]
    assert [each[5] for each in state["orders"]] == [{"x-card": "***"}, {}, {}]
    assert [each[0] for each in state["orders"]] == [each[0] for each in source.state["orders"]]
    assert [each[2] for name in ("dead", "parcels", "money", "late") for each in state[name]] == [masked] * 4


def test_without_a_flag_only_messages_that_wait_are_there(source: Source, tmp_path: Path):
    ended = command("clone", source.data, tmp_path / "clone", "--no-bodies")

    assert ended.code == 0
    for name, content in content_of(tmp_path / "clone").items():
        assert f"{SECRET}-client".encode() not in content, name
        assert f"/{SECRET}".encode() not in content, name
        assert b'"deleted": 1' not in content, name
        assert b'"sum": 7' not in content, name
        assert all(secret.encode() not in content for secret in source.secrets.values()), name


async def test_a_clone_sends_nothing(source: Source, tmp_path: Path):
    clone = RunningServer(tmp_path, "--push-allow-loopback", "--push-allow-private")
    assert command("clone", source.data, clone.data).code == 0
    with clone as server:
        async with connect(server.url) as client:
            (hook,) = [each for each in await client.topic("shop").subscriptions() if each.name == "hook"]
            schedule = await client.schedules.info("nightly")
            assert hook.paused
            assert hook.endpoint.startswith(cloning.NOWHERE)
            assert schedule.paused
            before = (await client.queue("parcels").attributes()).active
            # A publish goes to the queue of the clone, and waits at the paused subscription.
            await client.topic("shop").publish(b"new")
            assert (await client.queue("parcels").attributes()).active == before + 1
            assert (await client.topic("shop").subscription("hook").info()).waiting == 1


async def test_keys_of_the_source_are_not_valid_in_a_clone(source: Source, tmp_path: Path):
    clone = RunningServer(tmp_path)
    command("clone", source.data, clone.data)
    with clone as server:
        url = f"cmq://{source.secrets['key id']}:{source.secrets['key']}@127.0.0.1:{server.port}"
        with pytest.raises(CmqError):
            async with connect(url, patience=None) as client:
                await client.queues()


def test_a_queue_alone_comes_with_its_dead_letter_queue(source: Source, tmp_path: Path):
    clone = RunningServer(tmp_path)
    assert command("clone", source.data, clone.data, "--queue", "orders").code == 0

    async def read(url: str) -> tuple[list[str], int, int]:
        async with connect(url) as client:
            orders, dead = [(await client.queue(name).attributes()).active for name in ("orders", "dead")]
            (taken,) = await client.queue("orders").receive(1, wait=0)
            # The role came along: the queue takes dead letters.
            await taken.reject("no")
            return sorted(await client.queues()), orders, dead

    with clone as server:
        assert asyncio.run(read(server.url)) == (["dead", "orders"], 3, 0)


def test_older_messages_are_left_out(source: Source, tmp_path: Path):
    ended = command("clone", source.data, tmp_path / "clone", "--since", "2999-01-01T00:00Z")

    assert ended.code == 0
    assert "0 messages in 5 queues" in ended.lines
    assert "left out: 7 older messages\n" in ended.lines


@pytest.mark.parametrize("kind", ["folder", "backup"])
@pytest.mark.parametrize("limit", [1000, 20_000])
def test_a_disk_without_room_is_refused_and_leaves_no_folder(source: Source, tmp_path: Path, kind: str, limit: int):
    assert command("backup", source.data, "--to", tmp_path / "backup").code == 0
    place = source.data if kind == "folder" else tmp_path / "backup"
    arguments = [sys.executable, "-m", "cmqd_backup", "clone", str(place), str(tmp_path / "clone")]

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    # No file may grow above the limit: as on a full disk, writes fail.
    ended = subprocess.run(
        arguments, env=plain_environment(), preexec_fn=bound, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 4, ended
    assert str(tmp_path / "clone") in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "clone").exists()


@pytest.mark.parametrize(("user", "warnings"), [(0, 1), (1000, 0)], ids=["root", "another user"])
def test_a_clone_by_root_warns_about_its_owner(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, warnings: int
):
    monkeypatch.setattr(targets.os, "geteuid", lambda: user)

    ended = command("clone", source.data, tmp_path / "clone", "--queue", "late")

    assert ended.code == 0, ended.error
    assert ended.error.count(f"first run chown -R USER: {tmp_path / 'clone'}") == warnings
    assert "1 message in 1 queue, as of row" in ended.lines


async def send_one(url: str) -> None:
    async with connect(url) as client:
        await (await client.create_queue("orders")).send(b"one espresso")


async def pins_of(url: str) -> int:
    async with connect(url) as client:
        return int((await client.status())["pins"])


def test_a_live_broker_and_a_backup_are_sources(tmp_path: Path):
    (tmp_path / "live").mkdir()
    (tmp_path / "second").mkdir()

    async def send(url: str) -> None:
        async with connect(url) as client:
            queue = await client.create_queue("orders")
            await queue.send_batch([b"%d" % number for number in range(10)])

    async def bodies(url: str) -> list[bytes]:
        async with connect(url) as client:
            return [each.body for each in await client.queue("orders").peek(100)]

    first, second = RunningServer(tmp_path), RunningServer(tmp_path / "second")
    with RunningServer(tmp_path / "live") as live:
        asyncio.run(send(live.url))
        ended = command("clone", live.data, first.data)
        assert ended.code == 0, ended.error
        assert command("backup", live.data, "--to", tmp_path / "backup").code == 0
    ended = command("clone", f"file://{tmp_path / 'backup'}", second.data)
    assert ended.code == 0, ended.error
    for clone in (first, second):
        assert not (clone.data / targets.WORK).exists()
        with clone as server:
            assert asyncio.run(bodies(server.url)) == [b"%d" % number for number in range(10)]


def test_a_damaged_row_is_refused_and_the_target_stays_as_it_was(source: Source, tmp_path: Path):
    backup = tmp_path / "backup"
    assert command("backup", source.data, "--to", backup).code == 0
    segment = next(path for path in (backup / "segments").iterdir())
    content = segment.read_bytes()
    segment.chmod(0o600)
    segment.write_bytes(content.replace(b"plain", b"pl4in"))

    ended = command("clone", backup, tmp_path / "clone")

    assert ended.code == 4
    assert "does not match its checksum" in ended.error
    assert not (tmp_path / "clone").exists()


def test_wrong_sources_and_targets_are_refused(source: Source, tmp_path: Path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    cases = [
        ((source.data, tmp_path / "full"), "is not empty"),
        ((tmp_path / "full", tmp_path / "a"), "is neither a data folder nor a backup"),
        ((tmp_path / "full" / "note", tmp_path / "a"), "is neither a data folder nor a backup"),
        ((tmp_path / "missing", tmp_path / "a"), "is neither a data folder nor a backup"),
        ((f"file://{tmp_path}/missing", tmp_path / "a"), "has no backup"),
        ((source.data, source.data / "inner"), "is within"),
        ((source.data, tmp_path / "a", "--queue", "ordres"), "has no queue ordres"),
        ((source.data, tmp_path / "a", "--mask", "$card"), "is not a JSON path"),
        ((source.data, tmp_path / "a", "--since", "yesterday"), "is not a time"),
    ]
    for arguments, text in cases:
        ended = command("clone", *arguments)
        assert (ended.code, text in ended.error) == (4, True), (arguments, ended.error)
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "full" / "note").read_text() == "mine"


def test_a_folder_whose_broker_was_killed_is_refused(tmp_path: Path):
    with RunningServer(tmp_path) as server:
        server.kill()

    ended = command("clone", server.data, tmp_path / "clone")

    assert ended.code == 4
    assert not (tmp_path / "clone").exists()


_KILLED = """
import os, signal, sys
from cmqd_backup.cloning import cloning
from cmqd_backup.command import main
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
setattr(cloning, sys.argv[1], die)
main(["clone", *sys.argv[2:]])
"""


@pytest.mark.parametrize("step", ["held_source", "fold_source", "read_rows_with", "write_manifest"])
def test_a_clone_that_is_killed_is_no_folder_and_can_be_repeated(source: Source, tmp_path: Path, step: str):
    target = tmp_path / "clone"
    arguments = [sys.executable, "-c", _KILLED, step, str(source.data), str(target)]
    killed = subprocess.run(arguments, env=plain_environment(), check=False)
    assert killed.returncode == -signal.SIGKILL

    assert (target / targets.UNFINISHED).exists()
    assert not (target / "manifest").exists()
    serve = [sys.executable, "-m", "cmqd", "serve", "--data", str(target), "--listen", "127.0.0.1:0"]
    refused = subprocess.run(serve, env=plain_environment(), capture_output=True, check=False, timeout=60)
    assert refused.returncode == 4, refused
    ended = command("clone", source.data, target)
    assert ended.code == 0, ended.error
    assert not (target / targets.UNFINISHED).exists()


_INTERRUPTED = """
import os, signal, sys, time
from cmqd_backup.cloning import cloning
from cmqd_backup.command import main
target = sys.argv[2]
def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
    deadline = time.monotonic() + 30
    while os.path.exists(target) and time.monotonic() < deadline:
        time.sleep(0.01)
    print("the clone is still written")
    return iter(())
cloning.read_rows_with = interrupt
sys.exit(main(["clone", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("kind", ["stopped", "backup", "live"])
def test_a_clone_that_is_interrupted_ends_before_its_folder_is_removed(source: Source, tmp_path: Path, kind: str):
    (tmp_path / "live").mkdir()
    with RunningServer(tmp_path / "live") as live:
        places = {"stopped": source.data, "backup": tmp_path / "backup", "live": live.data}
        assert command("backup", live.data, "--to", tmp_path / "backup").code == 4
        asyncio.run(send_one(live.url))
        assert command("backup", live.data, "--to", tmp_path / "backup").code == 0
        arguments = [sys.executable, "-c", _INTERRUPTED, str(places[kind]), str(tmp_path / "clone")]
        ended = subprocess.run(arguments, env=plain_environment(), capture_output=True, text=True, check=False)

        assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
        assert not (tmp_path / "clone").exists()
        assert asyncio.run(pins_of(live.url)) == 0
