"""Peek: looking at messages without receiving them; changes no count, order or lease."""

from collections.abc import Sequence

from cmqd.core.limits import check_range, headers_bytes
from cmqd.core.outcome import WAITING, Outcome, Peeked, PeekedMessage, Waiting, Woken
from cmqd.core.queue import Queue
from cmqd.core.state import BrokerState, PendingPeek
from cmqd_segment.records import Runs, StoredMessage, last_of


class Peeking(BrokerState):
    """The peeking part of the broker."""

    def peek(
        self, account: str, name: str, waiter_id: int, start: int, max_messages: int, now_ms: int
    ) -> Outcome[Peeked | Waiting]:
        """Browse live messages of every state in order of sending, from place ``start`` on; changes nothing.

        What has passed its retention is not shown, whether a tick has moved the floor over it or not.
        """
        queue = self.queue(account, name)
        check_range("max_messages", max_messages, 1, self.limits.max_batch)
        check_range("start", start, 0, 1 << 62)
        positions = queue.index.live_from(start, max_messages)
        in_window = queue.window.messages
        found = {position: in_window[position] for position in positions if position in in_window}
        peek = PendingPeek(waiter_id, queue.queue_id, positions, found)
        if len(found) == len(positions):
            return Outcome(self._peeked(queue, peek, now_ms))
        wanted = [position for position in positions if position not in found]
        read = self._page_read(queue, wanted, self.limits.max_batch_bytes)
        self._peeks[read.read_id] = peek
        return Outcome(WAITING, reads=[read])

    def _peek_arrived(
        self, read_id: int, messages: Sequence[StoredMessage], missing: Runs, woken: list[Woken], now_ms: int
    ) -> None:
        peek = self._peeks.pop(read_id)
        queue = self.queues[peek.queue_id]
        for message in messages:
            peek.found[message.position] = message
        settled = max(messages[-1].position if messages else -1, last_of(missing))
        wanted = [position for position in peek.positions if position not in peek.found]
        if wanted and wanted[-1] > settled:
            # A page holds a prefix of what was asked; the next peek starts behind it.
            unread = next(position for position in wanted if position > settled)
            peek.positions = [position for position in peek.positions if position < unread]
            if not peek.positions:
                woken.append(Woken(peek.waiter_id, Peeked([], unread)))
                return
        woken.append(Woken(peek.waiter_id, self._peeked(queue, peek, now_ms)))

    def _peeked(self, queue: Queue, peek: PendingPeek, now_ms: int) -> Peeked:
        index = queue.index
        expired_ms = now_ms - index.attributes.retention_ms
        messages: list[PeekedMessage] = []
        size = 0
        next_start: int | None = None
        for position in peek.positions:
            message = peek.found.get(position)
            if message is None or message.enqueue_ms <= expired_ms or position not in index.live:
                continue
            size += len(message.body)
            if message.headers:
                size += headers_bytes(message.headers)
            if size > self.limits.max_batch_bytes and messages:
                next_start = position
                break
            count, _ = index.history.get(position)
            if position in index.active or (position in index.damaged and position not in index.damaged_delays):
                state, visible_ms = "active", 0
            elif position in index.delayed or position in index.overflow or position in index.damaged_delays:
                state, visible_ms = "delayed", message.visible_ms
            else:
                state, visible_ms, count = "in_flight", 0, count + 1
            messages.append(
                PeekedMessage(
                    message.message_id,
                    state,
                    message.body,
                    message.enqueue_ms,
                    visible_ms,
                    count,
                    message.headers,
                    message.origin,
                )
            )
        if next_start is None and peek.positions and index.live_from(peek.positions[-1] + 1, 1):
            next_start = peek.positions[-1] + 1
        return Peeked(messages, next_start)
