"""Who should get what of the demo's topic, and whether the books notice when somebody does not."""

import pytest

from cmqd_bench.audience import EXACT, NOBODY, PATTERN, URL, Audience, Share, choose_subscribers, matches

KEYS = ["cmqd.py", "tests.py", "md"]


@pytest.mark.parametrize(
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

    chosen = choose_subscribers(keys, url=True)

    assert chosen[EXACT] == ["a.x"]
    assert chosen[PATTERN] == ["*.x", "a.#"]
    assert chosen[URL] == ["b.#"]
    assert not any(matches(each, key) for each in chosen[NOBODY] for key in keys)
    assert URL not in choose_subscribers(keys, url=False)


def test_patterns_made_of_the_longest_keys_are_legal():
    chosen = choose_subscribers(["a" * 64, "." * 15], url=True)

    assert all(len(each) <= 64 and each.count(".") <= 15 for keys in chosen.values() for each in keys)
    assert all(chosen.values())


def body(number: int) -> bytes:
    return b"body %d" % number


def routing_key(number: int) -> str:
    return KEYS[number % len(KEYS)]


def make_audience() -> Audience:
    return Audience({"all": ["#"], "python": ["*.py", "cmqd.#"], URL: ["md"]}, routing_key, body)


def share_of(audience: Audience, name: str) -> Share:
    return next(share for share in audience.shares() if share.name == name)


def publish(audience: Audience, *numbers: int) -> None:
    audience.attempt(numbers)
    audience.publish(numbers, [(f"Msg-{number}", len(audience.wanting(routing_key(number)))) for number in numbers])


def deliver(audience: Audience, *numbers: int) -> None:
    for number in numbers:
        audience.receive("all", number, body(number))
        if number % 3 == 2:
            audience.receive_push(URL, f"Msg-{number}", body(number), genuine=True)
        else:
            audience.receive("python", number, body(number))


def test_books_in_which_everybody_got_his_share_hold():
    audience = make_audience()

    publish(audience, 0, 1, 2)
    deliver(audience, 0, 1, 2)

    assert audience.holds
    assert [(share.received, share.expected) for share in audience.shares()] == [(3, 3), (2, 2), (1, 1)]
    assert audience.copies == audience.copies_of([0, 1, 2]) == 6


def test_a_copy_that_never_came_is_lost():
    audience = make_audience()

    publish(audience, 0, 1, 2)
    deliver(audience, 0, 2)

    assert not audience.holds
    assert share_of(audience, "all").lost == 1
    assert share_of(audience, "python").lost == 1
    assert share_of(audience, URL).lost == 0


def test_what_was_published_without_an_answer_may_come_or_not():
    audience = make_audience()

    audience.attempt([0, 2, 5])
    audience.receive("all", 0, body(0))
    audience.receive_push(URL, "Msg-2", body(2), genuine=True)

    assert audience.holds


def test_copies_that_come_again_are_counted():
    audience = make_audience()

    publish(audience, 2)
    deliver(audience, 2)
    deliver(audience, 2)

    assert audience.holds
    assert share_of(audience, "all").again == share_of(audience, URL).again == 1


@pytest.mark.parametrize(
    ("name", "number", "content"),
    [("python", 2, body(2)), ("all", 2, b"changed"), ("all", 7, body(7)), ("all", None, b"")],
)
def test_what_nobody_should_have_got_is_foreign(name: str, number: int | None, content: bytes):
    audience = make_audience()
    publish(audience, 2)
    deliver(audience, 2)

    audience.receive(name, number, content)

    assert not audience.holds
    assert share_of(audience, name).foreign == 1


@pytest.mark.parametrize(
    ("message_id", "content", "genuine"),
    [("Msg-2", body(2), False), ("Msg-0", body(0), True), ("Msg-9", b"unheard of", True)],
)
def test_a_push_that_is_not_signed_or_not_for_this_url_is_foreign(message_id: str, content: bytes, genuine: bool):
    audience = make_audience()
    publish(audience, 0, 1, 2)
    deliver(audience, 0, 1, 2)

    audience.receive_push(URL, message_id, content, genuine=genuine)

    assert not audience.holds
    assert share_of(audience, URL).foreign == 1


def test_an_answer_with_another_number_of_subscribers_is_miscounted():
    audience = make_audience()

    audience.attempt([0, 1])
    audience.publish([0, 1], [("Msg-0", 3), ("Msg-1", None)])
    deliver(audience, 0, 1)

    assert audience.miscounted == 1
    assert not audience.holds
