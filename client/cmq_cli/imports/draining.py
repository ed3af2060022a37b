"""Drains the messages of queues from an endpoint of API 2.0 into queues of a broker.

    source: BatchReceiveMessage ──► target: send, durable ──► source: BatchDeleteMessage

A message is deleted at the source only after its copy is on disk, so a failure at any moment loses no message. A
message that was copied and not deleted becomes visible again at the source and comes a second time. Its copy has a
dedup id made from id and time of sending at the source, so a second copy within the broker's five minutes is not
stored. The id alone is no identity: no document of CMQ says that a source never uses an id for two messages, and the
second message would be deleted at the source without a copy.
"""

import asyncio
import base64
import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cmq_cli.imports.endpoint import CmqEndpoint, EndpointError
from cmqd_client import Client, CmqError

BATCH: Final = 16
NO_MESSAGE: Final = 7000
HANDLE_INVALID: Final = 4430
DELETE_FAILURES: Final = (6010, 6020)
MAX_DEDUP_ID_BYTES: Final = 64


class Drained(msgspec.Struct, kw_only=True):
    """The result of a drain."""

    queue: str
    moved: int = 0
    """Messages that were copied and deleted at the source."""
    not_deleted: int = 0
    """Messages that were copied, with a failed delete at the source."""
    remaining: int = 0
    """Messages that are still at the source: in flight with other consumers, delayed, or new."""
    error: str = ""
    """Reason of an early end: no answer of the source, or a message that the target does not take."""


async def drain_queue(
    source: CmqEndpoint,
    target: Client,
    queue: str,
    *,
    wait: int,
    workers: int,
    on_moved: Callable[[int], object],
) -> Drained:
    """Move messages until the source has no active message for the length of a wait.

    Cancelling is safe: messages under way become visible again at the source.

    Args:
        source: the endpoint.
        target: the broker, with a queue of the same name.
        queue: the name of the queue.
        wait: seconds that the last receives wait for another message, 0-30.
        workers: receives at once.
        on_moved: called with the number of messages after each batch.
    """
    drained = Drained(queue=queue)

    async def work() -> None:
        while not drained.error:
            try:
                messages = await _receive(source, queue, wait)
                if not messages:
                    return
                await _store(target, queue, messages)
                await _delete(source, queue, messages, drained)
            except (EndpointError, CmqError) as error:
                drained.error = str(error)
                return
            on_moved(len(messages))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(work())
    try:
        answer = await source.call("GetQueueAttributes", {"queueName": queue})
        drained.remaining = sum(
            int(answer.get(name) or 0) for name in ("activeMsgNum", "inactiveMsgNum", "delayMsgNum")
        )
    except EndpointError as error:
        drained.error = drained.error or str(error)
    return drained


async def _receive(source: CmqEndpoint, queue: str, wait: int) -> list[dict[str, Any]]:
    """Return received messages; none if no message came in time."""
    try:
        parameters = {"queueName": queue, "numOfMsg": BATCH, "pollingWaitSeconds": wait}
        answer = await source.call("BatchReceiveMessage", parameters, wait=wait)
    except EndpointError as error:
        if error.code == NO_MESSAGE:
            return []
        raise
    return list(answer.get("msgInfoList") or [])


async def _store(target: Client, queue: str, messages: list[dict[str, Any]]) -> None:
    """Store copies of messages.

    Raises:
        CmqError: some copies may not be stored; no message was deleted.
    """
    # Delay 0: the delay of the queue is for new messages, and these were active.
    await target.queue(queue).send_batch(
        [body_of(message) for message in messages],
        delay=0,
        dedup_ids=[dedup_id_of(message) for message in messages],
        split=True,
    )


async def _delete(source: CmqEndpoint, queue: str, messages: list[dict[str, Any]], drained: Drained) -> None:
    handles = {f"receiptHandle.{number}": str(message["receiptHandle"]) for number, message in enumerate(messages, 1)}
    failures = 0
    try:
        await source.call("BatchDeleteMessage", {"queueName": queue, **handles})
    except EndpointError as error:
        if error.code not in DELETE_FAILURES:
            drained.not_deleted += len(messages)
            raise
        failures = len(error.answer.get("errorList") or messages)
    drained.not_deleted += failures
    drained.moved += len(messages) - failures


def body_of(message: dict[str, Any]) -> bytes:
    """Return the body of a received message in bytes.

    CMQ itself passes text alone. A gateway of this project marks a body that is not UTF-8.
    """
    body = str(message["msgBody"])
    return base64.b64decode(body) if message.get("msgBodyEncoding") == "base64" else body.encode()


def dedup_id_of(message: dict[str, Any]) -> str:
    """Return the dedup id of a copy: id and time of sending at the source, in place of a long text its digest."""
    dedup_id = f"cmq:{message['msgId']}:{message.get('enqueueTime', '')}"
    if len(dedup_id.encode()) <= MAX_DEDUP_ID_BYTES:
        return dedup_id
    return f"cmq:{hashlib.sha256(dedup_id.encode()).hexdigest()[:48]}"
