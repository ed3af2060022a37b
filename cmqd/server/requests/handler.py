"""A handler has the requests of a kind answered; a part names the kinds at its methods."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from cmqd.server.clients.client import Client
from cmqd.server.replies.answering import Answer
from cmqd_protocol import messages as wire

Handler: TypeAlias = Callable[[Client, Any], None]
"""Has a request of a given kind answered, now or later."""

_M = TypeVar("_M", bound=Callable[..., None])


def handles(*kinds: type[wire.Request]) -> Callable[[_M], _M]:
    """Mark a method as the handler of requests."""
    return _marking("handled", kinds)


def answers_late(*kinds: type[wire.Request]) -> Callable[[_M], _M]:
    """Mark a method that answers requests which may wait in the core."""
    return _marking("answered", kinds)


def handlers_of(part: object) -> dict[type[wire.Request], Handler]:
    """Return the handlers among the methods of a part."""
    return _marked(part, "handled")


def late_answers_of(part: object) -> dict[type[wire.Request], Answer]:
    """Return the answering functions among the methods of a part."""
    return _marked(part, "answered")


def _marking(mark: str, kinds: tuple[type[wire.Request], ...]) -> Callable[[_M], _M]:
    def marked(method: _M) -> _M:
        setattr(method, mark, kinds)
        return method

    return marked


def _marked(part: object, mark: str) -> dict[type[wire.Request], Any]:
    methods = vars(type(part)).items()
    return {kind: getattr(part, name) for name, method in methods for kind in getattr(method, mark, ())}
