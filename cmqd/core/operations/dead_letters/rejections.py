"""Rejections: messages that their consumer moves to the dead-letter queue, by receipt handle and with a reason.

    in flight ──(the request is decided)──► moving ──(the row that moves it)──► gone here, active in the other queue
        ▲                                     │
        └──(the dead-letter queue does not take it, or its body cannot be read)

A message in flight usually has no body in memory, so a request waits for a page. Its handles are judged at once. From
then on no other request can use the handles, the leases do not end, and retention passes no floor over the messages:
otherwise the reply could report a move of a message that another consumer has by then. All of that is runtime. After a
crash before the row, the messages are in flight under their leases.

A page of bodies is moved in one row, as other dead letters are (``message_moves``): the source loses the messages with
their leases, and the target gets the messages with new ids and their origins. The target accepts or refuses every
message at that moment. A refused message stays in flight under its handle until its lease ends.
"""

import itertools
from collections.abc import Sequence

from cmqd.core.domain_errors import (
    BacklogFull,
    BodyUnreadable,
    DeadLettersNotTaken,
    DomainError,
    InvalidArgument,
    MessageTooLarge,
    NoDeadLetterQueue,
    QueueDeleted,
    ReceiptHandleInvalid,
)
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.operations.dead_letters.reservations import MOVE_BYTES
from cmqd.core.operations.receiving.leases_by_handle import LeasesByHandle
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.operations.sending.storing import Store
from cmqd.core.outcome import WAITING, DeadLettersDone, Effects, Outcome, Waiting, Woken
from cmqd.core.runtime.pages import Reading
from cmqd.core.runtime.pending import PendingDeadLetters, PendingRejections, Rejection
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.leases import InFlight
from cmqd_fold.receipts import ReceiptHandles
from cmqd_segment.records import MessagesDeadLettered, Runs, StoredMessage, last_of, runs_of, unpack_runs
from cmqd_types.actors import NO_ACTOR, Actor
from cmqd_types.messages import GONE_MOVED, Origin

REJECTED = "rejected"
"""The reason in the origin of these dead letters."""
MAX_REPEATS = 16
"""Repeats that wait for the first try of a message: one call answers them for a page of messages. Further repeats are
refused at once."""


