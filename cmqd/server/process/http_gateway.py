"""The HTTP gateway as a child process of the broker (``cmqd serve --http``): its start, its key, its end.

    start ──► lend a key, pass it through a pipe ──► runs ──► ended ──► take the key back, pause, start again
                                                       └──── stop: SIGTERM, then SIGKILL

Rules:

- The key is lent (``Accounts.lend_key``) for the life of the child. No file, argument or variable of the environment
  has the key, and the key ends with the child. The child inherits a pipe and reads the key from the pipe.
- With redundancy the key is that of the log (``Accounts.gateway_key``): a child whose broker is cut off follows to the
  leader, which knows the key. The pipe carries the addresses of the brokers, and each change of them.
- The pipe stays open while the broker lives. The end of the pipe ends the child, also after kill -9 of the broker.
- A child that ended without ``stop`` is started again, after pauses that grow from half a second to half a minute.
- The child has a session of its own, so that Ctrl-C in a terminal reaches the broker alone. The broker then ends the
  child before it drains: HTTP requests that are under way still need a broker that answers.
- The broker knows the child's command line, and none of its modules. Settings of ``http_config`` go to the child as
  flags, as they are in the file. The child's own program checks the command line before the broker opens its data
  folder (``checked_flags``): a wrong name or value ends the start of the broker, not each start of a child.
- The pipe also carries the settings of each reload, as a JSON line: the names of TLS files can change, and a new child
  for new files would end HTTP connections.
- Each second the pipe carries the readiness of the broker, from a timer of the loop. The child answers ``/readyz`` by
  it, and ``/healthz`` by its age: a question to the broker could not tell a leader that is cut off from its log, nor a
  loop that stands still from a connection that is slow.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import subprocess
import time
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, cast

from cmqd.child_python import child_python
from cmqd.server.access.accounts_file import Key
from cmqd.server.broker_logger import get_logger
from cmqd.server.part import part
from cmqd.server.process.readiness import Readiness
from cmqd.settings import SettingError, Settings
from cmqd_sockets.listening import is_loopback
from cmqd_types.keys import Role

_log = get_logger()

CHECK_WITHIN_S = 30
"""Time limit of the check of ``http_config``, because the start of the broker waits for it: a file that the check reads
may be a pipe, or lie on a network disk that hangs."""
ROLES: Final = (Role.READ, Role.GATEWAY)
"""Roles of the lent key: secrets of callers, and metrics."""
LIBRARIES: Final = ("aiohttp", "cyclopts", "prometheus_client", "structlog", "uvloop")
"""Modules of the extra ``gateway``."""

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""Life of a child after which the next pause is ``FIRST_PAUSE_S`` again."""
KILL_WITHIN_S: Final = 1.0
TELL_EVERY_S: Final = 1.0
"""Time between two lines with the readiness."""


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


def http_url(settings: Settings) -> str:
    """Return the URL of the child's address, empty without a gateway."""
    return f"{'https' if settings.uses_tls else 'http'}://{settings.http_address}" if settings.http else ""


def command_of(settings: Settings, more_flags: Sequence[str], url: str, descriptor: int) -> list[str]:
    """Return the command line of the child; ``more_flags`` are the settings of ``http_config``."""
    command = [*child_python(), "-m", "cmqd_gateway", "--broker", url]
    if settings.uses_tls:
        command += ["--listen=", "--listen-https", settings.http_address]
        command += ["--tls-certificate", str(settings.tls_certificate), "--tls-key", str(settings.tls_key)]
    else:
        command += ["--listen", settings.http_address]
    if settings.cmq_tcp:
        command += ["--listen-cmq-tcp", settings.cmq_tcp_address]
    command += ["--http-processes", str(settings.http_processes)]
    command += ["--key-fd", str(descriptor), "--parent-fd", str(descriptor)]
    command += ["--log-format", str(settings.log_format), "--log-level", str(settings.log_level)]
    if settings.ready_file is not None:
        command += ["--ready-file", str(ready_file_of(settings.ready_file))]
    return [*command, *more_flags]


def checked_flags(settings: Settings) -> list[str]:
    """Return the settings of ``http_config`` as flags of the child, checked by the child's program.

    A setting that the broker gives to its gateway itself, such as ``listen``, is refused too.

    Raises:
        SettingError: the file cannot be read, or the gateway refuses its settings, or the check takes longer than
            ``CHECK_WITHIN_S``.
    """
    path = settings.http_config
    if path is None:
        return []
    flags = _flags_of(path)
    # The check takes the key of the command line from standard input; any key passes.
    command = command_of(settings, (), broker_url("127.0.0.1", 1, settings.region), 0)
    given = {word.partition("=")[0] for word in command}
    for flag in flags:
        name = flag.partition("=")[0]
        if name in given:
            raise _refused(path, f"the broker itself gives the setting {name.removeprefix('--')} to its gateway")
    check = [*command, *flags, "--check"]
    try:
        ended = subprocess.run(
            check, input="id:key\n", capture_output=True, text=True, check=False, timeout=CHECK_WITHIN_S
        )
    except subprocess.TimeoutExpired as error:
        reason = f"the gateway did not finish the check of its settings within {CHECK_WITHIN_S} seconds"
        raise _refused(path, reason) from error
    if ended.returncode != 0:
        raise _refused(path, ended.stderr.strip())
    return flags


