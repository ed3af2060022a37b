"""Peek: returning messages without receiving them; changes no count, order or lease."""

from collections.abc import Sequence

from pyroaring import BitMap64

from cmqd.core.domain_errors import InvalidArgument, shown
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import check_range, reply_bytes
from cmqd.core.outcome import WAITING, Effects, Outcome, PageRead, Waiting, Woken
from cmqd.core.runtime.pages import Reading
from cmqd.core.runtime.pending import PendingPeek
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.queue_index import QueueIndex
from cmqd_segment.records import Runs, StoredMessage, last_of, pack_runs, unpack_runs
from cmqd_types.messages import MessagesPeeked, PeekedMessage

STATES = ("active", "in_flight", "delayed", "half", "rewindable")
STRETCH = 1 << 20
"""Positions that a step sorts by state, with set operations: well under 1 ms."""
MOST_STRETCHES = 8
"""Largest number of steps of a peek. A peek that stops here without a message returns the position to go on from."""


class Peek:
    """Browses the messages of a queue in any state, without a lease."""

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._limits = facts.limits
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._lane = runtime.pages.peeks

    def peek(
        self,
        account: str,
        name: str,
        waiter_id: int,
        start: int,
        max_messages: int,
        now_ms: int,
        states: Sequence[str] | None = None,
    ) -> Outcome[MessagesPeeked | Waiting]:
        """Browse messages in order of sending, from position ``start`` on: messages in one of ``states`` (see
        ``STATES``), or all but the rewindable messages. Changes nothing.

        Messages past their retention are not shown, even before a tick has moved the floor over them.
        """
        queue = self._queues.find(account, name)
        check_range("max_messages", max_messages, 1, self._limits.max_batch)
        check_range("start", start, 0, 1 << 62)
        wanted_states = None
        if states is not None:
            wanted_states = frozenset(states)
            if not wanted_states or not wanted_states.issubset(STATES):
                raise InvalidArgument(
                    f"states must be null, or some of {', '.join(STATES)}, not {shown(list(states))}",
                    field="states",
                    value=list(states),
                    limit=f"null, or some of {', '.join(STATES)}",
                )
        positions, go_on = _find(queue.index, wanted_states, start, max_messages)
        window = self._runtime[queue.queue_id].window
        found: dict[int, StoredMessage] = {}
        for position in positions:
            message = window.messages.get(position) or window.half.get(position)
            if message is not None:
                found[position] = message
        peek = PendingPeek(waiter_id, queue.queue_id, positions, found, wanted_states, go_on)
        if len(found) == len(positions):
            return Outcome(self._peeked(queue, peek, now_ms))
        not_in_memory = [position for position in positions if position not in found]
        reads: list[PageRead] = []
        self._lane.want(queue.queue_id, queue.queue_id, not_in_memory, self._limits.max_batch_bytes, peek, reads)
        return Outcome(WAITING, reads=reads)

    def on_page(
        self,
        reading: Reading[PendingPeek],
        messages: Sequence[StoredMessage],
        missing: Runs,
        effects: Effects,
        now_ms: int,
    ) -> int:
        """Answer a peek with its page. Returns the number of messages newly found to be damaged.

        Damaged messages are set aside here too. Otherwise a browser would show a queue as healthy until a consumer
        reaches the damage, and ``damaged`` among the counts would depend on the order of reads.
        """
        self._lane.busy.discard(reading.owner_id)
        peek = reading.request
        queue = self._queues.by_id[peek.queue_id]
        in_memory = self._runtime[queue.queue_id].window.messages
        lost = pack_runs(one for one in unpack_runs(missing) if one not in in_memory)
        damaged = queue.index.set_damaged(lost, in_flight=True)
        for message in messages:
            peek.found[message.position] = message
        settled = max(messages[-1].position if messages else -1, last_of(missing))
        not_in_memory = [position for position in peek.positions if position not in peek.found]
        if not_in_memory and not_in_memory[-1] > settled:
            # A page holds a prefix of the requested positions; the next peek starts behind the prefix.
            unread = next(position for position in not_in_memory if position > settled)
            peek.positions = [position for position in peek.positions if position < unread]
            if not peek.positions:
                effects.woken.append(Woken(peek.waiter_id, MessagesPeeked(messages=[], next_start=unread)))
                return damaged
        effects.woken.append(Woken(peek.waiter_id, self._peeked(queue, peek, now_ms)))
        return damaged

    def _peeked(self, queue: Queue, peek: PendingPeek, now_ms: int) -> MessagesPeeked:
        index = queue.index
        expired_ms = now_ms - index.attributes.retention_ms
        unrewindable_ms = now_ms - index.attributes.rewind_ms
        states = peek.states
        messages: list[PeekedMessage] = []
        size = 0
        next_start: int | None = None
        for position in peek.positions:
            message = peek.found.get(position)
            if message is None or message.enqueue_ms <= expired_ms:
                continue
            state = _state(index, position)
            if state is None or (state == "rewindable" if states is None else state not in states):
                continue
            if state == "rewindable" and message.enqueue_ms < unrewindable_ms:
                continue
            size += reply_bytes(message)
            if size > self._limits.max_batch_bytes and messages:
                next_start = position
                break
            count, _ = index.history.get(position)
            if state == "in_flight":
                count += 1
            messages.append(
                PeekedMessage(
                    message_id=message.message_id,
                    state=state,
                    body=message.body,
                    enqueue_ms=message.enqueue_ms,
                    visible_ms=message.visible_ms if state == "delayed" else 0,
                    receive_count=count,
                    headers=message.headers,
                    origin=message.origin,
                    copy_of=message.copy_of,
                )
            )
        if next_start is None:
            next_start = peek.go_on
            if peek.positions:
                more, go_on = _find(index, states, peek.positions[-1] + 1, 1)
                next_start = peek.positions[-1] + 1 if more else go_on
        return MessagesPeeked(messages=messages, next_start=next_start)


