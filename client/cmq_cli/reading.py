"""Standard input, read in a thread of its own, so that the event loop continues while the input is idle.

asyncio can wait for pipes and terminals but not for files. The thread is a daemon: an interrupted program must not wait
for another line from the terminal. For the same reason the thread reads the descriptor: a read of the buffered stream
would hold the lock that Python takes when the program exits.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import BinaryIO

_READ = 256 * 1024


async def read_lines(stream: BinaryIO) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a stream, as many as there are at a time, without their line breaks."""
    read = reader(stream)
    rest = b""
    while data := await in_daemon_thread(read):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]


def reader(stream: BinaryIO) -> Callable[[], bytes]:
    """Return a function that blocks until the stream has bytes, and returns them; empty at its end."""
    try:
        descriptor = stream.fileno()
    except OSError:
        # A stream in memory; its read does not block.
        return lambda: stream.read(_READ)
    return lambda: os.read(descriptor, _READ)


async def in_daemon_thread(read: Callable[[], bytes]) -> bytes:
    """Return the bytes that a blocking read gives. A cancelled caller leaves the thread to the end of the program.

    Raises:
        OSError: of the read.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def settle(data: bytes, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(data)
        else:
            done.set_exception(error)

    def run() -> None:
        data, error = b"", None
        try:
            data = read()
        except OSError as failed:
            error = failed
        with suppress(RuntimeError):  # The loop is closed: the program was interrupted meanwhile.
            loop.call_soon_threadsafe(settle, data, error)

    threading.Thread(target=run, daemon=True, name="input").start()
    return await done
