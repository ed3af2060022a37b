"""State OPEN: requests in one direction, replies in the other."""

import itertools
from random import Random

import msgspec
import pytest

from cmqd_protocol.events import ConnectionEnded, RequestRefused
from cmqd_protocol.frames import frame
from cmqd_protocol.large_replies import LARGE_BODY_BYTES, has_large_body
from cmqd_protocol.limits import JOIN_BYTES, MAX_REQUEST_ID, MIN_MAX_FRAME_BYTES
from cmqd_protocol.messages import (
    AnyReply,
    Cancel,
    DeleteMessages,
    Done,
    Error,
    GetServerStatus,
    HandleFailure,
    MessagesReceived,
    MessagesSent,
    Push,
    ReceiveMessages,
    Request,
    SendMessages,
    TransactionCheck,
    WireMessage,
    encoder,
    error,
    reply_decoder,
)
from cmqd_protocol.protocol_errors import ErrorCode, LocalProtocolError
from cmqd_protocol.server_connection import ServerConnection, ServerEvent
from cmqd_types.messages import ReceivedMessage
from support.cases import each_case
from support.protocol.connection_pair import ConnectionPair, byte_by_byte


def said_by(server: ServerConnection) -> list[AnyReply]:
    """The events of an open server, decoded."""
    stream = b"".join(server.data_to_send(0))
    replies: list[AnyReply] = []
    while stream:
        stop = 4 + int.from_bytes(stream[:4], "big")
        reply = reply_decoder.decode(stream[4:stop])
        assert not isinstance(reply, Push)
        replies.append(reply)
        stream = stream[stop:]
    return replies


def encoded(message: WireMessage | msgspec.Struct) -> bytes:
    return frame(encoder.encode(message))


class TestPipelining:
    def test_requests_arrive_in_order_and_are_answered_in_any(self) -> None:
        pair = ConnectionPair.opened(cut=byte_by_byte)
        requests = [SendMessages(1, "q", [b"x"]), ReceiveMessages(2, "q"), GetServerStatus(3)]
        for request in requests:
            pair.client.send(request)
        pair.exchange()
        assert pair.take_events() == (requests, [])
        assert pair.server.outstanding == pair.client.outstanding == 3

        replies: list[AnyReply] = [Done(3), MessagesSent(1, [9]), MessagesReceived(2, [])]
        for reply in replies:
            pair.server.send(reply)
        pair.exchange()

        assert pair.take_events() == ([], replies)
        assert pair.server.outstanding == pair.client.outstanding == 0

    def test_everything_of_one_wake_up_leaves_in_one_piece(self) -> None:
        pair = ConnectionPair.opened()
        for number in range(1, 100):
            pair.client.send(GetServerStatus(number))
        [data] = pair.client.data_to_send(0)
        pair.to_server(data)

        for number in range(1, 100):
            pair.server.send(Done(number))

        [data] = pair.server.data_to_send(0)
        pair.to_client(data)
        assert len(pair.client_events) == 99

    def test_pieces_that_are_expensive_to_join_leave_apart(self) -> None:
        pair = ConnectionPair.opened()
        pair.client.send(ReceiveMessages(1, "q"))
        pair.client.send(ReceiveMessages(2, "q"))
        pair.exchange()
        large = ReceivedMessage(1, 2, b"x" * JOIN_BYTES, 3, 4, 5, 6)

        pair.server.send(MessagesReceived(1, [large]))
        pair.server.send(MessagesReceived(2, []))

        data = pair.server.data_to_send(0)
        assert len(data) > 1
        pair.to_client(b"".join(data))
        assert pair.client_events == [MessagesReceived(1, [large]), MessagesReceived(2, [])]

    def test_a_number_may_be_used_again_once_it_is_answered(self) -> None:
        pair = ConnectionPair.opened()
        for _ in range(3):
            pair.client.send(GetServerStatus(1))
            pair.exchange()
            pair.server.send(Done(1))
            pair.exchange()

        assert pair.client_events == [Done(1)] * 3

    def test_the_first_requests_may_come_with_the_hello(self) -> None:
        """A client that does not wait for the server's proof risks only that its requests go to a stranger."""
        pair = ConnectionPair()
        pair.carry_to_server()
        pair.carry_to_client()

        hello = b"".join(pair.client.data_to_send(0))
        pair.to_server(hello + encoded(GetServerStatus(1)) + encoded(GetServerStatus(2))[:3])

        assert pair.server_events[1:] == [GetServerStatus(1)]

    def test_what_comes_with_the_welcome_is_read(self) -> None:
        pair = ConnectionPair()
        pair.carry_to_server()
        pair.carry_to_client()
        pair.carry_to_server()
        pair.server.end(ErrorCode.SHUTTING_DOWN, "bye")

        pair.carry_to_client()

        assert [type(event).__name__ for event in pair.client_events] == ["Opened", "ConnectionEnded"]


