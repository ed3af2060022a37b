"""The session of a command: the address of the server, and the output."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from cmq_cli.output import Output
from cmqd_client import Client, connect
from cmqd_client.address import Address, parse_address
from cmqd_client.contexts import Contexts, default_path, is_exposed, load_contexts


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The options that all commands share, resolved as far as possible without a request."""

    output: Output
    url: str | None = None
    context: str | None = None
    context_file: Path | None = None
    timeout: float = 3.0
    """Seconds for each request, beyond the wait of a receive."""

    def contexts(self) -> Contexts:
        """The context file in force.

        Raises:
            ContextError: it cannot be read.
        """
        named = self.context_file or _path(os.environ.get("CMQ_CONTEXT_FILE"))
        path = named or default_path()
        contexts = load_contexts(path, must_exist=named is not None)
        if contexts.urls and is_exposed(path):
            self.output.warning(f"{path} holds secret keys and can be read by others: chmod 600 {path}")
        return contexts

    def address(self) -> Address:
        """The server to talk to: --url, --context, --context-file, CMQ_URL, the current context; the first that is
        given.

        Raises:
            ContextError: there is none, or it is wrong.
            ValueError: the URL is wrong.
        """
        if self.url is not None:
            return parse_address(self.url)
        url = os.environ.get("CMQ_URL")
        if url and self.context is None and self.context_file is None:
            return parse_address(url)
        return self.contexts().address(self.context)

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        """A connected client.

        Raises:
            CmqError: it could not connect.
        """
        async with connect(self.address(), request_timeout=self.timeout, product="cmq") as client:
            yield client


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
