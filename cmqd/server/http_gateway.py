"""The HTTP gateway as a child process of the broker (``cmqd serve --http``): its start, its key, its end.

    start ──► lend a key, pass it through a pipe ──► runs ──► ended ──► take the key back, pause, start again
                                                       └──── stop: SIGTERM, then SIGKILL

Rules:

- The key is lent (``Accounts.lend_key``) for the life of the child. No file, argument or variable of the environment
  has the key, and the key ends with the child. The child inherits a pipe and reads the key from the pipe.
- The pipe stays open while the broker lives. The end of the pipe ends the child, also after kill -9 of the broker.
- A child that ended without ``stop`` is started again, after pauses that grow from half a second to half a minute.
- The child has a session of its own, so that Ctrl-C in a terminal reaches the broker alone. The broker then ends the
  child before it drains: HTTP requests that are under way still need a broker that answers.
- The broker knows the child's command line, and none of its modules.
"""

import asyncio
import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from cmqd.server.accounts_file import Key
from cmqd.server.listening import is_loopback
from cmqd.server.log_lines import get_logger
from cmqd.server.part import part
from cmqd.settings import Settings
from cmqd_types.keys import Role

_log = get_logger()

ROLES: Final = (Role.READ, Role.GATEWAY)
"""Roles of the lent key: secrets of callers, and metrics."""
LIBRARIES: Final = ("aiohttp", "cyclopts", "prometheus_client", "structlog", "uvloop")
"""Modules of the extra ``gateway``."""

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""Life of a child after which the next pause is ``FIRST_PAUSE_S`` again."""
KILL_WITHIN_S: Final = 1.0


def missing_library() -> str | None:
    """Return a library of the extra ``gateway`` that is not installed, None if the extra is complete."""
    return next((name for name in LIBRARIES if importlib.util.find_spec(name) is None), None)


def needs_private_listener(host: str, *, tls: bool) -> bool:
    """Return True if the child cannot use the broker's address: the certificate is for a different name, or the broker
    would see a connection from an address that is not loopback, and refuse to send secrets.
    """
    return tls or not (is_loopback(host) or host in ("", "0.0.0.0", "::", "localhost"))


def broker_url(host: str, port: int, region: str) -> str:
    """Return the URL by which the child reaches the broker on this machine, without a key."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"cmq://{f'[{reachable}]' if ':' in reachable else reachable}:{port}?region={region}"


def command_of(settings: Settings, url: str, descriptor: int) -> list[str]:
    """Return the command line of the child."""
    command = [sys.executable, "-m", "cmqd_gateway", "--broker", url, "--listen", settings.http_address]
    command += ["--key-fd", str(descriptor), "--parent-fd", str(descriptor)]
    command += ["--log-format", str(settings.log_format), "--log-level", str(settings.log_level)]
    if settings.ready_file is not None:
        command += ["--ready-file", str(ready_file_of(settings.ready_file))]
    return command


def ready_file_of(ready_file: Path) -> Path:
    """Return the ready file of the child, beside that of the broker."""
    return ready_file.with_name(f"{ready_file.name}.http")


@part
class HttpGateway:
    """The child process; see the module. To be started once."""

    command: Callable[[int], Sequence[str]]
    """Returns the command line for the descriptor of the pipe."""
    lend: Callable[[], Key]
    take_back: Callable[[str], None]
    """Ends a lent key and its connections."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._running: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    @property
    def process_id(self) -> int | None:
        """Process id of the child, None while no child runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the child, and start the next child whenever a child ends."""
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, within_s: float) -> None:
        """End the child after at most ``within_s`` seconds for its requests. Harmless without a child."""
        self._stopping = True
        running = self._running
        if running is None:
            return
        process = self._process
        if process is None:
            running.cancel()
        else:
            _signal(process.terminate)
        await asyncio.wait({running}, timeout=within_s)
        if not running.done() and process is not None:
            _log.warning("http_gateway_killed", pid=process.pid, after_s=within_s)
            _signal(process.kill)
            await asyncio.wait({running}, timeout=KILL_WITHIN_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopping:
            began_s = self.now_s()
            outcome = await self._run_once()
            if self._stopping:
                break
            if self.now_s() - began_s >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            _log.warning("http_gateway_ended", outcome=outcome, starts_again_in_s=pause_s)
            await self.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _run_once(self) -> str:
        """Run a child until its end; return the way it ended."""
        key = self.lend()
        reading, writing = os.pipe()
        try:
            try:
                # A pipe holds far more than a key, so the write does not wait for the child.
                os.write(writing, f"{key.secret_id}:{key.secret_key}\n".encode())
                process = self._process = await asyncio.create_subprocess_exec(
                    *self.command(reading),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(reading,),
                    start_new_session=True,
                )
            finally:
                os.close(reading)
            _log.info("http_gateway_started", pid=process.pid)
            if self._stopping:
                # ``stop`` found no process yet.
                _signal(process.terminate)
            code = await process.wait()
            return f"exit code {code}" if code >= 0 else f"signal {-code}"
        except OSError as failure:
            return f"not started: {failure}"
        finally:
            self._process = None
            os.close(writing)
            self.take_back(key.secret_id)


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessLookupError):
        send()
