"""Registrations with the broker as checker of a queue: a task for each, over the connections for checks.

A registration that fails is tried again after a pause: by itself if the broker may take it then, and otherwise at the
next half message, which shows that queue and role are there. A half message also renews a registration that stands,
because the broker forgets the registrations of a queue that is deleted, and a new queue may have taken the name.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from cmqd_client.errors import CmqError
from cmqd_client.messages.message_ids import id_number
from cmqd_client.transactions.half_messages import TransactionCheck
from cmqd_client.transactions.open_checks import OpenChecks
from cmqd_gateway.broker.broker_connections import BrokerConnections, TooManyCheckedQueues
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp.transaction_checks import TakeNumber
from cmqd_gateway.process.gateway_logger import SparseWarning

PAUSE_SECONDS: Final = 10.0
"""Time between two attempts or renewals of a registration. Checks that are due meanwhile follow at the next one."""

CLOSE_SECONDS: Final = 1.0
"""Time for the broker to answer the ends of registrations. They end with their connections too."""


class CheckerRegistrations:
    """The registrations of a gateway; :meth:`register` is for ``TransactionChecks``."""

    def __init__(
        self,
        connections: BrokerConnections,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Make the object without registrations.

        Args:
            connections: the connections to the broker.
            now: the clock, in seconds.
            sleep: waits for some seconds.
        """
        self.connections: BrokerConnections = connections
        self.sleep: Callable[[float], Awaitable[None]] = sleep
        self.failures: SparseWarning = SparseWarning("checker_not_registered", now)
        self._tasks: set[asyncio.Task[None]] = set()

    def register(self, key: KeySecret, queue: str, take: TakeNumber) -> "CheckerRegistration":
        """Begin a registration."""
        registration = CheckerRegistration(self, key, queue, take)
        self._tasks.add(registration.task)
        registration.task.add_done_callback(self._tasks.discard)
        return registration

    async def close(self) -> None:
        """End all registrations; a broker that does not answer is not waited for."""
        for _ in range(2):
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        self.failures.flush()


class CheckerRegistration:
    """The registration with a key for a queue."""

    def __init__(self, registrations: CheckerRegistrations, key: KeySecret, queue: str, take: TakeNumber) -> None:
        self._all = registrations
        self._key = key
        self._queue = queue
        self._take = take
        self._has_half_sent = asyncio.Event()
        """Set if a half message was sent since the last attempt began."""
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._run())

    def half_sent(self) -> None:
        """Make sure of the registration."""
        self._has_half_sent.set()

    def end(self) -> None:
        """End the registration: the broker asks another checker about the open checks."""
        self.task.cancel()

    # ------------------------------------------------------------------ inside

    async def _run(self) -> None:
        while True:
            self._has_half_sent.clear()
            try:
                async with self._all.connections.checking(self._key) as client:
                    open_checks = OpenChecks(client.queue(self._queue), self._taken)
                    await open_checks.open()
                    try:
                        await self._renew(open_checks)
                    finally:
                        await open_checks.close()
            except TooManyCheckedQueues as full:
                self._note(str(full))
            except CmqError as error:
                self._note(error.text)
                if not error.retryable:
                    await self._has_half_sent.wait()
            await self._all.sleep(PAUSE_SECONDS)

    async def _renew(self, open_checks: OpenChecks[bytes]) -> None:
        """Renew the registration after half messages; returns by an error alone."""
        while True:
            await self._all.sleep(PAUSE_SECONDS)
            await self._has_half_sent.wait()
            self._has_half_sent.clear()
            await open_checks.renew()

    def _taken(self, check: TransactionCheck[bytes]) -> None:
        self._take(id_number(check.id))

    def _note(self, reason: str) -> None:
        self._all.failures.note(key=self._key.secret_id, queue=self._queue, reason=reason)
