"""Deleting received messages, changing their visibility, releasing them, and the ends of their leases.

A handle names a lease, and a lease ends with the first event of these: a delete, a release, a move to the dead-letter
queue, the end of its time, or the retention of its message. Later handles of the same message have other leases, so a
late delete of a slow consumer cannot remove a message that was delivered again.

All handles of a request are examined before the first change. The good handles then share a record, and a bad handle is
a failure in the reply: a consumer that deletes a batch must not lose nine deletes because the tenth came too late.

The order after a lease ended: the record is applied, dead letters are reserved, and only then are waiting receives
served. Served first, a receive would get a message that has used up its receives.
"""

from collections import Counter, deque
from collections.abc import Sequence
from itertools import chain, islice

from cmqd.core.errors import DomainError, InvalidArgument, ReceiptHandleInvalid
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import check_range
from cmqd.core.operations.dead_letter_search import DeadLetterSearch
from cmqd.core.operations.leases import Leases
from cmqd.core.operations.rewind import PRUNE_MS
from cmqd.core.operations.serving import Serving
from cmqd.core.outcome import Effects, HandleFailure, HandlesDone, Outcome
from cmqd.core.receipts import ReceiptHandles
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.leases import InFlight
from cmqd_segment.records import LeasesEnded, MessagesDeleted, MessagesReleased, VisibilityChanged, runs_of
from cmqd_types.messages import GONE_DELETED


