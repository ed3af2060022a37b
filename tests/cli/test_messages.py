"""``cmq send``, ``receive``, ``tail``, ``peek``, ``delete``, ``release``."""

from pathlib import Path

import pytest

from cmq_cli.exitcodes import ExitCode
from cmq_cli.streams import batches
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.cases import each_case
from support.client.cmq_runs import Cmq, ThreadedServer


def _bodies(server: ThreadedServer) -> list[bytes]:
    return server.do(server.local.bodies, "orders")


def test_an_argument_is_sent(cmq_at: Cmq, server: ThreadedServer) -> None:
    ran = cmq_at("send", "orders", "grüße", "--delay", "1m", "--header", "table=7", "--header", "k=a=b")

    assert (ran.code, ran.err) == (ExitCode.OK, "")
    assert ran.out.startswith("id  Msg-")
    (request,) = server.local.link.of(wire.SendMessages)
    assert request.bodies == ["grüße".encode()]
    assert request.delay_ms == 60_000
    assert request.headers == [{"table": "7", "k": "a=b"}]


def test_a_file_and_standard_input_are_sent_whole(cmq_at: Cmq, server: ThreadedServer, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\x00\xff\n\n")

    assert cmq_at("send", "orders", "--file", str(tmp_path / "body")).code == 0
    assert cmq_at("send", "orders", "--file", "-", stdin=b"a\nb\n").code == 0

    assert _bodies(server) == [b"\x00\xff\n\n", b"a\nb\n"]


def test_lines_are_sent_in_order_a_message_each(cmq_at: Cmq, server: ThreadedServer) -> None:
    lines = [str(number).encode() for number in range(1000)]

    ran = cmq_at("send", "orders", "--stdin", "--output", "json", stdin=b"\n".join([*lines[:500], b"", *lines[500:]]))

    assert ran.code == 0
    assert ran.json["sent"] == 1000
    assert ran.json["empty_lines_skipped"] == 1
    assert ran.json["error"] is None
    assert _bodies(server) == lines
    assert len(server.local.link.of(wire.SendMessages)) <= 5


def test_a_stream_that_fails_half_way_says_how_far_it_came(cmq_at: Cmq, server: ThreadedServer) -> None:
    stream = b"x\n" * 256 + b"y" * 70_000

    ran = cmq_at("send", "orders", "--stdin", stdin=stream)

    assert ran.code == ExitCode.PARTIAL
    assert "after 256 lines" in ran.err
    assert "256 sent" in ran.err
    assert ran.out == ""


def test_batches_keep_to_the_servers_limits() -> None:
    assert [len(batch) for batch in batches([b"x"] * 600, len)] == [256, 256, 88]
    assert [len(batch) for batch in batches([b"x" * 400_000] * 5, len)] == [2, 2, 1]
    assert [len(batch) for batch in batches([b"x", b"x" * 2_000_000, b"x"], len)] == [1, 1, 1]
    assert [len(batch) for batch in batches([b"x"] * 200, lambda body: len(body) + 10_000)] == [104, 96]
    assert batches([], len) == []


@each_case(
    "arguments",
    [
        ("send", "orders"),
        ("send", "orders", "a", "--stdin"),
        ("send", "orders", "a", "--file", "b"),
        ("send", "orders", "a", "--header", "novalue"),
        ("send", "orders", "a", "--delay", "soon"),
        ("send",),
        ("receive", "orders", "--max", "0"),
        ("peek", "orders", "--max", "0"),
        ("tail", "orders", "--interval", "0"),
        ("delete", "orders"),
        ("nonsense",),
        ("receive", "orders", "--nonsense"),
        ("status", "--output", "xml"),
    ],
)
def test_wrong_usage_has_its_own_exit_code(cmq_at: Cmq, server: ThreadedServer, arguments: tuple[str, ...]) -> None:
    ran = cmq_at(*arguments)

    assert ran.code == ExitCode.USAGE
    assert ran.err.startswith("cmq: ")
    assert ran.out == ""
    assert not server.local.link.handled


def test_a_received_message_is_shown_and_kept(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", b"one espresso", headers={"table": "7"})

    ran = cmq_at("receive", "orders")

    facts, header, body = ran.out.splitlines()
    assert facts.startswith("Msg-")
    assert "received 1x" in facts
    assert "handle " in facts
    assert header == "table: 7"
    assert body == "one espresso"
    assert server.do(server.local.info, "orders").in_flight == 1
    assert not server.local.link.of(wire.DeleteMessages)


def test_messages_are_received_as_json_lines_and_deleted(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", b"text", b"\xff\x00")

    ran = cmq_at("receive", "orders", "-n", "10", "--delete", "--visibility-timeout", "5m", "--output", "json")

    assert ran.code == 0
    assert ran.err == ""
    first, second = ran.lines
    assert (first["body"], first["body_encoding"]) == ("text", "utf-8")
    assert (second["body"], second["body_encoding"]) == ("/wA=", "base64")
    # A string, because a number of 64 bits is too large for many readers of JSON.
    assert first["receipt_handle"].isdigit()
    assert first["receive_count"] == 1
    assert first["enqueue_time"].endswith("Z")
    assert server.do(server.local.info, "orders").in_flight == 0
    assert server.local.link.of(wire.ReceiveMessages)[0].visibility_timeout_ms == 300_000


def test_bodies_can_be_had_as_they_are(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", b"\xff\x00", b"b")

    assert cmq_at("receive", "orders", "--max", "2", "--raw").data == b"\xff\x00\nb\n"


def test_a_body_that_is_not_text_is_marked_and_cannot_command_the_terminal(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", b"\xff\x00", b"\x1b[2Jgone", b"[red]plain[/red]")

    ran = cmq_at("receive", "orders", "--max", "3")

    assert "(base64) /wA=" in ran.out
    assert "\\x1b[2Jgone" in ran.out
    assert "[red]plain[/red]" in ran.out


HIDDEN = "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
"""Characters that change the order of text, or have no width."""


@pytest.mark.parametrize("command", ["peek", "receive"])
def test_hidden_characters_and_names_of_headers_are_escaped_for_people_alone(
    cmq_at: Cmq, server: ThreadedServer, command: str
) -> None:
    body = f"a{HIDDEN}b\u200c\u200d\tc".encode()
    name = f"n\x1b[2J\n{HIDDEN}"
    server.do(server.local.put, "orders", body, headers={name: f"v{HIDDEN}"})
    escaped = "".join(f"\\u{ord(character):04x}" for character in HIDDEN)

    shown = cmq_at(command, "orders").out
    again = (command, "orders", "--max", "1")
    server.do(server.local.admin.queue("orders").clear)
    server.do(server.local.put, "orders", body, body, headers={name: f"v{HIDDEN}"})
    document = cmq_at(*again, "--output", "json").lines[0]

    assert not set(HIDDEN + "\x1b") & set(shown)
    assert f"n\\x1b[2J\\n{escaped}: v{escaped}\n" in shown
    assert f"a{escaped}b\u200c\u200d" in shown
    assert (document["body"], document["headers"]) == (body.decode(), {name: f"v{HIDDEN}"})
    assert cmq_at(*again, "--raw").data == body + b"\n"


def test_an_empty_queue_is_no_failure(cmq_at: Cmq) -> None:
    ran = cmq_at("receive", "orders", "--wait", "0")
    assert (ran.code, ran.out, ran.err) == (0, "", "no message in 'orders'\n")
    assert cmq_at("peek", "orders").err == "no message in 'orders'\n"


def test_a_missing_queue_is_not_found(cmq_at: Cmq) -> None:
    ran = cmq_at("receive", "nowhere")
    assert ran.code == ExitCode.NOT_FOUND
    assert "does not exist" in ran.err


def test_messages_are_deleted_and_released_by_handle(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", b"a", b"b")
    first, second = cmq_at("receive", "orders", "--max", "2", "--output", "json").lines

    deleted = cmq_at("delete", "orders", first["receipt_handle"], "--output", "json")
    released = cmq_at("release", "orders", second["receipt_handle"], "--no-count")
    partly = cmq_at("delete", "orders", "12345", cmq_at("receive", "orders", "--output", "json").json["receipt_handle"])

    assert deleted.json == {"deleted": [first["receipt_handle"]], "failed": {}}
    assert released.code == 0
    assert not server.local.link.of(wire.ReleaseMessages)[0].count_receive
    assert partly.code == ExitCode.PARTIAL
    assert "cmq: receipt handle 12345 is not valid" in partly.err
    assert cmq_at("delete", "orders", "12345").code == ExitCode.FAILED


def test_messages_are_rejected_by_handle_and_dead_letters_show_why(cmq_at: Cmq, server: ThreadedServer) -> None:
    assert cmq_at("queue", "create", "dead").code == 0
    assert cmq_at("dlq", "set", "orders", "dead", "--max-receives", "5").code == 0
    server.do(server.local.put, "orders", b"a", b"b")
    first, second = cmq_at("receive", "orders", "--max", "2", "--output", "json").lines

    rejected = cmq_at("reject", "orders", first["receipt_handle"], "--reason", "no such customer", "--output", "json")
    partly = cmq_at("reject", "orders", second["receipt_handle"], "12345")

    assert rejected.json == {"rejected": [first["receipt_handle"]], "failed": {}}
    assert partly.code == ExitCode.PARTIAL
    assert "cmq: receipt handle 12345 is not valid" in partly.err
    assert cmq_at("reject", "orders").code == ExitCode.USAGE
    shown = cmq_at("receive", "dead", "--max", "2", "--output", "json").lines
    assert [one["origin"]["rejection"] for one in shown] == ["no such customer", ""]
    assert "rejected: no such customer" in cmq_at("peek", "dead").out


def test_peek_pages_through_and_receives_nothing(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", *[b"x"] * 600)

    ran = cmq_at("peek", "orders", "--max", "500", "--output", "json")
    assert len(ran.lines) == 500
    assert ran.lines[0]["state"] == "active"
    assert "--start 3" in cmq_at("peek", "orders", "-n", "3").err
    assert len(cmq_at("peek", "orders", "-n", "500", "--start", "550", "--raw").out.splitlines()) == 50
    assert not server.local.link.of(wire.ReceiveMessages)


def test_tail_begins_near_the_end_and_follows(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", *[str(number).encode() for number in range(1000)])

    def has_found_the_end() -> bool:
        return any(peek.max_messages > 1 for peek in server.local.link.of(wire.PeekMessages))

    server.when(has_found_the_end, lambda: server.local.put("orders", b"new", b"newer"))

    ran = cmq_at("tail", "orders", "--last", "3", "--interval", "20ms", "--max", "5", "--raw")

    assert ran.out.splitlines() == ["997", "998", "999", "new", "newer"]
    assert not server.local.link.of(wire.ReceiveMessages)


def test_tail_from_the_start_ends_after_its_time(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", b"a", b"b")
    ran = cmq_at("tail", "orders", "--from-start", "--for", "1s", "--interval", "20ms", "--raw")
    assert (ran.code, ran.out.splitlines()) == (0, ["a", "b"])


def test_tail_of_an_empty_queue_sees_the_first_message(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.when(lambda: server.local.link.of(wire.PeekMessages), lambda: server.local.put("orders", b"first"))
    assert cmq_at("tail", "orders", "--max", "1", "--interval", "20ms", "--raw").out == "first\n"


def test_tail_with_delete_is_a_consumer(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", b"a", b"b", b"c")
    ran = cmq_at("tail", "orders", "--delete", "--max", "2", "--output", "json")
    assert [line["body"] for line in ran.lines] == ["a", "b"]
    assert _bodies(server) == [b"c"]


def test_a_refusal_of_the_server_is_a_sentence(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(
        server.local.link.refuse, wire.SendMessages, ErrorCode.DISK_NEARLY_FULL, "no space", retry_after_ms=60_000
    )
    ran = cmq_at("send", "orders", "x", "--output", "json")
    assert (ran.code, ran.out) == (ExitCode.FAILED, "")
    assert ran.json_error["text"] == "no space"


def test_no_answer_in_time_is_unreachable(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.link.ignore, wire.SendMessages, 3)
    timeout_ms = 100
    # The time is for connecting, too, which takes longer on a busy machine.
    while "no connection" in (ran := cmq_at("send", "orders", "x", "--timeout", f"{timeout_ms}ms")).err:
        timeout_ms *= 2
    assert ran.code == ExitCode.UNREACHABLE
    assert "not known" in ran.err


# ---------------------------------------------------------------------- at a time


def test_a_message_is_sent_for_a_time(cmq_at: Cmq, server: ThreadedServer) -> None:
    assert cmq_at("send", "orders", "past", "--at", "2001-02-03T04:05:06Z").code == 0
    assert cmq_at("send", "orders", "--stdin", "--at", "2001-02-03T06:05:06+02:00", stdin=b"a\nb\n").code == 0

    assert _bodies(server) == [b"past", b"a", b"b"]
    requests = server.local.link.of(wire.SendMessages)
    assert {(request.at_ms, request.delay_ms) for request in requests} == {(981_173_106_000, None)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--at", "soon"), "'soon' is not a time; write 2026-01-31T12:00"),
        (("--at", "10m"), "a time from now is --delay"),
        (("--at", "2100-01-01T00:00Z", "--delay", "1m"), "give --delay or --at, not both"),
    ],
)
def test_a_time_that_is_none_is_refused(
    cmq_at: Cmq, server: ThreadedServer, arguments: tuple[str, ...], says: str
) -> None:
    ran = cmq_at("send", "orders", "x", *arguments)

    assert ran.code == ExitCode.USAGE
    assert says in ran.err
    assert not server.local.link.of(wire.SendMessages)


def test_a_time_too_far_ahead_is_refused_by_the_server(cmq_at: Cmq, server: ThreadedServer) -> None:
    ran = cmq_at("send", "orders", "x", "--at", "2100-01-01T00:00Z")

    assert ran.code == ExitCode.FAILED
    assert ran.err.startswith("cmq: --at is 2100-01-01T")
    assert "ahead; this server takes a delay of at most 1 h" in ran.err
    assert _bodies(server) == []
