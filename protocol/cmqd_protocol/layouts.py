"""What another room's own Structs must look like to be encoded in a reply as they are, without a copy.

A Struct of the server's core with the same fields in the same order as one of ``messages`` encodes to the same bytes;
``messages.messages_received``, ``messages_peeked`` and ``half_messages`` take it. What a type checker cannot see, the
order and ``array_like``, is tested by whoever passes its own Structs.
"""

# ruff: noqa: D102  (the fields are described where they are sent: messages.py)

from typing import Protocol, TypeVar


class OriginLayout(Protocol):
    """The same for ``Origin``."""

    @property
    def queue(self) -> str: ...
    @property
    def message_id(self) -> int: ...
    @property
    def enqueue_ms(self) -> int: ...
    @property
    def receive_count(self) -> int: ...
    @property
    def reason(self) -> str: ...


class ReceivedLayout(Protocol):
    """Any array-like Struct with the fields of ``ReceivedMessage`` in its order: it encodes to the same bytes.

    Order and ``array_like`` are beyond a type checker; whoever passes its own Struct tests that they agree.
    """

    @property
    def message_id(self) -> int: ...
    @property
    def receipt_handle(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def enqueue_ms(self) -> int: ...
    @property
    def first_receive_ms(self) -> int: ...
    @property
    def next_visible_ms(self) -> int: ...
    @property
    def receive_count(self) -> int: ...
    @property
    def headers(self) -> dict[str, str] | None: ...
    @property
    def origin(self) -> OriginLayout | None: ...


class PeekedLayout(Protocol):
    """The same for ``PeekedMessage``."""

    @property
    def message_id(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def enqueue_ms(self) -> int: ...
    @property
    def visible_ms(self) -> int: ...
    @property
    def receive_count(self) -> int: ...
    @property
    def headers(self) -> dict[str, str] | None: ...
    @property
    def origin(self) -> OriginLayout | None: ...


class HalfLayout(Protocol):
    """The same for ``HalfMessage``."""

    @property
    def message_id(self) -> int: ...
    @property
    def enqueue_ms(self) -> int: ...
    @property
    def checks(self) -> int: ...
    @property
    def last_check_ms(self) -> int: ...
    @property
    def last_answer(self) -> str: ...
    @property
    def next_check_ms(self) -> int: ...


ReceivedT = TypeVar("ReceivedT", bound=ReceivedLayout)
PeekedT = TypeVar("PeekedT", bound=PeekedLayout)
HalfT = TypeVar("HalfT", bound=HalfLayout)
