"""The path ``/``, which API 2.0, API 3.0 and the console share.

    header X-TC-Action or Authorization: TC3-HMAC-SHA256, or parameter Version     API 3.0
    parameter Action without Version                                               API 2.0
    GET without these                                                              the console

A POST has its parameters in the body, and API 2.0 reads the body: it passes a form with a version on.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from aiohttp import web

from cmqd_gateway.cmq.api2.endpoint import PATH, ROOT, VERSION, Endpoint
from cmqd_gateway.cmq.api3.endpoint import Api3Endpoint
from cmqd_gateway.cmq.api3.requests import is_by_header
from cmqd_gateway.gateway import Gateway

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(gateway: Gateway, other_root: Handler) -> Iterable[web.AbstractRouteDef]:
    """Return the routes of API 2.0 and API 3.0; ``other_root`` handles a GET of ``/`` without an action."""
    api3 = Api3Endpoint(gateway)
    api2 = Endpoint(gateway, api3.handle_form)

    async def post(request: web.Request) -> web.StreamResponse:
        return await (api3 if is_by_header(request) else api2).handle(request)

    async def get(request: web.Request) -> web.StreamResponse:
        """Handle a GET or HEAD; a browser sends no action."""
        if request.method == "GET":
            query = request.rel_url.query
            if VERSION in query or is_by_header(request):
                return await api3.handle(request)
            if "Action" in query:
                return await api2.handle(request)
        return await other_root(request)

    yield web.route("*", PATH, api2.handle)
    yield web.post(ROOT, post)
    yield web.get(ROOT, get)
