"""Matching: exact for every edge, and equal to an obviously right matcher on random filters."""

import os
import random
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from model.judge import profile

from cmqd.core import filter_matching
from cmqd.core.domain_errors import InvalidArgument
from cmqd.core.filter_matching import (
    KeyRules,
    Matcher,
    TagRules,
    check_binding_keys,
    check_routing_key,
    check_tags,
    differs_at,
)
from support.cases import each_case


def tags_match(filters: Sequence[str], tags: Sequence[str]) -> bool:
    return not filters or bool(set(filters) & set(tags))


def key_matches(binding_key: str, routing_key: str) -> bool:
    """The rule of the specification, word by word, with every way of using a ``#`` tried."""
    pattern, words = binding_key.split("."), routing_key.split(".")

    @cache  # else a key with many "#" takes too long
    def fits(at: int, word: int) -> bool:
        if at == len(pattern):
            return word == len(words)
        if pattern[at] == "#":
            return any(fits(at + 1, later) for later in range(word, len(words) + 1))
        if word == len(words):
            return False
        if pattern[at] == "*":
            return words[word] != "" and fits(at + 1, word + 1)
        return pattern[at] == words[word] and fits(at + 1, word + 1)

    return fits(0, 0)


def naive_tags(filters: dict[int, Sequence[str]], tags: Sequence[str]) -> tuple[int, ...]:
    return tuple(sorted(subscriber for subscriber, own in filters.items() if tags_match(own, tags)))


def naive_keys(filters: dict[int, Sequence[str]], key: str) -> tuple[int, ...]:
    return tuple(sorted(subscriber for subscriber, own in filters.items() if any(key_matches(one, key) for one in own)))


def tag_matcher(*filters: Sequence[str]) -> Matcher[tuple[str, ...]]:
    matcher = Matcher(TagRules())
    for subscriber, own in enumerate(filters):
        matcher.set(subscriber, own)
    return matcher


def match(matcher: Matcher[Any], labels: Sequence[str]) -> tuple[int, ...]:
    """The matching subscribers, as a plan requests them."""
    key = labels if isinstance(labels, str) else tuple(labels)
    members = matcher.known(key)
    return matcher.subscribers(matcher.find(key) if members is None else members)


def takes(binding_key: str, routing_key: str) -> bool:
    matcher = Matcher(KeyRules())
    matcher.set(7, [binding_key])
    found = match(matcher, routing_key)
    assert found in ((), (7,))
    return bool(found)


# Few words, so that random keys meet often; some literal words look like wild cards.
literal_words = st.sampled_from(["a", "b", ""])
routing_words = st.sampled_from(["a", "b", "", "*", "#", "A"])
binding_words = st.sampled_from(["a", "b", "", "*", "#", "#", "a*", "A"])
routing_keys = st.lists(routing_words, min_size=1, max_size=8).map(".".join)
binding_keys = st.lists(binding_words, min_size=1, max_size=8).map(".".join)
keys_of_subscribers = st.lists(st.lists(binding_keys, min_size=1, max_size=5), max_size=20)
tags = st.lists(st.sampled_from(["a", "b", "c", "d", "A", "ä"]), max_size=5)


SHARE = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "full" else 4
"""The part models of ``make test-all`` has four times the examples of two searches."""


class TestExamination:
    """Every subscriber and filter, examined by the sets that publishes use."""

    @given(keys_of_subscribers, routing_keys)
    def test_keys(self, filters: list[list[str]], routing_key: str):
        matcher = Matcher(KeyRules())
        for subscriber, own in enumerate(filters):
            matcher.set(subscriber * 3, own)
        matcher.prepare(1 << 40)

        examined = list(matcher.examine(routing_key))

        assert examined == [
            (
                subscriber * 3,
                any(key_matches(key, routing_key) for key in own),
                [(key, key_matches(key, routing_key)) for key in own],
            )
            for subscriber, own in enumerate(filters)
        ]
        assert matcher.known(routing_key) is None, "the answers of publishes stay as they are"

    @given(st.lists(tags, max_size=20), tags)
    def test_tags(self, filters: list[list[str]], labels: list[str]):
        matcher = tag_matcher(*filters)
        matcher.prepare(1 << 40)

        assert list(matcher.examine(tuple(labels))) == [
            (subscriber, tags_match(own, labels), [(tag, tag in labels) for tag in own])
            for subscriber, own in enumerate(filters)
        ]