class Rejections:
    """Moves messages in flight to the dead-letter queue."""

    def __init__(
        self,
        facts: Facts,
        runtime: Runtime,
        handles: ReceiptHandles,
        leases: LeasesByHandle,
        store: Store,
        serving: Serving,
    ) -> None:
        self._limits = facts.limits
        self._numbers = facts.numbers
        self._queues = facts.queues
        self._actors = facts.actors
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._rejecting = runtime.rejecting
        self._rejections = runtime.rejections
        self._lane = runtime.pages.rejections
        self._handles = handles
        self._leases = leases
        self._store = store
        self._serving = serving

    def dead_letter(
        self,
        account: str,
        name: str,
        waiter_id: int,
        handles: list[int],
        reasons: list[str],
        now_ms: int,
        actor: Actor = NO_ACTOR,
    ) -> Outcome[DeadLettersDone | Waiting]:
        """Move messages in flight of a client to the dead-letter queue, with a reason per handle or a common reason.

        The reply names the refused handles with their refusals; the result is WAITING until the bodies are read. A move
        counts as the delete of the lease: a later request finds the handle invalid, and waits for a move under way.

        Raises:
            QueueNotFound, InvalidArgument. If the queue is deleted meanwhile, a waiting request ends with QueueDeleted.
        """
        queue = self._queues.find(account, name)
        self._check_reasons(handles, reasons)
        leases: dict[int, InFlight] = {}
        invalid = self._leases.find(queue, handles, leases, now_ms)
        # The first mention counts: a repeated handle has a single result, with the first reason.
        places = {handle: place for place, handle in reversed([*enumerate(handles)])}
        request = PendingDeadLetters(waiter_id, 0, [], actor=actor)
        handle_of = dict(zip(self._handles.leases(handles), handles, strict=True))
        lease_of = {handle: lease for lease, handle in handle_of.items()}
        for failure in invalid:
            handle = failure.receipt_handle
            first = self._under_way(queue, lease_of[handle])
            if first is not None and len(first.repeats) < MAX_REPEATS:
                # Behind the page of the first try the repeat knows whether the message was moved.
                first.repeats.append((request, places[handle]))
                request.left += 1
            else:
                refused = ReceiptHandleInvalid(name, handle, failure.gone)
                request.failures.append((places[handle], handle, refused))
        # Checked again when the bodies are here. Checked now, too, because most refusals need no body, and a consumer
        # that rejects in a loop must not cause reads.
        refusal = _refusal(queue, 0)
        is_reading = queue.queue_id in self._rejections
        if refusal is not None:
            request.failures += [(places[handle_of[lease]], handle_of[lease], refusal) for lease in leases]
        elif leases:
            rejections = self._rejections.setdefault(queue.queue_id, PendingRejections(name, {}, set()))
            for lease, in_flight in leases.items():
                place = places[handle_of[lease]]
                reason = reasons[place] if len(reasons) > 1 else reasons[0]
                rejection = Rejection(request, place, handle_of[lease], lease, reason, [])
                rejections.by_position[in_flight.position] = rejection
            rejections.leases.update(leases)
            request.left += len(leases)
        if not request.left:
            return Outcome(_done(request))
        self._rejecting[waiter_id] = request
        effects = Effects()
        # A single page per queue at a time; requests that arrive meanwhile join the next page.
        if not is_reading:
            self._read(queue.queue_id, self._rejections[queue.queue_id], effects)
        return effects.outcome(WAITING)

    def _under_way(self, queue: Queue, lease: int) -> Rejection | None:
        """Return the rejection of a message that is moving under a lease; None if no such message moves."""
        moving = self._rejections.get(queue.queue_id)
        in_flight = queue.index.leases.by_number.get(lease)
        # A message that was cleared meanwhile is not moved: its repeat needs no page to be refused.
        if moving is None or lease not in moving.leases or in_flight is None or in_flight.position < queue.index.floor:
            return None
        return moving.by_position[in_flight.position]

    def _check_reasons(self, handles: list[int], reasons: list[str]) -> None:
        if len(reasons) not in (1, len(handles)):
            raise InvalidArgument(
                f"there are {len(reasons)} reasons for {len(handles)} receipt handles; give one reason, or one for each"
                " handle",
                field="reasons",
                value=len(reasons),
                limit=f"one reason, or {len(handles)}",
            )
        most = self._limits.max_rejection_bytes
        for place, reason in enumerate(reasons):
            size = len(reason.encode())
            if size > most:
                raise InvalidArgument(
                    f"reason {place} has {size} bytes of UTF-8; a reason has at most {most}",
                    field=f"reasons[{place}]",
                    value=size,
                    limit=f"at most {most} bytes",
                )

    def _read(self, queue_id: int, rejections: PendingRejections, effects: Effects) -> None:
        """Ask for the bodies of the oldest requests, as many as go into a row."""
        positions: list[int] = []
        # Of at most a batch: reasons are facts of the row, and a page has no bound for them.
        most = min(self._limits.page_messages, self._limits.max_batch)
        for position in rejections.by_position:
            positions.append(position)
            if len(positions) == most:
                break
        self._lane.want(queue_id, queue_id, sorted(positions), MOVE_BYTES, None, effects.reads)

    def on_page(
        self, reading: Reading[None], messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Move the messages of a page in one row, answer the requests that are complete, and read the next page."""
        queue_id = reading.owner_id
        # Before the next page is asked for below, which makes the queue busy again.
        self._lane.busy.discard(queue_id)
        rejections = self._rejections[queue_id]
        queue = self._queues.by_id.get(queue_id)
        if queue is None:
            del self._rejections[queue_id]
            self._refuse_all(rejections, effects)
            return 0
        index = queue.index
        bodies = {message.position: message for message in messages}
        unreadable = set(unpack_runs(missing))
        # The log answers with a prefix of the positions. Messages that are missing before its end are gone.
        settled = max(messages[-1].position if messages else -1, last_of(missing))
        moved: list[tuple[Rejection, InFlight, StoredMessage]] = []
        for position in unpack_runs(reading.read.positions):
            rejection = rejections.by_position[position]
            in_flight = index.leases.by_number.get(rejection.lease)
            handle, message = rejection.receipt_handle, bodies.get(position)
            refusal: DomainError | None
            if in_flight is None or position < index.floor:
                # Cleared while the body was read.
                refusal = ReceiptHandleInvalid(queue.name, handle)
            elif message is not None:
                refusal = _refusal(queue, len(moved), rejection.place, message)
                if refusal is None:
                    moved.append((rejection, in_flight, message))
            elif position in unreadable or position < settled:
                refusal = BodyUnreadable(queue.name, handle)
            else:
                continue
            del rejections.by_position[position]
            rejections.leases.discard(rejection.lease)
            if refusal is None:
                rejection.request.moved += 1
            else:
                rejection.request.failures.append((rejection.place, handle, refusal))
                if in_flight is not None and in_flight.deadline_ms <= now_ms:
                    # The end of the lease came due while the message was moving, and was passed over.
                    index.leases.plan_again(rejection.lease)
            self._answer(rejection.request, effects)
            for repeat, place in rejection.repeats:
                # A repeat moved no message: its handle is invalid if the first try moved the message.
                repeat.failures.append((place, handle, refusal or ReceiptHandleInvalid(queue.name, handle, GONE_MOVED)))
                self._answer(repeat, effects)
        if moved:
            self._move(queue, moved, effects, now_ms)
        if rejections.by_position:
            self._read(queue_id, rejections, effects)
        else:
            del self._rejections[queue_id]
        # The floor may pass where the messages stood.
        self._agenda.plan_expiry(queue)
        # Moves make room for receives that the limit of messages in flight held up.
        self._serving.serve(queue, effects, now_ms)
        return 0

    def _refuse_all(self, rejections: PendingRejections, effects: Effects) -> None:
        """Answer all requests of a queue that is gone with its messages."""
        error = QueueDeleted(rejections.queue_name)
        for rejection in rejections.by_position.values():
            for request in (rejection.request, *(repeat for repeat, _ in rejection.repeats)):
                # A request has a single answer, even for several handles.
                if self._rejecting.pop(request.waiter_id, None) is not None:
                    effects.woken.append(Woken(request.waiter_id, error))

    def _answer(self, request: PendingDeadLetters, effects: Effects) -> None:
        """Count a result of a request, and answer the request if it was the last."""
        request.left -= 1
        # A cancelled request is carried out too, but no longer has an entry among the waiting requests.
        if not request.left and self._rejecting.pop(request.waiter_id, None) is not None:
            effects.woken.append(Woken(request.waiter_id, _done(request)))

    def _move(
        self, queue: Queue, moved: list[tuple[Rejection, InFlight, StoredMessage]], effects: Effects, now_ms: int
    ) -> None:
        """Take messages out of their queue and store them in the dead-letter queue, in one row."""
        target = queue.dead_letters
        assert target is not None
        positions = runs_of([message.position for _, _, message in moved])
        leases = runs_of([rejection.lease for rejection, _, _ in moved])
        # Positions ascend in a page.
        actors = [rejection.request.actor for rejection, _, _ in moved]
        named = self._actors.joined(actors, itertools.repeat(1), len(actors), effects.records)
        record = MessagesDeadLettered(queue.queue_id, positions, leases, now_ms, named)
        origins: list[Origin | None] = [
            Origin(
                queue.name, message.message_id, message.enqueue_ms, in_flight.receive_count, REJECTED, rejection.reason
            )
            for rejection, in_flight, message in moved
        ]
        copies_of = [message.copy_of for _, _, message in moved]
        queue.index.apply_dead_lettered(record)
        consumers = self._runtime[queue.queue_id].consumers
        for actor in actors:
            consumer = consumers.get(actor)
            if consumer is not None:
                consumer.failed += 1
        # The move is the last use of the source. Of the target too: ``store_again`` notes the use there.
        self._runtime[queue.queue_id].used_ms = now_ms
        effects.records.append(record)
        self._store.store_again(
            queue=target,
            messages=[message for _, _, message in moved],
            first_id=self._numbers.take_message_ids(len(moved), effects.records),
            effects=effects,
            now_ms=now_ms,
            origins=origins,
            copies_of=copies_of if any(copies_of) else None,
        )
        self._serving.serve(target, effects, now_ms)


def _refusal(queue: Queue, before: int, place: int = 0, message: StoredMessage | None = None) -> DomainError | None:
    """Return the error with which the dead-letter queue refuses a message behind ``before`` messages of the row.

    None = the queue takes the message. Without a message: the error with which the queue refuses every message.
    """
    target = queue.dead_letters
    if target is None:
        return NoDeadLetterQueue(queue.name)
    index = target.index
    if not index.takes_dead_letters:
        return DeadLettersNotTaken(queue.name, target.name)
    attributes = index.attributes
    held = index.live_count + before
    if held >= attributes.max_backlog:
        return BacklogFull(target.name, held, 1, attributes.max_backlog)
    if message is not None and len(message.body) > attributes.max_message_bytes:
        return MessageTooLarge(target.name, place, len(message.body), attributes.max_message_bytes)
    return None


def _done(request: PendingDeadLetters) -> DeadLettersDone:
    failures = sorted(request.failures, key=_place)
    return DeadLettersDone([(receipt_handle, refusal) for _, receipt_handle, refusal in failures], request.moved)


def _place(failure: tuple[int, int, DomainError]) -> int:
    return failure[0]
