"""Readiness of leaders and standbys, and the answers of a standby over HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cmqd.log.values import EngineStatus
from cmqd.server.process.readiness import (
    LOOKED_WITHIN_S,
    WAITS_S,
    BrokerRole,
    Readiness,
    readiness_of_leader,
    readiness_of_standby,
)
from cmqd.server.redundancy import standby_http
from cmqd.server.redundancy.standby_http import StandbyHttp
from cmqd.server.redundancy.standby_metrics import StandbyFigures, standby_metrics
from cmqd.settings import Settings
from support.engine.replicas import Replicas
from support.eventually import eventually
from support.processes.silent_port import reserve_port
from support.server.daemons import DaemonOverEngine


def leader(stalled_s: float, stuck_s: float) -> Any:
    return SimpleNamespace(unanswered_s=lambda: max(stalled_s, stuck_s))


@pytest.mark.parametrize(("stalled_s", "stuck_s"), [(0.0, 0.0), (2.9, 0.0), (0.0, 2.9)])
def test_a_leader_is_ready_while_its_log_answers(stalled_s: float, stuck_s: float) -> None:
    assert readiness_of_leader(leader(stalled_s, stuck_s)) == (BrokerRole.LEADER, "")


@pytest.mark.parametrize(("stalled_s", "stuck_s"), [(WAITS_S, 0.0), (0.0, WAITS_S)])
def test_a_leader_that_waits_for_a_proof_or_for_its_disk_is_not_ready(stalled_s: float, stuck_s: float) -> None:
    readiness = readiness_of_leader(leader(stalled_s, stuck_s))

    assert readiness == (BrokerRole.LEADER, "the log has not answered for 3.0 s")


def test_a_standby_is_ready_while_its_looks_are_young_and_copied() -> None:
    status = EngineStatus(copied_s=1_000)

    def reason(now_s: float, status: EngineStatus = status, *, is_replayed: bool = True) -> str:
        readiness = readiness_of_standby(status, now_s, is_replayed=is_replayed)
        assert readiness.role is BrokerRole.STANDBY
        return readiness.reason

    assert reason(1_000 + LOOKED_WITHIN_S - 0.1) == ""
    assert reason(1_000 + LOOKED_WITHIN_S) == "the standby has not seen the whole log for 10 s"
    assert reason(1_001, EngineStatus()) == "the standby has not copied the log yet"
    assert reason(1_001, is_replayed=False) == "the broker recovers"


async def ask(http: StandbyHttp, request: bytes) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(*http.address)
    writer.write(request)
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]) if head else 0, body


async def get(http: StandbyHttp, target: str) -> tuple[int, str]:
    return await ask(http, f"GET {target} HTTP/1.1\r\nHost: standby\r\n\r\n".encode())


class Standby:
    reason = ""

    def __init__(self) -> None:
        self.http = StandbyHttp(
            Settings(http="127.0.0.1:0"), lambda: Readiness(BrokerRole.STANDBY, self.reason), lambda: "cmqd_leads 0"
        )


@pytest.fixture
async def standby() -> AsyncIterator[Standby]:
    made = Standby()
    await made.http.start()
    yield made
    made.http.stop()


async def test_the_answers_of_a_standby(standby: Standby) -> None:
    http = standby.http
    assert await get(http, "/healthz") == (200, "ok\n")
    assert await get(http, "/readyz") == (200, "ready\nrole: standby\n")
    assert await get(http, "/readyz?role=standby") == (200, "ready\nrole: standby\n")
    assert await get(http, "/readyz?role=leader") == (503, "the broker is a standby\nrole: standby\n")
    assert await get(http, "/metrics") == (200, "cmqd_leads 0\n")
    assert (await get(http, "/api/v1/queues"))[0] == 503
    assert (await ask(http, b"POST /v2/index.php HTTP/1.1\r\nContent-Length: 1\r\n\r\n"))[0] == 503
    assert await ask(http, b"HEAD /readyz HTTP/1.1\r\n\r\n") == (200, "")

    standby.reason = "the broker recovers"
    assert await get(http, "/readyz") == (503, "the broker recovers\nrole: standby\n")
    assert await get(http, "/healthz") == (200, "ok\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET //[ HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 503),
        (b"\xff\x00 \xff\r\n\r\n", 503),
        (b"GET /" + b"a" * 9_000, 431),
    ],
)
async def test_malformed_requests_are_answered(standby: Standby, request_bytes: bytes, status: int) -> None:
    assert (await ask(standby.http, request_bytes))[0] == status


async def test_connections_are_limited(standby: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_http, "MAX_CONNECTIONS", 1)
    reader, writer = await asyncio.open_connection(*standby.http.address)
    writer.write(b"GET")
    others_reader, others_writer = await asyncio.open_connection(*standby.http.address)
    others_answer = b""
    with contextlib.suppress(ConnectionResetError):
        others_answer = await others_reader.read()
    assert others_answer == b""
    others_writer.close()

    writer.write(b" /healthz HTTP/1.1\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()


def test_the_metrics_are_in_the_format_of_prometheus() -> None:
    text = standby_metrics(
        StandbyFigures(
            status=EngineStatus("the named standby", 1_500, 2_500, copied_s=90),
            now_s=93.5,
            uptime_s=12.25,
            last_lsn=2**53,
            connections_refused=3,
            loop_rss_bytes=1,
            storage_rss_bytes=2,
        )
    )

    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples[("cmqd_leads",)] == 0
    assert samples[("cmqd_standby_last_row",)] == 2**53
    assert samples[("cmqd_standby_look_age_seconds",)] == 3.5
    assert samples[("cmqd_engine_waiting_seconds",)] == 1.5
    assert samples[("cmqd_engine_waits_seconds_total",)] == 2.5
    assert samples[("cmqd_standby_connections_refused_total",)] == 3
    assert samples[("cmqd_process_resident_memory_bytes", "storage")] == 2
    assert "cmqd_standby_look_age_seconds" not in standby_metrics(StandbyFigures(EngineStatus(), 1.0, 1.0, 0, 0, 0, 0))


async def test_a_standby_answers_at_the_address_of_its_gateway(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    first = DaemonOverEngine(replicas, tmp_path / "a")
    # Reserved: at the end no other program answers there.
    with reserve_port() as reserved:
        second = DaemonOverEngine(replicas, tmp_path / "b", http=f"127.0.0.1:{reserved.getsockname()[1]}")
        first.begin()
        await first.led()
        second.begin()
        await eventually(lambda: second.standby_http is not None and not second.standby_http.readiness().reason)
        http = second.standby_http
        assert http is not None

        assert await get(http, "/readyz") == (200, "ready\nrole: standby\n")
        assert "cmqd_leads 0.0" in (await get(http, "/metrics"))[1]
        await second.end()
        with pytest.raises(ConnectionRefusedError):
            await get(http, "/healthz")
    await first.end()
    await replicas.end()
