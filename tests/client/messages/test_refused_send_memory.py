"""Sends that fail leave the memory of the client with their error, without a garbage collection.

The tests use the client without the link of the rig: the link keeps a copy of its bytes.
"""

import gc
import tracemalloc
from collections.abc import Awaitable, Callable

from cmqd_client.errors import CmqError, PartialFailure, QueueNotFound
from support.client.local_server import LocalServer

BODY_BYTES = 900_000
FAILURES = 4
MOST_KEPT = 2 * BODY_BYTES
"""The last failed send may stay with its future, earlier sends may not."""


async def bytes_kept(send: Callable[[], Awaitable[object]], error: type[CmqError]) -> int:
    """Return the bytes that failed sends leave in client and server without a garbage collection."""

    async def fail() -> None:
        try:
            await send()
        except error:
            return
        raise AssertionError("the send was taken")

    await fail()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(FAILURES):
            await fail()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    return kept


async def test_a_refused_send_leaves_no_body(server: LocalServer):
    queue = server.admin.queue("missing")

    # A new body for each send: the tracer counts bodies that were made while it runs.
    assert await bytes_kept(lambda: queue.send(bytes(BODY_BYTES)), QueueNotFound) < MOST_KEPT


async def test_a_refused_publish_leaves_no_body(server: LocalServer):
    topic = server.admin.topic("missing")

    assert await bytes_kept(lambda: topic.publish(bytes(BODY_BYTES)), CmqError) < MOST_KEPT


async def test_a_batch_that_fails_in_its_second_request_leaves_no_body(server: LocalServer):
    queue = await server.admin.create_queue("small", max_message_bytes=1024)
    bodies = [b"small"] * 256

    async def send() -> object:
        return await queue.send_batch([*bodies, bytes(BODY_BYTES)], split=True)

    assert await bytes_kept(send, PartialFailure) < MOST_KEPT
