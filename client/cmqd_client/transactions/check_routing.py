"""Routing of the server's checks of half messages to checkers, and registration of the checkers with the server.

A check comes unasked, on a connection that is registered (``RegisterChecker``) for the queue. A registration ends with
its connection, so every new connection registers again, before any other request. All connections of a client
register, so that checks arrive while at least one connection is up.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import random
from typing import TypeAlias

from cmqd_client.connection import Connection
from cmqd_client.errors import CmqError
from cmqd_client.links.retry import RetryPolicy
from cmqd_protocol.messages import AnyReply, RegisterChecker, TransactionCheck, UnregisterChecker

_log = logging.getLogger(__name__)

OnCheck: TypeAlias = Callable[[TransactionCheck], None]
"""Takes a check; must neither block nor raise."""


class CheckRouter:
    """Routes checks to the checkers of this client, and keeps its connections registered.

    Invariant: every open connection has registered, or is registering, for each queue in ``_takers`` that is not in
    ``_leaving``.
    """

    __slots__ = ("_leaving", "_next_request_id", "_policy", "_takers", "_tasks", "_timeout")

    def __init__(self, next_request_id: Callable[[], int], request_timeout: float, policy: RetryPolicy) -> None:
        self._next_request_id = next_request_id
        self._timeout = request_timeout
        self._policy = policy
        self._takers: dict[str, list[OnCheck]] = {}
        """Takers by queue; the checks of a queue go to its takers in turn."""
        self._leaving: set[str] = set()
        """Queues with a last taker that is leaving: checks on their way are still taken, but no new registrations are
        made."""
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, queue: str, taker: OnCheck) -> None:
        """Route the queue's checks to ``taker`` too; new connections register for the queue from now on."""
        self._takers.setdefault(queue, []).append(taker)
        self._leaving.discard(queue)

    def register(self, queue: str, connections: Iterable[Connection]) -> None:
        """Register these connections for the queue; a second registration does no harm."""
        for connection in connections:
            self._register(connection, queue)

    def discard(self, queue: str, taker: OnCheck) -> None:
        """Stop routing checks to ``taker``; the server is not told."""
        takers = self._takers.get(queue, [])
        if taker in takers:
            takers.remove(taker)
        if not takers:
            self._takers.pop(queue, None)
            self._leaving.discard(queue)

    async def remove(self, queue: str, taker: OnCheck, connections: Callable[[], list[Connection]]) -> None:
        """Like ``discard``, but the last taker first unregisters with the server, and still takes the checks sent until
        then."""
        while self._takers.get(queue) == [taker]:
            self._leaving.add(queue)
            # Failures are results here, not exceptions; see _unregister.
            await asyncio.gather(*[self._unregister(connection, queue) for connection in connections()])
            if queue in self._leaving:
                break
            # Another taker was added and registered meanwhile; the loop checks that the other taker is still there.
        self.discard(queue, taker)

    def close(self) -> None:
        """Stop registering; the channel is being closed."""
        for task in self._tasks:
            task.cancel()

    # ------------------------------------------------------------------ called by connections and links

    def connected(self, connection: Connection) -> None:
        """Register a new connection for all queues."""
        for queue in self._takers:
            if queue not in self._leaving:
                self._register(connection, queue)

    def pushed(self, connection: Connection, check: TransactionCheck) -> None:
        """Route a check to a taker."""
        takers = self._takers.get(check.queue)
        if not takers:
            # The server asks another producer as soon as it gets the answer.
            _log.debug(
                "this client has no checker for queue %r any more, and leaves a check to other producers",
                check.queue,
                extra={"event": "check_left", "queue": check.queue},
            )
            self._unregister(connection, check.queue)
            return
        taker = takers.pop(0)
        takers.append(taker)
        taker(check)

    # ------------------------------------------------------------------ inside

    def _register(self, connection: Connection, queue: str) -> None:
        """Register the connection; the request is queued at once, before requests of other tasks."""
        try:
            future = connection.request(RegisterChecker(self._next_request_id(), queue), self._timeout)
        except CmqError:
            return  # the connection is lost; the next connection registers
        task = asyncio.get_running_loop().create_task(self._keep_registering(connection, queue, future))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _unregister(self, connection: Connection, queue: str) -> "asyncio.Future[tuple[AnyReply | BaseException]]":
        """Unregister the connection for the queue.

        A failure is ignored: the registration ends with the connection, or the next check causes another attempt.
        """
        try:
            future = connection.request(UnregisterChecker(self._next_request_id(), queue), self._timeout)
        except CmqError:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
        return asyncio.gather(future, return_exceptions=True)

    async def _keep_registering(self, connection: Connection, queue: str, future: "asyncio.Future[AnyReply]") -> None:
        """Repeat the registration until it succeeds, is refused for good, or is no longer needed."""
        attempt = 0
        while True:
            try:
                await future
                return
            except CmqError as error:
                attempt += 1
                if not connection.usable:
                    return
                if not error.retryable:
                    _log.warning(
                        "checks of queue %r will not come on connection %d: %s",
                        queue,
                        connection.connection_id,
                        error,
                        extra={
                            "event": "checker_not_registered",
                            "queue": queue,
                            "connection_id": connection.connection_id,
                            "why": error.text,
                        },
                    )
                    return
                await asyncio.sleep(max(self._policy.delay(attempt, random()), error.retry_after or 0))
            if not connection.usable or queue not in self._takers or queue in self._leaving:
                return
            try:
                future = connection.request(RegisterChecker(self._next_request_id(), queue), self._timeout)
            except CmqError:
                return