class Settle:
    """Ends and changes leases: on request of the consumer that has the receipt handle, or when the time is over."""

    def __init__(
        self,
        facts: Facts,
        runtime: Runtime,
        handles: ReceiptHandles,
        serving: Serving,
        leases: Leases,
        dead_letters: DeadLetterSearch,
    ) -> None:
        self._limits = facts.limits
        self._queues = facts.queues
        self._lease_buckets = facts.queues.leases
        self._runtime = runtime.queues
        self._rejections = runtime.rejections
        self._agenda = runtime.agenda
        self._expiry_due_ms = runtime.agenda.expiries.due_ms
        self._handles = handles
        self._serving = serving
        self._leases = leases
        self._dead_letters = dead_letters

    def delete_all(
        self, account: str, name: str, requests: Sequence[list[int]], now_ms: int
    ) -> Outcome[list[HandlesDone | DomainError]]:
        """Apply the deletes of several clients to one queue, by their handles, in this order, with one record.

        A refused delete has its error at its index of the reply and does not affect the others.

        Raises:
            QueueNotFound.
        """
        queue = self._queues.find(account, name)
        index = queue.index
        if index.attributes.auto_delete_after_ms:
            self._runtime[queue.queue_id].used_ms = now_ms
        # Shared by all requests of the call: a handle that an earlier request names is ended by that request, and fails
        # in a later request, exactly as in two calls.
        leases: dict[int, InFlight] = {}
        replies = self.find_each(queue, requests, leases, now_ms)
        # No record without messages: it would be a row of the log that says nothing.
        if not leases:
            return Outcome(replies)
        record = self.apply_deletes(queue, leases, now_ms)
        # The usual delete ends here: with an empty line, a delete makes no message receivable.
        if not (index.active_count and self._runtime[queue.queue_id].line.waiting):
            return Outcome(replies, [record])
        # Receives can wait although messages are active: the limit of messages in flight held them up, and this delete
        # made room. (Or the receives wait for a page. Serving is harmless then.)
        effects = Effects([record])
        self._serving.serve(queue, effects, now_ms)
        return effects.outcome(replies)

    def apply_deletes(self, queue: Queue, leases: dict[int, InFlight], now_ms: int) -> MessagesDeleted:
        """Delete the messages of these leases, at least one, and return the record.

        The caller serves the waiting receives (:mod:`cmqd.core.operations.serving`), for which the delete may have made
        room.
        """
        index = queue.index
        positions = [lease.position for lease in leases.values()]
        record = MessagesDeleted(index.queue_id, runs_of(positions), runs_of(list(leases)), now_ms)
        # Examined before the record is applied, because afterwards these messages are in the set themselves.
        if index.attributes.rewind_ms and (not index.rewindable_count or min(positions) < next(iter(index.rewindable))):
            # The oldest deleted message leaves the rewind window first, and the planned review may be later than that.
            self._agenda.reviews.set(queue.queue_id, now_ms + PRUNE_MS)
        index.apply_deleted(record)
        return record

    def change_visibility(
        self, account: str, name: str, handles: list[int], visibility_timeout_ms: int, now_ms: int
    ) -> Outcome[HandlesDone]:
        """Hide received messages until ``visibility_timeout_ms`` from now; 0 = hand back.

        The time of a message is cut at its retention; the reply has the earliest next visible time.
        """
        check_range("visibility_timeout_ms", visibility_timeout_ms, 0, self._limits.max_visibility_timeout_ms)
        # A timeout of 0 is a release and not a lease that has ended: the message is active in this call and not at the
        # next tick.
        if not visibility_timeout_ms:
            return self.release(account, name, handles, True, now_ms)
        queue = self._queues.find(account, name)
        index = queue.index
        self.note_use(queue, now_ms)
        leases: dict[int, InFlight] = {}
        failures = self.find_leases(queue, handles, leases, now_ms)
        if not leases:
            return Outcome(HandlesDone(failures))
        # One deadline, and so one record, unless a message expires earlier. The lowest position has the earliest
        # expiry, so a single comparison tells whether any deadline must be cut.
        wanted_ms = now_ms + visibility_timeout_ms
        by_deadline: dict[int, list[int]] = {wanted_ms: list(leases)}
        if index.expires_ms(min([in_flight.position for in_flight in leases.values()])) < wanted_ms:
            by_deadline = {}
            for lease, in_flight in leases.items():
                cut_ms = max(now_ms, min(wanted_ms, index.expires_ms(in_flight.position)))
                by_deadline.setdefault(cut_ms, []).append(lease)
        # A record has one deadline. All records share the row, so a crash keeps every change of the request or none.
        records = [
            VisibilityChanged(index.queue_id, runs_of(some), deadline_ms) for deadline_ms, some in by_deadline.items()
        ]
        for record in records:
            index.leases.change(record)
        # Paid for by the calls that add entries: a consumer that extends its leases again and again leaves a stale
        # entry in a bucket with each call.
        if self._lease_buckets.size > self._leases.sweep_above:
            self._leases.sweep(now_ms)
        return Outcome(HandlesDone(failures, min(by_deadline)), records)

    def release(self, account: str, name: str, handles: list[int], counted: bool, now_ms: int) -> Outcome[HandlesDone]:
        """Hand received messages back: active at once. Not ``counted``: the receive does not count as a receive."""
        queue = self._queues.find(account, name)
        self.note_use(queue, now_ms)
        leases: dict[int, InFlight] = {}
        failures = self.find_leases(queue, handles, leases, now_ms)
        if not leases:
            return Outcome(HandlesDone(failures))
        # Applied before dead letters are searched for, because the search takes active messages alone.
        record = MessagesReleased(queue.queue_id, runs_of(list(leases)), counted)
        queue.index.apply_returned(record)
        effects = Effects([record])
        if queue.dead_letters is not None:
            # The count before an uncounted receive may have reached the limit already, if the limit was lowered since.
            back = [(in_flight.position, in_flight.receive_count - (not counted)) for in_flight in leases.values()]
            self._dead_letters.came_back(queue, back, effects, now_ms)
        # Last: a message that became a dead letter is reserved by now, and no receive can take it.
        self._serving.serve(queue, effects, now_ms)
        return effects.outcome(HandlesDone(failures, now_ms))

    def note_use(self, queue: Queue, now_ms: int) -> None:
        """Note a use of a queue that is deleted when unused (:mod:`cmqd.core.operations.auto_delete`)."""
        if queue.index.attributes.auto_delete_after_ms:
            self._runtime[queue.queue_id].used_ms = now_ms

    def find_leases(
        self, queue: Queue, handles: list[int], leases: dict[int, InFlight], now_ms: int
    ) -> Sequence[HandleFailure]:
        """Do the same as :meth:`find_each` for one request, and return the failed handles.

        Raises:
            InvalidArgument: there are too few handles, or too many.
        """
        (found,) = self.find_each(queue, [handles], leases, now_ms)
        if isinstance(found, DomainError):
            raise found
        return found.failures

    def find_each(
        self,
        queue: Queue,
        requests: Sequence[list[int]],
        leases: dict[int, InFlight],
        now_ms: int,
        *,
        field: str = "receipt_handles",
    ) -> list[HandlesDone | DomainError]:
        """Add the messages in flight under the handles of requests, a ``field`` of each, to ``leases``.

        Returns for each request the number of its messages and the failed handles, or InvalidArgument if the request
        has too few handles or too many.

        A handle fails if its lease ended, if its message is moving to the dead-letter queue, or if an earlier request
        of the same call has the handle. A handle that is named twice in a request counts once.

        A failure says if the lease ended with a delete or a move, also with a delete by an earlier request of the call.

        A handle ends with the retention of its message, or up to a time step later: 100 ms, or more where a long
        backlog made steps merge (see :mod:`cmqd_fold.time_steps`). An exact end would need send times in all leases.
        """
        in_flight = queue.index.leases.by_number
        floor = queue.index.floor
        expiry_due_ms = self._expiry_due_ms.get(queue.queue_id)
        # The plan of expiries is a single access to a dictionary. The search of the time steps costs more, and is made
        # only when a message has expired.
        moving = self._rejections.get(queue.queue_id)
        if moving is not None or (expiry_due_ms is not None and expiry_due_ms <= now_ms):
            # Messages have expired, and the tick that moves the floor over them has not run yet, or a moving message
            # holds the floor.
            floor = max(floor, queue.index.expired_below(now_ms))
        max_batch = self._limits.max_batch
        numbers = iter(self._handles.leases(requests[0] if len(requests) == 1 else chain.from_iterable(requests)))
        found: list[HandlesDone | DomainError] = []
        for handles in requests:
            if not 1 <= len(handles) <= max_batch:
                refusal = InvalidArgument(
                    f"a request has 1 to {max_batch} receipt handles; this one has {len(handles)}",
                    field=field,
                    value=len(handles),
                    limit=f"1 to {max_batch} handles",
                )
                found.append(refusal)
                # The leases of its handles are passed over.
                deque(islice(numbers, len(handles)), maxlen=0)
                continue
            before = len(leases)
            failed: list[tuple[int, int]] = []
            """(handle, lease)"""
            # The handles first: the end of a list takes no number of the next request.
            for handle, lease in zip(handles, numbers, strict=False):
                in_flight_message = in_flight.get(lease)
                if (
                    # The time counts, and not whether the tick has ended the lease: a handle must not work longer on a
                    # busy broker. The floor counts, because leases of cleared messages stay until their deadline.
                    in_flight_message is not None
                    and in_flight_message.deadline_ms > now_ms
                    and in_flight_message.position >= floor
                    and lease not in leases
                    and (moving is None or lease not in moving.leases)
                ):
                    leases[lease] = in_flight_message
                else:
                    failed.append((handle, lease))
            failures = self._failures(queue, handles, failed, leases, now_ms) if failed else []
            found.append(HandlesDone(failures, 0, len(leases) - before))
        return found

    def _failures(
        self,
        queue: Queue,
        handles: list[int],
        failed: list[tuple[int, int]],
        leases: dict[int, InFlight],
        now_ms: int,
    ) -> list[HandleFailure]:
        """Return a failure for every handle that failed each time it was named.

        A handle that is named twice fails the second time only because the first time succeeded; that is not a failure.
        """
        name, settled = queue.name, queue.index.settled
        assert settled is not None, "the index of a broker remembers settled leases"
        named, failures = Counter(handles), Counter(failed)
        return [
            HandleFailure(
                handle,
                ReceiptHandleInvalid(name, handle).text,
                # Only deletes share a call, and no record tells of the deletes of this call yet.
                GONE_DELETED if lease in leases else settled.gone(lease, now_ms),
            )
            for (handle, lease), count in failures.items()
            if count == named[handle]
        ]

    def tick(self, effects: Effects, now_ms: int) -> None:
        """End leases of a queue after their visibility timeout."""
        max_leases = self._limits.tick_items
        buckets = self._lease_buckets
        # Entries of a bucket are pairs of numbers, (first lease, count), so the bound is doubled.
        due = buckets.take_due(now_ms, 2 * max_leases)
        if due is None:
            return
        queue_id, pairs = due
        queue = self._queues.by_id.get(queue_id)
        # The queue was deleted. Its entries in buckets are not searched for then; they go when they come due.
        if queue is None:
            return
        index = queue.index
        in_flight = index.leases.by_number
        moving = self._rejections.get(queue_id)
        ended: dict[int, InFlight] = {}
        """An ordered set: a lease that was changed to the same deadline twice has two entries in the bucket."""
        offset = examined = 0
        while offset < len(pairs) and examined < max_leases:
            first, count = pairs[offset], pairs[offset + 1]
            offset += 2
            examined += count
            for lease in range(first, first + count):
                in_flight_message = in_flight.get(lease)
                # Ended already, or extended: then another bucket has an entry for the later deadline.
                if in_flight_message is None or in_flight_message.deadline_ms > now_ms:
                    continue
                if in_flight_message.position < index.floor:
                    # Without a record: the message is gone, and after a restart the entry of the lease comes due here
                    # again.
                    del in_flight[lease]
                elif moving is None or lease not in moving.leases:
                    # The end of a moving lease is planned again if its message cannot be moved.
                    ended[lease] = in_flight_message
        if offset < len(pairs):
            # A pair stands for up to a batch of leases. The remaining pairs stay due, behind other due buckets.
            buckets.bucket(now_ms - buckets.width_ms, queue_id).extend(pairs[offset:])
            buckets.size += len(pairs) - offset
        if ended:
            # A record for the whole slice. The end of a lease must be a fact: a replay has no clock, and would not know
            # that the message was active when a later receive took it.
            record = LeasesEnded(queue_id, runs_of(list(ended)))
            index.apply_returned(record)
            self.note_use(queue, now_ms)
            effects.records.append(record)
            if queue.dead_letters is not None:
                back = [
                    (in_flight_message.position, in_flight_message.receive_count)
                    for in_flight_message in ended.values()
                ]
                self._dead_letters.came_back(queue, back, effects, now_ms)
            self._serving.serve(queue, effects, now_ms)
