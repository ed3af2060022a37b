"""The greeting of a broker that starts in a terminal: address, folder, durability and the next commands."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from cmqd import __version__
from cmqd.log.values import Durability

_SURVIVES = {
    Durability.FSYNC: "fsync: an answered request survives kill -9 and power loss",
    Durability.OS: "os: an answered request survives kill -9 of the broker, and may be lost with the machine",
}
_EPHEMERAL = "none: messages are kept in memory and end with the broker"


class Started(NamedTuple):
    """A listening broker: the facts of the greeting."""

    host: str
    port: int
    tls: bool
    data: Path
    durability: Durability
    ephemeral: bool
    context_file: Path
    http: str = ""
    """URL of the HTTP gateway, empty without a gateway."""
    cmq_tcp: str = ""
    """Address of the gateway for CMQ's TCP protocol, empty without this protocol."""


def greeting(started: Started, cmq: str | None) -> str:
    """Return the lines of the greeting.

    Args:
        started: the broker.
        cmq: the result of ``find_cmq``.
    """
    host = f"[{started.host}]" if ":" in started.host else started.host
    # The child chooses a free port, and the broker does not know the port.
    is_known = not started.http.endswith(":0")
    if not started.http:
        http = ["  HTTP        off; --http 127.0.0.1:5681 serves the console and the HTTP APIs"]
    elif is_known:
        http = [f"  HTTP        {started.http}", f"  console     {started.http}/console/"]
    else:
        http = ["  HTTP        on a free port; the log line gateway_ready names it"]
    if started.cmq_tcp:
        is_free_port = started.cmq_tcp.endswith(":0")
        where = "on a free port; the log line gateway_ready names it" if is_free_port else started.cmq_tcp
        http.append(f"  CMQ's TCP   {where}")
    lines = [
        f"cmqd {__version__} is ready.",
        f"  address     {host}:{started.port}{', with TLS' if started.tls else ''}",
        *http,
        f"  folder      {started.data.absolute()}",
        f"  durability  {_EPHEMERAL if started.ephemeral else _SURVIVES[started.durability]}",
        "Next, in a second terminal:",
    ]
    if cmq is None:
        lines.append("  pip install 'cmqd[cli]'    # the command line cmq")
    command = shlex.quote(cmq or "cmq")
    lines += [
        f"  export CMQ_CONTEXT_FILE={shlex.quote(str(started.context_file.absolute()))}",
        f"  {command} queue create orders",
        f"  {command} send orders 'first'",
        f"  {command} receive orders --delete",
        *([f"  {command} console --open    # the console, in a browser"] if started.http and is_known else []),
        "Ctrl-C ends the broker in order.",
    ]
    return "\n".join(lines)


def find_cmq(interpreter: str = sys.executable) -> str | None:
    """Return the command line as a shell finds it: ``cmq``, or the path of the script beside the interpreter.

    Returns None if ``cmq`` is not installed.
    """
    beside = Path(interpreter).absolute().with_name("cmq")
    on_path = shutil.which("cmq")
    if beside.exists():
        # Preferred to a cmq of the path, which may have a different version.
        return "cmq" if on_path is not None and Path(on_path).absolute() == beside else str(beside)
    return None if on_path is None else "cmq"
