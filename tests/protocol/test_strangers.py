"""Peers that do not finish the handshake: bounded bytes, bounded time, and a reason at the end."""

import msgspec
import pytest

from cmqd_protocol.events import Authenticated, ConnectionEnded
from cmqd_protocol.frames import encode_preamble, frame
from cmqd_protocol.limits import (
    HANDSHAKE_BYTES,
    HANDSHAKE_FRAME_BYTES,
)
from cmqd_protocol.messages import (
    Error,
    GetServerStatus,
    encoder,
    error,
)
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_protocol.server_connection import ServerConnection
from cmqd_protocol.states import State
from support.protocol.connection_pair import (
    ConnectionPair,
    a_client,
    a_server,
)


class TestStrangers:
    """Before authentication."""

    def after_preamble(self) -> ServerConnection:
        server = a_server()
        server.receive_data(encode_preamble(1, 1), 0)
        server.data_to_send(0)
        return server

    def error_of(self, server: ServerConnection) -> Error:
        payload = b"".join(server.data_to_send(0))[4:]
        return msgspec.msgpack.decode(payload, type=Error)

    def test_a_frame_over_4_kib_is_refused_by_its_length(self) -> None:
        server = self.after_preamble()

        server.receive_data((HANDSHAKE_FRAME_BYTES + 1).to_bytes(4, "big"), 0)

        assert server.is_ending
        assert self.error_of(server).code == ErrorCode.FRAME_TOO_LARGE

    def test_a_frame_of_4_kib_is_read(self) -> None:
        server = self.after_preamble()

        server.receive_data(frame(b"\xc0" * HANDSHAKE_FRAME_BYTES), 0)

        assert self.error_of(server).code == ErrorCode.MALFORMED_FRAME

    @pytest.mark.parametrize(
        "payload",
        [
            b"\x93\x11\x01\xa1q",  # a request before the hello
            b"\xdd\x7f\xff\xff\xff",  # an array of two billion
            b"\x91" * 4000,  # nested too deep
            encoder.encode([2, "AKID", b"short", b"\xaa" * 32, 1, 1]),
            encoder.encode([2, "AKID", b"\xaa" * 32, b"short", 1, 1]),
            encoder.encode([2, "A" * 129, b"\xaa" * 32, b"\xaa" * 32, 1, 1]),
            encoder.encode([2, "AKID", b"\xaa" * 32, b"\xaa" * 32, 2**32, 1]),
            b"\x96\x02\xa2\xff\xfe",
        ],
    )
    def test_anything_but_a_hello_is_malformed(self, payload: bytes) -> None:
        server = self.after_preamble()

        server.receive_data(frame(payload), 0)

        reply = self.error_of(server)
        assert (reply.request_id, reply.code, server.is_ending) == (0, ErrorCode.MALFORMED_FRAME, True)

    def test_the_time_for_the_handshake_is_limited(self) -> None:
        for server in (a_server(now_ms=1000), a_server(now_ms=1000, authentication_timeout_ms=5000)):
            assert server.next_deadline_ms() == 6000
            server.tick(5999)
            assert not server.is_ending

            server.tick(6000)

            assert server.ended is not None
            assert server.ended.code == ErrorCode.AUTHENTICATION_TIMEOUT
            assert server.next_deadline_ms() is None

    def test_bytes_now_and_then_do_not_extend_it(self) -> None:
        server = a_server()
        for at, byte in enumerate(encode_preamble(1, 1)):
            server.receive_data(bytes([byte]), at * 600)
        server.data_to_send(4200)

        server.tick(5000)

        assert self.error_of(server).code == ErrorCode.AUTHENTICATION_TIMEOUT

    def test_a_silent_client_gets_the_refusal_in_the_protocol(self) -> None:
        server = a_server()

        server.tick(5000)

        said = b"".join(server.data_to_send(5000))
        assert said[:8] == encode_preamble(1, 0)
        assert msgspec.msgpack.decode(said[12:], type=Error).code == ErrorCode.AUTHENTICATION_TIMEOUT

    def test_a_connection_can_be_refused_before_it_has_spoken(self) -> None:
        pair = ConnectionPair()
        pair.server.end(ErrorCode.TOO_MANY_CONNECTIONS, "10000 are open", retry_after_ms=1000)

        pair.exchange()

        [ended] = pair.client_events
        assert ended == ConnectionEnded(107, "too_many_connections", "10000 are open", True, True, 1000)

    def test_a_standby_names_the_leader_before_it_knows_a_key(self) -> None:
        pair = ConnectionPair()
        details = {"addresses": ["leader.example:5680"], "shard": 0}
        pair.server.end(ErrorCode.STANDBY, "this server is a standby", details=details)

        pair.exchange()

        [ended] = pair.client_events
        assert ended == ConnectionEnded(607, "standby", "this server is a standby", True, True, None, details)

    def test_what_arrives_after_the_refusal_is_thrown_away(self) -> None:
        server = a_server()
        server.receive_data(b"GET /", 0)
        server.events()
        server.data_to_send(0)

        server.receive_data(encode_preamble(1, 1), 0)
        server.tick(10_000)

        assert server.events() == []
        assert server.data_to_send(0) == []

    def test_heartbeats_mean_nothing_yet_and_are_allowed(self) -> None:
        pair = ConnectionPair()
        pair.carry_to_server()

        pair.to_server(b"\0\0\0\0" * 3)
        pair.exchange()

        assert pair.server.is_open


