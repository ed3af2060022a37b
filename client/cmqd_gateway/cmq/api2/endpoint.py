"""The endpoint of API 2.0: from an HTTP request to an action and back.

    body ─► form ─► action? ─► signature of the key ─► rate ─► typed request ─► the action ─► JSON

The endpoint has two paths, and all its memory is for both: the SDKs until 2020 use ``/v2/index.php``, newer SDKs ``/``.
A signature covers the path, so a request that was signed for one path is refused at the other.

Every outcome of API 2.0 is HTTP status 200, because SDKs take another status for a fault of the network.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from secrets import token_hex
from typing import Any, Final, TypeAlias

import msgspec
from aiohttp import web

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.callers.stated_clients import CMQ_HEADERS, client_of_headers
from cmqd_gateway.cmq.api2.actions import TABLE, Action
from cmqd_gateway.cmq.api2.fields import Fields
from cmqd_gateway.cmq.api2.form import Form, form_steps, text_of, whole_of
from cmqd_gateway.cmq.api2.repeats import RequestRepeats
from cmqd_gateway.cmq.api2.signature import SIGNATURE, is_body, other_reading
from cmqd_gateway.cmq.api2.signed_forms import unsigned_of
from cmqd_gateway.cmq.known_keys import WRONG_KEY, check_enabled, known_key
from cmqd_gateway.cmq.operations.routes import route_addresses
from cmqd_gateway.cmq.performing import perform
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.hand_over import HandOver
from cmqd_gateway.http.request_bodies import BodyRefused
from cmqd_gateway.http.turns import in_turns
from cmqd_gateway.process.gateway_logger import get_logger

PATH: Final = "/v2/index.php"
ROOT: Final = "/"
VERSION: Final = "Version"
"""A parameter of API 3.0 alone."""
FormHandler: TypeAlias = Callable[[web.Request, Form], Awaitable[web.StreamResponse]]

_log = get_logger()


class _WithVersion(Exception):
    """The form at ``/`` has a version: the request is of API 3.0."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form


