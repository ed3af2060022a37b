"""Transactions: half messages and the decisions about them. (``transaction_checks`` asks for decisions.)

      send_half          commit: gone here, and at the end of the queue at a new position with the same id ──► active
    ───────────► half ──┤
                  ▲ │    roll back ──► gone
                  └─┘ check: a producer is asked; "unknown" is noted

The first decision wins. The decision is durable before a client is answered; a repeat succeeds, and the opposite is
refused. Therefore a producer can repeat a decision safely after a lost connection.

A commit writes the message again at the end of its queue, in the row that ends the half message. At its old position
the message would keep its old send time, and could expire right after the commit. Writing again needs the body. If the
body is not in memory, the body is read from the log, and later decisions about the message wait behind the commit, in
order: a rollback that overtook the read would win over the earlier commit.

A request of decisions is carried out in two steps. First every decision is examined against the facts and against the
earlier decisions of the request, without a change (``_decide``). Then all of them become records in one row (``_end``).
So a crash finds the request carried out or not begun, as far as no body had to be read.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import islice, repeat

import msgspec

from cmqd.core.domain_errors import (
    AlreadyCommitted,
    AlreadyRolledBack,
    DomainError,
    InvalidArgument,
    MessageDamaged,
    NotTransactional,
    QueueDeleted,
    TransactionNotFound,
)
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import check_range, headers_bytes
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.operations.sending.batch_checks import Batches
from cmqd.core.operations.sending.storing import Store
from cmqd.core.operations.transactions.transaction_checks import Checks
from cmqd.core.outcome import WAITING, Effects, HalfRequest, Outcome, TransactionsDone, Waiting, Woken
from cmqd.core.runtime.pages import Reading
from cmqd.core.runtime.pending import PendingCommits, PendingDecisions
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.half_messages import Checked
from cmqd_segment.records import (
    AnyRecord,
    MessagesSent,
    Runs,
    StoredMessage,
    TransactionsEnded,
    TransactionsUndecided,
    pack_runs,
    unpack_runs,
)
from cmqd_types.actors import NO_ACTOR, Actor
from cmqd_types.attributes import QUEUE
from cmqd_types.messages import HalfMessage, HalfMessages

COMMIT, ROLL_BACK, UNKNOWN = 1, 2, 3
"""Decisions about a half message, with the numbers of the wire."""


class Progress(Enum):
    """How far a decision is carried out."""

    SETTLED = "settled"
    WAITS = "waits"
    """A commit needs the body first, or room in a row."""


class Endings(msgspec.Struct, gc=False):
    """Decisions of a call about half messages of a queue, before they become facts."""

    queue: Queue
    now_ms: int
    expired_floor: int
    """Half messages below this position have expired."""
    decided: dict[int, int] = {}
    """Commit or roll back, by position."""
    committed: list[StoredMessage] = []
    committed_bytes: int = 0
    rolled_back: list[int] = []
    unknown: dict[int, None] = {}
    actors: dict[int, Actor] = {}
    """Clients that decided or answered, by position."""


_UNCHECKED = Checked()


class Transactions:
    """Stores half messages, and commits them or rolls them back."""

    def __init__(
        self, facts: Facts, runtime: Runtime, batches: Batches, store: Store, serving: Serving, checks: Checks
    ) -> None:
        self._limits = facts.limits
        self._numbers = facts.numbers
        self._queues = facts.queues
        self._actors = facts.actors
        self._runtime = runtime.queues
        self._budget = runtime.budget
        self._deciding = runtime.deciding
        self._commits = runtime.commits
        self._lane = runtime.pages.commits
        self._batches = batches
        self._store = store
        self._serving = serving
        self._checks = checks

    def send_half(
        self, account: str, name: str, request: HalfRequest, now_ms: int, *, actor: Actor = NO_ACTOR
    ) -> Outcome[Sequence[int]]:
        """Store a batch of half messages, invisible to consumers until their commit; the reply is their message ids.

        Numbered sends and dedup ids as in a send. The first check of a producer comes after
        ``first_check_ms`` (None = the queue's). ``actor``: the client.

        Raises:
            QueueNotFound, NotTransactional, InvalidArgument, MessageTooLarge, BatchTooLarge, BacklogFull,
            SequenceTooOld, TooManyRemembered.
        """
        queue = self._queues.find(account, name)
        index = queue.index
        if not index.attributes.transactional:
            # In a queue without transactions no producer could decide, and no check would be sent: half messages would
            # wait there until they expire.
            raise NotTransactional(name)
        # Before the checks: the batch was stored, and stays stored, even if a limit was lowered since.
        ids = self._batches.stored_before(queue, request, now_ms)
        if ids is not None:
            return Outcome(ids)
        first_check_ms = request.first_check_ms
        if first_check_ms is None:
            first_check_ms = index.attributes.first_check_ms
        else:
            check_range("first_check_ms", first_check_ms, QUEUE["first_check_ms"].low, QUEUE["first_check_ms"].high)
        batch = self._batches.check(queue, request, now_ms)
        if not batch.sizes:
            # Repeats alone: nothing is stored, so no number is taken and no record is made.
            return Outcome(batch.message_ids(0))
        # Half messages share the positions and time steps of the queue, so their times must not decrease either.
        enqueue_ms = max(now_ms, index.last_enqueue_ms)
        records: list[AnyRecord] = []
        first_id = self._numbers.take_message_ids(len(batch.sizes), records)
        record = MessagesSent(
            queue_id=index.queue_id,
            first_position=index.next_position,
            first_message_id=first_id,
            enqueue_ms=enqueue_ms,
            sizes=batch.sizes,
            headers=batch.headers,
            # A half message has no due time, so the field of the record holds the time of its first check.
            visible_ms=enqueue_ms + first_check_ms,
            session=request.session,
            sequence=request.sequence,
            half=True,
            dedup_ids=batch.dedup_ids,
            actors=self._actors.joined([actor], repeat(1), 1, records),
        )
        self._store.store(queue, record, batch.bodies)
        records.append(record)
        # Paid for by the sends that make the tables grow, a bounded step each. A sweep by time could fall behind them.
        if index.halves.is_too_long():
            index.halves.forget_decided(index.half)
        self._checks.sweep_if_many()
        return Outcome(batch.message_ids(first_id), records, batch.bodies)

    # ------------------------------------------------------------------ decisions

    def end_transactions(
        self,
        account: str,
        name: str,
        waiter_id: int,
        message_ids: list[int],
        decisions: list[int],
        now_ms: int,
        *,
        actor: Actor = NO_ACTOR,
    ) -> Outcome[TransactionsDone | Waiting]:
        """Decide half messages, in order: ``COMMIT``, ``ROLL_BACK`` or ``UNKNOWN``, a decision per message, or a common
        decision. The reply names the refused decisions; it is WAITING if a body must be read for a commit.

        ``actor``: the client.

        Raises:
            QueueNotFound, NotTransactional, InvalidArgument. If the queue is deleted meanwhile, a waiting request ends
            with QueueDeleted.
        """
        queue = self._queues.find(account, name)
        index = queue.index
        if not index.attributes.transactional:
            raise NotTransactional(name)
        decisions = self._checked_decisions(message_ids, decisions)
        request = PendingDecisions(waiter_id, 0, [], actor)
        # The floor of expired messages is taken once, so that all decisions of the request see the same moment.
        endings = Endings(queue, now_ms, index.expired_below(now_ms))
        commits = self._take_decisions(endings, request, message_ids, decisions)
        effects = Effects()
        # Applied before the wait is entered: a request that is cancelled, or loses its connection, has carried out
        # the part that needed no read, and the rest follows with the page.
        self._end(endings, effects)
        if endings.committed:
            self._serving.serve(queue, effects, now_ms)
        if not request.left:
            return effects.outcome(_done(request))
        # Entered even if a page is under way: that page settles the decisions about its bodies, and asks for the rest.
        assert commits is not None
        self._deciding[waiter_id] = request
        self._join_page(queue, commits, effects)
        return effects.outcome(WAITING)

    def _take_decisions(
        self, endings: Endings, request: PendingDecisions, message_ids: list[int], decisions: list[int]
    ) -> PendingCommits | None:
        """Take the decisions of a request, or let them wait for bodies; return the commits of the queue that wait.

        Decisions are collected first and become facts together, in ``_end``. Entries of one request can name the same
        message, so a decision counts for the entries behind it as soon as it is collected.
        """
        queue, index, name = endings.queue, endings.queue.index, endings.queue.name
        commits = self._commits.get(queue.queue_id)
        for place, (message_id, decision) in enumerate(zip(message_ids, decisions, strict=True)):
            position = index.halves.position_of(message_id)
            if position is None:
                request.failures.append((place, message_id, TransactionNotFound(name, message_id)))
                continue
            # Behind a commit that waits for its body every decision waits, in order of arrival. Decided at once, a
            # rollback would win over the commit that came first.
            waiting = None if commits is None else commits.decisions.get(position)
            if waiting is None:
                # Without a body a rollback is decided at once, and a commit waits for a page.
                message = self._runtime[queue.queue_id].window.half.get(position)
                error = self._decide(endings, position, message_id, decision, message, request.actor)
                if error is Progress.SETTLED:
                    continue
                # A refused entry is a failure in the reply and stops no other entry: a producer that repeats a batch of
                # decisions must not lose the decisions behind the first one that expired.
                if isinstance(error, DomainError):
                    request.failures.append((place, message_id, error))
                    continue
                if commits is None:
                    commits = PendingCommits(name, {})
                waiting = commits.decisions[position] = []
            waiting.append((request, place, message_id, decision))
            # Counted per decision: the request is answered when its last decision is settled, in one reply.
            request.left += 1
        return commits

    def _join_page(self, queue: Queue, commits: PendingCommits, effects: Effects) -> None:
        """Ask for the page of a queue, one at a time: later decisions join its table, and the next page."""
        if queue.queue_id not in self._commits:
            self._commits[queue.queue_id] = commits
            self._read_commits(queue, commits, effects)

    def _checked_decisions(self, message_ids: list[int], decisions: list[int]) -> list[int]:
        """Return a decision for each message id."""
        count = len(message_ids)
        if not 1 <= count <= self._limits.max_batch:
            raise InvalidArgument(
                f"a request has 1 to {self._limits.max_batch} message ids; this one has {count}",
                field="message_ids",
                value=count,
                limit=f"1 to {self._limits.max_batch} ids",
            )
        if len(decisions) not in (1, count):
            raise InvalidArgument(
                f"there are {len(decisions)} decisions for {count} message ids; give one decision, or one for each id",
                field="decisions",
                value=len(decisions),
                limit=f"one decision, or {count}",
            )
        for decision in decisions:
            check_range("decisions", decision, COMMIT, UNKNOWN)
        return decisions if len(decisions) == count else decisions * count

    def _decide(
        self,
        endings: Endings,
        position: int,
        message_id: int,
        decision: int,
        message: StoredMessage | None,
        actor: Actor,
    ) -> DomainError | Progress:
        """Take a decision, or refuse it. ``message`` is None if the body is not in memory."""
        queue, index = endings.queue, endings.queue.index
        is_before = endings.decided.get(position)
        if is_before is None:
            # The time step first, which is known for every message; the exact time only of a body in memory. A commit
            # that came too late must be refused, because the message would live on with a new send time.
            gone = position < endings.expired_floor
            if message is not None and message.enqueue_ms + index.attributes.retention_ms <= endings.now_ms:
                gone = True
            if gone:
                return TransactionNotFound(queue.name, message_id)
            if position in index.half:
                # Unknown is not a decision: the message stays half, and later entries of the request may still decide.
                if decision == UNKNOWN:
                    endings.unknown[position] = None
                    endings.actors.setdefault(position, actor)
                    return Progress.SETTLED
                if decision == ROLL_BACK:
                    endings.rolled_back.append(position)
                else:
                    if message is None:
                        return Progress.WAITS
                    # All committed messages of a call go into one row, and a row is bounded. The first fits in any
                    # case, or a large message could never be committed.
                    size = len(message.body) + (headers_bytes(message.headers) if message.headers else 0)
                    if endings.committed and endings.committed_bytes + size > self._limits.max_batch_bytes:
                        return Progress.WAITS
                    endings.committed.append(message)
                    endings.committed_bytes += size
                endings.decided[position] = decision
                endings.actors[position] = actor
                return Progress.SETTLED
            # Decided by an earlier request. The decision is remembered until the retention of the half message is over,
            # so a producer that lost the answer can repeat its decision and learn the result.
            if position in index.halves.committed:
                is_before = COMMIT
            elif position in index.halves.rolled_back:
                is_before = ROLL_BACK
            else:
                return TransactionNotFound(queue.name, message_id)
        # The same decision again is a repeat after a lost answer, and succeeds. "Unknown" after a decision is a late
        # answer to a check, and changes nothing.
        if decision in (is_before, UNKNOWN):
            return Progress.SETTLED
        refusal = AlreadyCommitted if is_before == COMMIT else AlreadyRolledBack
        return refusal(queue.name, message_id)

    def _end(self, endings: Endings, effects: Effects) -> None:
        """Turn decisions into records and apply the records; the caller serves the receives that wait."""
        queue, now_ms = endings.queue, endings.now_ms
        index, queue_id = queue.index, queue.queue_id
        if endings.unknown:
            # Before the other records: a later entry of the same request may decide about the message, and a message
            # that is no longer half cannot be undecided.
            unknown = sorted(endings.unknown)
            named = self._named(endings, unknown, effects)
            undecided = TransactionsUndecided(queue_id, pack_runs(unknown), now_ms, named)
            index.apply_undecided(undecided)
            effects.records.append(undecided)
        committed = [message.position for message in endings.committed]
        # The half messages end before the committed messages are stored again, in the same row. A replay that stops
        # between two records cannot happen, and at no record a message is in the queue twice.
        for positions, is_commit in ((endings.rolled_back, False), (committed, True)):
            if positions:
                ascending = sorted(positions)
                named = self._named(endings, ascending, effects)
                ended = TransactionsEnded(queue_id, pack_runs(ascending), is_commit, now_ms, named)
                index.apply_ended(ended)
                effects.records.append(ended)
                # The window lets go of decided bodies. Commits have theirs in ``endings``, and no operation reads the
                # body of a rolled back message again.
                self._budget.drop_half(queue_id, self._runtime[queue.queue_id].window, positions)
        # A committed message keeps its id, and a record has consecutive ids from its first. So a record is made for
        # every run of neighbours; a batch that is committed as it was sent is a single run.
        start = 0
        while start < len(endings.committed):
            stop = start + 1
            first_id = endings.committed[start].message_id
            while stop < len(endings.committed) and endings.committed[stop].message_id == first_id + stop - start:
                stop += 1
            named = self._named(endings, committed[start:stop], effects)
            self._store.store_again(queue, endings.committed[start:stop], first_id, effects, now_ms, actors=named)
            start = stop

    def _named(self, endings: Endings, positions: Sequence[int], effects: Effects) -> Runs:
        """Return the clients that decided about half messages, in the order of ``positions``."""
        actors = [endings.actors[position] for position in positions]
        return self._actors.joined(actors, repeat(1), len(actors), effects.records)

    def _read_commits(self, queue: Queue, commits: PendingCommits, effects: Effects) -> None:
        """Ask for the bodies of the oldest waiting commits, as many as fit a row."""
        # The oldest first. A page is bounded, and a commit that is passed over again and again would keep all decisions
        # behind it waiting.
        positions: list[int] = []
        for position in commits.decisions:
            positions.append(position)
            if len(positions) == self._limits.page_messages:
                break
        queue_id = queue.queue_id
        # Up to the size of a row and not of a page: the bodies go into one row, and a second read for it would be a
        # second commit.
        self._lane.want(queue_id, queue_id, sorted(positions), self._limits.max_batch_bytes, None, effects.reads)

    def on_page(
        self, reading: Reading[None], messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Commit the messages of a page, take the decisions that waited behind the commits, and read the next page."""
        queue_id = reading.owner_id
        # Before the next page is asked for below, which makes the queue busy again.
        self._lane.busy.discard(queue_id)
        commits = self._commits[queue_id]
        queue = self._queues.by_id.get(queue_id)
        if queue is None:
            # The queue is gone with its half messages. Every waiting request gets an answer, though several of its
            # decisions may wait here.
            del self._commits[queue_id]
            error = QueueDeleted(commits.queue_name)
            for waiting in commits.decisions.values():
                for request, *_ in waiting:
                    if self._deciding.pop(request.waiter_id, None) is not None:
                        effects.woken.append(Woken(request.waiter_id, error))
            return 0
        endings = Endings(queue, now_ms, queue.index.expired_below(now_ms))
        # Noted before the decisions are settled: no further check is sent for a body that cannot be read.
        damaged = queue.index.set_damaged(missing) if missing else 0
        half = queue.index.half
        bodies: dict[int, StoredMessage | None] = {message.position: message for message in messages}
        bodies |= dict.fromkeys(unpack_runs(missing))
        # Messages that were cleared or expired since the read was requested may be in no page at all. Without them here
        # their requests would wait forever.
        gone = [position for position in commits.decisions if position not in half and position not in bodies]
        bodies |= dict.fromkeys(gone)
        for position, message in bodies.items():
            # A rollback or a repeat behind a commit is settled in the same step as the commit in front of it.
            self._settle_waiting(commits, endings, position, message, effects)
        # The row of this page, then the next page: bodies of commits are in memory for one row at a time.
        self._end(endings, effects)
        # Cancelled requests are read for too. Their decisions were accepted, and a producer that repeats a decision
        # must find the decision carried out.
        if commits.decisions:
            self._read_commits(queue, commits, effects)
        else:
            del self._commits[queue_id]
        # Last, when the committed messages are active.
        self._serving.serve(queue, effects, now_ms)
        return damaged

    def _settle_waiting(
        self,
        commits: PendingCommits,
        endings: Endings,
        position: int,
        message: StoredMessage | None,
        effects: Effects,
    ) -> None:
        """Take the waiting decisions about a half message, in order. ``message`` is None if the body cannot be read."""
        waiting = commits.decisions.get(position)
        if waiting is None:
            return
        for taken, (request, place, message_id, decision) in enumerate(waiting):
            settled = self._decide(endings, position, message_id, decision, message, request.actor)
            if settled is Progress.WAITS:
                # A body that is here and still waits found the row full. A body that cannot be read settles the commit
                # as damaged: the message stays half, and the producer learns why.
                if message is not None:
                    # The row has no room left, so the body is read again for the next row.
                    del waiting[:taken]
                    return
                settled = MessageDamaged(endings.queue.name, message_id)
            if isinstance(settled, DomainError):
                request.failures.append((place, message_id, settled))
            # A cancelled request is carried out too, but no longer has an entry among the waiting requests.
            request.left -= 1
            if not request.left and self._deciding.pop(request.waiter_id, None) is not None:
                effects.woken.append(Woken(request.waiter_id, _done(request)))
        del commits.decisions[position]

    # ------------------------------------------------------------------ for operators

    def list_half_messages(self, account: str, name: str, start: int, limit: int) -> HalfMessages:
        """List undecided half messages in order of sending, from position ``start`` on.

        The times of a message that is not in memory and had no check yet are approximate: the time of sending is exact
        to a time step, and so is the time of the first check.

        Raises:
            QueueNotFound, NotTransactional, InvalidArgument.
        """
        queue = self._queues.find(account, name)
        index = queue.index
        attributes = index.attributes
        if not attributes.transactional:
            raise NotTransactional(name)
        check_range("start", start, 0, 1 << 62)
        check_range("limit", limit, 1, self._limits.max_list)
        positions = _half_from(queue, start, limit)
        halves, steps, in_memory = index.halves, index.steps, self._runtime[queue.queue_id].window.half
        messages: list[HalfMessage] = []
        for position in positions:
            message = in_memory.get(position)
            enqueue_ms = steps.sent_at(position) if message is None else message.enqueue_ms
            known = halves.checked.get(position) or _UNCHECKED
            # Exact after the first check, when the facts have the time. Before the check only a body in memory tells
            # the time; the facts have the time in buckets, which cannot be searched by message.
            if known.attempts:
                next_check_ms = known.next_check_ms
            else:
                next_check_ms = enqueue_ms + attributes.first_check_ms if message is None else message.visible_ms
            # No further check is planned, but the message stays half until a decision or its retention.
            if known.attempts >= attributes.max_checks:
                next_check_ms = 0
            message_id, answer = halves.id_of(position) or 0, "unknown" if known.last_unknown_ms else ""
            checks = known.attempts, known.last_check_ms
            messages.append(HalfMessage(message_id, enqueue_ms, *checks, answer, next_check_ms))
        # One position more tells whether the list goes on, so that a caller does not fetch an empty last page.
        more = positions and _half_from(queue, positions[-1] + 1, 1)
        return HalfMessages(messages=messages, next_start=positions[-1] + 1 if more else None)


def _done(request: PendingDecisions) -> TransactionsDone:
    return TransactionsDone([(message_id, error) for _, message_id, error in sorted(request.failures, key=_place)])


def _half_from(queue: Queue, start: int, most: int) -> list[int]:
    return list(islice(queue.index.half.iter_equal_or_larger(start), most))


def _place(failure: tuple[int, int, DomainError]) -> int:
    return failure[0]
