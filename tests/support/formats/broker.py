"""A whole broker on a real data folder: the server without sockets, a storage process, and a clock that a test moves.

The clock makes a folder and its answers repeatable: leases, delays and windows end at the same moment in every run,
on any date.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from cmqd.core.broker import Broker
from cmqd.log.values import RecoveryReport
from cmqd.server.access.accounts import open_accounts
from cmqd.server.loop.clock import BrokerClock, LastTime, start_offset
from cmqd.server.loop.cron import calendar
from cmqd.server.monitoring.status import StorageProcessStatus
from cmqd.server.push.subscription_secrets import SubscriptionSecrets
from cmqd.server.wiring import Surroundings, make_server
from cmqd.settings import Settings
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd_protocol.messages import AnyReply, Request
from support.eventually import eventually
from support.formats.caches import OpenLog
from support.server.fake_clock import FakeClock
from support.server.fake_pusher import FakePusher
from support.server.server_rig import RigClient, ServerRig
from support.storage.log_rig import settings_for


class FolderBroker(ServerRig):
    """A ``ServerRig`` with its log on disk; made by ``open_folder``."""

    storage: StorageProcessLog
    report: RecoveryReport
    folder: Path

    async def answer(self, client: RigClient, request: Request) -> AnyReply:
        """Send a request and wait for the reply, which comes when its row is durable."""
        request_id = client.begin(request)

        def answered() -> bool:
            client.deliver()
            client.read()
            return request_id in client.replies or client.ended is not None

        await eventually(answered)
        return client.replies.pop(request_id)

    async def due(self) -> None:
        """Do all due work, with its page reads and commits, until the broker is idle."""
        deadline_ms = 0
        while deadline_ms <= self.clock.now_ms():
            self.server.broker_events.tick(self.clock.now_ms())
            await self.quiet()
            deadline_ms = self.broker.next_deadline_ms() or self.clock.now_ms() + 1

    async def quiet(self) -> None:
        """Wait until all rows are durable and the log has no further answers."""
        storage = self.storage
        unchanged = 0
        last_lsn = -1
        while unchanged < 5:
            # A page that a slow machine still reads moves messages later, and so with another time.
            await eventually(
                lambda: storage.durable_lsn >= storage.last_lsn and storage.pages_answered == storage.pages_asked
            )
            unchanged = unchanged + 1 if self.storage.last_lsn == last_lsn else 0
            last_lsn = self.storage.last_lsn
            await asyncio.sleep(0.01)

    async def checkpoint(self) -> None:
        """Write a checkpoint and wait until the storage has it."""
        folder = self.folder / "checkpoints"
        kept = set(folder.glob("*.ckpt"))
        self.server.checkpoints.want()
        await eventually(lambda: set(folder.glob("*.ckpt")) - kept)

    async def kill(self) -> None:
        """End the storage process with SIGKILL, and this side of it."""
        assert self.storage.process_id is not None
        os.kill(self.storage.process_id, 9)
        self.close()
        await self.storage.kill()

    async def stop(self) -> None:
        """Stop in order."""
        self.close()
        await self.storage.close()


async def open_folder(
    folder: Path, wall_ms: int, open_log: OpenLog = StorageProcessLog, *, shard: int = 0
) -> FolderBroker:
    """Recover the broker of a data folder at a moment of the clock."""
    clock = FakeClock(wall_ms)
    accounts, _ = open_accounts(folder, clock.now_ms())
    broker = Broker(accounts.handle_key, calendar=calendar)
    log = open_log(settings_for(folder, ballast_bytes=0))
    report = await log.open()
    if report.numbers_jump:
        broker.begin_salvage()
    last_time = LastTime()
    async for batch in log.recover():
        for item in batch:
            if isinstance(item, tuple):
                lsn, time_ms, facts = item
                last_time.row(time_ms, facts)
                for fact in facts:
                    broker.replay(fact, lsn)
            else:
                last_time.part(item)
                broker.load(item)
    broker.take_shard(shard)
    pushers: list[FakePusher] = []

    def make_pusher(**named: Any) -> FakePusher:
        pushers.append(FakePusher(**named))
        return pushers[-1]

    failures: list[Exception] = []
    broker_clock = BrokerClock(
        not_before_ms=last_time.ms,
        offset_ms=broker.facts.clock_offset_ms,
        wall=clock.wall,
        monotonic_ns=clock.monotonic_ns,
    )
    given = Surroundings(
        loop=asyncio.get_running_loop(),
        settings=Settings(data=folder),
        broker=broker,
        log=log,
        accounts=accounts,
        clock=broker_clock,
        max_connections=100,
        storage_status=StorageProcessStatus,
        on_failed=failures.append,
        make_pusher=make_pusher,
        can_push=True,
    )
    server = make_server(given)
    first_records = [*start_offset(broker, broker_clock), *broker.recovered(lost=report.numbers_jump)]
    if first_records:
        log.append(first_records, (), clock.now_ms())
        log.flush()
    await server.part(SubscriptionSecrets).match()
    rig: Any = FolderBroker(server, clock, broker_clock, broker, log, accounts)  # pyright: ignore[reportArgumentType]
    rig.failures, rig.pushers, rig.storage, rig.report = failures, pushers, log, report
    rig.folder = folder
    return rig
