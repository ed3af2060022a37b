"""The declaration of an operation, and the context of a call.

A declaration has no name, unit or encoding of a door: a door (API 2.0, API 3.0, CMQ's TCP protocol) reads its requests
into the request type, and encodes the answer.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from cmqd_client import Client
from cmqd_client.errors import CmqError, NotSupported
from cmqd_gateway.callers.caller import Caller
from cmqd_gateway.cmq.failures import Failures
from cmqd_gateway.cmq.ignored_keys import IgnoredKeys
from cmqd_gateway.cmq.parameters import OperationRequest
from cmqd_gateway.cmq.reasons import CMQ_WORDS, Reason, Refusal, translate
from cmqd_gateway.http.hand_over import HandOver, TakeBack, made_for
from cmqd_types.sentences import Words

R = TypeVar("R", bound=OperationRequest)
T = TypeVar("T")


class Operation(msgspec.Struct, frozen=True):
    """An operation of CMQ."""

    name: str
    """The name in API 2.0, in metrics and in documents."""
    request_type: type[OperationRequest]
    """The parameters."""
    run: Callable[["Call", Any], Awaitable[Any]]
    """Returns the answer.

    Raises: Refusal, or an error of the client.
    """
    waits: Callable[[Any], bool] | None
    """Returns True for a receive that may wait for messages. Such a receive gets a client for polls. None = the
    operation is no receive."""
    is_data: bool
    """True for an operation on messages, which CMQ throttles with 4420; the others control queues and topics and are
    throttled with 4480."""
    failure: Reason
    """The reason of a failure of the server."""

    def throttled(self, detail: str) -> Refusal:
        """Return the refusal of a request above a rate."""
        return Refusal(Reason.THROTTLED if self.is_data else Reason.CONTROL_THROTTLED, detail)

    def refusal(self, error: CmqError, words: Words = CMQ_WORDS) -> Refusal:
        """Return the refusal for an error of the client or the broker."""
        return translate(error, is_data=self.is_data, failure=self.failure, words=words)


def operation(
    name: str,
    request_type: type[R],
    run: Callable[["Call", R], Awaitable[object]],
    *,
    waits: Callable[[R], bool] | None = None,
    is_data: bool = False,
    failure: Reason = Reason.INTERNAL_ERROR,
) -> Operation:
    """Declare an operation."""
    return Operation(
        name,
        request_type,
        cast("Callable[[Call, Any], Awaitable[object]]", run),
        cast("Callable[[Any], bool] | None", waits),
        is_data,
        failure,
    )


class Repeats(Protocol):
    """The recognition of requests that a client sends again, as far as a door has one."""

    def dedup_ids(self, count: int) -> list[str | None]:
        """Return the dedup ids for the messages of the request; None for a message whose repeat is not recognised."""
        ...

    async def delete_once(self, client: Client, delete: Callable[[Client], Awaitable[Failures]]) -> Failures:
        """Return the answer of a delete; a repeated request gets the answer of the first request.

        Args:
            client: the client of the request, which may be closed when the request is cancelled.
            delete: deletes with a client.
        """
        ...


class _NoRepeats:
    """Recognises no request."""

    def dedup_ids(self, count: int) -> list[str | None]:
        return [None] * count

    async def delete_once(self, client: Client, delete: Callable[[Client], Awaitable[Failures]]) -> Failures:
        return await delete(client)


NO_REPEATS: Final[Repeats] = _NoRepeats()
"""Of a door without names for repeats."""


class Call:
    """A call of an operation: the caller, the words of the door, and the messages that go back if the answer is not
    written.
    """

    __slots__ = (
        "_door",
        "_hand_over",
        "_ignored_keys",
        "_operation",
        "_repeats",
        "_words",
        "addresses",
        "caller",
        "client",
        "shown",
    )

    def __init__(
        self,
        operation: Operation,
        caller: Caller,
        hand_over: HandOver,
        ignored_keys: IgnoredKeys,
        repeats: Repeats,
        words: Words,
        shown: Callable[[str], str],
        door: str,
        addresses: Callable[[], Sequence[str]],
    ) -> None:
        self._door = door
        self._operation = operation
        self._hand_over = hand_over
        self._ignored_keys = ignored_keys
        self._repeats = repeats
        self._words = words
        self.caller = caller
        self.client: Client = caller.client
        """The connection to the broker with the caller's key."""
        self.shown: Callable[[str], str] = shown
        """Returns the door's name of a parameter, for texts of refusals."""
        self.addresses: Callable[[], Sequence[str]] = addresses
        """Returns the addresses of CMQ's TCP protocol for the client. Raises Refusal."""

    def refusal(self, error: CmqError) -> Refusal:
        """Return the refusal for an error of the client or the broker, in the words of the door."""
        return self._operation.refusal(error, self._words)

    def dedup_ids(self, count: int) -> list[str | None]:
        """Return the dedup ids for the messages of this request."""
        return self._repeats.dedup_ids(count)

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

    async def delete_once(self, delete: Callable[[Client], Awaitable[Failures]]) -> Failures:
        """Return the answer of a delete, which gets a client; see :meth:`Repeats.delete_once`."""
        return await self._repeats.delete_once(self.client, delete)

    def ignored_key(self, topic: str, parameter: str) -> None:
        """Note that a binding key or routing key was ignored, because the topic filters by tags."""
        self._ignored_keys.note(self.caller.key.secret_id, topic, self.shown(parameter), self._door)

    def received(self, take_back: TakeBack) -> None:
        """Note that messages were received; ``take_back`` is called if their answer is not written."""
        self._hand_over.received(self.caller.key, made_for(self.caller.stated, take_back))