class TestNumbers:
    def test_a_number_in_use_is_refused_and_the_first_request_still_answered(self) -> None:
        pair = ConnectionPair.opened()
        pair.to_server(encoded(GetServerStatus(5)) + encoded(ReceiveMessages(5, "q")))

        status, refused = pair.server_events
        assert status == GetServerStatus(5)
        assert isinstance(refused, RequestRefused)
        assert (refused.reply.request_id, refused.reply.code) == (5, ErrorCode.DUPLICATE_REQUEST_ID)
        pair.server.send(Done(5))
        assert said_by(pair.server) == [refused.reply, Done(5)]

    def test_a_number_in_use_is_refused_before_anything_else_is_found_wrong(self) -> None:
        pair = ConnectionPair.opened()

        pair.to_server(encoded(GetServerStatus(5)) + frame(encoder.encode([17, 5])))

        [reply] = said_by(pair.server)
        assert isinstance(reply, Error)
        assert reply.code == ErrorCode.DUPLICATE_REQUEST_ID
        assert pair.server.outstanding == 1

    def test_too_many_at_once_are_refused_until_some_are_answered(self) -> None:
        pair = ConnectionPair.opened(server={"max_outstanding": 2})
        for number in (1, 2, 3):
            pair.client.send(GetServerStatus(number))
        pair.exchange()

        [reply] = pair.client_events
        assert isinstance(reply, Error)
        assert (reply.request_id, reply.code, reply.retryable) == (3, ErrorCode.TOO_MANY_REQUESTS, True)
        assert pair.server_events[:2] == [GetServerStatus(1), GetServerStatus(2)]
        assert pair.server.outstanding == 2

        pair.server.send(Done(1))
        pair.client.send(GetServerStatus(3))
        pair.exchange()
        assert pair.server_events[-1] == GetServerStatus(3)

    def test_a_duplicate_among_too_many_is_a_duplicate(self) -> None:
        pair = ConnectionPair.opened(server={"max_outstanding": 1})

        pair.to_server(encoded(GetServerStatus(1)) * 2)

        [reply] = said_by(pair.server)
        assert isinstance(reply, Error)
        assert reply.code == ErrorCode.DUPLICATE_REQUEST_ID

    def test_a_cancelled_number_is_free_when_its_reply_has_come_and_not_before(self) -> None:
        pair = ConnectionPair.opened()
        request = encoded(ReceiveMessages(5, "q"))

        pair.to_server(request + encoded(Cancel(5)) + request)

        [refusal] = said_by(pair.server)
        assert isinstance(refusal, Error)
        assert (refusal.request_id, refusal.code) == (5, ErrorCode.DUPLICATE_REQUEST_ID)
        pair.server.send(error(5, ErrorCode.CANCELLED, "cancelled"))
        pair.to_server(encoded(Cancel(5)) + request)
        assert pair.server_events[-1] == ReceiveMessages(5, "q")
        assert pair.server.outstanding == 1

    def test_a_server_cannot_reply_without_a_request(self) -> None:
        pair = ConnectionPair.opened()
        pair.client.send(GetServerStatus(1))
        pair.exchange()
        pair.server.send(Done(1))

        for reply in (Done(1), Done(2), error(0, ErrorCode.INTERNAL_ERROR, "no")):
            with pytest.raises(LocalProtocolError, match="does not wait"):
                pair.server.send(reply)
        assert said_by(pair.server) == [Done(1)]

    @pytest.mark.parametrize("number", [0, -1, MAX_REQUEST_ID + 1])
    def test_a_client_does_not_send_a_number_out_of_range(self, number: int) -> None:
        pair = ConnectionPair.opened()

        with pytest.raises(LocalProtocolError, match="out of range"):
            pair.client.send(GetServerStatus(number))
        assert pair.client.data_to_send(0) == []

    def test_a_client_does_not_send_a_number_in_use(self) -> None:
        pair = ConnectionPair.opened()
        pair.client.send(GetServerStatus(1))

        with pytest.raises(LocalProtocolError, match="in use"):
            pair.client.send(GetServerStatus(1))
        assert pair.client.outstanding == 1

    def test_numbers_go_round_and_skip_outstanding_numbers(self) -> None:
        client = ConnectionPair.opened().client
        assert [client.next_request_id() for _ in range(3)] == [1, 2, 3]
        client.send(GetServerStatus(MAX_REQUEST_ID))
        client.send(GetServerStatus(1))
        client._last_id = MAX_REQUEST_ID - 1  # pyright: ignore[reportPrivateUsage]

        assert client.next_request_id() == 2

    @pytest.mark.parametrize("reply", [Done(1), Done(0), Error(2, 200, "invalid_argument", "")])
    def test_a_reply_that_was_not_asked_for_ends_the_clients_connection(self, reply: AnyReply) -> None:
        pair = ConnectionPair.opened()

        pair.to_client(encoded(reply) + encoded(Done(3)))

        [ended] = pair.client_events
        assert isinstance(ended, ConnectionEnded)
        assert (ended.code, ended.by_peer) == (ErrorCode.MALFORMED_FRAME, False)


