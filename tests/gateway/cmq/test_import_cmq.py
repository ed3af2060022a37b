"""``cmq import-cmq``: definitions and messages from an endpoint of API 2.0; a gateway before a second broker is it."""

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from cmq_cli.app import run
from cmq_cli.imports.copying import Copied, Selection, Source, copy_definitions
from cmq_cli.imports.definitions import queue_definition, subscription_definition, topic_definition
from cmq_cli.imports.draining import Drained, body_of, dedup_id_of, drain_queue
from cmq_cli.imports.endpoint import CmqEndpoint, EndpointError
from cmqd_client import FilterType
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.local_server import LocalServer
from support.gateway.cmq_calls import CmqCalls
from support.gateway.gateway_rig import GatewayRig


@pytest.fixture
async def target() -> AsyncGenerator[LocalServer]:
    async with LocalServer() as target:
        yield target


@pytest.fixture
async def endpoint(rig: GatewayRig) -> AsyncGenerator[CmqEndpoint]:
    async with CmqEndpoint(
        f"http://{rig.host}", rig.own_key.secret_id, rig.own_key.secret_key, connections=4
    ) as endpoint:
        yield endpoint


async def copy(
    endpoint: CmqEndpoint, target: LocalServer, *, is_trial: bool = False, **selected: list[str]
) -> dict[str, Copied]:
    """Copy definitions, and return the results by name."""
    results: list[Copied] = []
    source, selection = Source(endpoint, endpoint), Selection(**selected)
    await copy_definitions(source, target.admin, selection, is_trial=is_trial, on_copied=results.append)
    assert len({(entry.kind, entry.name) for entry in results}) == len(results)
    return {entry.name: entry for entry in results}


async def drain(endpoint: CmqEndpoint, target: LocalServer, queue: str = "orders") -> Drained:
    return await drain_queue(endpoint, target.admin, queue, wait=0, workers=2, on_moved=lambda _: None)


async def fill(calls: CmqCalls) -> None:
    """Make definitions of every kind at the source."""
    await calls.ok("CreateQueue", queueName="dead", visibilityTimeout=60)
    policy = json.dumps({"deadLetterQueue": "dead", "policy": 0, "maxReceiveCount": 7})
    await calls.ok("CreateQueue", queueName="jobs", rewindSeconds=600, maxMsgSize=2048, deadLetterPolicy=policy)
    by_age = json.dumps({"deadLetterQueue": "dead", "policy": 1, "maxTimeToLive": 600})
    await calls.ok("CreateQueue", queueName="old-jobs", deadLetterPolicy=by_age)
    await calls.ok("CreateQueue", queueName="tx", transaction=1, firstQueryInterval=9, maxQueryCount=3)
    await calls.ok("CreateTopic", topicName="news", maxMsgSize=4096)
    await calls.ok("CreateTopic", topicName="routed", filterType=2)
    await calls.ok(
        "Subscribe",
        topicName="news",
        subscriptionName="hook",
        protocol="https",
        endpoint="https://shop.example/hook",
        notifyStrategy="BACKOFF_RETRY",
        notifyContentFormat="SIMPLIFIED",
        filterTag=["red", "big"],
    )
    await calls.ok(
        "Subscribe",
        topicName="routed",
        subscriptionName="jobs",
        protocol="queue",
        endpoint="jobs",
        bindingKey=["1.*", "#"],
    )


# ---------------------------------------------------------------------- definitions


