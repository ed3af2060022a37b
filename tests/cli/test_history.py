"""``cmq history`` over folders that a real storage made: by id, handle, dedup id and header, and its refusals."""

import asyncio
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from cmq_cli.commands.log.history import MAX_FOUND
from cmq_cli.exitcodes import ExitCode
from cmqd_client import connect
from cmqd_log.data_folder.histories import HistoryReader
from support.client.cmq_runs import Cmq, ThreadedServer
from support.core.builders import KEY, Rig
from support.processes.running_broker import RunningBroker
from support.spark.log_folder import Row, drop_segment, rows_of, write_folder

pytestmark = pytest.mark.system
"""Segments are written by a storage process."""


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Story:
    """A folder with three segments, and the messages in it."""

    def __init__(self, folder: Path) -> None:
        rig = Rig()
        rig.create("orders-dead")
        rig.create("orders", dead_letter_queue="orders-dead", dead_letter_max_receives=5)
        (self.first,) = rig.send(b"0123456789", name="orders", headers=[{"order": "4711", "traceparent": TRACE}])
        (self.handle,) = rig.handles("orders")
        cuts = [rig.log.last_lsn]
        rig.release(self.handle, name="orders")
        (self.other,) = rig.send(b"o", name="orders", headers=[{"order": "4712"}])
        cuts.append(rig.log.last_lsn)
        handles = rig.handles("orders")
        rig.reject(handles[0], name="orders", reasons=["no such\ncustomer"])
        self.folder = folder
        self.second_segment = cuts[0] + 1
        """Its first row."""
        rows = rows_of(rig)
        parts: list[list[Row]] = [rows[: cuts[0]], rows[cuts[0] : cuts[1]], rows[cuts[1] :]]
        write_folder(folder, parts)
        (folder / "accounts.json").write_bytes(msgspec.json.encode({"handle_key": KEY, "accounts": {}}))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("log") / "data")


def printed(number: int) -> str:
    return f"Msg-{number:016x}"


def test_the_history_of_a_message_is_a_line_for_each_event(cmq: Cmq, story: Story) -> None:
    ran = cmq("history", printed(story.first), "--path", str(story.folder))

    assert ran.code == ExitCode.OK, ran.err
    head, *lines = ran.out.splitlines()
    assert head.split() == ["2023-11-14", "queue", printed(story.first)]
    assert [line.split()[1] for line in lines] == ["orders"] * 4 + ["orders-dead"]
    assert [" ".join(line.split()[2:]) for line in lines[:4]] == [
        "sent, 10 bytes",
        "received, lease until +30 s",
        "given back",
        "received, lease until +30 s, receive 2",
    ]
    # Words of a consumer cannot break the line.
    assert 'dead letter: rejected "no such\\ncustomer", after 2 receives' in lines[4]
    assert "waits for a consumer in orders-dead" in ran.err


def test_the_history_as_json(cmq: Cmq, story: Story) -> None:
    (found,) = cmq("history", printed(story.first), "--path", str(story.folder), "--output", "json").json

    assert [event["kind"] for event in found["events"]] == ["sent", "received", "released", "received", "dead_lettered"]
    assert found["events"][0]["size"] == 10
    assert found["events"][1]["until"] > found["events"][1]["time"]
    assert found["events"][4]["from_id"] == found["id"] == printed(story.first)
    assert (found["places"][-1]["queue"], found["places"][-1]["state"]) == ("orders-dead", "active")


def test_a_message_is_found_by_handle_dedup_id_and_header(cmq: Cmq, story: Story) -> None:
    path = ("--path", str(story.folder), "--output", "json")

    assert cmq("history", str(story.handle), *path).json[0]["id"] == printed(story.first)
    by_header = cmq("history", "--header", "order=4712", "--queue", "orders", *path).json
    assert [one["id"] for one in by_header] == [printed(story.other)]


def test_a_search_that_finds_nothing_says_so(cmq: Cmq, story: Story) -> None:
    for words, text in (
        (("--dedup-id", "a"), "has the dedup id 'a'"),
        (("--header", "order=1", "--queue", "orders"), "has order='1' as a header"),
        (("--header", "order=1", "--queue", "mails"), "has no queue or topic 'mails'"),
        (("12345",), "has a receive with this receipt handle"),
        ((printed(999_999),), f"no message of {story.folder} has the id {printed(999_999)}: the newest is Msg-"),
        ((printed(7 << 52),), "is of shard 7, and"),
    ):
        ran = cmq("history", *words, "--path", str(story.folder))
        assert (ran.code, text in ran.err) == (ExitCode.NOT_FOUND, True), (words, ran.err)


@pytest.mark.parametrize(
    "words", [(), ("Msg-0000000000000001", "--dedup-id", "a"), ("--header", "order", "--queue", "q"), ("Msg-1",)]
)
def test_wrong_arguments_are_refused(cmq: Cmq, story: Story, words: tuple[str, ...]) -> None:
    assert cmq("history", *words, "--path", str(story.folder)).code == ExitCode.USAGE