class TestCancel:
    def test_a_cancel_reaches_the_server_while_the_request_is_outstanding(self) -> None:
        pair = ConnectionPair.opened()
        pair.client.send(ReceiveMessages(1, "q", 1, 30_000))
        pair.client.send(Cancel(1))
        pair.exchange()
        assert pair.take_events()[0] == [ReceiveMessages(1, "q", 1, 30_000), Cancel(1)]

        cancelled = error(1, ErrorCode.CANCELLED, "cancelled")
        pair.server.send(cancelled)
        pair.exchange()

        assert pair.take_events() == ([], [cancelled])
        assert pair.client.outstanding == 0

    def test_a_cancel_that_crosses_the_reply_means_nothing(self) -> None:
        pair = ConnectionPair.opened()
        pair.client.send(ReceiveMessages(1, "q"))
        pair.exchange()
        pair.take_events()

        pair.client.send(Cancel(1))
        pair.server.send(MessagesReceived(1, []))
        pair.exchange()

        assert pair.take_events() == ([], [MessagesReceived(1, [])])
        assert pair.server.is_open

    def test_a_cancel_of_what_is_not_outstanding_is_not_sent(self) -> None:
        pair = ConnectionPair.opened()

        pair.client.send(Cancel(1))

        assert pair.client.data_to_send(0) == []

    def test_a_cancel_out_of_range_is_malformed(self) -> None:
        pair = ConnectionPair.opened()

        pair.to_server(encoded(Cancel(0)))

        assert pair.server.ended is not None
        assert pair.server.ended.code == ErrorCode.MALFORMED_FRAME


