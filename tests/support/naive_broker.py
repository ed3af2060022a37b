"""What a broker must do, the naive way: an object for each message, lists to look through, no index of anything.

It follows the real broker's replies and says what it thinks of them. Where the rules leave room (how much of what is
there a reply holds, at which tick within a bucket something ends), it checks that the choice is a legal one, and
takes it over.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cmqd.core.limits import Limits
from cmqd.core.outcome import Peeked, ReceivedMessage
from cmqd.core.state import DELAY_BUCKET_MS, LEASE_BUCKET_MS, WAIT_BUCKET_MS
from cmqd_segment.records import Headers

STEP_GRAIN_MS = 100
"""How late the floor of retention may pass a message."""


class State(Enum):
    ACTIVE = "active"
    DELAYED = "delayed"
    OVERFLOW = "overflow"
    IN_FLIGHT = "in_flight"
    DAMAGED = "damaged"


def ends_ms(due_ms: int, width_ms: int) -> int:
    """When something due at ``due_ms`` is seen to by a tick."""
    return -(-due_ms // width_ms) * width_ms


@dataclass
class NaiveMessage:
    position: int
    message_id: int
    body: bytes
    headers: Headers | None
    enqueue_ms: int
    visible_ms: int
    """0 = without delay."""
    state: State
    receive_count: int = 0
    first_receive_ms: int = 0
    before: tuple[int, int] = (0, 0)
    """Receive count and first time before the receive that holds it."""
    handle: int = 0
    deadline_ms: int = 0
    repaired_state: State = State.ACTIVE
    """Of a damaged one: its state for who reads the log anew."""

    def is_due(self, now_ms: int) -> bool:
        """Whether the next tick that gets to it makes it active."""
        if self.state is State.DELAYED:
            return ends_ms(self.visible_ms, DELAY_BUCKET_MS) <= now_ms
        return self.state is State.IN_FLIGHT and ends_ms(self.deadline_ms, LEASE_BUCKET_MS) <= now_ms

    def come_back(self) -> None:
        """Its delay or its lease is over."""
        self.state = State.ACTIVE
        self.handle = 0


@dataclass
class NaiveReceive:
    """Somebody who waits."""

    waiter_id: int
    most: int
    visibility_timeout_ms: int
    deadline_ms: int
    waits: bool
    """False: without a wait, but its page must be read first."""

    def is_over(self, now_ms: int) -> bool:
        return not self.waits or ends_ms(self.deadline_ms, WAIT_BUCKET_MS) <= now_ms


@dataclass
class NaivePeek:
    queue: "NaiveQueue"
    start: int
    most: int
    next_position: int
    """Of the queue, when it was asked: what came later need not be shown."""


@dataclass
class NaiveQueue:
    queue_id: int
    account: str
    name: str
    attributes: dict[str, Any]
    limits: Limits
    messages: dict[int, NaiveMessage] = field(default_factory=dict[int, NaiveMessage])
    """Those not gone, by position, ascending."""
    next_position: int = 0
    last_enqueue_ms: int = 0
    line: list[NaiveReceive] = field(default_factory=list[NaiveReceive])
    handles: set[int] = field(default_factory=set[int])
    """Every handle ever given out."""
    by_id: dict[int, NaiveMessage] = field(default_factory=dict[int, NaiveMessage])

    # ------------------------------------------------------------------ looking

    def of(self, *states: State) -> list[NaiveMessage]:
        return [message for message in self.messages.values() if message.state in states]

    def active(self) -> list[NaiveMessage]:
        return self.of(State.ACTIVE)

    def due(self, now_ms: int) -> list[NaiveMessage]:
        return [message for message in self.messages.values() if message.is_due(now_ms)]

    def receivable(self) -> set[int]:
        """The positions of which somebody should get some."""
        return set() if self.in_flight() >= self.limits.max_in_flight else {one.position for one in self.active()}

    def in_flight(self) -> int:
        return len(self.of(State.IN_FLIGHT))

    def counts(self) -> dict[str, int]:
        return {
            "active": len(self.active()),
            "in_flight": self.in_flight(),
            "delayed": len(self.of(State.DELAYED, State.OVERFLOW)),
            "half": 0,
            "rewindable": 0,
            "damaged": len(self.of(State.DAMAGED)),
            "waiting_receives": len(self.line),
        }

    def is_expired(self, message: NaiveMessage, now_ms: int) -> bool:
        return message.enqueue_ms + self.attributes["retention_ms"] <= now_ms

    # ------------------------------------------------------------------ changing

    def send(
        self, ids: Iterable[int], bodies: list[bytes], headers: list[Headers | None], delays: list[int], now_ms: int
    ) -> None:
        enqueue_ms = self.last_enqueue_ms = max(now_ms, self.last_enqueue_ms)
        for message_id, body, its_headers, delay_ms in zip(ids, bodies, headers, delays, strict=True):
            state = State.ACTIVE
            if delay_ms:
                full = len(self.of(State.DELAYED)) >= self.attributes["max_delayed"] or self.waiting_delays()
                state = State.OVERFLOW if full else State.DELAYED
            message = NaiveMessage(
                self.next_position,
                message_id,
                body,
                its_headers or None,
                enqueue_ms,
                enqueue_ms + delay_ms if delay_ms else 0,
                state,
            )
            self.messages[self.next_position] = self.by_id[message_id] = message
            self.next_position += 1

    def waiting_delays(self) -> list[NaiveMessage]:
        """Those who wait for a place among the delayed, those who cannot be read included."""
        return [
            message
            for message in self.messages.values()
            if message.state is State.OVERFLOW
            or (message.state is State.DAMAGED and message.repaired_state is State.OVERFLOW)
        ]

    def deliver(self, receive: NaiveReceive, got: list[ReceivedMessage], now_ms: int) -> list[int]:
        """A receive was answered with these; their positions."""
        assert 1 <= len(got) <= receive.most
        positions: list[int] = []
        for one in got:
            message = self.by_id[one.message_id]
            assert self.messages.get(message.position) is message, "a message that is gone was delivered"
            assert message.state is State.ACTIVE or message.is_due(now_ms), f"delivered while {message.state}"
            assert not self.is_expired(message, now_ms), "an expired message was delivered"
            positions.append(message.position)
        assert positions == sorted(set(positions)), "out of order, or twice in one reply"
        skipped = [
            message.position
            for message in self.active()
            if message.position < positions[-1] and message.position not in positions
        ]
        assert not skipped, f"active messages {skipped} were passed over"
        sizes = [self._bytes(self.messages[position]) for position in positions]
        assert len(sizes) == 1 or sum(sizes) <= self.limits.max_batch_bytes
        for one in got:
            message = self.by_id[one.message_id]
            if message.state is not State.ACTIVE:
                message.come_back()
            assert (one.body, one.headers or None, one.enqueue_ms) == (
                message.body,
                message.headers,
                message.enqueue_ms,
            )
            assert one.receipt_handle not in self.handles, "a handle was used twice"
            message.state = State.IN_FLIGHT
            message.before = message.receive_count, message.first_receive_ms
            message.receive_count += 1
            message.first_receive_ms = message.first_receive_ms or now_ms
            message.handle = one.receipt_handle
            message.deadline_ms = now_ms + receive.visibility_timeout_ms
            self.handles.add(one.receipt_handle)
            assert one.receive_count == message.receive_count
            assert one.first_receive_ms == message.first_receive_ms
            assert one.next_visible_ms == message.deadline_ms
        assert self.in_flight() - len(self.due(now_ms)) <= self.limits.max_in_flight
        return positions

    @staticmethod
    def _bytes(message: NaiveMessage) -> int:
        headers = message.headers or {}
        return len(message.body) + sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())

    def answer_waiter(self, waiter_id: int, got: list[ReceivedMessage], there: set[int], now_ms: int) -> list[int]:
        """Somebody in the line was answered; the positions that went out. ``there``: those active for long enough
        that he should have got some of them.
        """
        place = next(place for place, receive in enumerate(self.line) if receive.waiter_id == waiter_id)
        receive = self.line.pop(place)
        if got:
            assert place == 0, "somebody was overtaken"
            return self.deliver(receive, got, now_ms)
        assert receive.is_over(now_ms), "answered empty before its wait was over"
        full = self.in_flight() >= self.limits.max_in_flight
        left = [message.position for message in self.active() if message.position in there]
        assert full or not left, "answered empty while there was something for it"
        return []

    def held(self, handle: int, now_ms: int) -> NaiveMessage | None:
        """The message for which a handle is valid."""
        for message in self.messages.values():
            if message.state is State.IN_FLIGHT and message.handle == handle and message.deadline_ms > now_ms:
                return message
        return None

    def settle(self, handles: list[int], refused: list[int], now_ms: int) -> tuple[list[NaiveMessage], list[int]]:
        """(messages whose handles are valid, handles that are not); a handle given twice fails the second time.
        Those of expired messages may be ``refused``, and must be once a step of time has passed.
        """
        done: list[NaiveMessage] = []
        failed: list[int] = []
        for handle in handles:
            message = self.held(handle, now_ms)
            if message is not None and self.is_expired(message, now_ms):
                if refused.count(handle) == handles.count(handle):
                    message = None
                else:
                    assert not self.is_expired(message, now_ms - STEP_GRAIN_MS), "valid long after the retention"
            if message is None or message in done:
                failed.append(handle)
            else:
                done.append(message)
        return done, failed

    def end_lease(self, handle: int, now_ms: int) -> None:
        """A tick ended it; it may do so before its bucket is due, if it was in an earlier one once."""
        (message,) = (one for one in self.of(State.IN_FLIGHT) if one.handle == handle)
        assert message.deadline_ms <= now_ms, "a lease ended too early"
        message.come_back()

    def delete(self, messages: list[NaiveMessage]) -> None:
        for message in messages:
            del self.messages[message.position]

    def release(self, messages: list[NaiveMessage], counted: bool) -> None:
        for message in messages:
            message.come_back()
            if not counted:
                message.receive_count, message.first_receive_ms = message.before

    def hide(self, messages: list[NaiveMessage], timeout_ms: int, now_ms: int) -> int:
        """The earliest of the new deadlines allowed; see :meth:`check_hidden` for what was made of them."""
        latest: list[int] = []
        for message in messages:
            cut_ms = message.enqueue_ms + self.attributes["retention_ms"]
            message.deadline_ms = max(now_ms, min(now_ms + timeout_ms, cut_ms))
            latest.append(message.deadline_ms)
        return min(latest, default=0)

    def pass_floor(self, floor: int, now_ms: int | None) -> None:
        """Messages below are gone: expired by ``now_ms``, or cleared (None)."""
        gone = [message for message in self.messages.values() if message.position < floor]
        if now_ms is not None:
            assert all(self.is_expired(message, now_ms) for message in gone), "expired too early"
        self.delete(gone)

    def schedule(self, positions: list[int], visible_ms: list[int], now_ms: int) -> None:
        """These got a place among the delayed."""
        waiting = self.of(State.OVERFLOW)
        assert positions == [message.position for message in waiting[: len(positions)]], "places are given in order"
        held = [message for message in self.of(State.DELAYED) if not message.is_due(now_ms)]
        assert len(held) + len(positions) <= self.attributes["max_delayed"]
        for position, due_ms in zip(positions, visible_ms, strict=True):
            message = self.messages[position]
            assert message.visible_ms == due_ms
            message.state = State.DELAYED

    def damage(self, positions: Iterable[int], active: set[int], now_ms: int) -> int:
        """These cannot be read; how many are newly found to be so."""
        found = 0
        for position in positions:
            message = self.messages.get(position)
            if message is not None and message.is_due(now_ms) and position in active:
                # One of the ticks made so far has made it active.
                message.come_back()
            if message is not None and message.state in (State.ACTIVE, State.OVERFLOW):
                message.repaired_state = message.state
                message.state = State.DAMAGED
                found += 1
        return found

    def settle_time(self, now_ms: int) -> None:
        """Every tick that was due has been made."""
        for message in self.due(now_ms):
            message.come_back()
        late = [message for message in self.messages.values() if self.is_expired(message, now_ms - STEP_GRAIN_MS)]
        assert not late, "not gone long after their retention"
        assert not any(receive.waits and receive.is_over(now_ms) for receive in self.line if not self.active())

    def check_peek(self, peek: NaivePeek, got: Peeked, unreadable: set[int], now_ms: int) -> None:
        """The answer to a peek shows what is there, without holes."""
        assert len(got.messages) <= peek.most
        shown: list[int] = []
        for one in got.messages:
            message = self.by_id[one.message_id]
            assert self.messages.get(message.position) is message, "a message that is gone was shown"
            assert not self.is_expired(message, now_ms), "an expired message was shown"
            assert (one.body, one.headers or None, one.enqueue_ms) == (
                message.body,
                message.headers,
                message.enqueue_ms,
            )
            shown.append(message.position)
            if message.is_due(now_ms) or message.state is State.DAMAGED:
                continue
            state = State.DELAYED if message.state is State.OVERFLOW else message.state
            assert one.state == state.value
            assert one.receive_count == message.receive_count
            assert one.visible_ms == (message.visible_ms if state is State.DELAYED else 0)
        assert shown == sorted(set(shown))
        stop = peek.next_position if got.next_start is None else got.next_start
        assert got.next_start is None or got.next_start > peek.start, "a peek that does not get on"
        expected = [position for position in self.messages if peek.start <= position < stop]
        expired = {position for position in expected if self.is_expired(self.messages[position], now_ms)}
        hidden = set(expected) - set(shown) - expired
        assert hidden <= unreadable, f"the peek passed over {hidden - unreadable}"
        assert set(shown) <= set(expected)

    def restart(self) -> None:
        """The broker was started anew: nobody waits, and damage is still to be found."""
        self.line.clear()
        for message in self.of(State.DAMAGED):
            message.state = message.repaired_state


class NaiveSessions:
    """Numbered sends: the answers that must be remembered."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.sessions: OrderedDict[tuple[str, int], dict[int, list[int]]] = OrderedDict()
        self.last_use_ms: dict[tuple[str, int], int] = {}

    def find(self, account: str, session: int, sequence: int) -> list[int] | str:
        """The ids of a send that was stored before, or "new", or "too old"."""
        answers = self.sessions.get((account, session), {})
        if sequence in answers:
            return answers[sequence]
        highest = max(answers, default=0)
        return "too old" if sequence + self.limits.session_answers <= highest else "new"

    def note(self, account: str, session: int, sequence: int, ids: list[int], now_ms: int) -> None:
        key = account, session
        if self.may_be_forgotten(account, session, now_ms):
            self.sessions.pop(key, None)
        answers = self.sessions.setdefault(key, {})
        # One is forgotten when its place in the ring is taken.
        size = self.limits.session_answers
        for old in [old for old in answers if old % size == sequence % size]:
            del answers[old]
        answers[sequence] = ids
        self.sessions.move_to_end(key)
        self.last_use_ms[key] = now_ms
        if len(self.sessions) > self.limits.max_sessions:
            self.sessions.popitem(last=False)

    def may_be_forgotten(self, account: str, session: int, now_ms: int) -> bool:
        key = account, session
        return self.last_use_ms.get(key, 0) + self.limits.session_life_ms <= now_ms

    def forget(self, keep: set[tuple[str, int]], now_ms: int) -> None:
        """Take over which sessions are left; none may go before its time."""
        for key in [key for key in self.sessions if key not in keep]:
            assert self.may_be_forgotten(*key, now_ms), "a session was forgotten too early"
            del self.sessions[key]
        assert set(self.sessions) == keep
