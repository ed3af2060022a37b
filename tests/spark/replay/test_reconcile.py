"""``cmq reconcile``: its figures agree with a broker and with the test, and a difference is reported."""

# pyarrow tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from cmq_cli.app import run
from cmq_cli.exitcodes import ExitCode
from cmqd.core.operations.transactions.half_messages import COMMIT
from cmqd_client import Client, Queue, TransactionStatus, connect
from cmqd_log import reconcile as module
from cmqd_log.data_folder.plan import Task
from cmqd_log.errors import SegmentReclaimedError
from cmqd_log.reading.tasks import Stretch
from cmqd_log.reconcile import IN, OUT, STATES, Line, Reconciled, lines_of
from cmqd_reading.states import State
from cmqd_segment.manifest import read_manifest
from support.core.builders import Rig
from support.core.half_messages import decide, transactional
from support.processes.running_broker import RunningBroker
from support.spark.log_folder import queue_created, rows_of, sends, write_folder
from support.storage.log_rig import NOW_MS

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000

Cmq = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def cmq(capfd: pytest.CaptureFixture[str]) -> Cmq:
    """Exit code, standard output and error."""

    def run_cmq(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(["reconcile", *arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return run_cmq


def by_queue(document: Any) -> dict[str, dict[str, int]]:
    """Counts above 0, all hours of a queue together: the test may run over the full hour."""
    found: dict[str, Counter[str]] = {}
    for line in document["lines"]:
        found.setdefault(line["queue"], Counter()).update({name: line[name] for name in (*IN, *OUT)})
    return {queue: {name: count for name, count in counts.items() if count} for queue, counts in found.items()}


# ---------------------------------------------------------------------- with a broker


async def take(queue: Queue, count: int, *, delete: bool) -> None:
    """Receive messages; delete the messages, or leave them in flight."""
    taken = 0
    while taken < count:
        messages = await queue.receive(min(256, count - taken), wait=20)
        assert messages
        taken += len(messages)
        if delete:
            await queue.delete_batch(messages)


async def moved(dead: Queue, count: int) -> None:
    while (await dead.attributes()).active != count:  # noqa: ASYNC110 - the state of the server is polled
        await asyncio.sleep(0.05)


async def everything_that_can_happen(client: Client) -> None:
    """Queues with all that can become of a message, but for expiry: that takes a minute at least."""
    held = await client.create_queue("held", visibility_timeout=3600)
    await held.send_batch([b"%d" % number for number in range(100)])
    await held.send(b"later", delay=3600)
    await take(held, 30, delete=True)
    await take(held, 20, delete=False)

    cleared = await client.create_queue("cleared", visibility_timeout=3600)
    await cleared.send_batch([b"x"] * 12)
    await take(cleared, 2, delete=True)
    await cleared.clear()
    await cleared.send_batch([b"y"] * 3)

    rewound = await client.create_queue("rewound", rewind=3600, visibility_timeout=3600)
    await rewound.send_batch([b"x"] * 9)
    await take(rewound, 9, delete=True)
    assert (await rewound.rewind(datetime.fromtimestamp(0, UTC), strict=False)).messages == 9
    await take(rewound, 4, delete=True)

    dead = await client.create_queue("dead")
    failing = await client.create_queue(
        "failing", dead_letter_queue="dead", dead_letter_max_receives=1, visibility_timeout=1
    )
    await failing.send_batch([b"bad"] * 7)
    await take(failing, 7, delete=False)
    await moved(dead, 7)
    await dead.redrive()
    await moved(dead, 0)
    await take(failing, 3, delete=True)
    await take(failing, 4, delete=False)
    await moved(dead, 4)

    orders = await client.create_queue("transactions", transactional=True)
    halves = (await orders.send_half_batch([b"half"] * 6)).ids
    await orders.end_transactions(halves[:3], TransactionStatus.COMMIT)
    await orders.end_transactions(halves[3:5], TransactionStatus.ROLLBACK)
    await take(orders, 1, delete=True)

    topic = await client.create_topic("shop")
    copies = await client.create_queue("copies")
    await topic.subscribe("all", queue=copies)
    await topic.publish_batch([b"copied"] * 5, tags=[["a"]] * 5)
    await copies.send(b"sent")
    await take(copies, 2, delete=True)

    left = await client.create_queue("left")
    await left.send_batch([b"x"] * 8)
    await take(left, 1, delete=True)
    await client.delete_queue("left")


EXPECTED = {
    "held": {"sent": 101, "consumed": 30, "in_flight": 20, "active": 50, "delayed": 1},
    "cleared": {"sent": 15, "consumed": 2, "cleared": 10, "active": 3},
    "rewound": {"sent": 9, "consumed": 4, "active": 5},
    "failing": {"sent": 7, "returned": 7, "dead": 11, "consumed": 3},
    "dead": {"arrived": 11, "redriven": 7, "active": 4},
    "transactions": {"sent": 6, "consumed": 1, "active": 2, "rolled_back": 2, "half": 1},
    "copies": {"sent": 1, "copied": 5, "consumed": 2, "active": 4},
    "left": {"sent": 8, "consumed": 1, "queue_deleted": 7},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a broker that has stopped; its own counts are as expected."""
    folder = tmp_path_factory.mktemp("broker")

    async def work(url: str) -> None:
        async with connect(url) as client:
            await everything_that_can_happen(client)
            for name, counts in EXPECTED.items():
                if name != "left":
                    told = await client.queue(name).attributes()
                    found = {"active": told.active, "in_flight": told.in_flight, "delayed": told.delayed}
                    found["half"] = told.half
                    assert found == {state: counts.get(state, 0) for state in found}, name
            await client.seal_segments()

    with RunningBroker(folder, "--durability", "os", "--keep-history-ms", "3600000") as broker:
        asyncio.run(work(broker.url))
        # Killed, so that the folder is as written during the run.
        broker.kill()
    return folder / "data"


@pytest.mark.system
def test_the_figures_are_those_of_the_broker(data: Path, cmq: Cmq, tmp_path: Path):
    file = tmp_path / "counts.parquet"

    code, out, err = cmq("--path", str(data), "--output", "json", "--parquet", str(file))

    assert (code, err) == (ExitCode.OK, "")
    document = json.loads(out)
    assert document["balanced"] is True
    assert document["missing_rows"] == []
    assert by_queue(document) == EXPECTED
    rows = pq.read_table(file).to_pylist()
    assert sum(row["consumed"] for row in rows) == sum(counts.get("consumed", 0) for counts in EXPECTED.values())
    assert {row["queue"] for row in rows} == set(EXPECTED)
    assert {row["lsn"] for row in rows} == {document["lsn"]}
    assert {row["difference"] for row in rows} == {0}


@pytest.mark.system
def test_a_table_of_some_queues(data: Path, cmq: Cmq):
    code, out, err = cmq("--path", str(data), "--queue", "dead", "--queue", "failing")

    assert code == ExitCode.OK, err
    lines = [line.split() for line in out.splitlines()]
    columns = ["sent", "arrived", "returned", "consumed", "dead", "waiting", "expired", "redriven"]
    assert lines[0] == ["queue", "hour", *columns]
    assert lines[-1] == ["all", *map(str, [7, 11, 7, 3, 11, 4, 0, 7])]
    assert {line[0] for line in lines[1:-1]} == {"dead", "failing"}
    assert "each of 25 messages is accounted for exactly once" in err


async def consume_in_segments(client: Client, folder: Path) -> None:
    """Messages that are consumed, until the broker has reclaimed some; the last three wait."""
    queue = await client.create_queue("orders")

    def is_reclaimed() -> bool:
        return bool(read_manifest(folder).dropped)

    while not is_reclaimed():
        await queue.send_batch([b"x"] * 10)
        await take(queue, 10, delete=True)
        await client.seal_segments()
        await asyncio.sleep(0.1)
    await queue.send_batch([b"waits"] * 3)
    await client.seal_segments()


@pytest.mark.system
def test_what_was_reclaimed_is_not_counted_and_that_is_said(tmp_path: Path, cmq: Cmq):
    async def work(url: str) -> None:
        async with connect(url) as client:
            await consume_in_segments(client, tmp_path / "data")

    with RunningBroker(tmp_path, "--durability", "os") as broker:
        asyncio.run(work(broker.url))
        # While the broker runs: sealed and unsealed rows.
        code, out, err = cmq("--path", str(tmp_path / "data"), "--include-active", "--output", "json")

    assert code == ExitCode.OK, err
    document = json.loads(out)
    (line,) = document["lines"]
    assert document["missing_rows"][0][0] == 1
    assert "the broker reclaimed row" in err
    # The row of the creation is reclaimed, too: name and live messages of the queue are in the checkpoint.
    assert (line["queue"], line["active"]) == ("orders", 3)
    assert line["sent"] == 3 + line["consumed"] + line["gone"]


# ---------------------------------------------------------------------- with a clock of our own


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages that expire, over hours."""
    rig = Rig()
    rig.create("q", retention_ms=2 * HOUR_MS)
    for hour in range(4):
        rig.send(*[b"message %d" % number for number in range(10 + hour)])
        rig.delete(*rig.handles(most=4))
        rig.settle(HOUR_MS)
    folder = tmp_path_factory.mktemp("log") / "data"
    write_folder(folder, [rows_of(rig)])
    return folder


def test_an_expired_message_stands_in_the_hour_of_its_sending(hours: Path, cmq: Cmq):
    code, out, err = cmq("--path", str(hours), "--queue", "q", "--output", "json")

    assert code == ExitCode.OK, err
    lines = json.loads(out)["lines"]
    # Four an hour, the oldest first; after two hours the rest of an hour is reclaimed.
    expected = {"sent": [10, 11, 12, 13], "consumed": [8, 4, 4, 0], "expired": [2, 7, 8, 0], "active": [0, 0, 0, 13]}
    assert {name: [line[name] for line in lines] for name in expected} == expected
    begins = [datetime.fromisoformat(line["hour"]) for line in lines]
    assert begins == sorted(begins)
    assert all(begin.minute == 0 and begin.utcoffset() is not None for begin in begins)


def test_a_half_message_counts_in_the_hour_of_its_commit(tmp_path: Path, cmq: Cmq):
    rig = transactional(retention_ms=24 * HOUR_MS)
    begin_ms = rig.now_ms
    first, _ = rig.send_half(b"one", b"two")
    rig.settle(HOUR_MS)
    decide(rig, (first, COMMIT))
    folder = tmp_path / "data"
    write_folder(folder, [rows_of(rig)])

    code, out, err = cmq("--path", str(folder), "--output", "json")

    assert code == ExitCode.OK, err
    before, after = json.loads(out)["lines"]
    assert (before["sent"], before["half"]) == (1, 1)
    assert (after["sent"], after["active"]) == (1, 1)

    # The commit lies behind the time that is asked for; the half message is not counted all the same.
    until = datetime.fromtimestamp(begin_ms / 1000 + 60, UTC).isoformat()
    code, out, err = cmq("--path", str(folder), "--to", until, "--output", "json")

    assert code == ExitCode.OK, err
    assert json.loads(out)["lines"] == [before]


def test_queues_of_one_name_in_two_accounts_have_lines_of_their_own(tmp_path: Path, cmq: Cmq):
    theirs = structs.replace(queue_created(8, "orders"), account="other")
    created = [queue_created(7, "orders"), theirs]
    write_folder(tmp_path / "data", [[(created, [], NOW_MS), sends(7, 0, 10), sends(8, 0, 5)]])

    code, out, err = cmq("--path", str(tmp_path / "data"), "--output", "json", "--parquet", str(tmp_path / "p"))
    assert code == ExitCode.OK, err
    lines = [(line["account"], line["queue"], line["sent"], line["active"]) for line in json.loads(out)["lines"]]
    assert lines == [("other", "orders", 5, 5), ("owner", "orders", 10, 10)]
    assert pq.read_table(tmp_path / "p")["account"].to_pylist() == ["other", "owner"]

    code, out, err = cmq("--path", str(tmp_path / "data"))
    table = [line.split() for line in out.splitlines()]
    assert table[0][:3] == ["account", "queue", "hour"]
    assert [line[:2] for line in table[1:3]] == [["other", "orders"], ["owner", "orders"]]
    assert table[3][:2] == ["all", "15"]

    code, _, err = cmq("--path", str(tmp_path / "data"), "--queue", "orders", "--account", "nobody")
    assert (code, "has no account of this name" in err) == (ExitCode.NOT_FOUND, True)


def test_no_java_is_started_and_spark_is_not_imported(hours: Path):
    text = (
        "import sys; from cmq_cli.app import run; code = run(['reconcile', '--path', sys.argv[1]]);"
        "sys.exit(code or bool({'pyspark', 'py4j', 'pyspark_cmqd'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", text, str(hours)], check=False, capture_output=True).returncode == 0


def test_a_segment_that_is_reclaimed_during_the_count_begins_the_count_again(
    hours: Path, cmq: Cmq, monkeypatch: pytest.MonkeyPatch
):
    read = module.read_stretches
    failures = [SegmentReclaimedError("the segment was reclaimed")]

    def reclaimed(task: Task) -> Iterator[Stretch]:
        stretches = list(read(task))
        yield from stretches[:1]
        if failures:
            raise failures.pop()
        yield from stretches[1:]

    monkeypatch.setattr(module, "read_stretches", reclaimed)
    code, out, err = cmq("--path", str(hours), "--output", "json")

    assert code == ExitCode.OK, err
    assert sum(line["sent"] for line in json.loads(out)["lines"]) == 10 + 11 + 12 + 13

    failures += [SegmentReclaimedError("the segment was reclaimed")] * module.ATTEMPTS
    code, _, err = cmq("--path", str(hours))
    assert (code, "reclaims segments faster than they are read" in err) == (ExitCode.FAILED, True)


def test_the_ids_of_halves_are_counted_by_their_lines(tmp_path: Path, cmq: Cmq):
    rig = transactional(retention_ms=24 * HOUR_MS)
    halves = rig.send_half(*[b"half %d" % number for number in range(9)])
    decide(rig, *[(half, COMMIT) for half in halves[2:7]])
    write_folder(tmp_path / "data", [rows_of(rig)])

    code, out, err = cmq("--path", str(tmp_path / "data"), "--output", "json")

    assert code == ExitCode.OK, err
    (line,) = json.loads(out)["lines"]
    assert (line["sent"], line["half"], line["active"]) == (9, 4, 5)


def test_a_log_by_url_has_the_same_lines_and_leaves_no_files(
    hours: Path, tmp_path: Path, cmq: Cmq, monkeypatch: pytest.MonkeyPatch
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    fsspec.filesystem("memory").put(f"{hours}/", "/reconciled/", recursive=True)

    code, out, err = cmq("--path", "memory://reconciled", "--output", "json")

    assert code == ExitCode.OK, err
    assert json.loads(out) == json.loads(cmq("--path", str(hours), "--output", "json")[1])
    assert [path.name for path in temporary.iterdir() if path.name.startswith("cmqd-")] == []


def test_an_empty_log_has_no_lines(tmp_path: Path, cmq: Cmq):
    write_folder(tmp_path / "data", [[([queue_created(7, "orders")], [], NOW_MS)]])

    code, out, _ = cmq("--path", str(tmp_path / "data"), "--output", "json")

    assert code == ExitCode.OK
    assert json.loads(out)["lines"] == []


# ---------------------------------------------------------------------- without


def test_every_state_has_a_column():
    assert set(STATES) == {str(state) for state in State} - {"committed"}


def test_lines_that_do_not_add_up_say_so():
    (line,) = lines_of(
        [
            ("came", "me", "q", 1, "sent", 5),
            ("became", "me", "q", 1, "deleted", 3),
            ("became", "me", "q", 1, "active", 1),
        ]
    )

    assert line.difference == 1
    assert not Reconciled(1, [], [line]).holds
    assert line.hour == datetime(1970, 1, 1, 1, tzinfo=UTC)


def test_a_line_of_half_messages_that_were_all_committed_is_none():
    assert lines_of([("came", "me", "q", 1, "half", 2), ("again", "me", "q", 1, "half", 2)]) == []


def test_an_unbalanced_log_ends_with_1(hours: Path, cmq: Cmq, monkeypatch: pytest.MonkeyPatch):
    def count(*_: object) -> Reconciled:
        return Reconciled(9, [(1, 4)], [Line("q", datetime(2026, 1, 1, tzinfo=UTC), {"sent": 5}, {"consumed": 4})])

    monkeypatch.setattr(module, "reconcile", count)

    code, _, err = cmq("--path", str(hours))

    assert code == ExitCode.FAILED
    assert "5 messages arrived, and 4 are accounted for" in err
    assert "reclaimed rows 1 to 4" in err
    assert "balanced" not in err


def test_rows_that_were_not_looked_at_are_told(hours: Path, cmq: Cmq, monkeypatch: pytest.MonkeyPatch):
    def count(*_: object) -> Reconciled:
        return Reconciled(9, [], [], (10, 12))

    monkeypatch.setattr(module, "reconcile", count)

    code, out, _ = cmq("--path", str(hours), "--output", "json")

    assert (code, json.loads(out)["unsealed_rows"]) == (ExitCode.OK, [10, 12])


def test_mistakes_are_told_before_the_count(tmp_path: Path, cmq: Cmq, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(module, "reconcile", refuse)
    write_folder(tmp_path / "data", [[([queue_created(7, "orders")], [], NOW_MS), sends(7, 0, 1)]])

    code, _, err = cmq("--path", str(tmp_path / "data"), "--queue", "none")
    assert (code, "no queue of this name" in err) == (ExitCode.NOT_FOUND, True)
    code, _, err = cmq("--path", str(tmp_path))
    assert (code, "is not a data folder" in err) == (ExitCode.FAILED, True)
    code, _, err = cmq("--path", str(tmp_path / "data"), "--from", "sometimes")
    assert (code, "'sometimes' is not a time" in err) == (ExitCode.USAGE, True)


def test_a_time_without_a_zone_is_local_and_the_zone_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    write_folder(tmp_path / "data", [[([queue_created(7, "orders")], [], NOW_MS), sends(7, 0, 3)]])
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        ranges = "--from", "2023-11-15T06:13:20", "--to", "2023-11-15T00:00Z"
        code = run(["replay", "--path", str(tmp_path / "data"), "--queue", "orders", "--dry-run", *ranges])
    finally:
        monkeypatch.undo()
        time.tzset()

    out, err = capfd.readouterr()
    assert code == ExitCode.OK, err
    assert "messages sent at or after 2023-11-15T06:13:20+08:00 and before 2023-11-15T08:00:00+08:00" in err
    assert "orders" in out


def test_what_to_install_is_told(tmp_path: Path, cmq: Cmq, monkeypatch: pytest.MonkeyPatch):
    write_folder(tmp_path / "data", [[([queue_created(7, "orders")], [], NOW_MS), sends(7, 0, 1)]])

    monkeypatch.delitem(sys.modules, "cmqd_log.reconcile")
    monkeypatch.setitem(sys.modules, "pyroaring", None)
    code, _, err = cmq("--path", str(tmp_path / "data"))

    assert code == ExitCode.FAILED
    assert "cmqd[log]" in err
    assert "Traceback" not in err