class TestSizes:
    def test_a_reply_that_fits_no_frame_becomes_an_error(self) -> None:
        pair = ConnectionPair.opened(client={"max_frame_bytes": 0})
        pair.client.send(ReceiveMessages(1, "q"))
        pair.exchange()

        pair.server.send(MessagesReceived(1, [ReceivedMessage(1, 2, b"x" * MIN_MAX_FRAME_BYTES, 3, 4, 5, 6)]))
        pair.exchange()

        [reply] = pair.client_events
        assert isinstance(reply, Error)
        assert reply.code == ErrorCode.REPLY_TOO_LARGE
        assert reply.details is not None
        assert reply.details["limit"] == MIN_MAX_FRAME_BYTES

    def test_a_request_that_fits_no_frame_is_refused_by_the_client(self) -> None:
        pair = ConnectionPair.opened(client={"max_frame_bytes": 0})

        with pytest.raises(LocalProtocolError, match="a frame may have 1114112"):
            pair.client.send(SendMessages(1, "q", [b"x" * MIN_MAX_FRAME_BYTES]))
        assert pair.client.outstanding == 0
        assert pair.client.data_to_send(0) == []

    def test_a_request_that_just_fits_is_sent(self) -> None:
        pair = ConnectionPair.opened(client={"max_frame_bytes": 0})
        framing = len(encoder.encode(SendMessages(1, "q", [b"x" * 100_000]))) - 100_000
        request = SendMessages(1, "q", [b"x" * (MIN_MAX_FRAME_BYTES - framing)])

        pair.client.send(request)
        pair.exchange()

        assert pair.server_events == [request]

    @pytest.mark.parametrize("side", ["server", "client"])
    def test_a_longer_frame_ends_the_connection_after_the_frames_before_it(self, side: str) -> None:
        pair = ConnectionPair.opened()
        pair.client.send(GetServerStatus(1))
        pair.exchange()
        pair.take_events()
        too_long = (4_194_304 + 1).to_bytes(4, "big")

        if side == "server":
            pair.to_server(encoded(GetServerStatus(2)) + too_long)
            first, ended = pair.server_events
            assert first == GetServerStatus(2)
            [reply] = said_by(pair.server)
            assert isinstance(reply, Error)
            assert (reply.request_id, reply.code) == (0, ErrorCode.FRAME_TOO_LARGE)
            assert reply.details == {"value": 4_194_305, "limit": 4_194_304}
        else:
            pair.to_client(encoded(Done(1)) + too_long)
            first, ended = pair.client_events
            assert first == Done(1)
        assert isinstance(ended, ConnectionEnded)
        assert ended.code == ErrorCode.FRAME_TOO_LARGE

    def test_the_first_thing_that_is_wrong_is_the_reason(self) -> None:
        """A malformed frame before a length that is too large."""
        for side in ("server", "client"):
            pair = ConnectionPair.opened()

            (pair.to_server if side == "server" else pair.to_client)(frame(b"\xc1") + b"\xff\xff\xff\xff")

            [ended] = pair.server_events or pair.client_events
            assert isinstance(ended, ConnectionEnded)
            assert ended.code == ErrorCode.MALFORMED_FRAME


