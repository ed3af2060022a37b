"""``cmq rewind``, ``dlq``, ``redrive``, ``tx``, and the related options of ``queue``, ``send`` and ``peek``."""

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cmq_cli.exitcodes import ExitCode
from cmq_cli.values import parse_moment
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.cmq_runs import Cmq, ThreadedServer


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31).astimezone()),
        ("1d", datetime(2026, 1, 30, tzinfo=UTC)),
        ("90", datetime(2026, 1, 30, 23, 58, 30, tzinfo=UTC)),
        ("99999d", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_are_read(text: str, moment: datetime) -> None:
    assert parse_moment(text, datetime(2026, 1, 31, tzinfo=UTC).timestamp()) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "-5m", "2026-13-01"])
def test_other_text_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_moment(text, 0)


# ---------------------------------------------------------------------- attributes


def test_attributes_of_the_model_are_set_and_shown(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.admin.create_queue, "dead")
    options = ["--rewind", "1d", "--dead-letter-queue", "dead", "--dead-letter-after", "10m", "--max-checks", "3"]
    created = cmq_at("queue", "create", "jobs", "--transactional", "--first-check", "2s", *options)

    assert created.code == 0, created.err
    assert server.local.link.of(wire.CreateQueue)[0].attributes == {
        "rewind_ms": 86_400_000,
        "dead_letter_queue": "dead",
        "dead_letter_after_ms": 600_000,
        "transactional": True,
        "first_check_ms": 2000,
        "max_checks": 3,
    }
    shown = cmq_at("queue", "info", "jobs").out
    assert "rewind              1 day\n" in shown
    assert "dead letters to     dead, after 10 minutes\n" in shown
    assert "transactional       yes\n" in shown
    assert "dead letters from   jobs\n" in cmq_at("queue", "info", "dead").out
    document = cmq_at("queue", "info", "dead", "--output", "json").json
    assert (document["dead_letter_sources"], document["half"], document["rewindable"]) == (["jobs"], 0, 0)
    assert cmq_at("queue", "delete", "dead", "--yes").code == ExitCode.FAILED


def test_a_queue_that_goes_when_it_is_unused_is_set_and_shown(cmq_at: Cmq, server: ThreadedServer) -> None:
    created = cmq_at("queue", "create", "replies", "--auto-delete-after", "5m", "--no-auto-delete-only-empty")

    assert created.code == 0, created.err
    assert server.local.link.of(wire.CreateQueue)[0].attributes == {
        "auto_delete_after_ms": 300_000,
        "auto_delete_only_empty": False,
    }
    shown = cmq_at("queue", "info", "replies").out
    assert "auto delete         after 5 minutes without use, with its messages\n" in shown
    changed = cmq_at("queue", "set", "replies", "--auto-delete-only-empty").out
    assert "auto delete         after 5 minutes without use, if it is empty\n" in changed
    assert "auto delete         never\n" in cmq_at("queue", "set", "replies", "--auto-delete-after", "0").out


def test_ensure_shows_the_differences(cmq_at: Cmq) -> None:
    arguments = ("queue", "create", "orders", "--ensure", "--rewind", "1h", "--transactional", "--max-delayed", "7")

    table = cmq_at(*arguments)
    assert table.code == ExitCode.FAILED
    assert [line.split() for line in table.out.splitlines()] == [
        ["attribute", "is", "wanted"],
        ["max", "delayed", "1000000", "7"],
        ["rewind", "0s", "1h"],
        ["transactional", "no", "yes"],
    ]
    assert "other attributes" in table.err
    assert cmq_at(*arguments, "--output", "json").json["difference"]["rewind"] == {"is": 0, "wanted": 3600}


# ---------------------------------------------------------------------- rewind


def _delete_some(cmq_at: Cmq, server: ThreadedServer, *bodies: bytes) -> None:
    assert cmq_at("queue", "set", "orders", "--rewind", "1h").code == 0
    server.do(server.local.put, "orders", *bodies)
    assert cmq_at("receive", "orders", "-n", "10", "--delete").code == 0


def test_a_queue_is_rewound(cmq_at: Cmq, server: ThreadedServer) -> None:
    _delete_some(cmq_at, server, b"a", b"b")

    ran = cmq_at("rewind", "orders", "10m")

    assert ran.code == 0
    assert ran.err.startswith("2 messages of 'orders' sent since ")
    (request,) = server.local.link.of(wire.RewindQueue)
    assert request.ago_ms == 600_000
    assert server.do(server.local.bodies, "orders") == [b"a", b"b"]


