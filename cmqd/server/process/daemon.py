"""The server process: assembles the rooms, recovers, serves, and ends in order.

start      log opened (locked, checked, repaired) → accounts → checkpoint and newer records applied → clock →
           listening → ready
standby    with redundancy, while another broker leads: the address is bound, connections are refused with ``standby``,
           and records are applied as they come; then accounts → clock → listening → ready
SIGTERM    no new connections; requests and waiting receives end with ``shutting down``; commits finish and their
           replies leave; connections close; a last checkpoint; the log is closed cleanly. Within ``drain_timeout_ms``.
SIGHUP     settings and TLS files are read again (``broker_reload``)
disaster   the storage failed, or a bug showed in the core: nothing more is acknowledged, waiting requests end with
           ``outcome unknown``, the process logs the reason and ends.
"""

import asyncio
import contextlib
import dataclasses
import gc
import json
import os
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

import cmqd
from cmqd.allocator import LargeBlocks
from cmqd.core.broker import Broker
from cmqd.core.facts.numbers import NumbersUsedUp, WrongShard
from cmqd.exit_codes import ExitCode
from cmqd.log.interface import Log
from cmqd.log.log_errors import LogError, LogFailed
from cmqd.log.values import EngineStatus, LogState, RecoveryReport
from cmqd.memory_log import MemoryLog
from cmqd.server.access.accounts import Accounts, open_accounts
from cmqd.server.access.accounts_file import ADMIN, AccountsFile, AccountsFileError, Key, new_document
from cmqd.server.admission.core_limits import limits_of
from cmqd.server.broker_logger import configure_logs, get_logger
from cmqd.server.halt import failure_text
from cmqd.server.log_upkeep.disk_state import DiskState
from cmqd.server.loop.clock import BrokerClock, wall_ms
from cmqd.server.loop.cron import calendar
from cmqd.server.monitoring.counters import rss_bytes
from cmqd.server.monitoring.server_figures import ServerFigures
from cmqd.server.monitoring.status import StorageProcessStatus
from cmqd.server.process.advertised_address import advertised_address
from cmqd.server.process.broker_reload import Reload
from cmqd.server.process.context_file import PairContext, context_path, reachable_address, write_context
from cmqd.server.process.greeting import Started, find_cmq, greeting
from cmqd.server.process.http_gateway import (
    ROLES,
    HttpGateway,
    broker_url,
    command_of,
    http_url,
    needs_private_listener,
)
from cmqd.server.process.listening import connection_limit
from cmqd.server.process.readiness import Readiness, readiness_of_leader, readiness_of_standby
from cmqd.server.process.recovery import Recovery
from cmqd.server.process.service_manager import of_this_process
from cmqd.server.push.pusher import Pusher
from cmqd.server.push.subscription_secrets import SubscriptionSecrets
from cmqd.server.redundancy.engine_accounts import EngineAccounts, addresses_in
from cmqd.server.redundancy.engine_lines import EngineLines
from cmqd.server.redundancy.leadership import Leadership, leadership_of
from cmqd.server.redundancy.standby_http import StandbyHttp
from cmqd.server.redundancy.standby_listener import StandbyListener
from cmqd.server.redundancy.standby_metrics import StandbyFigures, standby_metrics
from cmqd.server.redundancy.takeover_time import log_resumed_time, needs_row, resumed_time
from cmqd.server.server import Server
from cmqd.server.wiring import Surroundings, make_server
from cmqd.settings import Settings
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.storage_errors import LeadLost, PoolerBetween
from cmqd.storage.storage_settings import StorageSettings
from cmqd_logs import lines
from cmqd_logs.levels import LogFormat, LogLevel
from cmqd_sockets.listening import raise_descriptor_limit
from cmqd_types.sentences import counted

_log = get_logger()
_T = TypeVar("_T")

CLOSE_LOG_S: Final = 1.5
"""Part of the drain time reserved for closing the log: a truncating checkpoint of a segment and a rename."""
LAST_STEPS_S: Final = 0.4
"""Part of that reserve for killing a hanging storage process, and for the end of this process."""
NO_KEY: Final = (0, 0, 0, 0)
"""Key of the receipt handles before this broker leads, and no handle is made or read."""
LAST_WORDS_S: Final = 1.0
"""Time that clients have, after a failure, to read the reason of the end."""


_LOG_IS_CLOSED: Final = frozenset({ExitCode.OK, ExitCode.DRAIN_INCOMPLETE})