class TestDifference:
    """The word at which a routing key leaves a binding key."""

    @each_case(
        ("binding_key", "routing_key", "word"),
        [
            ("a.b", "a.b", 0),
            ("a.b", "a.c", 2),
            ("a.b", "b", 1),
            ("a.b", "a", 2),
            ("a.b", "a.b.c", 3),
            ("a.*", "a.", 2),
            ("*.b", ".b", 1),
            ("#", "any.thing", 0),
            ("#.b", "a.c", 3),
            ("a.#.b", "a", 2),
            ("a.#.b", "a.c.d.b", 0),
            ("a.#.#.b.*", "a.b", 3),
            ("*", "*", 0),
            ("x.*", "*.x", 1),
        ],
    )
    def test_the_word(self, binding_key: str, routing_key: str, word: int):
        assert differs_at(binding_key, routing_key) == word

    @given(binding_keys, routing_keys)
    def test_the_words_before_it_can_be_continued_and_with_it_they_cannot(self, binding_key: str, routing_key: str):
        words = routing_key.split(".")
        number = differs_at(binding_key, routing_key)

        assert (number == 0) == key_matches(binding_key, routing_key)
        if number:
            assert number == 1 or can_begin(binding_key, words[: number - 1])
            assert number == len(words) + 1 or not can_begin(binding_key, words[:number])


def can_begin(binding_key: str, words: list[str]) -> bool:
    """True if a routing key that matches begins with these words: the rest of the binding key is a way to continue."""
    literal = [word for word in binding_key.split(".") if word != "#"]
    literal = ["x" if word == "*" else word for word in literal]
    tails = [literal[start:] for start in range(len(literal) + 1)]
    return any(key_matches(binding_key, ".".join([*words, *tail])) for tail in tails)


class TestTags:
    """Spec 3.4, the table."""

    @pytest.mark.parametrize(
        ("filters", "message", "received"),
        [
            ([], [], True),
            ([], ["a"], True),
            (["a"], [], False),
            (["a"], ["a"], True),
            (["a", "b"], ["b", "c"], True),
            (["a", "b"], ["c", "d"], False),
            (["a"], ["A"], False),
            (["a"], ["ab"], False),
            (["*"], ["a"], False),
            (["#"], ["a"], False),
            (["\N{SNOWMAN}"], ["\N{SNOWMAN}"], True),
        ],
    )
    def test_the_tags_that_match(self, filters: list[str], message: list[str], received: bool):
        assert match(tag_matcher(filters), message) == ((0,) if received else ())

    def test_one_copy_however_many_tags_are_common(self):
        assert match(tag_matcher(["a", "b", "c"]), ["c", "b", "a"]) == (0,)

    def test_the_order_of_tags_does_not_matter_and_equal_answers_are_one_object(self):
        matcher = tag_matcher(["a"], ["b"], ["c"])

        assert match(matcher, ["a", "b"]) is match(matcher, ("b", "a"))
        assert match(matcher, ["a", "b"]) is match(matcher, ["a", "b", "x"])

    def test_cleared_filter_tags_mean_everything(self):
        matcher = tag_matcher(["a"])
        assert match(matcher, ["x"]) == ()

        matcher.set(0, [])

        assert match(matcher, ["x"]) == (0,)

    @given(filters=st.lists(tags, max_size=30), messages=st.lists(tags, max_size=10))
    def test_same_as_the_naive_matcher(self, filters: list[list[str]], messages: list[list[str]]):
        matcher = tag_matcher(*filters)

        for message in messages * 2:
            assert match(matcher, message) == naive_tags(dict(enumerate(filters)), message)


