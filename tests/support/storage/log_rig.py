"""Logs for tests: rows to append, and a driver that collects the answers of a log.

A ``LogRig`` drives any ``Log``; a ``Place`` keeps a log, so that the log can be opened again after a close or a crash.
Three places: memory, a storage process, and the storage service on the loop of the test itself, with a disk that can be
replaced.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import structs

from cmqd.log.interface import Log, Segments
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import LogState, RecoveredRow, RecoveryReport
from cmqd.memory_log import MemoryDisk, MemoryLog
from cmqd.settings import Settings
from cmqd.storage.folder.data_folder import Disk
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.redundancy import engine_choice as engines
from cmqd.storage.service import OpenEngine, StorageService
from cmqd.storage.storage_settings import StorageSettings
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader
from cmqd_segment.records import AnyRecord, MessagesDeleted, MessagesSent, PublishedMessage, Runs, StoredMessage
from support.storage.forked_process import ForkedProcess
from support.storage.loop_way import ChosenWay

T = TypeVar("T")

NOW_MS = 1_700_000_000_000


def body(queue_id: int, position: int, size: int = 40) -> bytes:
    """The body that ``sent`` gives to a message, different for each position."""
    text = f"{queue_id}/{position}/".encode()
    return (text * (size // len(text) + 1))[:size]


def sent(queue_id: int, first: int, count: int, size: int = 40) -> tuple[MessagesSent, list[bytes]]:
    """A send of ``count`` messages; message ids are positions plus a thousand."""
    bodies = [body(queue_id, position, size) for position in range(first, first + count)]
    return MessagesSent(queue_id, first, first + 1000, NOW_MS, [len(each) for each in bodies]), bodies


def deleted(queue_id: int, first: int, count: int) -> MessagesDeleted:
    return MessagesDeleted(queue_id, [first, count], [first, count], NOW_MS)


OpenProcess: TypeAlias = "Callable[..., Coroutine[Any, Any, LogRig]]"
"""Open a log with a storage process; settings by keyword."""
OpenRig: TypeAlias = "Callable[[], Awaitable[LogRig]]"
"""Open the log of a ``Place``, again and again."""


class AnyLog(Log, Segments, Protocol):
    """The logs of this project: segments included."""


class LogRig:
    """A log and its answers."""

    def __init__(self, log: AnyLog) -> None:
        self.log = log
        self.report: RecoveryReport | None = None
        self.parts: list[AnyPart] = []
        self.rows: list[RecoveredRow] = []
        self.durable: list[int] = []
        self.pages: dict[int, tuple[list[StoredMessage], Runs]] = {}
        self.published_messages: dict[int, PublishedMessage | None] = {}
        self.states: list[LogState] = []
        self.fatal: list[LogFailed] = []
        self.checkpoints_wanted = 0
        self.checkpoints_done: list[int] = []
        self.begin_lsn = 0
        """Last row of the log when it was opened. A log over an engine begins each life with a row of its own."""
        self._reads = 0
        self._changed = asyncio.Event()
        log.on_durable = self._note(self._on_durable)
        log.on_page = self._on_page
        log.on_published = self._on_published
        log.on_fatal = self._note(self.fatal.append)
        log.on_state = self._note(self.states.append)
        log.on_checkpoint_done = self._note(self.checkpoints_done.append)
        log.on_checkpoint_wanted = self._on_wanted

    def _on_durable(self, lsn: int) -> None:
        self.durable.append(lsn)
        # As the edge does at the end of the I/O batch.
        self.log.flush()

    def _note(self, keep: Callable[[T], None]) -> Callable[[T], None]:
        def noted(value: T) -> None:
            keep(value)
            self._changed.set()

        return noted

    def _on_page(self, read_id: int, messages: list[StoredMessage], missing: Runs) -> None:
        assert read_id not in self.pages, "a page was answered twice"
        self.pages[read_id] = (messages, missing)
        self._changed.set()

    def _on_published(self, read_id: int, message: PublishedMessage | None) -> None:
        assert read_id not in self.published_messages, "a read was answered twice"
        self.published_messages[read_id] = message
        self._changed.set()

    def _on_wanted(self) -> None:
        self.checkpoints_wanted += 1
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for callbacks until the condition holds. Only the time limit of the suite ends the wait."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def open(self) -> RecoveryReport:
        self.report = await self.log.open()
        async for batch in self.log.recover():
            for item in batch:
                if isinstance(item, tuple):
                    self.rows.append(item)
                else:
                    self.parts.append(item)
        self.begin_lsn = self.log.last_lsn
        return self.report

    @property
    def stored_rows(self) -> list[RecoveredRow]:
        """The recovered rows with records: without those with which lives over an engine begin."""
        return [row for row in self.rows if row[2]]

    @property
    def recovered(self) -> list[AnyRecord]:
        return [record for _, _, records in self.rows for record in records]

    def send(self, queue_id: int, first: int, count: int, size: int = 40) -> int:
        record, bodies = sent(queue_id, first, count, size)
        return self.log.append([record], bodies, NOW_MS)

    async def commit(self) -> None:
        """Make all that was appended durable."""
        self.log.flush()
        await self.until(lambda: self.log.durable_lsn >= self.log.last_lsn)

    async def store(self, queue_id: int, first: int, count: int, size: int = 40) -> int:
        """Send and commit, a row of its own."""
        lsn = self.send(queue_id, first, count, size)
        await self.commit()
        return lsn

    def ask(self, queue_id: int, positions: Runs, max_bytes: int = 1 << 20, min_lsn: int = 0) -> int:
        self._reads += 1
        self.log.read_page(self._reads, queue_id, positions, max_bytes, min_lsn)
        return self._reads

    def ask_published(self, topic_id: int, start: int, stop: int, min_lsn: int = 0) -> int:
        self._reads += 1
        self.log.read_published(self._reads, topic_id, start, stop, min_lsn)
        return self._reads

    async def published(self, topic_id: int, start: int, stop: int) -> PublishedMessage | None:
        read_id = self.ask_published(topic_id, start, stop)
        await self.until(lambda: read_id in self.published_messages)
        return self.published_messages[read_id]

    async def page(
        self, queue_id: int, positions: Runs, max_bytes: int = 1 << 20, min_lsn: int = 0
    ) -> tuple[list[StoredMessage], Runs]:
        read_id = self.ask(queue_id, positions, max_bytes, min_lsn)
        await self.until(lambda: read_id in self.pages)
        return self.pages[read_id]

    async def checkpoint(self, lsn: int | None = None) -> int:
        """Write an empty checkpoint that covers all rows (or up to ``lsn``) and wait until the log keeps it."""
        header_lsn = self.log.last_lsn if lsn is None else lsn
        parts = checkpoint_parts(header_lsn, self.log.last_lsn)
        for part in parts:
            self.log.write_checkpoint(part)
        done = len(self.checkpoints_done)
        await self.until(lambda: len(self.checkpoints_done) > done)
        return header_lsn


def checkpoint_parts(header_lsn: int, end_lsn: int) -> Sequence[AnyPart]:
    header = CheckpointHeader(header_lsn, NOW_MS, 1, 1, 1)
    return header, CheckpointEnd(end_lsn, 1)


class Place(Protocol):
    """Where a log is kept."""

    def log(self) -> AnyLog: ...

    async def crash(self, log: Log) -> None:
        """End the processes and tasks of the log, as kill -9 would."""
        ...


class MemoryPlace:
    def __init__(self) -> None:
        self.disk = MemoryDisk()

    def log(self) -> AnyLog:
        return MemoryLog(self.disk, segment_bytes=1 << 30)

    async def crash(self, log: Log) -> None:
        assert isinstance(log, MemoryLog)
        log.fail(LogFailed("crashed"))
        await asyncio.sleep(0)


def settings_for(folder: Path, **changes: object) -> StorageSettings:
    """Storage settings for tests: small reserves, since a test's disk may be small."""
    small: dict[str, object] = {"min_free_bytes": 1 << 20, "ballast_bytes": 1 << 16, "start_ballast_bytes": 1 << 16}
    return structs.replace(StorageSettings.of(Settings(data=folder)), **{**small, **changes})


