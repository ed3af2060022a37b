"""The endpoint of API 3.0: from an HTTP request to an operation and back.

    head ─► action? ─► body ─► signature of the key ─► JSON or form ─► rate ─► typed request ─► the operation ─► JSON

The endpoint shares the path ``/`` with API 2.0 (:mod:`cmqd_gateway.cmq.root`). Requests have no nonce, so two equal
sends are no repeat: each send stores a message.
"""

from collections.abc import Awaitable, Callable
from itertools import count
from secrets import token_hex
from typing import Final

from aiohttp import web

from cmqd_gateway.callers.stated_clients import CMQ_HEADERS, client_of_headers
from cmqd_gateway.cmq.api2.form import Form
from cmqd_gateway.cmq.api3 import envelope
from cmqd_gateway.cmq.api3.action import WORDS, Action, Fields
from cmqd_gateway.cmq.api3.actions import TABLE
from cmqd_gateway.cmq.api3.codes import to_fault
from cmqd_gateway.cmq.api3.faults import Code, Fault
from cmqd_gateway.cmq.api3.requests import (
    VERSION,
    Head,
    Request,
    form_head,
    head_of,
    read_form,
    read_signed_form,
    read_tc3,
)
from cmqd_gateway.cmq.performing import perform
from cmqd_gateway.cmq.reasons import Refusal
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.process.gateway_logger import get_logger

OK: Final = "OK"
"""Code of a success in metrics."""
OTHER: Final = "other"
"""Action of a request without an action of this API in metrics: a stranger cannot make up labels."""
_SHOWN: Final = 64
_log = get_logger()


class Api3Endpoint:
    """Handles the requests of API 3.0."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._request_ids = (f"{prefix}{number:08x}" for prefix in [token_hex(8)] for number in count(1))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handle a request; cancelled when its connection is lost."""

        async def run(choice: _Choice) -> Fields:
            head = head_of(request)
            if head is None:
                return await self._run_form(choice, request, await read_form(self._gateway, request))
            action = _chosen(head, "X-TC-Action", choice)
            return await self._perform(action, request, await read_tc3(self._gateway, request))

        return await self._answered(request, run)

    async def handle_form(self, request: web.Request, form: Form) -> web.StreamResponse:
        """Handle a request of the older form, whose body is read."""

        async def run(choice: _Choice) -> Fields:
            try:
                return await self._run_form(choice, request, form)
            finally:
                # The callers hold the form during the pause of a wrong key, when its bytes no longer count.
                form.clear()

        return await self._answered(request, run)

    # ------------------------------------------------------------------ inside

    async def _run_form(self, choice: "_Choice", request: web.Request, form: Form) -> Fields:
        action = _chosen(form_head(form), "Action", choice)
        return await self._perform(action, request, await read_signed_form(self._gateway, request, form))

    async def _perform(self, action: Action, http: web.Request, request: Request) -> Fields:
        settings = self._gateway.settings
        with self._gateway.hand_over() as hand_over:
            answer = await perform(
                self._gateway,
                request.key,
                action.operation,
                lambda: action.read(request.parameters, settings),
                hand_over,
                stated=client_of_headers(http.headers, http.remote, CMQ_HEADERS),
                words=WORDS,
                shown=action.shown,
                door="api3",
            )
        return action.encode(answer)

    async def _answered(
        self, request: web.Request, run: Callable[["_Choice"], Awaitable[Fields]]
    ) -> web.StreamResponse:
        request_id, choice, answers = next(self._request_ids), _Choice(), self._gateway.api3_answers
        try:
            response = envelope.answer(request_id, await run(choice))
            answers[choice.name, OK] += 1
            return response
        except Fault as raised:
            # Without the traceback: its frames hold the body, and this frame holds the fault. The two would wait for
            # the garbage collector, outside the budget of bodies.
            fault = raised.with_traceback(None)
        except Refusal as refusal:
            fault = to_fault(refusal)
        except Exception as bug:
            _log.error(
                "request_failed", remote=request.remote, request_id=request_id, error=type(bug).__name__, exc_info=bug
            )
            fault = Fault(Code.INTERNAL_ERROR, "the gateway failed at this request; its log has the reason")
        answers[choice.name, fault.code] += 1
        if fault.code.is_wrong_key:
            await self._gateway.pause_refusal(request, fault)
        return envelope.refusal(request_id, fault)


class _Choice:
    """The action of a request in metrics."""

    name = OTHER


def _chosen(head: Head, name: str, choice: _Choice) -> Action:
    """Return the action of a request, and note its name.

    Raises:
        Fault: there is no such action or version.
    """
    if not head.action:
        raise Fault(Code.MISSING_PARAMETER, f"{name} is missing")
    action = TABLE.get(head.action)
    if action is None:
        raise Fault(
            Code.INVALID_ACTION,
            f"{name} is {head.action[:_SHOWN]!r}; the actions of this gateway are {', '.join(TABLE)}",
        )
    choice.name = head.action
    if head.version != VERSION:
        raise Fault(Code.NO_SUCH_VERSION, f"the version is {head.version[:_SHOWN]!r}; it must be {VERSION}")
    return action