async def test_all_definitions_are_copied(calls: CmqCalls, endpoint: CmqEndpoint, target: LocalServer) -> None:
    await fill(calls)

    results = await copy(endpoint, target)

    assert {name: entry.result for name, entry in results.items()} == {
        "dead": "created",
        "jobs": "created",
        "old-jobs": "created",
        "orders": "differs",
        "tx": "created",
        "news": "created",
        "news/hook": "created",
        "routed": "created",
        "routed/jobs": "created",
    }
    # The queue "orders" of the target has a polling wait of 200 ms, which API 2.0 shows as 0.
    assert "polling_wait" in results["orders"].notes[0]
    jobs, old_jobs, tx = [await target.info(name) for name in ("jobs", "old-jobs", "tx")]
    assert (jobs.rewind, jobs.max_message_bytes, jobs.dead_letter_queue) == (600, 2048, "dead")
    assert (jobs.dead_letter_max_receives, old_jobs.dead_letter_after) == (7, 600)
    assert (tx.transactional, tx.first_check, tx.max_checks) == (True, 9, 3)
    routed = target.admin.topic("routed")
    assert (await routed.attributes()).filter_type is FilterType.ROUTING
    hook = await target.admin.topic("news").subscription("hook").info()
    assert (hook.endpoint, hook.strategy, hook.content_format) == ("https://shop.example/hook", "backoff", "simplified")
    assert hook.filter_tags == ["red", "big"]
    queue = await routed.subscription("jobs").info()
    assert (queue.protocol, queue.endpoint, queue.binding_keys) == ("queue", "jobs", ["1.*", "#"])
    assert (results["news/hook"].secret or "").startswith("whsec_")


async def test_a_second_run_changes_nothing(calls: CmqCalls, endpoint: CmqEndpoint, target: LocalServer) -> None:
    await fill(calls)
    await copy(endpoint, target)
    await target.admin.queue("tx").set_attributes(visibility_timeout=77)
    await target.admin.queue("jobs").set_attributes(dead_letter_max_receives=8)

    results = await copy(endpoint, target)

    differing = {name for name, entry in results.items() if entry.result == "differs"}
    assert differing == {"orders", "tx", "jobs"}
    assert "dead-letter policy" in results["jobs"].notes[0]
    assert {entry.result for name, entry in results.items() if name not in differing} == {"exists"}
    assert (await target.info("tx")).visibility_timeout == 77
    assert results["news/hook"].secret is None


async def test_a_trial_changes_nothing(calls: CmqCalls, endpoint: CmqEndpoint, target: LocalServer) -> None:
    await fill(calls)

    results = await copy(endpoint, target, is_trial=True)

    assert len(results) == 9
    assert {entry.result for entry in results.values()} == {"found"}
    assert (await target.admin.queues()).names == ["orders"]
    assert (await target.admin.topics()).names == []


async def test_lists_of_several_pages_are_copied(rig: GatewayRig, endpoint: CmqEndpoint, target: LocalServer) -> None:
    for number in range(101):
        await rig.server.admin.create_queue(f"jobs-{number:03}")

    results = await copy(endpoint, target, queues=["jobs-*"])

    assert len(results) == 101
    assert (await target.admin.queues(search="jobs-")).total == 101


@pytest.mark.parametrize(
    ("selected", "names"),
    [
        ({"queues": ["jobs", "d*"]}, ["dead", "jobs"]),
        ({"topics": ["routed"]}, ["routed", "routed/jobs"]),
        ({"queues": ["jobs"], "topics": ["n*"]}, ["jobs", "news", "news/hook"]),
    ],
)
async def test_names_are_selected_by_patterns(
    selected: dict[str, list[str]], names: list[str], calls: CmqCalls, endpoint: CmqEndpoint, target: LocalServer
) -> None:
    await fill(calls)

    assert sorted(await copy(endpoint, target, is_trial=True, **selected)) == names


async def test_a_failure_is_reported_and_ends_nothing(
    calls: CmqCalls, endpoint: CmqEndpoint, target: LocalServer
) -> None:
    await fill(calls)

    results = await copy(endpoint, target, queues=["jobs", "tx"], topics=["*"])

    assert (results["jobs"].result, results["tx"].result) == ("failed", "created")
    assert "dead-letter queue 'dead' does not exist" in results["jobs"].notes[0]
    assert results["routed/jobs"].result == "created"  # the queue exists, without its policy