def test_rewinding_further_than_the_window_is_told(cmq_at: Cmq, server: ThreadedServer) -> None:
    _delete_some(cmq_at, server, b"a")

    everything = cmq_at("rewind", "orders", "all", "--output", "json")
    clamped = cmq_at("rewind", "orders", "2h")
    refused = cmq_at("rewind", "orders", "2h", "--strict")

    assert (everything.json["messages"], everything.json["clamped"]) == (1, True)
    assert "2h ago lies before the rewind window" in clamped.err
    assert refused.code == ExitCode.FAILED
    [line] = refused.err.splitlines()
    assert "its rewind window is 1 h; the nearest time is 2" in line
    assert "connection" not in refused.err, "its number is for --verbose"
    error = cmq_at("rewind", "orders", "2h", "--strict", "--output", "json").json_error
    assert error["error"] == "time_not_rewindable"
    assert error["details"]["nearest_ms"]
    assert cmq_at("rewind", "orders", "all", "--strict").code == ExitCode.USAGE
    assert cmq_at("rewind", "orders", "soon").code == ExitCode.USAGE
    assert cmq_at("rewind", "nowhere", "1h").code == ExitCode.NOT_FOUND


def test_a_rewind_is_previewed(cmq_at: Cmq, server: ThreadedServer) -> None:
    _delete_some(cmq_at, server, b"a", b"b")

    ran = cmq_at("rewind", "orders", "10m", "--preview")
    clamped = cmq_at("rewind", "orders", "2h", "--preview")
    everything = cmq_at("rewind", "orders", "all", "--preview", "--output", "json")

    assert ran.code == 0
    assert ran.err.startswith("2 messages of 'orders' sent since ")
    assert "would become active again; possible times: 2" in ran.err
    assert "2h ago lies before the rewind window" in clamped.err
    assert (everything.json["messages"], everything.json["clamped"]) == (2, False)
    assert everything.json["earliest"] == everything.json["time"] < everything.json["latest"]
    assert server.do(server.local.bodies, "orders") == []
    assert cmq_at("rewind", "orders", "10m", "--preview", "--strict").code == ExitCode.USAGE
    assert cmq_at("rewind", "orders", "2100-01-01T00:00Z", "--preview").code == ExitCode.FAILED


def test_queues_are_listed_by_a_figure(cmq_at: Cmq, server: ThreadedServer) -> None:
    assert cmq_at("queue", "create", "dead").code == 0
    options = ("--dead-letter-queue", "dead", "--dead-letter-max-receives", "3")
    assert cmq_at("queue", "create", "jobs", *options).code == 0
    server.do(server.local.put, "orders", b"a", b"b")

    table = cmq_at("queue", "list", "--sort", "active").out.splitlines()
    ascending = cmq_at("queue", "list", "--sort", "active", "--ascending", "--limit", "1", "--output", "json").json
    only = cmq_at("queue", "list", "--only", "dead_letter_queues", "--output", "json").json

    assert table[0].split()[:3] == ["name", "active", "in"]
    assert [line.split()[:2] for line in table[1:]] == [["orders", "2"], ["dead", "0"], ["jobs", "0"]]
    assert (ascending["total"], [queue["name"] for queue in ascending["queues"]]) == (3, ["dead"])
    [dead] = only["queues"]
    assert (dead["name"], dead["is_dead_letter_queue"], dead["oldest_message_time"]) == ("dead", True, None)
    assert cmq_at("queue", "list", "--ascending").code == ExitCode.USAGE
    assert cmq_at("queue", "list", "--sort", "size").code == ExitCode.USAGE


def test_without_a_window_there_is_no_rewind(cmq_at: Cmq) -> None:
    ran = cmq_at("rewind", "orders", "1m")
    assert ran.code == ExitCode.FAILED
    assert "nearest" not in ran.err


def test_rewindable_messages_can_be_looked_at(cmq_at: Cmq, server: ThreadedServer) -> None:
    _delete_some(cmq_at, server, b"gone")
    server.do(server.local.put, "orders", b"here")

    assert cmq_at("peek", "orders", "--raw").out == "here\n"
    assert cmq_at("peek", "orders", "--state", "rewindable", "--raw").out == "gone\n"
    both = cmq_at("peek", "orders", "--state", "rewindable", "--state", "active", "--output", "json").lines
    assert [one["state"] for one in both] == ["rewindable", "active"]
    assert cmq_at("peek", "orders", "--state", "asleep").code == ExitCode.USAGE


# ---------------------------------------------------------------------- dead letters


