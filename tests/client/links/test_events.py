"""Reports of a client about its connections and calls: events, logs, state and counters."""

import ast
import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cmqd_client import Client, connect
from cmqd_client.address import parse_address
from cmqd_client.errors import AuthenticationFailed, QueueNotFound
from cmqd_client.events import ClientState, Closed, Connected, Event, GaveUp, Lost, Reconnecting
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.local_server import LocalServer
from support.eventually import eventually

ROOT = Path(__file__).parents[3]

LOG_METHODS = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}
"""Levels by the method of a logger; ``log`` is for the events of connections."""


async def test_the_life_of_a_connection_is_told_in_order(server: LocalServer) -> None:
    events: list[Event] = []
    client = connect(server.url, patience=300, on_event=events.append)
    assert client.state is ClientState.NEW
    async with client:
        assert client.state is ClientState.CONNECTED
        server.link.connection.drop()
        await eventually(lambda: any(isinstance(event, Lost) for event in events))
        assert client.state is ClientState.CONNECTING
        await client.status()
        assert client.state is ClientState.CONNECTED
    assert client.state is ClientState.CLOSED

    names = [event.name for event in events]
    assert names == ["connected", "lost", "reconnecting", "connected", "closed"]
    first, lost, again, second, closed = events
    assert isinstance(first, Connected)
    assert (first.host, first.opened) == (f"127.0.0.1:{server.link.port}", 1)
    assert isinstance(lost, Lost)
    assert (lost.connection_id, lost.host) == (first.connection_id, first.host)
    assert "lost" in lost.why
    assert isinstance(again, Reconnecting)
    assert (again.attempt, again.why) == (1, "")
    assert 0 < again.pause < 1
    assert isinstance(second, Connected)
    assert second.opened == 2
    assert isinstance(closed, Closed)


async def test_each_failed_attempt_tells_its_reason_and_the_pause(server: LocalServer) -> None:
    await server.link.stop()
    events: list[Event] = []
    client = connect(server.url, patience=300, on_event=events.append)
    opening = asyncio.create_task(client.open())
    await eventually(lambda: len(events) >= 2)
    await server.link.start()
    await opening
    await client.close()

    attempts = [event for event in events if isinstance(event, Reconnecting)]
    assert [event.attempt for event in attempts] == list(range(2, len(attempts) + 2))
    assert all("cannot be reached" in event.why for event in attempts)


async def test_a_refusal_for_good_is_told_and_shown(server: LocalServer) -> None:
    address = msgspec.structs.replace(parse_address(server.url), secret_key="not-the-secret")
    events: list[Event] = []
    client = connect(address, on_event=events.append)
    with pytest.raises(AuthenticationFailed):
        await client.open()
    (gave_up, _) = events
    assert isinstance(gave_up, GaveUp)
    assert "not-the-secret" not in gave_up.why


async def test_a_shutdown_of_the_server_is_the_reason_of_the_loss(server: LocalServer) -> None:
    events: list[Event] = []
    async with connect(server.url, patience=300, on_event=events.append) as client:
        server.link.refuse(wire.GetServerStatus, ErrorCode.SHUTTING_DOWN, "the server is shutting down")
        await client.status()
    lost = [event for event in events if isinstance(event, Lost)]
    assert [event.why for event in lost] == ["the server is shutting down"]


async def test_log_records_carry_the_event_and_its_fields(
    server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cmqd_client.events")
    async with connect(server.url, patience=300) as client:
        server.link.connection.drop()
        await eventually(lambda: client.state is ClientState.CONNECTING)
        await client.status()

    records: list[Any] = [record for record in caplog.records if record.name == "cmqd_client.events"]
    told = [(record.event, record.levelname) for record in records]
    assert told == [
        ("connected", "INFO"),
        ("lost", "WARNING"),
        ("reconnecting", "INFO"),
        ("connected", "INFO"),
        ("closed", "INFO"),
    ]
    assert records[0].host == f"127.0.0.1:{server.link.port}"
    assert records[2].getMessage().startswith("reconnecting in 0.0")
    assert "secret" not in caplog.text
    assert parse_address(server.url).secret_key not in caplog.text


def test_the_guide_has_all_events_with_their_levels_and_fields() -> None:
    guide = (ROOT / "docs/client.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([A-Z]+) \|([^|]*)\|", guide, flags=re.MULTILINE)
    documented = {(name, level, tuple(re.findall(r"`(\w+)`", fields))) for name, level, fields in rows}

    assert documented == {
        (kind.name, logging.getLevelName(kind.level), kind.__struct_fields__) for kind in Event.__subclasses__()
    }


def logged_events() -> set[tuple[str, str]]:
    """Return level and event of all log records in the code of the client; an event "" has no name."""
    found: set[tuple[str, str]] = set()
    for path in (ROOT / "client/cmqd_client").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="_log"), attr=level)) if level in LOG_METHODS:
                    extra = next((keyword.value for keyword in node.keywords if keyword.arg == "extra"), None)
                case _:
                    continue
            match extra:
                case (
                    ast.Dict(values=[ast.Constant(value=str(name)), *_])
                    | ast.Call(args=[ast.Constant(value=str(name)), *_])
                ):
                    found.add((LOG_METHODS[level], name))
                case _:
                    found.add((LOG_METHODS[level], ""))
    return found


def test_each_log_record_has_an_event_of_the_guide() -> None:
    guide = (ROOT / "docs/client.md").read_text()

    assert logged_events() == set(re.findall(r"^\| ([A-Z]+) \| `(\w+)` \|", guide, flags=re.MULTILINE))


async def test_a_hook_that_raises_disturbs_nothing(server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("no dashboard")

    async with connect(server.url, on_event=broken) as client:
        await client.queue("orders").send(b"x")
    assert "no dashboard" in caplog.text


async def test_calls_and_messages_are_counted(client: Client, server: LocalServer) -> None:
    before = client.statistics()
    queue = client.queue("orders")
    server.link.lose_answer(wire.SendMessages)
    await queue.send(b"a")
    await queue.send_batch([b"b", b"c"])
    await queue.receive(2)
    with pytest.raises(QueueNotFound):
        await client.queue("missing").clear()
    after = client.statistics()

    assert after.requests - before.requests == 5
    assert after.repeats == 1
    assert after.failures == 1
    assert (after.messages_sent, after.messages_received) == (3, 2)
    assert (after.connections_opened, after.connections_lost) == (2, 1)
    assert after.outstanding == 0
    assert after.writes > 0
