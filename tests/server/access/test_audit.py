"""Failed log-ins and administration are in the log: key, request, peer and outcome; in bounded numbers."""

import contextlib
import io
import json
from collections.abc import Callable, Generator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict

from cmqd.server.access.accounts_file import Key
from cmqd_logs.limit import LINES_OF_CALLER, LineLimit
from cmqd_logs.lines import configure_logs, report_left_out
from cmqd_protocol import messages as wire
from cmqd_protocol.operations import OPERATIONS
from support.server.server_rig import ServerRig


def events(logs: list[EventDict], name: str) -> list[dict[str, Any]]:
    return [dict(line) for line in logs if line["event"] == name]


async def test_a_failed_login_is_logged_with_the_key_its_account_and_the_peer(rig: ServerRig) -> None:
    key = rig.accounts.first_key("admin")
    with capture_logs() as logs:
        wrong = rig.connect(key, secret_key="x" * 43)
        await wrong.settle()
        unknown = rig.connect(Key(secret_id="AKIDunknown", secret_key="x", account="", created_ms=0))
        await unknown.settle()

    first, second = events(logs, "login_failed")
    assert (first["secret_id"], first["account"], first["peer"]) == (key.secret_id, "admin", "127.0.0.1:1")
    assert (first["code"], first["log_level"]) == ("authentication_failed", "warning")
    assert (second["secret_id"], second["account"]) == ("AKIDunknown", None)
    assert events(logs, "connection_ended") == []
    assert key.secret_key not in str(logs)


@pytest.fixture
def limited() -> Generator[Callable[[], list[dict[str, Any]]]]:
    """Write lines as a real broker does, with a clock that stands still; returns the lines since the call before."""

    def written() -> list[dict[str, Any]]:
        text = output.getvalue()
        output.seek(0)
        output.truncate()
        return [json.loads(line) for line in text.splitlines()]

    with contextlib.redirect_stderr(io.StringIO()) as output:
        configure_logs(as_json=True, level="info", limit=LineLimit(lambda: 0.0))
        yield written
    structlog.reset_defaults()


async def test_a_stranger_cannot_fill_the_log(rig: ServerRig, limited: Callable[[], list[dict[str, Any]]]) -> None:
    for _ in range(200):
        client = rig.connect(secret_id="x" * 3_000)
        await client.settle()

    report_left_out()

    *lines, report = limited()
    assert [line["event"] for line in lines] == ["login_failed"] * LINES_OF_CALLER, "no other line comes in its place"
    assert all(len(str(line)) < 1_000 for line in lines)
    assert (report["kind"], report["count"], report["busiest"]) == ("login_failed", 200 - LINES_OF_CALLER, "127.0.0.1")


async def test_failed_logins_leave_no_administration_out_of_the_log(
    rig: ServerRig, limited: Callable[[], list[dict[str, Any]]]
) -> None:
    admin = await rig.client()
    for _ in range(LINES_OF_CALLER + 5):
        stranger = rig.connect(secret_id="AKIDunknown")
        await stranger.settle()
    limited()

    await admin.ask(wire.CreateAccount, "other")

    (line,) = limited()
    assert (line["event"], line["operation"], line["outcome"]) == ("administration", "create_account", "done")


async def test_the_limit_of_lines_leaves_no_entry_out_of_the_audit_trail(
    rig: ServerRig, limited: Callable[[], list[dict[str, Any]]]
) -> None:
    admin = await rig.client()
    for number in range(LINES_OF_CALLER * 3):
        await admin.ask(wire.CreateQueue, f"queue-{number}", {})

    assert len(limited()) == LINES_OF_CALLER
    page = await admin.expect(wire.AuditEntries, wire.ListAuditEntries, None, 0, 0, 0, None, "", "create_queue", 1_000)
    assert len(page.entries) == LINES_OF_CALLER * 3


async def test_administration_is_logged_with_its_outcome(rig: ServerRig) -> None:
    admin = await rig.client()
    with capture_logs() as logs:
        await admin.ask(wire.CreateQueue, "jobs", {"max_message_bytes": 2_048})
        await admin.ask(wire.CreateQueue, "jobs", {})
        await admin.ask(wire.SetQueueAttributes, "jobs", {"polling_wait_ms": 5})
        made = await admin.expect(wire.KeyList, wire.CreateAccount, "other")
        await admin.ask(wire.CreateAccount, "other")
        await admin.ask(wire.RewindQueue, "jobs", 0)
        await admin.ask(wire.DeleteQueue, "jobs")
        await admin.ask(wire.ListQueues)
        await admin.ask(wire.ListKeys)

    lines = events(logs, "administration")
    assert [(line["operation"], line["outcome"]) for line in lines] == [
        ("create_queue", "done"),
        ("create_queue", "queue_exists"),
        ("set_queue_attributes", "done"),
        ("create_account", "done"),
        ("create_account", "account_exists"),
        ("rewind_queue", "asked"),
        ("rewind_queue", "time_not_rewindable"),
        ("delete_queue", "done"),
    ]
    assert all(
        (line["by"], line["by_key"], line["peer"])
        == ("admin", rig.accounts.first_key("admin").secret_id, "127.0.0.1:1")
        for line in lines
    )
    assert (lines[0]["queue"], lines[0]["attributes"]) == ("jobs", ["max_message_bytes"])
    assert (lines[3]["account"], lines[3]["made_key"]) == ("other", made.keys[0].secret_id)
    assert made.keys[0].secret_key is not None
    assert made.keys[0].secret_key not in str(logs)


def test_requests_outside_administration_read_or_are_about_messages() -> None:
    rest = {operation.request.__name__ for operation in OPERATIONS.values() if not operation.is_administration}

    assert not {name for name in rest if name.startswith(("Create", "Set", "Ensure", "Subscribe", "Unsubscribe"))}
    assert {name for name in rest if name.startswith(("Delete", "Drop"))} == {"DeleteMessages"}
