"""What both sides of a connection share: the state, the frames, the output, and what time asks for.

``connection`` has the two sides and says how a shell uses them; nothing here knows which side it is.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from cmqd_protocol.errors import ErrorCode, LocalProtocolError
from cmqd_protocol.events import ConnectionEnded
from cmqd_protocol.frames import HEARTBEAT, FrameReader, decode_preamble, frame
from cmqd_protocol.limits import HANDSHAKE_FRAME_BYTES, JOIN_BYTES, MAGIC, PREAMBLE_BYTES
from cmqd_protocol.messages import Error, encoder, error
from cmqd_protocol.states import TRANSITIONS, Role, State, Step

EventT = TypeVar("EventT")


class Endpoint(Generic[EventT]):
    """What both sides share: state, frames, output, heartbeats.

    Invariants: output is queued only in a state that allows it; after ``is_ending`` no event and no output is added;
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
        # This side's wish until the connection is open, then what is in force.
        self._max_frame_bytes = max_frame_bytes
        self._heartbeat_ms = heartbeat_ms
        # Until then the handshake must be over.
        self._deadline_ms = now_ms + timeout_ms
        self._last_read_ms = now_ms
        self._last_write_ms = now_ms
        self.ended: ConnectionEnded | None = None
        """Why the connection is over, once it is."""

    # -------------------------------------------------------------- what a shell may ask

    @property
    def state(self) -> State:
        """Where the connection is; see ``states``."""
        return self._state

    @property
    def is_open(self) -> bool:
        """Whether ``send`` is allowed."""
        return self._state is State.OPEN

    @property
    def is_ending(self) -> bool:
        """Whether the shell should write ``data_to_send()`` and close."""
        return self._state in (State.CLOSING, State.CLOSED)

    @property
    def outstanding(self) -> int:
        """How many requests wait for their reply."""
        return len(self._outstanding)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes stored of a frame that has not arrived whole."""
        return self._reader.stored_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes that the frame under way still lacks, as far as its header tells; 0 between frames."""
        return self._reader.missing_bytes

    @property
    def max_frame_bytes(self) -> int:
        """The largest payload either side may send, once open."""
        return self._max_frame_bytes

    @property
    def heartbeat_ms(self) -> int:
        """The heartbeat in force, once open; 0 = none."""
        return self._heartbeat_ms

    def events(self) -> list[EventT | ConnectionEnded]:
        """Hand over what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def data_to_send(self, now_ms: int) -> list[bytes]:
        """Hand over the output. The caller writes all of it, in order, in one go; an empty list = nothing to write.

        One piece as a rule; several when joining them would cost more than writing them apart.
        """
        if not self._out:
            return []
        out, self._out = self._out, []
        self._last_write_ms = now_ms
        return [b"".join(out)] if sum(map(len, out)) <= JOIN_BYTES else out

    def next_deadline_ms(self) -> int | None:
        """When ``tick`` wants to be called; None = not before something else happens."""
        if self._state is State.OPEN:
            heartbeat = self._heartbeat_ms
            if not heartbeat:
                return None
            return min(self._last_write_ms + heartbeat // 2, self._last_read_ms + 2 * heartbeat)
        return None if self.is_ending else self._deadline_ms

    def tick(self, now_ms: int) -> None:
        """Do what time asks for: a heartbeat, or giving up a peer that is silent or does not authenticate."""
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
        """The shell has closed the socket, or the peer has. Harmless when repeated."""
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
        """This side ends the connection."""
        reply = error(0, code, text, retry_after_ms=retry_after_ms, details=details)
        self._step(Step.ENDED)
        self._ended(reply, by_peer=False)

    def _ended(self, reply: Error, *, by_peer: bool) -> None:
        self.ended = ConnectionEnded(reply.code, reply.name, reply.text, by_peer, reply.retryable, reply.retry_after_ms)
        self._events.append(self.ended)
        self._outstanding.clear()

    def _queue(self, message: Struct) -> None:
        self._out.append(frame(encoder.encode(message)))

    def _open(self, max_frame_bytes: int, heartbeat_ms: int) -> None:
        self._step(Step.PROOF_ACCEPTED)
        self._max_frame_bytes = self._reader.limit = max_frame_bytes
        self._heartbeat_ms = heartbeat_ms

    def _read_preamble(self) -> tuple[int, int] | None:
        """The peer's preamble, once it is there; one that is not ours ends the connection at its first wrong byte."""
        start = self._reader.peek(PREAMBLE_BYTES)
        if not MAGIC.startswith(start[: len(MAGIC)]):
            self._end(ErrorCode.MALFORMED_FRAME, "this is not the cmqd protocol: the preamble does not start with CMQD")
            return None
        data = self._reader.take(PREAMBLE_BYTES)
        return None if data is None else decode_preamble(data)

    def _check_length(self) -> bool:
        """Whether the reader met no frame over the limit; if it did the connection ends here."""
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
