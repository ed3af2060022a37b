"""Tests of labels against subscriptions: equal to publishes, and a change of nothing."""

from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd.core.domain_errors import InvalidArgument, TopicNotFound
from cmqd.core.operations.topics.filter_tests import FILTERS_A_STEP
from cmqd.core.operations.topics.publish_plan import MAX_RESTARTS
from cmqd_types.messages import Labels
from cmqd_types.topics import FATES, FilterMatch, TopicMatch
from support.core.builders import ACCOUNT, Rig
from support.core.facts import facts
from support.core.publishing import URL, a_rig, unsubscribe


def steps_of(rig: Rig, labels: Labels | None = None) -> Generator[None, None, TopicMatch]:
    tags, routing_key = (None, labels) if isinstance(labels, str) else (labels, None)
    return rig.broker.match_subscriptions(ACCOUNT, "news", tags, routing_key)


def end_of(steps: Generator[None, None, TopicMatch]) -> tuple[TopicMatch, int]:
    """The result, and the number of steps before it."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def match(rig: Rig, labels: Labels | None = None) -> TopicMatch:
    return end_of(steps_of(rig, labels))[0]


def fates(rig: Rig, labels: Labels | None = None) -> dict[str, str]:
    return {one.subscription: one.fate for one in match(rig, labels).subscriptions}


def change(rig: Rig, name: str, **attributes: object) -> None:
    rig.done(rig.broker.set_subscription_attributes(ACCOUNT, "news", name, attributes, rig.now_ms))


def test_tags_that_are_common_match():
    rig = a_rig()
    rig.create("q")
    rig.subscribe("q", name="some", filter_tags=["red", "big"])
    rig.subscribe("q", name="all")
    rig.subscribe("q", name="others", filter_tags=["blue"])

    found = match(rig, ["red", "old"])

    assert (found.filter_type, found.matched) == ("tag", 2)
    assert [(one.subscription, one.matches, one.filters) for one in found.subscriptions] == [
        ("all", True, []),
        ("others", False, [FilterMatch("blue", False)]),
        ("some", True, [FilterMatch("red", True), FilterMatch("big", False)]),
    ]
    assert match(rig).matched == match(rig, []).matched == 1, "without tags only the subscription without filters"


def test_binding_keys_tell_the_word_at_which_a_routing_key_leaves_them():
    rig = a_rig("routing")
    rig.create("q")
    rig.subscribe("q", name="one", binding_keys=["eu.#", "us.*", "*.order.new"])
    rig.subscribe("q", name="two", binding_keys=["us.order"])

    found = match(rig, "us.order.new")

    assert [(one.subscription, one.matches, one.filters) for one in found.subscriptions] == [
        ("one", True, [FilterMatch("eu.#", False, 1), FilterMatch("us.*", False, 3), FilterMatch("*.order.new", True)]),
        ("two", False, [FilterMatch("us.order", False, 3)]),
    ]


WORDS = st.sampled_from(["a", "b", "", "*", "#"])
KEYS = st.lists(WORDS, min_size=1, max_size=4).map(".".join).filter(bool)


@given(st.lists(st.lists(KEYS, min_size=1, max_size=5), min_size=1, max_size=6), KEYS)
def test_the_subscriptions_that_match_are_those_of_a_publish(filters: list[list[str]], routing_key: str):
    rig = a_rig("routing")
    rig.create("q")
    for number, binding_keys in enumerate(filters):
        rig.subscribe("q", name=f"sub{number}", binding_keys=binding_keys)

    found = match(rig, routing_key)

    before = rig.counts("q")["active"]
    rig.publish(b"x", labels=routing_key)
    assert found.matched == rig.counts("q")["active"] - before
    assert all(one.matches == any(each.matches for each in one.filters) for one in found.subscriptions)


def test_nothing_changes():
    rig = a_rig()
    rig.create("q")
    rig.subscribe("q", name="some", filter_tags=["red"])
    rig.publish(b"x", labels=["red"])
    before, rows = facts(rig.broker), rig.log.last_lsn

    match(rig, ["red"])
    match(rig, ["blue"])

    assert (facts(rig.broker), rig.log.last_lsn) == (before, rows)


def test_every_fate():
    rig = a_rig()
    rig.create("room")
    rig.create("gone")
    rig.create("full")
    rig.force("full", max_backlog=1)
    rig.send(b"x", name="full")
    rig.subscribe("room", name="stored")
    rig.subscribe("gone", name="missing")
    rig.subscribe("full", name="full")
    rig.subscribe("room", name="held", paused=True)
    rig.subscribe("room", name="other", filter_tags=["blue"])
    rig.subscribe(URL, name="posted")
    rig.subscribe("https://down.example/", name="down")
    rig.subscribe("https://slow.example/", name="slow", strategy="backoff")
    rig.delete_queue("gone")
    for _ in range(3):
        # The second failure of a message in a row blocks; the message under backoff is under way and others wait.
        rig.publish(b"x")
        rig.settle()
        for push in list(rig.pushes):
            if "down" in push.url:
                rig.end_push(push, error="503")
            elif "slow" not in push.url:
                rig.end_push(push)
        rig.advance(5_000)

    found = fates(rig, ["red"])

    assert found == {
        "stored": "stored",
        "missing": "queue_missing",
        "full": "queue_full",
        "held": "paused",
        "other": "no_match",
        "posted": "posted",
        "down": "blocked",
        "slow": "behind",
    }
    assert set(found.values()) == set(FATES)


def test_a_message_waits_behind_others_until_they_are_gone():
    rig = a_rig()
    rig.create("q")
    rig.subscribe("q", name="ordered", strategy="backoff", paused=True)
    rig.publish(b"1")
    assert fates(rig) == {"ordered": "paused"}

    change(rig, "ordered", paused=False)
    assert fates(rig) == {"ordered": "behind"}, "the earlier message goes first"
    rig.settle()
    assert fates(rig) == {"ordered": "stored"}


@pytest.mark.parametrize(
    ("filter_type", "tags", "routing_key", "field"),
    [
        ("tag", ["a,b"], None, "tags"),
        ("tag", ["x" * 17], None, "tags"),
        ("tag", [str(number) for number in range(11)], None, "tags"),
        ("tag", None, "a.b", "routing_key"),
        ("routing", ["red"], "a.b", "tags"),
        ("routing", None, None, "routing_key"),
        ("routing", None, "", "routing_key"),
        ("routing", None, "a." * 16, "routing_key"),
    ],
)
def test_labels_are_checked_as_in_a_publish(
    filter_type: str, tags: list[str] | None, routing_key: str | None, field: str
):
    rig = a_rig(filter_type)

    with pytest.raises(InvalidArgument) as refusal:
        end_of(rig.broker.match_subscriptions(ACCOUNT, "news", tags, routing_key))

    assert refusal.value.details["field"] == field


def test_a_missing_topic_is_refused():
    with pytest.raises(TopicNotFound):
        end_of(Rig().broker.match_subscriptions(ACCOUNT, "news", None, None))


def a_large_topic() -> Rig:
    rig = a_rig("routing")
    rig.create("q")
    for number in range(500):
        keys = [f"{number}.{plane}.#.x.*.#.y" for plane in range(5)]
        rig.subscribe("q", name=f"sub{number:03}", binding_keys=keys)
    return rig


def test_500_subscriptions_with_five_keys_take_many_short_steps():
    found, steps = end_of(steps_of(a_large_topic(), "7.3.x.a.y"))

    assert [one.subscription for one in found.subscriptions if one.matches] == ["sub007"]
    assert [len(one.filters) for one in found.subscriptions] == [5] * 500
    # The sets of the matcher, and then the filters.
    assert steps >= 500 * 6 // (FILTERS_A_STEP + 6) + 10


def test_a_filter_that_changes_between_two_steps_begins_the_test_anew():
    rig = a_large_topic()
    steps = steps_of(rig, "7.3.x.a.y")
    for _ in range(40):
        next(steps)
    change(rig, "sub007", binding_keys=["other"])
    change(rig, "sub499", binding_keys=["7.3.#"])
    unsubscribe(rig, "sub000")

    found, _ = end_of(steps)

    assert [one.subscription for one in found.subscriptions if one.matches] == ["sub499"]
    assert len(found.subscriptions) == 499


def test_filters_that_change_without_end_do_not_keep_a_test_for_ever():
    rig = a_large_topic()
    steps = steps_of(rig, "1")
    for _ in range(MAX_RESTARTS):
        next(steps)
        change(rig, "sub007", binding_keys=["1"])

    with pytest.raises(StopIteration) as end:
        next(steps)

    assert end.value.value.matched == 1


def test_a_topic_that_is_deleted_between_two_steps_is_refused():
    rig = a_large_topic()
    steps = steps_of(rig, "1")
    next(steps)
    for number in range(500):
        unsubscribe(rig, f"sub{number:03}")
    rig.done(rig.broker.delete_topic(ACCOUNT, "news"))
    rig.create_topic("news", filter_type="routing")

    with pytest.raises(TopicNotFound):
        end_of(steps)
