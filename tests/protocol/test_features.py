"""Facts of the server in the welcome, and requests that need a feature."""

from typing import Any

import msgspec
import pytest

from cmqd_protocol import client_connection
from cmqd_protocol.events import Opened
from cmqd_protocol.features import Feature, FeatureNotNamed, ServerFacts
from cmqd_protocol.frames import frame
from cmqd_protocol.limits import (
    HANDSHAKE_FRAME_BYTES,
)
from cmqd_protocol.messages import (
    RewindQueue,
)
from support.protocol.connection_pair import (
    ConnectionPair,
)
from support.protocol.handshakes import GOOD, HANDSHAKES, pair_of
from support.protocol.plain_msgpack import unpack


class TestFacts:
    """Field 6 of the welcome, and the features in the field."""

    def opened_by(self, facts: bytes) -> ConnectionPair:
        """A pair with a client that was welcomed with ``facts`` (msgpack, or no bytes) appended to the welcome."""
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
            ({"epoch": 4, "shard": {"of": [1, 2]}, "max_waiting_requests": 5}, ServerFacts(5, epoch=4)),
            ({"epoch": -4, "shard": 3}, ServerFacts(shard=3)),
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
