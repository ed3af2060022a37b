"""``cmq bench`` against a server in this process, which can refuse and lose connections."""

import json
from pathlib import Path
from typing import Any

import pytest

from cmq_cli.bench import crews, objects
from cmq_cli.exitcodes import ExitCode
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.cmq_runs import Cmq, Ran, ThreadedServer

LONG = ("--duration", "10m", "--warm-up", "0", "--output", "json")
"""Runs end by their number of messages, not by time."""


def queues(cmq: Cmq) -> list[str]:
    return [queue["name"] for queue in cmq("queue", "list", "--output", "json").json["queues"]]


def report(ran: Ran) -> Any:
    assert ran.code == ExitCode.OK, ran.err
    return ran.json


@pytest.mark.parametrize(
    ("load", "messages", "complete"),
    [
        (("send", "--connections", "2", "--outstanding", "3"), 20, "sent"),
        (("send", "--rate", "500", "--queues", "3", "--connections", "1"), 20, "sent"),
        (("cycle", "--connections", "2", "--batch", "3", "--queues", "2"), 30, "deleted"),
        (("fanout", "--subscribers", "3", "--connections", "1"), 9, "deleted"),
        (("fanout", "--subscribers", "2", "--consumers", "0"), 10, "sent"),
    ],
)
def test_a_load_completes_its_messages_and_removes_its_queues(
    cmq_at: Cmq, load: tuple[str, ...], messages: int, complete: str
) -> None:
    result = report(cmq_at("bench", *load, "--messages", str(messages), *LONG))

    assert result["messages"] == result[complete] >= messages
    assert result["latency_ms"]["p50"] > 0
    assert (result["errors"], result["interrupted"], result["error"]) == ({}, False, None)
    assert result["server"]["durability"]
    assert queues(cmq_at) == ["orders"]
    assert cmq_at("topic", "list", "--output", "json").json["topics"] == []


@pytest.mark.parametrize("load", [("rate", "--rate", "500"), ("poll", "--rate", "500", "--connections", "20")])
def test_an_open_loop_measures_each_message_that_was_due(cmq_at: Cmq, load: tuple[str, ...], tmp_path: Path) -> None:
    table = tmp_path / "latency.hgrm"

    result = report(cmq_at("bench", *load, "--messages", "50", "--hgrm", str(table), *LONG))

    assert result["unanswered"] == 0
    assert "Total count    =           50]" in table.read_text()
    assert result["latency_of"] == "intended time of sending to receipt"
    assert result["generator"]["late_p99_ms"] >= 0


def test_a_queue_that_the_run_has_not_made_is_refused_and_left_alone(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", b"precious")

    ran = cmq_at("bench", "cycle", "--queue", "orders", "--messages", "5", *LONG)

    assert ran.code == ExitCode.USAGE
    assert "queue 'orders' exists, and this run has not made the queue; with --use-existing" in ran.json_error["text"]
    assert server.do(server.local.bodies, "orders") == [b"precious"]


def test_an_existing_queue_is_used_if_told_and_stays(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", b"of another program")

    result = report(cmq_at("bench", "cycle", "--queue", "orders", "--use-existing", "--messages", "8", *LONG))

    assert result["deleted"] >= 8
    assert queues(cmq_at) == ["orders"]
    assert b"of another program" not in server.do(server.local.bodies, "orders")


def test_a_missing_queue_of_the_user_is_made_and_removed(cmq_at: Cmq) -> None:
    report(cmq_at("bench", "send", "--queue", "mine", "--messages", "4", *LONG))

    assert queues(cmq_at) == ["orders"]


def test_queues_of_a_run_remove_themselves_if_the_run_is_killed(cmq_at: Cmq, server: ThreadedServer) -> None:
    report(cmq_at("bench", "send", "--messages", "2", *LONG))

    (created,) = server.local.link.of(wire.CreateQueue)
    assert created.attributes["auto_delete_after_ms"] == objects.UNUSED_SECONDS * 1000


def test_a_refusal_for_good_ends_the_run_with_the_code_of_the_error(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.local.link.refuse(wire.SendMessages, ErrorCode.QUEUE_NOT_FOUND)

    ran = cmq_at("bench", "send", "--connections", "1", "--duration", "10m", "--warm-up", "0")

    assert ran.code == ExitCode.NOT_FOUND
    assert queues(cmq_at) == ["orders"]


def test_lost_connections_are_opened_again_and_counted(
    cmq_at: Cmq, server: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crews, "FIRST_PAUSE", 0.001)
    server.local.link.drop_request(wire.SendMessages, 2)
    server.local.link.drop_request(wire.DeleteMessages)

    result = report(cmq_at("bench", "cycle", "--connections", "2", "--messages", "40", *LONG))

    assert result["errors"]["connection_lost"] == 3
    assert result["deleted"] >= 40


def test_the_first_lost_connection_ends_a_run_that_must_not_lose_any(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.local.link.drop_request(wire.SendMessages)

    ran = cmq_at("bench", "send", "--no-reconnect", *LONG)

    assert ran.code == ExitCode.UNREACHABLE
    assert json.loads(ran.err.splitlines()[-1])["text"].startswith("a connection was lost")
    assert ran.json["errors"] == {"connection_lost": 1}
    assert queues(cmq_at) == ["orders"]


def test_a_scenario_runs_its_loads_in_turn_and_makes_one_page(cmq_at: Cmq, tmp_path: Path) -> None:
    file, page = tmp_path / "load.toml", tmp_path / "page.html"
    file.write_text(
        """
        [defaults]
        warm-up = 0
        duration = "10m"
        messages = 10
        [[run]]
        load = "send"
        [[run]]
        name = "both ways"
        load = "cycle"
        """
    )

    ran = cmq_at("bench", "run", str(file), "--html", str(page), "--output", "json")

    assert [line["name"] for line in ran.lines] == ["send", "both ways"]
    assert "<h1>send</h1>" in page.read_text()
    assert "<h1>both ways</h1>" in page.read_text()


def test_a_report_that_cannot_be_written_is_named(cmq_at: Cmq, tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.symlink_to("/dev/full")

    ran = cmq_at("bench", "send", "--hgrm", str(table), "--messages", "3", *LONG)

    assert ran.code == ExitCode.FAILED
    assert json.loads(ran.err.splitlines()[-1])["text"] == f"{table}: No space left on device"
    assert ran.json["sent"] >= 3
    assert queues(cmq_at) == ["orders"]


def test_seconds_and_the_report_are_shown_to_people(cmq_at: Cmq) -> None:
    ran = cmq_at("bench", "send", "--messages", "3", "--duration", "10m", "--warm-up", "0")

    assert ran.err.startswith("send    0 s  sent ")
    assert "latency    request to reply" in ran.out
    assert "errors     none" in ran.out


def test_the_native_generator_is_refused_for_loads_that_it_does_not_do(cmq_at: Cmq) -> None:
    ran = cmq_at("bench", "poll", "--generator", "native")

    assert (ran.code, ran.err) == (
        ExitCode.USAGE,
        "cmq: --generator native does send, cycle, rate, not poll\n",
    )


def test_an_installation_has_no_native_generator(cmq_at: Cmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmq_cli.bench.native_runs.COMPILER", "cmqd_bench_that_is_missing")

    ran = cmq_at("bench", "send", "--generator", "native")

    assert ran.code == ExitCode.USAGE
    assert "part of a checkout of cmqd" in ran.err
