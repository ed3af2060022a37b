"""The wiring of a server: the order in which its parts are made, and the circles between them.

``Assembly`` fills a part with the parts that were made before. A line of this module is a part, in the order of needs.
Arguments are written only where the needs of a part do not say enough: the value of a setting with a different name, or
the function of a part.

Redundancy is a single value, ``Surroundings.leadership``. A server without a lead has no part of
``cmqd.server.redundancy``.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cmqd.core.broker import Broker
from cmqd.core.facts.facts import Facts
from cmqd.log.interface import Log
from cmqd.server.access.accounts import Accounts
from cmqd.server.access.audit_entries import AuditEntries
from cmqd.server.access.audit_lines import Audit
from cmqd.server.access.authorization import Authorization
from cmqd.server.access.restricted_lookups import RestrictedLookups
from cmqd.server.admission.entries_ahead import EntriesAhead
from cmqd.server.admission.fairness import CommitRoom, RoundRobin
from cmqd.server.admission.memory_budget import MemoryBudget, budget_bytes
from cmqd.server.admission.request_admission import Admission
from cmqd.server.admission.sliced_work import SlicedWork
from cmqd.server.assembly import Assembly
from cmqd.server.binary.listener import Listener
from cmqd.server.clients.client_events import ClientEvents
from cmqd.server.clients.connections import Connections
from cmqd.server.clients.key_watchers import KeyWatchers
from cmqd.server.clients.transaction_checkers import TransactionCheckers
from cmqd.server.halt import Halt
from cmqd.server.handlers.accounts import AccountOperations
from cmqd.server.handlers.audit import AuditRequests
from cmqd.server.handlers.backlog import Undelivered, UndeliveredReplies
from cmqd.server.handlers.filter_tests import MatchRequests
from cmqd.server.handlers.histories import HistoryRequests
from cmqd.server.handlers.inspection import Inspection
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
from cmqd.server.handlers.pins import PinRequests
from cmqd.server.handlers.publishing import Publishes
from cmqd.server.handlers.queues import Queues, RewindReplies
from cmqd.server.handlers.secrets_of_keys import SecretsOfKeys
from cmqd.server.handlers.segments import SegmentRequests
from cmqd.server.handlers.server_requests import ServerRequests
from cmqd.server.handlers.subscriptions import Subscriptions
from cmqd.server.handlers.transactions import TransactionReplies, Transactions
from cmqd.server.log_upkeep.checkpoints import Checkpoints, KeptCheckpoints
from cmqd.server.log_upkeep.disk_state import DiskState
from cmqd.server.log_upkeep.pins import Pins
from cmqd.server.log_upkeep.reclaim import Reclaim
from cmqd.server.log_upkeep.segment_changes import SegmentChanges
from cmqd.server.log_upkeep.storage_watch import StorageWatch
from cmqd.server.loop.agenda_timer import AgendaTimer
from cmqd.server.loop.background_tasks import BackgroundTasks
from cmqd.server.loop.batch_ends import BatchEnds
from cmqd.server.loop.beat import Beat
from cmqd.server.loop.broker_events import BrokerEvents
from cmqd.server.loop.clock import BrokerClock, OffsetWatch
from cmqd.server.loop.io_batch import IoBatch
from cmqd.server.loop.reachable_time import ListeningTime
from cmqd.server.monitoring.counters import Counters
from cmqd.server.monitoring.server_figures import ServerFigures
from cmqd.server.monitoring.status import StorageProcessStatus
from cmqd.server.part import part
from cmqd.server.process.advertised_address import advertised_address
from cmqd.server.push.outbox import Outbox, Pushing
from cmqd.server.push.pusher import Pusher
from cmqd.server.push.subscription_secrets import SubscriptionSecrets
from cmqd.server.redundancy.leadership import Leadership
from cmqd.server.replies.answering import Answer, Answering
from cmqd.server.replies.held_reply_memory import HeldReplyMemory
from cmqd.server.replies.reply_gate import Gate, ReplyGate
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.collecting import Collector
from cmqd.server.requests.dispatch import Dispatcher, plain_handlers
from cmqd.server.requests.handler import Handler, handlers_of, late_answers_of
from cmqd.server.server import Server
from cmqd.settings import Settings
from cmqd_protocol import messages as wire
from cmqd_protocol.operations import OPERATIONS, Cost, requests_of
from cmqd_types.metrics import DURATIONS_US, histogram

HANDLERS: Sequence[Callable[..., object]] = (
    Peeks,
    DeadLetters,
    Queues,
    Undelivered,
    MatchRequests,
    Subscriptions,
    Transactions,
    SecretsOfKeys,
    ServerRequests,
    MetricsRequests,
    SegmentRequests,
    HistoryRequests,
    PinRequests,
    AuditRequests,
    Inspection,
)
"""Parts with handlers that need parts and named values alone. The order has no meaning."""

LATE_ANSWERS: Sequence[Callable[..., object]] = (
    ReplyWithBodies,
    DeadLetterReplies,
    RewindReplies,
    TransactionReplies,
    UndeliveredReplies,
)
"""Parts that answer requests which may wait in the core."""


@part
class Surroundings:
    """The parts and values of the process that a server is made for."""

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
    leadership: Leadership | None = None
    """The lead over the log; None = the broker is alone."""
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
    note_held: Callable[[int], None] = lambda _held_bytes: None
    """Called with the droppable memory of all connections after each change."""


def make_server(given: Surroundings) -> Server:
    """Make a server and its parts; nothing listens yet."""
    assembly = _begin(given)
    _add_loop(assembly, given)
    _add_replies(assembly, given)
    _add_requests(assembly, given)
    _add_upkeep(assembly, given)
    _add_watches(assembly, given)
    _add_faces(assembly, given)
    _join_circles(assembly, given)
    return assembly.make(Server, parts=assembly)


def _begin(given: Surroundings) -> Assembly:
    """Return an assembly with the values, the surroundings, and the parts that need no part of the server."""
    settings, leadership = given.settings, given.leadership
    # Facts of every queue and topic that the core does not know; a port 0 is replaced once the server listens.
    location: dict[str, Any] = {
        "region": settings.region,
        "address": advertised_address(settings.advertise, settings.listen_address, socket.gethostname),
    }
    assembly = Assembly(
        location=location,
        region=settings.region,
        shard=settings.shard,
        epoch=0 if leadership is None else leadership.epoch,
        addresses=lambda: [] if leadership is None else leadership.addresses(location["address"]),
        leadership=leadership,
        settings_in_force=given.settings_in_force or (lambda: settings),
        storage_status=given.storage_status,
        on_failed=given.on_failed,
        note_held=given.note_held,
        timer=given.timer,
        cpu_ns=given.cpu_ns,
        loop_lag_us=histogram(DURATIONS_US),
        examine_lead=lambda: None,
        busy_pending_bytes=settings.busy_pending_bytes,
        busy_pending_records=settings.busy_pending_records,
        pause_pending_bytes=settings.pause_pending_bytes,
        pause_pending_records=settings.pause_pending_records,
        keep_history_ms=settings.keep_history_ms,
        max_unread_receives=settings.max_unread_receives,
    )
    assembly.add(given.loop, asyncio.AbstractEventLoop)
    assembly.add(settings, Settings)
    assembly.add(given.log, Log)
    assembly.add(given.broker, Broker)
    assembly.add(given.broker.facts, Facts)
    assembly.add(given.accounts, Accounts)
    assembly.add(given.clock, BrokerClock)
    assembly.make(Counters)
    assembly.make(WaitingRequests)
    assembly.make(TransactionCheckers)
    assembly.make(Connections, limit=given.max_connections, limit_of_account=settings.max_connections_per_account)
    promised = given.broker.facts.promises.memory
    assembly.make(MemoryBudget, total_bytes=budget_bytes(settings), kept_bytes=lambda: promised.total_bytes)
    return assembly


def _add_loop(assembly: Assembly, given: Surroundings) -> None:
    """Add the gate, tasks and I/O batches, and name the functions that most parts call."""
    replies = assembly.make(ReplyGate, durable_lsn=given.log.durable_lsn)
    gate: Gate = replies if given.leadership is None else given.leadership.gate(replies)
    assembly.add(gate, Gate)
    tasks = assembly.make(BackgroundTasks)
    room = assembly.make(CommitRoom)
    turns = assembly.make(RoundRobin, has_room=room.has_room)
    io_batch = IoBatch(
        given.loop,
        given.clock.now_ms,
        turns=turns,
        timer=given.timer,
        replies=replies,
        cpu_ns=given.cpu_ns,
    )
    assembly.add(io_batch)
    assembly.add(io_batch.turn_time)
    assembly.name(now_ms=io_batch.now_ms, schedule=io_batch.schedule, spawn=tasks.spawn, when_led=gate.when_led)


def _add_replies(assembly: Assembly, given: Surroundings) -> None:
    """Add the way out: late answers, the outbox, and the side effects of outcomes."""
    log = given.log
    assembly.make(HeldReplyMemory)
    assembly.make(KeyWatchers)
    assembly.make(Outbox, durable_lsn=lambda: log.durable_lsn, has_secret=given.accounts.has_secret)
    answers: dict[type[wire.Request], Answer] = {}
    for kind in LATE_ANSWERS:
        answers |= late_answers_of(assembly.make(kind))
    assembly.make(Answering, answers=answers)


def _add_requests(assembly: Assembly, given: Surroundings) -> None:
    """Add the way in, as far as events of broker and clients need it."""
    settings, accounts = given.settings, given.accounts
    assembly.make(Admission, max_requests_per_second=settings.max_requests_per_second_per_account)
    assembly.make(Collector)
    assembly.make(Publishes)
    assembly.make(ListeningTime, gates=given.broker.gates)
    assembly.make(BrokerEvents)
    assembly.make(Audit, account_of=accounts.account_of)
    assembly.make(Authorization)
    assembly.make(ClientEvents)


def _add_upkeep(assembly: Assembly, given: Surroundings) -> None:
    """Add the work that no request asks for, and the halt, which ends that work."""
    settings, broker, log, clock = given.settings, given.broker, given.log, given.clock
    events = assembly.get(BrokerEvents)
    lines, next_deadline_ms = assembly.get(Publishes).lines, broker.next_deadline_ms
    assembly.make(AgendaTimer, clock_ms=clock.now_ms, next_deadline_ms=next_deadline_ms, lines=lines, tick=events.tick)
    # By the clock itself: the time of the poll would begin an I/O batch.
    assembly.make(Pins, now_ms=clock.now_ms)
    reclaim = assembly.make(Reclaim, live_in=broker.live_in, now_ms=clock.now_ms)
    assembly.make(
        SegmentChanges,
        live_in=broker.live_in,
        there_in=broker.there_in,
        moves_of=broker.moves_of,
        is_kept=reclaim.keeps,
        timer=given.timer,
    )
    assembly.make(
        Checkpoints,
        # Each part is true for a closed row: later records have a higher LSN.
        begin=lambda: broker.checkpoint(log.close_row, clock.now_ms(), log.sealed_upto),
        is_behind=lambda: log.pending.bytes >= settings.busy_pending_bytes // 2,
        timer=given.timer,
    )
    assembly.make(KeptCheckpoints)
    assembly.make(DiskState)
    assembly.make(Halt)


def _add_watches(assembly: Assembly, given: Surroundings) -> None:
    """Add the watches over storage and lead, and the figures, which read all parts before them."""
    watch = assembly.make(
        StorageWatch,
        patience_ms=given.settings.storage_patience_ms,
        reason=assembly.get(DiskState).reason_of_refusals,
    )
    stalled_s = _never_stalled
    if given.leadership is not None:
        stalled = given.leadership.stalled_receives(assembly, stand_in=watch.stand_in)
        stalled_s = stalled.stalled_s
        assembly.name(examine_lead=stalled.beat)
    figures = assembly.make(ServerFigures, stalled_s=stalled_s)
    assembly.name(server_metrics=figures.metrics, status_of=figures.status_reply)


def _never_stalled() -> float:
    return 0.0


def _add_handlers(assembly: Assembly, given: Surroundings) -> dict[type[wire.Request], Handler]:
    """Add the parts that handle requests, except those that collect; return the handler of each kind of request."""
    answering, io_batch = assembly.get(Answering), assembly.get(IoBatch)
    connections, watchers = assembly.get(Connections), assembly.get(KeyWatchers)
    disk, reclaim = assembly.get(DiskState), assembly.get(Reclaim)
    # A single worker: a turn of the loop has one slice, over the look-ups of all handlers.
    assembly.make(SlicedWork, broke=answering.broke, is_urgent=lambda: io_batch.has_work)
    assembly.make(EntriesAhead)
    assembly.make(RestrictedLookups)
    assembly.make(AuditEntries)
    handlers = assembly.make(
        AccountOperations,
        revoke=connections.revoke,
        use_permissions=connections.use_permissions,
        key_changed=watchers.changed,
    ).handlers()
    assembly.name(
        state=lambda: disk.state,
        history_bytes=lambda: reclaim.history_bytes,
        pushes_ended=assembly.get(BrokerEvents).pushes_ended,
    )
    for kind in HANDLERS:
        handlers |= handlers_of(assembly.make(kind))
    others = OPERATIONS.keys() - handlers - requests_of(lambda operation: operation.cost is Cost.CONSTANT)
    return handlers | assembly.make(plain_handlers, plain=[OPERATIONS[request] for request in others])


def _add_faces(assembly: Assembly, given: Surroundings) -> None:
    """Add the dispatcher over all handlers, the listener before it, and the ends that call the listener."""
    audit, authorization = assembly.get(Audit), assembly.get(Authorization)
    sends = assembly.make(Sends)
    receives = assembly.make(Receives, max_waiting_per_account=given.settings.max_waiting_receives_per_account)
    publishes, deletes = assembly.get(Publishes), assembly.make(Deletes)
    handlers = _add_handlers(assembly, given)
    for collecting in (sends, publishes, deletes, receives):
        handlers |= handlers_of(collecting)
    handlers = authorization.guarded(handlers)
    dispatcher = assembly.make(
        Dispatcher,
        handlers={
            kind: audit.audited(handler) if OPERATIONS[kind].is_administration else handler
            for kind, handler in handlers.items()
        },
        runs={wire.SendMessages: sends.take_run},
        take_plain_sends=sends.take_plain,
    )
    assembly.get(Collector).lone_sends.take = dispatcher.take_lone_sends
    listener = assembly.make(Listener, dispatch=dispatcher.dispatch, dispatch_run=dispatcher.dispatch_run)
    assembly.make(BatchEnds, pause_reading=listener.pause_reading)
    assembly.make(OffsetWatch, record=assembly.get(BrokerEvents).clock_offset_changed)
    assembly.make(Beat, pass_time=listener.pass_time)
    assembly.make(SubscriptionSecrets)


def _join_circles(assembly: Assembly, given: Surroundings) -> None:
    """State the circles: calls of a part to later parts, which need the part themselves.

    | part | calls | although it needs the part |
    | --- | --- | --- |
    | Answering | Halt, at a bug | Halt stops the answers |
    | IoBatch | Collector and BatchEnds, at its ends | both schedule I/O batches |
    | Outbox | the pusher | the results of pushes are events, whose outcomes have further pushes |
    | the log | gate, events, halt, upkeep | all append, read or need the durable LSN |
    """
    get, log = assembly.get, given.log
    events, halt, ends, outbox = get(BrokerEvents), get(Halt), get(BatchEnds), get(Outbox)
    get(Answering).on_broken = halt.fail
    get(IoBatch).end_with(before_end=get(Collector).decide_all, at_end=ends.end_io_batch)
    if Pusher.available() if given.can_push is None else given.can_push:
        outbox.use(_make_pusher(assembly, given))
    given.broker.gates.pushing = outbox.can_push
    # Joined here, so that a commit needs no call in between.
    log.on_durable = partial(get(IoBatch).write_released, ends.release)
    log.on_page = events.page_arrived
    log.on_published = events.published_arrived
    log.on_fatal = halt.fail
    log.on_state = get(DiskState).reported
    log.on_checkpoint_wanted = get(Checkpoints).want
    log.on_checkpoint_done = get(KeptCheckpoints).note


def _make_pusher(assembly: Assembly, given: Surroundings) -> Pushing:
    settings = given.settings
    return given.make_pusher(
        loop=given.loop,
        timeout_ms=settings.push_timeout_ms,
        allow_private=settings.push_allow_private,
        allow_loopback=settings.push_allow_loopback,
        user_agent=settings.push_user_agent,
        secrets_of=assembly.get(SubscriptionSecrets).secrets_of,
        on_results=assembly.get(BrokerEvents).pushes_ended,
        now_ms=given.clock.now_ms,
        wall_ms=given.clock.wall_ms,
    )
