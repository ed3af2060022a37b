"""The data folder of a broker that lived at another time."""

from pathlib import Path

from cmqd.core.broker import Broker
from cmqd.server.access.accounts import ADMIN, open_accounts
from cmqd.settings import Settings
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.storage_settings import StorageSettings
from support.core import alone

HOUR_MS = 3_600_000


async def lived(data: Path, now_ms: int, offset_ms: int = 0) -> None:
    """Write the log of a broker at time ``now_ms`` with a recorded offset."""
    data.mkdir(parents=True, exist_ok=True)
    accounts, _ = open_accounts(data, now_ms)
    await accounts.save_new()
    broker = Broker(accounts.handle_key)
    log = StorageProcessLog(StorageSettings.of(Settings(data=data)))
    await log.open()
    # To the end: before it, ``close`` ends the storage process as a crash would, perhaps before the commit.
    async for _ in log.recover():
        pass
    outcomes = [
        broker.create_queue(ADMIN, "jobs", {"rewind_ms": HOUR_MS, "retention_ms": 24 * HOUR_MS}, now_ms),
        alone.send(broker, ADMIN, "jobs", [b"deleted", b"leased", b"active"], None, None, 0, 0, now_ms),
    ]
    for outcome in outcomes:
        log.append(outcome.records, outcome.bodies, now_ms)
    for count, timeout_ms in ((1, 60_000), (1, 12 * HOUR_MS)):
        received = alone.receive(broker, ADMIN, "jobs", 1, count, 0, timeout_ms, now_ms)
        log.append(received.records, received.bodies, now_ms)
        if timeout_ms == 60_000:
            assert isinstance(received.reply, list)
            deleted = alone.delete(
                broker, ADMIN, "jobs", [message.receipt_handle for message in received.reply], now_ms
            )
            log.append(deleted.records, (), now_ms)
    if offset_ms:
        log.append(broker.set_clock_offset(offset_ms, now_ms).records, (), now_ms)
    log.flush()
    await log.close(10)
