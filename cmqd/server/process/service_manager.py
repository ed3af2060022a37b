"""Notices to the service manager: systemd's protocol, a datagram to the socket that ``NOTIFY_SOCKET`` names.

    start ──► EXTEND_TIMEOUT_USEC, again and again ──► READY=1 ──► STOPPING=1
                                                       WATCHDOG=1, from the loop's timer, until the process ends

- ``READY=1`` when the process listens, as a standby too: with a notice of leaders alone, systemd would kill each
  standby at its start timeout.
- The start timeout is extended while the log is opened and recovery goes on: how long both take depends on the log, and
  on the engine, and not on a fault of the process.
- ``WATCHDOG=1`` comes from a timer of the loop alone. A silent engine and a hanging disk do not stop the timer: a
  restart would cure neither. A loop that stands still stops it.

Without ``NOTIFY_SOCKET`` nothing is sent. A notice that cannot be sent is dropped: the process must not wait for its
manager.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

EXTEND_EVERY_S: Final = 10.0
EXTEND_BY_S: Final = 60.0
"""Time that each notice asks for. Longer than the pause between two: pages of a large log stop the loop for moments."""

CallLater = Callable[[float, Callable[[], None]], asyncio.TimerHandle]
"""``call_later`` of the loop."""


class ServiceManager:
    """Sends the notices of a process; see the module."""

    def __init__(self, environment: Mapping[str, str], process_id: int, call_later: CallLater) -> None:
        """Take the environment of the process; tests replace the timer of the loop."""
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            # A name of the abstract namespace, which systemd writes with @ for its first byte, a zero.
            self._address = f"\0{self._address[1:]}"
        self._call_later = call_later
        self._watchdog_s = _watchdog_s(environment, process_id)
        self._extending: asyncio.TimerHandle | None = None
        self._beating: asyncio.TimerHandle | None = None

    def starting(self) -> None:
        """Extend the start timeout until ``ready``."""
        if self._address:
            self._send(f"EXTEND_TIMEOUT_USEC={round(EXTEND_BY_S * 1e6)}")
            self._extending = self._call_later(EXTEND_EVERY_S, self.starting)

    def ready(self, status: str) -> None:
        """Tell that the process listens; ``status`` is shown to people. Later calls change the status alone."""
        if self._extending is not None:
            self._extending.cancel()
            self._extending = None
        self._send(f"READY=1\nSTATUS={status}")
        if self._address and self._watchdog_s and self._beating is None:
            self._beat()

    def stopping(self) -> None:
        """Tell that the process ends in order. The watchdog goes on: a drain needs a loop that turns."""
        if self._extending is not None:
            self._extending.cancel()
            self._extending = None
        self._send("STOPPING=1")

    def _beat(self) -> None:
        self._send("WATCHDOG=1")
        self._beating = self._call_later(self._watchdog_s / 2, self._beat)

    def _send(self, notice: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.sendto(notice.encode(), self._address)


def _watchdog_s(environment: Mapping[str, str], process_id: int) -> float:
    """Return the time of the watchdog in seconds; 0 without a watchdog, or if the watchdog is for another process."""
    text = environment.get("WATCHDOG_USEC", "")
    if not text.isdecimal() or environment.get("WATCHDOG_PID", str(process_id)) != str(process_id):
        return 0.0
    return int(text) / 1e6


def of_this_process(loop: asyncio.AbstractEventLoop) -> ServiceManager:
    """Return the service manager that started this process."""
    return ServiceManager(os.environ, os.getpid(), loop.call_later)
