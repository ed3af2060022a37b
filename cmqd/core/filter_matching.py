"""Matching of messages with subscriptions: filter tags against tags, binding keys against a routing key.

Rules (spec 3.4). A subscriber without filter tags gets every message of a tag topic; a subscriber with filter tags gets
the messages that have at least one of the tags. A routing key is words between dots, and so is a binding key. In a
binding key the whole word ``*`` stands for a single word that is not empty, and the whole word ``#`` for any number
of words, zero included; all other words are literal, and case counts.

A matcher runs for every message, so it has three layers: the set of subscribers that the same labels gave last time;
the tuple of a set, so that equal sets are the same tuple; and, for new labels, sets of subscribers as the bits of
integers, so that one ``&`` or ``|`` does a step for all subscribers. The sets of the third layer are built at the first
match after a change, in slices if the caller has other work to do (``Matcher.prepare``). The reasons for these sets are
in decisions/0050-matching-by-columns.md.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Generic, Protocol, TypeVar

from cmqd.core.domain_errors import InvalidArgument, shown
from cmqd_types.attributes import SUBSCRIPTION
from cmqd_types.sentences import field_name, sentence

TAG_CHARACTERS = 16
KEY_BYTES = 64
KEY_WORDS = 16
BINDING_KEYS = SUBSCRIPTION["binding_keys"].high
"""Per subscription. These four limits are CMQ's."""

CACHED = 4096
"""Remembered answers, by labels. Few topics use more at a time; an entry is about 250 bytes, so a topic pays about
1 MiB, and 16 MiB if every entry gives a different large set of 500 subscribers. At the limit all answers are forgotten:
the price is a cold match for each label, which is cheaper than to keep an order of use at every warm match."""

# Category Cc is these two ranges, for good (Unicode's stability policy). The last range, surrogates, has no UTF-8.
_TAG = re.compile(rf"[^,\x00-\x1f\x7f-\x9f\ud800-\udfff]{{1,{TAG_CHARACTERS}}}")

FEW = 16
"""Size up to which a set is cheaper to read bit by bit (0.15 us each) than as digits (4 us for 500)."""
_DIGITS = bytes(byte & 1 for byte in range(256))
"""Turns the digits "0" and "1" into bytes that are false and true."""


def check_tags(tags: Sequence[str], limit: int, field: str = "tags") -> list[str]:
    """Return ``tags`` without repetitions, in the order of their first occurrence.

    Raises:
        InvalidArgument: there are more than ``limit`` different tags; or a tag is not 1-16 characters, or contains a
            comma, a control character or half of a surrogate pair.
    """
    _check_list(tags, field, "a list of tags")
    for tag in tags:
        if not isinstance(tag, str) or _TAG.fullmatch(tag) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            allowed = f"1 to {TAG_CHARACTERS} characters of UTF-8 without commas and control characters"
            raise InvalidArgument(f"a tag has {allowed}; {shown(tag)} does not", field=field, value=tag, limit=allowed)
    different = list(dict.fromkeys(tags))
    if len(different) > limit:
        raise InvalidArgument(
            sentence("{} takes at most {} different tags; there are {}", field_name(field), limit, len(different)),
            field=field,
            value=len(different),
            limit=f"at most {limit} different tags",
        )
    return different


def check_routing_key(key: str) -> str:
    """Return ``key`` if a message may have it. Words may be empty; ``*`` and ``#`` are literal here.

    Raises:
        InvalidArgument: the key is not 1-64 bytes of UTF-8, or has more than 16 words.
    """
    return _check_key(key, "routing_key")


def check_binding_keys(keys: Sequence[str], field: str = "binding_keys") -> list[str]:
    """Return ``keys`` without repetitions, in the order of their first occurrence.

    Raises:
        InvalidArgument: there is no key, or there are more than five different keys; or a key is not 1-64 bytes of
            UTF-8 or has more than 16 words.
    """
    _check_list(keys, field, "a list of binding keys")
    different = list(dict.fromkeys(_check_key(key, field) for key in keys))
    if not 1 <= len(different) <= BINDING_KEYS:
        raise InvalidArgument(
            f"a subscription has 1 to {BINDING_KEYS} different binding keys; there are {len(different)}",
            field=field,
            value=len(different),
            limit=f"1 to {BINDING_KEYS} different binding keys",
        )
    return different


