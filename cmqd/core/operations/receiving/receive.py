"""Receiving: messages for consumers, at once or after a wait.

A receive is answered from memory, or stands in the line of the queue: because no message is active, or because the body
at the head must be read first. :mod:`cmqd.core.operations.receiving.serving` takes the messages.

A receive that arrives while others wait joins the line even if messages are active. Otherwise a steady stream of new
receives would take all messages, and the receives in line would starve.

A receive can carry deletes (``acknowledge``). The order of :meth:`Receive.receive_all`: every request with deletes is
checked whole, then the deletes of all requests are applied with one record, then the line is served, then the receives
are decided. Records of deletes and receives share the row. A check after the deletes would refuse a request that has
changed facts; a receive before the line would overtake the receives that the limit of messages in flight held up.
"""

from collections.abc import Sequence
from typing import Any

from cmqd.core.domain_errors import DomainError, TooManyInFlight, TooManyWaiting
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import check_range
from cmqd.core.operations.receiving.delete import Delete
from cmqd.core.operations.receiving.leases_by_handle import LeasesByHandle
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.outcome import (
    WAITING,
    Effects,
    HandlesDone,
    Outcome,
    PageRead,
    ReceivedAfterDeletes,
    ReceiveReply,
    ReceiveRequest,
    Waiting,
)
from cmqd.core.runtime.queue import QueueRuntime
from cmqd.core.runtime.runtime import Runtime
from cmqd.core.runtime.waiters import Waiter
from cmqd_fold.leases import InFlight
from cmqd_segment.records import AnyRecord
from cmqd_types.actors import NO_ACTOR, Actor
from cmqd_types.messages import ReceivedMessage


