"""Refused requests leave memory with their reply, without a garbage collection.

The traceback of a refusal holds the frames of the request, and a frame with its own refusal would make a cycle.
"""

import gc
import tracemalloc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from cmqd.server.handlers import publishing
from cmqd_protocol import messages as wire
from cmqd_protocol.frames import header
from cmqd_protocol.messages import Request
from cmqd_segment.records import QueueAttributesSet
from support.server.server_rig import RigClient, ServerRig, a_queue, code_of

BODY_BYTES = 1_000_000
BODY = b"x" * BODY_BYTES
REFUSALS = 4
"""Refused requests of a case. Small objects of the counters and caches may stay, bodies may not."""


@contextmanager
def traced() -> Generator[Callable[[], int]]:
    """Trace memory without a garbage collector; yields a function that returns the bytes left by the block."""
    left = [0]
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield lambda: left[0]
        left[0], _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()


async def bytes_kept(client: RigClient, begin: Callable[[], int], code: str) -> int:
    """Return the bytes that refused requests leave without a garbage collection."""

    async def refuse() -> None:
        request_id = begin()
        await client.settle()
        assert code_of(client.replies.pop(request_id)) == code

    await refuse()
    with traced() as kept:
        for _ in range(REFUSALS):
            await refuse()
    return kept()


Make = Callable[..., Request]

REFUSED: dict[str, tuple[str, Make, tuple[Any, ...], dict[str, Any]]] = {
    "send to a missing queue": ("queue_not_found", wire.SendMessages, ("missing", [BODY]), {}),
    "plain send over the size": ("message_too_large", wire.SendMessages, ("small", [BODY]), {}),
    "numbered send over the size": ("message_too_large", wire.SendMessages, ("small", [BODY]), {"session": 7}),
    "delayed send over the size": ("message_too_large", wire.SendMessages, ("small", [BODY]), {"delay_ms": 1_000}),
    "send of two times": ("invalid_argument", wire.SendMessages, ("wide", [BODY]), {"delay_ms": 1, "at_ms": 1}),
    "plain send to a full queue": ("backlog_full", wire.SendMessages, ("full", [BODY]), {}),
    "delayed send to a full queue": ("backlog_full", wire.SendMessages, ("full", [BODY]), {"delay_ms": 1_000}),
    "half message of a plain queue": ("not_transactional", wire.SendHalfMessages, ("small", [BODY]), {}),
    "publish to a missing topic": ("topic_not_found", wire.PublishMessages, ("missing", [BODY]), {}),
    "publish over the size": ("message_too_large", wire.PublishMessages, ("news", [BODY]), {}),
    "publish without a routing key": ("invalid_argument", wire.PublishMessages, ("routes", [BODY]), {}),
    "schedule of a missing queue": (
        "queue_not_found",
        wire.CreateSchedule,
        ("nightly", {"queue": "missing", "cron": "0 2 * * *"}, BODY),
        {},
    ),
}


async def queues_and_topics(rig: ServerRig, client: RigClient) -> None:
    await a_queue(client, "small", max_message_bytes=1024)
    await a_queue(client, "full", max_message_bytes=1_048_576)
    await a_queue(client, "wide", max_message_bytes=1_048_576)
    await client.send("full", b"first")
    queue = rig.broker.facts.queues.find("admin", "full")
    # No owner may set so low a limit, so the fact is written as the log would tell it.
    attributes = msgspec.structs.replace(queue.index.attributes, max_backlog=1)
    record = QueueAttributesSet(queue.queue_id, attributes, rig.broker_clock.now_ms())
    rig.log.append([record], [], rig.broker_clock.now_ms())
    rig.broker.replay(record, rig.log.last_lsn)
    await client.expect(wire.TopicInfo, wire.CreateTopic, "news", {"max_message_bytes": 1024})
    await client.expect(
        wire.TopicInfo, wire.CreateTopic, "routes", {"filter_type": "routing", "max_message_bytes": 1_048_576}
    )


@pytest.mark.parametrize("case", REFUSED)
async def test_a_request_that_the_core_refuses_leaves_no_body(rig: ServerRig, case: str):
    client = await rig.client()
    await queues_and_topics(rig, client)
    code, make, arguments, named = REFUSED[case]

    kept = await bytes_kept(client, lambda: client.begin(make(client.next_id(), *arguments, **named)), code)

    assert kept < BODY_BYTES


async def test_a_publish_that_is_refused_in_a_later_slice_leaves_no_body(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(publishing, "SLICE_UNITS", 1)
    client = await rig.client()
    await queues_and_topics(rig, client)

    def begin() -> int:
        return client.begin(wire.PublishMessages(client.next_id(), "news", [b"a", b"b", BODY]))

    assert await bytes_kept(client, begin, "message_too_large") < BODY_BYTES


@pytest.mark.parametrize(("roles", "names"), [(["consume"], ["*"]), (["send"], ["orders-*"])], ids=["role", "name"])
async def test_a_request_that_the_permissions_of_a_key_refuse_leaves_no_body(
    rig: ServerRig, roles: list[str], names: list[str]
):
    await queues_and_topics(rig, await rig.client())
    client = await rig.client(await rig.accounts.create_role_key("admin", None, roles, names, 1))

    def begin() -> int:
        return client.begin(wire.SendMessages(client.next_id(), "full", [BODY]))

    assert await bytes_kept(client, begin, "permission_denied") < BODY_BYTES


async def test_a_request_that_only_an_administrator_may_make_leaves_no_body(rig: ServerRig):
    client = await rig.client(await rig.accounts.create_role_key("admin", None, ["send"], ["*"], 1))

    def begin() -> int:
        return client.begin(wire.CreateAccount(client.next_id(), "x" * BODY_BYTES))

    assert await bytes_kept(client, begin, "permission_denied") < BODY_BYTES


MALFORMED: dict[str, tuple[Any, Any]] = {
    "wrong type behind the bodies": ("jobs", "seven"),
    "name that is not UTF-8": (msgspec.Raw(b"\xa1\xff"), 0),
    "name of a wrong type": (5, 0),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_request_leaves_no_body(rig: ServerRig, case: str):
    client = await rig.client()
    name, session = MALFORMED[case]

    def begin() -> int:
        return client.begin(wire.SendMessages(client.next_id(), name, [BODY], session=session))

    assert await bytes_kept(client, begin, "invalid_argument") < BODY_BYTES


@pytest.mark.parametrize(
    "start", [b"\x92\x10\xc0", b"\x93\x10\x00", b"\xc1"], ids=["no number", "number 0", "no MessagePack"]
)
async def test_a_malformed_frame_that_ends_its_connection_leaves_no_body(rig: ServerRig, start: bytes):
    clients = [await rig.client() for _ in range(REFUSALS + 1)]
    frame = header(len(start) + BODY_BYTES) + start + BODY

    async def end(client: RigClient) -> None:
        client.connection.data_received(frame)
        await client.settle()
        assert client.ended is not None

    await end(clients.pop())
    with traced() as kept:
        for client in clients:
            await end(client)

    assert kept() < BODY_BYTES
