"""Publishes of one wake-up, collected by topic, so that the core decides those of many clients in one call.

A call that decides sixteen publishes costs little more than one that decides a single one: the audience, the records
and the row are shared. What may be collected for how long, and who must see what, is told in ``handlers.topics``.
"""

from typing import Final, NamedTuple

from cmqd.core.outcome import PublishRequest
from cmqd.server.commit import Answerable

MAX_MESSAGES: Final = 256
MAX_BYTES: Final = 1024 * 1024
"""Of one topic, as much as one publish may bring: a row of the log stays as small as that of a batch. A publish that is
larger by itself (its headers can make it so) is decided alone."""


class Asker(NamedTuple):
    """Whom to answer."""

    client: Answerable
    request_id: int


class Publishes:
    """What is collected for one topic, in order of arrival."""

    __slots__ = ("account", "askers", "messages", "requests", "size", "topic")

    def __init__(self, account: str, topic: str) -> None:
        self.account = account
        self.topic = topic
        self.requests: list[PublishRequest] = []
        self.askers: list[Asker] = []
        """Whose they are, one for each."""
        self.messages = 0
        self.size = 0
        """Bytes of bodies and headers."""

    def __repr__(self) -> str:
        return f"<Publishes {self.account}/{self.topic} requests={len(self.requests)} messages={self.messages}>"

    def has_room(self, messages: int, size: int) -> bool:
        """Whether so much can be decided together with what is here."""
        return self.messages + messages <= MAX_MESSAGES and self.size + size <= MAX_BYTES

    def add(self, asker: Asker, request: PublishRequest, size: int) -> None:
        """Collect one more."""
        self.requests.append(request)
        self.askers.append(asker)
        self.messages += len(request.bodies)
        self.size += size
