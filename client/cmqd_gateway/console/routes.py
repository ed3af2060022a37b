"""The routes of the console: the shell for every page path, static files, and the session.

The shell is the same document for ``/console/`` and ``/console/queues/orders``; its script reads the path. A page can
therefore be loaded again, and users can share the address of a page.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from aiohttp import web

from cmqd_gateway.console import session_routes
from cmqd_gateway.console.files import CONTENT_SECURITY_POLICY, STATIC, static_files
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.stored_files import file_answer

_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ASK_AGAIN: Final = "no-cache"
_KEEP: Final = "public, max-age=31536000, immutable"


def routes(gateway: Gateway) -> Iterable[web.AbstractRouteDef]:
    """Return the routes of the console."""
    yield web.get("/console", _serve_redirect)
    yield from session_routes.routes(gateway)
    yield web.get(STATIC + "{path:.*}", _serve_static)
    # Last: every other path below /console/ is a page.
    yield web.get("/console/{path:.*}", _serve_shell)


async def serve_root(request: web.Request) -> web.StreamResponse:
    """Redirect ``/`` to the console. The route of the path belongs to the API 2.0, which has requests there."""
    # Not permanent: a browser would keep the redirect for the address, which may serve another program one day.
    return web.Response(status=307, headers={"Location": "console/", "Cache-Control": "no-store"})


async def _serve_redirect(request: web.Request) -> web.StreamResponse:
    return web.Response(status=308, headers={"Location": "/console/", "Cache-Control": _ASK_AGAIN})


async def _serve_shell(request: web.Request) -> web.StreamResponse:
    return file_answer(request, static_files().shell, {**_HEADERS, "Cache-Control": _ASK_AGAIN})


async def _serve_static(request: web.Request) -> web.StreamResponse:
    files = static_files()
    path = request.match_info["path"]
    version, _, rest = path.partition("/")
    has_version = version == files.version
    file = files.by_path.get(rest if has_version else path)
    if file is None:
        text = "the console has no such file; load the page again if the gateway has changed meanwhile"
        return web.Response(status=404, text=text, headers={**_HEADERS, "Cache-Control": "no-store"})
    return file_answer(request, file, {**_HEADERS, "Cache-Control": _KEEP if has_version else _ASK_AGAIN})
