"""Leases by their receipt handles, for all operations on messages in flight.

A handle names a lease, and a lease ends with the first event of these: a delete, a release, a move to the dead-letter
queue, the end of its time, or the retention of its message. Later handles of the same message have other leases, so a
late delete of a slow consumer cannot remove a message that was delivered again.

All handles of a request are examined before the first change. The good handles then share a record, and a bad handle is
a failure in the reply: a consumer that deletes a batch must not lose nine deletes because the tenth came too late.

A handle fails if its lease ended, if its message is moving to the dead-letter queue, or if an earlier request of the
same call has the handle. A handle that is named twice in a request counts once. A failure says if the lease ended with
a delete or a move, also with a delete by an earlier request of the call.

A handle ends with the retention of its message, or up to a time step later: 100 ms, or more where a long backlog made
steps merge (see :mod:`cmqd_fold.time_steps`). An exact end would need send times in all leases.
"""

from collections import Counter, deque
from collections.abc import Sequence
from itertools import chain, islice

from cmqd.core.domain_errors import DomainError, InvalidArgument, ReceiptHandleInvalid
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.outcome import HandleFailure, HandlesDone
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.leases import InFlight
from cmqd_fold.receipts import ReceiptHandles
from cmqd_types.messages import GONE_DELETED


class LeasesByHandle:
    """Finds the leases that receipt handles name."""

    def __init__(self, facts: Facts, runtime: Runtime, handles: ReceiptHandles) -> None:
        self._max_batch = facts.limits.max_batch
        self._runtime = runtime.queues
        self._rejections = runtime.rejections
        self._expiry_due_ms = runtime.agenda.expiries.due_ms
        self._handles = handles

    def find(
        self, queue: Queue, handles: list[int], leases: dict[int, InFlight], now_ms: int
    ) -> Sequence[HandleFailure]:
        """Do the same as :meth:`find_each` for one request, and return the failed handles.

        The request is a use of the queue (``auto_delete_after_ms``), also if all its handles fail.

        Raises:
            InvalidArgument: there are too few handles, or too many.
        """
        if queue.index.attributes.auto_delete_after_ms:
            self._runtime[queue.queue_id].used_ms = now_ms
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
        max_batch = self._max_batch
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
