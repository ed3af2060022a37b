"""A backup of a broker with redundancy: its rows by a pin, its accounts from the engine, over takeovers."""

import asyncio
import contextlib
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import IO

import pytest

from cmqd.testing.broker_process import Process
from cmqd_backup.accounts_content import accounts_of
from cmqd_backup.backing_up import back_up
from cmqd_backup.copying import Pace
from cmqd_backup.live import pinned_folder, standing_name
from cmqd_backup.moments import wall_ms
from cmqd_backup.standing import Standing
from cmqd_backup.stores import open_store
from cmqd_client import Client, connect
from cmqd_segment.manifest import MANIFEST_FORMAT, SegmentState, read_manifest
from cmqd_segment.schema import open_read_only, read_actors, read_names
from support.postgresql.installation import Installation
from support.postgresql.servers import PostgresCluster
from support.processes.environment import plain_environment
from support.processes.running_broker import RunningBroker
from support.processes.running_server import RunningServer
from support.processes.standing_by import standing_by
from support.storage.verified import verify_folder

pytestmark = [pytest.mark.system, pytest.mark.postgresql]


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster(Installation.of_session()) as cluster:
        yield cluster


@pytest.fixture
def pair(cluster: PostgresCluster, tmp_path: Path) -> Iterator[list[RunningBroker]]:
    """Two brokers that a test starts."""
    brokers: list[RunningBroker] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        flags = ("--redundancy", "postgresql", "--engine-url", cluster.url(name))
        brokers.append(RunningBroker(tmp_path / name, *flags))
    yield brokers
    for broker in brokers:
        with contextlib.suppress(RuntimeError):  # it does not run
            broker.kill()


def cmqd(*arguments: object, url: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "cmqd", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=plain_environment() | ({"CMQ_URL": url} if url else {}),
    )


async def bodies_at(url: str) -> list[bytes]:
    async with connect(url) as client:
        return [message.body for message in await client.queue("orders").peek(100)]


async def send_ten(url: str) -> None:
    async with connect(url) as client:
        queue = await client.ensure_queue("orders")
        for number in range(10):
            await queue.send(b"%d" % number)


def test_the_log_of_a_leader_is_restored_as_a_log_of_its_own(
    cluster: PostgresCluster, pair: list[RunningBroker], tmp_path: Path
) -> None:
    leader, follower = pair
    config, backup = tmp_path / "cmqd.toml", tmp_path / "backup"
    config.write_text(f'redundancy = "postgresql"\nengine_url = "{cluster.url("x")}"\n')
    leader.start()
    asyncio.run(send_ten(leader.url))
    data = leader.folder / "data"

    bare = cmqd("backup", data, "--to", backup)
    taken = cmqd("backup", data, "--to", backup, "--config", config, url=leader.url)
    leader.stop()
    stopped = cmqd("backup", data, "--to", backup, "--config", config)
    follower.start()
    key = follower.url

    assert (bare.returncode, "name the settings of its broker with --config" in bare.stderr) == (4, True)
    assert (taken.returncode, "is complete and verified" in taken.stdout) == (0, True), taken.stderr
    assert (
        stopped.returncode,
        "start its broker, and make the backup while it leads or stands by" in stopped.stderr,
    ) == (4, True)
    target = tmp_path / "restored" / "data"
    restored = cmqd("restore", backup, target)
    assert restored.returncode == 0, restored.stderr
    assert read_manifest(target).cache_of is None
    with RunningServer(target.parent) as server:
        # The keys are those of the engine.
        url = f"{key.rpartition('@')[0]}@{server.host}:{server.port}"
        assert asyncio.run(bodies_at(url)) == [b"%d" % number for number in range(10)]


# ---------------------------------------------------------------------- a pair


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not is_so():  # noqa: ASYNC110  of other processes
            await asyncio.sleep(0.05)


def is_copying(folder: Path) -> bool:
    try:
        return read_manifest(folder).cache_of is not None
    except (FileNotFoundError, ValueError):
        return False


