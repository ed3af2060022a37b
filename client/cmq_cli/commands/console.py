"""``cmq console``: a link that signs a browser in to the console."""

import asyncio
import time
import webbrowser
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.options import CurrentSession, Flag
from cmq_cli.session import Session
from cmqd_client import Client
from cmqd_client.address import Address
from cmqd_client.errors import PermissionDenied, UnknownOperation
from cmqd_gateway.console.signed_texts import SIGN_IN_SECONDS, sign_in_token

HTTP_PORT = 5681
"""Port of a gateway that was given no other port."""
PAUSE_SECONDS = 0.1
"""Pause between two attempts to reach a gateway."""


async def console(
    *,
    gateway: Annotated[
        str | None,
        Parameter(
            help="URL of the HTTP gateway, such as https://broker.example:5681. By default the gateway of the broker: "
            "its setting http as far as your key may read it, otherwise port 5681 of the broker's machine."
        ),
    ] = None,
    open_browser: Annotated[Flag, Parameter(name="--open", help="Open the link in a browser.")] = False,
    session: CurrentSession,
) -> None:
    """Print a link that signs a browser in to the console with your key.

    The link is valid for a minute and works once. It proves the key without the secret, which stays on this machine.

    Example: cmq console --open
    """
    address = session.address()
    async with session.client() as client:
        # A wrong key is refused here, in words, and not by a page.
        base = await _gateway_of(client, address) if gateway is None else _checked(gateway)
    await _check_listener(base, session)
    link = f"{base}/console/#token={sign_in_token(address.secret_id, address.secret_key, time.time())}"
    if open_browser and webbrowser.open(link):
        session.output.result({"url": f"{base}/console/"}, f"The console is open in a browser: {base}/console/")
        return
    if open_browser:
        session.output.warning("no browser was found on this machine; open the link in one")
    if session.output.json:
        session.output.document({"url": link, "valid_seconds": SIGN_IN_SECONDS})
        return
    session.output.raw(link.encode())
    session.output.remark(f"The link works once, within {SIGN_IN_SECONDS} s.")


async def _gateway_of(client: Client, address: Address) -> str:
    """Return the URL of the broker's gateway, as its settings have it, or the usual port of the broker's machine."""
    host, port, scheme = address.host, HTTP_PORT, "http"
    try:
        settings = {setting.name: setting.value for setting in await client.settings()}
    except (PermissionDenied, UnknownOperation):
        # Of this key, or of an older broker.
        await client.accounts.own_key()
    else:
        http = str(settings.get("http") or "")
        if not http:
            raise CommandFailed(
                "the broker has no HTTP gateway; start it with cmqd serve --http 127.0.0.1:5681, or name a gateway "
                "with --gateway URL",
                ExitCode.FAILED,
            )
        scheme = "https" if settings.get("tls_certificate") else "http"
        parts = urlsplit(f"//{http}")
        port = HTTP_PORT if parts.port is None else parts.port
        # A wildcard stands for every address of the broker's machine.
        named = parts.hostname or ""
        host = address.host if named in ("", "0.0.0.0", "::") else named
    if port == 0:
        raise CommandFailed(
            "the broker chose a free port for its HTTP gateway; name the gateway with --gateway URL", ExitCode.USAGE
        )
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _checked(gateway: str) -> str:
    """Return the URL of a gateway without a slash at its end.

    Raises:
        CommandFailed: the text is no URL of a gateway.
    """
    text = gateway.rstrip("/").removesuffix("/console")
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query or parts.username:
        raise CommandFailed("--gateway must be a URL like http://127.0.0.1:5681", ExitCode.USAGE)
    return text


async def _check_listener(base: str, session: Session) -> None:
    """Wait until the gateway listens: it starts after its broker, and a browser would show an error of its own.

    Raises:
        CommandFailed: it does not listen within the time limit of the session.
    """
    parts = urlsplit(base)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(session.timeout):
            while not await _listens(parts.hostname or "", port):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(PAUSE_SECONDS)
    except TimeoutError:
        raise CommandFailed(
            f"no HTTP gateway answers at {base}; start the broker with cmqd serve --http 127.0.0.1:5681, or name the "
            "gateway with --gateway URL",
            ExitCode.UNREACHABLE,
        ) from None


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True
