"""A backup of a broker with redundancy: its rows by a pin, its accounts from the engine."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmqd_client import connect
from cmqd_segment.manifest import read_manifest
from support.postgresql.installation import Installation
from support.postgresql.servers import PostgresCluster
from support.processes.environment import plain_environment
from support.processes.running_broker import RunningBroker
from support.processes.running_server import RunningServer

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
    interval = cmqd("backup", data, "--to", backup, "--config", config, "--every", "1s")
    taken = cmqd("backup", data, "--to", backup, "--config", config, url=leader.url)
    leader.stop()
    stopped = cmqd("backup", data, "--to", backup, "--config", config)
    follower.start()
    key = follower.url

    assert (bare.returncode, "name the settings of its broker with --config" in bare.stderr) == (4, True)
    assert (interval.returncode, "keeps no rows for runs at an interval" in interval.stderr) == (4, True)
    assert (taken.returncode, "is complete and verified" in taken.stdout) == (0, True), taken.stderr
    assert (stopped.returncode, "make the backup while its broker leads" in stopped.stderr) == (4, True)
    target = tmp_path / "restored" / "data"
    restored = cmqd("restore", backup, target)
    assert restored.returncode == 0, restored.stderr
    assert read_manifest(target).cache_of is None
    with RunningServer(target.parent) as server:
        # The keys are those of the engine.
        url = f"{key.rpartition('@')[0]}@{server.host}:{server.port}"
        assert asyncio.run(bodies_at(url)) == [b"%d" % number for number in range(10)]