def url_of_pair(key: str, pair: list[RunningBroker]) -> str:
    return f"{key.rpartition('@')[0]}@" + ",".join(f"127.0.0.1:{broker.port}" for broker in pair)


def config_of(cluster: PostgresCluster, folder: Path) -> Path:
    config = folder / "cmqd.toml"
    config.write_text(f'redundancy = "postgresql"\nengine_url = "{cluster.url("x")}"\n')
    return config


def restored_bodies(backup: Path, target: Path, key: str, *arguments: str) -> list[bytes]:
    restored = cmqd("restore", backup, target, *arguments)
    assert restored.returncode == 0, restored.stderr
    manifest = read_manifest(target)
    assert (manifest.cache_of, manifest.format) == (None, MANIFEST_FORMAT)
    assert verify_folder(target) == []
    with RunningServer(target.parent) as server:
        return asyncio.run(bodies_at(f"{key.rpartition('@')[0]}@{server.host}:{server.port}"))


async def test_the_folder_of_a_standby_is_copied_up_to_the_row_of_the_leader(
    cluster: PostgresCluster, pair: list[RunningBroker], tmp_path: Path
) -> None:
    leader, standby = pair
    await asyncio.to_thread(leader.start)
    standing_by(standby)
    data = standby.folder / "data"
    await until(lambda: is_copying(data))
    await send_ten(leader.url)
    key = leader.url

    taken = await asyncio.to_thread(
        cmqd,
        *("backup", data, "--to", tmp_path / "backup", "--config", config_of(cluster, tmp_path)),
        url=url_of_pair(key, pair),
    )

    assert (taken.returncode, "is complete and verified" in taken.stdout) == (0, True), taken.stderr
    manifest = read_manifest(data)
    assert not [entry for entry in manifest.segments if entry.state is SegmentState.SEALED], "the rows are unsealed"
    found = await asyncio.to_thread(restored_bodies, tmp_path / "backup", tmp_path / "restored" / "data", key)
    assert found == [b"%d" % number for number in range(10)]
    (entry,) = read_manifest(tmp_path / "restored" / "data").segments[:1]
    with contextlib.closing(open_read_only(tmp_path / "restored" / "data" / entry.file, sealed=True)) as raw:
        assert [name for _, _, name, _ in read_names(raw)] == ["orders"]
        assert read_actors(raw)


async def test_a_copy_goes_on_when_the_leader_is_killed_under_its_pin(
    cluster: PostgresCluster, pair: list[RunningBroker], tmp_path: Path
) -> None:
    leader, standby = pair
    await asyncio.to_thread(leader.start)
    taking_over = standing_by(standby)
    data, backup = standby.folder / "data", tmp_path / "backup"
    await until(lambda: is_copying(data))
    await send_ten(leader.url)
    key = leader.url

    async with connect(url_of_pair(key, pair)) as client, pinned_folder(client, data) as (held, pin):
        leader.kill()
        await asyncio.to_thread(taking_over.join)
        copied = await asyncio.to_thread(
            back_up,
            held,
            open_store(str(backup)),
            read_accounts=partial(accounts_of, held, config_of(cluster, tmp_path)),
            pace=Pace(),
            began_ms=wall_ms(),
            wall_ms=wall_ms,
            out=lambda _: None,
        )
        # The pin died with the leader, and the row is of the log of the next leader, too.
        await Standing(open_store(str(backup))).tell(client, pin, copied, 1000)
        (info,) = (await client.status())["standing_pins"]

    assert info["copied_lsn"] == pin.lsn
    found = await asyncio.to_thread(restored_bodies, backup, tmp_path / "restored" / "data", key)
    assert found == [b"%d" % number for number in range(10)]


