"""The server process: assembles the rooms, recovers, serves, and ends in order.

start      log opened (locked, checked, repaired) → accounts → checkpoint and newer records applied → clock →
           listening → ready
SIGTERM    no new connections; requests and long polls end with ``shutting down``; commits finish and their replies
           leave; connections close; a last checkpoint; the log is closed cleanly. Within ``drain_timeout_ms``.
disaster   the storage failed, or a bug showed in the core: nothing more is acknowledged, everybody who waits
           learns ``outcome unknown``, the process ends and says why.
"""

import asyncio
import contextlib
import enum
import gc
import json
import os
import signal
import ssl
import sys
import time
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

import cmqd
from cmqd.core.broker import Broker
from cmqd.core.limits import Limits
from cmqd.server.accounts import ADMIN, Accounts, AccountsFileError, open_accounts, write_context
from cmqd.server.checkpoints import Checkpoints
from cmqd.server.clock import BrokerClock
from cmqd.server.commit import ReplyGate
from cmqd.server.dispatch import Client, Dispatcher
from cmqd.server.listener import Listener, connection_limit, raise_descriptor_limit
from cmqd.server.logs import configure_logs, get_logger
from cmqd.server.longpoll import LongPolls
from cmqd.server.statistics import Counters, rss_bytes
from cmqd.server.ticker import Ticker
from cmqd.server.wakeup import WakeUp
from cmqd.settings import Settings
from cmqd.storage.errors import StorageError, StorageFailed
from cmqd.storage.log import Log, RecoveryReport, StorageState
from cmqd.storage.memory import MemoryLog
from cmqd.storage.processlog import StorageProcessLog
from cmqd.storage.settings import Durability as StorageDurability
from cmqd.storage.settings import StorageSettings
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error

_log = get_logger()
_T = TypeVar("_T")

PROGRESS_EVERY_S: Final = 1.0
CLOSE_LOG_S: Final = 1.5
"""Kept back of the drain for closing the log: a truncating checkpoint of one segment and a rename."""
LAST_WORDS_S: Final = 1.0
"""How long clients may take to read why everything ended, after a disaster."""


class ExitCode(enum.IntEnum):
    """How the process ends."""

    OK = 0
    """Drained after SIGTERM or SIGINT."""
    BUG = 1
    """Something that cannot happen has happened; the log says what. A restart recovers from the log."""
    USAGE = 2
    """A flag or setting is wrong; nothing was started."""
    STORAGE_FAILED = 3
    """I/O error, failed fsync, or the storage process is gone."""
    CANNOT_OPEN = 4
    """The data folder is in use, damaged, or of a newer version, or its accounts cannot be read."""
    CANNOT_LISTEN = 5
    """The address is taken, or the TLS files are unusable."""
    DRAIN_INCOMPLETE = 6
    """The time for draining was over before the end; nothing that was acknowledged is lost."""


class _StoppedEarly(Exception):
    """SIGTERM came before the server was ready."""


def run_server(settings: Settings) -> ExitCode:
    """Serve until told to stop; the whole life of the process."""
    configure_logs(settings.log_format, settings.log_level)
    _log.info("starting", version=cmqd.__version__, pid=os.getpid(), durability=_durability(settings))
    _log.info("settings", **settings.as_table())
    # Recovery makes millions of objects that stay; looking through them again and again would be all it does.
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(Daemon(settings).run())
    _log.info("stopped", exit_code=int(code), reason=code.name.lower())
    return code


def _durability(settings: Settings) -> str:
    return "none (ephemeral)" if settings.ephemeral else str(settings.durability)