class TestMalformed:
    def test_requests_before_a_malformed_frame_are_passed_on_and_those_behind_it_not(self) -> None:
        pair = ConnectionPair.opened()

        pair.to_server(encoded(GetServerStatus(1)) + frame(b"\xc1") + encoded(GetServerStatus(2)))

        first, ended = pair.server_events
        assert first == GetServerStatus(1)
        assert isinstance(ended, ConnectionEnded)
        [reply] = said_by(pair.server)
        assert isinstance(reply, Error)
        assert (reply.request_id, reply.code) == (0, ErrorCode.MALFORMED_FRAME)
        assert pair.server.outstanding == 0

    def test_replies_that_are_queued_leave_before_the_error(self) -> None:
        pair = ConnectionPair.opened()
        pair.client.send(GetServerStatus(1))
        pair.exchange()
        pair.server.send(Done(1))

        pair.to_server(frame(b"\xc1"))

        assert [type(reply) for reply in said_by(pair.server)] == [Done, Error]

    def test_a_malformed_reply_ends_the_clients_connection_silently(self) -> None:
        pair = ConnectionPair.opened()

        pair.to_client(frame(b"\xc1"))

        assert pair.client.is_ending
        assert pair.client.data_to_send(0) == []

    def test_the_reason_given_by_the_server_reaches_the_client(self) -> None:
        pair = ConnectionPair.opened()
        pair.client.send(DeleteMessages(1, "q", [1]))
        pair.to_server(frame(b"\x99\x11\x02\xa1q\x01\xc0\xc0\xc0\xc0" + b"\x91" * 20_000))

        pair.exchange()

        [ended] = pair.client_events
        assert isinstance(ended, ConnectionEnded)
        assert ended.by_peer
        assert "nested too deep" in ended.text
        assert pair.client.outstanding == 0


def received(server: ServerConnection, data: bytes, now_ms: int) -> list[ServerEvent]:
    """The events of a read, by the calls of a shell."""
    request = server.lone_request(data, now_ms)
    return server.receive(data, now_ms) if request is None else [request]