def test_rows_that_were_reclaimed_are_named(cmq: Cmq, story: Story, tmp_path: Path) -> None:
    folder = shutil.copytree(story.folder, tmp_path / "data")
    drop_segment(folder, story.second_segment)

    ran = cmq("history", printed(story.first), "--path", str(folder))
    assert ran.code == ExitCode.OK, ran.err
    assert "of the log, after this time, are reclaimed or lost; events in them are not known" in ran.out
    # Its only row is gone; the later receive does not name its id.
    ran = cmq("history", printed(story.other), "--path", str(folder))
    assert ran.code == ExitCode.NOT_FOUND
    assert "are reclaimed or lost (the setting keep_history_ms keeps rows)" in ran.err


def test_a_handle_needs_the_key_of_the_broker(cmq: Cmq, story: Story, tmp_path: Path) -> None:
    folder = shutil.copytree(story.folder, tmp_path / "data", ignore=shutil.ignore_patterns("accounts.json"))

    ran = cmq("history", str(story.handle), "--path", str(folder))
    assert (ran.code, "the key in accounts.json" in ran.err) == (ExitCode.FAILED, True)


def test_a_copy_is_read_by_url(cmq: Cmq, story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    fsspec.filesystem("memory").put(str(story.folder), "/histories", recursive=True)

    ran = cmq("history", printed(story.first), "--path", "memory://histories")
    assert ran.code == ExitCode.OK, ran.err
    assert "dead letter" in ran.out
    ran = cmq("history", str(story.handle), "--path", "memory://histories")
    assert ran.code == ExitCode.FAILED
    assert "which is not beside the segments of a URL" in ran.err


def test_the_waits_of_a_message_are_spans_of_the_producers_trace(cmq: Cmq, story: Story, tmp_path: Path) -> None:
    ran = cmq("history", printed(story.first), "--path", str(story.folder), "--otlp", str(tmp_path / "spans.json"))

    assert ran.code == ExitCode.OK, ran.err
    (resource,) = json.loads((tmp_path / "spans.json").read_text())["resourceSpans"]
    spans = resource["scopeSpans"][0]["spans"]
    assert [span["name"] for span in spans] == [
        "wait in orders",
        "in flight of orders",
        "wait in orders",
        "in flight of orders",
    ]
    assert {(span["traceId"], span["parentSpanId"]) for span in spans} == {tuple(TRACE.split("-")[1:3])}
    assert len({span["spanId"] for span in spans}) == 4
    assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in spans)
    # A message without the header has a trace of its own.
    cmq("history", printed(story.other), "--path", str(story.folder), "--otlp", str(tmp_path / "other.json"))
    (resource,) = json.loads((tmp_path / "other.json").read_text())["resourceSpans"]
    assert [span["parentSpanId"] for span in resource["scopeSpans"][0]["spans"]] == [""]


