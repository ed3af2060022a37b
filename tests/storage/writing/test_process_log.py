"""The log of the loop process beside a storage process with answers of the test."""

import asyncio
import socket
from pathlib import Path

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.log.values import RecoveryReport, SegmentReport
from cmqd.storage import ipc
from cmqd.storage.loop_side.process_log import StorageProcessLog
from support.storage.log_rig import settings_for

SEGMENT = SegmentReport(1, 1, 5, 0, 0, 5, 4096, True, b"")


class ToldProcess:
    """The other ends of the three sockets, without a process."""

    pid = 0

    def __init__(self, *, dies_at_once: bool = False) -> None:
        self._dies_at_once = dies_at_once
        self._attaching: asyncio.Task[None] | None = None
        self.heads: asyncio.Queue[ipc.AnyHead] = asyncio.Queue()
        """Frames of the log, in their order."""
        self.control: ipc.Channel
        self.commits: socket.socket

    def start(self, control: socket.socket, pages: socket.socket, commits: socket.socket) -> "ToldProcess":
        if not self._dies_at_once:
            self.commits = commits.dup()
            self._attaching = asyncio.ensure_future(self._attach(control.dup(), pages.dup()))
        return self

    async def _attach(self, control: socket.socket, pages: socket.socket) -> None:
        self.control = await ipc.attach(control, lambda head, _data, _offset: self.heads.put_nowait(head), lambda: None)
        await ipc.attach(pages, lambda _head, _data, _offset: None, lambda: None)

    def poll(self) -> int | None:
        return 9

    def wait(self, timeout: float | None = None) -> int:
        return 9

    def kill(self) -> None:
        raise AssertionError("it has ended")


async def test_a_segment_whose_seal_ends_while_it_is_dropped_is_not_offered_again(tmp_path: Path) -> None:
    process = ToldProcess()
    log = StorageProcessLog(settings_for(tmp_path), process.start)
    opening = asyncio.create_task(log.open())
    assert isinstance(await process.heads.get(), ipc.Open)
    process.control.send(ipc.Opened(RecoveryReport(False, True, 0, 5, False), 5, [SEGMENT]))
    await opening

    dropping = asyncio.create_task(log.drop_segments([1], 5))
    request = await process.heads.get()
    assert isinstance(request, ipc.DropSegments)
    process.control.send(ipc.SegmentClosed(SEGMENT, 5))
    process.control.send(ipc.Answered(request.request_id, [1]))

    assert await dropping == [1]
    assert log.closed_segments() == []
    await log.kill()
    process.control.close()
    process.commits.close()


async def test_a_process_that_ends_before_it_is_asked_to_open_fails_the_opening(tmp_path: Path) -> None:
    log = StorageProcessLog(settings_for(tmp_path), ToldProcess(dies_at_once=True).start)

    with pytest.raises(LogFailed, match="ended unexpectedly"):
        await log.open()


async def test_a_request_for_the_active_segment_fails_with_the_log(tmp_path: Path) -> None:
    process = ToldProcess()
    log = StorageProcessLog(settings_for(tmp_path), process.start)
    opening = asyncio.create_task(log.open())
    assert isinstance(await process.heads.get(), ipc.Open)
    process.control.send(ipc.Opened(RecoveryReport(False, True, 0, 5, False), 5, [SEGMENT]))
    await opening
    first, second = (asyncio.create_task(log.active_segment()) for _ in range(2))
    requests = [await process.heads.get() for _ in range(2)]
    assert [type(request) for request in requests] == [ipc.DescribeActive] * 2
    process.control.send(ipc.ActiveSegment(requests[1].request_id, None))  # type: ignore[union-attr]
    assert await second is None

    process.control.send(ipc.Failed("LogFailed", "the disk failed"))

    with pytest.raises(LogFailed, match="the disk failed"):
        await first
    await log.kill()
    process.control.close()
    process.commits.close()


async def test_the_service_imports_no_module_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "re.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    log = StorageProcessLog(settings_for(tmp_path))

    await log.open()

    await log.kill()
