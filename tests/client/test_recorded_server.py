"""This client against the recorded bytes of servers of earlier releases."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from cmqd_client import connect
from cmqd_client.connection import Connection
from cmqd_client.errors import NotSupported, UnknownOperation
from cmqd_client.links.locating import Location
from cmqd_protocol.features import FIELD_FEATURES, ON_BEHALF_OF, ServerFacts
from cmqd_protocol.limits import PREAMBLE_BYTES
from cmqd_protocol.messages import DeadLetterMessages, Locate
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.local_server import LocalServer
from support.protocol.newer import extends, frames
from support.protocol.vectors import load, names
from support.server.recorded_sessions import CLIENT_NONCE, PRODUCER_SESSION, converse, fixed_bytes, url

SESSIONS = load("sessions")
OLDER_SERVERS = {session["name"]: session for session in load("older_servers")}
HELLO_FIELDS = 7
"""Fields of a client's hello before its product, which names the release."""


class RecordedServer:
    """Answers each step of the client with the recorded bytes; notes requests that differ from the old client's."""

    def __init__(self, steps: list[dict[str, str]]) -> None:
        self._steps = [(step["from"], bytes.fromhex(step["bytes"])) for step in steps]
        self.answered = 0
        """Steps of the server that were sent."""
        self.surprises: list[tuple[Any, Any]] = []
        """Requests of this client and of the old client."""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """asyncio: a client has connected."""
        for number, (side, data) in enumerate(self._steps):
            if side == "server":
                writer.write(data)
                self.answered += 1
                continue
            if not number:
                assert await reader.readexactly(PREAMBLE_BYTES) == data
                continue
            for recorded in frames(data):
                try:
                    length = int.from_bytes(await reader.readexactly(4), "big")
                    (request,) = frames(length.to_bytes(4, "big") + await reader.readexactly(length))
                except asyncio.IncompleteReadError:
                    writer.close()
                    return
                expected = recorded[:HELLO_FIELDS] if number == 2 else recorded
                if not extends(request, expected):
                    self.surprises.append((request, expected))
        await reader.read()
        writer.close()


@asynccontextmanager
async def recorded_server(
    session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[RecordedServer, str]]:
    """A listening server that plays ``session``, and its URL."""
    monkeypatch.setattr("secrets.token_bytes", fixed_bytes(CLIENT_NONCE, secrets.token_bytes))
    monkeypatch.setattr("secrets.randbits", Mock(return_value=PRODUCER_SESSION))
    recorded = RecordedServer(session["steps"])
    server = await asyncio.start_server(recorded.connected, "127.0.0.1", 0)
    yield recorded, url(server.sockets[0].getsockname()[1])
    server.close()


@pytest.mark.parametrize("session", SESSIONS, ids=names(SESSIONS))
async def test_an_older_server_is_understood_and_gets_the_requests_of_its_own_client(
    session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recorded_server(session, monkeypatch) as (recorded, address), connect(address, retries=0) as client:
        results = await converse(client)

    assert results == session["results"]
    assert recorded.surprises == []
    assert recorded.answered == len(session["steps"]) // 2


async def test_an_older_server_has_no_dead_letter_messages_and_the_connection_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = OLDER_SERVERS["cmqd_0_1_dead_letter_messages"]
    async with recorded_server(session, monkeypatch) as (recorded, address), connect(address, retries=0) as client:
        queue = await client.create_queue("orders")
        with pytest.raises(UnknownOperation) as raised:
            await queue.reject(12345, "no such customer")
        listed = (await client.queues()).names

    assert raised.value.details == {"opcode": DeadLetterMessages.__struct_config__.tag, "version": 1}
    assert listed == ["orders"]
    assert recorded.surprises == []
    assert recorded.answered == len(session["steps"]) // 2


async def test_fields_of_features_are_not_sent_to_a_server_that_named_none(monkeypatch: pytest.MonkeyPatch) -> None:
    (session,) = [one for one in SESSIONS if one["name"] == "cmqd_0_1"]
    async with recorded_server(session, monkeypatch) as (recorded, address):
        connection = await Connection.open(address)
        assert connection.facts == ServerFacts(None, frozenset())
        for kind, fields in FIELD_FEATURES.items():
            for field in fields.keys() - {ON_BEHALF_OF}:
                required = dict.fromkeys(kind.__struct_fields__[: -len(kind.__struct_defaults__)])
                request: Any = kind(**required | {"request_id": connection.next_request_id(), field: 1})
                with pytest.raises(NotSupported):
                    connection.request(request)
        assert connection.statistics().outstanding == 0
        await connection.close()

    assert recorded.answered == 2


async def test_an_older_server_without_locate_is_alone_and_has_every_queue(server: LocalServer) -> None:
    server.link.refuse(Locate, ErrorCode.UNKNOWN_OPERATION, times=2)

    async with connect(server.url) as client:
        location = await client.queue("orders").locate()
        topic = await client.topic("events").locate()

    assert location == topic == Location([f"127.0.0.1:{server.link.port}"], 0, 0, None)