def _check_list(value: object, field: str, expected: str) -> None:
    # A string is a sequence of strings too, but its letters are not the intended tags.
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidArgument(
            sentence("{} must be {}, not {}", field_name(field), expected, shown(value)),
            field=field,
            value=value,
            limit=expected,
        )


def _check_key(key: object, field: str) -> str:
    try:
        size = len(key.encode()) if isinstance(key, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not isinstance(key, str) or not 1 <= size <= KEY_BYTES:
        raise InvalidArgument(
            sentence("a key of {} has 1 to {} bytes of UTF-8; {} does not", field_name(field), KEY_BYTES, shown(key)),
            field=field,
            value=key,
            limit=f"1 to {KEY_BYTES} bytes of UTF-8",
        )
    if key.count(".") >= KEY_WORDS:
        raise InvalidArgument(
            sentence(
                "a key of {} has at most {} words, with dots between them; {} has more",
                field_name(field),
                KEY_WORDS,
                shown(key),
            ),
            field=field,
            value=key,
            limit=f"at most {KEY_WORDS} words",
        )
    return key


def differs_at(binding_key: str, routing_key: str) -> int:
    """Return the number of the word, from 1, at which a routing key leaves a binding key; 0 if the keys match.

    The words before it are the beginning of a routing key that matches; with this word they are not. A routing key that
    ends too early leaves the binding key behind its last word.
    """
    # Bit n of a set of states stands for "the first n words of the binding key are covered". A ``#`` keeps its state
    # with any word, and its state reaches the next state without a word.
    hashes = stars = ends = 0
    literals: dict[str, int] = {}
    for state, word in enumerate(binding_key.split(".")):
        bit = 1 << state
        if word == "#":
            hashes |= bit
        elif word == "*":
            stars |= bit
        else:
            literals[word] = literals.get(word, 0) | bit
        ends = bit << 1
    states = _through_hashes(1, hashes)
    number = 0
    for number, word in enumerate(routing_key.split("."), 1):
        advancing = states & (literals.get(word, 0) | (stars if word else 0))
        states = _through_hashes(advancing << 1 | states & hashes, hashes)
        if not states:
            return number
    return 0 if states & ends else number + 1


def _through_hashes(states: int, hashes: int) -> int:
    while more := (states & hashes) << 1 & ~states:
        states |= more
    return states


L = TypeVar("L")
"""Labels of a message in a hashable form: its tags as a tuple, or its routing key."""
L_contra = TypeVar("L_contra", contravariant=True)


class Rules(Protocol[L_contra]):
    """The rules of one kind of filter, over sets of subscribers as bits of integers."""

    def build(self, filters: Sequence[tuple[str, ...]]) -> Iterator[int]:
        """Make the sets for ``members``; ``filters`` are in the order of the subscribers' bits. Yields the units of
        work done since the last yield.
        """
        ...

    def members(self, labels: L_contra) -> int:
        """Return the set of subscribers that get a message with these labels."""
        ...

    def accepting(self, labels: L_contra) -> Callable[[int, Sequence[str]], list[bool]]:
        """Return a function that takes the index of a subscriber and its filters, and returns for each filter whether
        the filter accepts these labels.
        """
        ...


class Matcher(Generic[L]):
    """The subscribers of one topic and their filters; remembers answers until a filter changes."""

    def __init__(self, rules: Rules[L]) -> None:
        self._rules = rules
        self._filters: dict[int, tuple[str, ...]] = {}
        self._is_built = False
        self._building: Iterator[int] | None = None
        self._ids: tuple[int, ...] = ()
        """Ascending. Bit n of a set of subscribers stands for the subscriber at index n."""
        self._answers: dict[L, int] = {}
        self._tuples: dict[int, tuple[int, ...]] = {}
        """By set."""

    def __len__(self) -> int:
        return len(self._filters)

    def __repr__(self) -> str:
        return f"<Matcher subscribers={len(self)} answers={len(self._answers)}>"

    def set(self, subscriber: int, filters: Sequence[str]) -> None:
        """Add a subscriber, or replace its filters. The filters have been checked before."""
        self._filters[subscriber] = tuple(filters)
        self._forget()

    def remove(self, subscriber: int) -> None:
        """Remove a subscriber. Raises KeyError if it is unknown."""
        del self._filters[subscriber]
        self._forget()

    def known(self, labels: L) -> int | None:
        """Return the remembered set of subscribers for these labels, or None."""
        return self._answers.get(labels)

    def find(self, labels: L) -> int:
        """Compute the set of subscribers for these labels, and remember it."""
        if not self._is_built:
            self.prepare(sys.maxsize)
        members = self._rules.members(labels)
        if len(self._answers) >= CACHED:
            self._answers.clear()
        self._answers[labels] = members
        return members

    def subscribers(self, members: int) -> tuple[int, ...]:
        """Return the subscribers of a set, ascending. Equal sets give the same object until a filter changes (or more
        than ``CACHED`` sets came in between).
        """
        subscribers = self._tuples.get(members)
        if subscribers is None:
            if len(self._tuples) >= CACHED:
                self._tuples.clear()
            subscribers = self._tuples[members] = self._as_tuple(members)
        return subscribers

    def examine(self, labels: L) -> Iterator[tuple[int, bool, list[tuple[str, bool]]]]:
        """Yield every subscriber, ascending: whether it gets a message with these labels, and each of its filters with
        the answer whether the filter accepts the labels.

        Remembers nothing: a test must not displace the answers that publishes use. ``prepare`` must have completed.
        """
        members = self._rules.members(labels)
        accepting = self._rules.accepting(labels)
        for index, subscriber in enumerate(self._ids):
            filters = self._filters[subscriber]
            accepted = accepting(index, filters)
            yield subscriber, bool(members >> index & 1), list(zip(filters, accepted, strict=True))

    def prepare(self, units: int) -> int:
        """Build the sets for the next match, about ``units`` microseconds of work; return the units that are left.

        The work is complete if units are left. A change of a filter begins the work anew: half-built sets have bits
        for subscribers at their old indexes.
        """
        if self._is_built:
            return units
        if self._building is None:
            self._ids = tuple(sorted(self._filters))
            self._building = self._rules.build([self._filters[subscriber] for subscriber in self._ids])
        while units > 0:
            done = next(self._building, None)
            if done is None:
                self._is_built, self._building = True, None
                break
            units -= done
        return units

    def _forget(self) -> None:
        self._is_built = False
        self._building = None
        self._answers.clear()
        self._tuples.clear()

    def _as_tuple(self, members: int) -> tuple[int, ...]:
        ids = self._ids
        if members.bit_count() > FEW:
            # From the last digit, which is bit 0, up to the second, which follows "0b".
            return tuple(compress(ids, bin(members)[:1:-1].encode().translate(_DIGITS)))
        subscribers: list[int] = []
        while members:
            lowest = members & -members
            subscribers.append(ids[lowest.bit_length() - 1])
            members ^= lowest
        return tuple(subscribers)


class TagRules:
    """For each tag the set of subscribers that filter for it; a message gets the union over its tags."""

    def __init__(self) -> None:
        self._everything = 0
        """Subscribers without filter tags."""
        self._by_tag: dict[str, int] = {}

    def build(self, filters: Sequence[tuple[str, ...]]) -> Iterator[int]:
        """See ``Rules.build``."""
        self._everything = 0
        self._by_tag = by_tag = dict[str, int]()
        for index, tags in enumerate(filters):
            bit = 1 << index
            if not tags:
                self._everything |= bit
            for tag in tags:
                by_tag[tag] = by_tag.get(tag, 0) | bit
            yield 1

    def members(self, labels: tuple[str, ...]) -> int:
        """See ``Rules.members``."""
        members = self._everything
        by_tag = self._by_tag
        for tag in labels:
            members |= by_tag.get(tag, 0)
        return members

    def accepting(self, labels: tuple[str, ...]) -> Callable[[int, Sequence[str]], list[bool]]:
        """See ``Rules.accepting``."""
        by_tag = self._by_tag
        return lambda index, filters: [tag in labels and bool(by_tag[tag] >> index & 1) for tag in filters]


class _Column:
    """A column of binding keys: for each literal word, and for any other word, the keys that accept it there."""

    __slots__ = ("by_word", "other")

    def __init__(self, keys_by_word: dict[str, int], indifferent: int) -> None:
        """``keys_by_word`` are the keys by their word in this column, ``indifferent`` the keys without a word here."""
        self.other = keys_by_word.get("*", 0) | indifferent
        """Keys that accept a non-empty word that is not a literal of this column."""
        self.by_word = {word: keys | self.other for word, keys in keys_by_word.items() if word != "*"}
        # A star accepts only a word that is not empty.
        self.by_word[""] = keys_by_word.get("", 0) | indifferent


def _add_words(columns: list[dict[str, int]], words: Sequence[str], key: int) -> None:
    """Add a key's words, each to its column."""
    while len(columns) < len(words):
        columns.append({})
    for column, word in zip(columns, words, strict=False):
        column[word] = column.get(word, 0) | key


def _make_columns(
    words_by_column: Sequence[dict[str, int]], by_length: dict[int, int], columns: list[_Column]
) -> Iterator[int]:
    """Fill ``columns``, and yield units of work.

    ``by_length`` has the keys by the number of columns in which they have a word; a key that is not in it has a word
    in every column.
    """
    shorter = 0
    for index, words in enumerate(words_by_column):
        shorter |= by_length.get(index, 0)
        columns.append(_Column(words, shorter))
        yield 1 + len(words) // 6


class KeyRules:
    """Binding keys as bits; a step with a word of the routing key is taken by all keys at once.

    A key with at most one ``#`` is a fixed beginning and a fixed end: its words are compared from the left up to the
    ``#`` and from the right down to it, and the number of words decides whether both fit. A comparison is one ``&``
    with the keys that accept that word at that index. Nearly all keys are of this kind.

    Keys with several ``#`` are simulated together as automata; the state is the number of their words matched so far:
    one set of keys for each number. This is the bit-parallel simulation of Baeza-Yates and Gonnet ("A new approach to
    text searching", CACM 35(10), 1992) with the self loops of Navarro and Raffinot ("Flexible pattern matching in
    strings", 2002, chapter 4), with the bits of one state of all keys side by side instead of all states of one key.

    Bit ``plane * subscribers + index`` is a key of the subscriber at ``index``. A subscriber has at most one key in a
    plane, so that the planes laid over one another are the set of subscribers.
    """

    def __init__(self) -> None:
        self._subscribers = 0
        self._left: list[_Column] = []
        """Words before the ``#``, or all words; the first word of a key is in the first column."""
        self._right: list[_Column] = []
        """Words after the ``#``; the last word of a key is in the first column."""
        self._fitting: list[int] = [0]
        """By number of words of a routing key: the keys compared from both sides that can have that length. The last
        entry holds for any larger number too."""
        self._states: list[_Column] = []
        """For keys with several ``#``: the keys that advance to the next state with a word. No key leaves the last."""
        self._loops: list[int] = []
        """Keys that stay in a state with any word, because a ``#`` stands there."""
        self._ends: list[int] = []
        """Keys that have no more words in this state."""
        self._several = 0
        """All keys with several ``#``."""

    def build(self, filters: Sequence[tuple[str, ...]]) -> Iterator[int]:
        """See ``Rules.build``."""
        self._subscribers = len(filters)
        left: list[dict[str, int]] = []
        right: list[dict[str, int]] = []
        left_lengths: dict[int, int] = {}
        right_lengths: dict[int, int] = {}
        exactly: dict[int, int] = {}
        at_least: dict[int, int] = {}
        states: list[dict[str, int]] = []
        loops: dict[int, int] = {}
        ends: dict[int, int] = {}
        self._several = 0
        for index, keys in enumerate(filters):
            for plane, key in enumerate(keys):
                bit = 1 << (plane * len(filters) + index)
                words = key.split(".")
                hashes = words.count("#")
                literals = len(words) - hashes
                if hashes > 1:
                    self._several |= bit
                    state = 0
                    for word in words:
                        if word == "#":
                            loops[state] = loops.get(state, 0) | bit
                        else:
                            state += 1
                    ends[state] = ends.get(state, 0) | bit
                    _add_words(states, [word for word in words if word != "#"], bit)
                else:
                    middle = words.index("#") if hashes else literals
                    _add_words(left, words[:middle], bit)
                    left_lengths[middle] = left_lengths.get(middle, 0) | bit
                    _add_words(right, words[:middle:-1], bit)
                    right_lengths[literals - middle] = right_lengths.get(literals - middle, 0) | bit
                    lengths = at_least if hashes else exactly
                    lengths[literals] = lengths.get(literals, 0) | bit
            # Up to 40 microseconds for five keys of 16 words.
            yield 8 * len(keys)
        self._left, self._right, self._states = [], [], []
        yield from _make_columns(left, left_lengths, self._left)
        yield from _make_columns(right, right_lengths, self._right)
        yield from _make_columns([*states, {}], {}, self._states)
        self._fitting = []
        longer = 0
        for count in range(max((*exactly, *at_least), default=0) + 2):
            longer |= at_least.get(count, 0)
            self._fitting.append(longer | exactly.get(count, 0))
        self._loops = [loops.get(state, 0) for state in range(len(self._states))]
        self._ends = [ends.get(state, 0) for state in range(len(self._states))]

    def members(self, labels: str) -> int:
        """See ``Rules.members``."""
        keys = self._keys(labels)
        subscribers = self._subscribers
        members = 0
        while keys:
            members |= keys
            keys >>= subscribers
        return members & ((1 << subscribers) - 1)

    def accepting(self, labels: str) -> Callable[[int, Sequence[str]], list[bool]]:
        """See ``Rules.accepting``."""
        keys, subscribers = self._keys(labels), self._subscribers
        return lambda index, filters: [bool(keys >> (plane * subscribers + index) & 1) for plane in range(len(filters))]

    def _keys(self, labels: str) -> int:
        """Return the keys that accept a routing key."""
        words = labels.split(".")
        fitting = self._fitting
        keys = fitting[len(words)] if len(words) < len(fitting) else fitting[-1]
        for word, column in zip(words, self._left, strict=False):
            keys &= column.by_word.get(word, column.other)
        if keys:
            for word, column in zip(reversed(words), self._right, strict=False):
                keys &= column.by_word.get(word, column.other)
        if self._several:
            keys |= self._simulate(words)
        return keys

    def _simulate(self, words: Sequence[str]) -> int:
        """Return the keys with several ``#`` that accept these words."""
        columns, loops = self._states, self._loops
        states = [0] * len(columns)
        states[0] = self._several
        last = len(columns) - 1
        highest = 0
        for word in words:
            # Downwards: a key that advances arrives in a state that was already examined for this word. Upwards, the
            # key would consume the same word twice.
            for state in range(highest, -1, -1):
                keys = states[state]
                if keys:
                    states[state] = keys & loops[state]
                    column = columns[state]
                    going = keys & column.by_word.get(word, column.other)
                    if going:
                        states[state + 1] |= going
            if highest < last:
                highest += 1
        accepting = 0
        for keys, ends in zip(states, self._ends, strict=True):
            accepting |= keys & ends
        return accepting
