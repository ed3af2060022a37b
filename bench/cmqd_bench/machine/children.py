"""Programs of the harness in processes of their own: modules that are asked by lines until the end of their input."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

ANSWER_SECONDS = 60.0


class Child:
    """A running program."""

    def __init__(self, module: str, process: asyncio.subprocess.Process) -> None:
        self._module = module
        self._process = process
        self.pid = process.pid

    async def ask(self, line: str = "") -> str:
        """Write a line, and return the next line of the program; see ``read``."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return await self.read()

    async def read(self) -> str:
        """Return the next line.

        Raises:
            RuntimeError: the program has ended.
        """
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), ANSWER_SECONDS)
        if not line or self._process.returncode is not None:
            raise RuntimeError(f"the process of {self._module} has ended")
        return line.decode()


@asynccontextmanager
async def child(module: str, *arguments: str, variables: Mapping[str, str] | None = None) -> AsyncGenerator[Child]:
    """Run a module as a program. Secrets are variables, because all users of the machine see a command line."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(variables or {})},
    )
    assert process.stdin is not None
    try:
        yield Child(module, process)
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), ANSWER_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


async def standard_input() -> asyncio.StreamReader:
    """Return the standard input of this program."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader
