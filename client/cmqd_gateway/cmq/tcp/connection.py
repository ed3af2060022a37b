"""A connection of CMQ's TCP protocol: frames in, replies out, and the log-in; no timer and no task while idle.

    bytes ─► frames ─► 1020: log-in, nothing else meanwhile
                    ├► 1040: heartbeat, no answer
                    └► a task for each other request; answers in any order

Reading stops while a log-in is under way, after some frames in a row (other connections have a turn), and while the
client does not read: the socket did not take all bytes of the answers. Messages wait for the socket outside its buffer,
so that they go back to their queue if the connection ends. The regular check of all connections ends the late ones.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import HEADER, Envelope, NoEnvelope, read_envelope, read_values
from cmqd_gateway.cmq.tcp.frames import HEAD_BYTES, FrameError, FrameReader
from cmqd_gateway.cmq.tcp.proto2 import Malformed, Values
from cmqd_gateway.http.hand_over import HandOver
from cmqd_gateway.http.request_bodies import TINY_BODY, BodyRefused

if TYPE_CHECKING:
    from cmqd_gateway.cmq.tcp.connections import Connections
    from cmqd_gateway.cmq.tcp.repeats import SentAnswers

LOG_IN_BYTES: Final = 4_096
"""Longest frame before the log-in, and most bytes behind a log-in that is under way."""
LOG_IN_SECONDS: Final = 5.0
FRAMES_AT_ONCE: Final = 64
"""Frames of a connection before other connections have a turn: about two milliseconds."""
BYTES_AT_ONCE: Final = 16_384
"""Bytes of such frames: a stranger can make frames of fields that take 30 times as long to read as usual frames."""
NO_SESSION: Final = 306
"""Result of a request before the log-in; the SDK connects again at its next request."""
HAS_SESSION: Final = 307
NO_MESSAGE: Final = 10_200
"""Result of a receive without a message; the SDK would log code 7000 of API 2.0 as an error."""


class Connection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_all",
        "_held_bytes",
        "_is_busy",
        "_is_continuing",
        "_is_reading",
        "_is_stuck",
        "_logging_in",
        "_loop",
        "_output",
        "_reader",
        "_unwritten",
        "_writing",
        "client_id",
        "frame_since",
        "key",
        "log_in_since",
        "opened_at",
        "read_at",
        "remote",
        "requests",
        "sent",
        "stuck_since",
        "transport",
    )

    def __init__(self, connections: "Connections") -> None:
        self._all = connections
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(LOG_IN_BYTES)
        self._held_bytes = 0
        """Bytes of the unfinished frame that count in the gateway's budget."""
        self._logging_in: asyncio.Task[None] | None = None
        self._is_continuing = False
        """True while a further turn for the frames that have arrived is scheduled."""
        self._is_reading = True
        self._is_stuck = False
        """True while the socket has not taken all bytes of the answers."""
        self._output: list[bytes] = []
        """Frames for the next write."""
        self._writing: list[asyncio.Future[None]] = []
        """Of the frames with messages in ``_output``."""
        self._unwritten: list[asyncio.Future[None]] = []
        """Of the frames with messages that the socket has taken in part."""
        self.transport: asyncio.Transport | None = None
        self.remote: str | None = None
        """IP address of the client."""
        self.key: KeySecret | None = None
        """None before the log-in."""
        self.client_id = ""
        self.requests: set[asyncio.Task[None]] = set()
        """The requests in progress."""
        self.sent: SentAnswers | None = None
        """The answers of the last sends; None before the first."""
        self.opened_at = self.read_at = connections.now()
        self.log_in_since: float | None = self.opened_at
        """Time from which the client may log in; None = the gateway's turn, or logged in."""
        self.frame_since: float | None = None
        """Time of the first bytes of the unfinished frame."""
        self.stuck_since: float | None = None

    # ------------------------------------------------------------------ events of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the asyncio event: a client connected."""
        # Not checked by isinstance: the transports of uvloop are no subclasses.
        self.transport = cast("asyncio.Transport", transport)
        if not self._all.add(self):
            self.transport.abort()
            self.transport = None
            return
        peer = self.transport.get_extra_info("peername")
        self.remote = peer[0] if peer else None
        # The end of a write is known at once: the socket took all bytes, or pause_writing was called.
        self.transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        """Handle the asyncio event: bytes arrived."""
        if self.transport is None:
            return
        self.read_at = self._all.now()
        self._all.bytes_in += len(data)
        self._reader.feed(data)
        self._take_frames()

    def pause_writing(self) -> None:
        """Handle the asyncio event: the socket did not take all bytes."""
        self._is_stuck = True
        self.stuck_since = self._all.now()
        self.check_reading()

    def resume_writing(self) -> None:
        """Handle the asyncio event: the socket has taken all bytes."""
        self._is_stuck = False
        self.stuck_since = None
        self._written()
        self._flush()
        if not self._is_stuck:
            self._take_frames()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the asyncio event: the connection is closed."""
        if self.transport is None:
            return
        self.transport = None
        if self._logging_in is not None:
            self._logging_in.cancel()
        # The messages of receives go back to their queues.
        self._all.cancel_soon(self.requests)
        self._held_bytes = self._all.bodies.hold(self._held_bytes, 0)
        if self.sent is not None:
            self.sent.close()
        self._all.remove(self)

    # ------------------------------------------------------------------ for the checks

    def end(self, reason: str) -> None:
        """End the connection at once, and count the reason unless the connection is closing already."""
        if self.transport is None:
            return
        if not self.transport.is_closing():
            self._all.note_end(self, reason)
        # A closing connection ends too: it waits for a client that may never read the answers in front of the end.
        self.transport.abort()

    def close(self) -> None:
        """End the connection behind the answers that are made."""
        self._flush()
        if self.transport is not None:
            self.transport.close()

    @property
    def state(self) -> str:
        """The state for metrics: ``logging_in``, ``idle``, ``busy`` or ``not_reading``."""
        if self.key is None:
            return "logging_in"
        if self._is_stuck:
            return "not_reading"
        return "busy" if self.requests else "idle"

    @property
    def is_answering(self) -> bool:
        """True while an answer is still to be made or written."""
        return bool(self.requests or self._output or self._is_stuck)

    async def send_once(self, envelope: Envelope, send: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the fields of the answer to a send; a repeat gets those of the first send."""
        if not envelope.request_id:
            return await send()
        if self.sent is None:
            self.sent = self._all.repeats.connection()
        return await self.sent.answer(envelope.cmd, envelope.request_id, envelope.content, send)

    def ask(self, queue: str, message_number: int) -> bool:
        """Ask for the state of a half message; False = the client does not read, or has gone."""
        if self._is_stuck or self.transport is None or self.transport.is_closing():
            return False
        self.write(commands.push(self._all.next_push(), {"queueName": queue, "msgId": message_number}))
        return True

    def write(self, frame: bytes) -> None:
        """Write a frame without messages with the next answers."""
        if not self._output and not self._is_stuck:
            self._loop.call_soon(self._flush)
        self._output.append(frame)

    # ------------------------------------------------------------------ input

    def _take_frames(self) -> None:
        """Handle the frames that have arrived, some at once."""
        frames = size = 0
        try:
            while frames < FRAMES_AT_ONCE and size < BYTES_AT_ONCE and self._may_read():
                payload = self._reader.next_payload()
                if payload is None:
                    break
                frames += 1
                size += len(payload)
                if self._held_bytes:
                    # The request counts its own bytes.
                    self._held_bytes = self._all.bodies.hold(self._held_bytes, 0)
                if not self._take(payload):
                    size = BYTES_AT_ONCE
        except FrameError:
            self.end("no frame")
            return
        is_turn_over = frames == FRAMES_AT_ONCE or size >= BYTES_AT_ONCE
        if is_turn_over and self._reader.unread_bytes and not self._is_continuing:
            self._is_continuing = True
            self._loop.call_soon(self._continue)
        self._look_at_unfinished(has_begun=frames > 0)
        self.check_reading()

    def _continue(self) -> None:
        self._is_continuing = False
        if self.transport is not None:
            self._take_frames()

    def _may_read(self) -> bool:
        return not (
            self._is_stuck
            or self._logging_in is not None
            or self._all.is_draining
            or self.transport is None
            or self.transport.is_closing()
        )

    def check_reading(self) -> None:
        """Read from the socket, or do not, as the state of the connection demands."""
        transport = self.transport
        should_read = self._may_read() and not self._is_continuing
        if transport is None or transport.is_closing() or should_read == self._is_reading:
            return
        self._is_reading = should_read
        if should_read:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _look_at_unfinished(self, *, has_begun: bool) -> None:
        """Count the bytes of an unfinished frame, and note its begin.

        Args:
            has_begun: True if a frame before it ended in this turn.
        """
        unread = self._reader.unread_bytes
        if self.key is None and self._logging_in is not None and unread > LOG_IN_BYTES:
            self.end("bytes before the log-in")
            return
        if self._is_continuing or self._all.is_draining:
            # Whole frames wait for their turn, and no more bytes are read.
            self.frame_since = None
            return
        are_whole = not self._may_read()
        """Whole frames wait for a log-in, or for a client that does not read. They are not the client's delay."""
        if are_whole or not self._reader.is_within_frame:
            self.frame_since = None
        elif has_begun or self.frame_since is None:
            self.frame_since = self.read_at
        if unread > TINY_BODY or self._held_bytes:
            try:
                self._held_bytes = self._all.bodies.hold(self._held_bytes, unread)
            except BodyRefused as refusal:
                if are_whole:
                    self.end("no memory")
                else:
                    self._drop_unfinished(refusal)

    def _drop_unfinished(self, refusal: BodyRefused) -> None:
        """Refuse a request that finds no memory, before all of it has arrived."""
        header: Values = {}
        with suppress(Malformed):
            HEADER.decode_into(header, self._reader.drop_unfinished())
        self._held_bytes = self._all.bodies.hold(self._held_bytes, 0)
        if "seqno" not in header or "cmd" not in header:
            self.end("no memory")
            return
        self._refuse(header["seqno"], header["cmd"], Refusal(Reason.THROTTLED, str(refusal)))

    def _take(self, payload: bytes) -> bool:
        """Handle a frame; False if the turn of the connection is over.

        The rate of a key bounds its requests, but not frames that are no requests. Such a frame has a turn of its own,
        so that a key with many connections does not hold up others with unknown commands.
        """
        try:
            envelope = read_envelope(payload)
        except NoEnvelope as error:
            if error.seqno is None:
                self.end("no envelope")
            else:
                self._refuse(error.seqno, error.cmd, Refusal(Reason.UNREADABLE_REQUEST, str(error)))
            return False
        cmd = envelope.cmd
        if cmd == commands.HEARTBEAT and not envelope.body_number:
            self._all.results[cmd, 0] += 1
        elif cmd == commands.LOG_IN:
            self.log_in_since = None
            self._logging_in = self._loop.create_task(self._log_in(envelope))
        elif self.key is None:
            self._answer(envelope.seqno, cmd, NO_SESSION, "(10031)connection is not authenticated; log in first")
            return False
        elif len(self.requests) >= self._all.settings.cmq_tcp_requests:
            self._refuse(envelope.seqno, cmd, Refusal(Reason.THROTTLED, "the connection has too many requests"))
        else:
            try:
                # Not in the task: of a request in progress the gateway holds the values alone.
                envelope.values = read_values(envelope)
                held = self._all.bodies.hold(0, len(payload) + HEAD_BYTES)
            except Refusal as refusal:
                self._refuse(envelope.seqno, cmd, refusal)
                return False
            except BodyRefused as refusal:
                self._refuse(envelope.seqno, cmd, Refusal(Reason.THROTTLED, str(refusal)))
                return False
            task = self._loop.create_task(self._run(envelope, self.key, held))
            self.requests.add(task)
            task.add_done_callback(self.requests.discard)
        return True

    # ------------------------------------------------------------------ requests

    async def _log_in(self, envelope: Envelope) -> None:
        result, text = 0, ""
        is_first = self.key is None
        try:
            key, client_id = await self._all.authenticate(envelope, self.remote)
            if is_first:
                self.key, self.client_id = key, client_id
                self._reader.limit = self._all.settings.max_request_bytes
                self._all.logged_in(self)
            elif self.key is not None and key.secret_id == self.key.secret_id:
                result, text = HAS_SESSION, "(10032)connection is already authenticated"
            else:
                raise Refusal(Reason.AUTHENTICATION_FAILED, "the connection has logged in with another key")
        except Refusal as refusal:
            result, text = refusal.code, refusal.message
            if is_first:
                self.log_in_since = self._all.now()
        finally:
            self._logging_in = None
        self._answer(envelope.seqno, envelope.cmd, result, text)
        if not is_first and result != HAS_SESSION:
            # The client may believe that it works as the other key.
            self._all.note_end(self, "second log-in")
            self.close()
        self._take_frames()

    async def _run(self, envelope: Envelope, key: KeySecret, held: int) -> None:
        """Perform a request and write its answer."""
        seqno, cmd = envelope.seqno, envelope.cmd
        is_receive = cmd in (commands.RECEIVE, commands.BATCH_RECEIVE)
        self._all.receives += is_receive
        try:
            with self._all.hand_over() as hand_over:
                try:
                    result, text, content = await self._all.answer(self, envelope, key, hand_over)
                except Refusal as refusal:
                    self._refuse(seqno, cmd, refusal)
                    return
                except Exception as bug:
                    self._refuse(seqno, cmd, self._all.failed(self, envelope, bug))
                    return
                if hand_over.has_messages:
                    await self._hand_over(hand_over, seqno, cmd, content)
                else:
                    self._answer(seqno, cmd, result, text, content)
        finally:
            self._all.receives -= is_receive
            self._all.bodies.hold(held, 0)

    async def _hand_over(self, hand_over: HandOver, seqno: int, cmd: int, content: bytes) -> None:
        """Write an answer with messages."""
        frame = commands.reply(seqno, cmd, 0, "", content)
        held = 0
        try:
            if self._is_stuck:
                # The messages wait in memory until the client reads.
                held = self._all.bodies.hold(0, len(frame))
            with suppress(ConnectionResetError):
                await hand_over.write_over(self.transport, lambda: self._write(frame))
                self._all.results[cmd, 0] += 1
        except BodyRefused:
            self._refuse(seqno, cmd, Refusal(Reason.THROTTLED, "the connection does not read its answers"))
        finally:
            self._all.bodies.hold(held, 0)

    def _write(self, frame: bytes) -> "Awaitable[None]":
        """Write a frame with messages; the result is done when the socket has taken its last byte."""
        self.write(frame)
        done: asyncio.Future[None] = self._loop.create_future()
        self._writing.append(done)
        return done

    # ------------------------------------------------------------------ output

    def _refuse(self, seqno: int, cmd: int, refusal: Refusal) -> None:
        result = NO_MESSAGE if refusal.reason is Reason.NO_MESSAGE else refusal.code
        self._answer(seqno, cmd, result, refusal.message)

    def _answer(self, seqno: int, cmd: int, result: int, text: str, content: bytes = b"") -> None:
        self._all.results[cmd if cmd in commands.COMMANDS else 0, result] += 1
        self.write(commands.reply(seqno, cmd, result, text, content))

    def _flush(self) -> None:
        """Write the collected frames, in one call of the socket."""
        transport = self.transport
        if not self._output or self._is_stuck or transport is None or transport.is_closing():
            return
        data = self._output[0] if len(self._output) == 1 else b"".join(self._output)
        self._output.clear()
        self._unwritten, self._writing = self._writing, []
        self._all.bytes_out += len(data)
        transport.write(data)
        if not self._is_stuck:
            self._written()

    def _written(self) -> None:
        """Note that the socket has taken all bytes of the last write."""
        for done in self._unwritten:
            if not done.done():
                done.set_result(None)
        self._unwritten = []


Answer = tuple[int, str, bytes]
"""Result, text and further fields of a reply."""
Answerer = Callable[[Connection, Envelope, KeySecret, HandOver], Awaitable[Answer]]
"""Performs a request of a connection that has logged in. Raises Refusal."""
