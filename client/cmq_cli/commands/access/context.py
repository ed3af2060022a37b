"""``cmq context``: named servers."""

import sys
from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.options import CurrentSession, Flag
from cmqd_client.address import parse_address
from cmqd_client.contexts import load_contexts

app = App(name="context", help="Named servers with their keys, in a file that only you can read.")

_Name: TypeAlias = Annotated[str, Parameter(help="Name of the context.")]


@app.command
def add(
    name: _Name,
    url: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    from_file: Annotated[Path | None, Parameter(name="--from")] = None,
    use: Flag = False,
    session: CurrentSession,
) -> None:
    """Add or replace a context.

    Parameters
    ----------
    url
        cmq://ID:KEY@host:port; by default (or with -) read from standard input, hidden from other users.
    from_file
        Take the current context of this file, such as admin.context.toml in the data folder of a server.
    use
        Make the new context the current context.
    """
    contexts = session.contexts()
    if from_file is None:
        address = sys.stdin.readline().strip() if url is None or url == "-" else url
    elif url is None:
        address = load_contexts(from_file, must_exist=True).address(None).url()
    else:
        raise CommandFailed("give either a url or --from", ExitCode.USAGE)
    contexts.add(name, address)
    if use:
        contexts.use(name)
    contexts.save()
    session.output.remark(f"context {name!r} saved in {contexts.path}")


@app.command(name="list")
def list_contexts(*, session: CurrentSession) -> None:
    """List the contexts, without their secret keys."""
    contexts = session.contexts()
    servers = {name: _without_key(url) for name, url in sorted(contexts.urls.items())}
    session.output.listing(
        [{"name": name, "url": url, "current": name == contexts.current} for name, url in servers.items()],
        ("", "name", "server"),
        [("*" if name == contexts.current else "", name, url) for name, url in servers.items()],
    )


@app.command
def use(name: _Name, /, *, session: CurrentSession) -> None:
    """Make a context the current context."""
    contexts = session.contexts()
    contexts.use(name)
    contexts.save()
    session.output.remark(f"{name!r} is the current context")


@app.command
def remove(name: _Name, /, *, session: CurrentSession) -> None:
    """Remove a context."""
    contexts = session.contexts()
    contexts.remove(name)
    contexts.save()
    session.output.remark(f"context {name!r} removed")


@app.command
def show(
    name: Annotated[str | None, Parameter(help="Name of the context; the current context by default.")] = None,
    /,
    *,
    secret: Annotated[Flag, Parameter(help="Show the secret key.")] = False,
    session: CurrentSession,
) -> None:
    """Show a context."""
    contexts = session.contexts()
    address = contexts.address(name)
    url = address.url() if secret else str(address)
    shown = name or contexts.current or ""
    session.output.facts({"name": shown, "url": url}, {"name": shown, "server": url, "file": str(contexts.path)})


def _without_key(url: str) -> str:
    try:
        return str(parse_address(url))
    except ValueError:
        return "(malformed)"
