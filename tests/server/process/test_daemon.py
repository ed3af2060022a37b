"""The life of the process over a log that fails at a chosen moment: it ends, and says why."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cmqd.exit_codes import ExitCode
from cmqd.log.interface import Log
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import RecoveredBatch
from cmqd.memory_log import MemoryDisk, MemoryLog
from cmqd.server.push.subscription_secrets import SubscriptionSecrets
from cmqd.server.replies.answering import Answering
from cmqd.server.server import Server
from cmqd_segment.records import NumbersReserved
from support.server.daemons import DaemonOverLog

FAILURE = "database disk image is malformed"


class FailingLog(MemoryLog):
    """A log in memory that fails behind the last chunk of its recovery stream, as the storage process can."""

    async def recover(self) -> AsyncIterator[RecoveredBatch]:
        async for batch in super().recover():
            yield batch
        self.fail(LogFailed(FAILURE))


async def ended(folder: Path, log: Log) -> ExitCode:
    return await DaemonOverLog(folder, log).run()


async def test_a_log_that_fails_after_its_recovery_ends_the_process(tmp_path: Path) -> None:
    code = await ended(tmp_path, FailingLog())

    assert code is ExitCode.STORAGE_FAILED
    assert not (tmp_path / "ready.json").exists()


async def test_a_log_of_another_shard_is_refused_without_redundancy_too(tmp_path: Path) -> None:
    disk = MemoryDisk()
    log = MemoryLog(disk)
    await log.open()
    log.append([NumbersReserved((3 << 52) + 5, 1, 1)], (), 0)
    log.flush()
    await asyncio.sleep(0)
    await log.close()

    code = await ended(tmp_path, MemoryLog(disk))

    assert code is ExitCode.CANNOT_OPEN
    assert not (tmp_path / "ready.json").exists()


@pytest.mark.parametrize(("kind", "step"), [(SubscriptionSecrets, "match"), (Server, "start")])
async def test_a_log_that_fails_while_the_server_is_set_up_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, step: str
) -> None:
    log = MemoryLog()
    unharmed: Callable[[object], Awaitable[object]] = getattr(kind, step)

    async def fail_meanwhile(part: object) -> object:
        log.fail(LogFailed(FAILURE))
        await asyncio.sleep(0)
        return await unharmed(part)

    monkeypatch.setattr(kind, step, fail_meanwhile)

    code = await ended(tmp_path, log)

    assert code is ExitCode.STORAGE_FAILED
    assert not (tmp_path / "ready.json").exists(), "nothing may say that the server is ready"


async def test_a_bug_that_shows_in_a_drain_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog()
    start, drain = Server.start, Server.drain

    async def start_and_stop(server: Server) -> object:
        address = await start(server)
        signal.raise_signal(signal.SIGTERM)
        return address

    async def drain_with_a_bug(server: Server, within_s: float) -> None:
        await drain(server, within_s)
        server.part(Answering).broke(RuntimeError("a bug"), "tick")

    monkeypatch.setattr(Server, "start", start_and_stop)
    monkeypatch.setattr(Server, "drain", drain_with_a_bug)

    assert await ended(tmp_path, log) is ExitCode.BUG
    assert log.disk.checkpoints == []