@pytest.mark.parametrize("status", [200, 503])
def test_the_spans_are_posted_to_an_endpoint(cmq: Cmq, story: Story, status: int) -> None:
    taken: list[tuple[str, str, bytes]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.path, self.headers["Content-Type"], body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Endpoint) as endpoint:
        thread = threading.Thread(target=endpoint.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{endpoint.server_port}/v1/traces"
        ran = cmq("history", printed(story.first), "--path", str(story.folder), "--otlp", url)
        thread.join()

    ((path, kind, body),) = taken
    assert (path, kind) == ("/v1/traces", "application/json")
    assert len(json.loads(body)["resourceSpans"][0]["scopeSpans"][0]["spans"]) == 4
    assert ran.code == (ExitCode.OK if status == 200 else ExitCode.FAILED)
    assert status == 200 or f"{url} refused the spans: 503" in ran.err


def test_only_segments_that_name_the_message_are_opened(story: Story, tmp_path: Path) -> None:
    reader = HistoryReader(str(story.folder))
    # Stored in the second segment and received in the third.
    expected = reader.history(story.other)
    assert reader.opened == 2
    assert HistoryReader(str(story.folder)).id_of_handle(story.handle) == story.first

    folder = shutil.copytree(story.folder, tmp_path / "data")
    for side in (folder / "segments").glob("*.side"):
        side.unlink()
    without = HistoryReader(str(folder))
    assert without.history(story.other) == expected
    assert without.opened > 3


def test_without_a_folder_the_broker_is_asked(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.put, "orders", b"x")
    (received,) = cmq_at("receive", "orders", "--output", "json").lines
    message = received["id"]

    ran = cmq_at("history", message)

    assert ran.code == ExitCode.OK, ran.err
    sent, was_received = [line.rstrip().split(None, 2)[1:] for line in ran.out.splitlines()[1:3]]
    assert (sent[0], was_received[0]) == ("orders", "orders")
    assert sent[1].startswith("sent, 1 byte, by ")
    assert was_received[1].startswith("received by ")
    assert was_received[1].endswith(", lease until +30 s")
    (document,) = json.loads(cmq_at("history", received["receipt_handle"], "--output", "json").out)
    assert (document["id"], document["places"][0]["state"]) == (message, "in_flight")


def test_a_message_that_the_broker_does_not_know_is_not_found(cmq_at: Cmq) -> None:
    ran = cmq_at("history", "Msg-00000000ffffffff")

    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert "no readable row of the log tells of message Msg-00000000ffffffff" in " ".join(ran.err.split())


def test_the_broker_finds_messages_by_dedup_id_and_header(cmq_at: Cmq) -> None:
    sent = cmq_at("send", "orders", "x", "--header", "order=4711", "--dedup-id", "order-4711", "--output", "json")
    message = sent.json["id"]

    for words in (("--header", "order=4711", "--queue", "orders"), ("--dedup-id", "order-4711")):
        (found,) = cmq_at("history", *words, "--output", "json").json
        assert (found["id"], found["events"][0]["kind"]) == (message, "sent")
        ran = cmq_at("history", *words)
        assert (ran.code, "sent, 1 byte, by " in ran.out) == (ExitCode.OK, True), ran.err
    for words, text in (
        (("--header", "order=4712", "--queue", "orders"), "has the header order=4712; --from searches older messages"),
        (("--header", "order=4711", "--queue", "orders", "--to", "2023-11-14T22:00:00Z"), "has the header order=4711"),
        (("--dedup-id", "order-4712"), "has the dedup id 'order-4712'"),
        (("--header", "order=4711", "--queue", "absent"), "queue 'absent' does not exist"),
    ):
        ran = cmq_at("history", *words)
        assert (ran.code, ran.out, text in " ".join(ran.err.split())) == (ExitCode.NOT_FOUND, "", True), ran.err
    ran = cmq_at("history", "--dedup-id", "order-4711", "--account", "shop")
    assert (ran.code, "--account needs --path" in ran.err) == (ExitCode.USAGE, True)


def test_a_search_of_the_broker_ends_with_twenty_messages(cmq_at: Cmq) -> None:
    for _ in range(MAX_FOUND + 1):
        assert cmq_at("send", "orders", "x", "--header", "customer=7").code == ExitCode.OK

    ran = cmq_at("history", "--header", "customer=7", "--queue", "orders", "--output", "json")

    assert len(ran.json) == MAX_FOUND
    assert "the search ended with 20 messages" in ran.err


def test_the_clients_of_a_live_log_and_of_a_sealed_log_are_named(cmq: Cmq, tmp_path: Path) -> None:
    async def work(url: str) -> str:
        async with connect(url, name="checkout 3.2") as client:
            queue = await client.create_queue("orders")
            message_id = (await queue.send(b"one")).id
        async with connect(url, name="worker-2") as client:
            (message,) = await client.queue("orders").receive(max_messages=1)
            await message.delete()
        return message_id

    with RunningBroker(tmp_path, "--keep-history", "7d") as broker:
        message_id = asyncio.run(work(broker.url))
        live = cmq("history", message_id, "--path", str(tmp_path / "data"))
    sealed = cmq("history", message_id, "--path", str(tmp_path / "data"))

    with RunningBroker(tmp_path, "--keep-history", "7d") as broker:
        over_the_wire = cmq("history", message_id, "--url", broker.url)

    for ran in (live, sealed, over_the_wire):
        sent, received, deleted = ran.out.splitlines()[1:]
        assert 'sent, 3 bytes, by "checkout 3.2" (AKID' in sent
        assert 'received by "worker-2" (AKID' in received
        assert 'deleted by "worker-2" (AKID' in deleted
    found = cmq("history", message_id, "--path", str(tmp_path / "data"), "--output", "json").json[0]["events"]
    assert [event["actor"]["name"] for event in found] == ["checkout 3.2", "worker-2", "worker-2"]


def test_a_search_ends_with_twenty_messages_and_keeps_to_its_times(cmq: Cmq, tmp_path: Path) -> None:
    rig = Rig()
    rig.create("orders")
    for _ in range(MAX_FOUND + 1):
        rig.send(b"x", name="orders", headers=[{"customer": "7"}])
    rig.now_ms += 3_600_000
    (late,) = rig.send(b"x", name="orders", headers=[{"customer": "7"}])
    *rows, (records, bodies, _) = rows_of(rig)
    write_folder(tmp_path / "data", [[*rows, (records, bodies, rig.now_ms)]])
    search = ("history", "--header", "customer=7", "--queue", "orders", "--path", str(tmp_path / "data"))

    ran = cmq(*search, "--output", "json")
    assert len(ran.json) == MAX_FOUND
    assert "the search ended with 20 messages" in ran.err
    (found,) = cmq(*search, "--from", "2023-11-14T22:30:00Z", "--output", "json").json
    assert found["id"] == printed(late)
    ran = cmq(*search, "--to", "2023-11-14T22:00:00Z")
    assert (ran.code, "no message in the readable rows" in ran.err) == (ExitCode.NOT_FOUND, True)
