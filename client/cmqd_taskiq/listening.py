"""Messages on their way to taskiq's receiver, and their ends.

taskiq knows a single end of a message, ``ack``. The listener finds the other ends:

* A rejection is an exception of the task, seen by a middleware in the asyncio task that acknowledges later. A context
  variable carries the reason from there to ``ack``.
* taskiq drops a message without a sign if a middleware raises, or if a task with manual acknowledgement never
  acknowledges. The lease of the message would be kept for as long as the worker lives, and other workers would never
  get the message. Therefore ``ack``, which taskiq holds as long as the message, gives the message back when Python
  collects the ``ack``.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar

from taskiq.acks import AckableMessage

from cmqd_client import ConsumedMessage, Reject, Retry
from cmqd_client.consumers.consumer import MessageStream
from cmqd_client.errors import CmqError, NoDeadLetterQueue, ReceiptHandleInvalid
from cmqd_client.links.retry import may_have_happened
from cmqd_client.results import may_be_done_before
from cmqd_types.messages import GONE_DELETED, GONE_MOVED

_log = logging.getLogger("cmqd_taskiq")

rejection: ContextVar[str | None] = ContextVar("rejection", default=None)
"""Reason with which the task of this context rejects its message; None = no rejection."""

ACK_PAUSE = 0.1
"""Seconds between two attempts to settle a message in an outage. Each attempt has used up the client's patience."""

Examine = Callable[[ConsumedMessage[bytes]], Reject | Retry | None]
"""Returns the reason to keep a message from taskiq; None = taskiq can run the message."""
OpenStream = Callable[[], Awaitable[MessageStream[ConsumedMessage[bytes]]]]


class Listener:
    """The messages of a call of ``listen``."""

    def __init__(self, open_stream: OpenStream, examine: Examine) -> None:
        """Make a listener; ``open_stream`` is called at the first step of the iteration."""
        self._open_stream = open_stream
        self._examine = examine
        self._loop = asyncio.get_running_loop()
        self._endings: set[asyncio.Task[None]] = set()
        """Tasks that give dropped messages back."""
        self._closed = False

    async def messages(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield messages until the stream stops. Leases of messages that taskiq has are kept after the end too."""
        stream = await self._open_stream()
        try:
            async for message in stream:
                problem = self._examine(message)
                if problem is not None:
                    async with message.process():
                        raise problem
                    continue  # process() has settled the message and kept the exception
                yield AckableMessage(data=message.raw_body, ack=Acknowledgement(message, self._dropped))
        finally:
            stream.stop()

    async def close(self) -> None:
        """Finish giving back dropped messages. Messages that are dropped later come back when their leases end."""
        self._closed = True
        if self._endings:
            await asyncio.wait(self._endings)

    def _dropped(self, message: ConsumedMessage[bytes]) -> None:
        """Give back a message that taskiq dropped. Called in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and so does the lease
            self._loop.call_soon_threadsafe(self._give_back, message)

    def _give_back(self, message: ConsumedMessage[bytes]) -> None:
        if not self._closed:
            task = self._loop.create_task(_retry(message))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)


class Acknowledgement:
    """Settles a message once; the ``ack`` of taskiq's message."""

    __slots__ = ("_dropped", "_message")

    def __init__(self, message: ConsumedMessage[bytes], dropped: Callable[[ConsumedMessage[bytes]], None]) -> None:
        self._message: ConsumedMessage[bytes] | None = message
        self._dropped = dropped

    async def __call__(self) -> None:
        """Delete the message, or move it to the dead-letter queue if its task rejects it.

        Returns when the server has stored the change, after an outage if need be: a task that taskiq acknowledges
        before its run runs at most once.

        Raises:
            CmqError: the message is not settled, for example because its lease was lost; it is delivered again.
        """
        message = self._message
        if message is None:
            return
        reason = rejection.get()
        if reason is None or not await _reject(message, reason):
            await _settle(message, message.delete, GONE_DELETED)
        self._message = None

    def __del__(self) -> None:
        if self._message is not None:
            self._dropped(self._message)


async def _reject(message: ConsumedMessage[bytes], reason: str) -> bool:
    """Move the message to the dead-letter queue; False if there is none."""
    try:
        await _settle(message, lambda: message.reject(reason), GONE_MOVED)
    except NoDeadLetterQueue:
        _log.warning("%s is rejected and deleted, because its queue has no dead-letter queue", message.id)
        return False
    return True


async def _settle(message: ConsumedMessage[bytes], request: Callable[[], Awaitable[object]], gone: int) -> None:
    """Make a request that settles the message, again in an outage, for as long as its lease lasts.

    ``gone``: how the lease ends with the request, as the server tells of it later.
    """
    uncertain = False
    while True:
        try:
            await request()
        except ReceiptHandleInvalid as error:
            if uncertain and may_be_done_before(error, gone):
                return
            raise
        except CmqError as error:
            uncertain = uncertain or may_have_happened(error)
            if message.lost is not None or not (error.retryable or may_have_happened(error)):
                raise
            _log.warning("%s is not settled yet: %s", message.id, error)
            await asyncio.sleep(max(ACK_PAUSE, error.retry_after or 0.0))
        else:
            return


async def _retry(message: ConsumedMessage[bytes]) -> None:
    async with message.process():
        raise Retry(reason="taskiq dropped the message without an acknowledgement")
