"""The expected copies of every subscriber of the demo's topic, and the books of all subscribers."""

import base64
import hmac

import pytest

from cmqd_bench.demo.books import EXACT, NOBODY, PATTERN, URL, Balance, Books, choose_subscribers, matches
from cmqd_bench.demo.input import Source
from cmqd_bench.demo.kill import is_genuine
from support.cases import each_case

KEYS = ["cmqd.py", "tests.py", "md"]
BODIES = [b"body %d" % number for number in range(9)]


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


def make_books() -> Books:
    return Books(Source("test", BODIES, KEYS), {"all": ["#"], "python": ["*.py", "cmqd.#"], URL: ["md"]})


def share_of(books: Books, name: str) -> Balance:
    return books.copies[name].balance()


def publish(books: Books, *numbers: int) -> None:
    books.attempt_publish(numbers)
    books.acknowledge_publish(numbers, [(f"Msg-{number}", len(books.wanting(number))) for number in numbers])


def deliver(books: Books, *numbers: int) -> None:
    for number in numbers:
        books.copies["all"].receive(f"Msg-{number}", number, BODIES[number])
        if number % 3 == 2:
            books.copies[URL].receive_unnumbered(f"Msg-{number}", BODIES[number])
        else:
            books.copies["python"].receive(f"Msg-{number}", number, BODIES[number])


def test_books_hold_if_each_subscriber_got_its_copies():
    books = make_books()

    publish(books, 0, 1, 2)
    deliver(books, 0, 1, 2)

    assert books.hold
    shares = [ledger.balance() for ledger in books.copies.values()]
    assert [(share.received, share.acknowledged) for share in shares] == [(3, 3), (2, 2), (1, 1)]
    assert books.balance().received == sum(len(books.wanting(number)) for number in range(3)) == 6


def test_a_copy_that_never_came_is_lost():
    books = make_books()

    publish(books, 0, 1, 2)
    deliver(books, 0, 2)

    assert not books.hold
    assert [share_of(books, name).lost for name in ("all", "python", URL)] == [1, 1, 0]


def test_messages_published_without_an_answer_may_come_or_not():
    books = make_books()

    books.attempt_publish([0, 2, 5])
    books.copies["all"].receive("Msg-0", 0, BODIES[0])
    books.copies[URL].receive_unnumbered("Msg-2", BODIES[2])

    assert books.hold
    assert share_of(books, URL).unanswered == 1


def test_copies_that_come_again_are_counted():
    books = make_books()

    publish(books, 2)
    deliver(books, 2)
    deliver(books, 2)

    assert books.hold
    assert share_of(books, "all").redelivered == share_of(books, URL).redelivered == 1


def test_a_copy_that_comes_back_after_its_answered_delete_was_undone():
    books = make_books()
    publish(books, 0)
    deliver(books, 0)
    books.copies["all"].delete(["Msg-0"])

    books.copies["all"].receive("Msg-0", 0, BODIES[0])

    assert not books.hold


@pytest.mark.parametrize(
    ("name", "number", "content"),
    [("python", 2, BODIES[2]), ("all", 2, b"changed"), ("all", 7, BODIES[7]), ("all", None, b"")],
)
def test_a_message_that_was_not_sent_to_a_subscriber_is_foreign(name: str, number: int | None, content: bytes):
    books = make_books()
    publish(books, 2)
    deliver(books, 2)

    books.copies[name].receive(f"Msg-{number}", number, content)

    assert not books.hold
    assert share_of(books, name).foreign == 1


@pytest.mark.parametrize(("message_id", "content"), [("Msg-0", BODIES[0]), ("Msg-9", b"unheard of")])
def test_a_push_that_is_not_for_this_url_is_foreign(message_id: str, content: bytes):
    books = make_books()
    publish(books, 0, 1, 2)
    deliver(books, 0, 1, 2)

    books.copies[URL].receive_unnumbered(message_id, content)

    assert not books.hold
    assert share_of(books, URL).foreign == 1


def test_an_answer_with_another_number_of_subscribers_is_miscounted():
    books = make_books()

    books.attempt_publish([0, 1])
    books.acknowledge_publish([0, 1], [("Msg-0", 3), ("Msg-1", None)])
    deliver(books, 0, 1)

    assert books.miscounted == 1
    assert not books.hold


def test_a_push_with_a_wrong_signature_is_not_genuine():
    secret = "whsec_" + base64.b64encode(b"key").decode()
    signature = base64.b64encode(hmac.digest(b"key", b"id.1.body", "sha256")).decode()
    headers = {"webhook-id": "id", "webhook-timestamp": "1", "webhook-signature": f"v1,other v1,{signature}"}

    assert is_genuine(secret, headers, b"body")
    assert not is_genuine(secret, headers, b"changed")
    assert not is_genuine(secret, headers | {"webhook-signature": "v1,other"}, b"body")