class TestShortCuts:
    """``lone_request``, ``reply_to_send`` and ``replies_to_send`` do the same as their longer forms, for any input."""

    @each_case(
        "stream",
        [
            encoded(GetServerStatus(1)),
            encoded(GetServerStatus(1)) + encoded(GetServerStatus(2)),
            encoded(GetServerStatus(1)) + encoded(GetServerStatus(1)),
            encoded(GetServerStatus(1)) + encoded(Cancel(1)),
            encoded(Cancel(1)),
            frame(b""),
            frame(encoder.encode([16, 1, "q"])),
            frame(encoder.encode([9999, 1])),
            frame(b"\xc1"),
            frame(bytes(9)),
        ],
    )
    @each_case("step", [1, 7, 10_000])
    def test_receiving_is_the_same_in_one_call_and_in_two(self, stream: bytes, step: int) -> None:
        one, two = ConnectionPair.opened().server, ConnectionPair.opened().server
        for at in range(0, len(stream), step):
            piece = stream[at : at + step]
            two.receive_data(piece, 5)
            assert received(one, piece, 5) == two.events()
            assert one.data_to_send(5) == two.data_to_send(5)
            assert (one.outstanding, one.state) == (two.outstanding, two.state)
            assert (one.unfinished_bytes, one.next_deadline_ms()) == (two.unfinished_bytes, two.next_deadline_ms())

    @each_case("seed", range(40))
    def test_any_frames_in_any_pieces_are_the_same_in_one_call_and_in_two(self, seed: int) -> None:
        """With pieces that often end where a frame does, as the reads of a socket do."""
        random = Random(seed)
        one, two = (ConnectionPair.opened(server={"max_outstanding": 5}).server for _ in range(2))
        for now_ms in range(60):
            frames = [
                frame(random.randbytes(random.randrange(6)))
                if random.random() < 0.05
                else encoded(
                    random.choice(
                        [
                            SendMessages(
                                random.randrange(1, 9), "q", [random.randbytes(random.choice((1, 256, 70_000)))]
                            ),
                            ReceiveMessages(random.randrange(1, 9), "q"),
                            Cancel(random.randrange(1, 9)),
                        ]
                    )
                )
                for _ in range(random.choice((1, 1, 1, 2, 5)))
            ]
            stream = b"".join(frames)
            cuts = sorted({random.randrange(len(stream)) for _ in range(random.choice((0, 0, 1, 3)))} - {0})
            for start, stop in itertools.pairwise([0, *cuts, len(stream)]):
                two.receive_data(stream[start:stop], now_ms)
                events = two.events()
                assert received(one, stream[start:stop], now_ms) == events
                assert not one.lone_id or one.outstanding < 2
                assert one.data_to_send(now_ms) == two.data_to_send(now_ms)
                assert (one.outstanding, one.state, one.unfinished_bytes) == (
                    two.outstanding,
                    two.state,
                    two.unfinished_bytes,
                )
                answered = [event.request_id for event in events if isinstance(event, Request)]
                replies = [Done(number) for number in random.sample(answered, random.randint(0, len(answered)))]
                for reply in replies if two.is_open else ():
                    two.send(reply)
                if two.is_open:
                    assert one.replies_to_send(replies, now_ms) == two.data_to_send(now_ms)
        assert one.next_deadline_ms() == two.next_deadline_ms()

    def test_too_many_outstanding_requests_are_refused_one_by_one_too(self) -> None:
        server = ConnectionPair.opened(server={"max_outstanding": 1}).server

        assert received(server, encoded(GetServerStatus(1)), 0) == [GetServerStatus(1)]

        (refused,) = received(server, encoded(GetServerStatus(2)), 0)
        assert isinstance(refused, RequestRefused)
        assert refused.reply.code == ErrorCode.TOO_MANY_REQUESTS

    def test_a_lone_reply_is_the_same_in_one_call_and_in_two(self) -> None:
        one, two = ConnectionPair.opened().server, ConnectionPair.opened().server
        large = MessagesReceived(2, [ReceivedMessage(1, 2, bytes(MIN_MAX_FRAME_BYTES * 4), 3, 4, 5, 6)])
        replies: list[AnyReply] = [Done(1), large, Done(3)]
        for reply in replies:
            for server in (one, two):
                server.receive(encoded(GetServerStatus(reply.request_id)), 0)
            two.send(reply)
            assert one.reply_to_send(reply, 9) == b"".join(two.data_to_send(9))
        assert one.outstanding == two.outstanding == 0
        with pytest.raises(LocalProtocolError, match="does not wait"):
            one.reply_to_send(Done(1), 9)

    @each_case("seed", range(20))
    def test_a_reply_with_large_bodies_is_the_same_in_pieces(self, seed: int) -> None:
        random = Random(seed)
        server = ConnectionPair.opened().server
        sizes = [
            LARGE_BODY_BYTES,
            *(random.choice((0, 1, 255, 256, 65_535, 65_536)) for _ in range(random.choice((0, 1, 14, 15, 40)))),
        ]
        messages = [
            ReceivedMessage(
                random.randrange(1 << random.choice((5, 8, 40))),
                random.randrange(1 << random.choice((6, 31, 64))),
                random.randbytes(size),
                3,
                4,
                5,
                6,
                random.choice((None, {"name": "value"})),
            )
            for size in sizes
        ]
        reply = MessagesReceived(
            random.choice((7, 300, MAX_REQUEST_ID)), messages, random.choice((None, [HandleFailure(9, 402, "gone")]))
        )
        server.receive(encoded(GetServerStatus(reply.request_id)), 0)

        pieces = server.large_reply_to_send(reply, 9)

        assert has_large_body(reply)
        assert b"".join(pieces) == encoded(reply)
        assert all(any(piece is message.body for piece in pieces) for message in messages)
        with pytest.raises(LocalProtocolError, match="does not wait"):
            server.large_reply_to_send(reply, 9)

    def test_a_large_reply_in_pieces_obeys_the_limit_and_the_queue(self) -> None:
        server = ConnectionPair.opened().server
        for number in (1, 2, 3):
            server.receive(encoded(GetServerStatus(number)), 0)
        server.send(Done(1))
        queued = MessagesReceived(2, [ReceivedMessage(1, 2, bytes(LARGE_BODY_BYTES), 3, 4, 5, 6)])
        large = MessagesReceived(3, [ReceivedMessage(1, 2, bytes(MIN_MAX_FRAME_BYTES * 4), 3, 4, 5, 6)])

        assert b"".join(server.large_reply_to_send(queued, 0)) == encoded(Done(1)) + encoded(queued)
        (refusal,) = server.large_reply_to_send(large, 0)
        assert len(refusal) < 1_000
        assert b"REPLY_TOO_LARGE" in refusal or b"reply_too_large" in refusal

    def test_a_lone_reply_leaves_after_what_is_queued(self) -> None:
        server = ConnectionPair.opened().server
        server.receive(encoded(GetServerStatus(1)) + encoded(GetServerStatus(2)), 0)
        server.send(Done(2))

        assert server.reply_to_send(Done(1), 0) == encoded(Done(2)) + encoded(Done(1))

    def test_replies_leave_together_after_what_is_queued(self) -> None:
        server = ConnectionPair.opened(server={"max_frame_bytes": MIN_MAX_FRAME_BYTES}).server
        server.receive(b"".join(encoded(GetServerStatus(number)) for number in range(1, 6)), 0)
        server.send(Done(5))

        assert server.replies_to_send([Done(2), Done(1)], 9) == [
            b"".join(encoded(Done(number)) for number in (5, 2, 1))
        ]
        assert server.replies_to_send([], 9) == []
        large = MessagesReceived(3, [ReceivedMessage(1, 2, bytes(MIN_MAX_FRAME_BYTES), 3, 4, 5, 6)])
        [data] = server.replies_to_send([large], 9)
        refused = reply_decoder.decode(data[4:])
        assert isinstance(refused, Error)
        assert (refused.request_id, refused.code) == (3, ErrorCode.REPLY_TOO_LARGE)
        assert server.outstanding == 1

    def test_of_several_replies_each_needs_a_request(self) -> None:
        server = ConnectionPair.opened().server
        server.receive(encoded(GetServerStatus(1)), 0)

        with pytest.raises(LocalProtocolError, match="request 2 does not wait"):
            server.replies_to_send([Done(1), Done(2)], 0)
        assert server.outstanding == 0
        with pytest.raises(LocalProtocolError, match="no reply can be sent"):
            ConnectionPair().server.replies_to_send([Done(1)], 0)


