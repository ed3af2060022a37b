"""The server between the sockets and the core: makes its parts in the order of their dependencies, and joins them.

    socket → Listener/AcceptedConnection → Dispatcher → handlers → Broker (core)
                   ▲                                        │ outcome
                   │ replies                                ▼
               ReplyGate  ◄───────── LSN ─────────────  Answering → Log ── wants a checkpoint ──► Checkpoints
               IoBatch: replies leave in one write a client, then records in one write, once the sockets bring no more
               AgendaTimer: work that is due at a time ──► BrokerEvents
               Outbox: pushes, once durable and signable ──► Pusher ── results ──► BrokerEvents

``daemon`` is the process around the server (signals, recovery, exit codes); tests make the same server over a log in
memory. A second wire protocol is a package beside ``binary``: its listener gets the same parts.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import cmqd
from cmqd.core.broker import Broker
from cmqd.log.interface import Led, Log
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import LogState
from cmqd.server.access.accounts import Accounts
from cmqd.server.access.accounts_file import ADMIN
from cmqd.server.access.audit_entries import AuditEntries
from cmqd.server.access.audit_lines import ADMINISTRATION, Audit
from cmqd.server.access.authorization import Authorization
from cmqd.server.access.restricted_lookups import RestrictedLookups
from cmqd.server.admission.entries_ahead import EntriesAhead
from cmqd.server.admission.fairness import CommitRoom, RoundRobin
from cmqd.server.admission.memory_budget import MemoryBudget, budget_bytes
from cmqd.server.admission.request_admission import Admission
from cmqd.server.admission.sliced_work import SlicedWork
from cmqd.server.binary.listener import Listener
from cmqd.server.broker_logger import get_logger
from cmqd.server.clients.client_events import ClientEvents
from cmqd.server.clients.connection_timer import STEP_MS, local_ms
from cmqd.server.clients.connections import Connections
from cmqd.server.clients.key_watchers import KeyWatchers
from cmqd.server.clients.transaction_checkers import TransactionCheckers
from cmqd.server.handlers.accounts import AccountOperations
from cmqd.server.handlers.audit import AuditRequests
from cmqd.server.handlers.backlog import Undelivered, UndeliveredReplies
from cmqd.server.handlers.inspection import Inspection
from cmqd.server.handlers.matches import MatchRequests
from cmqd.server.handlers.messages import (
    DeadLetterReplies,
    DeadLetters,
    Deletes,
    Peeks,
    Receives,
    ReplyWithBodies,
    Sends,
)
from cmqd.server.handlers.metrics import MetricsRequests
from cmqd.server.handlers.publishing import Publishes
from cmqd.server.handlers.queues import Queues, queue_rewound, rewind_previewed
from cmqd.server.handlers.secrets_of_keys import SecretsOfKeys
from cmqd.server.handlers.segments import SegmentRequests
from cmqd.server.handlers.server_requests import ServerRequests
from cmqd.server.handlers.subscriptions import Subscriptions
from cmqd.server.handlers.transactions import Transactions, transactions_ended
from cmqd.server.log_upkeep.checkpoints import Checkpoints
from cmqd.server.log_upkeep.reclaim import Reclaim
from cmqd.server.log_upkeep.storage_watch import StorageWatch
from cmqd.server.loop.agenda_timer import AgendaTimer
from cmqd.server.loop.background_tasks import BackgroundTasks
from cmqd.server.loop.broker_events import BrokerEvents
from cmqd.server.loop.clock import BrokerClock, OffsetWatch
from cmqd.server.loop.io_batch import IoBatch
from cmqd.server.loop.reachable_time import ListeningTime
from cmqd.server.monitoring.counters import Counters, cpu_us, rss_bytes
from cmqd.server.monitoring.status import (
    LoopStatus,
    PublicStatus,
    ReplicationStatus,
    Status,
    StorageProcessStatus,
    public_reply,
)
from cmqd.server.part import part
from cmqd.server.process.advertised_address import addresses_of_pair, advertised_address
from cmqd.server.push.outbox import Outbox, Pushing
from cmqd.server.push.pusher import Pusher
from cmqd.server.redundancy.leader_gate import LeaderGate
from cmqd.server.redundancy.stalled_receives import StalledReceives
from cmqd.server.replies.answering import Answer, Answering
from cmqd.server.replies.held_reply_memory import HeldReplyMemory
from cmqd.server.replies.reply_gate import ReplyGate
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.collecting import Collector
from cmqd.server.requests.dispatch import Dispatcher, Handler, plain_handlers
from cmqd.settings import Settings
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error
from cmqd_types.metrics import DURATIONS_US, ServerMetrics, copy_of, histogram

_log = get_logger()

SHUTTING_DOWN = "the server is shutting down"
DRAIN_POLL_S = 0.005


@part
class Server:
    """The parts of a server, joined to one broker and one log; see the module."""

    loop: asyncio.AbstractEventLoop
    settings: Settings
    broker: Broker
    """The core, recovered."""
    log: Log
    """The log, open."""
    accounts: Accounts
    clock: BrokerClock
    max_connections: int
    """Connections of all listeners together."""
    storage_status: Callable[[], StorageProcessStatus]
    """Returns the status of the storage process and of the recovery."""
    on_failed: Callable[[Exception], None]
    """Called once with the reason of the halt of all acknowledgements: a LogFailed, or a bug."""
    settings_in_force: Callable[[], Settings] | None = None
    """Returns the settings with those that a reload has taken; None = nothing reloads settings."""
    make_pusher: Callable[..., Pushing] = Pusher
    """Makes the part that posts to URLs."""
    can_push: bool | None = None
    """True if that part can be made; None = if its extra is installed."""
    timer: Callable[[], float] = time.perf_counter
    """Seconds of a clock that never goes back, to measure I/O batches by."""
    cpu_ns: Callable[[], int] = time.thread_time_ns
    """Nanoseconds of CPU time of the loop's thread, to charge turns by."""
    epoch: int = 0
    """Epoch of the broker's leadership over its log; 0 = the broker is alone."""
    note_held: Callable[[int], None] = lambda _held_bytes: None
    """Called with the droppable memory of all connections whenever that of one has changed."""

    def __post_init__(self) -> None:
        """Make the parts; nothing listens yet."""
        loop, settings, broker, log, accounts = self.loop, self.settings, self.broker, self.log, self.accounts
        clock, timer, can_push = self.clock, self.timer, self.can_push
        self._started = time.monotonic()
        self._state = LogState(False, "", 0, 0, 0)
        self._failure: Exception | None = None
        self._beat_timer: asyncio.TimerHandle | None = None
        self._beat_due_s = 0.0
        """Time for which the next beat is planned; 0 = none so far."""
        self._loop_lag_us = histogram(DURATIONS_US)
        self._checkpoints_kept = self._checkpoint_ms = 0
        """Number of checkpoints kept since the start, and broker time of the last checkpoint."""
        self._was_overloaded = False
        """The result of the last comparison; clients are not read from while it is True."""
        self._location: dict[str, Any] = {
            "region": settings.region,
            "address": advertised_address(settings.advertise, settings.listen_address, socket.gethostname),
        }
        """Facts of every queue and topic that the core does not know; a port 0 is replaced once the server listens."""

        # Parts that know no other part of the server.
        self.counters = Counters()
        self.gate = ReplyGate(log.durable_lsn)
        lead = log if isinstance(log, Led) and log.epoch else None
        if lead is not None:
            self.gate = LeaderGate(
                log.durable_lsn, clock_s=lead.clock_s, proved_s=lambda: lead.proved_s, ask=lead.prove
            )
        self.held_reply_memory = HeldReplyMemory(self.gate)
        self.waiting_requests: WaitingRequests = WaitingRequests()
        self.checkers = TransactionCheckers()
        self.key_watchers = KeyWatchers(self.gate.when_led)
        self.outbox = Outbox(lambda: log.durable_lsn, accounts.has_secret)
        self.connections = Connections(
            limit=self.max_connections, limit_of_account=settings.max_connections_per_account, counters=self.counters
        )
        promised = broker.facts.promises.memory
        self.budget = MemoryBudget(budget_bytes(settings), lambda: promised.total_bytes, self.note_held)
        self.tasks = BackgroundTasks(loop)
        self._commit_room = CommitRoom(log, timer)
        self.turns = RoundRobin(self._has_room)
        # The end of an I/O batch calls parts that begin I/O batches, so its two ends are methods of this class.
        self.io_batch = IoBatch(
            loop,
            clock.now_ms,
            self._end_io_batch,
            before_end=lambda: self.collector.decide_all(),
            turns=self.turns,
            timer=timer,
            is_lone_client=self.gate.is_for_lone_client,
            cpu_ns=self.cpu_ns,
        )

        now_ms, schedule, spawn = self.io_batch.now_ms, self.io_batch.schedule, self.tasks.spawn
        bodies = ReplyWithBodies(gate=self.gate, counters=self.counters)
        self.answering = Answering(
            broker=broker,
            log=log,
            gate=self.gate,
            waiting_requests=self.waiting_requests,
            answers=self._late_answers(bodies),
            outbox=self.outbox,
            checkers=self.checkers,
            counters=self.counters,
            on_broken=self._fail,
        )
        self.admission = Admission(
            log=log,
            counters=self.counters,
            now_ms=now_ms,
            busy_pending_bytes=settings.busy_pending_bytes,
            busy_pending_records=settings.busy_pending_records,
            max_requests_per_second=settings.max_requests_per_second_per_account,
            when_led=self.gate.when_led,
        )
        self.collector = Collector(
            waiting_requests=self.waiting_requests,
            answering=self.answering,
            gate=self.gate,
            admission=self.admission,
            now_ms=now_ms,
        )
        self.publishes = Publishes(
            broker=broker,
            answering=self.answering,
            admission=self.admission,
            collector=self.collector,
            counters=self.counters,
            schedule=schedule,
        )
        self.listening_time = ListeningTime(broker.gates, timer)
        self.broker_events = BrokerEvents(
            broker=broker,
            answering=self.answering,
            publishes=self.publishes,
            admission=self.admission,
            counters=self.counters,
            listening_time=self.listening_time,
            now_ms=now_ms,
            schedule=schedule,
        )
        audit = Audit(accounts.account_of)
        authorization = Authorization(audit=audit, facts=broker.facts)
        self.client_events = ClientEvents(
            broker=broker,
            answering=self.answering,
            admission=self.admission,
            authorization=authorization,
            collector=self.collector,
            publishes=self.publishes,
            waiting_requests=self.waiting_requests,
            checkers=self.checkers,
            key_watchers=self.key_watchers,
            counters=self.counters,
            now_ms=now_ms,
            schedule=schedule,
        )
        if Pusher.available() if can_push is None else can_push:
            # A circle: the result of a push is handed to the core, and its outcome may have more pushes.
            self.outbox.use(
                self.make_pusher(
                    loop=loop,
                    timeout_ms=settings.push_timeout_ms,
                    allow_private=settings.push_allow_private,
                    allow_loopback=settings.push_allow_loopback,
                    user_agent=settings.push_user_agent,
                    secrets_of=self._secrets_of,
                    on_results=self.broker_events.pushes_ended,
                    now_ms=clock.now_ms,
                    wall_ms=clock.wall_ms,
                )
            )
        broker.gates.pushing = self.outbox.can_push
        sends = Sends(
            broker=broker,
            answering=self.answering,
            admission=self.admission,
            collector=self.collector,
            counters=self.counters,
        )
        collected: dict[type[wire.Request], Handler] = {
            wire.SendMessages: sends.handle,
            wire.PublishMessages: self.publishes.handle,
            wire.DeleteMessages: Deletes(
                broker=broker,
                answering=self.answering,
                collector=self.collector,
                counters=self.counters,
            ).handle,
            wire.ReceiveMessages: Receives(
                broker=broker,
                answering=self.answering,
                collector=self.collector,
                waiting_requests=self.waiting_requests,
                reply=bodies,
                counters=self.counters,
                max_unread_receives=settings.max_unread_receives,
                max_waiting_per_account=settings.max_waiting_receives_per_account,
                turn_time=self.io_batch.turn_time,
            ).handle,
        }
        handlers = collected | self._handlers(now_ms, schedule, spawn)
        self.dispatcher = Dispatcher(
            handlers={
                kind: audit.audited(handler) if kind in ADMINISTRATION else handler
                for kind, handler in authorization.guarded(handlers).items()
            },
            collected=frozenset(collected),
            runs={wire.SendMessages: sends.take_run},
            answering=self.answering,
            admission=self.admission,
            authorization=authorization,
            collector=self.collector,
            counters=self.counters,
            turn_time=self.io_batch.turn_time,
        )
        self.listener = Listener(
            loop=loop,
            settings=settings,
            dispatch=self.dispatcher.dispatch,
            dispatch_run=self.dispatcher.dispatch_run,
            events=self.client_events,
            collector=self.collector,
            io_batch=self.io_batch,
            budget=self.budget,
            connections=self.connections,
            counters=self.counters,
            accounts=accounts,
            audit=audit,
            gate=self.gate,
            epoch=self.epoch,
            addresses=self.addresses,
        )
        self.agenda_timer = AgendaTimer(
            loop=loop,
            now_ms=now_ms,
            clock_ms=clock.now_ms,
            next_deadline_ms=self.broker_events.next_deadline_ms,
            tick=self.broker_events.tick,
        )
        self.checkpoints = Checkpoints(
            loop=loop,
            log=log,
            # Each part is true for a closed row: later records have a higher LSN.
            begin=lambda: broker.checkpoint(log.close_row, clock.now_ms()),
            is_behind=lambda: log.pending_bytes >= settings.busy_pending_bytes // 2,
        )
        self.reclaim = Reclaim(
            loop=loop,
            log=log,
            live_in=broker.live_in,
            now_ms=clock.now_ms,
            keep_history_ms=settings.keep_history_ms,
            spawn=spawn,
        )
        self._offset_watch = OffsetWatch(clock, self.broker_events.clock_offset_changed)
        self.storage_watch = StorageWatch(
            loop=loop,
            log=log,
            gate=self.gate,
            admission=self.admission,
            events=self.client_events,
            waiting_requests=self.waiting_requests,
            schedule=schedule,
            patience_ms=settings.storage_patience_ms,
            reason=lambda: self._state.reason if self._state.sends_refused else "",
        )
        self.stalled_receives = StalledReceives(
            loop=loop,
            lead=lead,
            gate=self.gate,
            answering=self.answering,
            waiting_requests=self.waiting_requests,
            stand_in=self.storage_watch.stand_in,
        )
        self._listen_to_log()

    def _late_answers(self, bodies: ReplyWithBodies) -> dict[type[wire.Request], Answer]:
        """Return the answers to requests that may wait in the core."""
        hold = self.gate.hold
        return {
            wire.ReceiveMessages: bodies.received,
            wire.PeekMessages: bodies.peeked,
            wire.RewindQueue: lambda client, request, rewound, lsn: hold(
                lsn, client, queue_rewound(request.request_id, rewound)
            ),
            wire.PreviewRewind: lambda client, request, preview, lsn: hold(
                lsn, client, rewind_previewed(request.request_id, preview)
            ),
            wire.DeadLetterMessages: DeadLetterReplies(gate=self.gate, counters=self.counters).dead_lettered,
            wire.EndTransactions: lambda client, request, done, lsn: hold(
                lsn, client, transactions_ended(request.request_id, done)
            ),
            **UndeliveredReplies(gate=self.gate).answers(),
        }

    def _handlers(
        self,
        now_ms: Callable[[], int],
        schedule: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> dict[type[wire.Request], Handler]:
        """Return the handlers of all requests that are not collected."""
        broker, answering, accounts = self.broker, self.answering, self.accounts
        # One for all: a turn of the loop has a slice of one look-up, of all look-ups.
        sliced_work = SlicedWork(spawn, answering.broke, lambda: self.io_batch.has_work)
        entries_ahead = EntriesAhead(self.log)
        restricted = RestrictedLookups(answering=answering, work=sliced_work, schedule=schedule)
        audit_entries = AuditEntries(
            broker=broker,
            answering=answering,
            waiting_requests=self.waiting_requests,
            now_ms=now_ms,
            schedule=schedule,
        )
        account_operations = AccountOperations(
            broker=broker,
            answering=answering,
            audit_entries=audit_entries,
            restricted=restricted,
            accounts=accounts,
            revoke=self.connections.revoke,
            use_permissions=self.connections.use_permissions,
            key_changed=self.key_watchers.changed,
            region=self.settings.region,
            counters=self.counters,
            now_ms=now_ms,
            schedule=schedule,
            spawn=spawn,
        )
        secrets_of_keys = SecretsOfKeys(
            accounts=accounts, watchers=self.key_watchers, when_led=self.gate.when_led, now_s=time.monotonic
        )
        queues = Queues(
            broker=broker,
            answering=answering,
            audit_entries=audit_entries,
            waiting_requests=self.waiting_requests,
            checkers=self.checkers,
            now_ms=now_ms,
            max_unread_receives=self.settings.max_unread_receives,
        )
        peeks = Peeks(
            broker=broker,
            answering=answering,
            waiting_requests=self.waiting_requests,
            now_ms=now_ms,
            max_unread_receives=self.settings.max_unread_receives,
        )
        undelivered = Undelivered(
            broker=broker,
            answering=answering,
            audit_entries=audit_entries,
            waiting_requests=self.waiting_requests,
            now_ms=now_ms,
            max_unread_receives=self.settings.max_unread_receives,
        )
        dead_letters = DeadLetters(
            broker=broker,
            answering=answering,
            admission=self.admission,
            waiting_requests=self.waiting_requests,
            now_ms=now_ms,
        )
        server_requests = ServerRequests(
            log=self.log,
            accounts=accounts,
            status_of=self.status_reply,
            spawn=spawn,
            broker=broker,
            answering=answering,
            location=self._location,
            shard=self.settings.shard,
            epoch=self.epoch,
        )
        subscriptions = Subscriptions(
            broker=broker,
            answering=answering,
            audit_entries=audit_entries,
            accounts=accounts,
            outbox=self.outbox,
            pushes_ended=self.broker_events.pushes_ended,
            counters=self.counters,
            now_ms=now_ms,
            schedule=schedule,
            spawn=spawn,
        )
        transactions = Transactions(
            broker=broker,
            answering=answering,
            admission=self.admission,
            waiting_requests=self.waiting_requests,
            checkers=self.checkers,
            counters=self.counters,
            now_ms=now_ms,
        )
        plain = plain_handlers(
            broker=broker,
            answering=answering,
            accounts=accounts,
            admission=self.admission,
            location=self._location,
            now_ms=now_ms,
            restricted=restricted,
            audit_entries=audit_entries,
        )
        audit_requests = AuditRequests(
            broker=broker,
            log=self.log,
            answering=answering,
            gate=self.gate,
            accounts=accounts,
            now_ms=now_ms,
            schedule=schedule,
            work=sliced_work,
            max_unread_receives=self.settings.max_unread_receives,
        )
        metrics = MetricsRequests(
            broker=broker,
            answering=answering,
            accounts=accounts,
            server_metrics=self.metrics,
            now_ms=now_ms,
            schedule=schedule,
            work=sliced_work,
            entries_ahead=entries_ahead,
        )
        matches = MatchRequests(
            broker=broker, answering=answering, work=sliced_work, entries_ahead=entries_ahead, schedule=schedule
        )
        segments = SegmentRequests(
            broker=broker,
            log=self.log,
            answering=answering,
            accounts=accounts,
            state=lambda: self._state,
            history_bytes=lambda: self.reclaim.history_bytes,
            keep_history_ms=self.settings.keep_history_ms,
            now_ms=now_ms,
            spawn=spawn,
            schedule=schedule,
            work=sliced_work,
        )
        inspection = Inspection(
            broker=broker,
            accounts=accounts,
            connections=self.connections,
            waiting_requests=self.waiting_requests,
            settings_in_force=self.settings_in_force or (lambda: self.settings),
            now_ms=now_ms,
            schedule=schedule,
            work=sliced_work,
        )
        others: dict[type[wire.Request], Handler] = {
            wire.PeekMessages: peeks.handle,
            wire.PeekDeliveries: undelivered.handle,
            wire.RetryDelivery: undelivered.handle,
            wire.DropDelivery: undelivered.handle,
            wire.GetMessageDeliveries: undelivered.handle,
            wire.MatchSubscriptions: matches.match,
            wire.DeadLetterMessages: dead_letters.handle,
            wire.DeleteQueue: queues.delete,
            wire.RewindQueue: queues.rewind,
            wire.PreviewRewind: queues.preview_rewind,
            wire.ListQueueSummaries: metrics.summaries,
            wire.Subscribe: subscriptions.subscribe,
            wire.EnsureSubscription: subscriptions.subscribe,
            wire.Unsubscribe: subscriptions.unsubscribe,
            wire.RotateSecret: subscriptions.rotate_secret,
            wire.SendHalfMessages: transactions.send_half,
            wire.EndTransactions: transactions.end,
            wire.RegisterChecker: transactions.register_checker,
            wire.UnregisterChecker: transactions.unregister_checker,
            wire.SetKeyEnabled: account_operations.set_key_enabled,
            wire.SetKeyRoles: account_operations.set_key_roles,
            wire.DeleteKey: account_operations.delete_key,
            wire.GetOwnKey: account_operations.get_own_key,
            wire.GetKeySecret: secrets_of_keys.get,
            wire.WatchKeys: secrets_of_keys.watch,
            wire.DeleteAccount: account_operations.delete_account,
            wire.ListAllQueues: account_operations.list_all_queues,
            wire.GetServerStatus: server_requests.get_status,
            wire.GetMetrics: metrics.totals,
            wire.GetQueueMetrics: metrics.queues,
            wire.GetTopicMetrics: metrics.topics,
            wire.GetTopMetrics: metrics.top,
            wire.ListConnections: inspection.list_connections,
            wire.ListWaitingReceives: inspection.list_waiting_receives,
            wire.GetSettings: inspection.get_settings,
            wire.SealSegments: server_requests.seal_segments,
            wire.Locate: server_requests.locate,
            wire.ListSegments: segments.handle,
            wire.ListAuditEntries: audit_requests.list_entries,
        }
        return plain | account_operations.handlers(self._location) | others

    def _listen_to_log(self) -> None:
        """Take the calls of the log, which the daemon opened before the parts existed.

        A circle that cannot be ordered: replies need the log to be made, and the log's answers need the replies' gate.
        """
        log = self.log
        log.on_durable = self._on_durable
        log.on_page = self.broker_events.page_arrived
        log.on_published = self.broker_events.published_arrived
        log.on_fatal = self._fail
        log.on_state = self.storage_state
        log.on_checkpoint_wanted = self.checkpoints.want
        log.on_checkpoint_done = self._checkpoint_done

    async def start(self) -> tuple[str, int]:
        """Listen; return the address.

        Raises:
            OSError, ssl.SSLError: the address or the TLS files cannot be used.
        """
        address = await self.listener.start()
        self._location["address"] = advertised_address(self.settings.advertise, address, socket.gethostname)
        self.listening_time.begin(self.clock.now_ms())
        self._beat_again()
        self.reclaim.scan()
        self.io_batch.schedule()
        return address

    def addresses(self) -> list[str]:
        """Return the known addresses of the brokers of this log, this broker first; none without redundancy."""
        log = self.log
        if not isinstance(log, Led) or not log.epoch:
            return []
        own = self._location["address"]
        return addresses_of_pair([own], own, log.engine_status.view, self.settings.shard)

    async def match_secrets(self) -> None:
        """Make the missing secrets of the recovered subscriptions to URLs, and drop all other secrets.

        Raises:
            OSError: the accounts file cannot be written.
        """
        to_urls = [
            subscription_id
            for subscription_id, subscription in self.broker.subscriptions.items()
            if subscription.attributes.protocol != "queue"
        ]
        created, forgotten = await self.accounts.match_secrets(to_urls)
        if created:
            _log.warning(
                "subscription_secrets_made",
                subscription_ids=created[:100],
                count=len(created),
                text="a crash or a loss left these without a secret; each has a new secret, which a rotation shows",
            )
        if forgotten:
            _log.info("subscription_secrets_forgotten", count=len(forgotten))
        if to_urls and not self.outbox.can_push:
            _log.warning("push_unavailable", subscriptions=len(to_urls), text="install the extra cmqd[http]")

    async def drain(self, within_s: float) -> None:
        """Accept no new work, finish the work under way, tell every client, close all connections.

        The order matters: requests are refused before waits end, else an answered client could wait again; pushes and
        commits end before connections close, else a reply that becomes durable meanwhile would find no connection.
        """
        stop_at = self.loop.time() + within_s
        self.listener.stop_accepting()
        self.admission.refuse_all(ErrorCode.SHUTTING_DOWN, SHUTTING_DOWN)
        self.broker_events.fall_quiet()
        self.reclaim.stop()
        self.broker.gates.pushing = False
        self.listening_time.end()
        self.outbox.stop()
        ended = self.client_events.end_waits(ErrorCode.SHUTTING_DOWN, SHUTTING_DOWN)
        _log.info(
            "draining",
            waits_ended=ended,
            held_replies=len(self.gate),
            connections=len(self.connections),
            pushes=self.outbox.under_way,
        )
        self.io_batch.end()
        # A push without a recorded result is posted again after the start.
        await asyncio.gather(self.outbox.close(within_s / 2), self._wait_until_finished(within_s / 2))
        self.io_batch.end()
        # A client that does not read must not use up the time that the last checkpoint needs.
        left_s = stop_at - self.loop.time()
        await self.close_connections(ErrorCode.SHUTTING_DOWN, SHUTTING_DOWN, max(0.1, left_s / 2))
        self.agenda_timer.stop()

    async def end(self, reason: str, within_s: float) -> None:
        """After a failure: let clients read the reason, and close."""
        await self.outbox.close(0)
        await self.close_connections(ErrorCode.OUTCOME_UNKNOWN, reason, within_s)

    async def close_connections(self, code: ErrorCode, text: str, within_s: float) -> None:
        """Accept no more connections, tell every client why, and close."""
        self.listener.stop_accepting()
        await self.connections.close(code, text, within_s)
        self.listener.stop_timer()
        if self._beat_timer is not None:
            self._beat_timer.cancel()

    # ------------------------------------------------------------------ status

    def public_status(self) -> PublicStatus:
        """Return the status for every account."""
        return PublicStatus(
            version=cmqd.__version__,
            region=self.settings.region,
            durability=self.settings.durability_text,
            uptime_ms=int((time.monotonic() - self._started) * 1000),
            time_ms=self.clock.wall_ms(),
            broker_time_ms=self.clock.now_ms(),
            clock_offset_ms=self.clock.offset_ms,
            stalled_ms=int(max(self.storage_watch.stuck_s, self.stalled_receives.stalled_s) * 1000),
            address=self._location["address"],
            tls=self.settings.uses_tls,
        )

    def status(self) -> Status:
        """Return the whole status."""
        log, state, broker = self.log, self._state, self.broker
        loop = LoopStatus(
            pid=os.getpid(),
            connections=len(self.connections),
            waiting_receives=len(self.waiting_requests),
            held_replies=len(self.gate),
            checkers=len(self.checkers),
            queues=len(broker.queues),
            topics=len(broker.topics),
            subscriptions=len(broker.subscriptions),
            schedules=len(broker.schedules),
            pushes_under_way=self.outbox.under_way,
            last_lsn=log.last_lsn,
            durable_lsn=log.durable_lsn,
            pending_bytes=log.pending_bytes,
            pending_records=log.pending_records,
            log_bytes=state.log_bytes,
            segments=state.segments,
            history_bytes=self.reclaim.history_bytes,
            free_bytes=state.free_bytes,
            sends_refused=state.sends_refused,
            sends_refused_reason=state.reason if state.sends_refused else None,
            memory_budget_bytes=self.budget.total_bytes,
            memory_held_bytes=self.budget.held_bytes,
            memory_promised_bytes=broker.facts.promises.memory.total_bytes,
            rss_bytes=rss_bytes(),
            counters=self.counters,
        )
        return Status(self.public_status(), loop, self.storage_status(), self.replication_status())

    def replication_status(self) -> ReplicationStatus | None:
        """Return the status of the lead and the second copy; None without redundancy."""
        log = self.log
        if not isinstance(log, Led) or not log.epoch:
            return None
        proof_age_ms = int((log.clock_s() - log.proved_s) * 1000)
        return ReplicationStatus(self.settings.shard, log.epoch, proof_age_ms, log.engine_status)

    def metrics(self) -> ServerMetrics:
        """Return the figures of the server for monitoring systems."""
        log, state, counters, broker = self.log, self._state, self.counters, self.broker
        figures, storage_pid = log.figures, self.storage_status().storage_pid
        return ServerMetrics(
            version=cmqd.__version__,
            uptime_ms=int((time.monotonic() - self._started) * 1000),
            requests_total=counters.requests,
            errors_total=dict(counters.errors),
            # Copies, because the reply waits for the disk, and later values are counted in place.
            commit_us=copy_of(figures.commit_us),
            fsync_us=copy_of(figures.fsync_us),
            commit_records=copy_of(figures.records),
            committed_bytes_total=figures.bytes,
            loop_lag_us=copy_of(self._loop_lag_us),
            connections=len(self.connections),
            connections_accepted_total=counters.connections_accepted,
            connections_refused_total=counters.connections_refused,
            authentications_failed_total=counters.authentications_failed,
            slow_readers_closed_total=counters.slow_readers_closed,
            memory_closed_total=counters.dropped_for_memory,
            bytes_in_total=counters.bytes_in,
            bytes_out_total=counters.bytes_out,
            waiting_receives=len(self.waiting_requests),
            checkers=len(self.checkers),
            given_back_total=counters.given_back,
            unmatched_total=counters.unmatched,
            damaged_total=counters.damaged,
            schedules=len(broker.schedules),
            schedules_missed_total=counters.schedules_missed,
            pushes_under_way=self.outbox.under_way,
            pushes_delivered_total=counters.pushes_delivered,
            pushes_failed_total=counters.pushes_failed,
            segments=state.segments,
            log_bytes=state.log_bytes,
            history_bytes=self.reclaim.history_bytes,
            free_bytes=state.free_bytes,
            sends_refused=state.sends_refused,
            pending_bytes=log.pending_bytes,
            last_lsn=log.last_lsn,
            durable_lsn=log.durable_lsn,
            checkpoints_total=self._checkpoints_kept,
            checkpoint_ms=self._checkpoint_ms,
            pages_read_total=log.pages_answered,
            memory_budget_bytes=self.budget.total_bytes,
            memory_held_bytes=self.budget.held_bytes,
            memory_promised_bytes=broker.facts.promises.memory.total_bytes,
            loop_rss_bytes=rss_bytes(),
            storage_rss_bytes=rss_bytes(storage_pid) if storage_pid else 0,
            loop_cpu_us_total=cpu_us(),
            storage_cpu_us_total=cpu_us(storage_pid) if storage_pid else 0,
            replication=None if (replication := self.replication_status()) is None else replication.as_metrics(),
        )

    def status_reply(self, account: str) -> dict[str, Any]:
        """Return the status as an account may see it: the whole for ``admin``, the public part for others."""
        return self.status().as_reply() if account == ADMIN else public_reply(self.public_status())

    def storage_state(self, state: LogState) -> None:
        """Refuse or accept sends as the free space of the disk asks, and keep the figures for the status."""
        if state.sends_refused != self._state.sends_refused:
            if state.sends_refused:
                _log.warning("sends_refused", reason=state.reason, free_bytes=state.free_bytes)
            else:
                _log.info("sends_accepted_again", free_bytes=state.free_bytes)
        self._state = state
        self.admission.sends_refused = state.reason if state.sends_refused else None
        # Moves from queue to queue write bodies too.
        self.broker.gates.moves_held_up = "disk nearly full" if state.sends_refused else ""
        self.reclaim.room_is(short=state.is_short)

    def _secrets_of(self, subscription_id: int) -> list[str]:
        return self.accounts.secrets_of(subscription_id, self.clock.now_ms())

    # ------------------------------------------------------------------ events of the loop and the log

    def _has_room(self) -> bool:
        # After a failure there is no commit to keep room for, and every request is refused.
        return self._failure is not None or self._commit_room.has_room()

    def _end_io_batch(self) -> None:
        if self._failure is None:
            self.log.flush()
            self.agenda_timer.plan()
            is_overloaded = self._is_overloaded()
            if is_overloaded != self._was_overloaded:
                self._was_overloaded = is_overloaded
                self.listener.pause_reading(is_overloaded)

    def _beat_again(self) -> None:
        now_s = self.loop.time()
        if self._beat_due_s:
            self._loop_lag_us.note(max(0, int((now_s - self._beat_due_s) * 1_000_000)))
        self._beat_due_s = now_s + STEP_MS / 1000
        self._beat_timer = self.loop.call_later(STEP_MS / 1000, self._beat_again)
        self.listener.pass_time(local_ms())
        self.beat()

    def beat(self) -> None:
        """Do the work of a tenth of a second: examine the clock and the storage."""
        self._offset_watch.check()
        self.listening_time.pass_time(self.clock.now_ms())
        if self._failure is None:
            self.storage_watch.beat(int(self.loop.time() * 1000))
            self.stalled_receives.beat()
            self.held_reply_memory.beat()
        if self.turns.can_serve:
            # No commit has ended for a second; otherwise the end of a commit would have given the turns.
            self.io_batch.schedule()

    def _is_overloaded(self) -> bool:
        log, settings = self.log, self.settings
        # While the storage hangs, requests are read and refused: they add nothing to the backlog.
        return (
            log.pending_bytes >= settings.pause_pending_bytes or log.pending_records >= settings.pause_pending_records
        ) and self.admission.stall_refusal is None

    def _checkpoint_done(self, lsn: int) -> None:
        self._checkpoints_kept += 1
        self._checkpoint_ms = self.clock.now_ms()
        self.reclaim.checkpoint_done(lsn)

    def _on_durable(self, lsn: int) -> None:
        self.io_batch.write_released(lambda: self._release(lsn))

    def _release(self, lsn: int) -> None:
        if self.held_reply_memory.noted:
            self.held_reply_memory.forget()
        self.gate.open_to(lsn)
        if self.outbox.held:
            self.outbox.open_to(lsn)
        # Rows that waited for this commit are flushed at the end of an I/O batch, when the requests that follow the
        # replies have joined them. Deferred input may have room now, and the load may be over. Otherwise only replies
        # are left to write, and they need no end of a batch.
        if self.log.pending_records or self.turns.round or self._was_overloaded:
            self.io_batch.schedule()

    def _fail(self, failure: Exception) -> None:
        """Stop all acknowledgements, and answer every open request ``outcome_unknown``."""
        if self._failure is not None:
            return
        self._failure = failure
        reason = failure_text(failure)
        _log.error("failed", reason=reason)
        self.agenda_timer.stop()
        self.checkpoints.stop()
        self.reclaim.stop()
        self.outbox.stop()
        # Halted before any answer: an answer may call back, and no call may reach core or log any more.
        self.answering.is_halted = True
        self.admission.refuse_all(ErrorCode.OUTCOME_UNKNOWN, reason)
        self.collector.drop_all(reason)
        self.publishes.drop_all(reason)
        for client, reply in self.gate.take_all():
            client.answer(error(reply.request_id, ErrorCode.OUTCOME_UNKNOWN, reason))
        self.client_events.end_waits(ErrorCode.OUTCOME_UNKNOWN, reason)
        self.io_batch.schedule()
        self.on_failed(failure)

    async def _wait_until_finished(self, within_s: float) -> None:
        """Wait until all work in progress is finished, or a failure shows that the work cannot be finished."""
        stop_at = self.loop.time() + within_s
        while (len(self.gate) or len(self.turns) or len(self.tasks)) and self.loop.time() < stop_at:
            if self._failure is not None:
                return
            await asyncio.sleep(DRAIN_POLL_S)


def failure_text(failure: Exception) -> str:
    """Return the reason of the halt of all acknowledgements, in a line for clients and operators."""
    if isinstance(failure, LogFailed):
        return f"the storage failed: {failure}"
    return f"internal error ({type(failure).__name__}); the broker stops and recovers from its log"
