"""An operation of the JSON API: the row of the table, and the call that its function gets."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Generic, TypeVar, get_args, get_type_hints

from msgspec import Struct

from cmqd_client import Client
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.hand_over import TakeBack
from cmqd_gateway.rest.problems import invalid

QueryT = TypeVar("QueryT", bound=Struct)
BodyT = TypeVar("BodyT", bound=Struct)
ReplyT = TypeVar("ReplyT", bound="Struct | None")


class Call(Struct, Generic[QueryT, BodyT], frozen=True):
    """A request that has been read: everything that the function of an operation needs."""

    client: Client
    """A client of the broker with the key of the caller, so the broker decides what the caller may do."""
    gateway: Gateway
    """The gateway, for operations about the gateway itself."""
    names: Mapping[str, str]
    """The parameters of the path."""
    query: QueryT
    body: BodyT
    idempotency_key: str | None
    received: Callable[[TakeBack], None]
    """Notes that messages were received; the argument is called if their answer is not written."""

    def dedup_id(self, own: str | None) -> str | None:
        """Return the dedup id of a single message: its own, or the idempotency key.

        Raises:
            ProblemError: the request has both.
        """
        self._check_one_name(own)
        return self.idempotency_key if own is None else own

    def dedup_ids(self, own: list[str | None]) -> list[str | None]:
        """Return the dedup ids of a batch: their own, or the idempotency key with the index of each message.

        Raises:
            ProblemError: the request has both, or the key leaves no room for the index.
        """
        key = self.idempotency_key
        if key is None:
            return own
        for dedup_id in own:
            self._check_one_name(dedup_id)
        ids: list[str | None] = [f"{key}:{index}" for index in range(len(own))]
        if own and len(f"{key}:{len(own) - 1}") > MAX_DEDUP_ID_BYTES:
            room = MAX_DEDUP_ID_BYTES - len(f":{len(own) - 1}")
            raise invalid(
                "Idempotency-Key",
                f"the header Idempotency-Key has {len(key)} characters; for this batch it has at most {room}, because "
                f"the dedup id of a message is the key with the index of the message",
                limit=room,
            )
        return ids

    def _check_one_name(self, own: str | None) -> None:
        if own is not None and self.idempotency_key is not None:
            raise invalid("dedup_id", "a request has the header Idempotency-Key or the field dedup_id, not both")


MAX_DEDUP_ID_BYTES = 64
"""Longest dedup id of the protocol."""


_MISSING = {
    "queue": "queue_not_found",
    "topic": "topic_not_found",
    "subscription": "subscription_not_found",
    "schedule": "schedule_not_found",
    "secret_id": "key_not_found",
    "account": "account_not_found",
}
"""The error of an operation on an object that does not exist, by the object's parameter in the path."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[QueryT, BodyT, ReplyT]):
    """A row of the table of operations. Name and types are those of the function."""

    request: str
    """Method, and path below ``/api/v1`` with parameters in braces: ``GET /queues/{queue}``."""
    tag: str
    """Heading in the OpenAPI document."""
    summary: str
    run: Callable[[Call[QueryT, BodyT]], Awaitable[ReplyT]]
    """Executes the request. The docstring of the function is the description in the OpenAPI document."""
    problems: tuple[str, ...] = ()
    """Names of the errors of this operation, beside the errors of every operation, and of the objects in the path."""
    statuses: tuple[int, ...] = ()
    """Statuses of success; () = 200, or 204 for a reply without a body. With 201 and 200, 201 says that the request
    created the thing."""
    idempotency: bool = False
    """True if the header ``Idempotency-Key`` names the messages of the request."""
    waits: Callable[[BodyT], bool] | None = None
    """Returns True for a request that may wait for messages. Such a request gets a client for polls."""
    old_path: str = ""
    """An alias until version 0.3, served and not in the OpenAPI document; empty = none."""

    method: str = field(init=False)
    path: str = field(init=False)
    name: str = field(init=False)
    """``operationId`` in the OpenAPI document."""
    query: type[QueryT] = field(init=False)
    body: type[BodyT] = field(init=False)
    reply: type[ReplyT] | None = field(init=False)
    """None = the reply has no body."""

    def __post_init__(self) -> None:
        """Split the request, and read name and types from the function once, because each request needs them.

        A POST or PUT at the name of an object creates the object, so the object alone need not exist.
        """
        method, _, path = self.request.partition(" ")
        types = get_type_hints(self.run)
        query, body = get_args(types["call"])
        reply = None if types["return"] is NoneType else types["return"]
        statuses = self.statuses or ((204,) if reply is None else (200,))
        existing = path.rpartition("{")[0] if method in ("POST", "PUT") and path.endswith("}") else path
        missing = [problem for name, problem in _MISSING.items() if f"{{{name}}}" in existing]
        derived = {
            "method": method,
            "path": path,
            "name": self.run.__name__,
            "query": query,
            "body": body,
            "reply": reply,
            "statuses": statuses,
            "problems": (*missing, *self.problems),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def status(self, reply: ReplyT) -> int:
        """Return the status of a successful reply."""
        if len(self.statuses) == 1:
            return self.statuses[0]
        return 201 if getattr(reply, "created", False) else 200
