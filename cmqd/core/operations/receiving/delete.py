"""Deleting received messages, by their receipt handles.

The order of :meth:`Delete.delete_all`: all handles are examined, the good handles share a record, and only then are
waiting receives served, because the record makes room in flight.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

from cmqd.core.domain_errors import DomainError
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.operations.receiving.leases_by_handle import LeasesByHandle
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.operations.retention.rewind import PRUNE_MS
from cmqd.core.outcome import Effects, HandlesDone, Outcome
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.leases import InFlight
from cmqd_segment.records import AnyRecord, MessagesDeleted, runs_of
from cmqd_types.actors import Actor

_position: Callable[[InFlight], int] = attrgetter("position")


class Delete:
    """Deletes messages in flight, on request of the consumer that has the receipt handle."""

    def __init__(self, facts: Facts, runtime: Runtime, leases: LeasesByHandle, serving: Serving) -> None:
        self._queues = facts.queues
        self._actors = facts.actors
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._leases = leases
        self._serving = serving

    def delete_all(
        self,
        account: str,
        name: str,
        requests: Sequence[list[int]],
        now_ms: int,
        actors: Sequence[Actor] = (),
    ) -> Outcome[list[HandlesDone | DomainError]]:
        """Apply the deletes of several clients to one queue, by their handles, in this order, with one record.

        ``actors``: the client of each request, empty = not known.

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
        replies = self._leases.find_each(queue, requests, leases, now_ms)
        # No record without messages: it would be a row of the log that says nothing.
        if not leases:
            return Outcome(replies)
        records: list[AnyRecord] = []
        self.apply_deletes(queue, leases, now_ms, records, actors, replies)
        # Receives can wait although messages are active: the limit of messages in flight held them up, and this delete
        # made room. (Or the receives wait for a page. Serving is harmless then.)
        if index.active_count and self._runtime[queue.queue_id].line.waiting:
            return self._serving.served(queue, Effects(records), replies, now_ms)
        return Outcome(replies, records)

    def apply_deletes(
        self,
        queue: Queue,
        leases: dict[int, InFlight],
        now_ms: int,
        records: list[AnyRecord],
        actors: Sequence[Actor],
        results: Sequence[HandlesDone | DomainError | None],
    ) -> None:
        """Delete the messages of these leases, at least one, and add the record to ``records``.

        The caller serves the waiting receives (:mod:`cmqd.core.operations.receiving.serving`), for which
        the delete may have made room.

        Args:
            queue: the queue.
            leases: the leases of all requests, in the order of the requests.
            now_ms: broker time.
            records: the records of the operation.
            actors: the client of each request, empty = not known.
            results: the result of each request, with the number of its leases.
        """
        index = queue.index
        positions = list(map(_position, leases.values()))
        # A slice: a call less in each lone delete.
        if actors[1:]:
            counts = [result.done if isinstance(result, HandlesDone) else 0 for result in results]
            named = self._actors.sorted_by(positions, actors, counts, records)
        else:
            named = self._actors.joined(actors, (), 1, records)
        record = MessagesDeleted(index.queue_id, runs_of(positions), runs_of(list(leases)), now_ms, named)
        # Examined before the record is applied, because afterwards these messages are in the set themselves.
        if index.attributes.rewind_ms and (not index.rewindable_count or min(positions) < next(iter(index.rewindable))):
            # The oldest deleted message leaves the rewind window first, and the planned review may be later than that.
            self._agenda.reviews.set(queue.queue_id, now_ms + PRUNE_MS)
        index.apply_deleted(record)
        records.append(record)
