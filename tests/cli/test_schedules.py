"""``cmq schedule``."""

from pathlib import Path

import pytest

from cmq_cli.exitcodes import ExitCode
from support.client.cmq_runs import Cmq, ThreadedServer


@pytest.fixture
def reports(server: ThreadedServer) -> ThreadedServer:
    """A server with queue ``reports`` and schedule ``nightly``, paused to keep the queue empty."""
    server.do(server.local.admin.create_queue, "reports")
    server.do(server.local.admin.schedules.create, "nightly", "reports", "30 2 * * *", b"go", paused=True)
    return server


def test_a_schedule_is_created_shown_changed_paused_and_deleted(cmq_at: Cmq, reports: ThreadedServer) -> None:
    made = cmq_at(
        *("schedule", "create", "daily", "reports", "0 9 * * mon-fri", "go now"),
        *("--zone", "Europe/Berlin", "--header", "kind=report"),
    )
    assert (made.code, made.out) == (0, "")
    assert made.err.startswith("schedule 'daily' created; the next message is sent at ")

    shown = {
        line[: line.index("  ")]: line.split("  ")[-1].strip()
        for line in cmq_at("schedule", "info", "daily").out.splitlines()
    }
    assert (shown["queue"], shown["cron"], shown["zone"]) == ("reports", "0 9 * * mon-fri", "Europe/Berlin")
    assert (shown["body"], shown["headers"], shown["paused"]) == ("go now", "kind=report", "no")
    assert (shown["fired"], shown["missed"], shown["last error"]) == ("0", "0", "-")
    changed = cmq_at(
        *("schedule", "set", "daily", "--cron", "0 10 * * *", "--body", "later", "--no-headers", "--output", "json")
    ).json
    assert (changed["cron"], changed["zone"]) == ("0 10 * * *", "Europe/Berlin")
    assert (changed["body"], changed["body_encoding"], changed["headers"]) == ("later", "utf-8", {})

    assert cmq_at("schedule", "pause", "daily").err == "schedule 'daily' is paused\n"
    paused = cmq_at("schedule", "info", "daily", "--output", "json").json
    assert (paused["paused"], paused["next_time"]) == (True, None)
    assert cmq_at("schedule", "resume", "daily").err.startswith(
        "schedule 'daily' resumed; the next message is sent at "
    )
    assert cmq_at("schedule", "delete", "daily", "--yes").err == "schedule 'daily' deleted\n"
    gone = cmq_at("schedule", "info", "daily")
    assert (gone.code, "does not exist" in gone.err) == (ExitCode.NOT_FOUND, True)


def test_schedules_are_listed_with_their_next_times(cmq_at: Cmq, reports: ThreadedServer) -> None:
    reports.do(reports.local.admin.schedules.create, "yearly", "reports", "0 0 1 1 *", b"go", zone="Asia/Tokyo")

    table = cmq_at("schedule", "list").out.splitlines()
    assert table[0].split() == ["name", "queue", "cron", "zone", "next", "paused", "missed", "last", "error"]
    assert table[1].split() == ["nightly", "reports", "30", "2", "*", "*", "*", "UTC", "-", "yes", "0", "-"]
    assert table[2].startswith("yearly")
    found = cmq_at("schedule", "list", "--search", "year", "--output", "json").json
    assert (found["total"], found["schedules"][0]["zone"]) == (1, "Asia/Tokyo")
    assert found["schedules"][0]["next_time"].endswith("-12-31T15:00:00Z")
    assert "continue with --offset 1" in cmq_at("schedule", "list", "--limit", "1").err


def test_a_schedule_that_exists_is_refused_or_accepted(cmq_at: Cmq, reports: ThreadedServer) -> None:
    create = ("schedule", "create", "nightly", "reports", "30 2 * * *", "go")
    assert cmq_at(*create).code == ExitCode.FAILED
    assert cmq_at(*create, "--ensure").err == "schedule 'nightly' exists with the same attributes\n"
    differs = cmq_at("schedule", "create", "nightly", "reports", "30 3 * * *", "other", "--ensure")
    assert differs.code == ExitCode.FAILED
    assert "30 3 * * *" in differs.out
    assert "5 bytes" in differs.out


def test_the_body_is_read_from_a_file_or_standard_input(cmq_at: Cmq, reports: ThreadedServer, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"\xff\x00")

    made = cmq_at("schedule", "create", "one", "reports", "0 0 1 1 *", "--file", str(file), "--output", "json").json
    assert (made["body"], made["body_encoding"]) == ("/wA=", "base64")
    assert "(base64) /wA=" in cmq_at("schedule", "info", "one").out
    changed = cmq_at("schedule", "set", "one", "--file", "-", "--output", "json", stdin=b"two\nlines").json
    assert changed["body"] == "two\nlines"
    assert "two\\nlines" in cmq_at("schedule", "info", "one").out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("create", "x", "reports", "0 9 * *", "go"), "has 4 fields"),
        (("create", "x", "reports", "0 9 * * *", "go", "--zone", "Nowhere"), "no time zone 'Nowhere'"),
        (("create", "x", "reports", "0 9 * * *"), "give one of: a body, --file"),
        (("create", "x", "reports", "0 9 * * *", "go", "--file", "-"), "give one of: a body, --file"),
        (("create", "x", "reports", "0 9 * * *", "go", "--ensure", "--paused"), "not both"),
        (("set", "nightly"), "name at least one attribute"),
        (("set", "nightly", "--header", "a=b", "--no-headers"), "not both"),
        (("set", "nightly", "--body", "b", "--file", "-"), "not both"),
        (("delete", "--yes"), "name at least one schedule"),
    ],
)
def test_wrong_usage_is_a_sentence(cmq_at: Cmq, reports: ThreadedServer, arguments: tuple[str, ...], text: str) -> None:
    ran = cmq_at("schedule", *arguments)

    assert ran.code in (ExitCode.USAGE, ExitCode.FAILED)
    assert text in ran.err


def test_a_deletion_asks_and_a_missing_schedule_is_told(cmq_at: Cmq, reports: ThreadedServer) -> None:
    asked = cmq_at("schedule", "delete", "nightly")
    assert asked.code != 0
    assert "--yes" in asked.err
    ran = cmq_at("schedule", "delete", "nightly", "missing", "--yes", "--output", "json")
    assert (ran.code, ran.json) == (
        ExitCode.PARTIAL,
        {"deleted": ["nightly"], "failed": {"missing": "schedule_not_found"}},
    )
