"""Two machines over bytes that are cut anywhere, against a model without bytes."""

from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cmqd_protocol.events import Authenticated, Opened
from cmqd_protocol.limits import MIN_MAX_FRAME_BYTES
from cmqd_protocol.messages import (
    AnyReply,
    Cancel,
    Done,
    GetServerStatus,
    MessagesReceived,
    MessagesSent,
    ReceiveMessages,
    Request,
    SendMessages,
    error,
)
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.messages import ReceivedMessage
from support.protocol.connection_pair import a_client, a_server

HEARTBEAT_MS = 2_000

bodies = st.binary(min_size=1, max_size=40) | st.integers(1, 200_000).map(lambda size: b"x" * size)
headers = st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=40), max_size=4)
u64 = st.integers(0, 2**64 - 1)


class TwoMachines(RuleBasedStateMachine):
    """Invariants: requests come out unchanged, in order; every answered request has had exactly that answer; a cancel
    comes out only while its request has no answer; the connection never ends.
    """

    @initialize(server_frame=st.sampled_from([0, 4_194_304]), client_frame=st.sampled_from([0, 4_194_304]))
    def connect(self, server_frame: int, client_frame: int) -> None:
        self.now_ms = 0
        self.server = a_server(max_frame_bytes=server_frame, heartbeat_ms=HEARTBEAT_MS)
        self.client = a_client(max_frame_bytes=client_frame, heartbeat_ms=HEARTBEAT_MS)
        # On their way: written by a side, not yet read by the other side.
        self.to_server = bytearray()
        self.to_client = bytearray()
        # The model: events that the server still misses, replies that it owes, events that the client still misses.
        self.asked: deque[Request | Cancel] = deque()
        self.owed: dict[int, bool] = {}
        self.answered: deque[AnyReply] = deque()

    # ---------------------------------------------------------------- the shells

    @rule(data=st.data())
    def carry_to_server(self, data: st.DataObject) -> None:
        for piece in self.client.data_to_send(self.now_ms):
            self.to_server += piece
        size = data.draw(st.integers(0, len(self.to_server)))
        self.server.receive_data(bytes(self.to_server[:size]), self.now_ms)
        del self.to_server[:size]
        for event in self.server.events():
            if isinstance(event, Authenticated):
                continue
            self.expect_at_server(event)

    def expect_at_server(self, event: Any) -> None:
        while self.asked:
            wanted = self.asked.popleft()
            if isinstance(wanted, Cancel) and wanted.request_id not in self.owed:
                continue  # crossed its reply
            assert event == wanted
            if not isinstance(event, Cancel):
                self.owed[event.request_id] = False
            return
        raise AssertionError(f"nobody asked for {event}")

    @rule(data=st.data())
    def carry_to_client(self, data: st.DataObject) -> None:
        for piece in self.server.data_to_send(self.now_ms):
            self.to_client += piece
        size = data.draw(st.integers(0, len(self.to_client)))
        self.client.receive_data(bytes(self.to_client[:size]), self.now_ms)
        del self.to_client[:size]
        for event in self.client.events():
            if not isinstance(event, Opened):
                assert event == self.answered.popleft()

    @rule(ms=st.integers(0, HEARTBEAT_MS // 2 - 1))
    def wait(self, ms: int) -> None:
        """A moment passes; then both shells write and read, so that neither side looks dead."""
        if not self.client.is_open or not self.server.is_open:
            return
        self.now_ms += ms
        self.server.tick(self.now_ms)
        self.client.tick(self.now_ms)
        for piece in self.client.data_to_send(self.now_ms):
            self.to_server += piece
        for piece in self.server.data_to_send(self.now_ms):
            self.to_client += piece
        # One byte is a sign of life already.
        if self.to_server:
            self.server.receive_data(bytes(self.to_server[:1]), self.now_ms)
            del self.to_server[:1]
        if self.to_client:
            self.client.receive_data(bytes(self.to_client[:1]), self.now_ms)
            del self.to_client[:1]
        for event in self.server.events():
            self.expect_at_server(event)
        for event in self.client.events():
            assert event == self.answered.popleft()

    # ---------------------------------------------------------------- the client

    @precondition(lambda self: self.client.is_open)
    @rule(body=bodies, header=headers, session=u64, sequence=u64)
    def send_messages(self, body: bytes, header: dict[str, str] | None, session: int, sequence: int) -> None:
        number = self.client.next_request_id()
        self.ask(SendMessages(number, "q", [body], [header], None, session, sequence))

    @precondition(lambda self: self.client.is_open)
    @rule(wait_ms=st.none() | st.integers(0, 30_000))
    def receive_messages(self, wait_ms: int | None) -> None:
        self.ask(ReceiveMessages(self.client.next_request_id(), "q", 16, wait_ms))

    @precondition(lambda self: self.client.is_open)
    @rule()
    def ask_for_status(self) -> None:
        self.ask(GetServerStatus(self.client.next_request_id()))

    def ask(self, request: Request) -> None:
        self.client.send(request)
        self.asked.append(request)

    @precondition(lambda self: self.client.is_open)
    @rule(number=st.integers(1, 8))
    def cancel(self, number: int) -> None:
        before = self.client.data_to_send(self.now_ms)
        self.to_server += b"".join(before)
        self.client.send(Cancel(number))
        data = b"".join(self.client.data_to_send(self.now_ms))
        if data:
            self.asked.append(Cancel(number))
        self.to_server += data

    # ---------------------------------------------------------------- the server

    @precondition(lambda self: bool(self.owed))
    @rule(data=st.data(), body=bodies)
    def answer(self, data: st.DataObject, body: bytes) -> None:
        number = data.draw(st.sampled_from(sorted(self.owed)))
        replies = [
            Done(number),
            MessagesSent(number, [2**64 - 1]),
            MessagesReceived(number, [ReceivedMessage(1, 2, body, 3, 4, 5, 6)]),
            error(number, ErrorCode.CANCELLED, "cancelled"),
        ]
        reply = data.draw(st.sampled_from(replies))
        self.server.send(reply)
        del self.owed[number]
        self.answered.append(reply)

    # ---------------------------------------------------------------- always

    @invariant()
    def nothing_is_held_beyond_what_is_allowed(self) -> None:
        for machine in (self.server, self.client):
            assert not machine.is_ending, machine.ended
            reader = machine._reader  # pyright: ignore[reportPrivateUsage]
            assert int(repr(reader).partition("held=")[2].partition(" ")[0]) <= reader.limit + 4
        assert self.server.outstanding == len(self.owed)
        if self.client.is_open and self.server.is_open:
            assert self.client.max_frame_bytes == self.server.max_frame_bytes >= MIN_MAX_FRAME_BYTES
            assert self.client.heartbeat_ms == self.server.heartbeat_ms == HEARTBEAT_MS


TestTwoMachines = TwoMachines.TestCase
TestTwoMachines.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