class ProcessPlace:
    by_loop = False
    """The loop process commits, after some commits of the storage process."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.folder = folder
        self.settings = settings_for(folder, **changes)

    def log(self) -> AnyLog:
        return StorageProcessLog(self.settings, way=ChosenWay(wanted=self.by_loop, after=3))

    async def crash(self, log: Log) -> None:
        assert isinstance(log, StorageProcessLog)
        assert log.process_id is not None
        os.kill(log.process_id, 9)
        await log.kill()


class ForkedPlace(ProcessPlace):
    """A place with a forked storage process, for tests about the folder."""

    def log(self) -> AnyLog:
        return StorageProcessLog(self.settings, ForkedProcess, way=ChosenWay(wanted=self.by_loop, after=3))


class LoopPlace(ForkedPlace):
    by_loop = True


_MASK = os.umask(0o022)
os.umask(_MASK)


class InProcess:
    """Stands in for the storage process: the service on this very loop. Its end restores the mask of new files."""

    def __init__(
        self, disk: Callable[[Path, int, int], Disk] = Disk, open_engine: OpenEngine = engines.open_engine
    ) -> None:
        self.pid = os.getpid()
        self.service = StorageService(self.pid, disk, open_engine)
        self.task: asyncio.Task[int] | None = None

    def start(self, control: socket.socket, pages: socket.socket, commits: socket.socket) -> "InProcess":
        # The log closes its copies of these ends, as after an exec.
        self.task = asyncio.create_task(self._run(control.dup(), pages.dup(), commits.dup()))
        return self

    async def _run(self, control: socket.socket, pages: socket.socket, commits: socket.socket) -> int:
        try:
            return await self.service.run(control, pages, commits)
        finally:
            await self.service.release()
            os.umask(_MASK)

    def poll(self) -> int | None:
        return self.task.result() if self.task is not None and self.task.done() else None

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def kill(self) -> None:
        raise AssertionError("it shares our process")
