"""Answers of the JSON API over HTTP: replies, and problems for every error."""

import math
from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from cmqd_client.errors import CmqError
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.process.gateway_logger import get_logger
from cmqd_gateway.rest.problems import CONTENT_TYPE, Problem, ProblemError, of_code, problem_of
from cmqd_protocol.protocol_errors import ErrorCode

API_HEADERS: Final[Mapping[str, str]] = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Of every answer of the API: a cache or a browser must not keep messages, and must not guess their type."""

_log = get_logger()


def json_response(status: int, body: bytes, content_type: str, headers: Mapping[str, str]) -> web.Response:
    """Return an answer in JSON."""
    return web.Response(status=status, body=body, content_type=content_type, headers={**API_HEADERS, **headers})


def problem_response(request: web.Request, problem: Problem, headers: Mapping[str, str]) -> web.Response:
    """Return an answer with a problem."""
    more: dict[str, str] = dict(headers)
    if problem.retry_after is not None and problem.status in (429, 503):
        more["Retry-After"] = str(max(1, math.ceil(problem.retry_after)))
    if problem.status == 401:
        # A browser would ask for a password and keep it, so it is not offered basic auth; the page asks by itself.
        is_browser = "Sec-Fetch-Site" in request.headers
        more["WWW-Authenticate"] = 'Bearer realm="cmqd"' + (
            "" if is_browser else ', Basic realm="cmqd", charset="UTF-8"'
        )
    return json_response(problem.status, msgspec.json.encode(problem), CONTENT_TYPE, more)


async def answer_of_error(gateway: Gateway, request: web.Request, operation: str, error: Exception) -> web.Response:
    """Return the answer to a request whose handling raised an error. The refusal of a key comes after a pause.

    Args:
        gateway: the gateway.
        request: the request.
        operation: name of the operation, for the log.
        error: a problem, an error of the client, or a bug; a bug gets a line in the log.
    """
    if isinstance(error, ProblemError):
        if error.problem.status == 401:
            await gateway.pause_refusal(request, error)
        return problem_response(request, error.problem, error.headers)
    if isinstance(error, CmqError):
        # Without the traceback: its frames hold the body, and frames that hold their own error would keep the body
        # until the garbage collector finds them, outside the budget of bodies.
        return problem_response(request, problem_of(error.with_traceback(None)), {})
    _log.error("request_failed", remote=request.remote, operation=operation, error=type(error).__name__, exc_info=error)
    text = "the gateway failed at this request; its log has the reason"
    return problem_response(request, of_code(ErrorCode.INTERNAL_ERROR, text).problem, {})
