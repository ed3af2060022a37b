"""Everything between the sockets and the core, assembled: who calls whom, and how it all stops.

    socket → Listener/Connection → Dispatcher → Broker (core)
                   ▲                   │ records, reads
                   │ replies           ▼
               ReplyGate  ◄── LSN ──  Log ── wants a checkpoint ──► Checkpoints
               IoBatch: replies leave in one write a client, then records in one write, once the sockets bring no more
               AgendaTimer: what is due by itself
               Outbox: pushes, once durable and signable ──► Pusher ── results ──► Dispatcher

The process around it (signals, recovery, exit codes) is ``daemon``; tests assemble the same over a log in memory.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import cmqd
from cmqd.core.broker import Broker
from cmqd.log.errors import LogFailed
from cmqd.log.interface import Log
from cmqd.log.values import LogState
from cmqd.server.accounts import Accounts
from cmqd.server.accounts_file import ADMIN
from cmqd.server.advertised_address import advertised_address
from cmqd.server.agenda_timer import AgendaTimer
from cmqd.server.audit import Audit
from cmqd.server.binary.listener import Listener
from cmqd.server.checkpoints import Checkpoints
from cmqd.server.clock import BrokerClock, OffsetWatch
from cmqd.server.counters import Counters, rss_bytes
from cmqd.server.dispatch import Dispatcher
from cmqd.server.fairness import CommitRoom, RoundRobin
from cmqd.server.handlers.outcomes import Client
from cmqd.server.held_replies import HeldReplies
from cmqd.server.io_batch import IoBatch
from cmqd.server.log_lines import get_logger
from cmqd.server.memory_budget import MemoryBudget, budget_bytes
from cmqd.server.push.outbox import Outbox, Pushing
from cmqd.server.push.pusher import Pusher
from cmqd.server.reply_gate import ReplyGate
from cmqd.server.storage_watch import StorageWatch
from cmqd.server.waiting_requests import WaitingRequests
from cmqd.settings import Settings
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error

_log = get_logger()

SHUTTING_DOWN = "the server is shutting down"


class Server:
    """The rooms of the server, joined to one broker and one log; see the module."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        broker: Broker,
        log: Log,
        accounts: Accounts,
        clock: BrokerClock,
        max_connections: int,
        facts: Callable[[], dict[str, Any]],
        on_failed: Callable[[Exception], None],
        make_pusher: Callable[..., Pushing] = Pusher,
        can_push: bool | None = None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Join them; nothing listens yet.

        Args:
            make_pusher: makes what posts to URLs.
            can_push: whether that can be made; None = if its extra is installed.
            facts: what else ``get_server_status`` tells the account ``admin``.
            timer: seconds of any clock that never goes back, to measure I/O batches by.
            on_failed: told why, once, when nothing can be acknowledged any more: a LogFailed, or a bug.
        """
        self._loop = loop
        self._settings = settings
        self._broker = broker
        self._log = log
        self._accounts = accounts
        self._clock = clock
        self._facts = facts
        self._on_failed = on_failed
        self._started = time.monotonic()
        self._state = LogState(False, "", 0, 0, 0)
        self._failure: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet: asyncio.Event | None = None
        """Set, once draining waits for it, when nothing is unfinished."""
        self.counters = Counters()
        self.gate = ReplyGate(log.durable_lsn)
        self.held_replies = HeldReplies(self.gate)
        self.waiting_requests: WaitingRequests[Client] = WaitingRequests()
        self.outbox = Outbox(log.durable_lsn, accounts.has_secret)
        room = CommitRoom(log, timer)
        self.turns = RoundRobin(lambda: self._failure is not None or room.has_room())
        self.io_batch = IoBatch(
            loop,
            clock.now_ms,
            self._end_of_io_batch,
            before_end=lambda: self.dispatcher.settle_collected(),
            turns=self.turns,
            timer=timer,
        )
        self.audit = Audit(accounts.account_of)
        self.dispatcher = Dispatcher(
            broker=broker,
            log=log,
            gate=self.gate,
            waiting_requests=self.waiting_requests,
            accounts=accounts,
            outbox=self.outbox,
            counters=self.counters,
            now_ms=self.io_batch.now_ms,
            schedule=self.io_batch.schedule,
            status=self.status,
            audit=self.audit,
            spawn=self._spawn,
            on_broken=self._fail,
            busy_pending_bytes=settings.busy_pending_bytes,
            busy_pending_records=settings.busy_pending_records,
            max_unread_receives=settings.max_unread_receives,
            max_waiting_per_account=settings.max_waiting_receives_per_account,
            max_requests_per_second=settings.max_requests_per_second_per_account,
        )
        self.dispatcher.location["region"] = settings.region
        self.outbox.on_results = self.dispatcher.pushes_ended
        if Pusher.available() if can_push is None else can_push:
            self.outbox.use(
                make_pusher(
                    loop=loop,
                    timeout_ms=settings.push_timeout_ms,
                    allow_private=settings.push_allow_private,
                    allow_loopback=settings.push_allow_loopback,
                    secrets_of=self._secrets_of,
                    on_results=self.dispatcher.pushes_ended,
                    now_ms=clock.now_ms,
                    wall_ms=clock.wall_ms,
                )
            )
        broker.gates.pushing = self.outbox.can_push
        promised = broker.facts.promises.memory
        self.budget = MemoryBudget(budget_bytes(settings), lambda: promised.total_bytes)
        self.listener = Listener(
            budget=self.budget,
            loop=loop,
            settings=settings,
            requests=self.dispatcher,
            io_batch=self.io_batch,
            counters=self.counters,
            accounts=accounts,
            max_connections=max_connections,
            is_overloaded=self._is_overloaded,
            audit=self.audit,
        )
        self._offset_watch = OffsetWatch(clock, self.dispatcher.clock_offset_changed)
        self.listener.on_beat = self._beat
        self.storage_watch = StorageWatch(
            loop=loop,
            log=log,
            gate=self.gate,
            requests=self.dispatcher,
            patience_ms=settings.storage_patience_ms,
            reason=lambda: self._state.reason if self._state.sends_refused else "",
        )
        accounts.on_revoked = self.listener.revoke
        self.agenda_timer = AgendaTimer(
            loop=loop,
            now_ms=self.io_batch.now_ms,
            next_deadline_ms=self.dispatcher.next_deadline_ms,
            tick=self.dispatcher.tick,
        )
        self.checkpoints = Checkpoints(
            loop=loop,
            log=log,
            # Each part is true for a row that is closed: what comes after it has a higher LSN.
            begin=lambda: broker.checkpoint(log.close_row, clock.now_ms()),
            live_in=broker.live_in,
            is_behind=lambda: log.pending_bytes >= settings.busy_pending_bytes // 2,
            now_ms=clock.now_ms,
            keep_history_ms=settings.keep_history_ms,
            spawn=self._spawn,
        )
        log.on_durable = self._on_durable
        log.on_page = self.dispatcher.page_arrived
        log.on_fatal = self._fail
        log.on_state = self.storage_state
        log.on_checkpoint_wanted = self.checkpoints.want
        log.on_checkpoint_done = self.checkpoints.is_on_disk

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address.

        Raises:
            OSError, ssl.SSLError: it cannot be had.
        """
        address = await self.listener.start()
        advertised = advertised_address(self._settings.advertise, address, socket.gethostname)
        self.dispatcher.location["address"] = advertised
        self.checkpoints.reclaim()
        self.io_batch.schedule()
        return address

    async def match_secrets(self) -> None:
        """Before the start: each subscription to a URL that was recovered has a secret, and nothing else has one.

        Raises:
            OSError: they cannot be written.
        """
        to_urls = [
            subscription_id
            for subscription_id, subscription in self._broker.subscriptions.items()
            if subscription.attributes.protocol != "queue"
        ]
        made, forgotten = await self._accounts.match_secrets(to_urls)
        if made:
            _log.warning(
                "subscription_secrets_made",
                subscription_ids=made[:100],
                count=len(made),
                text="these had none, because of a crash or a loss; rotate them to learn the next one",
            )
        if forgotten:
            _log.info("subscription_secrets_forgotten", count=len(forgotten))
        if to_urls and not self.outbox.can_push:
            _log.warning("push_unavailable", subscriptions=len(to_urls), text="install the extra cmqd[http]")

    async def drain(self, within_s: float) -> None:
        """Take nothing new, finish what was begun, tell everybody, close all connections."""
        stop_at = self._loop.time() + within_s
        self.listener.stop_accepting()
        self.dispatcher.refuse_all(ErrorCode.SHUTTING_DOWN, SHUTTING_DOWN)
        self.dispatcher.fall_quiet()
        self._broker.gates.pushing = False
        self.outbox.stop()
        ended = self.dispatcher.end_waits(ErrorCode.SHUTTING_DOWN, SHUTTING_DOWN)
        _log.info(
            "draining",
            waits_ended=ended,
            held_replies=len(self.gate),
            connections=self.listener.connections,
            pushes=self.outbox.under_way,
        )
        self.io_batch.end()
        # What is posted without its result being recorded is posted again after the start.
        await asyncio.gather(self.outbox.close(within_s / 2), self._wait_until_quiet(within_s / 2))
        self.io_batch.end()
        # A client that reads nothing must not take the time that the last checkpoint needs.
        left_s = stop_at - self._loop.time()
        await self.listener.close(ErrorCode.SHUTTING_DOWN, SHUTTING_DOWN, max(0.1, left_s / 2))
        self.agenda_timer.stop()

    async def end(self, reason: str, within_s: float) -> None:
        """After a failure: let clients read why, and close."""
        await self.outbox.close(0)
        await self.listener.close(ErrorCode.OUTCOME_UNKNOWN, reason, within_s)

    def status(self, account: str) -> dict[str, Any]:
        """What the server says of itself: the whole to ``admin``, what concerns everybody to others."""
        settings = self._settings
        status: dict[str, Any] = {
            "version": cmqd.__version__,
            "region": settings.region,
            "durability": settings.durability_text,
            "uptime_ms": int((time.monotonic() - self._started) * 1000),
            "time_ms": self._clock.wall_ms(),
            "broker_time_ms": self._clock.now_ms(),
            "clock_offset_ms": self._clock.offset_ms,
        }
        if account != ADMIN:
            return status
        log = self._log
        state = self._state
        return (
            status
            | {
                "pid": os.getpid(),
                "connections": self.listener.connections,
                "waiting_receives": len(self.waiting_requests),
                "held_replies": len(self.gate),
                "checkers": len(self.dispatcher.checkers),
                "queues": len(self._broker.queues),
                "topics": len(self._broker.topics),
                "subscriptions": len(self._broker.subscriptions),
                "pushes_under_way": self.outbox.under_way,
                "last_lsn": log.last_lsn,
                "durable_lsn": log.durable_lsn,
                "pending_bytes": log.pending_bytes,
                "pending_records": log.pending_records,
                "log_bytes": state.log_bytes,
                "segments": state.segments,
                "history_bytes": self.checkpoints.history_bytes,
                "free_bytes": state.free_bytes,
                "sends_refused": state.sends_refused,
                "sends_refused_reason": state.reason if state.sends_refused else None,
                "memory_budget_bytes": self.budget.total_bytes,
                "memory_held_bytes": self.budget.held_bytes,
                "memory_promised_bytes": self._broker.facts.promises.memory.total_bytes,
                "rss_bytes": rss_bytes(),
                "counters": self.counters.snapshot(),
            }
            | self._facts()
        )

    def storage_state(self, state: LogState) -> None:
        """Refuse or take sends as the storage's free space asks, and remember its figures for the status."""
        if state.sends_refused != self._state.sends_refused:
            if state.sends_refused:
                _log.warning("sends_refused", reason=state.reason, free_bytes=state.free_bytes)
            else:
                _log.info("sends_accepted_again", free_bytes=state.free_bytes)
        self._state = state
        self.dispatcher.refuse_sends(state.reason if state.sends_refused else None)
        self.checkpoints.room_is(short=state.is_short)

    def _secrets_of(self, subscription_id: int) -> list[str]:
        return self._accounts.secrets_of(subscription_id, self._clock.now_ms())

    # ------------------------------------------------------------------ what the loop and the log bring

    def _end_of_io_batch(self) -> None:
        if self._failure is None:
            self._log.flush()
            self.agenda_timer.plan()
            self.listener.watch_load()
        if self._quiet is not None:
            self._look_if_quiet()

    def _beat(self) -> None:
        self._offset_watch.check()
        if self._failure is None:
            self.storage_watch.beat(int(self._loop.time() * 1000))
            self.held_replies.beat()
        if self.turns.can_serve:
            # The storage has not ended a commit for long, else a commit would have gone on with them.
            self.io_batch.schedule()

    def _is_overloaded(self) -> bool:
        log = self._log
        settings = self._settings
        # While the storage hangs requests are read and refused: they add nothing to what waits.
        return (
            log.pending_bytes >= settings.pause_pending_bytes or log.pending_records >= settings.pause_pending_records
        ) and not self.dispatcher.is_stalled

    def _on_durable(self, lsn: int) -> None:
        self.held_replies.forget()
        self.gate.open_to(lsn)
        self.outbox.open_to(lsn)
        self.io_batch.schedule()
        if self._quiet is not None:
            self._look_if_quiet()

    def _fail(self, failure: Exception) -> None:
        """Acknowledge nothing more; whoever waits learns that the outcome is unknown."""
        if self._failure is not None:
            return
        self._failure = failure
        reason = failure_text(failure)
        _log.error("failed", reason=reason)
        self.agenda_timer.stop()
        self.checkpoints.stop()
        self.outbox.stop()
        self.dispatcher.halt(reason)
        for client, reply in self.gate.take_all():
            client.answer(error(reply.request_id, ErrorCode.OUTCOME_UNKNOWN, reason))
        self.dispatcher.end_waits(ErrorCode.OUTCOME_UNKNOWN, reason)
        self.io_batch.schedule()
        self._look_if_quiet()
        self._on_failed(failure)

    # ------------------------------------------------------------------ tasks

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, LogFailed):
            _log.error("task_failed", exc_info=failure)
        self._look_if_quiet()

    def _is_quiet(self) -> bool:
        """Nothing that was begun is unfinished, or nothing will ever be finished."""
        return not (len(self.gate) or len(self.turns) or self._tasks) or self._failure is not None

    async def _wait_until_quiet(self, within_s: float) -> None:
        if not self._is_quiet():
            self._quiet = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), within_s)

    def _look_if_quiet(self) -> None:
        if self._quiet is not None and self._is_quiet():
            self._quiet.set()


def failure_text(failure: Exception) -> str:
    """Why nothing is acknowledged any more, in one line for clients and operators."""
    if isinstance(failure, LogFailed):
        return f"the storage failed: {failure}"
    return f"internal error ({type(failure).__name__}); the broker stops and recovers from its log"
