"""The exported names, and the dashboard and the alert rules that use them."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from cmqd.log.values import EngineStatus
from cmqd.server.redundancy.standby_metrics import StandbyFigures, standby_metrics
from cmqd_client.administration.metrics import Metrics, TopMetrics
from cmqd_gateway.cmq.tcp.connections import Connections
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.monitoring import collector
from cmqd_gateway.monitoring.collector import exposition, families
from cmqd_gateway.monitoring.metrics_readings import Figures
from cmqd_gateway.monitoring.own_metrics import own_metrics
from cmqd_gateway.process.gateway_settings import Settings
from cmqd_types.metrics import (
    DURATIONS_US,
    SIZES,
    MetricSums,
    QueueMetrics,
    ReplicationMetrics,
    ServerMetrics,
    SubscriptionMetrics,
    TopicMetrics,
    TopSubscription,
    histogram,
)
from cmqd_types.pins import StandingPinInfo
from cmqd_types.totals import QueueTotals, SubscriptionTotals, TopicTotals
from support.cases import each_case
from support.gateway.gateway_rig import KeyTable

FOLDER = Path(__file__).parents[3] / "docs" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
RULES = FOLDER / "alert-rules.yml"
PROMTOOL = os.environ.get("CMQD_PROMTOOL") or shutil.which("promtool")
NOW_MS = 1_700_000_000_000

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (CMQD_PROMTOOL names it)")


def some_figures(queues: int = 1) -> Figures:
    """A reading with every metric."""
    commit_us = histogram(DURATIONS_US)
    for value in (90, 100, 101, 20_000_000):
        commit_us.note(value)
    server = ServerMetrics(
        version="0.1.0",
        uptime_ms=5_000,
        errors_total={"queue_not_found": 2},
        commit_us=commit_us,
        fsync_us=histogram(DURATIONS_US),
        commit_records=histogram(SIZES),
        loop_lag_us=histogram(DURATIONS_US),
        loop_cpu_us_total=2_500_000,
        standing_pins=[StandingPinInfo("nightly", None, 90_000, 60_000, 2)],
        replication=ReplicationMetrics(
            epoch=7,
            proof_age_ms=250,
            waiting_ms_total=1_500,
            standbys=1,
            standby_rows_behind=3,
            clock_offsets_ms={"first:5680": 7_200_000},
            second_copies=1,
            second_copy_bytes_behind=100,
            second_copy_ms_behind=20,
        ),
    )
    subscription = SubscriptionMetrics("web", 4, "https", 1, 2, True, NOW_MS - 2_000, SubscriptionTotals(3, 4, 5))
    time = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    return Figures(
        metrics=Metrics(
            time,
            *(QueueTotals(sent=7), TopicTotals(published=8), SubscriptionTotals(9)),
            *(queues, 1, 1, server, 1),
        ),
        top=TopMetrics(
            time,
            MetricSums(
                active=3,
                waiting_receives=2,
                oldest_message_ms=NOW_MS - 1_500,
                undelivered=3,
                oldest_undelivered_ms=NOW_MS - 2_000,
            ),
            [
                QueueMetrics(
                    "a", f"queue-{number}", number, 3, 0, 0, 0, 0, 0, 2, NOW_MS - 1_500, 11, QueueTotals(sent=7), 1
                )
                for number in range(queues)
            ],
            [TopicMetrics("a", "news", 3, 3, TopicTotals(published=8), [])],
            [TopSubscription("a", "news", subscription)],
            2,
        ),
        seconds=0.01,
    )


def exported() -> set[str]:
    """The names of all samples, those of the gateway itself, and those of a standby."""
    names = {sample.name for family in families(some_figures()) for sample in family.samples}
    standby = standby_metrics(StandbyFigures(EngineStatus(copied_s=1), 2.0, 1.0, 1, 0, 1, 1))
    names |= {sample.name for family in text_string_to_metric_families(standby) for sample in family.samples}
    gateway = Gateway(Settings(), KeyTable(), Mock())
    gateway.cmq_tcp = Connections(gateway)
    own = {family.name: family.type for family in own_metrics(gateway)}
    return names | {f"{name}_total" if kind == "counter" else name for name, kind in own.items()}


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bcmqd_\w+", expression))


def test_figures_of_a_pair_that_are_not_known_are_left_out() -> None:
    figures = some_figures()
    server = ServerMetrics(replication=ReplicationMetrics(epoch=7, standbys=0))
    figures = structs.replace(figures, metrics=structs.replace(figures.metrics, server=server))

    names = {sample.name for family in families(figures) for sample in family.samples}

    assert {"cmqd_leader_epoch", "cmqd_standbys", "cmqd_engine_waits_seconds_total"} <= names
    assert not names & {"cmqd_standby_rows_behind", "cmqd_second_copies", "cmqd_second_copy_bytes_behind"}


def test_every_total_and_every_figure_of_the_server_is_exported() -> None:
    assert [field for field, _, _ in collector.QUEUE_TOTALS] == list(QueueTotals.__struct_fields__)
    assert [field for field, _, _ in collector.TOPIC_TOTALS] == list(TopicTotals.__struct_fields__)
    assert [field for field, _, _ in collector.SUBSCRIPTION_TOTALS] == list(SubscriptionTotals.__struct_fields__)
    tables = (collector.SERVER_COUNTERS, collector.SERVER_GAUGES, collector.SERVER_HISTOGRAMS)
    listed = {row[0] for table in tables for row in table}
    others = {
        *("version", "uptime_ms", "errors_total", "pushes_delivered_total", "pushes_failed_total", "sends_refused"),
        *("checkpoint_ms", "loop_rss_bytes", "storage_rss_bytes", "loop_cpu_us_total", "storage_cpu_us_total"),
        # Structs with tables of their own.
        *("replication", "standing_pins"),
        # Numbers of rows of the log say nothing to a monitoring system that the commits do not.
        *("last_lsn", "durable_lsn"),
    }
    assert listed | others == set(ServerMetrics.__struct_fields__)
    of_replication = {row[0] for row in collector.REPLICATION_GAUGES} | {
        "waiting_ms_total",
        "shard",
        "clock_offsets_ms",
    }
    assert of_replication == set(ReplicationMetrics.__struct_fields__)
    assert not listed & others


def test_names_follow_the_conventions() -> None:
    seen: set[str] = set()
    for family in families(some_figures()):
        assert re.fullmatch(r"cmqd_[a-z0-9_]+", family.name)
        assert family.name not in seen, "declared twice"
        seen.add(family.name)
        assert not re.search(r"_(ms|us|kb|mb|percent)(_|$)", family.name), "not a base unit"
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name


def test_values_and_units() -> None:
    text = exposition(some_figures()).decode()

    for line in (
        'cmqd_queue_messages_sent_total{account="a",queue="queue-0"} 7.0',
        'cmqd_queue_messages{account="a",queue="queue-0",state="active"} 3.0',
        'cmqd_queue_oldest_message_age_seconds{account="a",queue="queue-0"} 1.5',
        'cmqd_subscription_messages{account="a",state="in_retry",subscription="web",topic="news"} 2.0',
        'cmqd_subscription_oldest_message_age_seconds{account="a",subscription="web",topic="news"} 2.0',
        'cmqd_errors_total{error="queue_not_found"} 2.0',
        'cmqd_backup_age_seconds{backup="nightly"} 90.0',
        'cmqd_backup_interval_seconds{backup="nightly"} 60.0',
        'cmqd_backup_gaps_total{backup="nightly"} 2.0',
        'cmqd_process_cpu_seconds_total{process="loop"} 2.5',
        'cmqd_commit_duration_seconds_bucket{le="0.0001"} 2.0',
        'cmqd_commit_duration_seconds_bucket{le="0.00025"} 3.0',
        'cmqd_commit_duration_seconds_bucket{le="10.0"} 3.0',
        'cmqd_commit_duration_seconds_bucket{le="+Inf"} 4.0',
        "cmqd_commit_duration_seconds_count 4.0",
        "cmqd_commit_duration_seconds_sum 20.000291",
        "cmqd_uptime_seconds 5.0",
        "cmqd_checkpoint_age_seconds 5.0",
        'cmqd_broker_info{version="0.1.0"} 1.0',
    ):
        assert line in text.splitlines()


def test_the_number_of_series_is_bounded_by_the_shown_queues() -> None:
    def count(queues: int) -> int:
        return sum(not line.startswith("#") for line in exposition(some_figures(queues)).decode().splitlines())

    of_one_queue = count(2) - count(1)

    assert of_one_queue == len(collector.QUEUE_TOTALS) + len(collector.STATES) + 4
    assert count(100) == count(1) + 99 * of_one_queue


@each_case("expression", list(expressions()))
def test_every_expression_of_the_dashboard_uses_exported_names(expression: str) -> None:
    assert names_in(expression)
    assert names_in(expression) <= exported()


def test_the_rules_use_exported_names() -> None:
    # A comment or a text may name no metric either.
    assert len(names_in(RULES.read_text(encoding="utf-8"))) > 8
    assert names_in(RULES.read_text(encoding="utf-8")) <= exported()


def test_there_is_a_rule_for_everything_that_must_wake_an_operator() -> None:
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8")))

    for subject in ("OldestMessage", "Disk", "DeadLettersGrow", "PushesFail", "LoopLag", "PromisedMemory"):
        assert any(subject in alert for alert in alerts), subject


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_dashboard_shows_consumers_and_backups() -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    shown = {name for expression in expressions for name in names_in(expression)}
    assert shown >= {"cmqd_queue_consumers", "cmqd_backup_age_seconds", "cmqd_backup_gaps_total"}


def promtool(*arguments: str, text: bytes | None = None) -> "subprocess.CompletedProcess[bytes]":
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], input=text, capture_output=True, check=False, timeout=60)


@pytest.mark.system
@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    result = promtool("check", "rules", str(RULES))

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.system
@needs_promtool
def test_promtool_accepts_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"dashboard:{number}", "expr": re.sub(r"\$__rate_interval", "5m", expression)}
        for number, expression in enumerate(expressions())
        if not expression.startswith("label_values")
    ]
    # JSON is YAML.
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")

    result = promtool("check", "rules", str(file))

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.system
@needs_promtool
def test_promtool_finds_no_fault_in_the_metrics() -> None:
    result = promtool("check", "metrics", text=exposition(some_figures()))

    assert result.returncode == 0, result.stdout + result.stderr
