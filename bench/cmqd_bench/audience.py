"""The expected and the received copies of the demo's topic, by a matcher of its own. Pure: the proof of publishing.

A *number* identifies a message, as in the ledger. The rules, which must hold across a kill:

- a subscriber with a matching binding key gets the message if the publish was answered: else the message is **lost**;
- a subscriber gets no message without a matching key, and no message that was not published, and no body is changed:
  else the message is **foreign**;
- the broker's count of matching subscribers equals the demo's: else the publish is **miscounted**.

A copy may be delivered again if the kill lost its delete or the answer of the URL.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_KEY_BYTES = 64
MAX_DOTS = 15
PUSHED_SHARE = 0.2
"""Approximate limit of the share of messages to the URL: a request per message is slower than copies in queues."""

EVERYTHING, EXACT, PATTERN, NOBODY, URL = "everything", "exact", "pattern", "nobody", "url"


def matches(binding_key: str, routing_key: str) -> bool:
    """Compare a routing key with a binding key word by word, as simply as possible."""
    return _match(binding_key.split("."), routing_key.split("."))


def _match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_match(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    if not words:
        return False
    fits = words[0] != "" if pattern[0] == "*" else words[0] == pattern[0]
    return fits and _match(pattern[1:], words[1:])


def choose_subscribers(keys: Iterable[str], *, url: bool) -> Mapping[str, Sequence[str]]:
    """Choose subscribers and their binding keys for the given routing keys; with ``url`` one subscriber is a URL."""
    counts = Counter(keys)
    commonest = counts.most_common(1)[0][0]
    first, _, rest = commonest.partition(".")
    nobody = "nobody.publishes.this"
    while nobody in counts:
        nobody += ".either"
    chosen: dict[str, Sequence[str]] = {
        EVERYTHING: ["#"],
        EXACT: [commonest],
        # Two keys that sometimes match the same message: the subscriber gets one copy all the same.
        PATTERN: _legal([f"*.{rest}" if rest else "*", f"{first}.#"]),
        NOBODY: [nobody],
    }
    if url:
        chosen[URL] = _legal([_about(counts, PUSHED_SHARE)])
    return chosen


def _legal(keys: Sequence[str]) -> Sequence[str]:
    return [key for key in keys if len(key.encode()) <= MAX_KEY_BYTES and key.count(".") <= MAX_DOTS] or ["#"]


def _about(counts: Counter[str], share: float) -> str:
    """Return the pattern of the first word with the largest share of messages not above ``share``, else the rarest."""
    by_word: Counter[str] = Counter()
    for key, count in counts.items():
        by_word[key.partition(".")[0]] += count
    most = share * counts.total()
    ranked = by_word.most_common()
    return next((f"{word}.#" for word, count in ranked if count <= most), f"{ranked[-1][0]}.#")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Counts of the copies of one subscriber."""

    name: str
    binding_keys: Sequence[str]
    expected: int
    """Answered messages that the subscriber should get, by the demo's matcher."""
    received: int
    """Different messages."""
    lost: int
    foreign: int
    again: int
    """Copies beyond the first of a message."""


class Audience:
    """The books of one run."""

    def __init__(
        self,
        subscribers: Mapping[str, Sequence[str]],
        routing_key: Callable[[int], str],
        body: Callable[[int], bytes],
    ) -> None:
        self.subscribers = subscribers
        self._routing_key = routing_key
        self._body = body
        self._wanting: dict[str, frozenset[str]] = {}
        """Matching subscribers by routing key."""
        self._attempted: set[int] = set()
        self._answered: set[int] = set()
        self._numbers: dict[str, int] = {}
        """Message id -> number, of answered publishes."""
        self._received: dict[str, Counter[int]] = {name: Counter() for name in subscribers}
        self._pushed: dict[str, Counter[str]] = {name: Counter() for name in subscribers}
        """Message ids of pushes; a push does not carry the number."""
        self._pushed_bodies: dict[str, bytes] = {}
        self._foreign: Counter[str] = Counter()
        self.miscounted = 0
        """Publishes answered with a number of subscribers that differs from the demo's."""
        self.copies = 0
        """Copies received so far by all subscribers."""

    @property
    def published(self) -> int:
        """Publishes answered so far."""
        return len(self._answered)

    def wanting(self, routing_key: str) -> frozenset[str]:
        """Return the names of the subscribers with a matching binding key."""
        found = self._wanting.get(routing_key)
        if found is None:
            found = self._wanting[routing_key] = frozenset(
                name
                for name, binding_keys in self.subscribers.items()
                if any(matches(binding_key, routing_key) for binding_key in binding_keys)
            )
        return found

    def copies_of(self, numbers: Iterable[int]) -> int:
        """Number of copies that these messages should have."""
        return sum(len(self.wanting(self._routing_key(number))) for number in numbers)

    def attempt(self, numbers: Iterable[int]) -> None:
        """Record the numbers of a publish before it leaves."""
        self._attempted.update(numbers)

    def publish(self, numbers: Iterable[int], answers: Iterable[tuple[str, int | None]]) -> None:
        """Record answered publishes: id and number of subscribers by message (None = unknown)."""
        for number, (message_id, matched) in zip(numbers, answers, strict=True):
            self._answered.add(number)
            self._numbers[message_id] = number
            if matched is not None and matched != len(self.wanting(self._routing_key(number))):
                self.miscounted += 1

    def receive(self, name: str, number: int | None, body: bytes) -> None:
        """Record a copy received from a subscriber's queue."""
        self.copies += 1
        if number is None or not self._right(name, number, body):
            self._foreign[name] += 1
        else:
            self._received[name][number] += 1

    def receive_push(self, name: str, message_id: str, body: bytes, *, genuine: bool) -> None:
        """Record a push to a subscriber's URL; not ``genuine``: its signature was wrong."""
        self.copies += 1
        if genuine and self._pushed_bodies.setdefault(message_id, body) == body:
            self._pushed[name][message_id] += 1
        else:
            self._foreign[name] += 1

    def _right(self, name: str, number: int, body: bytes) -> bool:
        return (
            number in self._attempted and body == self._body(number) and name in self.wanting(self._routing_key(number))
        )

    def shares(self) -> list[Share]:
        """Return the current counts."""
        return [self._share(name) for name in self.subscribers]

    def _share(self, name: str) -> Share:
        received = Counter(self._received[name])
        foreign, unanswered = self._foreign[name], 0
        wanted_bodies = {
            self._body(number) for number in self._attempted if name in self.wanting(self._routing_key(number))
        }
        for message_id, count in self._pushed[name].items():
            number = self._numbers.get(message_id)
            body = self._pushed_bodies[message_id]
            if number is not None and self._right(name, number, body):
                received[number] += count
            elif number is None and body in wanted_bodies:
                # Published, but the answer was lost for good: the number is unknown.
                unanswered += count
            else:
                foreign += count
        expected = {number for number in self._answered if name in self.wanting(self._routing_key(number))}
        return Share(
            name=name,
            binding_keys=self.subscribers[name],
            expected=len(expected),
            received=len(received),
            lost=len(expected - received.keys()),
            foreign=foreign,
            again=received.total() - len(received) + unanswered,
        )

    @property
    def holds(self) -> bool:
        """True if no promise was broken."""
        return not self.miscounted and not any(share.lost or share.foreign for share in self.shares())