class TestClientsPatience:
    def test_a_server_that_says_nothing_is_given_up(self) -> None:
        client = a_client(handshake_timeout_ms=700)

        client.tick(700)

        assert client.ended is not None
        assert (client.ended.code, client.ended.by_peer) == (ErrorCode.AUTHENTICATION_TIMEOUT, False)
        assert client.data_to_send(0) == [encode_preamble(1, 1)]

    def test_garbage_instead_of_a_hello_ends_the_connection(self) -> None:
        client = a_client()

        client.receive_data(encode_preamble(1, 0) + frame(b"\xc1"), 0)

        assert client.ended is not None
        assert client.ended.code == ErrorCode.MALFORMED_FRAME
        client.receive_data(b"more", 0)
        assert len(client.events()) == 1

    def test_a_frame_over_4_kib_is_refused(self) -> None:
        client = a_client()

        client.receive_data(encode_preamble(1, 0) + b"\0\0\x10\x01", 0)

        assert client.ended is not None
        assert client.ended.code == ErrorCode.FRAME_TOO_LARGE

    def test_an_error_instead_of_a_welcome_is_the_reason(self) -> None:
        pair = ConnectionPair()
        pair.carry_to_server()
        pair.carry_to_client()
        assert pair.client.state is State.PROOF

        pair.to_client(frame(encoder.encode(error(0, ErrorCode.SHUTTING_DOWN, "bye"))))

        [ended] = pair.client_events
        assert ended == ConnectionEnded(602, "shutting_down", "bye", True, True, None)


class TestBytesBeforeTheProof:
    @pytest.mark.parametrize("piece", [4, 1000, 256_000])
    def test_heartbeats_without_a_hello_end_the_connection_at_the_limit(self, piece: int) -> None:
        server = a_server()
        server.receive_data(encode_preamble(1, 1), 0)
        sent = 8
        while not server.is_ending and sent <= HANDSHAKE_BYTES + 256_000:
            server.receive_data(bytes(piece), 0)
            sent += piece

        (ended,) = server.events()
        assert isinstance(ended, ConnectionEnded)
        assert ended.code == ErrorCode.FRAME_TOO_LARGE
        assert HANDSHAKE_BYTES <= sent < HANDSHAKE_BYTES + piece

    def test_a_hello_that_ends_at_the_limit_is_judged_and_requests_behind_it_do_not_count(self) -> None:
        pair = ConnectionPair()
        pair.carry_to_server()
        pair.carry_to_client()
        hello = b"".join(pair.client.data_to_send(0))
        padding = (HANDSHAKE_BYTES - 8 - len(hello)) // 4 * 4
        requests = frame(encoder.encode([144, 1])) + bytes(400_000)

        pair.server.receive_data(bytes(padding) + hello + requests, 0)

        authenticated, request = pair.server.events()
        assert isinstance(authenticated, Authenticated)
        assert isinstance(request, GetServerStatus)
        assert pair.server.is_open

    def test_a_hello_that_ends_behind_the_limit_is_not_judged(self) -> None:
        pair = ConnectionPair()
        pair.carry_to_server()
        pair.carry_to_client()
        hello = b"".join(pair.client.data_to_send(0))
        padding = (HANDSHAKE_BYTES - 8 - len(hello)) // 4 * 4 + 4

        pair.server.receive_data(bytes(padding) + hello, 0)

        (ended,) = pair.server.events()
        assert isinstance(ended, ConnectionEnded)
        assert ended.code == ErrorCode.FRAME_TOO_LARGE