class Endpoint:
    """Handles the requests of API 2.0."""

    def __init__(self, gateway: Gateway, with_version: FormHandler) -> None:
        """Make the endpoint; ``with_version`` handles a form at ``/`` that has the parameter ``Version``."""
        self._gateway = gateway
        self._with_version = with_version
        self._request_ids = (f"{prefix}{number:08x}" for prefix in [token_hex(8)] for number in count(1))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handle a request; cancelled when its connection is lost."""
        request_id = next(self._request_ids)
        with self._gateway.hand_over() as hand_over:
            try:
                response = _response(request_id, 0, "", await self._run(request, hand_over))
            except Refusal as refusal:
                if refusal.reason in WRONG_KEY:
                    await self._gateway.pause_refusal(request, refusal)
                return _response(request_id, refusal.code, refusal.message, refusal.fields)
            except _WithVersion as request_of_api3:
                form = request_of_api3.form
            except Exception as bug:
                _log.error(
                    "request_failed",
                    remote=request.remote,
                    request_id=request_id,
                    error=type(bug).__name__,
                    exc_info=bug,
                )
                refusal = Refusal(Reason.INTERNAL_ERROR, "the gateway failed at this request; its log has the reason")
                return _response(request_id, refusal.code, refusal.message, {})
            else:
                if hand_over.has_messages:
                    await hand_over.write(request, response)
                return response
        return await self._with_version(request, form)

    # ------------------------------------------------------------------ inside

    async def _run(self, request: web.Request, hand_over: HandOver) -> Fields:
        form = await self._form(request)
        if request.path == ROOT and VERSION in form:
            raise _WithVersion(form)
        chosen = self._action(form)
        key = await self._authenticated(request, form)
        stated = client_of_headers(request.headers, request.remote, CMQ_HEADERS)
        open_client = partial(self._gateway.connections.client, stated=stated)
        repeats = RequestRepeats(key, form, self._gateway.deletes, open_client)
        read = partial(chosen.reader.read, form)
        addresses = partial(self._addresses, request)
        answer = await perform(
            self._gateway,
            key,
            chosen.operation,
            read,
            hand_over,
            stated=stated,
            repeats=repeats,
            addresses=addresses,
        )
        return chosen.encode(answer)

    def _addresses(self, request: web.Request) -> Sequence[str]:
        """Return the addresses of CMQ's TCP protocol for the client of a request."""
        return route_addresses(self._gateway.settings, self._gateway.cmq_tcp_port, request.headers.get("Host", ""))

    async def _form(self, request: web.Request) -> Form:
        if request.method not in ("GET", "POST"):
            raise Refusal(Reason.HTTP_METHOD, f"the method is {request.method}; it must be GET or POST")
        try:
            body = await self._gateway.bodies.read(request)
        except BodyRefused as refusal:
            reason = Reason.THROTTLED if refusal.can_be_repeated else Reason.UNREADABLE_REQUEST
            raise Refusal(reason, str(refusal)) from None
        query = request.rel_url.raw_query_string.encode()
        return await in_turns(form_steps(query, body))

    def _action(self, form: Form) -> Action:
        name = text_of(form, "Action")
        if not name:
            raise Refusal(Reason.MISSING_PARAMETERS, "Action")
        chosen = TABLE.get(name.lower())
        if chosen is None:
            raise Refusal(Reason.ACTION_UNKNOWN, repr(name[:64]))
        return chosen

    async def _authenticated(self, request: web.Request, form: Form) -> KeySecret:
        """Return the key that signed the request.

        Raises:
            Refusal: the signature is wrong, the key unknown or disabled, or the time stamp too old or too new.
        """
        if form.get("Token"):
            raise Refusal(
                Reason.AUTHENTICATION_FAILED,
                "temporary keys (Token) are not supported; sign with a key pair of the broker",
            )
        secret_id = text_of(form, "SecretId")
        if not secret_id:
            raise Refusal(Reason.MISSING_PARAMETERS, "SecretId")
        timestamp, nonce = whole_of(form, "Timestamp"), whole_of(form, "Nonce")
        if not form.get(SIGNATURE):
            raise Refusal(Reason.MISSING_PARAMETERS, SIGNATURE)
        if nonce < 0:
            raise Refusal(Reason.OUT_OF_RANGE, f"Nonce is {nonce}; it must be a whole number from 0 on")
        # Not of whole seconds: a second more of validity could outlast the broker's memory of the send.
        ahead = timestamp - self._gateway.wall_clock()
        settings = self._gateway.settings
        if not -settings.timestamp_behind_seconds <= ahead <= settings.timestamp_ahead_seconds:
            direction = "behind" if ahead < 0 else "ahead of"
            raise Refusal(
                Reason.AUTHENTICATION_FAILED,
                f"Timestamp is {abs(ahead):.0f} s {direction} the clock of the gateway; the gateway accepts"
                f" {settings.timestamp_behind_seconds} s behind to {settings.timestamp_ahead_seconds} s ahead",
            )
        key = await known_key(self._gateway, secret_id, request.remote)
        unsigned = await unsigned_of(self._gateway, request, form, key)
        if unsigned is None:
            raise Refusal(Reason.AUTHENTICATION_FAILED, "the signature is wrong")
        self._check_reading(form, unsigned)
        check_enabled(key)
        return key

    def _check_reading(self, form: Form, unsigned: Sequence[str]) -> None:
        """Check that a machine on the way cannot have made the request from another.

        Raises:
            Refusal: a value is not signed, or the signed text has another meaning as well.
        """
        if unsigned:
            others = [name for name in unsigned if not is_body(name)]
            if others or not self._gateway.settings.unsigned_at_values:
                rest = (
                    "; of all parameters, msgBody alone may begin with it unsigned"
                    if others
                    else ", and unsigned_at_values of the gateway is false"
                )
                name = (others or unsigned)[0][:_SHOWN_CHARACTERS]
                raise Refusal(
                    Reason.AUTHENTICATION_FAILED,
                    f"the signature leaves out {name}, because its value begins with '@'{rest}",
                )
        name = other_reading(form)
        if name is not None:
            raise Refusal(
                Reason.AUTHENTICATION_FAILED,
                f"the signed text can be read in another way, because of '&' or '=' in the name or value of"
                f" {name[:_SHOWN_CHARACTERS]!r}",
            )


_HEADERS: Final = {"Content-Type": "application/json; charset=utf-8", "Cache-Control": "no-store"}
"""Of every answer: a cache must not keep messages, not even of a receive by GET."""
_SHOWN_CHARACTERS: Final = 64
"""Characters of the name of a parameter in the text of a refusal."""


def _response(request_id: str, code: int, message: str, fields: Mapping[str, Any]) -> web.Response:
    answer = {"code": code, "message": message, "requestId": request_id, **fields}
    return web.Response(body=msgspec.json.encode(answer), headers=_HEADERS)
