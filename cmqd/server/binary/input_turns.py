"""Input of a connection that is not taken up on arrival: its turns, and the rest after them.

The connection has three states besides the usual one, in which input is taken up on arrival:

- *In turns*. Input beyond the limit of an I/O batch is deferred: the bytes are kept undecoded (``deferred_input``) and
  taken up piece by piece in the turns of ``fairness``. Requests behind a request that ended its turn are deferred too.
  While input is deferred the connection is not read from, because the end of the connection must not overtake its
  requests.
- *Late*. Small input that is only late takes its turn in the line ``late``, and the connection does not rest. It is
  read from meanwhile if at most one request waits. If the client closes its side, that turn is taken at once.
- *Resting*. After its turns the connection is not read from until the I/O batch ends, or, after input without a single
  request (a flood of heartbeats or cancels), until the next step of the coarse time.

A large read in which no frame ends is stored on arrival. Later reads bring bytes into the memory of the frame
(``frame_filling``), and a complete frame is taken up at once, while no connection takes turns and the log has room.
Behind ``LARGE_READS`` such reads of an I/O batch a connection rests, and a frame takes a turn.

A connection that is held, stalled or slow keeps its deferred input and takes no turns.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from cmqd.server.admission.fairness import REQUEST_COST
from cmqd.server.binary.deferred_input import PIECE_BYTES, DeferredInput
from cmqd.server.binary.shared_state import Shared
from cmqd.server.clients.client import Client
from cmqd_protocol.frames import HEADER_BYTES
from cmqd_protocol.messages import Cancel
from cmqd_protocol.server_connection import ServerConnection

READ_BYTES: Final = 256_000
"""Most that a read of the socket brings; uvloop's buffer."""

FILLED_BYTES: Final = 64 * 1024
"""Missing bytes of a frame from which on reads bring bytes into the memory of the frame."""


class InputConnection(Client, Protocol):
    """The connection of the input."""

    transport: asyncio.Transport | None
    """None after the connection is lost."""
    is_stalled: bool
    """The connection is not read from, because the server is overloaded."""
    requests: int
    """Number of requests that were taken up."""
    last_request_ms: int

    def dispatch_each(self, events: Sequence[object]) -> int:
        """Dispatch the events of a piece of input in order, and defer the rest; return the number taken up."""
        ...

    def fill_frame(self, *, begins: bool) -> None:
        """Read into the memory of a large frame from the next read on, or no more."""
        ...

    def measure(self) -> None:
        """Report the bytes held for this connection to the memory budget, which may drop the connection."""
        ...


