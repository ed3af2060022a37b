"""The matching of a topic with 500 subscribers, with labels seen before (warm) and never before (cold).

Labels are new string objects, as from the codec, so a warm match pays for their hashes. For a cold match the index
is built but the label is new; a rebuild is a change of a subscriber and the next match.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cmqd.core.filter_matching import KeyRules, Matcher, TagRules
from cmqd_bench.micro.measuring import Micro, Work

SUBSCRIBERS = 500
KEYS = 5
FILTER_TAGS = 5
KNOWN_TAGS = 200
MESSAGE_TAGS = 10
WARM_LABELS = 64
"""Different labels of the warm cases, in turn."""
MESSAGES = 500
"""Messages per case, all different in the cold cases; below the cache size of a matcher."""
REBUILDS = 5
Label = TypeVar("Label", str, list[str])

LEVELS = (
    ("region", 8),
    ("service", 20),
    ("level", 5),
    ("host", 100),
    ("kind", 30),
    ("team", 10),
    ("city", 20),
    ("v", 6),
)
"""The eight words of a realistic routing key, with the number of values per word."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """Binding keys by subscriber, and routing keys that are all different."""

    name: str
    binding_keys: Sequence[Sequence[str]]
    routing_keys: Sequence[str]


def tag_set(messages: int = MESSAGES, seed: int = 1) -> tuple[list[list[str]], list[list[str]]]:
    """Return filter tags by subscriber, and tags of messages, all different."""
    chance = random.Random(seed)
    known = [f"tag-{number}" for number in range(KNOWN_TAGS)]
    filters = [chance.sample(known, FILTER_TAGS) for _ in range(SUBSCRIBERS)]
    different: dict[tuple[str, ...], None] = {}
    while len(different) < messages:
        different[tuple(chance.sample(known, chance.randint(1, MESSAGE_TAGS)))] = None
    return filters, [list(tags) for tags in different]


def _key_set(
    name: str,
    binding: Callable[[random.Random], list[str]],
    routing: Callable[[random.Random], list[str]],
    messages: int,
) -> KeySet:
    chance = random.Random(name)
    binding_keys = [[".".join(binding(chance)) for _ in range(KEYS)] for _ in range(SUBSCRIBERS)]
    different: dict[str, None] = {}
    while len(different) < messages:
        different[".".join(routing(chance))] = None
    return KeySet(name, binding_keys, list(different))


def _realistic_routing(chance: random.Random) -> list[str]:
    return [f"{word[:3]}{chance.randrange(count)}" for word, count in LEVELS]


def _realistic_binding(chance: random.Random) -> list[str]:
    words = _realistic_routing(chance)
    starred = [word if chance.random() < 0.5 else "*" for word in words]
    kind = chance.random()
    if kind < 0.25:
        return words
    if kind < 0.6:
        return starred
    if kind < 0.8:
        return [*starred[: chance.randint(1, 6)], "#"]
    if kind < 0.95:
        return [*words[: chance.randint(0, 3)], "#", *words[-chance.randint(1, 3) :]]
    middle = chance.randint(1, 6)
    return [words[0], "#", words[middle], "#"]


def realistic_keys(messages: int = MESSAGES) -> KeySet:
    """Return binding keys as users write them: a quarter literal, a third with stars, the rest with a ``#`` at the end
    or in the middle, a few with two."""
    return _key_set("realistic", _realistic_binding, _realistic_routing, messages)


def adversarial_keys(messages: int = MESSAGES) -> list[KeySet]:
    """Return keys of 16 words that all remain candidates as long as possible."""

    def routing(chance: random.Random) -> list[str]:
        return chance.choices("ab", k=16)

    def stars(chance: random.Random) -> list[str]:
        return chance.choices("a***", k=16)

    def one_hash(chance: random.Random) -> list[str]:
        words = chance.choices("ab*", k=15)
        words.insert(chance.randrange(16), "#")
        return words

    def hash_at_both_ends(chance: random.Random) -> list[str]:
        return ["#", *chance.choices("ab*", k=14), "#"]

    def hash_every_second(chance: random.Random) -> list[str]:
        return [word for letter in chance.choices("ab", k=8) for word in ("#", letter)]

    return [
        _key_set("16 words, stars", stars, routing, messages),
        _key_set("16 words, one #", one_hash, routing, messages),
        _key_set("16 words, # at both ends", hash_at_both_ends, routing, messages),
        _key_set("16 words, every second a #", hash_every_second, routing, messages),
    ]


def _fresh(word: str) -> str:
    return word.encode().decode()


def _tag_matcher(filters: Sequence[Sequence[str]]) -> Matcher[Any]:
    matcher = Matcher[Any](TagRules())
    for subscriber, tags in enumerate(filters):
        matcher.set(subscriber, tags)
    return matcher


def _key_matcher(keys: KeySet) -> Matcher[Any]:
    matcher = Matcher[Any](KeyRules())
    for subscriber, own in enumerate(keys.binding_keys):
        matcher.set(subscriber, own)
    return matcher


def _match_of(matcher: Matcher[Any]) -> Callable[[Any], tuple[int, ...]]:
    """Return the match of a message as a publish makes it: remembered if the labels are known, else computed."""

    def match(labels: str | list[str]) -> tuple[int, ...]:
        key = labels if isinstance(labels, str) else tuple(labels)
        members = matcher.known(key)
        return matcher.subscribers(matcher.find(key) if members is None else members)

    return match


def _matches(match: Callable[[Label], object], labels: Sequence[Label]) -> Work:
    def work() -> int:
        for label in labels:
            match(label)
        return len(labels)

    return work


def _rebuilds(matcher: Matcher[Any], own: Sequence[str]) -> Work:
    def work() -> int:
        for _ in range(REBUILDS):
            matcher.set(0, own)
            matcher.find("x")
        return REBUILDS

    return work


def match_micros(messages: int = MESSAGES) -> list[Micro]:
    """Return the benchmarks of the matching."""
    filters, tags = tag_set(messages)
    keys = realistic_keys(messages)

    def warm_tags() -> Work:
        match = _match_of(_tag_matcher(filters))
        used = tags[:WARM_LABELS]
        for labels in used:
            match(labels)
        return _matches(match, [[_fresh(tag) for tag in used[number % len(used)]] for number in range(messages)])

    def cold_tags() -> Work:
        match = _match_of(_tag_matcher(filters))
        match(["x"])
        return _matches(match, [[_fresh(tag) for tag in labels] for labels in tags])

    def warm_keys() -> Work:
        match = _match_of(_key_matcher(keys))
        used = keys.routing_keys[:WARM_LABELS]
        for key in used:
            match(key)
        return _matches(match, [_fresh(used[number % len(used)]) for number in range(messages)])

    def cold_keys(keys: KeySet = keys) -> Work:
        match = _match_of(_key_matcher(keys))
        match("x")
        return _matches(match, [_fresh(key) for key in keys.routing_keys])

    return [
        Micro("match: tags, warm", warm_tags),
        Micro("match: tags, cold", cold_tags),
        Micro("match: tags, rebuild", lambda: _rebuilds(_tag_matcher(filters), filters[0]), "rebuild"),
        Micro("match: keys of 8 words, warm", warm_keys),
        Micro("match: keys of 8 words, cold", cold_keys),
        Micro("match: keys, rebuild", lambda: _rebuilds(_key_matcher(keys), keys.binding_keys[0]), "rebuild"),
        *(
            Micro(f"match: keys of {worst.name}, cold", lambda worst=worst: cold_keys(worst))
            for worst in adversarial_keys(messages)
        ),
    ]