class TestPushes:
    CHECK = TransactionCheck("q", 1, b"body", {"k": "v"}, 2, 3, 1)

    def test_a_push_arrives_between_the_replies_in_their_order_and_answers_nothing(self) -> None:
        pair = ConnectionPair.opened(cut=byte_by_byte)
        for number in (1, 2):
            pair.client.send(GetServerStatus(number))
        pair.exchange()
        pair.take_events()

        pair.server.send(Done(2))
        pair.server.push(self.CHECK)
        pair.server.send(Done(1))
        pair.exchange()

        assert pair.take_events() == ([], [Done(2), self.CHECK, Done(1)])
        assert pair.server.outstanding == pair.client.outstanding == 0

    def test_a_push_may_come_when_nothing_is_asked(self) -> None:
        pair = ConnectionPair.opened()

        pair.server.push(self.CHECK)
        pair.exchange()

        assert pair.take_events() == ([], [self.CHECK])
        assert pair.client.is_open

    def test_a_client_cannot_push(self) -> None:
        pair = ConnectionPair.opened()

        pair.to_server(frame(encoder.encode(self.CHECK)))
        pair.exchange()

        [ended] = [event for event in pair.take_events()[1] if isinstance(event, ConnectionEnded)]
        assert ended.code == ErrorCode.MALFORMED_FRAME

    def test_nothing_is_pushed_before_the_handshake_is_over_or_beyond_a_frame(self) -> None:
        with pytest.raises(LocalProtocolError, match="nothing can be pushed"):
            ConnectionPair().server.push(self.CHECK)
        pair = ConnectionPair.opened(server={"max_frame_bytes": MIN_MAX_FRAME_BYTES})
        large = msgspec.structs.replace(self.CHECK, body=bytes(MIN_MAX_FRAME_BYTES))

        with pytest.raises(LocalProtocolError, match="a frame may have"):
            pair.server.push(large)

        assert pair.server.data_to_send(0) == []