def test_values_out_of_range_are_replaced_with_a_note() -> None:
    answer: dict[str, Any] = {
        "maxMsgHeapNum": 1_000_000_000,
        "pollingWaitSeconds": 30,
        "visibilityTimeout": 30,
        "maxMsgSize": 65_536,
        "msgRetentionSeconds": 30,
        "rewindSeconds": 43_200,
        "deadLetterPolicy": {"deadLetterQueue": "queue-1", "policy": "1", "maxTimeToLive": "60"},
    }

    definition = queue_definition("jobs", answer, {"queue-1": "dead"})

    assert definition.attributes == {
        "max_backlog": 100_000_000,
        "polling_wait": 30,
        "visibility_timeout": 30,
        "max_message_bytes": 65_536,
        "retention": 60,
        "rewind": 60,
    }
    assert definition.dead_letters is not None
    assert (definition.dead_letters.queue, definition.dead_letters.after) == ("dead", 300)
    assert [note.split()[0] for note in definition.notes] == [
        "msgRetentionSeconds",
        "maxMsgHeapNum",
        "rewindSeconds",
        "maxTimeToLive",
    ]


@pytest.mark.parametrize(
    ("filter_type", "expected"), [(0, FilterType.TAG), (1, FilterType.TAG), (2, FilterType.ROUTING), (None, "tag")]
)
def test_the_filter_types_of_cmqs_documents(filter_type: int | None, expected: FilterType) -> None:
    assert topic_definition("news", {"filterType": filter_type}).attributes.get("filter_type") == expected