def _flags_of(path: Path) -> list[str]:
    """Return the settings of a TOML file as flags, a list as a flag for each entry.

    The form ``--name=value`` also takes values that begin with a hyphen, and a switch needs a value, so that no name of
    a setting can be a command such as ``--help``.
    """
    try:
        with path.open("rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise _refused(path, f"the file cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _refused(path, f"the file is not TOML ({error})") from error
    flags: list[str] = []
    for name, value in cast("dict[str, object]", document).items():
        entries = cast("list[object]", value) if isinstance(value, list) else [value]
        for entry in entries:
            if not isinstance(entry, str | bool | int | float):
                raise _refused(path, f"{name} is neither a text, a number, true or false nor a list of texts")
            text = str(entry).lower() if isinstance(entry, bool) else str(entry)
            flags.append(f"--{name.replace('_', '-')}={text}")
    return flags


def _refused(path: Path, reason: str) -> SettingError:
    return SettingError("http_config", str(path), reason, "HTTP gateway")


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
    readiness: Callable[[], Readiness] | None = None
    """Returns the readiness of the broker; None = the child is not told."""

    def __post_init__(self) -> None:
        self._running: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._pipe: int | None = None
        """The broker's end of the child's pipe, None while no child runs."""
        self._stopping = False
        self._telling: asyncio.TimerHandle | None = None
        """The next line with the readiness, while a child runs."""
        self._addresses: dict[str, object] = {}
        """The line with the addresses of the brokers, as last told; empty without redundancy."""

    @property
    def process_id(self) -> int | None:
        """Process id of the child, None while no child runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the child, and start the next child whenever a child ends."""
        self._running = asyncio.get_running_loop().create_task(self._run())

    def reload(self, settings: Settings) -> None:
        """Give the running child the settings that a reload of the broker took; the next child starts with them."""
        taken: dict[str, object] = {"log_level": str(settings.log_level)}
        if settings.uses_tls:
            taken |= {"tls_certificate": str(settings.tls_certificate), "tls_key": str(settings.tls_key)}
        self._tell_settings(taken)

    def use_addresses(self, addresses: Sequence[str], *, tls: bool) -> None:
        """Tell the running child, and each later one, the addresses of the brokers of the log, if they are news."""
        told: dict[str, object] = {"addresses": list(addresses), "addresses_tls": tls}
        if told != self._addresses:
            self._addresses = told
            self._tell_settings(told)

    def _tell_settings(self, settings: dict[str, object]) -> None:
        """Write a line of settings into the pipe of the running child."""
        if self._pipe is None:
            return
        try:
            self._write(settings)
        except OSError as failure:
            # The child has ended, or reads no more: the broker must not wait for it.
            _log.warning("http_gateway_not_reloaded", reason=str(failure))

    def _tell(self) -> None:
        """Write the readiness, and again in a second."""
        if self.readiness is None:
            return
        role, reason = self.readiness()
        # A child that reads no more finds the line old, as it should.
        with contextlib.suppress(OSError):
            self._write({"readiness": {"role": role, "reason": reason}})
        self._telling = asyncio.get_running_loop().call_later(TELL_EVERY_S, self._tell)

    def _write(self, line: dict[str, object]) -> None:
        assert self._pipe is not None
        os.write(self._pipe, json.dumps(line).encode() + b"\n")

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
        os.set_blocking(writing, False)
        self._pipe = writing
        try:
            try:
                # A pipe holds far more than a key, so the write does not wait for the child.
                os.write(writing, f"{key.secret_id}:{key.secret_key}\n".encode())
                if self._addresses:
                    self._tell_settings(self._addresses)
                process = self._process = await asyncio.create_subprocess_exec(
                    *self.command(reading),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(reading,),
                    start_new_session=True,
                )
            finally:
                os.close(reading)
            _log.info("http_gateway_started", pid=process.pid)
            self._tell()
            if self._stopping:
                # ``stop`` found no process yet.
                _signal(process.terminate)
            code = await process.wait()
            return f"exit code {code}" if code >= 0 else f"signal {-code}"
        except OSError as failure:
            return f"not started: {failure}"
        finally:
            if self._telling is not None:
                self._telling.cancel()
            self._process = self._pipe = None
            os.close(writing)
            self.take_back(key.secret_id)


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessLookupError):
        send()
