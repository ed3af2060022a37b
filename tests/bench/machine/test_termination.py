"""SIGTERM ends a command of the bench wherever the command is, also inside a callback of its event loop."""

import subprocess
import sys

import pytest

COMMAND = """
import asyncio, os, signal, sys
import uvloop
from cmqd_bench.machine.termination import treat_sigterm_like_ctrl_c

class Interrupted(asyncio.Protocol):
    def connection_made(self, transport):
        self.interrupt("connection_made")

    def data_received(self, data):
        self.interrupt("data_received")

    def interrupt(self, callback):
        if callback == sys.argv[1]:
            signal.raise_signal(signal.SIGTERM)

async def main():
    server = await asyncio.get_running_loop().create_server(Interrupted, "127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"x")
        await asyncio.Event().wait()
    finally:
        print("cleaned up")

treat_sigterm_like_ctrl_c()
try:
    if sys.argv[1] == "no loop":
        signal.raise_signal(signal.SIGTERM)
    uvloop.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("callback", ["no loop", "connection_made", "data_received"])
@pytest.mark.parametrize("ignored", [False, True], ids=["", "in the background"])
def test_no_callback_swallows_sigterm(callback: str, *, ignored: bool):
    prefix = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if ignored else ""

    command = [sys.executable, "-c", prefix + COMMAND, callback]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    cleaned = [] if callback == "no loop" else ["cleaned up"]
    assert (ran.returncode, ran.stdout.splitlines(), ran.stderr) == (0, [*cleaned, "interrupted"], "")
