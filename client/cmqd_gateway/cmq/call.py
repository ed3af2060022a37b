"""The declaration of an action, and the context of a call."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from cmqd_client import Client
from cmqd_gateway.caller import Caller
from cmqd_gateway.cmq.parameters import ActionRequest, Form, RequestReader
from cmqd_gateway.cmq.repeats import DeleteAnswers, dedup_ids, request_digest

R = TypeVar("R", bound=ActionRequest)
Fields: TypeAlias = Mapping[str, Any]
"""Fields of an answer, beside ``code``, ``message`` and ``requestId``."""
Undo: TypeAlias = Callable[[], Awaitable[object]]


class Call:
    """A call of an action: the caller, the request, and the undo for an answer that cannot be written."""

    __slots__ = ("_deletes", "_form", "_nonce", "caller", "undo")

    def __init__(self, caller: Caller, form: Form, nonce: int, deletes: DeleteAnswers) -> None:
        self.caller = caller
        self._form = form
        self._nonce = nonce
        self.undo: Undo | None = None
        """Called if the answer cannot be written, because its connection is lost."""
        self._deletes = deletes

    @property
    def client(self) -> Client:
        """The connection to the broker with the caller's key."""
        return self.caller.client

    def dedup_ids(self, count: int) -> list[str | None]:
        """Return the dedup ids for the messages of this request."""
        return dedup_ids(self._digest(), self._nonce, count)

    def _digest(self) -> str:
        """Return the digest of the key and all parameters. Computed on demand: most actions need no digest."""
        return request_digest(self.caller.secret_id, self._form)

    async def delete_once(self, delete: Callable[[], Any]) -> Fields:
        """Return the answer of a delete; a repeated request gets the answer of the first request."""
        return await self._deletes.answer(self._digest(), delete)


class Action(msgspec.Struct, frozen=True):
    """An action of API 2.0."""

    name: str
    request_type: type[ActionRequest]
    """The parameters."""
    reader: RequestReader
    run: Callable[[Call, Any], Awaitable[Fields]]
    """Returns the fields of the answer.

    Raises: Refusal, or an error of the client.
    """


def action(name: str, request_type: type[R], run: Callable[[Call, R], Awaitable[Fields]]) -> Action:
    """Declare an action."""
    return Action(
        name, request_type, RequestReader(request_type), cast("Callable[[Call, Any], Awaitable[Fields]]", run)
    )
