"""Moving messages from one queue to another: dead letters, and the way back.

A message is moved by writing it again: in one row of the log it leaves its queue (``MessagesMoved``) and stands in the
other with a new id, a new time and its origin (``MessagesSent``). So it is never lost and never in both. Before that it
is only reserved, which is an intention and no fact: its body is read a page at a time, and a crash changes nothing.
"""

from collections.abc import Sequence

from pyroaring import BitMap64

from cmqd.core.deadlettering import RETRY_MS, DeadLettering
from cmqd.core.errors import InvalidArgument, RedriveRunning
from cmqd.core.limits import check_range
from cmqd.core.outcome import Effects, Outcome
from cmqd.core.queue import Queue, Redriving
from cmqd.core.sending import Sending
from cmqd_fold.activations import GRAIN_MS
from cmqd_segment.records import (
    MessagesMoved,
    MessagesSent,
    RedriveEnded,
    RedriveStarted,
    Runs,
    StoredMessage,
    pack_runs,
    unpack_runs,
)
from cmqd_types.messages import Origin
from cmqd_types.queues import RedriveStatus

NO_ORIGIN = "(no origin)"
PACE_SLACK_MS = 100
"""How late a page of a redrive may be without slowing it down."""


class Moving(DeadLettering, Sending):
    """The part of the broker that moves messages."""

    def start_redrive(
        self, account: str, name: str, target: str | None, max_per_second: int | None, now_ms: int
    ) -> Outcome[RedriveStatus]:
        """Send what is in a queue now back to where it came from, or to the queue ``target``; in the background.

        Messages in flight or delayed stay. One whose origin does not exist (or takes no body of that size) stays, and
        the status says so; a full target holds the redrive up until it has room. It survives a restart.

        Raises:
            QueueNotFound: of ``name``.
            InvalidArgument: the target does not exist or is the queue itself, or the queue has a dead-letter queue,
                or it never served as one.
            RedriveRunning: one is under way.
        """
        queue = self.queue(account, name)
        index = queue.index
        if queue.redriving is not None:
            raise RedriveRunning(name)
        if queue.dead_letters is not None:
            raise InvalidArgument("queue", name, "a queue without a dead-letter queue of its own")
        if not index.held_dead_letters:
            # Typed by mistake, it would move every message of a working queue.
            raise InvalidArgument("queue", name, "a queue that serves, or served, as a dead-letter queue")
        if max_per_second is not None:
            check_range("max_per_second", max_per_second, 1, 1_000_000)
        if target is not None and (target == name or target not in self._names[account]):
            raise InvalidArgument("target", target, "the name of another queue of the account, which exists")
        record = RedriveStarted(queue.queue_id, target or "", max_per_second or 0, index.next_position, now_ms)
        index.apply_redrive_started(record)
        queue.redriving = Redriving()
        self._set_agenda(queue, now_ms)
        return Outcome(self._redrive_status(queue), [record])

    def cancel_redrive(self, account: str, name: str, now_ms: int) -> Outcome[RedriveStatus]:
        """Stop a redrive; what was moved stays moved. Without effect on one that is over.

        Raises:
            QueueNotFound, InvalidArgument: there never was one.
        """
        queue = self.queue(account, name)
        effects = Effects()
        if queue.redriving is not None:
            self._end_redrive(queue, "cancelled", effects, now_ms)
            self._serve(queue, effects, now_ms)
        return effects.outcome(self._redrive_status(queue))

    def redrive_status(self, account: str, name: str) -> RedriveStatus:
        """How far the redrive of a queue is, or how the last one ended.

        Raises:
            QueueNotFound, InvalidArgument: there never was one.
        """
        return self._redrive_status(self.queue(account, name))

    def _redrive_status(self, queue: Queue) -> RedriveStatus:
        index = queue.index
        redrive, under_way = index.redrive, queue.redriving
        if redrive is None:
            raise InvalidArgument("queue", queue.name, "a queue that is being redriven or was so before")
        remaining = 0
        if under_way is not None:
            remaining = index.active.range_cardinality(under_way.cursor, redrive.stop_position) + index.moving_count
        return RedriveStatus(
            queue=queue.name,
            target=redrive.target or None,
            max_per_second=redrive.max_per_second or None,
            started_ms=redrive.started_ms,
            ended_ms=redrive.ended_ms or None,
            reason=redrive.reason if under_way is None else under_way.held_up,
            moved=redrive.moved,
            remaining=remaining,
            missing_origins=dict(redrive.missing_origins if under_way is None else under_way.missing_origins),
        )

    def _end_redrive(self, queue: Queue, reason: str, effects: Effects, now_ms: int) -> None:
        missing = {} if queue.redriving is None else queue.redriving.missing_origins
        record = RedriveEnded(queue.queue_id, reason, now_ms, missing)
        queue.index.apply_redrive_ended(record)
        effects.records.append(record)
        queue.redriving = None
        self._stop_moving(queue, BitMap64(queue.index.moving))

    def _redrive(self, queue: Queue, effects: Effects, now_ms: int) -> int | None:
        """Reserve the next page of a redrive, or end it; when to look again."""
        under_way, redrive, index = queue.redriving, queue.index.redrive, queue.index
        assert under_way is not None
        assert redrive is not None
        if queue.move_reading:
            return None
        if under_way.next_ms > now_ms:
            return under_way.next_ms
        if self.moves_held_up:
            self._stop_moving(queue, BitMap64(index.moving) if index.moving_count else BitMap64())
            under_way.held_up = self.moves_held_up
            under_way.next_ms = now_ms + RETRY_MS
            return under_way.next_ms
        if index.moving_count:
            # A page held a part of what was reserved.
            self._read_moving(queue, effects)
            return None
        most = self.limits.page_messages
        if redrive.max_per_second:
            most = max(1, min(most, redrive.max_per_second // 10))
        found = index.active_from(max(under_way.cursor, index.floor), most)
        positions = BitMap64([position for position in found if position < redrive.stop_position])
        if not positions:
            self._end_redrive(queue, "done", effects, now_ms)
            return None
        index.start_moving(positions)
        self._budget.forget(queue.queue_id, queue.window, positions)
        self._read_moving(queue, effects)
        return None

    def _moves_arrived(
        self, queue: Queue, messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Move what came, and go on; how many messages were newly found to be damaged."""
        queue.move_reading = False
        index = queue.index
        # What need not be moved any more may be gone from the log, and is nobody's loss.
        damaged = index.set_damaged(pack_runs(one for one in unpack_runs(missing) if one in index.moving))
        expired_ms = now_ms - index.attributes.retention_ms
        moving = [message for message in messages if message.position in index.moving]
        expired = BitMap64([message.position for message in moving if message.enqueue_ms <= expired_ms])
        if expired:
            # The tick that moves the floor over them comes by when all of their time step has expired.
            if queue.redriving is None:
                queue.unmovable |= expired
            else:
                queue.redriving.cursor = expired[-1] + 1
            self._stop_moving(queue, expired)
            moving = [message for message in moving if message.position not in expired]
        moving = self._old_enough(queue, moving, now_ms)
        by_target = self._targets(queue, moving, now_ms)
        if by_target:
            moved = pack_runs(sorted(message.position for some in by_target.values() for message in some))
            redriven = queue.redriving is not None
            record = MessagesMoved(queue.queue_id, moved, redriven)
            origins = {
                target_id: [self._origin(queue, message) for message in some] for target_id, some in by_target.items()
            }
            index.apply_moved(record)
            effects.records.append(record)
            for target_id, some in by_target.items():
                self._store_moved(self.queues[target_id], some, origins[target_id], effects, now_ms)
            for target_id in by_target:
                self._serve(self.queues[target_id], effects, now_ms)
            if redriven:
                self._pace(queue, sum(map(len, by_target.values())), now_ms)
        self._serve(queue, effects, now_ms)
        if queue.redriving is None:
            next_ms = self._find_dead(queue, effects, now_ms)
        else:
            next_ms = self._redrive(queue, effects, now_ms)
        if next_ms is not None:
            self._set_agenda(queue, next_ms)
        self._read_next_in_line(effects)
        return damaged

    def _old_enough(self, queue: Queue, messages: list[StoredMessage], now_ms: int) -> list[StoredMessage]:
        """Without those whose delay ended before the queue had dead letters by age, and not long enough ago: that is
        seen only now that they are read.
        """
        after_ms = queue.index.attributes.dead_letter_after_ms
        if not after_ms or queue.redriving is not None:
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
        self._stop_moving(queue, BitMap64([position for some in early.values() for position in some]))
        return [message for message in messages if message.position in queue.index.moving]

    def _targets(self, queue: Queue, messages: Sequence[StoredMessage], now_ms: int) -> dict[int, list[StoredMessage]]:
        """Which of the messages go where, by queue id; the others are released."""
        targets: dict[int, list[StoredMessage]] = {}
        stay: list[int] = []
        if queue.redriving is not None:
            queue.redriving.held_up = ""
        for message in messages:
            target = self._target_of(queue, message)
            if target is None:
                stay.append(message.position)
                continue
            is_full = target.index.live_count + len(targets.get(target.queue_id, ())) >= (
                target.index.attributes.max_backlog
            )
            if is_full or (queue.redriving is None and not target.index.takes_dead_letters):
                # What is behind it waits with it: they keep their order. What goes now stands before it.
                self._hold_up(queue, target, message.position, now_ms)
                held_up = BitMap64(queue.index.moving)
                held_up.remove_range(0, message.position)
                self._stop_moving(queue, held_up)
                break
            targets.setdefault(target.queue_id, []).append(message)
        self._stop_moving(queue, BitMap64(stay))
        return targets

    def _target_of(self, queue: Queue, message: StoredMessage) -> Queue | None:
        """Where a message goes; None if it has to stay, which is noted."""
        size = len(message.body)
        under_way, redrive = queue.redriving, queue.index.redrive
        if under_way is None or redrive is None:
            target = queue.dead_letters
            if target is None:
                return None
            if size > target.index.attributes.max_message_bytes:
                queue.unmovable.add(message.position)
                return None
            return target
        under_way.cursor = message.position + 1
        name = redrive.target or (NO_ORIGIN if message.origin is None else message.origin.queue)
        target = self._names[queue.account].get(name)
        if target is None or target is queue or size > target.index.attributes.max_message_bytes:
            under_way.missing_origins[name] = under_way.missing_origins.get(name, 0) + 1
            return None
        return target

    def _hold_up(self, queue: Queue, target: Queue, position: int, now_ms: int) -> None:
        if queue.redriving is not None:
            queue.redriving.cursor = position
            queue.redriving.held_up = f"target full: {target.name}"
            queue.redriving.next_ms = now_ms + RETRY_MS

    def _origin(self, queue: Queue, message: StoredMessage) -> Origin:
        attributes = queue.index.attributes
        reason = "age" if attributes.dead_letter_after_ms else "receives"
        if queue.redriving is not None:
            reason = "redrive"
        count, _ = queue.index.history.get(message.position)
        return Origin(queue.name, message.message_id, message.enqueue_ms, count, reason)

    def _store_moved(
        self,
        target: Queue,
        messages: Sequence[StoredMessage],
        origins: list[Origin],
        effects: Effects,
        now_ms: int,
    ) -> None:
        """The moved messages as new ones at the end of their queue; its backlog limit does not hold for them."""
        index = target.index
        numbers = self.numbers
        count = len(messages)
        if numbers.next_message_id + count > numbers.message_id_until:
            self._reserve(effects.records, message_ids=count)
        first_id = numbers.next_message_id
        numbers.next_message_id = first_id + count
        headers = [message.headers for message in messages]
        copies_of = [message.copy_of for message in messages]
        record = MessagesSent(
            index.queue_id,
            index.next_position,
            first_id,
            max(now_ms, index.last_enqueue_ms),
            [len(message.body) for message in messages],
            headers if any(headers) else None,
            origins=list(origins),
            copies_of=copies_of if any(copies_of) else None,
        )
        was_empty = not index.active_count
        self._apply_sent(target, record)
        effects.records.append(record)
        stored = [message.body for message in messages]
        effects.bodies += stored
        self._keep_bodies(target, record, stored, was_empty)

    def _pace(self, queue: Queue, count: int, now_ms: int) -> None:
        """Keep to the rate of a redrive."""
        under_way, redrive = queue.redriving, queue.index.redrive
        assert under_way is not None
        assert redrive is not None
        if redrive.max_per_second and not under_way.held_up:
            # A page that came a little late does not slow it down; nothing else is caught up on.
            since_ms = under_way.next_ms if now_ms - under_way.next_ms <= PACE_SLACK_MS else now_ms
            under_way.next_ms = since_ms - (-count * 1000 // redrive.max_per_second)