class Runs:
    """``cmqd backup --every`` beside a broker; it ends with the context."""

    def __init__(self, *arguments: object, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cmqd", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=plain_environment() | {"CMQ_URL": url, "PYTHONUNBUFFERED": "1"},
        )
        self.lines: list[str] = []
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.lines.append(line)

    def __enter__(self) -> "Runs":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        self._reading.join()

    def whole(self) -> int:
        return sum("is complete and verified" in line for line in self.lines)

    @contextlib.contextmanager
    def stopped(self) -> Generator[None]:
        """Stop the process, so that it tells no broker a row."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    async def two_more(self) -> None:
        """Wait for a run that began later, behind the one that may be under way."""
        before = self.whole()
        await until(lambda: self.whole() >= before + 2)


class Shop:
    """A queue whose states are noted with the broker time of their last change."""

    def __init__(self) -> None:
        self.states: list[tuple[datetime, list[bytes]]] = []
        self._waiting: list[bytes] = []
        self._random = random.Random(7)

    async def trade(self, url: str, count: int) -> None:
        async with connect(url) as client:
            for _ in range(count):
                await self._change(client)

    async def _change(self, client: Client) -> None:
        queue = await client.ensure_queue("orders")
        for message in await queue.receive(max_messages=self._random.randint(1, 3)):
            await message.delete()
            self._waiting.remove(message.body)
        body = b"%d" % len(self.states)
        self._waiting.append(body)
        await queue.send(body)
        peeked = {message.body: message for message in await queue.peek(100)}
        assert sorted(peeked) == sorted(self._waiting)
        self.states.append((peeked[body].enqueue_time, sorted(self._waiting)))
        # The next change is of a later millisecond.
        await asyncio.sleep(0.01)


async def test_runs_at_an_interval_leave_no_gap_over_takeovers_and_starts(
    cluster: PostgresCluster, pair: list[RunningBroker], tmp_path: Path
) -> None:
    """The runs are of the folder of one broker, which leads, is killed, stands by, leads again, and is restarted."""
    first, second = pair
    await asyncio.to_thread(first.start)
    taking_over = standing_by(second)
    await until(lambda: is_copying(second.folder / "data"))
    shop, backup, key = Shop(), tmp_path / "backup", first.url
    url, data = url_of_pair(key, pair), first.folder / "data"
    arguments = ("backup", data, "--to", backup, "--config", config_of(cluster, tmp_path), "--every", "1s")
    with Runs(*arguments, url=url) as runs:
        await runs.two_more()
        await shop.trade(url, 5)
        await runs.two_more()
        await shop.trade(url, 5)

        with runs.stopped():
            first.kill()
            await shop.trade(url, 10)
            await asyncio.to_thread(taking_over.join)
            async with connect(url) as client:
                # From the engine: no run tells the new leader its row meanwhile.
                (standing,) = (await client.status())["standing_pins"]
        taking_over = standing_by(first)
        await shop.trade(url, 5)
        await runs.two_more()
        await shop.trade(url, 5)

        second.kill()
        await shop.trade(url, 5)
        await asyncio.to_thread(taking_over.join)
        await runs.two_more()
        await asyncio.to_thread(first.stop)
        await asyncio.to_thread(first.start)
        await shop.trade(url, 5)
        await runs.two_more()
    listed = await asyncio.to_thread(cmqd, "backup", "list", backup, "--verify")

    assert (standing["copied_lsn"], standing["every_ms"]) == (None, 1000)
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert not [line for line in runs.lines if line.startswith("gap")], runs.lines
    picked = random.Random(11).sample(range(len(shop.states)), 6)
    # Of the first leader, of the takeover, and of the last start.
    for number in sorted({7, 12, len(shop.states) - 1, *picked}):
        sent_at, waiting = shop.states[number]
        target = tmp_path / f"restored-{number}" / "data"
        found = await asyncio.to_thread(restored_bodies, backup, target, key, "--to-time", sent_at.isoformat())
        assert sorted(found) == waiting, number


async def test_runs_go_on_over_an_import_and_an_export_without_a_gap(cluster: PostgresCluster, tmp_path: Path) -> None:
    """The folder of one broker is a log of its own, then a cache of the engine, then a log of its own again."""
    broker = RunningBroker(tmp_path)
    own, engine_url = broker.flags, cluster.url("x")
    await asyncio.to_thread(broker.start)
    shop, backup, key, data = Shop(), tmp_path / "backup", broker.url, tmp_path / "data"
    arguments = ("backup", data, "--to", backup, "--every", "1s")
    with_engine = ("--config", config_of(cluster, tmp_path))
    gaps: list[str] = []

    async def run_and_trade(*more: object) -> None:
        with Runs(*arguments, *more, url=broker.url) as runs:
            await runs.two_more()
            await shop.trade(broker.url, 5)
            await runs.two_more()
        gaps.extend(line for line in runs.lines if line.startswith("gap"))

    async def standing_row() -> int | None:
        async with connect(broker.url) as client:
            (standing,) = (await client.status())["standing_pins"]
            return standing["copied_lsn"]

    await shop.trade(broker.url, 1)
    await run_and_trade()
    for command, flags, more in [
        ("import", (*own, "--redundancy", "postgresql", "--engine-url", engine_url), with_engine),
        ("export", own, ()),
    ]:
        # No run has these rows.
        await shop.trade(broker.url, 5)
        await asyncio.to_thread(broker.stop)
        moved = await asyncio.to_thread(cmqd, "ha", command, data, "--engine-url", engine_url)
        assert moved.returncode == 0, moved.stderr
        broker.flags = flags
        await asyncio.to_thread(broker.start)
        assert await standing_row() is None, "every row is held until the backup tells its row"
        await shop.trade(broker.url, 5)
        await run_and_trade(*more)
    await asyncio.to_thread(broker.stop)
    listed = await asyncio.to_thread(cmqd, "backup", "list", backup, "--verify")

    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert gaps == []
    for number in (3, 8, 13, 18, 23, len(shop.states) - 1):
        sent_at, waiting = shop.states[number]
        target = tmp_path / f"restored-{number}" / "data"
        found = await asyncio.to_thread(restored_bodies, backup, target, key, "--to-time", sent_at.isoformat())
        assert sorted(found) == waiting, number


async def test_a_pair_that_lost_its_first_folder_goes_on_in_a_new_place(
    cluster: PostgresCluster, pair: list[RunningBroker], tmp_path: Path
) -> None:
    """The way of docs/backup.md: runs of the other folder in a new place, then the end of the first pin."""
    first, second = pair
    await asyncio.to_thread(first.start)
    taking_over = standing_by(second)
    await until(lambda: is_copying(second.folder / "data"))
    key, old, new = first.url, tmp_path / "backup", tmp_path / "backup-2"
    url, data = url_of_pair(key, pair), second.folder / "data"
    config = ("--config", config_of(cluster, tmp_path))
    with Runs("backup", first.folder / "data", "--to", old, *config, "--every", "1s", url=url) as runs:
        # The first broker has a segment for each run with new rows. The other broker has all rows in its first segment.
        for _ in range(2):
            await send_ten(url)
            await runs.two_more()
    first.kill()
    shutil.rmtree(first.folder / "data")
    await asyncio.to_thread(taking_over.join)
    async with connect(url) as client:
        await client.queue("orders").send(b"later")

    refused = await asyncio.to_thread(cmqd, "backup", data, "--to", old, *config, url=url)
    with Runs("backup", data, "--to", new, *config, "--every", "1s", url=url) as runs:
        await runs.two_more()
    async with connect(url) as client:
        both = [pin["name"] for pin in (await client.status())["standing_pins"]]
    ended = await asyncio.to_thread(cmqd, "backup", data, "--to", old, "--end", url=url)
    async with connect(url) as client:
        left = [pin["name"] for pin in (await client.status())["standing_pins"]]

    assert (refused.returncode, "Name another place" in refused.stderr) == (4, True), refused
    assert sorted(both) == sorted(standing_name(str(place)) for place in (old, new))
    assert (ended.returncode, left) == (0, [standing_name(str(new))]), ended
    twice = [b"%d" % number for number in range(10)] * 2
    for place, bodies in ((old, twice), (new, [*twice, b"later"])):
        target = tmp_path / f"restored-{place.name}" / "data"
        assert await asyncio.to_thread(restored_bodies, place, target, key) == bodies


# ---------------------------------------------------------------------- an older version

WITHOUT_PINS = """
import sys
from cmqd.__main__ import main
from cmqd.server.handlers import pins as requests
from cmqd.server.log_upkeep import pins
pins.Segments = requests.Segments = ()
sys.exit(main())
"""
"""A broker that refuses requests about pins and asks no engine for standing pins, as a version of before the pins."""


class OlderBroker(RunningBroker):
    def _launch(self, arguments: list[str], log: IO[bytes], environment: Mapping[str, str]) -> Process:
        command = [sys.executable, "-c", WITHOUT_PINS, *arguments]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


async def consume_in_segments(url: str, count: int) -> list[datetime]:
    """Send and consume messages in a segment each; return the times between them."""
    times: list[datetime] = []
    async with connect(url) as client:
        queue = await client.ensure_queue("orders")
        for number in range(count):
            await queue.send(b"%d" % number)
            (message,) = await queue.receive()
            await message.delete()
            await client.seal_segments()
            # The row before is of an earlier millisecond, and so is this time of the next row.
            await asyncio.sleep(0.01)
            times.append(datetime.now(UTC))
            await asyncio.sleep(0.01)
    return times


def rows_dropped(folder: Path) -> int:
    return max((last for _, last in read_manifest(folder / "data").dropped), default=0)


async def test_rows_that_a_leader_of_an_older_version_reclaimed_are_a_gap_that_is_told(
    cluster: PostgresCluster, pair: list[RunningBroker], tmp_path: Path
) -> None:
    """An older version leads for a time: as the last leader of an upgrade does, and as a takeover behind it can."""
    first = pair[0]
    older = pair[1] = OlderBroker(pair[1].folder, *pair[1].flags)
    await asyncio.to_thread(first.start)
    taking_over = standing_by(older)
    await until(lambda: is_copying(older.folder / "data"))
    backup, key, data = tmp_path / "backup", first.url, first.folder / "data"
    url = url_of_pair(key, pair)
    arguments = ("backup", data, "--to", backup, "--config", config_of(cluster, tmp_path), "--every", "1s")
    with Runs(*arguments, url=url) as runs:
        await consume_in_segments(url, 2)
        await runs.two_more()
        before, _ = await consume_in_segments(url, 2)
        await runs.two_more()

        first.kill()
        await asyncio.to_thread(taking_over.join)
        dropped = rows_dropped(older.folder)
        times = await consume_in_segments(url, 6)
        await until(lambda: rows_dropped(older.folder) > dropped + 6)
        taking_over = standing_by(first)
        await until(lambda: any("knows no pins" in line for line in runs.lines))
        told = len(runs.lines)

        older.kill()
        await asyncio.to_thread(taking_over.join)
        async with connect(url) as client:
            (standing,) = (await client.status())["standing_pins"]
        await runs.two_more()
        (behind,) = await consume_in_segments(url, 1)
        await runs.two_more()
    listed = await asyncio.to_thread(cmqd, "backup", "list", backup, "--verify")

    assert (standing["every_ms"], standing["copied_lsn"]) == (1000, None), "from the engine"
    assert any(line.startswith("gap: rows ") for line in runs.lines[told:]), runs.lines
    assert not any(line.startswith("gap: ") for line in runs.lines[:told]), runs.lines
    assert "gaps, in which rows are missing:" in listed.stdout
    refused = await asyncio.to_thread(cmqd, "restore", backup, tmp_path / "gone", "--to-time", times[0].isoformat())
    assert (refused.returncode, (tmp_path / "gone").exists()) == (4, False)
    assert "is in a gap of the backup: rows " in refused.stderr
    for number, moment in enumerate((before, behind)):
        target = tmp_path / f"restored-{number}" / "data"
        assert await asyncio.to_thread(restored_bodies, backup, target, key, "--to-time", moment.isoformat()) == []