async def test_names_of_one_character_and_ignored_keys_are_copied(
    calls: CmqCalls, endpoint: CmqEndpoint, target: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await calls.ok("CreateQueue", queueName="q")
    await calls.ok("CreateTopic", topicName="tee")
    await calls.ok("Subscribe", topicName="tee", subscriptionName="s", protocol="queue", endpoint="q")
    call = endpoint.call

    async def call_of_cmq(action: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        # This gateway shows no ignored keys.
        keys = {"bindingKey": ["double", "x"]} if action == "GetSubscriptionAttributes" else {}
        return await call(action, *arguments, **options) | keys

    monkeypatch.setattr(endpoint, "call", call_of_cmq)

    results = await copy(endpoint, target)

    assert [results[name].result for name in ("q", "tee", "tee/s")] == ["created"] * 3
    assert results["tee/s"].notes == [
        "bindingKey is double, x at the source and left out here: the topic filters by tags"
    ]
    assert (await target.admin.topic("tee").subscription("s").info()).binding_keys == []
    assert (await copy(endpoint, target))["tee/s"].result == "exists"


def test_both_spellings_of_a_subscription_are_read() -> None:
    news = topic_definition("news", {})
    definition = subscription_definition(news, "sub", {"protocal": "queue", "endpoint": "q", "filterTags": ["red"]})

    assert (definition.queue, definition.url, definition.attributes.get("filter_tags")) == ("q", None, ["red"])
    with pytest.raises(ValueError, match="'ftp' is unknown"):
        subscription_definition(news, "sub", {"protocol": "ftp"})


# ---------------------------------------------------------------------- messages


async def test_messages_move_with_their_bodies(rig: GatewayRig, endpoint: CmqEndpoint, target: LocalServer) -> None:
    bodies = [f"body {number}".encode() for number in range(50)] + [bytes(range(256)), "Käffchen ☕".encode()]
    await rig.server.put("orders", *bodies)

    drained = await drain(endpoint, target)

    assert (drained.moved, drained.not_deleted, drained.remaining, drained.error) == (52, 0, 0, "")
    assert sorted(await target.bodies("orders")) == sorted(bodies)
    assert await rig.server.bodies("orders") == []


async def test_large_messages_move(rig: GatewayRig, endpoint: CmqEndpoint, target: LocalServer) -> None:
    for server in (rig.server, target):
        await server.admin.create_queue("large", max_message_bytes=1_048_576)
    bodies = [letter * 1_000_000 for letter in (b"a", b"b", b"c")]
    for body in bodies:
        await rig.server.put("large", body)

    drained = await drain(endpoint, target, "large")

    assert drained.moved == 3
    assert sorted(await target.bodies("large")) == bodies


async def test_moved_messages_are_active_also_in_a_queue_with_a_delay(
    rig: GatewayRig, endpoint: CmqEndpoint, target: LocalServer
) -> None:
    await target.admin.queue("orders").set_attributes(delay=60)
    await rig.server.put("orders", b"a")

    await drain(endpoint, target)

    assert await target.bodies("orders") == [b"a"]


class CloudEndpoint:
    """Answers a receive with more bytes than a batch of this broker has, as CMQ may; a gateway answers with less."""

    def __init__(self, bodies: list[str], enqueue_time: int = 0) -> None:
        self.bodies = bodies
        self.enqueue_time = enqueue_time
        self.deleted: list[str] = []

    async def call(self, action: str, parameters: dict[str, Any], *, wait: float = 0) -> dict[str, Any]:
        if action == "GetQueueAttributes":
            return {}
        if action == "BatchDeleteMessage":
            self.deleted += [value for name, value in parameters.items() if name.startswith("receiptHandle.")]
            return {}
        bodies, self.bodies = self.bodies, []
        if not bodies:
            raise EndpointError(action, "(10200)no message", 7000)
        messages = [
            {
                "msgBody": body,
                "msgId": str(number),
                "receiptHandle": str(number),
                "enqueueTime": self.enqueue_time,
            }
            for number, body in enumerate(bodies)
        ]
        return {"msgInfoList": messages}


async def test_two_messages_with_an_id_are_both_copied(target: LocalServer) -> None:
    """The second message is deleted at the source too, so without a copy of its own it would be lost."""
    for body, enqueue_time in (("a", 1_700_000_000), ("b", 1_700_000_060)):
        drained = await drain(cast("CmqEndpoint", CloudEndpoint([body], enqueue_time)), target)
        assert drained.moved == 1

    assert sorted(await target.bodies("orders")) == [b"a", b"b"]


async def test_a_batch_over_the_limit_of_this_broker_is_stored_in_parts(target: LocalServer) -> None:
    await target.admin.create_queue("large", max_message_bytes=1_048_576)
    cloud = CloudEndpoint(["a" * 600_000, "b" * 600_000])

    drained = await drain(cast("CmqEndpoint", cloud), target, "large")

    assert (drained.moved, cloud.deleted) == (2, ["0", "1"])
    assert [body[:1] for body in await target.bodies("large")] == [b"a", b"b"]


async def test_messages_that_are_not_active_stay_and_are_counted(
    rig: GatewayRig, endpoint: CmqEndpoint, target: LocalServer
) -> None:
    await rig.server.put("orders", b"in flight")
    await rig.server.admin.queue("orders").receive(wait=0)
    await rig.server.put("orders", b"later", delay=60)
    await rig.server.put("orders", b"now")

    drained = await drain(endpoint, target)

    assert (drained.moved, drained.remaining) == (1, 2)


async def test_a_message_that_the_target_refuses_stays_at_the_source(
    rig: GatewayRig, endpoint: CmqEndpoint, target: LocalServer
) -> None:
    await target.admin.queue("orders").set_attributes(max_message_bytes=1024)
    await rig.server.put("orders", b"x" * 1025)

    drained = await drain(endpoint, target)

    assert (drained.moved, drained.remaining) == (0, 1)
    assert "1025 bytes" in drained.error
    rig.server.advance(31)
    assert await rig.server.bodies("orders") == [b"x" * 1025]


async def test_a_message_that_comes_a_second_time_is_stored_once(
    rig: GatewayRig, endpoint: CmqEndpoint, target: LocalServer
) -> None:
    await rig.server.put("orders", b"a")
    rig.retries = 0
    rig.server.link.refuse(wire.DeleteMessages, ErrorCode.INTERNAL_ERROR)

    first = await drain(endpoint, target)
    rig.server.advance(31)
    second = await drain(endpoint, target)

    assert (first.moved, first.not_deleted, first.remaining) == (0, 1, 1)
    assert "6000" in first.error
    assert (second.moved, second.error) == (1, "")
    assert await target.bodies("orders") == [b"a"]


async def test_a_delete_of_an_old_handle_is_counted(
    rig: GatewayRig, endpoint: CmqEndpoint, target: LocalServer
) -> None:
    await rig.server.put("orders", b"a", b"b")

    def expire(connection: Any, request: Any) -> None:
        # The leases end between the send and the delete.
        rig.server.advance(31)
        connection.pass_on(request)

    rig.server.link.answer(wire.DeleteMessages, expire)

    drained = await drain(endpoint, target)

    # The messages came a second time, were known by their dedup ids, and were deleted then.
    assert (drained.moved, drained.not_deleted) == (2, 2)
    assert sorted(await target.bodies("orders")) == [b"a", b"b"]


def test_bodies_and_ids_of_received_messages() -> None:
    assert body_of({"msgBody": "text"}) == b"text"
    encoded = base64.b64encode(b"\xff").decode()
    assert body_of({"msgBody": encoded, "msgBodyEncoding": "base64"}) == b"\xff"


def test_the_dedup_id_of_a_copy_is_made_from_id_and_time_of_sending() -> None:
    ids = [
        dedup_id_of({"msgId": msg_id, "enqueueTime": enqueue_time})
        for msg_id in ("17", "18", "m" * 61, "m" * 62)
        for enqueue_time in (1_700_000_000, 1_700_000_001)
    ]

    assert ids[0] == "cmq:17:1700000000"
    assert len(set(ids)) == len(ids)
    assert max(map(len, ids)) <= 64
    assert dedup_id_of({"msgId": "m" * 61, "enqueueTime": 1_700_000_000}) == ids[4]
    assert dedup_id_of({"msgId": "17"}) == "cmq:17:"


# ---------------------------------------------------------------------- the endpoint


async def test_an_endpoint_that_refuses_or_does_not_answer(rig: GatewayRig) -> None:
    async with CmqEndpoint(f"http://{rig.host}", rig.own_key.secret_id, "wrong", connections=1) as endpoint:
        with pytest.raises(EndpointError, match="ListQueue: code 4100: ") as refused:
            await endpoint.call("ListQueue")
    assert refused.value.code == 4100

    async with CmqEndpoint("http://127.0.0.1:1", "id", "key", connections=1) as endpoint:
        with pytest.raises(EndpointError, match=r"http://127\.0\.0\.1:1 did not answer"):
            await endpoint.call("ListQueue")


async def _answering(answer: bytes) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "HTTP status 502"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "did not answer with JSON of API 2.0"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", "did not answer with JSON of API 2.0"),
        (b"CMQD\x00\x01", "did not answer: "),
    ],
)
async def test_an_endpoint_of_another_kind(answer: bytes, text: str) -> None:
    async with await _answering(answer) as server:
        port = server.sockets[0].getsockname()[1]
        async with CmqEndpoint(f"http://127.0.0.1:{port}", "id", "key", connections=1) as endpoint:
            with pytest.raises(EndpointError, match=text):
                await endpoint.call("ListQueue")


