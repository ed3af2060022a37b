"""The books of a demo: messages sent, answered, received and deleted, and the check of their sums. Pure.

A message has a *number* (a header that the producer sets) and an *id* (from the broker's answer; a copy of a published
message counts by the id of the original). The rules, which must hold across a kill:

- every id that was answered to a producer is received from each queue that should have the message, with exactly the
  body that was sent: else the id is **lost**;
- no message is received that was not sent to that queue, and no body is changed: else the message is **foreign**;
- an id with an answered delete is never received again: else the delete was **undone**;
- the broker's count of matching subscribers equals the count by the books: else the publish is **miscounted**.

"At least once" permits two cases, which are counted. An id can be received twice: the kill lost the first answer or the
delete, so the visibility timeout expired. A number can be stored twice: the answer to the send was lost, and the
producer stopped repeating the numbered send and made a new send.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

from cmqd_bench.demo.input import Source

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
    """Choose subscribers and their binding keys for the given routing keys; with ``url`` a subscriber is a URL."""
    counts = Counter(keys)
    commonest = counts.most_common(1)[0][0]
    first, _, rest = commonest.partition(".")
    unused = "nobody.publishes.this"
    while unused in counts:
        unused += ".either"
    chosen: dict[str, Sequence[str]] = {
        EVERYTHING: ["#"],
        EXACT: [commonest],
        # Two keys that sometimes match the same message: the subscriber gets a single copy all the same.
        PATTERN: _legal([f"*.{rest}" if rest else "*", f"{first}.#"]),
        NOBODY: [unused],
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
    limit = share * counts.total()
    ranked = by_word.most_common()
    return next((f"{word}.#" for word, count in ranked if count <= limit), f"{ranked[-1][0]}.#")


@dataclass(frozen=True, slots=True)
class Balance:
    """The state of a ledger."""

    acknowledged: int
    """Sends that were answered."""
    received: int
    """Distinct numbers received."""
    deliveries: int
    deleted: int
    """Number of distinct ids with an answered delete."""
    lost: int
    foreign: int
    undone: int
    redelivered: int
    """Deliveries of an id beyond its first."""
    stored_twice: int
    """Numbers with two or more ids."""
    unanswered: int
    """Numbers received without an answer to their send: the message was stored, and the answer lost."""

    @property
    def holds(self) -> bool:
        """True if no promise was broken."""
        return not (self.lost or self.foreign or self.undone)


class Ledger:
    """The messages of a queue, or of a URL."""

    def __init__(self, body: Callable[[int], bytes]) -> None:
        self._body = body
        self._attempted: set[int] = set()
        self._acknowledged: dict[str, int] = {}
        """id -> number"""
        self._received: dict[str, int] = {}
        """id -> number of deliveries"""
        self._ids: dict[int, set[str]] = {}
        """number -> ids received"""
        self._deleted: set[str] = set()
        self._unsure: set[str] = set()
        self.deliveries = 0
        self.foreign = 0
        self.undone = 0

    @property
    def acknowledged(self) -> int:
        """Sends answered so far."""
        return len(self._acknowledged)

    @property
    def received(self) -> int:
        """Distinct numbers received so far."""
        return len(self._ids)

    @property
    def deleted(self) -> int:
        """Number of distinct ids with an answered delete so far."""
        return len(self._deleted)

    def attempt(self, numbers: Iterable[int]) -> None:
        """Record a send before it leaves."""
        self._attempted.update(numbers)

    def acknowledge(self, numbers: Iterable[int], ids: Iterable[str]) -> None:
        """Record an answered send."""
        self._acknowledged.update(zip(ids, numbers, strict=True))

    def receive(self, message_id: str, number: int | None, body: bytes) -> None:
        """Record a received message."""
        self.deliveries += 1
        if number is None or number not in self._attempted or body != self._body(number):
            self.foreign += 1
            return
        if message_id in self._deleted and message_id not in self._unsure:
            self.undone += 1
        self._received[message_id] = self._received.get(message_id, 0) + 1
        self._ids.setdefault(number, set()).add(message_id)

    def receive_unnumbered(self, message_id: str, body: bytes) -> None:
        """Record a message without the header, by the number that was answered with its id.

        To be called after the last answer. If the answer to the send was lost, the message counts under any number with
        the same body.
        """
        number = self._acknowledged.get(message_id)
        if number is None:
            number = next((each for each in self._attempted if self._body(each) == body), None)
        self.receive(message_id, number, body)

    def delete(self, message_ids: Iterable[str], *, sure: bool = True) -> None:
        """Record an answered delete.

        Without ``sure`` the delete was repeated across the kill: the answer to a repeat can also mean that the
        visibility timeout expired.
        """
        for message_id in message_ids:
            self._deleted.add(message_id)
            if not sure:
                self._unsure.add(message_id)

    def balance(self) -> Balance:
        """Return the current balance."""
        answered = set(self._acknowledged.values())
        return Balance(
            acknowledged=len(self._acknowledged),
            received=len(self._ids),
            deliveries=self.deliveries,
            deleted=len(self._deleted),
            lost=sum(message_id not in self._ids.get(number, ()) for message_id, number in self._acknowledged.items()),
            foreign=self.foreign,
            undone=self.undone,
            redelivered=sum(count - 1 for count in self._received.values()),
            stored_twice=sum(len(ids) > 1 for ids in self._ids.values()),
            unanswered=sum(number not in answered for number in self._ids),
        )


class Books:
    """All ledgers of a demo: of the queue to which every message is sent, and of each subscriber of the topic."""

    def __init__(self, source: Source, subscribers: Mapping[str, Sequence[str]]) -> None:
        self.subscribers = subscribers
        self.sends = Ledger(source.body)
        self.copies = {name: Ledger(source.body) for name in subscribers}
        self.published = 0
        """Publishes answered so far."""
        self.miscounted = 0
        """Publishes answered with a number of subscribers that differs from the demo's."""
        self._routing_key = source.routing_key
        self._wanting: dict[str, frozenset[str]] = {}
        """Matching subscribers by routing key."""

    def wanting(self, number: int) -> frozenset[str]:
        """Return the names of the subscribers that should get a message."""
        routing_key = self._routing_key(number)
        if routing_key not in self._wanting:
            self._wanting[routing_key] = frozenset(
                name
                for name, binding_keys in self.subscribers.items()
                if any(matches(binding_key, routing_key) for binding_key in binding_keys)
            )
        return self._wanting[routing_key]

    def wanted(self, name: str, numbers: Iterable[int]) -> list[int]:
        """Return the numbers of the messages that a subscriber should get."""
        return [number for number in numbers if name in self.wanting(number)]

    def attempt_publish(self, numbers: Sequence[int]) -> None:
        """Record a publish before it leaves."""
        for name, ledger in self.copies.items():
            ledger.attempt(self.wanted(name, numbers))

    def acknowledge_publish(self, numbers: Sequence[int], answers: Iterable[tuple[str, int | None]]) -> None:
        """Record answered publishes: id and number of matching subscribers by message (None = unknown)."""
        for number, (message_id, matched) in zip(numbers, answers, strict=True):
            self.published += 1
            wanting = self.wanting(number)
            if matched is not None and matched != len(wanting):
                self.miscounted += 1
            for name in wanting:
                self.copies[name].acknowledge([number], [message_id])

    def balance(self) -> Balance:
        """Return the sum of all ledgers."""
        balances = [astuple(ledger.balance()) for ledger in (self.sends, *self.copies.values())]
        return Balance(*map(sum, zip(*balances, strict=True)))

    @property
    def hold(self) -> bool:
        """True if no promise was broken."""
        return self.balance().holds and not self.miscounted
