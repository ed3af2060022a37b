import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cmqd_protocol import client_connection, handshake, server_connection
from cmqd_protocol.errors import ErrorCode, LocalProtocolError
from cmqd_protocol.events import Authenticated, ConnectionEnded, Opened
from cmqd_protocol.features import Feature, FeatureNotNamed, ServerFacts
from cmqd_protocol.frames import encode_preamble, frame
from cmqd_protocol.handshake import AccessKey, choose_version, tune_heartbeat_ms, tune_max_frame_bytes
from cmqd_protocol.limits import (
    HANDSHAKE_BYTES,
    HANDSHAKE_FRAME_BYTES,
    MAX_HEARTBEAT_MS,
    MAX_MAX_FRAME_BYTES,
    MIN_HEARTBEAT_MS,
    MIN_MAX_FRAME_BYTES,
)
from cmqd_protocol.messages import (
    ClientHello,
    Error,
    GetServerStatus,
    RewindQueue,
    ServerHello,
    Welcome,
    encoder,
    error,
)
from cmqd_protocol.server_connection import ServerConnection
from cmqd_protocol.states import State
from support.connection_pair import (
    CLIENT_NONCE,
    SECRET_ID,
    SECRET_KEY,
    SERVER_NONCE,
    ConnectionPair,
    a_client,
    a_server,
    byte_by_byte,
    whole,
)
from support.plain_msgpack import unpack
from support.vectors import load, names

HANDSHAKES = load("handshake")
PREAMBLES = load("preambles")
GOOD = [vector for vector in HANDSHAKES if vector["error"] is None]


def pair_of(vector: dict[str, Any], cut: Callable[[bytes], Any] = whole) -> ConnectionPair:
    def find_key(secret_id: str) -> AccessKey | None:
        return AccessKey(vector["account"], vector["server_secret_key"]) if secret_id == SECRET_ID else None

    return ConnectionPair(
        server={"nonce": bytes.fromhex(vector["server_nonce"]), "find_key": find_key, **vector["server"]},
        client={"nonce": bytes.fromhex(vector["client_nonce"]), **vector["client"]},
        cut=cut,
    )


