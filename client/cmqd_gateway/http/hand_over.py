"""Messages between their receive and the write of the answer: an answer that is not written gives its messages back.

with gateway.hand_over() as hand_over:         around the whole request, at every door
    messages = await queue.receive(...)
    hand_over.received(key, take_back)         from here on, every end but a written answer takes the messages back:
    await hand_over.write(request, response)   an error while the answer is made, a lost connection, a cancellation
"""

import asyncio
import select
import socket
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias

from aiohttp import web

from cmqd_client import Client
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_types.actors import StatedClient

TakeBack: TypeAlias = Callable[[Client], Awaitable[object]]
"""Gives messages back to their queue, with an open client of the key that received the messages. The client of the
receive may be closed by the time when the write fails: nothing keeps it open after the receive."""


def made_for(stated: StatedClient, take_back: TakeBack) -> TakeBack:
    """Return ``take_back`` for messages of a caller: the caller is who gives them back."""
    return lambda client: take_back(client.on_behalf_of(stated))


class HandOvers(Protocol):
    """The keeper of requests in progress: the gateway."""

    def begun(self, hand_over: "HandOver") -> None:
        """Note that a request begins."""

    def ended(self, hand_over: "HandOver") -> None:
        """Note that a request ended."""

    def undo_later(self, key: KeySecret, take_back: TakeBack) -> None:
        """Take messages back, in a task of its own."""


class HandOver:
    """The messages of a request, if it is a receive; see the module."""

    __slots__ = ("_hand_overs", "_received")

    def __init__(self, hand_overs: HandOvers) -> None:
        self._hand_overs = hand_overs
        self._received: list[tuple[KeySecret, TakeBack]] = []

    def __enter__(self) -> Self:
        self._hand_overs.begun(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key, take_back in self._received:
            # Before ``ended``: the end of the gateway waits for the requests, and then for the undoing.
            self._hand_overs.undo_later(key, take_back)
        self._hand_overs.ended(self)

    def received(self, key: KeySecret, take_back: TakeBack) -> None:
        """Note that messages were received; to be called before anything else can fail or wait."""
        self._received.append((key, take_back))

    @property
    def has_messages(self) -> bool:
        """True if the answer has messages, which must not be lost with it."""
        return bool(self._received)

    async def write(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Write the answer over HTTP with the messages; see :meth:`write_over`.

        Written here and not by aiohttp: an error of aiohttp's write would reach no code that knows the messages.
        """

        async def write() -> None:
            await response.prepare(request)
            await response.write_eof()

        await self.write_over(request.transport, write)

    async def write_over(self, transport: asyncio.BaseTransport | None, write: Callable[[], Awaitable[object]]) -> None:
        """Write the answer with the messages; ``write`` returns when the transport has taken the answer.

        Raises:
            ConnectionResetError: the connection is lost.
        """
        if _is_gone(transport):
            raise ConnectionResetError("the client has gone")
        await write()
        self._received.clear()


def _is_gone(transport: asyncio.BaseTransport | None) -> bool:
    """Return True if the connection is lost, or the client has closed its side.

    The loop may not have handled the close yet: messages written now would be out until their visibility timeout ends.
    """
    if transport is None or transport.is_closing():
        return True
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), _HANGUP)
    return bool(poll.poll(0))


_HANGUP: Final[int] = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
