"""A handler has the requests of a kind answered; a part with handlers names the kinds that it handles."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from cmqd.server.clients.client import Client
from cmqd.server.replies.answering import Answer
from cmqd_protocol import messages as wire

Handler: TypeAlias = Callable[[Client, Any], None]
"""Has a request of a given kind answered, now or later."""


class HasHandlers(Protocol):
    """A part that handles requests."""

    def handlers(self) -> dict[type[wire.Request], Handler]:
        """Return the handler of each kind of request."""
        ...


class HasAnswers(Protocol):
    """A part that answers requests that may wait in the core."""

    def answers(self) -> dict[type[wire.Request], Answer]:
        """Return the answering function of each kind of request."""
        ...
