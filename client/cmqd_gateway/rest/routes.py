"""The routes of the JSON API: from an HTTP request to an operation and back.

    key of header or session ─► rate ─► path, query, body ─► the operation's function ─► JSON, or problem+json

The key comes first: a stranger cannot make the gateway read a body.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.callers.stated_clients import client_of_headers
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.hand_over import HandOver
from cmqd_gateway.http.request_bodies import BodyRefused
from cmqd_gateway.http.stored_files import StoredFile, file_answer, stored_file
from cmqd_gateway.http.turns import in_turns
from cmqd_gateway.rest import openapi, reference
from cmqd_gateway.rest.answers import API_HEADERS, Answer, answer_of_error, problem_response
from cmqd_gateway.rest.authentication import authenticate, keep_session
from cmqd_gateway.rest.execution import FREQUENT, Execution
from cmqd_gateway.rest.operation import Operation
from cmqd_gateway.rest.problems import gateway_problem, of_code
from cmqd_gateway.rest.reading import count_steps, read_body, read_idempotency_key, read_query
from cmqd_gateway.rest.table import BASE, OPERATIONS
from cmqd_protocol.protocol_errors import ErrorCode

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(gateway: Gateway) -> Iterable[web.AbstractRouteDef]:
    """Return the routes of the JSON API and of its page."""
    yield web.get(f"{BASE}/", _MadeFile("text/html", reference.page, _PAGE_HEADERS).serve)
    yield web.get(f"{BASE}/reference.css", _MadeFile("text/css", reference.style_sheet, _PAGE_HEADERS).serve)
    # The pages of the console read the document at each start.
    document_headers = {**API_HEADERS, "Cache-Control": "no-cache"}
    yield web.get(f"{BASE}/openapi.json", _MadeFile("application/json", openapi.document, document_headers).serve)
    # aiohttp tries the paths below /queues one after the other, so the paths of most requests come first.
    for operation in sorted(OPERATIONS, key=lambda operation: operation.name not in FREQUENT):
        handler = _OperationHandler(gateway, operation).handle
        if operation.method == "GET":
            yield web.get(BASE + operation.path, handler)
        else:
            yield web.route(operation.method, BASE + operation.path, handler)
        if operation.old_path:
            yield web.route(operation.method, BASE + operation.old_path, handler)
    yield web.get(BASE, _serve_redirect)
    # Last: aiohttp takes the first route that matches.
    yield web.route("*", BASE, _serve_refusal)
    yield web.route("*", BASE + "/{path:.*}", _serve_refusal)


class _OperationHandler:
    """Handles the requests of an operation; cancelled when the connection of a request is lost."""

    def __init__(self, gateway: Gateway, operation: Operation[Any, Any, Any]) -> None:
        self._gateway = gateway
        self._operation = operation
        self._execution = Execution(gateway, operation)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        operation = self._operation
        with self._gateway.hand_over() as hand_over:
            try:
                caller = await authenticate(self._gateway, request)
                response = (await self._run(request, caller.key, hand_over)).response()
            except Exception as error:
                return await answer_of_error(self._gateway, request, operation.name, error)
            keep_session(self._gateway, request, response, caller)
            if hand_over.has_messages:
                await hand_over.write(request, response)
            return response

    async def _run(self, request: web.Request, key: KeySecret, hand_over: HandOver) -> Answer:
        operation = self._operation
        query = read_query(list(request.query.items()), operation.query)
        idempotency_key = None
        if operation.idempotency:
            idempotency_key = read_idempotency_key(request.headers.getall("Idempotency-Key", []))
        body = await self._body(request)
        names = dict(request.match_info)
        stated = client_of_headers(request.headers, request.remote)
        return await self._execution.run(key, names, query, body, idempotency_key, hand_over.received, stated)

    async def _body(self, request: web.Request) -> Any:
        try:
            raw = await self._gateway.bodies.read(request)
        except BodyRefused as refusal:
            if refusal.can_be_repeated:
                raise of_code(ErrorCode.TOO_MANY_REQUESTS, str(refusal)) from None
            raise gateway_problem("request_too_large", str(refusal)) from None
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
        if raw and encoding != "identity":
            raise gateway_problem(
                "unsupported_media_type",
                f"the header Content-Encoding is {encoding[:50]}; send the body as it is",
                field="Content-Encoding",
            )
        if request.content_type == "application/json":
            await in_turns(count_steps(raw, self._operation.body))
        has_type = "Content-Type" in request.headers
        return read_body(
            request.content_type if has_type else None, request.charset if has_type else None, raw, self._operation.body
        )


# ---------------------------------------------------------------- answers


class _MadeFile:
    """A file that is made at its first request, in a thread: the document takes 150 ms, and the page 250 ms."""

    def __init__(self, content_type: str, make: Callable[[], bytes], headers: Mapping[str, str]) -> None:
        self._content_type = content_type
        self._make = make
        self._headers = headers
        self._file: asyncio.Task[StoredFile] | None = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if self._file is None:
            self._file = asyncio.create_task(asyncio.to_thread(self._stored))
        # Shielded: later requests wait for the same file as a request that is cancelled.
        return file_answer(request, await asyncio.shield(self._file), self._headers)

    def _stored(self) -> StoredFile:
        return stored_file(self._content_type, self._make())


_PAGE_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": reference.CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def _serve_redirect(request: web.Request) -> web.StreamResponse:
    # A relative reference: a proxy may serve the gateway under another path.
    return web.Response(status=308, headers={**API_HEADERS, "Location": "v1/"})


_PATHS: Final = [
    (re.compile(re.sub(r"\{\w+\}", "[^/]+", operation.path)), operation.method) for operation in OPERATIONS
]


async def _serve_refusal(request: web.Request) -> web.StreamResponse:
    """Answer a path, or a method of a path, that the table does not have."""
    path = "/" + request.match_info.get("path", "")
    methods = [method for pattern, method in _PATHS if pattern.fullmatch(path)]
    if methods:
        allowed = ", ".join(methods)
        refusal = gateway_problem(
            "method_not_allowed",
            f"{request.method[:20]} is no method of this path; it has {allowed}",
            headers={"Allow": allowed},
        )
    else:
        refusal = gateway_problem(
            "path_not_found", f"the API has no path {request.path[:200]}; see {BASE}/openapi.json"
        )
    return problem_response(request, refusal.problem, refusal.headers)
