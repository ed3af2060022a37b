"""Replies made of another room's own Structs, encoded without a copy.

A Struct of the server's core with the same fields in the same order as one of ``messages`` encodes to the same bytes.
The functions here put such Structs into a reply: to a type checker they ask for the right fields, and when they run
they are the reply's constructor itself, so they cost nothing. What a type checker cannot see, the order and
``array_like``, is tested by whoever passes its own Structs.
"""

# ruff: noqa: D102  (the fields are described where they are sent: messages.py)

from typing import TYPE_CHECKING, Protocol, TypeVar

from cmqd_protocol.messages import Headers, MessagesPeeked, MessagesReceived


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
    def headers(self) -> Headers | None: ...


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
    def headers(self) -> Headers | None: ...


ReceivedT = TypeVar("ReceivedT", bound=ReceivedLayout)
PeekedT = TypeVar("PeekedT", bound=PeekedLayout)

if TYPE_CHECKING:

    def messages_received(request_id: int, messages: list[ReceivedT]) -> MessagesReceived:
        """A reply with messages as another room built them, without a copy; for encoding only."""
        ...

    def messages_peeked(request_id: int, messages: list[PeekedT], next_start: int | None) -> MessagesPeeked:
        """The same for browsed messages."""
        ...

else:
    messages_received = MessagesReceived
    messages_peeked = MessagesPeeked