async def test_a_connection_that_was_closed_while_it_was_idle_is_replaced(
    rig: GatewayRig, endpoint: CmqEndpoint
) -> None:
    await endpoint.call("ListQueue")
    (connection,) = endpoint._idle  # pyright: ignore[reportPrivateUsage]
    connection.sock.shutdown(socket.SHUT_RDWR)

    assert (await endpoint.call("ListQueue"))["totalCount"] == 1


async def test_a_request_under_way_ends_with_the_endpoint() -> None:
    came, ended = asyncio.Event(), asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.set()
        await ended.wait()
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as server:
        endpoint = CmqEndpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "id", "key", connections=1)
        call = asyncio.create_task(endpoint.call("ReceiveMessage", wait=600))
        await came.wait()

        endpoint.close()

        with pytest.raises(EndpointError, match="did not answer"):
            await call
        ended.set()


@pytest.mark.parametrize("url", ["cmq://host", "https://", "host:80", "http://id:key@host", "http://host/path"])
def test_a_malformed_endpoint_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        CmqEndpoint(url, "id", "key", connections=1)


# ---------------------------------------------------------------------- the command


@pytest.fixture
def key_file(rig: GatewayRig, tmp_path: Path) -> Path:
    file = tmp_path / "source.key"
    file.touch(mode=0o600)
    file.write_text(f"{rig.own_key.secret_id}:{rig.own_key.secret_key}\n")
    return file