class InputTurns:
    """The deferred input of a connection and its turns; see the module. Made when input is first deferred.

    Invariants: the connection is read from unless it is slow, stalled, held or resting or has deferred input other than
    late input; it takes turns, in one line, if it has deferred input and is neither slow nor stalled nor held.
    """

    __slots__ = ("_connection", "_is_resting", "_shared", "_wire", "account", "credit", "deferred")

    def __init__(self, connection: InputConnection, shared: Shared, wire: ServerConnection) -> None:
        self._connection = connection
        self._shared = shared
        self._wire = wire
        self.account = connection.account
        """The account of the connection. An attribute and no property, because each turn reads it."""
        self.credit = 0
        """Kept by ``RoundRobin``."""
        self.deferred: DeferredInput | None = None
        self._is_resting = False
        """True after its share of this I/O batch, until the rest ends."""

    @property
    def has_turn(self) -> bool:
        """See ``fairness.Flow``."""
        connection = self._connection
        return bool(self.deferred) and not (connection.is_held or connection.is_stalled or connection.is_slow)

    @property
    def is_late(self) -> bool:
        """True if the deferred input would have been taken up on arrival, if it had not come late."""
        return bool(self.deferred) and self.deferred.is_late and not self._connection.is_held

    def add(self, data: bytes, *, is_in_time: bool) -> None:
        """Keep the bytes of a read. ``is_in_time``: the I/O batch has time left for input."""
        shared = self._shared
        deferred = self.deferred
        if is_in_time and self._is_stored_only(data):
            self._wire.receive(data, shared.time_ms)
            if self._wire.missing_bytes >= FILLED_BYTES:
                self._connection.fill_frame(begins=True)
            if not shared.io_batch.goes_on():
                self._rest()
        else:
            if deferred is None:
                deferred = self.deferred = DeferredInput()
            deferred.is_lone = not deferred and self._wire.is_within_frame(data, PIECE_BYTES)
            deferred.add(data)
            if deferred.is_lone and self.has_turn and not shared.overloaded:
                # The usual late input: ``plan`` would find that the connection is read from.
                shared.io_batch.late.add(self)
                return
        self.plan()
        self._connection.measure()

    def fill(self, count: int, *, is_in_time: bool) -> None:
        """Take the bytes of a read that are in the memory of a large frame; see ``add``."""
        shared = self._shared
        goes_on = is_in_time and not self._connection.is_held and shared.io_batch.goes_on()
        is_complete = self._wire.filled(count, shared.time_ms)
        if is_complete:
            self._connection.fill_frame(begins=False)
        if is_complete and goes_on:
            self._connection.dispatch_each(self._wire.receive_filled())
        elif is_complete or not shared.io_batch.turns.has_room():
            if self.deferred is None:
                self.deferred = DeferredInput()
            self.deferred.is_filled = True
        elif not goes_on:
            self._rest()
        self.plan()
        self._connection.measure()

    def _rest(self) -> None:
        self._is_resting = True
        self._shared.io_batch.rests.add(self)

    def _is_stored_only(self, data: bytes) -> bool:
        """Return True if a large read is stored on arrival, without a turn, because no request ends in it.

        Not while the log has no room: the bytes would wait in memory, and not at the client.
        """
        return (
            not self.deferred
            and not self._connection.is_held
            and self._shared.io_batch.turns.has_room()
            and self._wire.leaves_unfinished(data)
        )

    def add_decoded(self, events: Sequence[object]) -> None:
        """Keep decoded requests and events behind the decoded ones, and before the bytes."""
        if self.deferred is None:
            self.deferred = DeferredInput()
        self.deferred.decoded.extend(events)

    def put_back(self, request: object) -> None:
        """Keep a request before all other input."""
        if self.deferred is None:
            self.deferred = DeferredInput()
        self.deferred.decoded.insert(0, request)

    def take_turn(self) -> int:
        """See ``fairness.Flow``."""
        deferred = self.deferred
        assert deferred is not None
        if deferred.is_late:
            return self._take_late(deferred)
        shared = self._shared
        events: Sequence[object] = deferred.take_decoded()
        size = 0
        turn_time = shared.io_batch.turn_time
        turn_time.restart(is_charged=True)
        if not events and deferred.is_filled:
            deferred.is_filled = False
            size = READ_BYTES
            events = self._wire.receive_filled()
        elif not events:
            piece = deferred.take_piece(self._wire.missing_bytes, at_frame=self._wire.is_open)
            size = len(piece)
            events = self._wire.receive(piece, shared.time_ms)
        deferred.had_request = deferred.had_request or not all(type(event) is Cancel for event in events)
        count = self._connection.dispatch_each(events)
        if not (self.deferred or self._connection.is_held or self._is_resting):
            self._is_resting = True
            self.deferred = None
            # A large frame without its end is no idle input: an upload must not wait for the coarse time.
            if deferred.had_request or self._wire.unfinished_bytes >= HEADER_BYTES:
                shared.io_batch.rests.add(self)
            else:
                shared.idle.append(self)
        return max(size + count * REQUEST_COST, turn_time.cost())

    def _take_late(self, deferred: DeferredInput) -> int:
        """Take up late input as on arrival; return its cost."""
        self.deferred = None
        shared = self._shared
        turn_time = shared.io_batch.turn_time
        turn_time.restart(is_charged=True)
        data = deferred.take_piece(0)
        request = self._wire.lone_request(data, shared.time_ms)
        connection = self._connection
        if request is not None:
            connection.requests += 1
            connection.last_request_ms = shared.time_ms
            shared.dispatch(connection, request)
            count = 1
        else:
            events = self._wire.receive(data, shared.time_ms)
            count = connection.dispatch_each(events)
            # A handshake has no request either, and only a few bytes.
            is_idle = self._wire.is_open and self._wire.unfinished_bytes < HEADER_BYTES
            if is_idle and all(type(event) is Cancel for event in events):
                self._is_resting = True
                shared.idle.append(self)
        if not deferred.is_lone or self._is_resting:
            self.plan()
        return max(len(data) + count * REQUEST_COST, turn_time.cost())

    def rest_with_others(self) -> None:
        """Rest only until the I/O batch ends from now on, because the coarse time has moved on."""
        if self._is_resting:
            self._shared.io_batch.rests.add(self)
            self._shared.io_batch.schedule()

    def end_rest(self) -> int:
        """See ``fairness.Flow``."""
        self._is_resting = False
        self.plan()
        return READ_BYTES

    def plan(self) -> None:
        """Read from the socket, take turns, or neither."""
        connection = self._connection
        transport = connection.transport
        if transport is None or transport.is_closing():
            return
        io_batch = self._shared.io_batch
        is_late = self.is_late
        if self.has_turn:
            line, other = (io_batch.late, io_batch.turns) if is_late else (io_batch.turns, io_batch.late)
            other.remove(self)
            line.add(self)
            io_batch.schedule()
        else:
            io_batch.turns.remove(self)
            io_batch.late.remove(self)
        # The usual late input is a request of a client that waits for the answer. A pause would cost as much again.
        waits_alone = is_late and self.deferred is not None and self.deferred.is_lone
        is_full = not waits_alone and (bool(self.deferred) or connection.is_held)
        wanted = not (is_full or self._is_resting or connection.is_stalled or connection.is_slow)
        if wanted != transport.is_reading():
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def drop(self) -> None:
        """Drop the input of a connection that will read no further reply."""
        io_batch = self._shared.io_batch
        io_batch.turns.remove(self)
        io_batch.late.remove(self)
        io_batch.rests.remove(self)
        self._is_resting = False
        self.deferred = None
