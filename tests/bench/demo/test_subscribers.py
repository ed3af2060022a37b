"""The subscribers of the demo's topic: their binding keys, and the matching."""

from cmqd_bench.demo.subscribers import EXACT, NOBODY, PATTERN, choose_subscribers, matches
from support.cases import each_case


@each_case(
    ("binding_key", "routing_key", "expected"),
    [
        ("#", "a", True),
        ("#", "a.b..c", True),
        ("1.*.0", "1.any.0", True),
        ("1.*.0", "1..0", False),
        ("1.*.0", "1.0", False),
        ("1.#.0", "1.2.3.4.4.2.2.0", True),
        ("1.#.0", "1.0", True),
        ("#.#", "a", True),
        ("a.#", "a", True),
        ("a.#", "b.a", False),
        ("#.a", "b.a", True),
        ("a", "a.b", False),
        ("A", "a", False),
    ],
)
def test_binding_keys_match_word_by_word(binding_key: str, routing_key: str, expected: bool):
    assert matches(binding_key, routing_key) is expected


def test_subscribers_are_chosen_so_that_each_shows_something():
    keys = ["a.x"] * 6 + ["a.y"] * 2 + ["b.x"] * 2

    chosen = choose_subscribers(keys)

    assert chosen[EXACT] == ["a.x"]
    assert chosen[PATTERN] == ["*.x", "a.#"]
    assert not any(matches(each, key) for each in chosen[NOBODY] for key in keys)


def test_patterns_made_of_the_longest_keys_are_legal():
    chosen = choose_subscribers(["a" * 64, "." * 15])

    assert all(len(each) <= 64 and each.count(".") <= 15 for keys in chosen.values() for each in keys)
    assert all(chosen.values())
