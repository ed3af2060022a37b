"""Every scenario for a moment against a real server: the shape of the report, never its figures."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.bench.long_benches import long_bench

pytestmark = pytest.mark.system

ALWAYS = {
    "messages_per_second",
    "server_cpu_us_per_message",
    "client_cpu_us_per_message",
    "latency_ms",
    "server_rss_mib",
    "durability",
}


def bench(scratch: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cmqd_bench", *arguments, "--scratch", str(scratch)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def report_of(scratch: Path, *arguments: str) -> dict[str, Any]:
    """The single object on standard output."""
    ended = bench(scratch, *arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


SCENARIOS = [
    ("cycle --batch 4 --body 100 --connections 4 --seconds 1 --warm-up 0.2 --rounds 1", set[str]()),
    ("send --batch 1 --connections 4 --seconds 1 --warm-up 0.2 --rounds 1", set[str]()),
    (
        "send --batch 1 --connections 4 --seconds 1 --warm-up 0.2 --rounds 1 --saturate",
        {"messages_of_others"},
    ),
    ("latency --rate 200 --connections 4 --seconds 1 --warm-up 0.2 --rounds 1", set[str]()),
    (
        "idle --connections 60 --rate 100 --seconds 1 --warm-up 0.2 --rounds 1",
        {"rss_kib_per_connection"},
    ),
    (
        "queues --queues 20 --rate 100 --connections 2 --seconds 0.2 --warm-up 0.1 --rounds 1",
        {"longest_ms_without", "longest_ms_with_checkpoint", "rss_kib_per_queue", "kill_start_us_per_queue"},
    ),
    ("delayed --messages 2000 --spread 1 --rounds 1", {"rss_growth_mib"}),
    ("backlog --messages 6000 --rounds 1", {"rss_growth_mib", "restart_seconds", "drain_ratio"}),
    (
        "fanout --subscribers 3 --connections 4 --seconds 1 --warm-up 0.2 --rounds 1",
        {"publishes_per_second", "copies_per_second", "server_cpu_us_per_copy", "disk_bytes_per_copy"},
    ),
    (
        "push --endpoints 4 --rate 200 --seconds 1 --warm-up 0.3 --rounds 1",
        {"pushes_per_second", "healthy_ratio", "server_cpu_us_per_push", "backlog_growth_per_second"},
    ),
]


@pytest.mark.parametrize(("command", "own_keys"), SCENARIOS[:2])
def test_a_scenario_reports_its_keys_and_leaves_nothing_behind(command: str, own_keys: set[str], tmp_path: Path):
    report = report_of(tmp_path, *command.split())

    assert set(report) >= ALWAYS | own_keys
    assert set(report["latency_ms"]) == {"p50", "p99", "p999"}
    assert report["durability"] == "fsync"
    assert report["messages_per_second"] > 0
    assert report["server_cpu_us_per_message"] >= 0
    assert all(isinstance(report[key], int | float) for key in own_keys)
    assert report["conditions"]["cores"] >= 1
    assert len(report["rounds"]) == 1
    assert list(tmp_path.iterdir()) == []


@long_bench
@pytest.mark.parametrize(("command", "own_keys"), SCENARIOS[2:])
def test_a_further_scenario_reports_its_keys_and_leaves_nothing_behind(
    command: str, own_keys: set[str], tmp_path: Path
):
    test_a_scenario_reports_its_keys_and_leaves_nothing_behind(command, own_keys, tmp_path)


@long_bench
def test_every_load_over_http_does_its_cycles(tmp_path: Path):
    load = "--connections 4 --idle 20 --seconds 1 --warm-up 0.1 --flood 2 --rounds 1"

    report = report_of(tmp_path, *f"gateway {load}".split())

    assert set(report) >= ALWAYS | {"http_rss_kib_per_idle_connection", "native_ratio_idle", "native_ratio_flooded"}
    loads = report["loads"]
    one_gateway = ["api_2_0", "json_api", "cmq_tcp", "cmq_tcp_16"]
    assert list(loads) == [*one_gateway, "api_2_0_two_gateways", "json_api_two_gateways"]
    assert all(load["requests_per_second"] > 0 for load in loads.values())
    assert report["idle_connections_lost"] == report["idle_tcp_connections_lost"] == 0
    assert min(report[f"waiting_{door}"]["messages"] for door in ("json_api", "cmq_tcp")) > 0
    assert report["flood_rss_mib"]
    assert all(mib > 0 for mib in report["flood_rss_mib"])
    assert sum(report["flood_answers"].values()) > 0
    assert all(report[f"native_messages_{which}"] > 0 for which in ("alone", "idle", "flooded"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("which", ["--subscribers 0", "--subscribers 3 --unmatched"])
def test_an_unmatched_message_is_not_written(which: str, tmp_path: Path):
    report = report_of(tmp_path, *f"fanout {which} --connections 4 --seconds 1 --warm-up 0.2 --rounds 1".split())

    assert report["publishes_per_second"] > 0
    assert report["copies_per_second"] == 0
    assert report["disk_bytes_per_copy"] is None
    assert report["log_bytes_per_publish"] < 0.5


def test_copies_share_the_body_on_disk(tmp_path: Path):
    load = "--subscribers 50 --body 1000 --connections 4 --seconds 1 --warm-up 0.2 --rounds 1"

    report = report_of(tmp_path, *f"fanout {load}".split())

    assert report["log_bytes_per_publish"] > 1000
    assert report["disk_bytes_per_copy"] < 1000
    assert report["copies_per_second"] == pytest.approx(50 * report["publishes_per_second"], rel=0.01)


def test_an_endpoint_gets_its_pushes_while_the_others_hang(tmp_path: Path):
    report = report_of(
        tmp_path, *["push", "--endpoints", "4", "--rate", "80", "--seconds", "3", "--warm-up", "0.3", "--rounds", "1"]
    )

    assert report["offered_pushes_per_second"] == pytest.approx(80, rel=0.5)
    assert report["healthy_ratio"] > 0.25


def test_rounds_run_on_fresh_servers_and_the_best_cpu_is_told(tmp_path: Path):
    report = report_of(
        tmp_path,
        *["cycle", "--seconds", "1", "--warm-up", "0.1", "--connections", "2", "--rounds", "2", "--durability", "os"],
    )

    each = [round_["server_cpu_us_per_message"] for round_ in report["rounds"]]
    assert len(each) == 2
    assert report["server_cpu_us_per_message"] == min(each)
    assert report["durability"] == "os"


def test_without_json_people_get_figures_and_conditions(tmp_path: Path):
    ended = bench(tmp_path, *["send", "--seconds", "1", "--warm-up", "0.1", "--connections", "2", "--rounds", "1"])

    assert ended.returncode == 0, ended.stderr
    for told in ("messages per second", "latency ms\n", "p999", "durability fsync", "file system", "cores", "sqlite"):
        assert told in ended.stdout


def test_a_server_that_cannot_start_fails_the_run_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CMQD_MAX_CONNECTIONS", "many")

    ended = bench(tmp_path, *["send", "--seconds", "1", "--rounds", "1", "--json"])

    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "max_connections" in ended.stderr
