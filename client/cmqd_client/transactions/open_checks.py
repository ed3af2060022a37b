"""Checks of the server without answers, for answers that come later or over another connection."""

from collections.abc import Callable
from typing import Generic, TypeAlias

from cmqd_client.durations import to_datetime
from cmqd_client.messages.message_ids import printed_id
from cmqd_client.messages.typed_bodies import BodyT
from cmqd_client.queue import Queue
from cmqd_client.transactions.half_messages import TransactionCheck
from cmqd_protocol import messages as wire
from cmqd_protocol import operations

TakeCheck: TypeAlias = Callable[[TransactionCheck[BodyT]], None]
"""Takes a check; must neither block nor raise."""


class OpenChecks(Generic[BodyT]):
    """Takes the checks of a queue, between :meth:`open` and :meth:`close`.

    No check is answered here, not even as unknown. A check of the server stays open until a decision answers it, until
    the registration ends, which makes the check due at another checker, or until the next check of the message.
    """

    __slots__ = ("_queue", "_take_check")

    def __init__(self, queue: Queue[BodyT], take: TakeCheck[BodyT]) -> None:
        self._queue = queue
        self._take_check = take

    async def open(self) -> None:
        """Register with the server, on all connections of the client; connections that are opened later register too.

        Raises:
            NotTransactional, QueueNotFound, PermissionDenied: the server refuses the registration.
            ServerUnreachable, RequestTimeout, ConnectionLost: the server did not answer.
        """
        checks = self._queue.channel.checks
        # Before the registration, because checks may arrive together with its reply, and would have no taker.
        checks.add(self._queue.name, self._take)
        try:
            await self.renew()
        except BaseException:
            checks.discard(self._queue.name, self._take)
            raise

    async def renew(self) -> None:
        """Register again: a queue that was deleted and created again under its name knows no registration.

        Without effect as long as the registration stands.

        Raises:
            NotTransactional, QueueNotFound, PermissionDenied, ServerUnreachable, RequestTimeout, ConnectionLost: see
                :meth:`open`.
        """
        channel = self._queue.channel
        await channel.ask(operations.REGISTER_CHECKER, self._queue.name)
        connections = channel.connections()
        if len(connections) > 1:
            channel.checks.register(self._queue.name, connections)

    async def close(self) -> None:
        """Unregister with the server; checks that the server sent before are still taken."""
        channel = self._queue.channel
        try:
            await channel.checks.remove(self._queue.name, self._take, channel.connections)
        finally:
            channel.checks.discard(self._queue.name, self._take)

    def _take(self, check: wire.TransactionCheck) -> None:
        self._take_check(
            TransactionCheck(
                queue=check.queue,
                id=printed_id(check.message_id),
                raw_body=check.body,
                headers=check.headers or {},
                enqueue_time=to_datetime(check.enqueue_ms),
                age=check.age_ms / 1000,
                attempt=check.attempt,
                codec=self._queue.codec,
            )
        )
