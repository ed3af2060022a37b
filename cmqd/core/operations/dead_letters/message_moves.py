"""Moving messages from one queue to another: dead letters, and redrives of dead letters.

A move writes the message again. A single row of the log removes the message from its queue (``MessagesMoved``) and
stores the message in the target with a new id, a new time and its origin (``MessagesSent``). With two rows, a crash in
between would lose the message, or leave the message in both queues.

Before that row the message is only reserved, in memory. The body is read a page at a time, which can take long for a
large queue; a crash during the reads forgets the reservation, and the start finds the same messages again.
"""

from collections.abc import Sequence

from pyroaring import BitMap64

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.operations.dead_letters.redrives import Redrives
from cmqd.core.operations.dead_letters.reservations import RETRY_MS, Reservations
from cmqd.core.operations.dead_letters.search import DeadLetterSearch
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.operations.sending.storing import Store
from cmqd.core.outcome import Effects
from cmqd.core.runtime.pages import Reading
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.activations import GRAIN_MS
from cmqd_segment.records import MessagesMoved, Runs, StoredMessage, pack_runs, unpack_runs
from cmqd_types.messages import REDRIVE, Origin

NO_ORIGIN = "(no origin)"


class Moves:
    """Moves reserved messages to another queue."""

    def __init__(
        self,
        facts: Facts,
        runtime: Runtime,
        reservations: Reservations,
        dead_letters: DeadLetterSearch,
        redrives: Redrives,
        store: Store,
        serving: Serving,
    ) -> None:
        self._numbers = facts.numbers
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._reservations = reservations
        self._dead_letters = dead_letters
        self._redrives = redrives
        self._store = store
        self._serving = serving

    def on_page(
        self, reading: Reading[None], messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Move the messages of a page, and read the next page."""
        self._reservations.page_came(reading.owner_id)
        queue = self._queues.by_id.get(reading.owner_id)
        if queue is None:
            self._reservations.read_next_in_line(effects)
            return 0
        return self._move(queue, messages, missing, effects, now_ms)

    def _move(
        self, queue: Queue, messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Move the messages that were read, and go on. Returns the number of messages newly found to be damaged."""
        runtime = self._runtime[queue.queue_id]
        runtime.used_ms = now_ms
        index = queue.index
        # Only reserved messages count as damaged: a message that was cleared or has expired since the read was
        # requested may be gone from the log rightly.
        damaged = index.set_damaged(
            pack_runs(position for position in unpack_runs(missing) if position in index.moving)
        )
        expired_ms = now_ms - index.attributes.retention_ms
        moving = [message for message in messages if message.position in index.moving]
        expired = BitMap64([message.position for message in moving if message.enqueue_ms <= expired_ms])
        if expired:
            # Expired messages stay until the floor passes them, a time step at most. Without the note here the next
            # search would reserve the same messages, read them and release them again, in a loop.
            if runtime.redriving is None:
                runtime.unmovable |= expired
            else:
                runtime.redriving.cursor = expired[-1] + 1
            self._reservations.release(queue, expired)
            moving = [message for message in moving if message.position not in expired]
        moving = self._old_enough(queue, moving, now_ms)
        by_target = self._targets(queue, moving, now_ms)
        if by_target:
            moved = pack_runs(sorted(message.position for some in by_target.values() for message in some))
            redriven = runtime.redriving is not None
            record = MessagesMoved(queue.queue_id, moved, redriven)
            origins: dict[int, list[Origin | None]] = {
                target_id: [self._origin(queue, message) for message in some] for target_id, some in by_target.items()
            }
            index.apply_moved(record)
            effects.records.append(record)
            for target_id, some in by_target.items():
                copies_of = [message.copy_of for message in some]
                self._store.store_again(
                    queue=self._queues.by_id[target_id],
                    messages=some,
                    first_id=self._numbers.take_message_ids(len(some), effects.records),
                    effects=effects,
                    now_ms=now_ms,
                    origins=origins[target_id],
                    copies_of=copies_of if any(copies_of) else None,
                )
            for target_id in by_target:
                self._serving.serve(self._queues.by_id[target_id], effects, now_ms)
            if redriven:
                self._redrives.pace(queue, sum(map(len, by_target.values())), now_ms)
        self._serving.serve(queue, effects, now_ms)
        if runtime.redriving is None:
            next_ms = self._dead_letters.find(queue, effects, now_ms)
        else:
            next_ms = self._redrives.go_on(queue, effects, now_ms)
        if next_ms is not None:
            self._agenda.reviews.set(queue.queue_id, next_ms)
        self._reservations.read_next_in_line(effects)
        return damaged

    def _old_enough(self, queue: Queue, messages: list[StoredMessage], now_ms: int) -> list[StoredMessage]:
        """Release messages that became active too recently to be dead letters, and return the rest.

        A message with a delay that ended before the queue had dead letters by age has no entry in ``activations``. The
        search takes its send time for the time when the message became active; the end of the delay is known only now
        that the message has been read.
        """
        after_ms = queue.index.attributes.dead_letter_after_ms
        if not after_ms or self._runtime[queue.queue_id].redriving is not None:
            return messages
        activations = queue.index.activations
        early: dict[int, list[int]] = {}
        for message in messages:
            position = message.position
            if message.visible_ms + after_ms > now_ms and position not in activations.positions:
                early.setdefault(message.visible_ms // GRAIN_MS, []).append(position)
        if not early:
            return messages
        for second in sorted(early):
            activations.note(BitMap64(early[second]), second * GRAIN_MS)
        self._reservations.release(queue, BitMap64([position for some in early.values() for position in some]))
        return [message for message in messages if message.position in queue.index.moving]

    def _targets(self, queue: Queue, messages: Sequence[StoredMessage], now_ms: int) -> dict[int, list[StoredMessage]]:
        """Group the messages to move by the id of the target queue, and release the other messages."""
        runtime = self._runtime[queue.queue_id]
        targets: dict[int, list[StoredMessage]] = {}
        stay: list[int] = []
        if runtime.redriving is not None:
            runtime.redriving.held_up = ""
        for message in messages:
            target = self._target_of(queue, message)
            if target is None:
                stay.append(message.position)
                continue
            is_full = target.index.live_count + len(targets.get(target.queue_id, ())) >= (
                target.index.attributes.max_backlog
            )
            if is_full or (runtime.redriving is None and not target.index.takes_dead_letters):
                # All messages behind this position wait too, even for other targets: messages keep their order, and
                # the cursor of a redrive is a single position.
                self._hold_up(queue, target, message.position, now_ms)
                held_up = BitMap64(queue.index.moving)
                held_up.remove_range(0, message.position)
                self._reservations.release(queue, held_up)
                break
            targets.setdefault(target.queue_id, []).append(message)
        self._reservations.release(queue, BitMap64(stay))
        return targets

    def _target_of(self, queue: Queue, message: StoredMessage) -> Queue | None:
        """Return the target of a message, or None if the message must stay; the reason is noted in the runtime."""
        runtime = self._runtime[queue.queue_id]
        size = len(message.body)
        under_way, redrive = runtime.redriving, queue.index.redrive
        if under_way is None or redrive is None:
            target = queue.dead_letters
            if target is None:
                return None
            if size > target.index.attributes.max_message_bytes:
                runtime.unmovable.add(message.position)
                return None
            return target
        under_way.cursor = message.position + 1
        name = redrive.target or (NO_ORIGIN if message.origin is None else message.origin.queue)
        target = self._queues.names[queue.account].get(name)
        if target is None or target is queue or size > target.index.attributes.max_message_bytes:
            under_way.missing_origins[name] = under_way.missing_origins.get(name, 0) + 1
            return None
        return target

    def _hold_up(self, queue: Queue, target: Queue, position: int, now_ms: int) -> None:
        runtime = self._runtime[queue.queue_id]
        if runtime.redriving is not None:
            runtime.redriving.cursor = position
            runtime.redriving.held_up = f"target full: {target.name}"
            runtime.redriving.next_ms = now_ms + RETRY_MS

    def _origin(self, queue: Queue, message: StoredMessage) -> Origin:
        attributes = queue.index.attributes
        reason = "age" if attributes.dead_letter_after_ms else "receives"
        if self._runtime[queue.queue_id].redriving is not None:
            reason = REDRIVE
        count, _ = queue.index.history.get(message.position)
        return Origin(queue.name, message.message_id, message.enqueue_ms, count, reason)
