"""Status, metrics and log lines of a broker with redundancy."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import cmqd_client
from cmqd.log.values import EngineStatus, Redundancy
from cmqd.server.redundancy.engine_lines import EngineLines
from cmqd.settings import Settings
from support.engine.memory_engine import Fault
from support.engine.replicas import Replicas
from support.eventually import eventually
from support.server.daemons import DaemonOverEngine


@pytest.fixture
async def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Replicas]:
    monkeypatch.setattr("cmqd.storage.redundancy.engine_watch.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("cmqd.storage.redundancy.engine_watch.VIEW_SECONDS", 0.01)
    monkeypatch.setattr("cmqd.storage.redundancy.following.POLL_SECONDS", 0.01)
    made = Replicas(tmp_path)
    yield made
    await made.end()


async def test_a_leader_shows_its_lead_its_standby_and_the_second_copy(replicas: Replicas, tmp_path: Path) -> None:
    leader, standby = DaemonOverEngine(replicas, tmp_path / "a"), DaemonOverEngine(replicas, tmp_path / "b")
    leader.begin()
    await leader.led()
    standby.begin()
    async with cmqd_client.connect(leader.url) as client:
        await client.create_queue("orders")
        log = leader.replica.log
        # A report from before the queue was created would do for ``rows_behind`` alone.
        await eventually(
            lambda: (
                (view := log.engine_status.view)
                and [(view.rows_behind(seen), seen.lsn) for seen in view.standbys] == [(0, log.last_lsn)]
            )
        )
        status = (await client.status())["replication"]
        metrics = (await client.metrics()).server

    assert (status["shard"], status["epoch"], status["waiting_for"]) == (0, 1, "")
    (seen,) = status["standbys"]
    assert abs(seen.pop("clock_offset_ms")) < 30_000
    assert seen == {"address": f"127.0.0.1:{standby.port}", "last_lsn": log.last_lsn, "rows_behind": 0}
    assert [(copy["name"], copy["is_second"]) for copy in status["copies"]] == [("b", True), ("c", False)]
    assert metrics is not None
    assert metrics.replication is not None
    assert 0 <= metrics.replication.proof_age_ms < 60_000
    assert (metrics.replication.epoch, metrics.replication.standbys) == (1, 1)
    assert (metrics.replication.standby_rows_behind, metrics.replication.second_copies) == (0, 1)
    assert metrics.replication.second_copy_bytes_behind == 0
    assert len(metrics.replication.clock_offsets_ms) == 2


async def test_an_engine_that_is_waited_for_at_the_start_is_told(
    replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cmqd.server.redundancy.engine_lines.TOLD_AFTER_MS", 10)
    broker = DaemonOverEngine(replicas, tmp_path / "a")
    broker.replica.log.on_engine = EngineLines("postgresql://in-memory").report
    replicas.database.on_step = lambda _server, step: Fault.LOSE_REQUEST if step == "primaries" else Fault.NONE
    with capture_logs() as lines:
        broker.begin()
        await eventually(lambda: "a primary" in broker.replica.log.engine_status.waiting_for)
        await eventually(lambda: broker.replica.log.engine_status.waiting_ms > 10)
        replicas.database.on_step = lambda _server, _step: Fault.NONE
        await broker.led()
        log = broker.replica.log
        await eventually(lambda: not log.engine_status.waiting_for)

    assert log.engine_status.waiting_ms_total > 10
    assert {"engine_waits", "engine_goes_on"} <= {line["event"] for line in lines}


def test_a_wait_is_told_every_ten_seconds_and_its_end_once() -> None:
    settings = Settings(engine_url="postgresql://cmqd:secret@db/cmqd", redundancy=Redundancy.POSTGRESQL)
    lines = EngineLines(str(settings.as_table()["engine_url"]))
    with capture_logs() as told:
        for waiting_ms in (500, 1000, 1250, 10_900, 11_000, 11_250):
            lines.report(EngineStatus("a standby", waiting_ms, waiting_ms))
        lines.report(EngineStatus("", 0, 11_500))
        lines.report(EngineStatus("a standby", 500, 12_000))
        lines.report(EngineStatus("", 0, 12_000))

    waits = [line["for_ms"] for line in told if line["event"] == "engine_waits"]
    ends = [line["after_ms"] for line in told if line["event"] == "engine_goes_on"]
    assert (waits, ends) == ([1000, 11_000], [11_250])
    assert {line["engine"] for line in told} == {"postgresql://cmqd:...@db/cmqd"}
