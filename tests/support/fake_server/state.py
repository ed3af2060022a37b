"""What the fake server holds: messages and queues."""

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from cmqd_protocol import messages as wire
from cmqd_types.messages import CopyOf, Headers, Origin

if TYPE_CHECKING:
    from support.fake_server.peer import Peer

DEFAULTS: dict[str, Any] = {
    "polling_wait_ms": 200,
    "visibility_timeout_ms": 30_000,
    "max_message_bytes": 65_536,
    "retention_ms": 345_600_000,
    "delay_ms": 0,
    "max_backlog": 100_000_000,
    "max_delayed": 1_000_000,
    "rewind_ms": 0,
    "dead_letter_queue": "",
    "dead_letter_max_receives": 0,
    "dead_letter_after_ms": 0,
    "transactional": False,
    "first_check_ms": 5_000,
    "max_checks": 15,
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Stored(msgspec.Struct):
    """A message and how often it was received."""

    message_id: int
    body: bytes
    headers: Headers | None
    enqueue_ms: int
    delayed: bool = False
    receive_count: int = 0
    first_receive_ms: int = 0
    origin: Origin | None = None
    copy_of: CopyOf | None = None


class Half(msgspec.Struct):
    """An undecided half message."""

    stored: Stored
    first_check_ms: int
    checks: int = 0
    last_check_ms: int = 0
    last_answer: str = ""


class FakeQueue:
    def __init__(self, number: int, name: str, attributes: dict[str, Any]) -> None:
        self.number = number
        self.name = name
        self.attributes = DEFAULTS | attributes
        self.created_ms = now_ms()
        self.active: deque[Stored] = deque()
        self.in_flight: dict[int, Stored] = {}
        self.waiting: list[tuple[Peer, wire.ReceiveMessages]] = []
        self.rewindable: list[Stored] = []
        self.half: dict[int, Half] = {}
        self.decided: dict[int, int] = {}
        """Decisions by message id."""
        self.dedup: dict[str, int] = {}
        self.redrive: wire.RedriveStatus | None = None
        self.hold_redrive = ""
        """Why a redrive is held up; set by a test."""
        self.checkers: list[Peer] = []

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.active]


class FakeSubscription:
    def __init__(self, topic: str, name: str, attributes: dict[str, Any]) -> None:
        self.topic = topic
        self.name = name
        self.attributes = attributes
        self.created_ms = now_ms()
        self.secret = "whsec_" + name
        self.waiting: list[bytes] = []
        """Bodies for a URL, or for a queue that does not exist."""
        self.in_retry = 0
        """Of those waiting, how many have failed; set by a test, as the rest of this."""
        self.delivered = 0
        self.dropped = 0
        self.blocked = False
        self.last_error: str | None = None
        self.last_error_ms: int | None = None
        self.next_attempt_ms: int | None = None

    def matches(self, tags: list[str], routing_key: str | None) -> bool:
        if routing_key is None:
            wanted = self.attributes["filter_tags"]
            return not wanted or any(tag in wanted for tag in tags)
        words = routing_key.split(".")
        return any(_matches(key.split("."), words) for key in self.attributes["binding_keys"])


def _matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[start:]) for start in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])


class FakeTopic:
    def __init__(self, number: int, name: str, attributes: dict[str, Any]) -> None:
        self.number = number
        self.name = name
        self.attributes: dict[str, Any] = {"filter_type": "tag", "max_message_bytes": 65_536} | attributes
        self.created_ms = now_ms()
        self.subscriptions: dict[str, FakeSubscription] = {}
        self.dedup: dict[str, int] = {}
