"""The answers of API 3.0: ``{"Response": {...}}``, with the id of the request.

The status is 200 and the media type exactly ``application/json``, also of an error: SDKs take another status for a
fault of the network. With a parameter such as ``charset`` the Python SDK does not look for ``Error``, and takes an
error for a success.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from cmqd_gateway.cmq.api3.faults import Fault

_HEADERS: Final = {"Content-Type": "application/json", "Cache-Control": "no-store"}


def answer(request_id: str, fields: Mapping[str, Any]) -> web.Response:
    """Return the answer of an action."""
    return _response({**fields, "RequestId": request_id})


def refusal(request_id: str, fault: Fault) -> web.Response:
    """Return the answer of an action that was refused or failed."""
    return _response({"Error": {"Code": fault.code, "Message": fault.message}, "RequestId": request_id})


def _response(fields: Mapping[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode({"Response": fields}), headers=_HEADERS)
