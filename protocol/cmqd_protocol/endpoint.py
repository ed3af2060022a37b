"""Common part of both sides of a connection, without I/O: state, frames, output, heartbeats and timeouts.

A shell (asyncio, a thread, a test) owns the socket and the clock and does, in this order, each time it wakes up:

    connection.receive_data(data, now_ms)        the bytes that were read
    for event in connection.events(): ...        messages and events, in order
    connection.send(reply) ...                   any number, now or later
    write(connection.data_to_send(now_ms))       once; a list of pieces, usually a single piece
    if connection.is_ending: close()             after the write; then connection.closed()

and calls ``tick(now_ms)`` when ``next_deadline_ms()`` has passed. Times are milliseconds of any monotonic clock.
Bytes from a peer never make a method raise: a peer that breaks the protocol ends the connection, with a
``ConnectionEnded`` among the events and (on the server) an Error frame in the output. Methods raise
``LocalProtocolError`` for a mistake of the shell, before any change.

``server_connection`` and ``client_connection`` have the two sides, ``states`` the states and their transitions,
``protocol/SPEC.md`` the meaning of the bytes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from cmqd_protocol.events import ConnectionEnded
from cmqd_protocol.frames import HEARTBEAT, FrameReader, decode_preamble, frame
from cmqd_protocol.limits import HANDSHAKE_FRAME_BYTES, JOIN_BYTES, MAGIC, PREAMBLE_BYTES
from cmqd_protocol.messages import Error, encoder, error
from cmqd_protocol.protocol_errors import ErrorCode, LocalProtocolError
from cmqd_protocol.states import TRANSITIONS, Role, State, Step

EventT = TypeVar("EventT")


class Endpoint(Generic[EventT]):
    """Common part of the two sides of a connection.

    Invariants: output is queued only in states that allow output; after ``is_ending`` no events or output are added;
    ``outstanding`` holds exactly the requests that were passed on and have no reply yet.
    """

    __slots__ = (
        "_deadline_ms",
        "_events",
        "_last_read_ms",
        "_last_write_ms",
        "_max_frame_bytes",
        "_out",
        "_outstanding",
        "_reader",
        "_heartbeat_ms",
        "_state",
        "ended",
    )
    role: ClassVar[Role]

    def __init__(self, *, max_frame_bytes: int, heartbeat_ms: int, timeout_ms: int, now_ms: int) -> None:
        self._state = State.PREAMBLE
        self._reader = FrameReader(HANDSHAKE_FRAME_BYTES)
        self._events: list[EventT | ConnectionEnded] = []
        self._out: list[bytes] = []
        self._outstanding: set[int] = set()
        # Proposed values until the connection is open, then the negotiated values.
        self._max_frame_bytes = max_frame_bytes
        self._heartbeat_ms = heartbeat_ms
        # End of the handshake's timeout.
        self._deadline_ms = now_ms + timeout_ms
        self._last_read_ms = now_ms
        self._last_write_ms = now_ms
        self.ended: ConnectionEnded | None = None
        """Reason for the end of the connection; None before the end."""

    # -------------------------------------------------------------- for the shell

    @property
    def state(self) -> State:
        """State of the connection; see ``states``."""
        return self._state

    @property
    def is_open(self) -> bool:
        """True if ``send`` is allowed."""
        return self._state is State.OPEN

    @property
    def is_ending(self) -> bool:
        """True if the shell should write ``data_to_send()`` and close."""
        return self._state in (State.CLOSING, State.CLOSED)

    @property
    def outstanding(self) -> int:
        """Number of requests that wait for their reply."""
        return len(self._outstanding)

    @property
    def unfinished_bytes(self) -> int:
        """Memory of an incomplete frame in bytes."""
        return self._reader.reserved_bytes

    @property
    def missing_bytes(self) -> int:
        """Number of bytes missing from the incomplete frame, as far as the header tells; 0 between frames."""
        return self._reader.missing_bytes

    def leaves_unfinished(self, data: bytes) -> bool:
        """Return True if the connection is open and no frame ends in ``data``: to receive the bytes stores them."""
        return self._state is State.OPEN and self._reader.leaves_unfinished(data)

    def space(self) -> memoryview:
        """Return the memory of the next of ``missing_bytes``, of a large frame; ``filled`` tells how many were written.

        Only while ``missing_bytes`` is above ``LARGE_FRAME_BYTES``, or was before bytes were written.
        """
        return self._reader.space()

    def filled(self, count: int, now_ms: int) -> bool:
        """Take note of bytes that were written into ``space``; return True if the frame is complete, for
        ``receive_filled``.
        """
        self._last_read_ms = now_ms
        return self._reader.filled(count)

    def is_within_frame(self, data: bytes, most: int) -> bool:
        """Return True if the connection is open and ``data`` belongs to a single frame of at most ``most`` bytes.

        Bytes of at most one request are then in ``data``, the last request of the stream so far.
        """
        return self._state is State.OPEN and self._reader.is_within_frame(data, most)

    @property
    def max_frame_bytes(self) -> int:
        """Negotiated limit of a payload in bytes, once open."""
        return self._max_frame_bytes

    @property
    def heartbeat_ms(self) -> int:
        """Negotiated heartbeat, once open; 0 = no heartbeats."""
        return self._heartbeat_ms

    def events(self) -> list[EventT | ConnectionEnded]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def data_to_send(self, now_ms: int) -> list[bytes]:
        """Return the queued output. The caller writes all pieces, in order, at once; an empty list = no output.

        The output is a single piece, unless joining the pieces would cost more than writing them separately.
        """
        if not self._out:
            return []
        out, self._out = self._out, []
        self._last_write_ms = now_ms
        return [b"".join(out)] if sum(map(len, out)) <= JOIN_BYTES else out

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next ``tick``; None = no ``tick`` is due before further input or output."""
        if self._state is State.OPEN:
            heartbeat = self._heartbeat_ms
            if not heartbeat:
                return None
            return min(self._last_write_ms + heartbeat // 2, self._last_read_ms + 2 * heartbeat)
        return None if self.is_ending else self._deadline_ms

    def tick(self, now_ms: int) -> None:
        """Send a heartbeat when due; end the connection of a peer that is silent or does not authenticate in time."""
        if self._state is State.OPEN:
            heartbeat = self._heartbeat_ms
            if not heartbeat:
                return
            if now_ms - self._last_read_ms >= 2 * heartbeat:
                self._end(ErrorCode.HEARTBEAT_TIMEOUT, f"nothing was read for {2 * heartbeat} ms")
            elif now_ms - self._last_write_ms >= heartbeat // 2 and not self._out:
                self._out.append(HEARTBEAT)
        elif not self.is_ending and now_ms >= self._deadline_ms:
            self._end(ErrorCode.AUTHENTICATION_TIMEOUT, "the handshake took too long")

    def closed(self) -> None:
        """Record that the socket was closed by the shell or the peer. Repeated calls have no effect."""
        self._step(Step.CLOSED)
        self._out = []
        self._outstanding.clear()
        # A shell may keep this object for a while, and an unfinished frame can be large.
        self._reader.clear()

    # -------------------------------------------------------------- for the two sides

    def _step(self, step: Step) -> None:
        try:
            self._state = TRANSITIONS[self.role][self._state][step]
        except KeyError:
            raise LocalProtocolError(f"{step.name} is not possible in state {self._state.name}") from None

    def _end(
        self,
        code: ErrorCode,
        text: str,
        *,
        retry_after_ms: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """End the connection from this side."""
        reply = error(0, code, text, retry_after_ms=retry_after_ms, details=details)
        self._queue_last(reply)
        self._step(Step.ENDED)
        self._ended(reply, by_peer=False)

    def _queue_last(self, reply: Error) -> None:
        """Tell the peer why the connection ends. A client has no frame for that and just closes."""

    def _ended(self, reply: Error, *, by_peer: bool) -> None:
        self.ended = ConnectionEnded(
            reply.code, reply.name, reply.text, by_peer, reply.retryable, reply.retry_after_ms, reply.details
        )
        self._events.append(self.ended)
        self._outstanding.clear()

    def _queue(self, message: Struct) -> None:
        self._out.append(frame(encoder.encode(message)))

    def _open(self, max_frame_bytes: int, heartbeat_ms: int) -> None:
        self._step(Step.PROOF_ACCEPTED)
        self._max_frame_bytes = self._reader.limit = max_frame_bytes
        self._heartbeat_ms = heartbeat_ms

    def _read_preamble(self) -> tuple[int, int] | None:
        """Return the peer's preamble once complete. The first byte that differs from ``CMQD`` ends the connection."""
        start = self._reader.peek(PREAMBLE_BYTES)
        if not MAGIC.startswith(start[: len(MAGIC)]):
            self._end(ErrorCode.MALFORMED_FRAME, "this is not the cmqd protocol: the preamble does not start with CMQD")
            return None
        data = self._reader.take(PREAMBLE_BYTES)
        return None if data is None else decode_preamble(data)

    def _check_length(self) -> bool:
        """Return False and end the connection if the reader refused a frame over the limit, else return True."""
        length = self._reader.refused_length
        if not length:
            return True
        limit = self._reader.limit
        self._end(
            ErrorCode.FRAME_TOO_LARGE,
            f"a frame of {length} bytes is over the limit of {limit} in state {self._state.name}",
            details={"value": length, "limit": limit},
        )
        return False

    def _malformed(self, problem: Exception) -> None:
        text = str(problem) if not isinstance(problem, RecursionError) else "nested too deep"
        self._end(ErrorCode.MALFORMED_FRAME, f"a frame could not be understood: {text}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.name} outstanding={len(self._outstanding)}>"
