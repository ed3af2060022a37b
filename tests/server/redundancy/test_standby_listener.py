"""A standby refuses connections on the event loop of ``cmqd serve`` too."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from cmqd.server.redundancy.standby_listener import StandbyListener
from cmqd.settings import Settings


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return request.param


def test_a_standby_names_the_leader_and_closes(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def answer() -> bytes:
        listener = StandbyListener(Settings(listen="127.0.0.1:0"), lambda: ["leader:5680"])
        reader, writer = await asyncio.open_connection(*await listener.start())
        writer.write(b"CMQD\x01\x00" + b"\x00" * 8)
        read = await reader.read()
        writer.close()
        listener.stop()
        return read

    with asyncio.Runner(loop_factory=new_loop) as runner:
        read = runner.run(answer())

    assert b"standby" in read
    assert b"leader:5680" in read