def test_a_dead_letter_queue_is_set_listed_and_unset(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.admin.create_queue, "dead")

    first = cmq_at("dlq", "set", "orders", "dead", "--max-receives", "3")
    second = cmq_at("dlq", "set", "orders", "dead", "--after", "10m", "--output", "json")

    assert (first.code, first.err) == (0, "messages of 'orders' go to 'dead' after 3 receives\n")
    assert second.json == {"queue": "orders", "dead_letter_queue": "dead", "max_receives": 0, "after": 600.0}
    assert cmq_at("dlq", "sources", "dead").out.split() == ["name", "orders"]
    assert cmq_at("dlq", "sources", "dead", "--output", "json").json["sources"] == ["orders"]
    assert cmq_at("dlq", "unset", "orders").code == 0
    assert cmq_at("dlq", "unset", "orders", "--output", "json").json == {"queue": "orders", "dead_letter_queue": ""}
    assert "no queue" in cmq_at("dlq", "sources", "dead").err
    assert cmq_at("dlq", "set", "orders", "dead").code == ExitCode.USAGE
    assert cmq_at("dlq", "set", "orders", "dead", "--after", "10m", "--max-receives", "1").code == ExitCode.USAGE


def _bury(server: ThreadedServer, *bodies: bytes) -> None:
    server.do(server.local.admin.create_queue, "dead")
    server.do(server.local.put, "orders", *bodies)
    server.do(server.local.bury, "orders", "dead", len(bodies))


def test_the_origin_of_a_dead_letter_is_shown(cmq_at: Cmq, server: ThreadedServer) -> None:
    _bury(server, b"a")

    assert "from orders · Msg-" in cmq_at("peek", "dead").out
    assert "moved after too many receives" in cmq_at("tail", "dead", "--from-start", "--max", "1").out
    origin = cmq_at("receive", "dead", "--output", "json").json["origin"]
    assert (origin["queue"], origin["receive_count"], origin["reason"]) == ("orders", 1, "receives")
    assert "origin" not in cmq_at("peek", "orders", "--output", "json").out


def test_a_redrive_is_waited_for(cmq_at: Cmq, server: ThreadedServer) -> None:
    _bury(server, b"a", b"b")
    server.do(server.local.hold_moves)
    server.when(lambda: server.local.link.of(wire.GetRedrive), server.local.let_moves_go)

    ran = cmq_at("redrive", "dead", "--rate", "100", "--output", "json")

    assert ran.code == 0
    assert (ran.json["moved"], ran.json["remaining"], ran.json["reason"]) == (2, 0, "done")
    assert ran.json["max_per_second"] == 100
    assert server.do(server.local.bodies, "orders") == [b"a", b"b"]


def test_a_redrive_is_started_looked_at_and_cancelled(cmq_at: Cmq, server: ThreadedServer) -> None:
    _bury(server, b"a")
    server.do(server.local.admin.create_queue, "other")
    server.do(server.local.hold_moves)

    started = cmq_at("redrive", "dead", "--to", "other", "--no-wait")
    status = cmq_at("redrive", "dead", "--status")
    again = cmq_at("redrive", "dead")
    cancelled = cmq_at("redrive", "dead", "--cancel", "--output", "json")

    assert started.code == 0
    assert "state      under way, disk nearly full\n" in status.out
    assert "target     other\n" in status.out
    assert again.code == ExitCode.FAILED
    assert cancelled.json["reason"] == "cancelled"
    assert cmq_at("redrive", "dead", "--status", "--cancel").code == ExitCode.USAGE
    assert cmq_at("redrive", "dead", "--status", "--rate", "1").code == ExitCode.USAGE
    assert cmq_at("redrive", "orders", "--status").code == ExitCode.FAILED


def test_dead_letters_whose_origin_is_gone_are_told(cmq_at: Cmq, server: ThreadedServer) -> None:
    _bury(server, b"a")
    server.do(server.local.put, "dead", b"sent here")
    server.do(server.local.admin.delete_queue, "orders")

    ran = cmq_at("redrive", "dead")

    assert ran.code == ExitCode.PARTIAL
    assert "not moved, from orders       1\n" in ran.out
    assert "not moved, from (no origin)  1\n" in ran.out


@pytest.mark.system
def test_a_redrive_goes_on_when_it_is_waited_for_no_longer(server: ThreadedServer, tmp_path: Path) -> None:
    _bury(server, b"a")
    server.do(server.local.hold_moves)
    environment = os.environ | {"CMQ_URL": server.local.url, "XDG_CONFIG_HOME": str(tmp_path)}
    running = subprocess.Popen(
        [sys.executable, "-m", "cmq_cli", "redrive", "dead"], env=environment, stderr=subprocess.PIPE
    )
    while not server.local.link.of(wire.GetRedrive):
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(2)
    _, errors = running.communicate()

    assert running.returncode == ExitCode.INTERRUPTED
    assert b"the redrive continues; show it with: cmq redrive dead --status" in errors
    assert server.do(server.local.admin.queue("dead").redrive_status).running