class Daemon:
    """One server; see the module. To be run once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._counters = Counters()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = time.monotonic()
        self._state = StorageState(False, "", 0, 0, 0)
        self._report: RecoveryReport | None = None
        self._recovery_s = 0.0
        self._failure: tuple[ExitCode, str] | None = None
        self._quiet: asyncio.Event | None = None
        """Set, once draining waits for it, when nothing is unfinished."""

    async def run(self) -> ExitCode:
        """Start, serve, end; returns how it ended and never raises."""
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._loop.set_exception_handler(_on_loop_exception)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal, number)
        self._log = self._make_log()
        try:
            return await self._run()
        except _StoppedEarly:
            await self._close_log()
            return ExitCode.OK
        except StorageFailed as failure:
            _log.error("storage_failed", reason=str(failure))
            await self._close_log()
            return ExitCode.STORAGE_FAILED
        except (StorageError, AccountsFileError) as refusal:
            _log.error("data_folder_refused", data=str(self._settings.data), reason=str(refusal))
            await self._close_log()
            return ExitCode.CANNOT_OPEN
        except Exception:
            _log.exception("unexpected_error")
            await self._close_log()
            return ExitCode.BUG

    async def _run(self) -> ExitCode:
        settings = self._settings
        descriptors = raise_descriptor_limit()
        try:
            settings.data.mkdir(parents=True, exist_ok=True)
            report = await self._unless_stopped(self._log.open())
            accounts, accounts_are_new = open_accounts(settings.data, time.time_ns() // 1_000_000)
        except OSError as failure:
            _log.error("data_folder_refused", data=str(settings.data), reason=str(failure))
            await self._close_log()
            return ExitCode.CANNOT_OPEN
        self._report = report
        if accounts_are_new:
            _log.info("admin_created", account=ADMIN)
            if not report.created:
                _log.warning("accounts_missing", text="the log is not new; old keys and receipt handles are void")
        broker = Broker(
            accounts.handle_key,
            Limits(
                max_queues_per_account=settings.max_queues_per_account, max_in_flight=settings.max_in_flight_per_queue
            ),
        )
        await self._unless_stopped(self._recover(broker, report))
        self._assemble(broker, accounts, connection_limit(settings.max_connections, descriptors))
        first_records = broker.recovered(lost=report.numbers_jump)
        if first_records:
            self._log.append(first_records, (), self._clock.now_ms())
        _tune_collector()
        try:
            host, port = await self._listener.start()
        except (OSError, ssl.SSLError) as failure:
            _log.error("cannot_listen", address=settings.listen, reason=str(failure))
            await self._close_log()
            return ExitCode.CANNOT_LISTEN
        try:
            self._announce(accounts, host, port)
        except OSError as failure:
            _log.error("data_folder_refused", data=str(settings.data), reason=str(failure))
            await self._close_log()
            return ExitCode.CANNOT_OPEN
        self._wakeup.schedule()
        await self._stop.wait()
        return await (self._drain() if self._failure is None else self._end_in_disaster(*self._failure))

    # ------------------------------------------------------------------ start

    def _make_log(self) -> Log:
        settings = self._settings
        if settings.ephemeral:
            return MemoryLog(segment_bytes=settings.segment_bytes)
        return StorageProcessLog(
            StorageSettings(
                folder=str(settings.data),
                durability=StorageDurability(str(settings.durability)),
                accept_loss=settings.accept_loss,
                segment_bytes=settings.segment_bytes,
                segment_age_ms=settings.segment_age_ms,
                reserve_bytes=settings.min_free_bytes,
            )
        )

    async def _recover(self, broker: Broker, report: RecoveryReport) -> None:
        started = time.monotonic()
        for finding in report.findings:
            _log.warning("recovery_finding", kind=finding.kind, text=finding.text)
        rows = records = parts = 0
        report_at = started + PROGRESS_EVERY_S
        async for batch in self._log.recover():
            for item in batch:
                if isinstance(item, tuple):
                    lsn, _, facts = item
                    rows += 1
                    records += len(facts)
                    for fact in facts:
                        broker.replay(fact, lsn)
                else:
                    parts += 1
                    broker.load(item)
            if time.monotonic() >= report_at:
                report_at += PROGRESS_EVERY_S
                _log.info("recovering", parts=parts, rows=rows, of_rows=report.last_lsn - report.checkpoint_lsn)
        self._recovery_s = time.monotonic() - started
        _log.info(
            "recovered",
            clean=report.clean,
            created=report.created,
            checkpoint_lsn=report.checkpoint_lsn,
            last_lsn=report.last_lsn,
            rows=rows,
            records=records,
            queues=len(broker.queues),
            findings=len(report.findings),
            seconds=round(self._recovery_s, 3),
        )

    def _assemble(self, broker: Broker, accounts: Accounts, max_connections: int) -> None:
        settings = self._settings
        log = self._log
        loop = self._loop
        self._broker = broker
        self._clock = BrokerClock(
            not_before_ms=self._report.last_time_ms if self._report else 0,
            on_jump=lambda jump_ms: _log.warning("clock_jumped", by_ms=jump_ms, followed=False),
        )
        self._gate = ReplyGate(log.durable_lsn)
        self._polls: LongPolls[Client] = LongPolls()
        self._wakeup = WakeUp(loop, self._end_of_wakeup)
        self._dispatcher = Dispatcher(
            broker=broker,
            log=log,
            gate=self._gate,
            polls=self._polls,
            accounts=accounts,
            counters=self._counters,
            now_ms=self._clock.now_ms,
            schedule=self._wakeup.schedule,
            status=self._status,
            spawn=self._spawn,
            on_broken=self._on_broken,
            busy_pending_bytes=settings.busy_pending_bytes,
            busy_pending_records=settings.busy_pending_records,
            max_unread_receives=settings.max_unread_receives,
            max_waiting_per_account=settings.max_waiting_receives_per_account,
            max_requests_per_second=settings.max_requests_per_second_per_account,
        )
        self._listener = Listener(
            loop=loop,
            settings=settings,
            requests=self._dispatcher,
            wakeup=self._wakeup,
            counters=self._counters,
            accounts=accounts,
            max_connections=max_connections,
            is_overloaded=lambda: (
                log.pending_bytes >= settings.pause_pending_bytes
                or log.pending_records >= settings.pause_pending_records
            ),
        )
        accounts.on_revoked = self._listener.revoke
        self._listener.on_beat = self._clock.check
        self._ticker = Ticker(
            loop=loop,
            now_ms=self._clock.now_ms,
            next_deadline_ms=broker.next_deadline_ms,
            tick=self._dispatcher.tick,
        )
        self._checkpoints = Checkpoints(
            loop=loop,
            log=log,
            begin=lambda: broker.checkpoint(log.close_row, self._clock.now_ms()),
            live_in=broker.live_in,
            is_behind=lambda: log.pending_bytes >= settings.busy_pending_bytes // 2,
            spawn=self._spawn,
        )
        log.on_durable = self._on_durable
        log.on_page = self._dispatcher.page_arrived
        log.on_fatal = self._on_fatal
        log.on_state = self._on_state
        log.on_checkpoint_wanted = self._checkpoints.want
        log.on_checkpoint_done = self._checkpoints.is_on_disk
        self._checkpoints.reclaim()

    def _announce(self, accounts: Accounts, host: str, port: int) -> None:
        settings = self._settings
        tls = settings.tls_certificate is not None
        context_file = write_context(settings.data, accounts.first_key(ADMIN), host, port, tls=tls)
        process_id = getattr(self._log, "process_id", None)
        if not tls and not (host.startswith("127.") or host == "::1"):
            _log.warning("listening_without_tls", host=host, text="message bodies cross the network in the clear")
        _log.info(
            "listening",
            host=host,
            port=port,
            tls=tls,
            durability=_durability(settings),
            storage_pid=process_id,
            context_file=str(context_file),
        )
        if settings.ready_file is not None:
            _write_ready_file(
                settings.ready_file,
                {
                    "host": host,
                    "port": port,
                    "pid": os.getpid(),
                    "storage_pid": process_id,
                    "context_file": str(context_file.absolute()),
                    "durability": _durability(settings),
                    "version": cmqd.__version__,
                },
            )

    # ------------------------------------------------------------------ what the loop brings

    def _end_of_wakeup(self) -> None:
        if self._failure is None:
            self._log.flush()
            self._ticker.plan()
            self._listener.watch_load()

    def _on_durable(self, lsn: int) -> None:
        self._gate.open_to(lsn)
        self._wakeup.schedule()
        self._look_if_quiet()

    def _on_state(self, state: StorageState) -> None:
        if state.sends_refused != self._state.sends_refused:
            if state.sends_refused:
                _log.warning("sends_refused", reason=state.reason, free_bytes=state.free_bytes)
            else:
                _log.info("sends_accepted_again", free_bytes=state.free_bytes)
        self._state = state
        self._dispatcher.refuse_sends(state.reason if state.sends_refused else None)

    def _on_fatal(self, failure: StorageFailed) -> None:
        _log.error("storage_failed", reason=str(failure))
        self._fail(ExitCode.STORAGE_FAILED, f"the storage failed: {failure}")

    def _on_broken(self, bug: Exception) -> None:
        self._fail(ExitCode.BUG, f"internal error: {type(bug).__name__}")

    def _fail(self, code: ExitCode, reason: str) -> None:
        """Acknowledge nothing more; whoever waits learns that the outcome is unknown."""
        if self._failure is not None:
            return
        self._failure = (code, reason)
        self._ticker.stop()
        self._checkpoints.stop()
        for client, reply in self._gate.take_all():
            client.answer(error(reply.request_id, ErrorCode.OUTCOME_UNKNOWN, reason))
        self._dispatcher.end_waits(ErrorCode.OUTCOME_UNKNOWN, reason)
        self._dispatcher.halt(reason)
        self._wakeup.schedule()
        self._stop.set()
        self._look_if_quiet()

    def _on_signal(self, number: int) -> None:
        _log.info("signal", name=signal.Signals(number).name)
        self._stop.set()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, StorageFailed):
            _log.error("task_failed", exc_info=failure)
        self._look_if_quiet()

    def _status(self, account: str) -> dict[str, Any]:
        settings = self._settings
        status: dict[str, Any] = {
            "version": cmqd.__version__,
            "region": settings.region,
            "durability": _durability(settings),
            "uptime_ms": int((time.monotonic() - self._started) * 1000),
            "time_ms": self._clock.now_ms(),
        }
        if account != ADMIN:
            return status
        log = self._log
        report = self._report
        process_id = getattr(log, "process_id", None)
        return status | {
            "pid": os.getpid(),
            "storage_pid": process_id,
            "connections": self._listener.connections,
            "waiting_receives": len(self._polls),
            "held_replies": len(self._gate),
            "queues": len(self._broker.queues),
            "last_lsn": log.last_lsn,
            "durable_lsn": log.durable_lsn,
            "pending_bytes": log.pending_bytes,
            "pending_records": log.pending_records,
            "log_bytes": self._state.log_bytes,
            "segments": self._state.segments,
            "free_bytes": self._state.free_bytes,
            "sends_refused": self._state.sends_refused,
            "sends_refused_reason": self._state.reason if self._state.sends_refused else None,
            "rss_bytes": rss_bytes(),
            "storage_rss_bytes": rss_bytes(process_id) if process_id else 0,
            "clock_behind_wall_ms": self._clock.behind_wall_ms,
            "counters": self._counters.snapshot(),
            "recovery": None
            if report is None
            else {
                "clean": report.clean,
                "created": report.created,
                "checkpoint_lsn": report.checkpoint_lsn,
                "last_lsn": report.last_lsn,
                "seconds": round(self._recovery_s, 3),
                "findings": [{"kind": finding.kind, "text": finding.text} for finding in report.findings],
            },
        }

    # ------------------------------------------------------------------ the end

    async def _drain(self) -> ExitCode:
        stop_at = self._loop.time() + self._settings.drain_timeout_ms / 1000
        text = "the server is shutting down"
        self._listener.stop_accepting()
        self._dispatcher.refuse_all(ErrorCode.SHUTTING_DOWN, text)
        ended = self._dispatcher.end_waits(ErrorCode.SHUTTING_DOWN, text)
        _log.info("draining", waits_ended=ended, held_replies=len(self._gate), connections=self._listener.connections)
        self._wakeup.end()
        if not self._is_quiet():
            self._quiet = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), stop_at - CLOSE_LOG_S - self._loop.time())
        left_s = stop_at - CLOSE_LOG_S - self._loop.time()
        await self._listener.close(ErrorCode.SHUTTING_DOWN, text, max(0.1, min(left_s / 2, LAST_WORDS_S)))
        self._ticker.stop()
        try:
            left_s = stop_at - CLOSE_LOG_S - self._loop.time()
            await asyncio.wait_for(self._checkpoints.write_final(), max(0.1, left_s))
        except TimeoutError:
            # Recovery takes the checkpoint before, and the records since: slower, not less.
            _log.warning("final_checkpoint_skipped")
        except StorageFailed:
            pass  # told below, by closing the log
        try:
            await asyncio.wait_for(self._log.close(), max(0.1, stop_at - self._loop.time()))
        except TimeoutError:
            _log.warning("drain_incomplete")
            return ExitCode.DRAIN_INCOMPLETE
        except StorageFailed as failure:
            if self._failure is None:
                _log.error("storage_failed", reason=str(failure))
            return ExitCode.STORAGE_FAILED
        return self._failure[0] if self._failure is not None else ExitCode.OK

    def _is_quiet(self) -> bool:
        """Nothing that was begun is unfinished, or nothing will ever be finished."""
        return not (len(self._gate) or self._tasks) or self._failure is not None

    def _look_if_quiet(self) -> None:
        if self._quiet is not None and self._is_quiet():
            self._quiet.set()

    async def _end_in_disaster(self, code: ExitCode, reason: str) -> ExitCode:
        await self._listener.close(ErrorCode.OUTCOME_UNKNOWN, reason, LAST_WORDS_S)
        if code is ExitCode.BUG:
            # What was appended before the bug showed is sound, and some of it may have been acknowledged.
            await self._close_log()
        print(f"cmqd: {reason}", file=sys.stderr)
        return code

    async def _close_log(self) -> None:
        """Let go of the folder on the way out after a failure; what cannot be closed is left to recovery."""
        try:
            await asyncio.wait_for(self._log.close(), CLOSE_LOG_S)
        except (StorageError, TimeoutError):
            _log.debug("log_not_closed", exc_info=True)

    async def _unless_stopped(self, work: Awaitable[_T]) -> _T:
        """Wait for work, unless SIGTERM comes first."""
        doing = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if doing.done():
            return doing.result()
        doing.cancel()
        await asyncio.wait({doing})
        raise _StoppedEarly


def _tune_collector() -> None:
    """Keep the garbage collector away from the index.

    What recovery built is frozen. Young garbage is still collected; full collections, which would look at every object
    of every queue, are not: messages and records hold no cycles, and connections break theirs when they end.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 1_000_000_000)


def _write_ready_file(path: Path, content: dict[str, Any]) -> None:
    """Written beside and renamed, so that whoever sees the file sees all of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content) + "\n")
    temporary.rename(path)


def _on_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _log.error("loop_exception", text=context.get("message"), exc_info=context.get("exception"))