def counted_text(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def by_the_book(vector: dict[str, Any]) -> bytes:
    """The transcript as section 4 of SPEC.md writes it down, without the library."""
    server, client = vector["server"], vector["client"]
    numbers = (server["max_frame_bytes"], server["heartbeat_ms"], client["max_frame_bytes"], client["heartbeat_ms"])
    return (
        bytes.fromhex("434d514400010001")
        + bytes.fromhex("434d514400010000")
        + bytes.fromhex(vector["server_nonce"])
        + bytes.fromhex(vector["client_nonce"])
        + b"".join(number.to_bytes(4, "big") for number in numbers)
        + counted_text(client["secret_id"])
        + counted_text(server["region"])
        + counted_text(client["region"] or "")
    )


def mac(key: str, said: bytes) -> str:
    return hmac.new(key.encode(), said, hashlib.sha256).hexdigest()


class TestVectors:
    @pytest.mark.parametrize("cut", [whole, byte_by_byte])
    @pytest.mark.parametrize("vector", HANDSHAKES, ids=names(HANDSHAKES))
    def test_both_machines_say_exactly_this(self, vector: dict[str, Any], cut: Callable[[bytes], Any]) -> None:
        pair = pair_of(vector, cut)

        for step in vector["steps"]:
            speaker = pair.client if step["from"] == "client" else pair.server
            said = b"".join(speaker.data_to_send(0))
            assert said.hex() == step["bytes"]
            (pair.to_server if step["from"] == "client" else pair.to_client)(said)

        assert pair.client.data_to_send(0) == pair.server.data_to_send(0) == []

    @pytest.mark.parametrize("vector", HANDSHAKES, ids=names(HANDSHAKES))
    def test_transcript_and_client_proof_follow_the_specification(self, vector: dict[str, Any]) -> None:
        said = by_the_book(vector)

        assert vector["transcript"] == said.hex()
        assert vector["client_proof"] == mac(vector["client"]["secret_key"], b"cmqd 1 client\0" + said)
        hello = unpack(bytes.fromhex(vector["steps"][2]["bytes"])[4:])
        assert hello[3].hex() == vector["client_proof"]

    @pytest.mark.parametrize("vector", GOOD, ids=names(GOOD))
    def test_server_proof_follows_the_specification(self, vector: dict[str, Any]) -> None:
        tune = vector["tune"]
        added = tune["max_frame_bytes"].to_bytes(4, "big") + tune["heartbeat_ms"].to_bytes(4, "big")
        added += vector["server"]["connection_id"].to_bytes(8, "big") + counted_text(vector["account"])

        expected = mac(vector["server_secret_key"], b"cmqd 1 server\0" + by_the_book(vector) + added)

        assert vector["server_proof"] == expected
        welcome = unpack(bytes.fromhex(vector["steps"][3]["bytes"])[4:])
        assert welcome[1].hex() == expected

    @pytest.mark.parametrize("vector", GOOD, ids=names(GOOD))
    def test_both_sides_open_with_the_same_tune(self, vector: dict[str, Any]) -> None:
        pair = pair_of(vector)

        pair.exchange()

        tune = (vector["tune"]["max_frame_bytes"], vector["tune"]["heartbeat_ms"])
        assert (pair.server.max_frame_bytes, pair.server.heartbeat_ms) == tune
        assert (pair.client.max_frame_bytes, pair.client.heartbeat_ms) == tune
        assert pair.server_events == [Authenticated(vector["account"], SECRET_ID, vector["client"]["product"])]
        facts = ServerFacts(4_096, frozenset({"example"}))
        assert pair.client_events == [Opened(vector["account"], 7, vector["server"]["region"], "cmqd", *tune, facts)]

    def test_refusals_end_both_sides(self) -> None:
        for vector in HANDSHAKES:
            if vector["error"] is None:
                continue
            pair = pair_of(vector)

            pair.exchange()

            for events, by_peer in ((pair.server_events, False), (pair.client_events, True)):
                [ended] = events
                assert isinstance(ended, ConnectionEnded)
                assert (ended.code, ended.name) == (vector["error"]["code"], vector["error"]["name"])
                assert ended.by_peer is by_peer

    @pytest.mark.parametrize("vector", PREAMBLES, ids=names(PREAMBLES))
    def test_what_a_server_answers_to_the_first_bytes(self, vector: dict[str, Any]) -> None:
        for pieces in ([bytes.fromhex(vector["client"])], list(byte_by_byte(bytes.fromhex(vector["client"])))):
            server = a_server()

            for piece in pieces:
                server.receive_data(piece, 0)

            assert b"".join(server.data_to_send(0)).hex() == vector["server"]
            assert server.is_ending is vector["closes"]


class TestVersions:
    @pytest.mark.parametrize(
        ("highest", "lowest", "chosen"), [(1, 1, 1), (9, 1, 1), (9, 0, 1), (9, 2, 0), (0, 0, 0), (1, 2, 0)]
    )
    def test_the_highest_in_common_is_chosen(self, highest: int, lowest: int, chosen: int) -> None:
        assert choose_version(highest, lowest) == chosen

    def test_a_refused_client_learns_what_the_server_speaks(self) -> None:
        client = a_client()

        client.receive_data(encode_preamble(0, 3), 0)

        [ended] = client.events()
        assert isinstance(ended, ConnectionEnded)
        assert ended.code == ErrorCode.UNSUPPORTED_VERSION
        assert "speaks up to 3" in ended.text
        assert ended.by_peer

    def test_a_version_that_was_not_offered_is_refused(self) -> None:
        client = a_client()

        client.receive_data(encode_preamble(2, 0), 0)

        [ended] = client.events()
        assert isinstance(ended, ConnectionEnded)
        assert ended.code == ErrorCode.UNSUPPORTED_VERSION

    def test_a_server_of_something_else_is_recognized(self) -> None:
        client = a_client()

        client.receive_data(b"HTTP/1.1 400 Bad Request\r\n", 0)

        [ended] = client.events()
        assert isinstance(ended, ConnectionEnded)
        assert (ended.code, ended.by_peer) == (ErrorCode.MALFORMED_FRAME, False)


class TestTune:
    @pytest.mark.parametrize(
        ("server", "client", "result"),
        [
            (4_194_304, 2_097_152, 2_097_152),
            (2_097_152, 4_194_304, 2_097_152),
            (4_194_304, 0, MIN_MAX_FRAME_BYTES),
            (1, 1, MIN_MAX_FRAME_BYTES),
            (2**32 - 1, 2**32 - 1, MAX_MAX_FRAME_BYTES),
        ],
    )
    def test_the_smaller_frame_wins_but_never_under_the_floor(self, server: int, client: int, result: int) -> None:
        assert tune_max_frame_bytes(server, client) == result

    @pytest.mark.parametrize(
        ("server", "client", "result"),
        [
            (30_000, 10_000, 10_000),
            (10_000, 30_000, 10_000),
            (30_000, 0, 30_000),
            (0, 30_000, 30_000),
            (0, 0, 0),
            (1, 30_000, MIN_HEARTBEAT_MS),
            (2**32 - 1, 2**32 - 1, MAX_HEARTBEAT_MS),
        ],
    )
    def test_the_smaller_heartbeat_that_is_not_off_wins(self, server: int, client: int, result: int) -> None:
        assert tune_heartbeat_ms(server, client) == result

    def test_a_client_does_not_accept_another_tune_than_the_hellos_give(self) -> None:
        pair = ConnectionPair()
        pair.carry_to_server()
        pair.carry_to_client()
        pair.carry_to_server()
        _, client_hello = (
            ServerHello("cmqd", "local", SERVER_NONCE, 4_194_304, 30_000),
            ClientHello(SECRET_ID, CLIENT_NONCE, b"", 4_194_304, 30_000),
        )
        said = handshake.transcript(encode_preamble(1, 1), encode_preamble(1, 0), _, client_hello)
        welcome = Welcome(b"", "admin", 4_194_304, 20_000, 7)
        proof = handshake.server_proof(SECRET_KEY, said, welcome)

        pair.to_client(frame(encoder.encode(msgspec.structs.replace(welcome, proof=proof))))

        [ended] = pair.client_events
        assert isinstance(ended, ConnectionEnded)
        assert ended.code == ErrorCode.MALFORMED_FRAME
        assert "20000" in ended.text


class TestProof:
    def test_an_unknown_id_cannot_be_told_from_a_wrong_proof(self) -> None:
        wrong = ConnectionPair(client={"secret_key": "wrong"})
        unknown = ConnectionPair(client={"secret_id": "AKIDnobody0"})

        wrong.exchange()
        unknown.exchange()

        assert wrong.sent_by_server == unknown.sent_by_server
        assert wrong.server_events == unknown.server_events

    def test_an_unknown_id_costs_the_same_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        work: list[tuple[str, int]] = []

        def noting_proof(secret_key: str, said: bytes) -> bytes:
            work.append(("proof", len(said)))
            return handshake.client_proof(secret_key, said)

        def noting_same(proof: bytes, expected: bytes) -> bool:
            work.append(("compare", len(expected)))
            return handshake.same(proof, expected)

        pairs = [
            ConnectionPair(client={"secret_id": secret_id, "secret_key": "wrong"})
            for secret_id in (SECRET_ID, "AKIDnobody0")
        ]
        for pair in pairs:
            pair.carry_to_server()
            pair.carry_to_client()
        monkeypatch.setattr(server_connection, "client_proof", noting_proof)
        monkeypatch.setattr(server_connection, "same", noting_same)

        for pair in pairs:
            pair.carry_to_server()

        assert len(work) == 4
        assert work[:2] == work[2:]

    def test_a_known_id_with_the_stand_in_key_of_unknown_ones_is_not_a_way_in(self) -> None:
        pair = ConnectionPair(client={"secret_id": "AKIDnobody0", "secret_key": handshake.NO_KEY.secret_key})

        pair.exchange()

        assert pair.server.ended is not None
        assert pair.server.ended.code == ErrorCode.AUTHENTICATION_FAILED

    def test_a_recorded_hello_is_worthless_on_another_connection(self) -> None:
        recorded = ConnectionPair()
        recorded.exchange()
        other = a_server(nonce=bytes(range(100, 132)))

        other.receive_data(bytes(recorded.sent_by_client), 0)

        assert other.ended is not None
        assert other.ended.code == ErrorCode.AUTHENTICATION_FAILED

    def test_a_server_refuses_its_own_nonce(self) -> None:
        pair = ConnectionPair()
        pair.carry_to_server()
        hello = ServerHello("cmqd", "local", SERVER_NONCE, 4_194_304, 30_000)
        reply = ClientHello(SECRET_ID, SERVER_NONCE, b"", 4_194_304, 30_000)
        said = handshake.transcript(encode_preamble(1, 1), encode_preamble(1, 0), hello, reply)
        proven = msgspec.structs.replace(reply, proof=handshake.client_proof(SECRET_KEY, said))

        pair.to_server(frame(encoder.encode(proven)))

        assert pair.server.ended is not None
        assert pair.server.ended.code == ErrorCode.AUTHENTICATION_FAILED

    def test_a_client_refuses_its_own_nonce(self) -> None:
        pair = ConnectionPair(server={"nonce": CLIENT_NONCE})

        pair.exchange()

        [ended] = pair.client_events
        assert isinstance(ended, ConnectionEnded)
        assert (ended.code, ended.by_peer) == (ErrorCode.AUTHENTICATION_FAILED, False)

    def test_a_client_refuses_a_server_that_does_not_know_the_secret(self) -> None:
        pair = ConnectionPair()
        pair.carry_to_server()
        pair.carry_to_client()
        pair.carry_to_server()
        pretended = Welcome(b"\xbb" * 32, "admin", 4_194_304, 30_000, 7)

        pair.to_client(frame(encoder.encode(pretended)))

        [ended] = pair.client_events
        assert isinstance(ended, ConnectionEnded)
        assert (ended.code, ended.by_peer) == (ErrorCode.AUTHENTICATION_FAILED, False)
        assert pair.client.data_to_send(0) == []

    @pytest.mark.parametrize("byte", range(16))
    def test_nobody_in_between_can_change_what_was_said_in_the_preambles(self, byte: int) -> None:
        """For instance lower the version: the proofs cover all sixteen bytes."""
        hello = ServerHello("cmqd", "local", SERVER_NONCE, 4_194_304, 30_000)
        reply = ClientHello(SECRET_ID, CLIENT_NONCE, b"", 4_194_304, 30_000)
        preambles = encode_preamble(1, 1) + encode_preamble(1, 0)
        changed = bytearray(preambles)
        changed[byte] ^= 1

        said = handshake.transcript(preambles[:8], preambles[8:], hello, reply)
        heard = handshake.transcript(bytes(changed[:8]), bytes(changed[8:]), hello, reply)

        assert handshake.client_proof(SECRET_KEY, said) != handshake.client_proof(SECRET_KEY, heard)

    def test_no_part_of_the_transcript_can_run_into_the_next(self) -> None:
        reply = ClientHello("ab", CLIENT_NONCE, b"", 1, 1, "d")
        shifted = ClientHello("a", CLIENT_NONCE, b"", 1, 1, "d")
        first = handshake.transcript(b"", b"", ServerHello("", "c", SERVER_NONCE, 1, 1), reply)
        second = handshake.transcript(b"", b"", ServerHello("", "bc", SERVER_NONCE, 1, 1), shifted)

        assert first != second

    def test_a_secret_key_is_not_shown(self) -> None:
        assert "hidden" not in repr(AccessKey("admin", "hidden"))

    @pytest.mark.parametrize("make", [a_server, a_client])
    def test_a_nonce_of_another_size_is_refused(self, make: Callable[..., Any]) -> None:
        with pytest.raises(LocalProtocolError, match="32 bytes"):
            make(nonce=b"short")


class TestFacts:
    """Field 6 of the welcome, and the features that it names."""

    def opened_by(self, facts: bytes) -> ConnectionPair:
        """A pair whose client was welcomed by a server that appends ``facts`` (msgpack, or nothing) to the welcome."""
        pair = ConnectionPair()
        for _ in range(2):
            pair.carry_to_server()
            said = b"".join(pair.server.data_to_send(0))
            if pair.server.is_open:
                fields = unpack(said[4:])[:6]
                head, body = (b"\x97" if facts else b"\x96"), msgspec.msgpack.encode(fields)[1:]
                said = frame(head + body + facts)
            pair.to_client(said)
        return pair

    def facts_of(self, pair: ConnectionPair) -> ServerFacts:
        [opened] = pair.client_events
        assert isinstance(opened, Opened)
        return opened.facts

    def test_the_client_learns_the_limit_and_the_features(self) -> None:
        pair = ConnectionPair(server={"max_outstanding": 17, "features": ("swim", "fly")})

        pair.exchange()

        assert self.facts_of(pair) == ServerFacts(17, frozenset({"swim", "fly"}))

    def test_a_server_without_facts_is_understood(self) -> None:
        assert self.facts_of(self.opened_by(b"")) == ServerFacts(None, frozenset())

    @pytest.mark.parametrize(
        ("facts", "understood"),
        [
            ({}, ServerFacts()),
            ({"epoch": 4, "shard": {"of": [1, 2]}, "max_waiting_requests": 5}, ServerFacts(5)),
            ({"max_waiting_requests": "many", "features": "fly"}, ServerFacts()),
            ({"max_waiting_requests": True, "features": {"fly": 1}}, ServerFacts()),
            ({"max_waiting_requests": 0, "features": ["fly", 3, None]}, ServerFacts(None, frozenset({"fly"}))),
        ],
    )
    def test_other_names_and_values_are_ignored(self, facts: dict[str, Any], understood: ServerFacts) -> None:
        assert self.facts_of(self.opened_by(msgspec.msgpack.encode(facts))) == understood

    def test_a_client_older_than_the_field_is_welcomed(self) -> None:
        """Its decoder knows six elements of the welcome; its proof does not cover the seventh."""

        class OldWelcome(msgspec.Struct, array_like=True, tag=3):
            proof: bytes
            account: str
            max_frame_bytes: int
            heartbeat_ms: int
            connection_id: int

        [plain] = [vector for vector in HANDSHAKES if vector["name"] == "plain"]
        payload = bytes.fromhex(plain["steps"][3]["bytes"])[4:]

        welcome = msgspec.msgpack.decode(payload, type=OldWelcome)

        assert welcome == OldWelcome(bytes.fromhex(plain["server_proof"]), "admin", 4_194_304, 30_000, 7)

    def test_the_longest_welcome_fits_the_handshake(self) -> None:
        pair = pair_of(
            {
                **GOOD[0],
                "account": "a" * 128,
                "server": {**GOOD[0]["server"], "max_outstanding": 2**63, "features": Feature},
            }
        )

        pair.exchange()

        assert pair.client.is_open
        assert len(pair.sent_by_server) < HANDSHAKE_FRAME_BYTES / 2

    @pytest.mark.parametrize("features", [[], ["fly"], ["other", "swim"]])
    def test_a_field_is_sent_only_to_a_server_that_named_its_feature(
        self, monkeypatch: pytest.MonkeyPatch, features: list[str]
    ) -> None:
        monkeypatch.setattr(client_connection, "FIELD_FEATURES", {RewindQueue: {"strict": "swim"}})
        pair = ConnectionPair.opened(server={"features": features})

        pair.client.send(RewindQueue(1, "q", 5))
        if "swim" in features:
            pair.client.send(RewindQueue(2, "q", 5, True))
        else:
            with pytest.raises(FeatureNotNamed, match="'strict' of RewindQueue: it did not name feature 'swim'"):
                pair.client.send(RewindQueue(2, "q", 5, True))
        pair.exchange()

        received, _ = pair.take_events()
        assert len(received) == pair.client.outstanding == 1 + ("swim" in features)


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

    def test_whoever_never_spoke_is_told_in_the_protocol(self) -> None:
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
