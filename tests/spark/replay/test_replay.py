"""``cmq replay`` out of and into a real broker, without Spark and with a real session."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cmq_cli.app import run as run_cmq
from cmq_cli.exitcodes import ExitCode
from cmqd_client import Client, FilterType, Message, Outgoing, connect
from cmqd_log.copy.journal import locked
from cmqd_log.copy.requests import MARK
from cmqd_segment.manifest import read_manifest, write_manifest
from cmqd_segment.records import QueueCreated
from cmqd_types.attributes import QueueAttributes
from support.client.cmq_runs import Cmq, Ran
from support.eventually import eventually_elsewhere
from support.processes.running_broker import RunningBroker
from support.spark.log_folder import queue_created, sends, write_folder
from support.spark.log_store import serving
from support.storage.log_rig import NOW_MS, body

pytestmark = [pytest.mark.spark, pytest.mark.system]

ORDERS = 600
NEWS = 90


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """600 orders in six rows, and 90 news with tags and with keys; all rows sealed."""
    with RunningBroker(tmp_path_factory.mktemp("broker"), "--durability", "os") as broker:

        async def fill(client: Client) -> None:
            orders = await client.create_queue("orders", rewind=3600)
            news = await client.create_topic("news")
            routes = await client.create_topic("routes", filter_type=FilterType.ROUTING)
            inbox = await client.create_queue("inbox")
            await news.subscribe("inbox", queue=inbox)
            await routes.subscribe("inbox", queue=inbox, binding_keys=["#"])
            for first in range(0, ORDERS, 100):
                numbers = range(first, first + 100)
                await orders.send_batch([Outgoing(b"order-%d" % number, {"n": str(number)}) for number in numbers])
            bodies = [b"news-%d" % number for number in range(NEWS)]
            await news.publish_batch(bodies, tags=[["odd" if number % 2 else "even"] for number in range(NEWS)])
            await routes.publish_batch(bodies, routing_keys=[f"eu.{number % 3}.paid" for number in range(NEWS)])
            await client.seal_segments()

        with_client(broker, fill)
        yield broker


def with_client(broker: RunningBroker, work: Callable[[Client], Any]) -> Any:
    async def connected() -> Any:
        async with connect(broker.url) as client:
            return await work(client)

    return asyncio.run(connected())


@pytest.fixture
def target(broker: RunningBroker, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    name = str(request.node.name).replace("[", "-").strip("]")[-55:]

    async def create(client: Client) -> None:
        await client.create_queue(name)

    with_client(broker, create)
    return name


CORE = ()
SPARK = ("--master", "local[2]")
both_ways = pytest.mark.parametrize("cmq", [CORE, SPARK], ids=["core", "spark"], indirect=True)
"""Without a master, and with Spark."""


@pytest.fixture
def cmq(
    broker: RunningBroker,
    request: pytest.FixtureRequest,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Cmq:
    """Runs ``cmq replay`` in this process, by default without Spark. No run prints or stores the key."""
    way: tuple[str, ...] = getattr(request, "param", CORE)
    if way:
        request.getfixturevalue("spark")
    monkeypatch.setenv("CMQ_URL", broker.url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    key = broker.url.split(":")[2].split("@")[0]

    def run(*arguments: str) -> Ran:
        capfdbinary.readouterr()
        code = run_cmq(["replay", *arguments, *way])
        captured = capfdbinary.readouterr()
        written = b"".join(file.read_bytes() for file in (tmp_path / "state").rglob("*.json"))
        assert key.encode() not in captured.out + captured.err + written
        return Ran(int(code), captured.out.decode(), captured.err.decode(), captured.out)

    return run


def path(broker: RunningBroker) -> str:
    return str(broker.folder / "data")


def orders(broker: RunningBroker, target: str, *more: str) -> list[str]:
    return ["--path", path(broker), "--queue", "orders", "--into", target, "--output", "json", *more]


def taken(broker: RunningBroker, name: str) -> list[Message]:
    """Take all messages out of a queue."""

    async def take(client: Client) -> list[Message]:
        messages: list[Message] = []
        while received := await client.queue(name).receive(256, wait=0):
            messages += received
            await client.queue(name).delete_batch(received)
        return messages

    return with_client(broker, take)


def waiting(broker: RunningBroker, name: str) -> int:
    async def ask(client: Client) -> int:
        return (await client.queue(name).attributes()).active

    return with_client(broker, ask)


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


ALL_ORDERS = [b"order-%d" % number for number in range(ORDERS)]


def test_a_dry_run_counts_and_sends_nothing(cmq: Cmq, broker: RunningBroker, target: str, tmp_path: Path) -> None:
    ran = cmq(*orders(broker, target, "--dry-run", "--slice", "250"))

    assert ran.code == ExitCode.OK
    counted = ran.json
    assert counted["state"] == "dry run"
    assert (counted["messages"], counted["rows"], counted["slices"]) == (ORDERS, 6, 3)
    assert counted["bytes"] == sum(map(len, ALL_ORDERS))
    (one,) = counted["counts"]
    assert (one["source"], one["event"], one["rows"], one["messages"]) == ("orders", "sent", 6, ORDERS)
    assert waiting(broker, target) == 0
    assert not (tmp_path / "state").exists()

    table = cmq("--path", path(broker), "--queue", "orders,inbox", "--dry-run")
    assert [line.split()[:4] for line in table.out.splitlines()[1:]] == [
        ["inbox", "copied", "2", "180"],
        ["orders", "sent", "6", "600"],
    ]
    assert "780 messages" in table.err
    assert "nothing was sent" in table.err


@both_ways
def test_a_queue_is_replayed_in_order(cmq: Cmq, broker: RunningBroker, target: str) -> None:
    ran = cmq(*orders(broker, target, "--slice", "200", "--mark"))

    assert ran.code == ExitCode.OK
    assert (ran.json["state"], ran.json["slices_done"], ran.json["messages_sent"]) == ("done", 3, ORDERS)
    assert ran.json["perhaps_twice"] == []
    messages = taken(broker, target)
    assert bodies(messages) == ALL_ORDERS
    for message in messages:
        source, number, moment = message.headers.pop(MARK).split("/")
        assert message.headers == {"n": message.body.decode()[6:]}
        assert source == "orders"
        assert number.startswith("Msg-")
        assert moment.endswith("Z")
        assert message.id != number

    again = cmq("--resume", ran.json["run"], "--output", "json")
    assert (again.code, again.json["state"], again.json["messages_sent"]) == (ExitCode.OK, "done", ORDERS)
    assert waiting(broker, target) == 0


@both_ways
def test_tags_are_chosen_by_and_kept(cmq: Cmq, broker: RunningBroker, target: str) -> None:
    async def prepare(client: Client) -> None:
        topic = await client.create_topic(f"to-{target}")
        await topic.subscribe("odd", queue=target, filter_tags=["odd"])

    with_client(broker, prepare)

    ran = cmq("--path", path(broker), "--topic", "news", "--into-topic", f"to-{target}", "--output", "json")
    assert (ran.code, ran.json["messages_sent"]) == (ExitCode.OK, NEWS)
    assert bodies(taken(broker, target)) == [b"news-%d" % number for number in range(NEWS) if number % 2]

    ran = cmq("--path", path(broker), "--topic", "news", "--tags", "even,none", "--into", target, "--output", "json")
    assert (ran.code, ran.json["messages_sent"]) == (ExitCode.OK, NEWS // 2)
    assert bodies(taken(broker, target)) == [b"news-%d" % number for number in range(0, NEWS, 2)]


@both_ways
def test_routing_keys_are_chosen_by_and_kept(cmq: Cmq, broker: RunningBroker, target: str) -> None:
    async def prepare(client: Client) -> None:
        topic = await client.create_topic(f"to-{target}", filter_type=FilterType.ROUTING)
        await topic.subscribe("ones", queue=target, binding_keys=["eu.1.*"])

    with_client(broker, prepare)
    into = ["--path", path(broker), "--queue", "inbox", "--into-topic", f"to-{target}", "--output", "json"]

    refused = cmq(*into)
    assert refused.code == ExitCode.FAILED
    assert "90 of the messages have no routing key" in refused.err

    ran = cmq(*into, "--routing-key", "eu.#")
    assert (ran.code, ran.json["messages_sent"]) == (ExitCode.OK, NEWS)
    assert bodies(taken(broker, target)) == [b"news-%d" % number for number in range(1, NEWS, 3)]


@both_ways
def test_modes_and_ranges(cmq: Cmq, broker: RunningBroker, target: str) -> None:
    async def work(client: Client) -> str:
        queue = await client.create_queue(f"work-{target}", visibility_timeout=3600)
        middle = ""
        for first in (0, 20):
            await queue.send_batch([b"work-%d" % number for number in range(first, first + 20)])
            await asyncio.sleep(0.05)
            middle = middle or f"{time.time():.3f}"
            await asyncio.sleep(0.05)
        received = await queue.receive(10)
        await queue.delete_batch(received[:7])
        return middle

    moment = with_client(broker, work)
    iso = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(float(moment))) + "." + moment.split(".")[1] + "Z"
    work_into = [
        "--path",
        path(broker),
        "--queue",
        f"work-{target}",
        "--into",
        target,
        "--include-active",
        "--output",
        "json",
    ]

    unsealed = cmq("--path", path(broker), "--queue", "orders", "--dry-run")
    assert "did not read rows" in unsealed.err

    for options, wanted in (
        (("--mode", "consumed"), range(7)),
        (("--mode", "backlog", "--slice", "5"), range(7, 40)),
        (("--mode", "all", "--event", "active"), range(10, 40)),
        (("--from", iso), range(20, 40)),
        (("--to", iso), range(20)),
        (("--mode", "all", "--to", iso, "--slice", "5"), range(20)),
    ):
        ran = cmq(*work_into, *options)
        assert (ran.code, ran.json["messages_sent"]) == (ExitCode.OK, len(wanted)), options
        assert bodies(taken(broker, target)) == [b"work-%d" % number for number in wanted], options

    ran = cmq(*orders(broker, target, "--event", "moved"))
    assert (ran.code, ran.json["messages"]) == (ExitCode.OK, 0)
    assert ran.json["left_out"] == [{"source": "orders", "event": "sent", "messages": ORDERS}]


@both_ways
def test_the_rate_is_held(cmq: Cmq, broker: RunningBroker, target: str) -> None:
    rate = 300

    ran = cmq(*orders(broker, target, "--rate", str(rate), "--parallel", "2"))

    assert (ran.code, ran.json["messages_sent"]) == (ExitCode.OK, ORDERS)
    times = sorted(message.enqueue_time.timestamp() for message in taken(broker, target))
    assert times[-1] - times[0] >= ORDERS / rate * 0.8


@both_ways
def test_stopped_in_the_middle_it_goes_on_and_nothing_is_doubled(
    cmq: Cmq, broker: RunningBroker, target: str, tmp_path: Path
) -> None:
    def stop() -> None:
        eventually_elsewhere(lambda: waiting(broker, target) > 200)
        os.kill(os.getpid(), signal.SIGINT)

    stopping = threading.Thread(target=stop)
    stopping.start()
    # The second slice takes two seconds: the stop comes within this slice.
    stopped = cmq(*orders(broker, target, "--slice", "200", "--rate", "100"))
    stopping.join()

    assert (stopped.code, stopped.json["state"]) == (ExitCode.INTERRUPTED, "stopped")
    run = stopped.json["run"]
    assert stopped.json["slices_done"] == 1
    assert stopped.json["under_way"]["messages"] == 200
    assert 200 < waiting(broker, target) < 400

    refused = cmq("--resume", run, "--into", "orders")
    assert (refused.code, "leave --into out" in refused.err) == (ExitCode.USAGE, True)
    file = tmp_path / "state" / "cmq" / "replays" / f"{run}.json"
    with locked(file):
        assert "another process is carrying out this run" in cmq("--resume", run).err
    # As if the run had been stopped long ago. The broker still remembers, which the command cannot know.
    journal = json.loads(file.read_text())
    journal["begun"] -= 400
    file.write_text(json.dumps(journal))

    ran = cmq("--resume", run, "--output", "json", "--rate", "100000")

    assert (ran.code, ran.json["state"], ran.json["messages_sent"]) == (ExitCode.OK, "done", ORDERS)
    assert bodies(taken(broker, target)) == ALL_ORDERS
    (doubt,) = ran.json["perhaps_twice"]
    assert doubt["messages"] == 200
    assert "the server no longer remembers" in ran.err
    assert f"rows {doubt['first_lsn']} to {doubt['last_lsn']}, up to 200 messages may have been stored twice" in ran.err


@both_ways
def test_killed_in_the_middle_of_a_slice_it_goes_on(
    cmq: Cmq, broker: RunningBroker, target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    journal = tmp_path / "here" / "run.json"
    command = [sys.executable, "-m", "cmq_cli", "replay", *orders(broker, target)]
    command += ["--slice", "200", "--rate", "50", "--state", str(journal), *request.node.callspec.params["cmq"]]
    environment = {**os.environ, "CMQ_URL": broker.url, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while waiting(broker, target) <= 200 and process.poll() is None:
            time.sleep(0.02)
        process.kill()
        assert process.stderr is not None
        told = process.stderr.read().decode()
    assert process.returncode == -signal.SIGKILL, told
    assert json.loads(journal.read_text())["done"] == 1
    assert 200 < waiting(broker, target) < 400

    assert "resume its run" in cmq(*orders(broker, target), "--state", str(journal)).err
    ran = cmq("--resume", str(journal), "--output", "json", "--rate", "100000")

    assert (ran.code, ran.json["messages_sent"], ran.json["perhaps_twice"]) == (ExitCode.OK, ORDERS, [])
    assert bodies(taken(broker, target)) == ALL_ORDERS


def test_a_run_goes_on_with_the_same_log_and_target_only(
    cmq: Cmq, broker: RunningBroker, target: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    assert cmq(*orders(broker, target), "--state", str(file)).code == ExitCode.OK
    journal = json.loads(file.read_text())

    def resumed(**changed: Any) -> str:
        file.write_text(json.dumps({**journal, "done": 0, **changed}))
        ran = cmq("--resume", str(file))
        assert ran.code == ExitCode.FAILED
        return ran.err

    slices = [{**journal["slices"][0], "check": 1}]
    assert "does not hold the log of the run" in resumed(slices=slices)
    assert "does not hold the log of the run" in resumed(position=1_000_000)
    assert "is not the target that the run began with" in resumed(target_id=1)
    assert len(taken(broker, target)) == ORDERS


@pytest.mark.parametrize(
    ("resume", "text"),
    [
        ("r-000000000000", "does not exist"),
        ("{folder}/none/run.json", "does not exist"),
        ("{folder}", "Is a directory"),
        ("", "Is a directory"),
        ("{folder}/notes.txt", "is not the journal of a replay"),
        ("{folder}/zero.json", "Expected `int` >= 1 - at `$.parallel`"),
    ],
)
def test_a_path_without_a_journal_is_refused_and_left_as_it_is(
    cmq: Cmq, tmp_path: Path, resume: str, text: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "notes.txt").write_text("notes")
    empty: dict[str, Any] = {
        "run": "r-0123456789ab",
        "source": {},
        "position": 1,
        "events": [],
        "target_id": 1,
        "server": "",
    }
    (folder / "zero.json").write_text(json.dumps({**empty, "slices": [], "parallel": 0}))
    before = sorted(tmp_path.rglob("*"))

    ran = cmq("--resume", resume.format(folder=folder))

    assert ran.code == ExitCode.FAILED
    assert text in ran.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--into", "x"), ExitCode.USAGE, "give the data folder"),
        (("--path", "{path}", "--into", "x"), ExitCode.USAGE, "give the source"),
        (("--path", "{path}", "--queue", "orders"), ExitCode.USAGE, "give the target"),
        (
            ("--path", "{path}", "--queue", "orders", "--into", "x", "--into-topic", "y"),
            ExitCode.USAGE,
            "give the target",
        ),
        (("--path", "{path}", "--queue", "orders", "--into", "orders"), ExitCode.USAGE, "the source and the target"),
        (("--path", "{path}", "--topic", "news", "--into-topic", "news"), ExitCode.USAGE, "the source and the target"),
        (("--path", "{path}", "--queue", "orders", "--into", "nowhere"), ExitCode.NOT_FOUND, "nowhere"),
        (("--path", "{path}", "--queue", "orders", "--into-topic", "nowhere"), ExitCode.NOT_FOUND, "nowhere"),
        (("--path", "{path}", "--queue", "orders", "--into-topic", "news", "--create"), ExitCode.USAGE, "topic create"),
        (("--path", "{path}", "--queue", "ordres", "--into", "inbox"), ExitCode.USAGE, "'ordres'"),
        (("--path", "{path}/none", "--queue", "orders", "--into", "inbox"), ExitCode.FAILED, "not a data folder"),
        (("--path", "{path}", "--queue", "orders", "--into", "inbox", "--from", "soon"), ExitCode.USAGE, "not a time"),
        (
            ("--path", "{path}", "--queue", "orders", "--into", "inbox", "--from", "1h", "--to", "2h"),
            ExitCode.USAGE,
            "--to is 2h, which is before --from, 1h",
        ),
        (
            ("--path", "{path}", "--queue", "orders", "--into", "inbox", "--from", "1h", "--from-lsn", "2"),
            ExitCode.USAGE,
            "give --from or --from-lsn, not both",
        ),
        (("--path", "{path}", "--queue", "orders", "--into", "inbox", "--rate", "0"), ExitCode.USAGE, "--rate is 0"),
        (
            ("--path", "{path}", "--topic", "news", "--mode", "all", "--into", "inbox"),
            ExitCode.USAGE,
            "read in mode events",
        ),
        (("--resume", "r-000000000000"), ExitCode.FAILED, "does not exist"),
    ],
)
def test_wrong_options_are_told_before_anything_is_sent(
    cmq: Cmq, broker: RunningBroker, options: tuple[str, ...], code: ExitCode, text: str
) -> None:
    before = waiting(broker, "inbox")

    ran = cmq(*(option.replace("{path}", path(broker)) for option in options))

    assert (ran.code, text in ran.err) == (code, True), ran.err
    assert "Traceback" not in ran.err
    assert waiting(broker, "inbox") == before


def test_a_queue_is_made_large_enough_and_a_small_one_is_refused(cmq: Cmq, broker: RunningBroker, target: str) -> None:
    async def send(client: Client) -> None:
        queue = await client.create_queue("large", max_message_bytes=1 << 20)
        await queue.send(b"x" * 100_000)

    with_client(broker, send)
    large = ["--path", path(broker), "--queue", "large", "--include-active", "--into"]

    refused = cmq(*large, target)
    assert (refused.code, "takes at most 65536" in refused.err) == (ExitCode.FAILED, True)
    assert cmq(*large, "large-replay", "--create").code == ExitCode.OK
    assert bodies(taken(broker, "large-replay")) == [b"x" * 100_000]


def test_a_queue_is_replayed_into_itself_only_if_that_is_meant(cmq: Cmq, broker: RunningBroker) -> None:
    async def send(client: Client) -> None:
        await (await client.create_queue("echo")).send_batch([b"echo-%d" % number for number in range(5)])

    with_client(broker, send)
    into_itself = ["--path", path(broker), "--queue", "echo", "--into", "echo", "--include-active"]

    assert cmq(*into_itself).code == ExitCode.USAGE
    assert cmq(*into_itself, "--allow-same-queue").code == ExitCode.OK
    assert bodies(taken(broker, "echo")) == [b"echo-%d" % number for number in range(5)] * 2


@both_ways
def test_a_log_by_url_is_replayed(cmq: Cmq, broker: RunningBroker, target: str, tmp_path: Path) -> None:
    with serving(broker.folder) as store:
        replay = ["--path", store.url, "--queue", "orders", "--into", target, "--output", "json"]
        ran = cmq(*replay, "--slice", "200", "--state", str(tmp_path / "run.json"))
        assert (ran.code, ran.json["messages_sent"], ran.json["slices_done"]) == (ExitCode.OK, ORDERS, 3)
        assert bodies(taken(broker, target)) == ALL_ORDERS

        segments = [path for path, _ in store.asked if path.endswith(".db")]
        # Once for the count and once for the run, however many slices a segment has.
        assert len(segments) <= 2 * len(set(segments))

        # The journal has the URL, from which the run goes on.
        journal = json.loads((tmp_path / "run.json").read_text())
        assert journal["source"]["path"] == store.url
        (tmp_path / "run.json").write_text(json.dumps({**journal, "run": "r-000000000002", "done": 1, "sent": 200}))
        ran = cmq("--resume", str(tmp_path / "run.json"), "--output", "json")
        assert (ran.code, ran.json["messages_sent"]) == (ExitCode.OK, ORDERS)
        assert bodies(taken(broker, target)) == ALL_ORDERS[200:]


@both_ways
def test_a_refusal_of_the_broker_ends_the_run_with_its_reason(
    cmq: Cmq, broker: RunningBroker, target: str, tmp_path: Path
) -> None:
    """The queue is deleted during the run, which waits for its rate in the second slice."""

    def delete() -> None:
        eventually_elsewhere(lambda: waiting(broker, target) > 200)
        with_client(broker, lambda client: client.delete_queue(target))

    deleting = threading.Thread(target=delete)
    deleting.start()
    ran = cmq(*orders(broker, target, "--slice", "200", "--rate", "100"))
    deleting.join()

    assert ran.code == ExitCode.FAILED
    assert f"messages cannot be sent to queue {target!r}" in ran.err
    assert "QueueNotFound" in ran.err
    assert "resume with: cmq replay --resume" in ran.err


@both_ways
def test_rows_that_are_gone_are_told(cmq: Cmq, broker: RunningBroker, target: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    later = [[sends(1, first, 10, NOW_MS + first * 1000)] for first in (10, 20)]
    write_folder(folder, [[([queue_created(1, "orders")], [], NOW_MS), sends(1, 0, 10)], *later])
    replay = ["--path", str(folder), "--queue", "orders", "--into", target]
    assert cmq(*replay).code == ExitCode.OK
    assert bodies(taken(broker, target)) == [body(1, position) for position in range(30)], "in order, over segments"
    journal = tmp_path / "run.json"
    assert cmq(*replay, "--state", str(journal), "--slice", "10").code == ExitCode.OK
    assert len(taken(broker, target)) == 30, "another run sends all of it again"
    undone = json.loads(journal.read_text()) | {"done": 1, "sent": 10}

    manifest = read_manifest(folder)
    first, second, third = manifest.segments[:3]
    gone = [(second.first_lsn, second.last_lsn)]
    write_manifest(folder, structs.replace(manifest, segments=[first, third], dropped=gone))

    early = ["--from", "2000-01-01"]
    refused = cmq(*replay, *early)
    assert refused.code == ExitCode.FAILED
    assert "reclaimed, or lost to damage" in refused.err
    assert "--allow-data-loss reads the remaining rows" in refused.err
    assert waiting(broker, target) == 0
    ran = cmq(*replay, *early, "--allow-data-loss", "--output", "json")
    assert (ran.code, ran.json["slices"], ran.json["messages_sent"]) == (ExitCode.OK, 2, 20)

    journal.write_text(json.dumps(undone))
    assert "which the run sends next" in cmq("--resume", str(journal)).err
    journal.write_text(json.dumps({**undone, "run": "r-000000000001", "allow_data_loss": True}))
    ran = cmq("--resume", str(journal), "--output", "json")
    assert (ran.code, ran.json["messages_sent"], ran.json["messages"]) == (ExitCode.PARTIAL, 20, 30)
    assert "10 messages were reclaimed before they were replayed" in ran.err


def test_queues_of_one_name_in_two_accounts_are_told_apart(cmq: Cmq, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    created = [
        QueueCreated(number, account, "orders", QueueAttributes(), NOW_MS) for number, account in ((1, "a"), (2, "b"))
    ]
    write_folder(folder, [[(created, [], NOW_MS), sends(1, 0, 10), sends(2, 0, 5)]])
    dry = ["--path", str(folder), "--queue", "orders", "--dry-run", "--output", "json"]

    refused = cmq(*dry)
    assert (refused.code, "--account is missing" in refused.err) == (ExitCode.USAGE, True)
    assert cmq(*dry, "--account", "b").json["messages"] == 5


def test_without_the_spark_set_it_says_what_to_install(
    cmq: Cmq, broker: RunningBroker, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr("pyspark_cmqd.session.find_spec", nothing)
    ran = cmq(*orders(broker, target, *SPARK))
    assert (ran.code, "cmqd[spark]" in ran.err) == (ExitCode.FAILED, True)
    assert waiting(broker, target) == 0
