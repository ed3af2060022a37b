"""The visibility of messages in flight: changed or ended by a consumer, or ended because its time is over.

The order after a lease ended: the record is applied, dead letters are reserved, and only then are waiting receives
served. Served first, a receive would get a message that has used up its receives.
"""

from collections import Counter
from collections.abc import Iterable

from cmqd.core.facts.facts import Facts
from cmqd.core.limits import check_range
from cmqd.core.operations.dead_letters.search import DeadLetterSearch
from cmqd.core.operations.receiving.lease_sweep import LeaseSweep
from cmqd.core.operations.receiving.leases_by_handle import LeasesByHandle
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.outcome import Effects, HandlesDone, Outcome
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.leases import InFlight
from cmqd_segment.records import AnyRecord, LeasesEnded, MessagesReleased, VisibilityChanged, runs_of
from cmqd_types.actors import NO_ACTOR, Actor


class Visibility:
    """Changes and ends leases: on request of the consumer that has the receipt handle, or when the time is over."""

    def __init__(
        self,
        facts: Facts,
        runtime: Runtime,
        leases: LeasesByHandle,
        lease_sweep: LeaseSweep,
        dead_letters: DeadLetterSearch,
        serving: Serving,
    ) -> None:
        self._limits = facts.limits
        self._queues = facts.queues
        self._actors = facts.actors
        self._lease_buckets = facts.queues.leases
        self._runtime = runtime.queues
        self._rejections = runtime.rejections
        self._leases = leases
        self._lease_sweep = lease_sweep
        self._dead_letters = dead_letters
        self._serving = serving

    def change_visibility(
        self,
        account: str,
        name: str,
        handles: list[int],
        visibility_timeout_ms: int,
        now_ms: int,
        *,
        actor: Actor = NO_ACTOR,
    ) -> Outcome[HandlesDone]:
        """Hide received messages until ``visibility_timeout_ms`` from now; 0 = hand back. ``actor``: the client.

        The time of a message is cut at its retention; the reply has the earliest next visible time.
        """
        check_range("visibility_timeout_ms", visibility_timeout_ms, 0, self._limits.max_visibility_timeout_ms)
        # A timeout of 0 is a release and not a lease that has ended: the message is active in this call and not at the
        # next tick.
        if not visibility_timeout_ms:
            return self.release(account, name, handles, True, now_ms, actor=actor)
        queue = self._queues.find(account, name)
        index = queue.index
        leases: dict[int, InFlight] = {}
        failures = self._leases.find(queue, handles, leases, now_ms)
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
        records: list[AnyRecord] = []
        named = self._actors.joined([actor], (1,), 1, records)
        for deadline_ms, some in by_deadline.items():
            record = VisibilityChanged(index.queue_id, runs_of(some), deadline_ms, named)
            index.leases.change(record)
            records.append(record)
        # Paid for by the calls that add entries: a consumer that extends its leases again and again leaves a stale
        # entry in a bucket with each call.
        if self._lease_buckets.size > self._lease_sweep.sweep_above:
            self._lease_sweep.sweep(now_ms)
        return Outcome(HandlesDone(failures, min(by_deadline)), records)

    def release(
        self,
        account: str,
        name: str,
        handles: list[int],
        counted: bool,
        now_ms: int,
        *,
        actor: Actor = NO_ACTOR,
    ) -> Outcome[HandlesDone]:
        """Hand received messages back: active at once. Not ``counted``: the receive does not count as a receive.

        ``actor``: the client; not known if the broker itself hands them back.
        """
        queue = self._queues.find(account, name)
        leases: dict[int, InFlight] = {}
        failures = self._leases.find(queue, handles, leases, now_ms)
        if not leases:
            return Outcome(HandlesDone(failures))
        # Applied before dead letters are searched for, because the search takes active messages alone.
        effects = Effects()
        named = self._actors.joined([actor], (1,), 1, effects.records)
        record = MessagesReleased(queue.queue_id, runs_of(list(leases)), counted, named)
        queue.index.apply_returned(record)
        effects.records.append(record)
        if counted:
            self._failed(queue.queue_id, actor, len(leases))
        if queue.dead_letters is not None:
            # The count before an uncounted receive may have reached the limit already, if the limit was lowered since.
            back = [(in_flight.position, in_flight.receive_count - (not counted)) for in_flight in leases.values()]
            self._dead_letters.came_back(queue, back, effects, now_ms)
        # Last: a message that became a dead letter is reserved by now, and no receive can take it.
        return self._serving.served(queue, effects, HandlesDone(failures, now_ms), now_ms)

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
            if index.attributes.auto_delete_after_ms:
                self._runtime[queue_id].used_ms = now_ms
            effects.records.append(record)
            self._timed_out(queue_id, ended.values())
            if queue.dead_letters is not None:
                back = [
                    (in_flight_message.position, in_flight_message.receive_count)
                    for in_flight_message in ended.values()
                ]
                self._dead_letters.came_back(queue, back, effects, now_ms)
            self._serving.serve(queue, effects, now_ms)

    def _failed(self, queue_id: int, actor: Actor, count: int) -> None:
        """Count messages that a consumer gave back."""
        consumer = self._runtime[queue_id].consumers.get(actor)
        if consumer is not None:
            consumer.failed += count

    def _timed_out(self, queue_id: int, ended: Iterable[InFlight]) -> None:
        """Count messages whose consumers did not settle them in time."""
        consumers = self._runtime[queue_id].consumers
        if not consumers:
            return
        counts = Counter([in_flight.actor for in_flight in ended])
        for actor, consumer in consumers.items():
            # Taken out of the table: clients beyond the share of their key have one number together.
            consumer.failed += counts.pop(self._actors.known_number(actor), 0)
