"""Answers of a gateway that are lost while they are written.

lost = lose_next_answer(rig, monkeypatch)
...                                           a receive over HTTP
await lost.wait()                             its answer is not written, and no client of the broker is open
"""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from cmqd_client.events import ClientState
from cmqd_gateway.http.hand_over import HandOver
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig


def lose_next_answer(rig: GatewayRig, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Fail the next write of an answer, after the clients without requests were closed for idleness.

    The event is set when the write fails. Answers that aiohttp writes count too.
    """
    lost = asyncio.Event()
    prepare, write_over = web.Response.prepare, HandOver.write_over

    async def lose(*_: Any) -> Any:
        monkeypatch.setattr(web.Response, "prepare", prepare)
        monkeypatch.setattr(HandOver, "write_over", write_over)
        clients = list(rig.clients)
        rig.clock.advance(rig.settings.key_idle_seconds + 1)
        rig.gateway.connections.close_idle()
        await eventually(lambda: all(client.state is ClientState.CLOSED for client in clients))
        lost.set()
        raise ConnectionResetError("lost by the test")

    monkeypatch.setattr(web.Response, "prepare", lose)
    monkeypatch.setattr(HandOver, "write_over", lose)
    return lost


def fail(*_: Any, **__: Any) -> Any:
    """Stand in for a function with a fault."""
    raise RuntimeError("a fault of the test")