def _state(index: QueueIndex, position: int) -> str | None:
    """Return the state of a message, None if the message is gone."""
    if position not in index.live:
        return "rewindable" if position in index.rewindable else None
    if position in index.half:
        return "half"
    if position in index.damaged:
        return "delayed" if position in index.delays.damaged else "active"
    if position in index.active or position in index.moving:
        return "active"
    return "delayed" if position in index.delays.scheduled or position in index.delays.overflow else "in_flight"


def _find(index: QueueIndex, states: frozenset[str] | None, start: int, most: int) -> tuple[list[int], int | None]:
    """Return up to ``most`` positions from ``start`` on in one of ``states``, and the position to go on from.

    The position is None if the search reached the end or found enough, and not None if the search stopped after
    ``MOST_STRETCHES`` steps: a search over a queue of many millions would hold up the loop.
    """
    if states is None:
        return index.live_from(start, most), None
    found: list[int] = []
    for _ in range(MOST_STRETCHES):
        first = _first(index, states, start)
        if first is None:
            return found, None
        start = first + STRETCH
        for position in _in_states(index, states, BitMap64(range(first, start))):
            found.append(position)
            if len(found) == most:
                return found, None
    return found, start


def _first(index: QueueIndex, states: frozenset[str], start: int) -> int | None:
    """Return the first position from ``start`` on that may be in one of ``states``."""
    sets: list[BitMap64] = []
    if states & {"active", "in_flight", "delayed"}:
        sets.append(index.live)
    if "half" in states:
        sets.append(index.half)
    if "rewindable" in states:
        sets.append(index.rewindable)
    firsts = (next(positions.iter_equal_or_larger(start), None) for positions in sets)
    return min((first for first in firsts if first is not None), default=None)


def _in_states(index: QueueIndex, states: frozenset[str], stretch: BitMap64) -> BitMap64:
    matching = BitMap64()
    if "active" in states:
        matching |= (
            (index.active & stretch) | (index.moving & stretch) | ((index.damaged & stretch) - index.delays.damaged)
        )
    if "delayed" in states:
        matching |= (
            (index.delays.scheduled & stretch) | (index.delays.overflow & stretch) | (index.delays.damaged & stretch)
        )
    if "half" in states:
        matching |= index.half & stretch
    if "rewindable" in states:
        matching |= index.rewindable & stretch
    if "in_flight" in states:
        in_flight = index.live & stretch
        for others in (
            index.active,
            index.delays.scheduled,
            index.delays.overflow,
            index.half,
            index.moving,
            index.damaged,
        ):
            in_flight -= others & stretch
        matching |= in_flight
    return matching