class Receive:
    """Answers receives, or puts them in line."""

    def __init__(
        self, facts: Facts, runtime: Runtime, serving: Serving, leases: LeasesByHandle, delete: Delete
    ) -> None:
        self._limits = facts.limits
        self._max_in_flight = facts.limits.max_in_flight
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._wait_buckets = runtime.agenda.waits
        self._waiters = runtime.waiters
        self._deciding = runtime.deciding
        self._rejecting = runtime.rejecting
        self._pages = runtime.pages
        self._lookups = runtime.lookups
        self._consumers = runtime.consumers
        self._serving = serving
        self._leases = leases
        self._delete = delete

    def _receive_one(
        self,
        queue: Queue,
        request: ReceiveRequest,
        waiter_id: int,
        now_ms: int,
        waiting: int,
        max_waiting: int,
        actors: Sequence[Actor],
    ) -> Outcome[list[ReceivedMessage] | Waiting]:
        """Take up to ``max_messages`` active messages, at once, or as soon as messages become active within the wait.

        The reply can be WAITING with a wait of 0 too, while bodies are read from the log. ``waiting`` receives of the
        account wait already, of at most ``max_waiting`` (0 = no limit), which refuses no receive that finds messages.

        Raises:
            InvalidArgument, TooManyInFlight, TooManyWaiting.
        """
        # Arguments are checked first: a receive with wrong arguments is refused with the same error on an empty queue,
        # a full queue and a queue with waiting receives.
        max_messages = request.max_messages
        wait_ms, visibility_timeout_ms = self._receive_times(queue, request)
        index = queue.index
        runtime = self._runtime[queue.queue_id]
        # Refused even if the queue is empty: a consumer that never deletes must learn of the limit before it waits.
        limit = self._max_in_flight
        if index.live_count - index.active_count >= limit and index.in_flight_count >= limit:
            raise TooManyInFlight(queue.name, self._max_in_flight)
        records: list[AnyRecord] = []
        reads: list[PageRead] = []
        # Only with an empty line: see the module for the receives in line.
        if index.active_count and not runtime.line.waiting:
            messages = self._serving.take(queue, (max_messages,), visibility_timeout_ms, records, now_ms, actors)
            if messages:
                if runtime.window.cold:
                    # While these messages travel, the next are read: on demand, a page would need a round trip.
                    self._serving.read_ahead(queue, reads)
                return Outcome(messages, records, reads=reads)
        self._note_asked(queue, actors, now_ms)
        if not wait_ms and not index.active_count:
            return Outcome([], records)
        # Asked last, of a receive that would really wait: a client at the limit can still take active messages.
        if wait_ms and max_waiting and waiting >= max_waiting and len(runtime.line.waiting) >= index.active_count:
            raise TooManyWaiting(queue.account, max_waiting)
        # A receive without a wait comes here too, if a message is active and its body must be read first. The receive
        # is overdue from the start, so the page answers it even with an empty list.
        waiter = Waiter(
            waiter_id,
            queue.queue_id,
            max_messages,
            visibility_timeout_ms,
            now_ms + wait_ms,
            now_ms,
            overdue=not wait_ms,
            actor=actors[0] if actors else NO_ACTOR,
        )
        self._put_in_line(runtime, waiter)
        if index.active_count:
            self._serving.want_page(queue, reads)
        return Outcome(WAITING, records, reads=reads)

    def _put_in_line(self, runtime: QueueRuntime, waiter: Waiter) -> None:
        # The table finds a receive by id, the line keeps the order. Both entries end together: a receive left in the
        # line alone would take messages for a closed connection.
        self._waiters[waiter.waiter_id] = waiter
        runtime.line.add(waiter)
        if not waiter.overdue:
            # A receive without a wait has no deadline to come: it is overdue already, and the page ends it.
            deadline_ms = waiter.deadline_ms
            self._wait_buckets.bucket(deadline_ms, waiter.queue_id).append(waiter.waiter_id)
            self._wait_buckets.size += 1
            if deadline_ms > runtime.waited_until_ms:
                runtime.waited_until_ms = deadline_ms

    def receive_all(
        self,
        account: str,
        name: str,
        requests: Sequence[ReceiveRequest],
        waiter_ids: Sequence[int],
        now_ms: int,
        *,
        waiting: int = 0,
        max_waiting: int = 0,
        actors: Sequence[Actor] = (),
    ) -> Outcome[list[ReceiveReply]]:
        """Apply the receives of several clients to a queue, in this order, each receive independent of the others.

        Neighbours with one visibility timeout share a step and a record, as far as their messages are in memory. A
        refused receive has its error at its index of the reply and does not affect the others. The deletes of receives
        (``acknowledge``) come before all receives of the call. ``actors``: the client of each request,
        empty = not known.

        Raises:
            QueueNotFound.
        """
        queue = self._queues.find(account, name)
        for request in requests:
            if request.acknowledge is not None:
                return self._receive_after_deletes(queue, requests, waiter_ids, now_ms, waiting, max_waiting, actors)
        # ``Any``, because a list of the narrower replies is no list of all replies for the type checker.
        outcome: Outcome[Any] = self._receive_each(queue, requests, waiter_ids, now_ms, waiting, max_waiting, actors)
        return outcome

    def _receive_after_deletes(
        self,
        queue: Queue,
        requests: Sequence[ReceiveRequest],
        waiter_ids: Sequence[int],
        now_ms: int,
        waiting: int,
        max_waiting: int,
        actors: Sequence[Actor],
    ) -> Outcome[list[ReceiveReply]]:
        """Apply the deletes of receives, then the receives; see the module."""
        deletes: list[HandlesDone | DomainError | None] = []
        # Shared by all requests of the call, as in a call of several deletes.
        leases: dict[int, InFlight] = {}
        for request in requests:
            handles = request.acknowledge
            if handles is None:
                deletes.append(None)
                continue
            try:
                self._receive_times(queue, request)
            except DomainError as refusal:
                deletes.append(refusal)
            else:
                deletes += self._leases.find_each(queue, [handles], leases, now_ms, field="acknowledge")
        effects = Effects()
        if leases:
            self._delete.apply_deletes(queue, leases, now_ms, effects.records, actors, deletes)
            if queue.index.active_count and self._runtime[queue.queue_id].line.waiting:
                self._serving.serve(queue, effects, now_ms)
        places = [place for place, result in enumerate(deletes) if not isinstance(result, DomainError)]
        received = self._receive_each(
            queue,
            [requests[place] for place in places],
            [waiter_ids[place] for place in places],
            now_ms,
            waiting,
            max_waiting,
            [actors[place] for place in places] if actors else (),
        )
        effects.add(received)
        replies: list[ReceiveReply] = []
        each = iter(received.reply)
        for result in deletes:
            if isinstance(result, DomainError):
                replies.append(result)
            elif result is None:
                replies.append(next(each))
            else:
                replies.append(ReceivedAfterDeletes(result, next(each)))
        return effects.outcome(replies)

    def _receive_each(
        self,
        queue: Queue,
        requests: Sequence[ReceiveRequest],
        waiter_ids: Sequence[int],
        now_ms: int,
        waiting: int,
        max_waiting: int,
        actors: Sequence[Actor],
    ) -> Outcome[list[list[ReceivedMessage] | Waiting | DomainError]]:
        """Decide receives without their deletes; see :meth:`receive_all`."""
        index = queue.index
        runtime = self._runtime[queue.queue_id]
        runtime.used_ms = now_ms
        replies: list[list[ReceivedMessage] | Waiting | DomainError] = []
        records: list[AnyRecord] = []
        reads: list[PageRead] = []
        # Neighbours with one visibility timeout are served in one step while the line is empty: one record in place of
        # many. As soon as a receive must wait, the receives behind it take the single way, which puts them in line.
        place = alone_until = 0
        while place < len(requests):
            request = requests[place]
            if place >= alone_until and index.active_count and not runtime.line.waiting:
                end = place + 1
                timeout_ms = request.visibility_timeout_ms
                while end < len(requests) and requests[end].visibility_timeout_ms == timeout_ms:
                    end += 1
                if end > place + 1:
                    served = self._receive_together(
                        queue, requests[place:end], replies, records, now_ms, actors[place:end]
                    )
                    place += served
                    if served < 2:
                        # Memory has nothing for a group now, so the other receives are not tried together again: a
                        # call with many receives would take quadratic time.
                        alone_until = end
                    if served:
                        continue
            try:
                outcome = self._receive_one(
                    queue, request, waiter_ids[place], now_ms, waiting, max_waiting, actors[place : place + 1]
                )
            except DomainError as refusal:
                replies.append(refusal)
                self._note_asked(queue, actors[place : place + 1], now_ms)
            else:
                # Counted on within the call: a call with many receives must not exceed the limit of its account.
                waiting += outcome.reply is WAITING
                replies.append(outcome.reply)
                records += outcome.records
                reads += outcome.reads
            place += 1
        if runtime.window.cold and index.active_count and not all(isinstance(reply, DomainError) for reply in replies):
            # A call that only refuses changes nothing, so a caller may drop its outcome, reads included.
            self._serving.read_ahead(queue, reads)
        return Outcome(replies, records, reads=reads)

    def _note_asked(self, queue: Queue, actors: Sequence[Actor], now_ms: int) -> None:
        """Note a client whose receive got no messages at once; ``Serving.take`` notes clients with their messages."""
        of_queue = self._runtime[queue.queue_id].consumers
        for actor in actors:
            self._consumers.find(queue.account, of_queue, actor, now_ms).asked_ms = now_ms

    def _receive_together(
        self,
        queue: Queue,
        requests: Sequence[ReceiveRequest],
        replies: list[list[ReceivedMessage] | Waiting | DomainError],
        records: list[AnyRecord],
        now_ms: int,
        actors: Sequence[Actor],
    ) -> int:
        """Serve receives from memory with messages that are taken in a single step.

        Returns the number of answered receives, from the first on: up to the first receive without messages, or with
        invalid arguments.
        """
        limits = self._limits
        max_batch, max_wait_ms = limits.max_batch, limits.max_wait_ms
        try:
            # The first receive that would be refused ends the group. The single way refuses it, at its place among the
            # replies. All have the visibility timeout of the first.
            _, timeout_ms = self._receive_times(queue, requests[0])
        except DomainError:
            return 0
        batch_sizes: list[int] = []
        for request in requests:
            wait_ms = request.wait_ms
            max_messages = request.max_messages
            if not 1 <= max_messages <= max_batch or (wait_ms is not None and not 0 <= wait_ms <= max_wait_ms):
                break
            batch_sizes.append(max_messages)
        if not batch_sizes:
            return 0
        messages = self._serving.take(queue, batch_sizes, timeout_ms, records, now_ms, actors)
        if not messages:
            return 0
        start = served = 0
        for max_messages in batch_sizes:
            replies.append(messages[start : start + max_messages])
            served += 1
            start += max_messages
            if start >= len(messages):
                break
        return served

    def _receive_times(self, queue: Queue, request: ReceiveRequest) -> tuple[int, int]:
        """Return the wait and the visibility timeout of a receive. Raises InvalidArgument."""
        limits, attributes = self._limits, queue.index.attributes
        wait_ms, visibility_timeout_ms = request.wait_ms, request.visibility_timeout_ms
        if not 1 <= request.max_messages <= limits.max_batch:
            check_range("max_messages", request.max_messages, 1, limits.max_batch)
        if wait_ms is None:
            wait_ms = attributes.polling_wait_ms
        elif not 0 <= wait_ms <= limits.max_wait_ms:
            check_range("wait_ms", wait_ms, 0, limits.max_wait_ms)
        if visibility_timeout_ms is None:
            visibility_timeout_ms = attributes.visibility_timeout_ms
        else:
            low, high = limits.min_visibility_timeout_ms, limits.max_visibility_timeout_ms
            check_range("visibility_timeout_ms", visibility_timeout_ms, low, high)
        return wait_ms, visibility_timeout_ms

    def cancel_receive(self, waiter_id: int) -> bool:
        """Cancel a waiting receive, peek, rewind or look-up, or the answer to decisions about half messages or to moves
        to the dead-letter queue.

        Decisions and moves are carried out all the same. Returns False if the request was answered already (or never
        waited).
        """
        # Out of the table first. The entry in the bucket of its deadline stays, and finds no receive when it comes due:
        # a search of the bucket would make every disconnect slow.
        waiter = self._waiters.pop(waiter_id, None)
        if waiter is None:
            if self._deciding.pop(waiter_id, None) is not None or self._rejecting.pop(waiter_id, None) is not None:
                return True
            # Rare, so the pages under way are searched; an index by waiter would cost every peek and rewind.
            if self._lookups.cancel(waiter_id):
                return True
            for lane in (self._pages.rewinds, self._pages.peeks, self._pages.delivery_peeks):
                for read_id, _, request in lane.requests():
                    if request.waiter_id == waiter_id:
                        self._pages.take(read_id)
                        return True
            return False
        queue = self._queues.by_id.get(waiter.queue_id)
        # Without a queue there is no line: the queue was deleted, and a tick would have answered the receive.
        if queue is not None:
            self._runtime[queue.queue_id].line.remove(waiter_id)
        return True
