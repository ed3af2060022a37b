"""``cmq context``: named servers."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.session import Session
from cmqd_client.address import parse_address
from cmqd_client.contexts import load_contexts

app = App(name="context", help="Named servers with their keys, kept in a file that only you can read.")

_Session = Annotated[Session, Parameter(parse=False)]


@app.command
def add(
    name: str,
    url: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    from_file: Annotated[Path | None, Parameter(name="--from")] = None,
    use: Annotated[bool, Parameter(negative=())] = False,
    session: _Session,
) -> None:
    """Add or replace a context.

    Parameters
    ----------
    name
        Name of the context.
    url
        cmq://ID:KEY@host:port; without it (or with -) it is read from standard input, hidden from other users.
    from_file
        Take the current context of this file, such as admin.context.toml in a server's data folder.
    use
        Make it the current context.
    """
    contexts = session.contexts()
    if from_file is not None:
        if url is not None:
            raise CommandFailed("give either a url or --from", ExitCode.USAGE)
        found = load_contexts(from_file, must_exist=True).address(None).url()
    else:
        found = sys.stdin.readline().strip() if url is None or url == "-" else url
    contexts.add(name, found)
    if use:
        contexts.use(name)
    contexts.save()
    session.output.remark(f"context {name!r} saved in {contexts.path}")


@app.command(name="list")
def list_contexts(*, session: _Session) -> None:
    """List the contexts; secret keys are not shown."""
    contexts = session.contexts()
    if session.output.json:
        session.output.document(
            [
                {"name": name, "url": _shown(url), "current": name == contexts.current}
                for name, url in sorted(contexts.urls.items())
            ]
        )
    else:
        rows = [
            ("*" if name == contexts.current else "", name, _shown(url)) for name, url in sorted(contexts.urls.items())
        ]
        session.output.table(("", "name", "server"), rows)


@app.command
def use(name: str, /, *, session: _Session) -> None:
    """Make a context the current one."""
    contexts = session.contexts()
    contexts.use(name)
    contexts.save()
    session.output.remark(f"{name!r} is the current context")


@app.command
def remove(name: str, /, *, session: _Session) -> None:
    """Forget a context."""
    contexts = session.contexts()
    contexts.remove(name)
    contexts.save()
    session.output.remark(f"context {name!r} removed")


@app.command
def show(
    name: str | None = None,
    /,
    *,
    secret: Annotated[bool, Parameter(negative=())] = False,
    session: _Session,
) -> None:
    """Show a context (the current one by default).

    Parameters
    ----------
    name
        Name of the context.
    secret
        Show the secret key too.
    """
    contexts = session.contexts()
    address = contexts.address(name)
    url = address.url() if secret else str(address)
    if session.output.json:
        session.output.document({"name": name or contexts.current, "url": url})
    else:
        session.output.pairs({"name": name or contexts.current or "", "server": url, "file": str(contexts.path)})


def _shown(url: str) -> str:
    try:
        return str(parse_address(url))
    except ValueError:
        return "(malformed)"
