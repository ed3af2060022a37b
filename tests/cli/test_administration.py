"""``cmq queue``, ``account``, ``context``, ``status``; where the server is found, how runs end."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

import cmq_cli.app
from cmq_cli.exitcodes import ExitCode
from cmq_cli.output import Output, OutputForm
from cmq_cli.values import parse_duration, show_duration, typed_duration
from cmqd_client.address import parse_address
from cmqd_client.client_names import default_name
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.cmq_runs import Cmq, ThreadedServer


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1.5", 1.5),
        ("30", 30),
        ("250ms", 0.25),
        ("5m", 300),
        ("12h", 43_200),
        ("4d", 345_600),
        ("0.1h", 360),
        (".5s", 0.5),
        (" 2 M ", 120),
        ("0", 0),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "-1", "1w", "1m30s", "1e3", "inf", "nan", "٣"])
def test_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(345_600, "4d"), (43_200, "12h"), (90, "90s"), (0.2, "200ms"), (0, "0s"), (60, "1m")]
)
def test_durations_are_shown_as_they_would_be_typed(seconds: float, text: str) -> None:
    assert typed_duration(seconds) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (345_600, "4 days"),
        (86_400, "1 day"),
        (5_400, "1 hour 30 minutes"),
        (61, "1 minute 1 second"),
        (1.5, "1.5 seconds"),
        (0.2, "200 ms"),
        (0, "0 seconds"),
        (90_000_000, "1,041 days 16 hours"),
    ],
)
def test_durations_are_shown_in_words(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


# ---------------------------------------------------------------------- queues


def test_a_queue_is_made_shown_changed_and_deleted(cmq_at: Cmq, server: ThreadedServer) -> None:
    created = cmq_at("queue", "create", "jobs", "--visibility-timeout", "2m", "--retention", "1d", "--max-delayed", "7")
    assert (created.code, created.out, created.err) == (0, "", "queue 'jobs' created\n")
    (request,) = server.local.link.of(wire.CreateQueue)
    assert request.attributes == {"visibility_timeout_ms": 120_000, "retention_ms": 86_400_000, "max_delayed": 7}

    shown = cmq_at("queue", "info", "jobs")
    assert "visibility timeout  2 minutes\n" in shown.out
    assert "retention           1 day\n" in shown.out

    changed = cmq_at("queue", "set", "jobs", "--delay", "250ms", "--output", "json")
    assert (changed.json["delay"], changed.json["visibility_timeout"], changed.json["active"]) == (0.25, 120, 0)

    assert cmq_at("queue", "delete", "jobs", "--yes").err == "queue 'jobs' deleted\n"
    assert cmq_at("queue", "info", "jobs").code == ExitCode.NOT_FOUND


def test_a_size_takes_a_unit(cmq_at: Cmq) -> None:
    assert cmq_at("queue", "create", "jobs", "--max-message-bytes", "1MiB").code == 0
    assert cmq_at("topic", "create", "shop", "--max-message-bytes", "2kib").code == 0
    assert cmq_at("topic", "set", "shop", "--max-message-bytes", "4096").code == 0
    assert json.loads(cmq_at("queue", "info", "jobs", "--output", "json").out)["max_message_bytes"] == 1_048_576
    assert json.loads(cmq_at("topic", "info", "shop", "--output", "json").out)["max_message_bytes"] == 4096

    refused = cmq_at("queue", "set", "jobs", "--max-message-bytes", "1.5 parsecs")
    assert refused.code == ExitCode.USAGE
    assert "write bytes (65536), or a number with a unit: B, KiB" in " ".join(refused.err.split())


def test_an_existing_name_is_refused_or_accepted(cmq_at: Cmq) -> None:
    assert cmq_at("queue", "create", "orders").code == ExitCode.FAILED
    assert cmq_at("queue", "create", "orders", "--ensure").err == "queue 'orders' exists with the same attributes\n"
    assert cmq_at("queue", "create", "new", "--ensure", "--output", "json").json["created"] is True
    assert cmq_at("queue", "create", "orders", "--ensure", "--delay", "1s").code == ExitCode.FAILED


def test_queues_are_listed_with_their_counts(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.admin.create_queue, "mail")
    server.do(server.local.put, "orders", b"a", b"b")

    table = cmq_at("queue", "list").out.splitlines()
    assert table[0].split() == ["name", "active", "in", "flight", "delayed", "oldest", "message"]
    assert table[1].split() == ["mail", "0", "0", "0", "-"]
    assert table[2].split()[:2] == ["orders", "2"]

    found = cmq_at("queue", "list", "--search", "ord", "--output", "json").json
    assert found["total"] == 1
    assert found["queues"][0]["active"] == 2
    assert cmq_at("queue", "list", "--no-counts", "--output", "json").json["queues"] == [
        {"name": "mail"},
        {"name": "orders"},
    ]
    assert "1 of 2" in cmq_at("queue", "list", "--limit", "1").err


def test_of_several_deletes_some_may_fail(cmq_at: Cmq) -> None:
    ran = cmq_at("queue", "delete", "orders", "nowhere", "--yes", "--output", "json")
    assert ran.code == ExitCode.PARTIAL
    assert ran.json == {"deleted": ["orders"], "failed": {"nowhere": "queue_not_found"}}
    assert cmq_at("queue", "delete", "nowhere", "--yes").code == ExitCode.NOT_FOUND


@pytest.mark.parametrize("command", ["delete", "clear"])
def test_without_a_terminal_nothing_is_destroyed_unasked(cmq_at: Cmq, server: ThreadedServer, command: str) -> None:
    server.do(server.local.put, "orders", b"a", b"b")

    ran = cmq_at("queue", command, "orders")

    assert ran.code == ExitCode.USAGE
    assert "2 messages" in ran.err
    assert "--yes" in ran.err
    assert server.do(server.local.info, "orders").active == 2


@pytest.mark.parametrize(
    ("command", "question"),
    [("delete", "Delete orders with 2 messages? [y/N]"), ("clear", "Drop all 2 messages of orders? [y/N]")],
)
@pytest.mark.parametrize(("answer", "is_done"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_person_is_asked_with_the_count(
    no_server: Path,
    server: ThreadedServer,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    question: str,
    answer: str,
    is_done: bool,
) -> None:
    server.do(server.local.put, "orders", b"a", b"b")
    monkeypatch.setenv("CMQ_URL", server.local.url)
    asked: list[str] = []
    monkeypatch.setattr(Output, "can_ask", True)

    async def read_answer(_: Output, text: str) -> bytes:
        asked.append(text)
        return answer.encode()

    monkeypatch.setattr(Output, "read_answer", read_answer)

    code = cmq_cli.app.run(["queue", command, "orders"])

    assert asked == [f"{question} "]
    assert code == (ExitCode.OK if is_done else ExitCode.FAILED)
    left = server.do(server.local.admin.queues)
    assert ("orders" not in left.names or server.do(server.local.info, "orders").active == 0) == is_done


def test_a_table_never_cuts_a_number(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(OutputForm.TABLE)
    monkeypatch.setattr(output, "_out", Console(file=sys.stdout, width=50, highlight=False))

    output.table(
        ("name", "active#", "in flight#", "oldest message"),
        [("a-queue-with-a-name-of-forty-characters-1", "1,461,173", "100,000,000", "2026-01-31 12:00:00")],
    )

    shown = capsys.readouterr().out
    assert "1,461,173" in shown
    assert "100,000,000" in shown
    assert "…" not in shown
    names = [line[:12].strip() for line in shown.splitlines()]
    assert "".join(names).removeprefix("name") == "a-queue-with-a-name-of-forty-characters-1"


def test_a_table_that_does_not_fit_is_printed_as_names_and_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(OutputForm.TABLE)
    monkeypatch.setattr(output, "_out", Console(file=sys.stdout, width=41, highlight=False))

    columns = ("name", "active#", "in flight#", "oldest message")
    output.table(columns, [("a", "1,461,173", "100,000,000", "2026-01-31 12:00:00"), ("b", "1", "0", "-")])

    assert capsys.readouterr().out.splitlines() == [
        "name            a",
        "active          1,461,173",
        "in flight       100,000,000",
        "oldest message  2026-01-31 12:00:00",
        "",
        "name            b",
        "active          1",
        "in flight       0",
        "oldest message  -",
    ]
    output.table(columns, [])
    assert capsys.readouterr().out.split() == ["name", "active", "in", "flight", "oldest", "message"]


@pytest.mark.parametrize(
    ("sort", "left_out"), [("active", "half, waiting receives"), ("waiting_receives", "half, dead lettered")]
)
def test_a_sorted_list_of_queues_is_a_table_in_80_columns(
    cmq_at: Cmq, monkeypatch: pytest.MonkeyPatch, sort: str, left_out: str
) -> None:
    monkeypatch.setenv("TERM", "dumb")  # of 80 columns, without colours
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    ran = cmq_at("queue", "list", "--sort", sort)

    head, row = ran.out.splitlines()
    assert (head.split()[:2], row.split()[:2]) == (["name", "active"], ["orders", "0"])
    assert sort.replace("_", " ") in head
    assert f"without {left_out}, for which the terminal is too narrow" in " ".join(ran.err.split())


def test_the_ids_of_keys_are_whole_in_80_columns(cmq_at: Cmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")  # of 80 columns, without colours
    ids = [key["secret_id"] for key in json.loads(cmq_at("--output", "json", "key", "list").out)]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    ran = cmq_at("key", "list")

    assert ids
    assert [secret_id for secret_id in ids if secret_id not in ran.out] == []


def test_a_queue_is_cleared(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", b"a")
    assert cmq_at("queue", "clear", "orders", "--yes").code == 0
    assert server.do(server.local.info, "orders").active == 0


def test_a_value_out_of_range_is_told_by_the_server(cmq_at: Cmq) -> None:
    ran = cmq_at("queue", "set", "orders", "--visibility-timeout", "13h")
    assert ran.code == ExitCode.FAILED
    assert ran.err == "cmq: --visibility-timeout is 13 h; the range is 1 s to 12 h\n"
    assert cmq_at("queue", "set", "orders").code == ExitCode.USAGE


# ---------------------------------------------------------------------- accounts, status


def test_accounts_and_keys_are_managed(cmq_at: Cmq) -> None:
    created = cmq_at("account", "create", "kitchen", "--output", "json").json
    assert created["account"] == "kitchen"
    assert created["secret_key"]
    assert [one["name"] for one in cmq_at("account", "list", "--output", "json").json] == ["admin", "kitchen"]
    assert "secret key" in cmq_at("key", "create", "--account", "kitchen").out

    keys = cmq_at("key", "list", "--account", "kitchen", "--output", "json").json
    assert len(keys) == 2
    assert all("secret_key" not in key for key in keys)
    secret_id = created["secret_id"]
    assert cmq_at("key", "disable", secret_id, "--account", "kitchen").code == 0
    assert [line.split()[2] for line in cmq_at("key", "list", "--account", "kitchen").out.splitlines()] == [
        "account",
        "no",
        "yes",
    ]
    assert cmq_at("key", "enable", secret_id, "--account", "kitchen").code == 0
    deleted = cmq_at("key", "delete", secret_id, "--account", "kitchen", "--output", "json")
    assert deleted.json == {"deleted": secret_id}
    assert cmq_at("key", "delete", secret_id, "--account", "kitchen").code == ExitCode.NOT_FOUND
    assert cmq_at("key", "list", "--account", "nobody").code == ExitCode.NOT_FOUND
    assert cmq_at("account", "delete", "kitchen", "--output", "json").json == {"deleted": "kitchen"}
    assert cmq_at("account", "delete", "kitchen").code == ExitCode.NOT_FOUND


def test_keys_have_roles_and_names(cmq_at: Cmq, tmp_path: Path) -> None:
    created = cmq_at("key", "create", "--role", "consume", "--queues", "orders-*", "--output", "json").json
    assert (created["roles"], created["names"]) == (["consume"], ["orders-*"])
    secret_id = created["secret_id"]

    assert cmq_at("key", "set", secret_id, "--role", "send", "--role", "read").code == 0
    listed = {key["secret_id"]: key for key in cmq_at("key", "list", "--output", "json").json}
    assert (listed[secret_id]["roles"], listed[secret_id]["names"]) == (["send", "read"], ["orders-*"])
    own = cmq_at("key", "show", "--output", "json").json
    assert (own["account"], own["roles"][0], own["names"], own["is_admin"]) == ("admin", "admin", ["*"], True)
    assert own["secret_id"] in cmq_at("key", "show").out
    assert cmq_at("key", "set", secret_id, "--names", "*").code == 0
    table = cmq_at("key", "list").out
    assert "send, read" in table
    assert "orders-*" not in table
    assert cmq_at("key", "set", secret_id).code == ExitCode.USAGE
    assert cmq_at("key", "set", "AKIDabsent", "--role", "send").code == ExitCode.NOT_FOUND
    assert "not a role" in cmq_at("key", "create", "--role", "root").err


def test_connections_and_waiting_receives_are_listed(cmq_at: Cmq, server: ThreadedServer) -> None:
    page = cmq_at("connection", "list", "--sort", "bytes_in", "--descending", "--output", "json").json
    products = {connection["product"] for connection in page["connections"]}
    assert (page["total"], "cmq" in products) == (len(page["connections"]), True)
    first = cmq_at("connection", "list", "--limit", "1", "--search", "cmq").out
    assert all(word in first for word in ("peer", "127.0.0.1", "unread bytes"))
    assert cmq_at("connection", "list", "--sort", "colour").code == ExitCode.USAGE

    async def begin_receive() -> asyncio.Task[Any]:
        admin = server.local.admin
        await admin.create_queue("jobs")
        task = asyncio.create_task(admin.queue("jobs").receive(wait=30))
        while not (await admin.waiting_receives()).receives:
            assert not task.done()
        return task

    waiting = server.do(begin_receive)
    page = cmq_at("connection", "waiting", "--search", "jobs", "--output", "json").json
    [receive] = page["receives"]
    assert (receive["queue"], receive["account"], page["total"]) == ("jobs", "admin", 1)
    shown = cmq_at("connection", "waiting", "--connection", str(receive["connection_id"])).out
    assert "jobs" in shown
    page = cmq_at("consumer", "list", "--queue", "jobs", "--output", "json").json
    [consumer] = page["consumers"]
    assert (consumer["queue"], consumer["waiting"], consumer["received"], page["total"]) == ("jobs", 1, 0, 1)
    assert consumer["name"] == default_name()
    shown = cmq_at("consumer", "list", "--search", "JOBS").out
    assert all(word in shown for word in ("jobs", "in flight", "last receive", "failed"))

    async def end() -> None:
        waiting.cancel()
        await asyncio.wait([waiting])

    server.do(end)


def test_settings_are_shown_with_their_origins(cmq_at: Cmq) -> None:
    settings = {setting["name"]: setting for setting in cmq_at("status", "--settings", "--output", "json").json}
    assert (settings["heartbeat_ms"]["value"], settings["data"]["origin"]) == (30_000, "program")
    table = cmq_at("status", "--settings").out
    assert "30 seconds" in table
    assert "max_connections" in table


def test_the_audit_trail_is_listed_newest_first_and_searched(cmq_at: Cmq) -> None:
    cmq_at("queue", "create", "audited", "--delay", "5s")
    cmq_at("queue", "delete", "audited", "--yes")
    own = cmq_at("key", "show", "--output", "json").json["secret_id"]

    found = cmq_at("audit", "list", "audited", "--output", "json").json
    table = cmq_at("audit", "list", "AUDITED", "--since", "1h").out.splitlines()
    first = cmq_at("audit", "list", "audited", "--limit", "1")

    assert [(entry["operation"], entry["name"], entry["secret_id"]) for entry in found] == [
        ("delete_queue", "audited", own),
        ("create_queue", "audited", own),
    ]
    assert found[1]["changes"] == "delay_ms=5000"
    assert table[0].split() == ["time", "operation", "name", "changes", "account", "secret", "id", "peer"]
    assert "delete_queue" in table[1]
    assert "delay_ms=5000" in table[2]
    assert "create_queue" not in first.out
    assert first.err == "there are older entries; --limit 10 shows more\n"
    assert cmq_at("audit", "list", "audited", "--operation", "create_queue", "--output", "json").json == found[1:]
    assert cmq_at("audit", "list", "audited", "--until", "1h", "--output", "json").json == []


def test_a_key_pair_is_imported_from_a_file_of_its_owner(cmq_at: Cmq, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("AKIDold:kept-by-a-program-0123456789\n")
    file.chmod(0o644)
    refused = cmq_at("key", "import", str(file))
    assert (refused.code, "chmod 600" in refused.err) == (ExitCode.REFUSED, True)
    file.chmod(0o600)

    ran = cmq_at("key", "import", str(file), "--role", "send", "--queues", "orders")

    assert (ran.code, "AKIDold imported" in ran.out + ran.err) == (0, True)
    assert "kept-by-a-program" not in ran.out + ran.err
    [key] = [key for key in cmq_at("key", "list", "--output", "json").json if key["secret_id"] == "AKIDold"]
    assert (key["roles"], key["names"]) == (["send"], ["orders"])
    file.write_text("AKIDold:another-secret-0123456789\n")
    assert "exists already" in cmq_at("key", "import", str(file)).err


def test_the_former_words_for_keys_work_with_a_warning(cmq_at: Cmq) -> None:
    made = cmq_at("account", "key", "create", "--output", "json")
    secret_id = made.json["secret_id"]
    runs = {
        "create": made,
        "list": cmq_at("account", "key", "list", "--output", "json"),
        "disable": cmq_at("account", "key", "disable", secret_id, "--output", "json"),
        "enable": cmq_at("account", "key", "enable", secret_id),
        "delete": cmq_at("account", "key", "delete", secret_id, "--account", "admin"),
    }

    assert {word: run.code for word, run in runs.items()} == dict.fromkeys(runs, 0)
    for word, run in runs.items():
        assert f"cmq account key {word} is cmq key {word} now" in run.err
    assert secret_id in [key["secret_id"] for key in runs["list"].json]
    assert runs["disable"].json == {"secret_id": secret_id, "enabled": False}
    assert secret_id not in [key["secret_id"] for key in cmq_at("key", "list", "--output", "json").json]
    assert "key" not in [
        line.split()[1] for line in cmq_at("account", "--help").out.splitlines() if " " in line.strip()
    ]


def test_the_queues_of_all_accounts_are_listed(cmq_at: Cmq) -> None:
    cmq_at("queue", "create", "jobs-of-all")

    listed = cmq_at("account", "queues", "jobs-of", "--output", "json").json
    assert listed == [{"account": "admin", "queue": "jobs-of-all"}]
    assert cmq_at("account", "queues", "jobs-of").out.splitlines()[-1].split() == ["admin", "jobs-of-all"]


def test_a_request_that_is_not_permitted_has_its_exit_code(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.link.refuse, wire.CreateAccount, ErrorCode.PERMISSION_DENIED, "only admin may")
    assert cmq_at("account", "create", "x").code == ExitCode.REFUSED


def test_the_status_is_shown_in_sections_and_words(server: ThreadedServer, cmq_at: Cmq) -> None:
    status: dict[str, Any] = {
        "uptime_ms": 93_784_000,
        "time_ms": 1_769_860_800_000,
        "broker_time_ms": 1_769_864_400_000,
        "clock_offset_ms": -3_600_000,
        "connections": 1_200,
        "log_bytes": 1_610_612_736,
        "sends_refused": True,
        "sends_refused_reason": "the disk is nearly full",
        "counters": {"sent": 1_461_173},
        "a_newer_field": "kept",
    }
    server.local.link.answer(
        wire.GetServerStatus, lambda _, request: wire.ServerStatus(request.request_id, {"version": "0.1.0"} | status)
    )

    ran = cmq_at("status")

    shown = [line.strip() for line in ran.out.splitlines()]
    assert [line for line in shown if line in ("Server", "Clients", "Storage", "Totals since the start")] == [
        "Server",
        "Clients",
        "Storage",
        "Totals since the start",
    ]
    facts = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in shown if "  " in line}
    assert facts["uptime"] == "1 day 2 hours 3 minutes 4 seconds"
    assert facts["time"] == "2026-01-31 12:00:00"
    assert facts["broker time"] == "2026-01-31 13:00:00"
    assert facts["clock offset"] == "-1 hour"
    assert facts["connections"] == "1,200"
    assert facts["log"] == "1.5 GiB"
    assert facts["sent"] == "1,461,173"
    assert facts["a newer field"] == "kept"
    assert "sends are refused: the disk is nearly full" in ran.err
    assert "the wall clock of the server is behind broker time" in ran.err


def test_the_status_of_a_pair_shows_its_standbys_and_a_wait_for_the_engine(server: ThreadedServer, cmq_at: Cmq) -> None:
    replication: dict[str, Any] = {
        "epoch": 7,
        "waiting_for": "a named standby",
        "waiting_ms": 4_000,
        "standbys": [{"address": "second:5680", "last_lsn": 9, "rows_behind": 1_200}],
        "copies": [],
    }
    status = {"version": "0.1.0", "replication": replication}
    server.local.link.answer(wire.GetServerStatus, lambda _, request: wire.ServerStatus(request.request_id, status))

    ran = cmq_at("status")

    assert "Replication" in ran.out
    assert "address second:5680, last lsn 9, rows behind 1,200" in ran.out
    assert "none" in ran.out
    assert "the broker has waited 4 s for a named standby" in ran.err


def test_the_status_lists_backups_and_warns_of_a_copy_that_is_too_old(server: ThreadedServer, cmq_at: Cmq) -> None:
    pins = [
        {"name": "hourly", "copied_lsn": 4, "copied_age_ms": 720_000, "every_ms": 60_000, "gaps_total": 0},
        {"name": "new", "copied_lsn": None, "copied_age_ms": 0, "every_ms": 60_000, "gaps_total": 0},
    ]
    status = {"version": "0.1.0", "pins": 1, "standing_pins": pins}
    server.local.link.answer(wire.GetServerStatus, lambda _, request: wire.ServerStatus(request.request_id, status))

    ran = cmq_at("status")

    assert "the last good copy of backup hourly is 12 minutes old" in ran.err
    assert "backup new" not in ran.err
    assert "name hourly, copied lsn 4, copied age 12 minutes, every 1 minute" in " ".join(ran.out.split())


def test_the_status_is_the_servers_own_document_as_json(cmq_at: Cmq, server: ThreadedServer) -> None:
    document = {"version": "0.1.0", "durability": "none", "queues": 1}
    server.local.link.answer(wire.GetServerStatus, lambda _, request: wire.ServerStatus(request.request_id, document))

    assert cmq_at("status", "--output", "json").json == document


# ---------------------------------------------------------------------- contexts


def test_contexts_are_kept_in_a_private_file(cmq: Cmq, no_server: Path) -> None:
    assert cmq("context", "add", "kitchen", "cmq://AKIDa:secret-a@localhost").code == 0
    assert cmq("context", "add", "bar", stdin=b"cmq://AKIDb:secret-b@localhost:99/?tls=1\n").code == 0

    path = no_server / "cmq" / "contexts.toml"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    listed = cmq("context", "list", "--output", "json")
    assert listed.json == [
        {"name": "bar", "url": "cmq://AKIDb:***@localhost:99/?tls=1", "current": False},
        {"name": "kitchen", "url": "cmq://AKIDa:***@localhost:5680", "current": True},
    ]
    assert cmq("context", "use", "bar").code == 0
    assert "secret-b" not in cmq("context", "show").out
    assert cmq("context", "show", "--secret", "--output", "json").json["url"].startswith("cmq://AKIDb:secret-b@")
    assert cmq("context", "remove", "bar").code == 0
    assert cmq("context", "show").code == ExitCode.NOT_FOUND
    assert cmq("context", "show", "bar").code == ExitCode.NOT_FOUND
    assert cmq("context", "list").out.splitlines()[1].split() == ["kitchen", "cmq://AKIDa:***@localhost:5680"]


def test_a_wrong_context_changes_nothing(cmq: Cmq, no_server: Path) -> None:
    assert cmq("context", "add", "a b", "cmq://a:b@h").code == ExitCode.USAGE
    assert cmq("context", "add", "x", "http://a:b@h").code == ExitCode.USAGE
    assert cmq("context", "use", "x").code == ExitCode.NOT_FOUND
    assert not no_server.exists()


def test_the_servers_own_file_can_be_used_and_taken_over(
    cmq: Cmq, server: ThreadedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "admin.context.toml"
    given.write_text(f'current = "admin"\n\n[contexts.admin]\nurl = "{server.local.url}"\n')
    given.chmod(0o600)

    assert cmq("status", "--context-file", str(given)).code == 0
    assert cmq("--context-file", str(given), "queue", "list").code == 0
    assert cmq("context", "add", "mine", "--from", str(given)).code == 0
    assert cmq("status").code == 0
    assert cmq("status", "--context", "mine").code == 0
    assert cmq("status", "--context", "other").code == ExitCode.NOT_FOUND
    monkeypatch.setenv("CMQ_CONTEXT_FILE", str(given))
    assert cmq("status", "--context", "admin").code == 0
    assert cmq("status", "--context-file", str(tmp_path / "missing")).code == ExitCode.NOT_FOUND


def test_a_file_that_others_can_read_is_warned_about(cmq: Cmq, server: ThreadedServer, tmp_path: Path) -> None:
    given = tmp_path / "open.toml"
    given.write_text(f'current = "a"\n[contexts.a]\nurl = "{server.local.url}"\n')
    given.chmod(0o644)
    ran = cmq("status", "--context-file", str(given))
    assert ran.code == 0
    assert "other users can read it" in ran.err


@pytest.mark.parametrize("content", ["nonsense", "contexts = 1", "[contexts.a]\nuri = 1", "current = 5"])
def test_a_file_of_another_kind_is_refused(cmq: Cmq, tmp_path: Path, content: str) -> None:
    given = tmp_path / "wrong.toml"
    given.write_text(content)
    assert cmq("status", "--context-file", str(given)).code == ExitCode.USAGE


# ---------------------------------------------------------------------- finding the server, ending


def test_the_url_goes_before_everything_else(cmq: Cmq, server: ThreadedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMQ_URL", "cmq://a:b@127.0.0.1:1")
    assert cmq("status", "--url", server.local.url).code == 0


def test_without_any_server_it_says_what_to_do(cmq: Cmq) -> None:
    ran = cmq("status")
    assert ran.code == ExitCode.NOT_FOUND
    assert "CMQ_URL" in ran.err
    assert "cmq context add" in ran.err


def test_a_server_that_is_not_there_is_unreachable(cmq: Cmq) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"cmq://a:b@127.0.0.1:{free.getsockname()[1]}"
        ran = cmq("status", "--url", url, "--timeout", "200ms")
    assert ran.code == ExitCode.UNREACHABLE
    assert "connection refused" in ran.err


def test_a_wrong_key_is_refused_and_never_shown(cmq: Cmq, server: ThreadedServer) -> None:
    address = parse_address(server.local.url)
    ran = cmq("status", "--url", msgspec.structs.replace(address, secret_key="other-" + address.secret_key).url())
    assert ran.code == ExitCode.REFUSED
    assert address.secret_key not in ran.err
    assert cmq("status", "--url", server.local.url + "/?region=mars").code == ExitCode.REFUSED
    wrong = cmq("status", "--url", "cmq://a:very-secret@h/path")
    assert wrong.code == ExitCode.USAGE
    assert "very-secret" not in wrong.err


def test_errors_are_json_where_the_output_is(cmq_at: Cmq, server: ThreadedServer) -> None:
    ran = cmq_at("queue", "info", "nowhere", "--output", "json")
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    error = json.loads(ran.err)
    assert (error["error"], error["retryable"]) == ("queue_not_found", False)
    assert "request" not in error["text"]
    assert "request_id" not in error

    wrong = cmq_at("queue", "infos", "--output=json")
    assert (wrong.code, json.loads(wrong.err)["error"]) == (ExitCode.USAGE, "usage")
    nothing = cmq_at("queue", "set", "orders", "--output", "json")
    assert (nothing.code, json.loads(nothing.err)["error"]) == (ExitCode.USAGE, "usage")


def test_numbers_of_request_and_connection_are_shown_with_verbose(cmq_at: Cmq) -> None:
    assert "(request " not in cmq_at("queue", "info", "nowhere").err
    assert "(request " in cmq_at("queue", "info", "nowhere", "--verbose").err
    error = json.loads(cmq_at("queue", "info", "nowhere", "-v", "--output", "json").err)
    assert (error["request_id"] > 0, error["connection_id"] > 0) == (True, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(cmq: Cmq, shell: str) -> None:
    script = cmq("completion", shell).out
    assert "visibility" in script
    assert "dead-letter-after" in script


def test_bash_takes_the_completion_script(cmq: Cmq, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    (tmp_path / "cmq.bash").write_text(cmq("completion", "bash").out)
    words = "source cmq.bash; COMP_WORDS=(cmq queue create --vis); COMP_CWORD=3; _cmq; echo ${COMPREPLY[@]}"
    ran = subprocess.run([bash, "-c", words], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["--visibility-timeout"]


def test_help_lists_the_commands_in_groups(cmq: Cmq) -> None:
    text = cmq("--help").out
    headings = ["Messages", "Inspection", "Queues", "Topics", "Log", "Access", "Shell", "Options of all commands"]
    places = [text.index(f"─ {heading} ") for heading in headings]
    assert places == sorted(places)


def test_a_file_that_cannot_be_written_is_an_error_like_others(cmq: Cmq, no_server: Path) -> None:
    no_server.symlink_to(no_server.parent / "gone")

    ran = cmq("context", "add", "x", "cmq://a:b@127.0.0.1:1", "--output", "json")

    assert ran.code == ExitCode.FAILED
    assert ran.json_error["error"] == "failed"
    assert str(no_server) in ran.json_error["text"]


def test_an_output_that_cannot_be_written_is_an_error_like_others() -> None:
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "cmq_cli", "completion", "bash"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert (ran.returncode, ran.stderr.decode()) == (ExitCode.FAILED, "cmq: No space left on device\n")


def test_help_fills_the_lines_of_a_terminal(cmq: Cmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    # The lines of a docstring are longer than those of most terminals, and must not be broken in two places.
    assert "can come from a program that runs" in cmq("send", "--help").out


def test_help_explains_exit_codes_and_shared_options(cmq: Cmq) -> None:
    for arguments in (("--help",), ("queue", "create", "--help")):
        ran = cmq(*arguments)
        assert ran.code == 0
        assert "6 partly done" in ran.out
        assert "--context-file" in ran.out
    assert cmq("--version").out.strip()


def test_a_reader_that_leaves_early_is_no_failure(cmq: Cmq, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError

    def broken_nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(cmq_cli.app, "_run", broken)
    monkeypatch.setattr(os, "dup2", broken_nothing)
    assert cmq("status").code == 0


@pytest.mark.system
def test_it_runs_as_a_command_and_ends_at_ctrl_c(server: ThreadedServer, tmp_path: Path) -> None:
    environment = os.environ | {"CMQ_URL": server.local.url, "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "cmq_cli", "tail", "orders", "--from-start", "--raw"]
    server.do(server.local.put, "orders", b"first")

    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline() == b"first\n"
    running.send_signal(2)
    _, errors = running.communicate()

    assert running.returncode == ExitCode.INTERRUPTED
    assert b"Traceback" not in errors