class TestKeys:
    """Spec 3.4, binding keys."""

    @each_case(
        ("binding_key", "routing_key"),
        [
            ("1.*.0", "1.any.0"),
            ("1.#.0", "1.2.3.4.4.2.2.0"),
            ("1.#.0", "1.0"),
            ("#", "a"),
            ("#", "a.b.c"),
            ("#", "."),
            ("#.#", "a"),
            ("#.#", "a.b"),
            ("#.#.#", "."),
            ("a", "a"),
            ("a.#", "a"),
            ("a.#", "a.b.c"),
            ("a.#", "a."),
            ("#.a", "a"),
            ("#.a", "b..a"),
            ("a.#.#.b", "a.b"),
            ("a.#.#.b", "a.x.y.b"),
            ("a.#.a", "a.a"),
            ("#.a.#", "a"),
            ("#.a.#", "x.a"),
            ("#.a.#", "a.x"),
            ("#.a.b.#.a.c.#", "a.a.b.a.b.a.c"),
            ("#.*.#", "a"),
            ("#.*.#", "..a."),
            ("#.*", ".a"),
            ("*.#", "a."),
            ("*", "*"),
            ("*", "#"),
            ("a.*", "a.#"),
            ("", ""),
            (".", "."),
            ("a..b", "a..b"),
            ("a.#.b", "a..b"),
            (".#.", "."),
            (".#.", "..."),
            ("a*", "a*"),
            ("##", "##"),
            ("**", "**"),
            ("ä.*", "ä.ö"),
            (".".join("#" * 16), ".".join("abcdefghijklmnop")),
            (".".join("*" * 16), ".".join("abcdefghijklmnop")),
        ],
    )
    def test_takes(self, binding_key: str, routing_key: str):
        assert takes(binding_key, routing_key)
        assert key_matches(binding_key, routing_key)

    @each_case(
        ("binding_key", "routing_key"),
        [
            ("1.*.0", "1.0"),
            ("1.*.0", "1.2.3.0"),
            ("1.*.0", "1..0"),
            ("1.#.0", "1"),
            ("1.#.0", "0"),
            ("1.#.0", "1.2"),
            ("a.#.a", "a"),
            ("a", "A"),
            ("a", "b"),
            ("a", "a.a"),
            ("a", "a."),
            ("a", ".a"),
            ("a.b", "ab"),
            ("*", "."),
            ("*", "a.b"),
            ("*.*", "a."),
            ("*.*", ".a"),
            ("*.#", ".a"),
            ("#.*", "a."),
            ("#.*.#", "."),
            ("#.*.#", "...."),
            ("#.*.*.#", "a..a"),
            ("#.a.#", "b"),
            ("#.a.#.a.#", "b.a.b"),
            ("#.a.b.#", "a.x.b"),
            (".#.", "a."),
            ("a*", "ab"),
            ("*a", "ba"),
            ("a#", "a"),
            ("##", "a.b"),
            ("**", "ab"),
            (".".join("#" * 15 + "z"), ".".join("abcdefghijklmnop")),
            (".".join("*" * 16), ".".join("abcdefghijklmno")),
        ],
    )
    def test_does_not_take(self, binding_key: str, routing_key: str):
        assert not takes(binding_key, routing_key)
        assert not key_matches(binding_key, routing_key)

    def test_one_copy_for_several_keys_that_match(self):
        matcher = Matcher(KeyRules())
        matcher.set(3, ["a.b", "a.*", "a.#", "#", "#.a.#"])
        matcher.set(1, ["#.b", "x"])
        matcher.set(2, ["x"])

        assert match(matcher, "a.b") == (1, 3)
        assert match(matcher, "x") == (1, 2, 3)

    def test_a_longer_key_than_any_that_is_wanted(self):
        matcher = Matcher(KeyRules())
        matcher.set(1, ["a.b"])
        matcher.set(2, ["a.#"])

        assert match(matcher, ".".join("a" * 16)) == (2,)

    def test_equal_answers_are_one_object(self):
        matcher = Matcher(KeyRules())
        matcher.set(1, ["a.*"])
        matcher.set(2, ["#"])

        assert match(matcher, "a.b") is match(matcher, "".join(["a", ".b"]))
        assert match(matcher, "a.b") is match(matcher, "a.c")

    @given(binding_key=binding_keys, routing_key=routing_keys)
    @settings(max_examples=500 // SHARE)
    def test_one_key_same_as_the_naive_matcher(self, binding_key: str, routing_key: str):
        assert takes(binding_key, routing_key) == key_matches(binding_key, routing_key)

    @given(filters=keys_of_subscribers, keys=st.lists(routing_keys, max_size=10))
    @settings(max_examples=200 // SHARE)
    def test_many_keys_same_as_the_naive_matcher(self, filters: list[list[str]], keys: list[str]):
        matcher = Matcher(KeyRules())
        for subscriber, own in enumerate(filters):
            matcher.set(subscriber, own)

        for key in keys * 2:
            assert match(matcher, key) == naive_keys(dict(enumerate(filters)), key)


@pytest.mark.parametrize("matcher_type", [lambda: Matcher(TagRules()), lambda: Matcher(KeyRules())])
class TestChanges:
    def test_an_empty_topic_matches_no_subscription(self, matcher_type: Callable[[], Matcher[Any]]):
        assert match(matcher_type(), "a") == ()
        assert len(matcher_type()) == 0

    def test_a_change_between_two_matches_counts(self, matcher_type: Callable[[], Matcher[Any]]):
        matcher = matcher_type()
        matcher.set(5, ["a"])
        matcher.set(2, ["a"])
        assert match(matcher, "a") == (2, 5)

        matcher.set(5, ["b"])
        assert match(matcher, "a") == (2,)

        matcher.remove(2)
        assert match(matcher, "a") == ()
        assert match(matcher, "b") == (5,)

        matcher.set(9, ["b"])
        matcher.set(1, ["b"])
        assert match(matcher, "b") == (1, 5, 9)
        assert len(matcher) == 3

    def test_an_unknown_subscription_cannot_be_removed(self, matcher_type: Callable[[], Matcher[Any]]):
        matcher = matcher_type()
        matcher.set(1, ["a"])

        with pytest.raises(KeyError):
            matcher.remove(2)

        assert match(matcher, "a") == (1,)

    def test_filters_are_those_of_the_time_of_the_call(self, matcher_type: Callable[[], Matcher[Any]]):
        filters = ["a"]
        matcher = matcher_type()
        matcher.set(1, filters)

        filters[0] = "b"

        assert match(matcher, "a") == (1,)

    def test_answers_are_forgotten_when_there_are_many(
        self, matcher_type: Callable[[], Matcher[Any]], monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(filter_matching, "CACHED", 3)
        matcher = matcher_type()
        matcher.set(1, ["a"])
        matcher.set(2, ["b"])

        for label in "abcdefgh" * 2:
            assert match(matcher, label) == ((1,) if label == "a" else (2,) if label == "b" else ())
            assert 1 <= int(repr(matcher).partition("answers=")[2].rstrip(">")) <= 3


class Changes(RuleBasedStateMachine):
    """Subscribers come, change and go while messages are matched."""

    subscribers = Bundle("subscribers")

    def __init__(self) -> None:
        super().__init__()
        self.tags = Matcher(TagRules())
        self.keys = Matcher(KeyRules())
        self.own_tags: dict[int, Sequence[str]] = {}
        self.own_keys: dict[int, Sequence[str]] = {}

    @rule(
        target=subscribers,
        subscriber=st.integers(1, 1000),
        own_tags=tags,
        own_keys=st.lists(binding_keys, min_size=1, max_size=5),
    )
    def add(self, subscriber: int, own_tags: list[str], own_keys: list[str]) -> int:
        self.change(subscriber, own_tags, own_keys)
        return subscriber

    @rule(subscriber=subscribers, own_tags=tags, own_keys=st.lists(binding_keys, min_size=1, max_size=5))
    def change(self, subscriber: int, own_tags: list[str], own_keys: list[str]) -> None:
        self.tags.set(subscriber, own_tags)
        self.keys.set(subscriber, own_keys)
        self.own_tags[subscriber] = own_tags
        self.own_keys[subscriber] = own_keys

    @rule(subscriber=consumes(subscribers))
    def remove(self, subscriber: int) -> None:
        if subscriber in self.own_tags:
            self.tags.remove(subscriber)
            self.keys.remove(subscriber)
            del self.own_tags[subscriber]
            del self.own_keys[subscriber]

    @rule(message=tags)
    def match_tags(self, message: list[str]) -> None:
        assert match(self.tags, message) == naive_tags(self.own_tags, message)

    @rule(key=routing_keys)
    def match_key(self, key: str) -> None:
        assert match(self.keys, key) == naive_keys(self.own_keys, key)

    @invariant()
    def same_number(self) -> None:
        assert len(self.tags) == len(self.keys) == len(self.own_tags)


TestChangesWhilePublishing = Changes.TestCase
TestChangesWhilePublishing.settings = profile(104)


def test_five_hundred_subscribers_with_five_keys_each():
    chance = random.Random(5)

    def words(alphabet: str, count: int) -> str:
        return ".".join(chance.choices([*alphabet, ""], k=count))

    filters: dict[int, Sequence[str]] = {
        subscriber: [words("abcdef*###", chance.randint(1, 16)) for _ in range(5)]
        for subscriber in chance.sample(range(10_000), 500)
    }
    matcher = Matcher(KeyRules())
    for subscriber, own in filters.items():
        matcher.set(subscriber, own)
    counts: set[int] = set()

    for _ in range(20):
        key = words("abcdef", chance.randint(1, 16))
        found = match(matcher, key)
        assert found == naive_keys(filters, key)
        counts.add(len(found))
        gone = chance.choice(sorted(filters))
        del filters[gone]
        matcher.remove(gone)

    assert min(counts) > 0
    assert max(counts) > filter_matching.FEW


def test_five_hundred_subscribers_with_five_tags_each():
    chance = random.Random(6)
    known = [f"tag-{number}" for number in range(200)]
    filters: dict[int, Sequence[str]] = {
        subscriber: chance.sample(known, chance.randint(0, 5)) for subscriber in chance.sample(range(10_000), 500)
    }
    matcher = Matcher(TagRules())
    for subscriber, own in filters.items():
        matcher.set(subscriber, own)

    for count in range(11):
        message = chance.sample(known, count)
        assert match(matcher, message) == naive_tags(filters, message)


class TestLimitsOfTags:
    def test_duplicates_collapse_and_the_first_of_each_keeps_its_place(self):
        assert check_tags(["b", "a", "b", "c", "a"], 3) == ["b", "a", "c"]
        assert check_tags([], 5) == []

    @pytest.mark.parametrize("limit", [5, 10])
    def test_at_most_so_many_different_ones(self, limit: int):
        wanted = [str(number) for number in range(limit)]

        assert check_tags(wanted * 3, limit) == wanted
        with pytest.raises(InvalidArgument, match=f"at most {limit} different tags; there are {limit + 1}"):
            check_tags([*wanted, "x"], limit, "filter_tags")

    @pytest.mark.parametrize(
        "tag", ["a", "a" * 16, "\N{GRINNING FACE}" * 16, "a b", "\xa0", ".", "*", "\ue000", "\x20"]
    )
    def test_legal(self, tag: str):
        assert check_tags([tag], 10) == [tag]

    @each_case(
        "tag",
        ["", "a" * 17, "\N{GRINNING FACE}" * 17, "a,b", "\n", "a\n", "\0", "\x7f", "\x85", "\ud800", b"a", 1, None, []],
    )
    def test_illegal(self, tag: str):
        with pytest.raises(InvalidArgument) as refusal:
            check_tags(["good", tag], 10)

        assert refusal.value.details["field"] == "tags"
        assert refusal.value.details["value"] == (tag if isinstance(tag, int) else repr(tag))
        refusal.value.text.encode()

    @pytest.mark.parametrize("value", ["abc", b"abc", 5, None, {"a"}])
    def test_no_list(self, value: list[str]):
        with pytest.raises(InvalidArgument, match="must be a list of tags"):
            check_tags(value, 10)
        with pytest.raises(InvalidArgument, match="must be a list of binding keys"):
            check_binding_keys(value)

    def test_characters_are_allowed_or_not_by_their_category(self):
        for point in (*range(0x400), *range(0xD700, 0xE100), 0x10FFFF):
            char = chr(point)
            is_legal = char != "," and unicodedata.category(char) not in ("Cc", "Cs")
            try:
                assert check_tags([char], 1) == [char]
                assert is_legal, hex(point)
            except InvalidArgument:
                assert not is_legal, hex(point)


BAD_KEYS = [
    "",
    "a" * 65,
    "ä" * 32 + "a",
    "\N{GRINNING FACE}" * 17,
    ".".join("a" * 17),
    "." * 16,
    "\ud800",
    5,
    None,
    b"a",
]
GOOD_KEYS = ["a", "a" * 64, "ä" * 32, "\N{GRINNING FACE}" * 16, ".".join("a" * 16), "." * 15, "*.#", "a\nb", "a,b"]


class TestLimitsOfKeys:
    @pytest.mark.parametrize("key", GOOD_KEYS)
    def test_legal(self, key: str):
        assert check_routing_key(key) == key
        assert check_binding_keys([key]) == [key]

    @each_case("key", BAD_KEYS)
    def test_illegal(self, key: str):
        with pytest.raises(InvalidArgument) as refusal:
            check_routing_key(key)
        assert refusal.value.details["field"] == "routing_key"
        with pytest.raises(InvalidArgument) as refusal:
            check_binding_keys(["a", key], "keys")
        assert refusal.value.details["field"] == "keys"

    def test_one_to_five_different_binding_keys(self):
        assert check_binding_keys(["b", "a", "b"]) == ["b", "a"]
        assert check_binding_keys([*"abcde", *"abcde"]) == [*"abcde"]
        with pytest.raises(InvalidArgument, match="1 to 5 different binding keys; there are 6"):
            check_binding_keys([*"abcdef"])
        with pytest.raises(InvalidArgument, match="1 to 5 different binding keys; there are 0"):
            check_binding_keys([])
