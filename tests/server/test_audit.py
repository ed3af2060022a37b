"""Failed log-ins and administration are in the log: key, request, peer and outcome; in bounded numbers."""

from typing import Any

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from cmqd.server.accounts_file import Key
from cmqd.server.audit import ADMINISTRATION, LINES_OF_ALL, LINES_PER_PEER, PEERS, LineLimit
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import REQUEST_TYPES
from support.server_rig import ServerRig


def events(logs: list[EventDict], name: str) -> list[dict[str, Any]]:
    return [dict(line) for line in logs if line["event"] == name]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


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


async def test_a_stranger_cannot_fill_the_log(rig: ServerRig) -> None:
    with capture_logs() as logs:
        for _ in range(200):
            connection = rig.server.listener.make_connection()
            client = rig.connect(secret_id="x" * 3_000)
            await client.settle()
            del connection

    lines = events(logs, "login_failed")
    assert len(lines) <= LINES_PER_PEER + 15
    assert all(len(str(line)) < 1_000 for line in lines)
    assert len(logs) < LINES_PER_PEER + 20, "no other line comes in its place"


async def test_failed_logins_leave_no_administration_out_of_the_log(rig: ServerRig) -> None:
    admin = await rig.client()
    for _ in range(LINES_PER_PEER + 5):
        stranger = rig.connect(secret_id="AKIDunknown")
        await stranger.settle()

    with capture_logs() as logs:
        await admin.ask(wire.CreateAccount, "other")

    (line,) = events(logs, "administration")
    assert (line["operation"], line["outcome"]) == ("create_account", "done")


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
    rest = {kind.__name__ for kind in REQUEST_TYPES.values()} - {kind.__name__ for kind in ADMINISTRATION}

    assert not {name for name in rest if name.startswith(("Create", "Set", "Ensure", "Subscribe", "Unsubscribe"))}
    assert {name for name in rest if name.startswith(("Delete", "Drop"))} == {"DeleteMessages"}


@pytest.mark.parametrize("peers", [1, 2])
def test_each_peer_has_lines_of_its_own_and_the_next_line_says_how_many_were_left_out(peers: int) -> None:
    clock = Clock()
    limit = LineLimit(clock)
    for peer in range(peers):
        taken = [limit.take(f"10.0.0.{peer}") for _ in range(LINES_PER_PEER + 7)]
        assert taken == [0] * LINES_PER_PEER + [None] * 7

    clock.now_s += 1.5

    assert limit.take("10.0.0.0") == 7
    assert limit.take("10.0.0.0") is None


def test_all_peers_together_are_bounded_and_so_is_the_memory() -> None:
    limit = LineLimit(Clock())

    taken = [limit.take(f"10.0.{number // 256}.{number % 256}") for number in range(PEERS * 3)]

    assert taken.count(0) == LINES_OF_ALL
    assert len(vars(limit)["_peers"]) == PEERS
