"""Names of frameworks as names of queues: legal, the same for ever, and never the same for two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd.core.names import check_name, check_queue_name, folded
from cmqd_client.foreign_names import queue_name, topic_name, usable_queue_name, usable_topic_name

PLAIN = st.text("abcxyz019_-", min_size=1, max_size=70)
CASED = st.text("abAB-_.", min_size=0, max_size=6)
ANY = st.one_of(st.text(max_size=80), PLAIN, CASED, st.text("é@./:", max_size=4), st.characters(categories=["Cs"]))
RESULTS = ANY.map(queue_name)
NAMES = st.one_of(ANY, RESULTS, RESULTS.map(str.upper), RESULTS.map(queue_name), ANY.map(str.swapcase))
"""Also names that look like results, and names that differ in case alone."""


@given(NAMES)
def test_the_server_takes_every_result(name: str):
    assert check_queue_name(queue_name(name))
    assert check_name("topic", topic_name(name))
    assert not queue_name(name).startswith("-") or queue_name(name) == name


@given(st.lists(NAMES, unique=True, max_size=12))
def test_different_names_stay_different_for_a_server_that_ignores_case(names: list[str]):
    assert len({folded(queue_name(name)) for name in names}) == len(names)
    assert len({folded(topic_name(name)) for name in names}) == len(names)


@given(CASED, CASED)
def test_short_names_of_few_letters_meet_only_themselves(one: str, other: str):
    assert (folded(queue_name(one)) == folded(queue_name(other))) == (one == other)


@given(st.text("abcxyz019_", min_size=3, max_size=64))
def test_a_usual_name_stays_as_it_is(name: str):
    assert queue_name(name) == topic_name(name) == name


@given(NAMES)
def test_a_result_is_taken_for_a_name_of_its_own(name: str):
    result = queue_name(name)

    assert result == name or queue_name(result) != result


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("celery", "celery"),
        ("default-queue_2", "default-queue_2"),
        ("Orders", "Orders--w7ukzxksfzqzblevm6wrnx7zq4"),
        ("celery@worker-1.example.celery.pidbox", "celery-worker-1-example-celery-pidbo--fwbtc6hykb3vocryo3hmrffcyq"),
        ("größe", "gr-e--2nj2ezy3m6x76ckbvzcw4xdw5e"),
        ("", "unnamed--4oymiquy7qobjgx36tejs35zeq"),
        ("a" * 65, "a" * 36 + "--mnjwdrelxhvlcqmy45xkrk37di"),
        ("a--" + "a" * 26, "a-" + "a" * 26 + "--p4ukyzhalvxxx2wtxunvrjubia"),
    ],
)
def test_a_name_has_the_same_result_in_every_version(name: str, result: str):
    assert queue_name(name) == result


def test_a_topic_with_a_short_name_gets_a_longer_one():
    assert queue_name("ab") == "ab"
    assert topic_name("ab").startswith("ab--")


@given(NAMES)
def test_a_usable_name_is_legal_and_stays_as_it_is_when_mapped_again(name: str):
    usable = usable_queue_name(name)

    assert usable_queue_name(usable) == usable
    assert usable in (name, queue_name(name))
    assert usable_topic_name(usable_topic_name(name)) == usable_topic_name(name)


def test_legal_names_are_usable_with_their_capital_letters():
    assert usable_queue_name("Orders") == usable_topic_name("Orders") == "Orders"
    assert usable_queue_name("orders.paid") == queue_name("orders.paid")
    assert usable_topic_name("ab") == topic_name("ab")
