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
from cmqd_client.events import Connected, Event, Lost, Reconnecting

TAKEOVER_SECONDS = 30.0
"""Time for which a command waits for one of several servers: the standby of a broker leads after a second, that of its
database after 6 s, and that of a silent machine after up to 30 s."""


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
        Tables, or JSON: results on standard output, errors and warnings on standard error. csv and parquet are of
        cmq log query alone.
    verbose
        Show the numbers of the request and the connection with an error; the server's log has the same numbers.
    timeout
        Time limit for an attempt of a request, beyond the wait of a receive; a request fails after three times as long.
        With several hosts in the URL a command waits 30 s at least for a server that answers, and says so.
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
        opening, patience = self.timeout, 3 * self.timeout
        address, on_event = self.address(), None
        if address.others:
            opening, patience = max(opening, TAKEOVER_SECONDS), max(patience, TAKEOVER_SECONDS)
            on_event = TakeoverNotices(self.output, patience).take
        client = connect(
            address,
            request_timeout=self.timeout,
            patience=patience,
            product="cmq",
            name="cmq" if address.name is None else None,
            on_event=on_event,
        )
        await client.open(patience=opening)
        try:
            yield client
        finally:
            await client.close()


class TakeoverNotices:
    """Tells a person that the command waits for a server of several, and which server answers at last."""

    def __init__(self, output: Output, seconds: float) -> None:
        """Take the output, and the time for which the command waits at most."""
        self._output = output
        self._seconds = seconds
        self._lost = ""
        """The reason of the last loss."""
        self._waits = False

    def take(self, event: Event) -> None:
        """Take an event of the client."""
        match event:
            case Lost():
                self._lost = event.why
            case Reconnecting() if not self._waits and (event.why or self._lost):
                self._waits = True
                self._output.warning(
                    f"no server leads; waiting up to {self._seconds:g} s for a takeover ({event.why or self._lost})"
                )
            case Connected() if self._waits:
                self._waits, self._lost = False, ""
                self._output.remark(f"{event.host} leads")
            case _:
                pass