def test_a_cancelled_redrive_is_no_success(cmq_at: Cmq, server: ThreadedServer) -> None:
    _bury(server, b"a")
    server.do(server.local.hold_moves)

    server.when(
        lambda: server.local.link.of(wire.GetRedrive), lambda: server.local.admin.queue("dead").cancel_redrive()
    )

    assert cmq_at("redrive", "dead").code == ExitCode.FAILED


# ---------------------------------------------------------------------- transactions


def _halves(server: ThreadedServer, count: int) -> list[str]:
    queue = server.do(server.local.admin.create_queue, "tx", transactional=True)
    sizes = [min(256, count - start) for start in range(0, count, 256)]
    return [name for size in sizes for name in server.do(queue.send_half_batch, [b"x"] * size).ids]


def test_half_messages_are_listed_and_decided(cmq_at: Cmq, server: ThreadedServer) -> None:
    ids = _halves(server, 4)

    table = cmq_at("tx", "list", "tx").out.splitlines()
    assert table[0].split() == ["id", "age", "checks", "last", "check", "last", "answer", "next", "check"]
    assert [line.split()[0] for line in table[1:]] == ids
    document = cmq_at("tx", "list", "tx", "-n", "3", "--output", "json").json
    assert (len(document["messages"]), document["next_start"]) == (3, 3)
    assert "--start 3" in cmq_at("tx", "list", "tx", "-n", "3").err

    assert cmq_at("tx", "commit", "tx", ids[0]).err == "1 committed\n"
    partly = cmq_at("tx", "rollback", "tx", ids[0], ids[1], "--output", "json")
    assert partly.code == ExitCode.PARTIAL
    assert partly.json == {"rolled_back": [ids[1]], "failed": {ids[0]: "already_committed"}}
    assert cmq_at("tx", "rollback", "tx", ids[0]).code == ExitCode.FAILED
    assert cmq_at("tx", "commit", "tx", "--all", "--yes").err == "2 committed\n"
    assert cmq_at("tx", "list", "tx").err == "no undecided half message in 'tx'\n"
    assert server.do(server.local.info, "tx").active == 3


def test_the_age_of_half_messages_is_by_the_servers_clock(cmq_at: Cmq, server: ThreadedServer) -> None:
    _halves(server, 1)
    server.do(server.local.advance, 2 * 86_400)

    (_, row) = cmq_at("tx", "list", "tx").out.splitlines()

    assert row.split()[1:3] == ["2", "days"]


def test_many_half_messages_are_decided_at_once(cmq_at: Cmq, server: ThreadedServer) -> None:
    _halves(server, 1500)
    assert cmq_at("tx", "rollback", "tx", "--all", "--yes", "--output", "json").code == 0
    assert server.do(server.local.info, "tx").half == 0


def test_wrong_use_of_tx_is_told(cmq_at: Cmq, server: ThreadedServer) -> None:
    _halves(server, 1)
    assert cmq_at("tx", "commit", "tx").code == ExitCode.USAGE
    assert cmq_at("tx", "commit", "tx", "--all", "Msg-0000000000000001").code == ExitCode.USAGE
    assert cmq_at("tx", "commit", "tx", "seven").code == ExitCode.USAGE
    assert cmq_at("tx", "list", "tx", "-n", "0").code == ExitCode.USAGE
    assert cmq_at("tx", "list", "orders").code == ExitCode.FAILED
    assert cmq_at("tx", "list", "nowhere").code == ExitCode.NOT_FOUND


# ---------------------------------------------------------------------- dedup ids


def test_a_message_with_a_dedup_id_is_stored_once(cmq_at: Cmq, server: ThreadedServer) -> None:
    first = cmq_at("send", "orders", "x", "--dedup-id", "order-7")
    second = cmq_at("send", "orders", "x", "--dedup-id", "order-7")

    assert first.out == second.out
    assert server.do(server.local.bodies, "orders") == [b"x"]
    assert cmq_at("send", "orders", "--stdin", "--dedup-id", "a", stdin=b"x\n").code == ExitCode.USAGE


def test_a_refusal_has_its_exit_code(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.link.refuse, wire.StartRedrive, ErrorCode.PERMISSION_DENIED)
    assert cmq_at("redrive", "orders").code == ExitCode.REFUSED
