"""The session of a command: the options that all commands share, the server and the output."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Parameter, Token

from cmq_cli.output import Output, OutputForm
from cmq_cli.values import parse_duration
from cmqd_client import Client, connect
from cmqd_client.address import Address, parse_address
from cmqd_client.contexts import Contexts, default_path, is_exposed, load_contexts


def _to_seconds(type_: object, tokens: Sequence[Token]) -> float:
    return parse_duration(tokens[0].value)


Seconds: TypeAlias = Annotated[float, Parameter(converter=_to_seconds, n_tokens=1, metavar="DURATION")]


@dataclass(frozen=True, kw_only=True)
class Session:
    """The options that all commands share, and the server and the output that they choose.

    Parameters
    ----------
    url
        The server: cmq://ID:KEY@host:port. Other users of this machine can see it; prefer a context or CMQ_URL.
    context
        Name of the context to use, instead of the current context.
    context_file
        File with contexts, instead of the file of the user; such as admin.context.toml in the data folder of a server.
    form
        Tables, or JSON: results on standard output, errors and warnings on standard error.
    verbose
        Show the numbers of the request and the connection with an error; the server's log has the same numbers.
    timeout
        Time limit for an attempt of a request, beyond the wait of a receive; a request fails after three times as long.
    """

    url: str | None = None
    context: str | None = None
    context_file: Path | None = None
    form: Annotated[OutputForm, Parameter(name="--output")] = OutputForm.TABLE
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"], negative=(), show_default=False)] = False
    timeout: Annotated[Seconds, Parameter(show_default="3s")] = 3.0

    @cached_property
    def output(self) -> Output:
        """The output of the command."""
        return Output(self.form, verbose=self.verbose)

    def contexts(self) -> Contexts:
        """Read the context file.

        Raises:
            ContextError: the file cannot be read.
        """
        named = self.context_file or os.environ.get("CMQ_CONTEXT_FILE")
        path = Path(named) if named else default_path()
        contexts = load_contexts(path, must_exist=bool(named))
        if contexts.urls and is_exposed(path):
            self.output.warning(f"{path} holds secret keys, and other users can read it; run: chmod 600 {path}")
        return contexts

    def address(self) -> Address:
        """Return the server: the first of --url, --context, --context-file, CMQ_URL and the current context.

        Raises:
            ContextError: no server is chosen, or the context is wrong.
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
        """Connect to the server.

        Raises:
            CmqError: the server cannot be reached, or refuses.
        """
        # A command fails soon if no server answers, but a request that was sent gets three attempts.
        client = connect(self.address(), request_timeout=self.timeout, patience=3 * self.timeout, product="cmq")
        await client.open(patience=self.timeout)
        try:
            yield client
        finally:
            await client.close()
