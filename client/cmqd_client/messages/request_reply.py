"""Requests and replies: a request is a message with a return address, its reply a message in a queue of the client.

The reply queue belongs to a single client. The first request creates the queue, under a random name, and the client
receives from the queue until it closes. The server deletes the queue after ten minutes without use
(``auto_delete_after``), so a client that crashes leaves no queue behind. If the queue was deleted during a long outage,
the client creates the queue again.

The return address is two headers: ``reply-to`` names the queue, ``correlation-id`` the request. A reply has the same
``correlation-id``, and the same dedup id: a consumer that gets a request twice stores one reply.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from random import random
from typing import Any, Final, TypeVar

import msgspec

from cmqd_client.durations import Duration, shown_seconds, to_seconds
from cmqd_client.errors import ClientClosed, CmqError, NoReply, QueueDeleted, QueueNotFound
from cmqd_client.links.retry import RetryPolicy
from cmqd_client.messages.outgoing import CORRELATION_ID, REPLY_TO
from cmqd_client.queue import Message, Queue
from cmqd_types.messages import Headers

T = TypeVar("T")

_log = logging.getLogger(__name__)

REPLY_TIMEOUT = 30.0
"""Default time limit of a request and its reply, in seconds."""
_PREFIX = "reply-"
REPLY_QUEUE_ATTRIBUTES: Final[Mapping[str, Any]] = {
    # A reply that the server sends into a connection that has just been lost comes again after this time. A reply is
    # deleted as soon as it is here, and a second copy of it finds no request, so a short time does no harm.
    "visibility_timeout_ms": 1_000,
    "retention_ms": 3_600_000,
    "auto_delete_after_ms": 600_000,
    # Replies to requests that were given up must not keep the queue.
    "auto_delete_only_empty": False,
}
"""Attributes of a reply queue, in wire form."""
_BATCH = 256
_WAIT = 30.0
_CLOSE_TIMEOUT = 1.0
"""Seconds that closing waits for the deletion of the reply queue; the server deletes the queue later otherwise."""


class Reply(msgspec.Struct, frozen=True):
    """The reply to a request."""

    body: bytes
    headers: Headers
    """Without the return address."""
    request_id: int
    """Number of the receive that returned the reply."""


class Requester:
    """Sends requests and routes replies, for one client.

    Invariant: while the receiver runs, the reply queue was made and has not been reported as missing since.
    """

    __slots__ = (
        "_closed",
        "_delete_queue",
        "_ensure",
        "_lock",
        "_numbers",
        "_policy",
        "_queue",
        "_receiver",
        "_tasks",
        "_waiting",
    )

    def __init__(
        self,
        queue: Callable[[str], Queue],
        ensure: Callable[[str, Mapping[str, Any]], Awaitable[object]],
        delete_queue: Callable[[str], Awaitable[object]],
        policy: RetryPolicy,
    ) -> None:
        """Make a requester.

        Args:
            queue: returns the handle of a queue.
            ensure: makes a queue with attributes in wire form, unless it exists with these attributes.
            delete_queue: deletes a queue.
            policy: for the pauses between failed receives.
        """
        # Random, not derived from host and process: the name is the only protection from another client's replies.
        self._queue = queue(_PREFIX + secrets.token_hex(16))
        self._ensure = ensure
        self._delete_queue = delete_queue
        self._policy = policy
        self._numbers = count(1)
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        """Requests without a reply, by correlation id."""
        self._lock = asyncio.Lock()
        self._receiver: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False

    async def request(self, queue: Queue[T], body: T, timeout: Duration, headers: Mapping[str, str] | None) -> Reply:
        """Send a request and return its reply; see :meth:`Client.request`."""
        seconds = to_seconds(timeout, "timeout")
        if seconds <= 0:
            raise ValueError(f"timeout is {timeout!r}; it must be more than 0")
        given = dict(headers or {})
        for name in (REPLY_TO, CORRELATION_ID):
            if name in given:
                raise ValueError(f"the header {name!r} is set by the client; leave it out")
        correlation_id = f"{self._queue.name.removeprefix(_PREFIX)}-{next(self._numbers)}"
        given |= {REPLY_TO: self._queue.name, CORRELATION_ID: correlation_id}
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        sent: int | None = None
        try:
            async with asyncio.timeout(seconds):
                await self._start()
                sent = (await queue.send(body, headers=given)).request_id
                return await reply
        except TimeoutError as error:
            state = "may have been sent or not" if sent is None else "was sent, and may be processed still"
            text = f"queue {queue.name!r} gave no reply within {shown_seconds(seconds)}; the request {state}"
            raise NoReply(text, request_id=sent) from error
        finally:
            del self._waiting[correlation_id]
            # Without this, a reply or error that nothing awaits would be logged as a lost exception.
            if not reply.cancel() and not reply.cancelled():
                reply.exception()

    async def close(self) -> None:
        """Fail the requests without a reply, stop receiving, and delete the reply queue if the server answers."""
        self._closed = True
        self._fail(ClientClosed("the client was closed before the reply came"))
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        receiver.cancel()
        await asyncio.gather(receiver, *self._tasks, return_exceptions=True)
        with contextlib.suppress(CmqError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._delete_queue(self._queue.name)

    # ------------------------------------------------------------------ inside

    async def _start(self) -> None:
        """Make the reply queue and begin to receive, unless that is done."""
        if self._closed:
            raise ClientClosed("the client is closed")
        if self._receiver is not None and not self._receiver.done():
            return
        async with self._lock:
            if self._receiver is None or self._receiver.done():
                await self._ensure(self._queue.name, REPLY_QUEUE_ATTRIBUTES)
                self._receiver = asyncio.get_running_loop().create_task(self._receive())

    async def _receive(self) -> None:
        """Receive replies until the client closes, or until the server refuses for good."""
        failures = 0
        while True:
            try:
                messages = await self._queue.receive(_BATCH, wait=_WAIT)
                failures = 0
            except (QueueNotFound, QueueDeleted):
                # Replies that were in the queue are lost, and their requests time out. Later requests need a queue.
                _log.warning(
                    "reply queue %r is gone and is made again",
                    self._queue.name,
                    extra={"event": "reply_queue_lost", "queue": self._queue.name},
                )
                if not await self._made_again():
                    return
                continue
            except ClientClosed:
                return
            except CmqError as error:
                if not error.retryable:
                    # The next request tries again, and its caller gets the reason.
                    self._fail(error)
                    return
                failures += 1
                await asyncio.sleep(max(self._policy.delay(failures, random()), error.retry_after or 0.0))
                continue
            for message in messages:
                self._route(message)
            if messages:
                # Not awaited here: the next reply need not wait for the commit of a delete.
                task: asyncio.Task[object] = asyncio.get_running_loop().create_task(self._delete(messages))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _made_again(self) -> bool:
        try:
            await self._ensure(self._queue.name, REPLY_QUEUE_ATTRIBUTES)
        except CmqError as error:
            self._fail(error)
            return False
        return True

    def _route(self, message: Message) -> None:
        headers = dict(message.headers)
        waiting = self._waiting.get(headers.pop(CORRELATION_ID, ""))
        if waiting is None:
            _log.debug(
                "a reply came after its request was given up, or for the second time",
                extra={"event": "reply_dropped", "queue": self._queue.name, "message_id": message.id},
            )
        elif not waiting.done():
            waiting.set_result(Reply(message.body, headers, message.request_id))

    async def _delete(self, messages: list[Message]) -> None:
        try:
            await self._queue.delete_batch(messages)
        except CmqError as error:
            # The replies come again when their leases end, find no request, and are deleted then.
            _log.debug(
                "replies were not deleted: %s",
                error,
                extra={"event": "replies_not_deleted", "queue": self._queue.name, "why": error.text},
            )

    def _fail(self, error: CmqError) -> None:
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(error)
