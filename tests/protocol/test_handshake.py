"""None"""

import hashlib
import hmac
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cmqd_protocol import handshake, server_connection
from cmqd_protocol.events import Authenticated, ConnectionEnded, Opened
from cmqd_protocol.features import ServerFacts
from cmqd_protocol.frames import encode_preamble, frame
from cmqd_protocol.handshake import AccessKey, choose_version, tune_heartbeat_ms, tune_max_frame_bytes
from cmqd_protocol.limits import (
    MAX_HEARTBEAT_MS,
    MAX_MAX_FRAME_BYTES,
    MIN_HEARTBEAT_MS,
    MIN_MAX_FRAME_BYTES,
)
from cmqd_protocol.messages import (
    ClientHello,
    ServerHello,
    Welcome,
    encoder,
)
from cmqd_protocol.protocol_errors import ErrorCode, LocalProtocolError
from support.cases import each_case
from support.protocol.connection_pair import (
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
from support.protocol.handshakes import GOOD, HANDSHAKES, pair_of
from support.protocol.plain_msgpack import unpack
from support.protocol.vectors import load, names

PREAMBLES = load("preambles")


def counted_text(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def by_the_book(vector: dict[str, Any]) -> bytes:
    """The transcript as in section 4 of SPEC.md, without the library."""
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
    @each_case("cut", [whole, byte_by_byte])
    @each_case("vector", HANDSHAKES, ids=names(HANDSHAKES))
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
        client, server = vector["client"], vector["server"]
        words = tuple(client.get("features", ()))
        assert pair.server_events == [Authenticated(vector["account"], SECRET_ID, client["product"], words)]
        facts = ServerFacts(
            *(4_096, frozenset({"example"}), server.get("shard", 0), server.get("epoch", 0)),
            tuple(server.get("addresses", ())),
        )
        assert pair.client_events == [Opened(vector["account"], 7, server["region"], "cmqd", *tune, facts)]

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
    def test_the_answers_of_a_server_to_the_first_bytes(self, vector: dict[str, Any]) -> None:
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

    def test_a_refused_client_learns_the_version_of_the_server(self) -> None:
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

    @each_case("byte", range(16))
    def test_an_attacker_in_between_cannot_change_the_preambles(self, byte: int) -> None:
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


def test_a_connection_that_is_open_keeps_no_memory_of_its_handshake() -> None:
    """Thousands of idle connections are open; each server machine took 1,400 bytes, and takes 700 without its
    handshake.
    """
    pair = ConnectionPair()
    pair.carry_to_server()
    pair.carry_to_client()
    pair.carry_to_server()
    said = bytes(pair.sent_by_client)
    tracemalloc.start()
    try:
        servers = [a_server() for _ in range(100)]
        for server in servers:
            server.receive_data(said, 0)
            server.data_to_send(0)
            server.events()
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert all(server.is_open for server in servers)
    assert kept_bytes < 1_000 * len(servers)
