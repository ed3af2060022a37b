"""The recorded bytes of clients of earlier releases against this server."""

import os
from pathlib import Path
from typing import Any

import pytest

from cmqd_protocol.limits import PREAMBLE_BYTES
from cmqd_protocol.protocol_errors import ErrorCode
from support.protocol.newer import frames, says_the_same
from support.protocol.vectors import load, names
from support.server.recorded_sessions import SERVER_NONCE, fixed_bytes, make_server
from support.server.server_rig import FakeTransport

SESSIONS = load("sessions")
MOST_TURNS = 100
"""Turns of the loop that an answer may take: some wait for pages of bodies."""


@pytest.mark.parametrize("session", SESSIONS, ids=names(SESSIONS))
async def test_an_older_client_is_answered_as_its_own_server_answered_it(
    session: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.urandom", fixed_bytes(SERVER_NONCE, os.urandom))
    rig = await make_server(tmp_path)
    await rig.server.start()
    connection = rig.server.listener.make_connection()
    transport = FakeTransport(connection)
    connection.connection_made(transport)
    steps = session["steps"]

    assert [step["from"] for step in steps] == ["client", "server"] * (len(steps) // 2)
    for number in range(0, len(steps), 2):
        connection.data_received(bytes.fromhex(steps[number]["bytes"]))
        answer = b""
        for _ in range(MOST_TURNS):
            await rig.tick()
            answer = transport.take()
            if answer:
                break
        recorded = bytes.fromhex(steps[number + 1]["bytes"])
        if not number:
            assert answer[:PREAMBLE_BYTES] == recorded[:PREAMBLE_BYTES]
            answer, recorded = answer[PREAMBLE_BYTES:], recorded[PREAMBLE_BYTES:]
        for said, before in zip(frames(answer), frames(recorded), strict=True):
            assert says_the_same(said, before), (said, before)

    assert not rig.failures
    rig.check()
    await rig.server.close_connections(ErrorCode.SHUTTING_DOWN, "bye", 1)
    rig.close()
