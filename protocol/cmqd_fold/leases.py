"""Leases of one queue: its messages in flight, by the number of their receive.

A lease has an entry in the buckets of deadlines. An entry is never searched for: a delete would pay a search for each
message. An entry that no longer fits its lease turns stale, and is dropped when its bucket comes due or by a sweep.
"""

import msgspec
from pyroaring import BitMap64

from cmqd_fold.receive_history import ReceiveHistory
from cmqd_fold.timers import Timers
from cmqd_segment.actor_runs import actor_numbers
from cmqd_segment.checkpoint import LeasesSlice
from cmqd_segment.records import MessagesReceived, VisibilityChanged, ranges, unpack_runs


class InFlight(msgspec.Struct, frozen=True, gc=False):
    """Lease of a message in flight. Frozen, because a checkpoint in progress may refer to a lease.

    The receive count is here and in no table of its own: a message that is deleted after its first receive, the usual
    case, then never enters the history.
    """

    position: int
    deadline_ms: int
    receive_count: int
    first_receive_ms: int
    actor: int = 0
    """Number of the client that received the message; 0 = not known."""


class Leases:
    """The messages in flight of a queue, by the number of the lease; see the module."""

    __slots__ = ("_queue_id", "buckets", "by_number")

    def __init__(self, queue_id: int, buckets: Timers) -> None:
        self._queue_id = queue_id
        self.buckets = buckets
        self.by_number: dict[int, InFlight] = {}
        """May still hold leases of positions below the floor, until their deadline."""

    def load(self, part: LeasesSlice) -> None:
        """Load a part of a checkpoint."""
        actors = actor_numbers(part.actors, len(part.leases))
        for (lease, position, deadline_ms, receive_count, first_receive_ms), actor in zip(
            part.leases, actors, strict=True
        ):
            self.by_number[lease] = InFlight(position, deadline_ms, receive_count, first_receive_ms, actor)
            self._plan(lease, 1, deadline_ms)

    def _plan(self, first_lease: int, count: int, deadline_ms: int) -> None:
        self.buckets.bucket(deadline_ms, self._queue_id).extend((first_lease, count))
        self.buckets.size += 2

    def plan_again(self, lease: int) -> None:
        """Plan the end of a lease again, after its entry came due and was passed over."""
        self._plan(lease, 1, self.by_number[lease].deadline_ms)

    def receive(self, record: MessagesReceived, history: ReceiveHistory) -> list[InFlight]:
        """Make the leases of a record; return them in order of their numbers."""
        lease = record.first_lease
        deadline_ms, received_ms = record.deadline_ms, record.received_ms
        made: list[InFlight] = []
        by_number = self.by_number
        actors = record.actors
        actor = actors[0] if actors else 0
        # A slice: a call less in the most frequent requests.
        of_each = iter(actor_numbers(actors, sum(record.positions[1::2]))) if actors[1:] else None
        # Most queues never have a message come back: without history a receive skips two look-ups per message.
        came_back = history if history.chunks else None
        for start, stop in ranges(record.positions):
            for position in range(start, stop):
                if of_each is not None:
                    actor = next(of_each)
                if came_back is not None:
                    count, first_ms = came_back.get(position)
                    entry = InFlight(position, deadline_ms, count + 1, first_ms or received_ms, actor)
                else:
                    entry = InFlight(position, deadline_ms, 1, received_ms, actor)
                by_number[lease] = entry
                made.append(entry)
                lease += 1
        # A pair for the whole record: an entry per lease would cost memory and time for each message.
        self.buckets.bucket(deadline_ms, self._queue_id).extend((record.first_lease, len(made)))
        self.buckets.size += 2
        return made

    def change(self, record: VisibilityChanged) -> None:
        """Change the deadline of leases; their entries in older buckets turn stale."""
        width_ms = self.buckets.width_ms
        number = -(-record.deadline_ms // width_ms)
        for lease in unpack_runs(record.leases):
            entry = self.by_number.get(lease)
            if entry is None:
                # The message was cleared or has expired, and the checkpoint left the lease out.
                continue
            self.by_number[lease] = msgspec.structs.replace(entry, deadline_ms=record.deadline_ms)
            if -(-entry.deadline_ms // width_ms) != number:
                # A lease with an entry in this bucket gets no second entry, or repeated changes would fill the bucket.
                self._plan(lease, 1, record.deadline_ms)

    def no_later_than(self, latest_ms: int) -> None:
        """Bring down the deadlines that lie too far in the future, because broker time stepped back.

        Without it the messages would stay hidden for as long as the step, however short their visibility timeout is.
        """
        for lease, entry in self.by_number.items():
            if entry.deadline_ms > latest_ms:
                self.by_number[lease] = msgspec.structs.replace(entry, deadline_ms=latest_ms)

    def drop(self, positions: BitMap64) -> list[InFlight]:
        """Forget and return the leases of messages that left the queue.

        A broker keeps these leases until their deadline. A reader of the log has no timers, and would never drop them.
        """
        ended = [lease for lease, entry in self.by_number.items() if entry.position in positions]
        return [self.by_number.pop(lease) for lease in ended]
