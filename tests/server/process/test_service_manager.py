"""Notices to the service manager, over real datagram sockets and a timer that the test turns."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cmqd.memory_log import MemoryLog
from cmqd.server.process.service_manager import EXTEND_EVERY_S, ServiceManager
from support.engine.replicas import Replicas
from support.eventually import eventually
from support.server.daemons import DaemonOverEngine, DaemonOverLog

PID = 4711


class Timer:
    """Timers of a loop in which time passes by ``pass_s`` alone."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._planned: list[tuple[float, Callable[[], None], Handle]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        handle = Handle()
        self._planned.append((self._now_s + delay_s, call, handle))
        return handle

    def pass_s(self, seconds: float) -> None:
        end_s = self._now_s + seconds
        while due := [planned for planned in self._planned if planned[0] <= end_s]:
            next_one = min(due, key=lambda planned: planned[0])
            self._planned.remove(next_one)
            self._now_s, call, handle = next_one
            if not handle.is_cancelled:
                call()
        self._now_s = end_s


class Handle:
    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Systemd:
    """The receiving end."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(address)

    def notices(self) -> list[str]:
        """Return the notices since the last call."""
        notices: list[str] = []
        while True:
            try:
                notices.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return notices

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "path" else f"@cmqd-test-{tmp_path.name}-{id(request)}"


@pytest.fixture
def systemd(address: str) -> Iterator[Systemd]:
    receiver = Systemd(f"\0{address[1:]}" if address.startswith("@") else address)
    yield receiver
    receiver.close()


def manager_of(timer: Timer, environment: Mapping[str, str]) -> ServiceManager:
    return ServiceManager(environment, PID, timer.call_later)


def test_a_start_is_extended_until_it_is_over(systemd: Systemd, address: str) -> None:
    timer = Timer()
    manager = manager_of(timer, {"NOTIFY_SOCKET": address})

    manager.starting()
    timer.pass_s(3 * EXTEND_EVERY_S)
    assert systemd.notices() == ["EXTEND_TIMEOUT_USEC=60000000"] * 4

    manager.ready("standby")
    timer.pass_s(3600)
    assert systemd.notices() == ["READY=1\nSTATUS=standby"], "no watchdog was asked for"

    manager.stopping()
    assert systemd.notices() == ["STOPPING=1"]


@pytest.mark.parametrize("process", ["", str(PID)])
def test_the_watchdog_hears_from_the_timer_twice_in_its_time(systemd: Systemd, address: str, process: str) -> None:
    timer = Timer()
    of_process = {"WATCHDOG_PID": process} if process else {}
    manager = manager_of(timer, {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000000"} | of_process)
    manager.starting()
    manager.ready("standby")
    systemd.notices()

    timer.pass_s(40)
    assert systemd.notices() == ["WATCHDOG=1"] * 4

    manager.ready("leader")
    manager.stopping()
    timer.pass_s(20)
    assert systemd.notices() == ["READY=1\nSTATUS=leader", "STOPPING=1", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_watchdog_of_another_process_hears_nothing(systemd: Systemd, address: str) -> None:
    timer = Timer()
    manager = manager_of(timer, {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"})

    manager.ready("leader")
    timer.pass_s(60)

    assert systemd.notices() == ["READY=1\nSTATUS=leader"]


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "20000000"}])
def test_a_manager_that_is_not_there_stops_nothing(environment: Mapping[str, str]) -> None:
    timer = Timer()
    manager = manager_of(timer, environment)

    manager.starting()
    manager.ready("leader")
    timer.pass_s(60)
    manager.stopping()


async def test_a_broker_tells_its_start_and_its_end(
    systemd: Systemd, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    daemon = DaemonOverLog(tmp_path, MemoryLog())
    running = asyncio.create_task(daemon.run())
    await eventually(lambda: (tmp_path / "ready.json").exists())
    assert systemd.notices() == ["EXTEND_TIMEOUT_USEC=60000000", "READY=1\nSTATUS=serving"]

    signal.raise_signal(signal.SIGTERM)
    await running

    assert systemd.notices() == ["STOPPING=1"]


async def test_a_standby_is_ready_before_it_leads(
    systemd: Systemd, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = Replicas(tmp_path)
    leader, standby = DaemonOverEngine(replicas, tmp_path / "a"), DaemonOverEngine(replicas, tmp_path / "b")
    leader.begin()
    await leader.led()
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    standby.begin()
    await eventually(lambda: standby.port)
    assert systemd.notices()[-1] == "READY=1\nSTATUS=standby"

    await leader.end()
    await standby.led()
    assert systemd.notices() == ["READY=1\nSTATUS=leader"]
    await standby.end()
    await replicas.end()
