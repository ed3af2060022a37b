"""``cmqd ha import`` and ``export`` over three real PostgreSQL servers, with real brokers."""

import asyncio
import os
from pathlib import Path

import pytest

from cmqd.__main__ import main
from cmqd.exit_codes import ExitCode
from cmqd.testing.broker_process import BrokerNotReadyError
from support.engine.journey import Journey
from support.postgresql.servers import PostgresCluster
from support.processes.running_broker import RunningBroker

pytestmark = [pytest.mark.system, pytest.mark.postgresql]

SHARD = 4000
"""Beside the shards of the other tests of the shared servers."""


def ha(command: str, folder: Path, url: str) -> int:
    return main(["ha", command, str(folder), "--engine-url", url, "--shard", str(SHARD)])


async def test_every_message_is_received_once_on_the_way_into_postgresql_and_back(
    shared_cluster: PostgresCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Variables of the tests would be unknown settings of the command.
    for name in [name for name in os.environ if name.startswith("CMQD_")]:
        monkeypatch.delenv(name)
    engine_url = shared_cluster.url("broker")
    journey = Journey()
    broker = RunningBroker(tmp_path, "--shard", str(SHARD))
    own, folder = broker.flags, tmp_path / "data"
    await asyncio.to_thread(broker.start)
    url = broker.url
    await journey.begin(url)
    assert await asyncio.to_thread(ha, "import", folder, engine_url) == ExitCode.CANNOT_OPEN
    assert "in use by process" in capfd.readouterr().err
    broker.kill()

    assert await asyncio.to_thread(ha, "import", folder, engine_url) == ExitCode.OK, capfd.readouterr()
    assert "is now a cache of log" in capfd.readouterr().out
    assert await asyncio.to_thread(ha, "import", folder, engine_url) == ExitCode.CANNOT_OPEN
    assert "already; nothing was changed" in capfd.readouterr().err
    broker.flags = (*own, "--redundancy", "postgresql", "--engine-url", engine_url)
    await asyncio.to_thread(broker.start)
    await journey.go_on(url, 100)
    assert await asyncio.to_thread(ha, "export", tmp_path / "other", engine_url) == ExitCode.CANNOT_OPEN
    assert "stop all brokers of the shard first" in capfd.readouterr().err
    assert not (tmp_path / "other").exists()
    assert broker.stop() == ExitCode.OK

    exported = RunningBroker(tmp_path / "exported", *own)
    exported.folder.mkdir()
    target = exported.folder / "data"
    assert await asyncio.to_thread(ha, "export", target, engine_url) == ExitCode.OK, capfd.readouterr()
    with pytest.raises(BrokerNotReadyError, match=f"ended with code {ExitCode.CANNOT_OPEN:d}"):
        await asyncio.to_thread(broker.start)
    await asyncio.to_thread(exported.start)
    url = f"{url.rpartition(':')[0]}:{exported.port}"
    await journey.go_on(url, 200)
    await journey.end(url)
    assert exported.stop() == ExitCode.OK
