"""The declaration of an action, and the context of a call."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from cmqd_client import Client
from cmqd_client.errors import NotSupported
from cmqd_gateway.callers.caller import Caller
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.api2.repeats import SMALL_NONCE, DeleteAnswers, dedup_ids, request_digest
from cmqd_gateway.cmq.api2.signature import SIGNATURE
from cmqd_gateway.cmq.ignored_keys import IgnoredKeys
from cmqd_gateway.cmq.parameters import ActionRequest, Form, RequestReader, whole_of
from cmqd_gateway.http.hand_over import HandOver, TakeBack

R = TypeVar("R", bound=ActionRequest)
T = TypeVar("T")
Fields: TypeAlias = Mapping[str, Any]
"""Fields of an answer, beside ``code``, ``message`` and ``requestId``."""
OpenClient: TypeAlias = Callable[[KeySecret], AbstractAsyncContextManager[Client]]


class Call:
    """A call of an action: the caller, the request, and the messages that go back if the answer is not written."""

    __slots__ = ("_deletes", "_hand_over", "_ignored_keys", "_nonce", "_open_client", "_signature", "caller")

    def __init__(
        self,
        caller: Caller,
        form: Form,
        deletes: DeleteAnswers,
        hand_over: HandOver,
        open_client: OpenClient,
        ignored_keys: IgnoredKeys,
    ) -> None:
        self.caller = caller
        self._nonce = whole_of(form, "Nonce")
        self._signature = form[SIGNATURE]
        self._deletes = deletes
        self._hand_over = hand_over
        self._open_client = open_client
        self._ignored_keys = ignored_keys

    @property
    def client(self) -> Client:
        """The connection to the broker with the caller's key."""
        return self.caller.client

    def dedup_ids(self, count: int) -> list[str | None]:
        """Return the dedup ids for the messages of this request."""
        return dedup_ids("" if self._nonce <= SMALL_NONCE else self._digest(), self._nonce, count)

    def _digest(self) -> str:
        """Return the identity of the request. Computed on demand: most actions need no identity."""
        return request_digest(self.caller.key.secret_id, self._signature)

    async def store_batch(self, dedup_ids: Sequence[str | None], store: Callable[[bool], Awaitable[T]]) -> T:
        """Store a batch with these dedup ids.

        Args:
            dedup_ids: of the messages.
            store: stores the batch; with True all of it or none, if the broker remembers some of the ids.
        """
        if len(dedup_ids) > 1 and dedup_ids[0] is not None:
            try:
                return await store(True)
            except NotSupported:
                # An older broker stores the messages that it does not remember.
                pass
        return await store(False)

    def ignored_key(self, topic: str, parameter: str) -> None:
        """Note that a binding key or routing key was ignored, because the topic filters by tags."""
        self._ignored_keys.note(self.caller.key.secret_id, topic, parameter)

    def received(self, take_back: TakeBack) -> None:
        """Note that messages were received; ``take_back`` is called if their answer is not written."""
        self._hand_over.received(self.caller.key, take_back)

    async def delete_once(self, delete: Callable[[Client], Awaitable[Fields]]) -> Fields:
        """Return the answer of a delete; a repeated request gets the answer of the first request.

        ``delete`` gets a client for its own length: it goes on when the request is cancelled, and the client of the
        request may be closed then.
        """

        async def delete_with_client() -> Fields:
            async with self._open_client(self.caller.key) as client:
                return await delete(client)

        return await self._deletes.answer(self.caller.key.secret_id, self._digest(), delete_with_client)


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
    waits: Callable[[Any], bool]
    """Returns True for a request that may wait for messages. Such a request gets a client for polls."""


def action(
    name: str,
    request_type: type[R],
    run: Callable[[Call, R], Awaitable[Fields]],
    waits: Callable[[R], bool] = lambda _: False,
) -> Action:
    """Declare an action."""
    return Action(
        name,
        request_type,
        RequestReader(request_type),
        cast("Callable[[Call, Any], Awaitable[Fields]]", run),
        cast("Callable[[Any], bool]", waits),
    )
