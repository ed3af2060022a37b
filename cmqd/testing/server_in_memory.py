"""A server over a log in memory, in the process of the test: assembled as ``daemon`` assembles a real server.

Signals and the storage process are missing. All other parts are the parts of the product.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cmqd.core.broker import Broker
from cmqd.core.limits import Limits
from cmqd.memory_log import MemoryDisk, MemoryLog
from cmqd.server.access.accounts import Accounts, open_accounts
from cmqd.server.loop.clock import BrokerClock
from cmqd.server.loop.cron import calendar
from cmqd.server.monitoring.status import StorageProcessStatus
from cmqd.server.process.recovery import Recovery
from cmqd.server.push.outbox import Pushing
from cmqd.server.push.pusher import Pusher
from cmqd.server.push.subscription_secrets import SubscriptionSecrets
from cmqd.server.redundancy.leadership import leadership_of
from cmqd.server.server import Server
from cmqd.server.wiring import Surroundings, make_server
from cmqd.settings import Settings

MAX_CONNECTIONS = 1_000
"""Connections of a server without a limit in its settings; a real server takes as many as its process may open."""


@dataclass(frozen=True)
class ServerInMemory:
    """The parts of a server before its start."""

    server: Server
    broker: Broker
    log: MemoryLog
    accounts: Accounts
    clock: BrokerClock
    failures: list[Exception] = field(default_factory=list[Exception])
    """Reasons of a halt of all acknowledgements: a bug, or a log that was made to fail."""

    def stop_timers(self) -> None:
        """Cancel the timed work of the server; clients are still served."""
        self.server.agenda_timer.stop()
        self.server.checkpoints.stop()
        self.server.reclaim.stop()


async def server_in_memory(
    settings: Settings,
    *,
    wall_ms: Callable[[], int],
    monotonic_ns: Callable[[], int],
    limits: Limits | None = None,
    timer: Callable[[], float] = time.perf_counter,
    cpu_ns: Callable[[], int] = time.thread_time_ns,
    make_pusher: Callable[..., Pushing] = Pusher,
    can_push: bool | None = None,
    disk: MemoryDisk | None = None,
) -> ServerInMemory:
    """Make a server of the running loop; ``server.start`` makes it listen.

    Args:
        settings: as of a real server; ``data`` is the folder of the accounts.
        wall_ms: milliseconds since 1970, from which broker time starts.
        monotonic_ns: nanoseconds of a clock that never goes back, by which broker time goes on.
        limits: limits of the core; None = the defaults.
        timer: seconds to measure I/O batches by.
        cpu_ns: nanoseconds of CPU time to charge turns by.
        make_pusher: makes the part that posts to URLs.
        can_push: True if that part can be made; None = if its extra is installed.
        disk: the log that the server begins with; None = an empty log.
    """
    accounts, _ = open_accounts(settings.data, wall_ms())
    # Without a random seed: the pauses between deliveries are the same in every run of a test.
    broker = Broker(accounts.handle_key, limits, calendar=calendar)
    log = MemoryLog(disk, segment_bytes=settings.segment_bytes)
    recovery = Recovery(broker=broker, log=log, report=await log.open())
    is_new = recovery.report.created
    if not is_new:
        await recovery.run()
    broker.take_shard(settings.shard)
    clock = _clock_behind(recovery, wall_ms, monotonic_ns)
    failures: list[Exception] = []
    given = Surroundings(
        loop=asyncio.get_running_loop(),
        settings=settings,
        broker=broker,
        log=log,
        accounts=accounts,
        clock=clock,
        max_connections=settings.max_connections or MAX_CONNECTIONS,
        storage_status=StorageProcessStatus,
        on_failed=failures.append,
        make_pusher=make_pusher,
        can_push=can_push,
        timer=timer,
        cpu_ns=cpu_ns,
        leadership=leadership_of(log, settings.shard),
    )
    server = make_server(given)
    if not is_new:
        recovery.append_first_records(clock)
        await server.part(SubscriptionSecrets).match()
    return ServerInMemory(server, broker, log, accounts, clock, failures)


def _clock_behind(recovery: Recovery, wall_ms: Callable[[], int], monotonic_ns: Callable[[], int]) -> BrokerClock:
    return BrokerClock(
        not_before_ms=recovery.last_time.ms,
        offset_ms=recovery.broker.facts.clock_offset_ms,
        resumed_ms=recovery.resumed_ms,
        wall=wall_ms,
        monotonic_ns=monotonic_ns,
    )