async def cmq(target: LocalServer, *arguments: str) -> int:
    """Run the command beside the loop of the servers."""
    return await asyncio.to_thread(run, ["--url", target.url, "import-cmq", *arguments])


async def test_the_command_copies_and_drains(
    rig: GatewayRig,
    calls: CmqCalls,
    target: LocalServer,
    key_file: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    await fill(calls)
    await rig.server.put("jobs", b"a", b"b")
    flags = (f"http://{rig.host}", "--key-file", str(key_file), "--drain", "--drain-wait", "0")

    code = await cmq(target, *flags, "--queues", "*jobs", "--queues", "dead", "--output", "json")

    out, err = capfd.readouterr()
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert [entry["name"] for entry in document["definitions"]] == ["dead", "jobs", "old-jobs"]
    assert [(entry["queue"], entry["moved"]) for entry in document["drained"]] == [
        ("dead", 0),
        ("jobs", 2),
        ("old-jobs", 0),
    ]
    assert sorted(await target.bodies("jobs")) == [b"a", b"b"]


async def test_the_table_shows_results_and_new_secrets(
    rig: GatewayRig, calls: CmqCalls, target: LocalServer, key_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await fill(calls)

    code = await cmq(target, f"http://{rig.host}", "--key-file", str(key_file))

    out, err = capfd.readouterr()
    assert code == 6  # the queue "orders" differs
    assert "news/hook" in out
    assert "differs" in out
    assert "secret of news/hook, shown only now: whsec_" in err
    assert rig.own_key.secret_key not in out + err


@pytest.mark.parametrize(
    ("content", "mode", "code", "text"),
    [
        ("id:key", 0o644, 4, "can be read by other users"),
        ("only-a-secret", 0o600, 2, "no line SECRET_ID:SECRET_KEY"),
        (None, 0o600, 1, "No such file"),
    ],
)
async def test_a_key_file_that_cannot_be_used(
    content: str | None,
    mode: int,
    code: int,
    text: str,
    target: LocalServer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
        os.chmod(file, mode)

    assert await cmq(target, "http://127.0.0.1:1", "--key-file", str(file)) == code

    err = capfd.readouterr().err
    assert text in err
    assert "only-a-secret" not in err


async def test_an_endpoint_that_does_not_answer_ends_the_command(
    target: LocalServer, key_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await cmq(target, "http://127.0.0.1:1", "--key-file", str(key_file)) == 1

    assert "did not answer" in capfd.readouterr().err


@pytest.mark.parametrize("flags", [("--drain", "--dry-run"), ("--drain", "--topics", "news")])
async def test_options_that_contradict_one_another(flags: tuple[str, ...], target: LocalServer, key_file: Path) -> None:
    assert await cmq(target, "http://127.0.0.1:1", "--key-file", str(key_file), *flags) == 2