class _StoppedEarlyError(Exception):
    """SIGTERM came before the server was ready."""


def run_server(
    settings: Settings,
    read_again: Callable[[], Settings],
    ignored: Sequence[str] = (),
    gateway_flags: Sequence[str] = (),
) -> ExitCode:
    """Serve until a signal or a failure ends the process, and return its exit code.

    Args:
        settings: the settings in force.
        read_again: loads the settings anew, for SIGHUP.
        ignored: variables of the environment that look like settings, and that a container platform made.
        gateway_flags: the settings of ``http_config``, checked.
    """
    configure_logs(settings.log_format, settings.log_level)
    lines.take_lines_of_libraries()
    _log.info("starting", version=cmqd.__version__, pid=os.getpid(), durability=settings.durability_text)
    if ignored:
        _log.info("variables_ignored", names=list(ignored), text="container platforms make these for a service")
    # Recovery makes millions of objects that stay; without this the collector would scan them again and again.
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(Daemon(settings, Reload(settings, read_again), gateway_flags).run())
    lines.report_left_out()
    _log.info("stopped", exit_code=int(code), reason=code.name.lower())
    return code


class Daemon:
    """A server; see the module. To be run once."""

    def __init__(self, settings: Settings, reload: Reload, gateway_flags: Sequence[str] = ()) -> None:
        self._settings = settings
        self._reload = reload
        self._gateway_flags = gateway_flags
        self._reloads: set[asyncio.Task[None]] = set()
        self._recovery: Recovery | None = None
        """None before the log is open."""
        self._failure: Exception | None = None
        self._server: Server | None = None
        """None until the server is made."""
        self._leadership: Leadership | None = None
        """None without redundancy, and before this broker leads."""
        self.standby: StandbyListener | None = None
        """Set while and after this broker was a standby."""
        self.standby_http: StandbyHttp | None = None
        """Set while and after this broker was a standby with the setting ``http``."""
        self._began_s = time.monotonic()
        self._pair: PairContext | None = None
        """None without redundancy, and before the standby listens."""
        self._pair_task: asyncio.Task[None] | None = None
        self._gateway_key: Key | None = None
        """Key of the gateways of the log; None without redundancy: each child has a key of its own."""
        self._gateway: HttpGateway | None = None
        """None without the setting ``http``."""

    async def run(self) -> ExitCode:
        """Start, serve, end; return the exit code and never raise."""
        self._loop = asyncio.get_running_loop()
        self._large_blocks = LargeBlocks(self._loop.call_later)
        self._stop = asyncio.Event()
        self._loop.set_exception_handler(_on_loop_exception)
        lines.report_regularly(self._loop.call_later)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        self._manager = of_this_process(self._loop)
        self._manager.starting()
        # Behind the handlers: from this line of the log on, a signal ends the process in order.
        _log.debug("settings", **self._settings.as_table())
        try:
            raise_descriptor_limit()
            self._settings.data.mkdir(parents=True, exist_ok=True)
            self._log = self._make_log()
        except OSError as failure:
            _log.error("data_folder_refused", data=str(self._settings.data), reason=str(failure))
            return ExitCode.CANNOT_OPEN
        code = await self._run()
        if self._pair_task is not None:
            self._pair_task.cancel()
        if self._gateway is not None:
            await self._gateway.stop(0)
        if code not in _LOG_IS_CLOSED:
            await self._close_log()
        if self._server is not None:
            # The server may have ended before it served.
            await self._server.outbox.close(0)
        return code

    async def _run(self) -> ExitCode:
        settings = self._settings
        try:
            server, accounts = await self._start()
        except _StoppedEarlyError:
            await self._close_log()
            return ExitCode.OK
        except LogFailed as failure:
            _log.error("storage_failed", reason=str(failure))
            return _code_of(failure)
        except (LogError, AccountsFileError, WrongShard, NumbersUsedUp, OSError) as refusal:
            _log.error("data_folder_refused", data=str(settings.data), reason=str(refusal))
            return ExitCode.CANNOT_OPEN
        except Exception:
            _log.exception("unexpected_error")
            return ExitCode.BUG
        try:
            host, port = await server.start()
        except (OSError, ssl.SSLError) as failure:
            _log.error("cannot_listen", address=settings.listen, reason=str(failure))
            return ExitCode.CANNOT_LISTEN
        if self._failure is not None:
            # No ready file and no log line may announce the server: a client would wait for answers that never come.
            return await self._end_in_disaster(server, self._failure)
        try:
            await self._start_gateway(server, accounts, host, port)
        except OSError as failure:
            _log.error("cannot_listen", address="127.0.0.1", reason=str(failure))
            return ExitCode.CANNOT_LISTEN
        try:
            self._announce(accounts, host, port)
        except OSError as failure:
            _log.error("data_folder_refused", data=str(settings.data), reason=str(failure))
            return ExitCode.CANNOT_OPEN
        leadership = self._leadership
        proving = None if leadership is None else self._loop.create_task(leadership.keep_proved())
        await self._stop.wait()
        if proving is not None:
            proving.cancel()
        if self._failure is not None:
            return await self._end_in_disaster(server, self._failure)
        return await self._drain(server)

    # ------------------------------------------------------------------ start

    async def _start(self) -> tuple[Server, Accounts]:
        settings = self._settings
        log = self._log
        # The storage reports its state and its requests as soon as it is open, before the server exists.
        early: dict[str, LogState] = {}
        checkpoint_wanted = asyncio.Event()
        log.on_state = lambda state: early.update(state=state)
        log.on_checkpoint_wanted = checkpoint_wanted.set
        # Until the server takes the failure: a storage that fails behind the last chunk of its recovery stream would
        # otherwise fail unheard, and the server would listen without ever answering.
        log.on_fatal = self._on_failed
        opening = asyncio.ensure_future(log.open())
        # The storage process begins in this turn; its start and these imports take about as long, on two cores.
        await asyncio.sleep(0)
        if Pusher.available():
            Pusher.load()
        report = await self._unless_stopped(opening)
        opened = None if settings.is_replicated else open_accounts(settings.data, wall_ms())
        handle_key = NO_KEY if opened is None else opened[0].handle_key
        broker = Broker(handle_key, limits_of(settings), seed=secrets.randbits(64), calendar=calendar)
        recovery = self._recovery = Recovery(broker=broker, log=log, report=report)
        if opened is None:
            settings = await self._follow(recovery)
            address = advertised_address(settings.advertise, settings.listen_address, socket.gethostname)
            accounts = await self._unless_stopped(self._accounts_of_engine(broker, address))
            self._leadership = leadership_of(log, settings.shard)
        else:
            await self._unless_stopped(recovery.run())
            accounts, are_new = opened
            if are_new:
                await self._keep_new_accounts(accounts, broker, report)
        broker.take_shard(settings.shard)
        server = self._make_server(settings, accounts, recovery)
        if "state" in early:
            server.part(DiskState).reported(early["state"])
        has_new_rows = self._append_first_records(server, recovery)
        await server.part(SubscriptionSecrets).match()
        if self._failure is not None:
            raise self._failure
        if checkpoint_wanted.is_set() or has_new_rows:
            # Behind a checkpoint the next start replays neither the gap of a loss nor a step of broker time.
            server.checkpoints.want()
        _tune_collector()
        return server, accounts

    def _make_server(self, settings: Settings, accounts: Accounts, recovery: Recovery) -> Server:
        broker = recovery.broker
        clock = BrokerClock(
            not_before_ms=recovery.last_time.ms,
            offset_ms=broker.facts.clock_offset_ms,
            resumed_ms=self._resumed_ms(recovery),
            adopt=settings.adopt_wall_clock,
            on_jump=lambda jump_ms: _log.warning("clock_jumped", by_ms=jump_ms, followed=False),
        )
        given = Surroundings(
            loop=self._loop,
            settings=settings,
            broker=broker,
            log=self._log,
            accounts=accounts,
            clock=clock,
            max_connections=connection_limit(settings.max_connections, raise_descriptor_limit(), settings.max_pushes),
            storage_status=self._storage_status,
            on_failed=self._on_failed,
            settings_in_force=lambda: self._reload.in_force,
            leadership=self._leadership,
            note_held=self._large_blocks.note_held,
        )
        self._server = make_server(given)
        return self._server

    def _append_first_records(self, server: Server, recovery: Recovery) -> bool:
        """Append the records of the start before any deadline is planned; return True if there are any."""
        log = self._log
        # A leader whose time rests on its wall clock stores a row: else the next leader would read its own wall clock.
        is_first = isinstance(log, StorageProcessLog) and needs_row(
            log.takeover, recovery.last_time.ms, epoch=log.epoch
        )
        return recovery.append_first_records(server.clock, always=is_first)

    def _resumed_ms(self, recovery: Recovery) -> int | None:
        """Return broker time at a takeover, or behind a restore; None if the wall clock decides."""
        log, broker = self._log, recovery.broker
        if recovery.resumed_ms is not None or not isinstance(log, StorageProcessLog):
            return recovery.resumed_ms
        resumed = resumed_time(
            log.takeover, offset_ms=broker.facts.clock_offset_ms, wall_ms=wall_ms(), now_s=log.clock_s()
        )
        log_resumed_time(log.takeover, resumed)
        return None if resumed is None else resumed.time_ms

    async def _follow(self, recovery: Recovery) -> Settings:
        """Recover as a standby, which refuses connections, until this broker leads; return the settings with the port
        that the standby had, which the leader keeps.

        The listener is there from the first moment: a client that waits for the leader learns its address here.
        """
        log = self._log
        assert isinstance(log, StorageProcessLog)
        standby = self.standby = StandbyListener(self._settings, lambda: addresses_in(log.accounts))
        host, port = await standby.start()
        http = await self._start_standby_http(log, standby, recovery)
        try:
            address = advertised_address(self._settings.advertise, (host, port), socket.gethostname)
            log.announce(address)
            self._keep_context(log, address)
            _log.info("standby", host=host, port=port, shard=self._settings.shard)
            # A standby is a started service: it may follow for months before it leads.
            self._manager.ready("standby")
            await self._unless_stopped(recovery.run())
        finally:
            standby.stop()
            if http is not None:
                http.stop()
        _log.info("leads", epoch=log.epoch, last_lsn=log.last_lsn)
        return dataclasses.replace(self._settings, listen=f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    async def _start_standby_http(
        self, log: StorageProcessLog, standby: StandbyListener, recovery: Recovery
    ) -> StandbyHttp | None:
        """Answer questions about this standby at the address of the gateway; None without an address."""
        if not self._settings.http:
            return None

        def readiness() -> Readiness:
            return readiness_of_standby(log.engine_status, log.clock_s(), is_replayed=recovery.is_replayed)

        def metrics() -> str:
            pid = self._storage_pid()
            return standby_metrics(
                StandbyFigures(
                    status=log.engine_status,
                    now_s=log.clock_s(),
                    uptime_s=time.monotonic() - self._began_s,
                    last_lsn=recovery.applied_lsn,
                    connections_refused=standby.refused,
                    loop_rss_bytes=rss_bytes(),
                    storage_rss_bytes=rss_bytes(pid) if pid else 0,
                )
            )

        http = self.standby_http = StandbyHttp(self._settings, readiness, metrics)
        try:
            await http.start()
        except (OSError, ssl.SSLError) as failure:
            # As a gateway that cannot listen: the standby follows all the same.
            _log.error("cannot_listen", address=self._settings.http_address, reason=str(failure))
        return http

    def _keep_context(self, log: StorageProcessLog, address: str) -> None:
        """Begin to write the context file of the pair."""
        settings = self._settings
        self._pair = PairContext(
            path=context_path(settings),
            tls=settings.uses_tls,
            shard=settings.shard,
            own_address=address,
            log=log,
        )
        self._pair_task = self._loop.create_task(self._pair.run())

    async def _accounts_of_engine(self, broker: Broker, address: str) -> Accounts:
        """Load the accounts of the log that this broker leads, or make those of a new log; write the address of this
        broker beside them.

        Before this broker listens: the port is known from its time as a standby, and the other standbys name this
        broker, and not a former leader, to every client that comes meanwhile.

        Raises:
            AccountsFileError: they are damaged, or missing although the log is not new.
        """
        assert isinstance(self._log, StorageProcessLog)
        store = EngineAccounts(self._log, address)
        document = await store.load()
        if document is None:
            if broker.queues or broker.topics or broker.schedules or broker.records_not_applied:
                raise AccountsFileError(
                    f"the engine has no accounts, but its log is not new ({counted(len(broker.queues), 'queue')} and"
                    f" {counted(len(broker.topics), 'topic')}): a new admin would get the messages of others"
                )
            document = new_document(wall_ms())
            await store.write(document)
            _log.info("admin_created", account=ADMIN, old_copy=None)
        await store.publish()
        broker.use_handle_key(document.handle_key)
        accounts = Accounts(document, store.write)
        if self._settings.http:
            self._gateway_key = await accounts.gateway_key(ROLES, wall_ms())
        return accounts

    def _make_log(self) -> Log:
        settings = self._settings
        if settings.ephemeral:
            return MemoryLog(segment_bytes=settings.segment_bytes)
        log = StorageProcessLog(StorageSettings.of(settings))
        log.on_folder_in_use = lambda text, waiting_ms: _log.warning(
            "data_folder_in_use", text=text, waiting_ms=waiting_ms
        )
        lines = EngineLines(str(self._settings.as_table()["engine_url"]))

        def on_engine(status: EngineStatus) -> None:
            lines.report(status)
            self._tell_addresses()

        log.on_engine = on_engine
        return log

    async def _keep_new_accounts(self, accounts: Accounts, broker: Broker, report: RecoveryReport) -> None:
        """Write the accounts of a new folder. A log with records had accounts before, and a new admin over old messages
        would be a way in; nor does an accepted loss make the log a new log.

        Raises:
            AccountsFileError: the log is not empty, or parts of it were lost.
            OSError: the accounts could not be written.
        """
        file = AccountsFile(self._settings.data)
        if broker.queues or broker.topics or broker.schedules or broker.records_not_applied or report.numbers_jump:
            contents = f"{counted(len(broker.queues), 'queue')} and {counted(len(broker.topics), 'topic')}"
            copy = f"; its copy is {file.copy}" if file.copy.exists() else ""
            raise AccountsFileError(
                f"{file.path} is missing, but the log is not new ({contents}): put the file back{copy}. If it is lost,"
                f" 'cmqd accounts new-key {ADMIN} --data {self._settings.data}' creates a new file"
            )
        aside = file.put_aside(file.copy) if file.copy.exists() else None
        await accounts.save_new()
        _log.info("admin_created", account=ADMIN, old_copy=None if aside is None else str(aside))

    async def _start_gateway(self, server: Server, accounts: Accounts, host: str, port: int) -> None:
        """Start the HTTP gateway, if the settings have an address.

        Raises:
            OSError: the gateway needs a listening socket of its own, and there is none.
        """
        settings = self._settings
        if not settings.http:
            return
        if needs_private_listener(host, tls=settings.uses_tls):
            host, port = await server.listener.start_private()
        url = broker_url(host, port, settings.region)

        def take_back(secret_id: str) -> None:
            if self._gateway_key is not None:
                # Other gateways of the log live by the same key.
                return
            accounts.take_back_key(secret_id)
            server.connections.revoke(secret_id)

        self._gateway = HttpGateway(
            # The settings in force when a child starts: a reload may have changed the names of the TLS files.
            command=lambda descriptor: command_of(self._reload.in_force, self._gateway_flags, url, descriptor),
            lend=lambda: self._gateway_key or accounts.lend_key(ROLES, wall_ms()),
            take_back=take_back,
            readiness=lambda: readiness_of_leader(server.part(ServerFigures)),
        )
        self._tell_addresses()
        self._gateway.start()

    def _tell_addresses(self) -> None:
        """Tell the gateway the addresses of the brokers of this log; news of them come with reports of the engine."""
        if self._gateway is not None and self._server is not None and self._leadership is not None:
            addresses = self._leadership.addresses(self._server.location["address"])
            self._gateway.use_addresses(addresses, tls=self._settings.uses_tls)

    def _announce(self, accounts: Accounts, host: str, port: int) -> None:
        """Announce the address of the server, now that it answers."""
        settings = self._settings
        self._manager.ready("leader" if settings.is_replicated else "serving")
        tls = settings.uses_tls
        if self._pair is not None:
            context_file = self._pair.lead(accounts)
        else:
            key, addresses = accounts.first_key(ADMIN), [reachable_address(host, port)]
            context_file = write_context(context_path(settings), key, addresses, tls=tls)
        process_id = self._storage_pid()
        if not tls and not (host.startswith("127.") or host == "::1"):
            _log.warning("listening_without_tls", host=host, text="message bodies cross the network in the clear")
        _log.info(
            "listening",
            host=host,
            port=port,
            tls=tls,
            durability=settings.durability_text,
            storage_pid=process_id,
            context_file=str(context_file),
        )
        if settings.log_format is LogFormat.CONSOLE and settings.log_level in (LogLevel.DEBUG, LogLevel.INFO):
            started = Started(
                *(
                    host,
                    port,
                    tls,
                    settings.data,
                    settings.durability,
                    settings.ephemeral,
                    context_file,
                    http_url(settings),
                    settings.cmq_tcp_address,
                )
            )
            # Standard output may be a closed pipe, which must not end the broker; a buffer would fail again at the end.
            with contextlib.suppress(OSError, ValueError):
                os.write(sys.stdout.fileno(), f"{greeting(started, find_cmq())}\n".encode())
        if settings.ready_file is not None:
            _write_ready_file(
                settings.ready_file,
                {
                    "host": host,
                    "port": port,
                    "pid": os.getpid(),
                    "storage_pid": process_id,
                    "context_file": str(context_file.absolute()),
                    "durability": settings.durability_text,
                    "version": cmqd.__version__,
                },
            )

    def _storage_pid(self) -> int | None:
        return self._log.process_id if isinstance(self._log, StorageProcessLog) else None

    def _storage_status(self) -> StorageProcessStatus:
        process_id = self._storage_pid()
        recovery = None if self._recovery is None else self._recovery.status()
        return StorageProcessStatus(process_id, rss_bytes(process_id) if process_id else 0, recovery)

    # ------------------------------------------------------------------ the end

    def _on_signal(self, number: int) -> None:
        _log.info("signal", name=signal.Signals(number).name)
        self._manager.stopping()
        self._stop.set()

    def _on_reload(self) -> None:
        _log.info("signal", name="SIGHUP")
        listener = None if self._server is None else self._server.listener
        task = self._loop.create_task(self._reload.run(listener, self._gateway))
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    def _on_failed(self, failure: Exception) -> None:
        self._failure = failure
        self._stop.set()

    async def _drain(self, server: Server) -> ExitCode:
        drain_s = self._settings.drain_timeout_ms / 1000
        stop_at = self._loop.time() + drain_s
        if self._gateway is not None:
            await self._gateway.stop(drain_s / 4)
        await server.drain((stop_at - self._loop.time() - CLOSE_LOG_S) / 2)
        if self._failure is not None:
            # No last checkpoint: after a bug, the next start would take a wrong index from it.
            return await self._end_in_disaster(server, self._failure)
        try:
            left_s = stop_at - CLOSE_LOG_S - self._loop.time()
            await asyncio.wait_for(server.checkpoints.write_final(), max(0.1, left_s))
        except TimeoutError:
            # Recovery takes the checkpoint before, and the records since: slower, not less.
            _log.warning("final_checkpoint_skipped")
        except LogFailed:
            pass  # told below, by closing the log
        try:
            await self._log.close(max(0.1, stop_at - LAST_STEPS_S - self._loop.time()))
        except TimeoutError:
            _log.warning("drain_incomplete")
            return ExitCode.DRAIN_INCOMPLETE
        except LogFailed as failure:
            _log.error("storage_failed", reason=str(failure))
            return ExitCode.STORAGE_FAILED
        return ExitCode.OK

    async def _end_in_disaster(self, server: Server, failure: Exception) -> ExitCode:
        reason = failure_text(failure)
        await server.end(reason, LAST_WORDS_S)
        print(f"cmqd: {reason}", file=sys.stderr)
        # Records appended before the bug showed are sound and some are acknowledged: therefore the log is closed.
        return _code_of(failure)

    async def _close_log(self) -> None:
        """Release the folder on the way out after a failure; recovery handles any part that cannot be closed."""
        try:
            await self._log.close(CLOSE_LOG_S)
        except (LogError, TimeoutError):
            _log.debug("log_not_closed", exc_info=True)

    async def _unless_stopped(self, work: Awaitable[_T]) -> _T:
        """Wait for work, unless SIGTERM or a failure comes first."""
        doing = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})
            raise self._failure or _StoppedEarlyError
        result = doing.result()
        if self._failure is not None:
            raise self._failure
        return result


def _code_of(failure: Exception) -> ExitCode:
    if isinstance(failure, LeadLost):
        return ExitCode.FENCED
    if isinstance(failure, PoolerBetween):
        return ExitCode.CANNOT_OPEN
    return ExitCode.STORAGE_FAILED if isinstance(failure, LogFailed) else ExitCode.BUG


def _tune_collector() -> None:
    """Keep the garbage collector away from the index.

    The objects that recovery built are frozen. Young garbage is still collected; full collections, which would look at
    every object of every queue, are not: messages and records hold no cycles, and connections break theirs on closing.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 1_000_000_000)


def _write_ready_file(path: Path, content: dict[str, Any]) -> None:
    """Write the file beside and rename it, so that a reader of the file sees all of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content) + "\n")
    temporary.rename(path)


def _on_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _log.error("loop_exception", text=context.get("message"), exc_info=context.get("exception"))
