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


class Answer(msgspec.Struct, frozen=True):
    """Status, body and headers, from which aiohttp or a direct request makes the answer."""

    status: int
    body: bytes | None
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}

    def response(self) -> web.Response:
        """Return the response of aiohttp."""
        if self.body is None:
            return web.Response(status=self.status, headers=API_HEADERS)
        return json_response(self.status, self.body, self.content_type, self.headers)


def json_response(status: int, body: bytes, content_type: str, headers: Mapping[str, str]) -> web.Response:
    """Return an answer in JSON."""
    return web.Response(status=status, body=body, content_type=content_type, headers={**API_HEADERS, **headers})


def problem_response(request: web.Request, problem: Problem, headers: Mapping[str, str]) -> web.Response:
    """Return an answer with a problem."""
    return problem_answer(problem, headers, is_browser=_is_browser(request)).response()


def problem_answer(problem: Problem, headers: Mapping[str, str], *, is_browser: bool) -> Answer:
    """Return an answer with a problem.

    Args:
        problem: the problem.
        headers: headers beside it.
        is_browser: the request comes from a page. A browser would ask for a password and keep the password, so basic
            auth is not offered to browsers; the page asks by itself.
    """
    more: dict[str, str] = dict(headers)
    if problem.retry_after is not None and problem.status in (429, 503):
        more["Retry-After"] = str(max(1, math.ceil(problem.retry_after)))
    if problem.status == 401:
        more["WWW-Authenticate"] = 'Bearer realm="cmqd"' + (
            "" if is_browser else ', Basic realm="cmqd", charset="UTF-8"'
        )
    return Answer(problem.status, msgspec.json.encode(problem), CONTENT_TYPE, more)


async def answer_of_error(gateway: Gateway, request: web.Request, operation: str, error: Exception) -> web.Response:
    """Return the answer to a request whose handling raised an error. The refusal of a key comes after a pause.

    Args:
        gateway: the gateway.
        request: the request.
        operation: name of the operation, for the log.
        error: a problem, an error of the client, or a bug; a bug gets a line in the log.
    """
    if isinstance(error, ProblemError) and error.problem.status == 401:
        await gateway.pause_refusal(request, error)
    return error_answer(request.remote, operation, error, is_browser=_is_browser(request)).response()


def error_answer(remote: str | None, operation: str, error: Exception, *, is_browser: bool = False) -> Answer:
    """Return the answer to a request whose handling raised an error; see :func:`answer_of_error`."""
    if isinstance(error, ProblemError):
        return problem_answer(error.problem, error.headers, is_browser=is_browser)
    if isinstance(error, CmqError):
        # Without the traceback: its frames hold the body, and frames that hold their own error would keep the body
        # until the garbage collector finds them, outside the budget of bodies.
        return problem_answer(problem_of(error.with_traceback(None)), {}, is_browser=is_browser)
    _log.error("request_failed", remote=remote, operation=operation, error=type(error).__name__, exc_info=error)
    text = "the gateway failed at this request; its log has the reason"
    return problem_answer(of_code(ErrorCode.INTERNAL_ERROR, text).problem, {}, is_browser=is_browser)


def _is_browser(request: web.Request) -> bool:
    return "Sec-Fetch-Site" in request.headers
