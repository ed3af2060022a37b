"""The matching table and the five scenarios of topics, as the specification (3.4, 3.6) states them."""

from collections.abc import Callable, Sequence

import pytest

from cmqd.core.outcome import Push
from cmqd_types.messages import Labels
from support.cases import each_case
from support.core.builders import ACCOUNT, Rig
from support.core.facts import facts

DAY_MS = 86_400_000
FRUIT = ["apple", "imac", "iphone", "macbook"]


def a_rig(subscribers: dict[str, list[str]], filter_type: str = "tag", strategy: str = "exponential_decay") -> Rig:
    """Subscribers with their tags or keys, with a URL per subscriber."""
    rig = Rig()
    rig.create_topic("news", filter_type=filter_type)
    for name, filters in subscribers.items():
        chosen = {"filter_tags": filters} if filter_type == "tag" else {"binding_keys": filters}
        rig.subscribe(f"https://{name}.example/", "news", name, strategy=strategy, **chosen)
    return rig


def publish(rig: Rig, count: int, first: int = 0, labels: Labels | None = None) -> list[int]:
    """Publish this number of messages singly; the number of matching subscribers per message."""
    replies = [rig.publish(b"%d" % number, labels=labels) for number in range(first, first + count)]
    return [matched or 0 for reply in replies for matched in reply.matched]


def serve(rig: Rig, takes: Callable[[str, int], bool] = lambda name, number: True) -> dict[str, list[int]]:
    """The endpoints answer all current pushes; the accepted messages per endpoint, in order."""
    topic = rig.broker.facts.topics.find(ACCOUNT, "news")
    taken: dict[str, list[int]] = {one.name: [] for one in topic.subscriptions.values()}
    rig.settle()
    while rig.pushes:
        push: Push = rig.pushes[0]
        number = int(push.message.body)
        is_taken = takes(push.subscription, number)
        if is_taken:
            taken[push.subscription].append(number)
        rig.end_push(push, None if is_taken else "500 Internal Server Error")
        rig.settle()
    return taken


def retained(rig: Rig) -> int:
    return rig.broker.topic_info(ACCOUNT, "news").counts["retained"]


def waits_for(rig: Rig, name: str) -> int:
    counts = rig.broker.subscription_info(ACCOUNT, "news", name, rig.now_ms).counts
    return counts["waiting"] + counts["in_retry"]


# ---------------------------------------------------------------------- matching


@pytest.mark.parametrize(
    ("filters", "tags", "received"),
    [
        ([], [], True),
        ([], ["a"], True),
        (["a"], [], False),
        (["a"], ["a"], True),
        (["a"], ["b"], False),
        (["a", "b"], ["b", "c"], True),
        (["a", "b"], ["c", "d"], False),
        (["a"], ["A"], False),
        (["ab"], ["a", "b"], False),
    ],
)
def test_matching_by_tags(filters: list[str], tags: list[str], received: bool):
    rig = a_rig({"sub": filters})

    assert publish(rig, 1, labels=tags) == [int(received)]

    assert serve(rig) == {"sub": [0] if received else []}


@each_case(
    ("keys", "key", "received"),
    [
        (["1.*.0"], "1.any.0", True),
        (["1.*.0"], "1..0", False),
        (["1.*.0"], "1.0", False),
        (["1.*.0"], "1.2.3.0", False),
        (["1.#.0"], "1.2.3.4.4.2.2.0", True),
        (["1.#.0"], "1.0", True),
        (["1.#.0"], "1.2", False),
        (["#"], "anything.at.all", True),
        (["#"], ".", True),
        (["*"], "one", True),
        (["*"], "one.two", False),
        (["a.b"], "a.b", True),
        (["a.b"], "A.b", False),
        (["a.b"], "axb", False),
        (["a", "b.*"], "b.c", True),
    ],
)
def test_matching_by_routing_key(keys: list[str], key: str, received: bool):
    rig = a_rig({"sub": keys}, "routing")

    assert publish(rig, 1, labels=key) == [int(received)]

    assert serve(rig) == {"sub": [0] if received else []}


def test_a_subscription_with_several_matching_keys_or_tags_gets_one_copy():
    by_tags, by_keys = a_rig({"sub": ["a", "b"]}), a_rig({"sub": ["#", "a.*", "a.b"]}, "routing")

    publish(by_tags, 1, labels=["a", "b"])
    publish(by_keys, 1, labels="a.b")

    assert serve(by_tags) == serve(by_keys) == {"sub": [0]}


# ---------------------------------------------------------------------- the five scenarios


def test_scenario_1_each_subscriber_gets_the_messages_with_a_tag_of_his():
    rig = a_rig({"sub-A": ["apple"], "sub-B": ["xiaomi"], "sub-C": ["imac", "xiaomi"], "sub-D": []})

    assert publish(rig, 100, labels=FRUIT) == [3] * 100

    taken = serve(rig)
    counts = {name: len(numbers) for name, numbers in taken.items()}
    assert counts == {"sub-A": 100, "sub-B": 0, "sub-C": 100, "sub-D": 100}
    assert sorted(taken["sub-A"]) == sorted(taken["sub-C"]) == sorted(taken["sub-D"]) == list(range(100))
    assert retained(rig) == 0


def test_scenario_2_subscribers_without_tags_get_everything():
    rig = a_rig({"sub-A": [], "sub-B": [], "sub-C": [], "sub-D": []})

    publish(rig, 50, labels=FRUIT)
    publish(rig, 50, 50)

    assert {name: sorted(numbers) for name, numbers in serve(rig).items()} == {
        name: list(range(100)) for name in ("sub-A", "sub-B", "sub-C", "sub-D")
    }


def test_scenario_3_an_unmatched_message_is_discarded_at_once():
    rig = a_rig({"sub-A": ["xiaomi"]})
    rows = rig.log.last_lsn

    assert publish(rig, 100, labels=FRUIT) == [0] * 100

    assert rig.log.last_lsn == rows
    assert retained(rig) == 0
    assert serve(rig) == {"sub-A": []}


def test_scenario_4_a_failed_message_is_retained_for_the_failed_subscribers_until_its_day_ends():
    rig = a_rig({"sub-A": [], "sub-B": [], "sub-C": []})
    publish(rig, 200)

    def takes(name: str, number: int) -> bool:
        return {"sub-A": number >= 100, "sub-B": not 80 <= number < 110, "sub-C": True}[name]

    taken = serve(rig, takes)

    assert {name: len(numbers) for name, numbers in taken.items()} == {"sub-A": 100, "sub-B": 170, "sub-C": 200}
    assert [waits_for(rig, name) for name in ("sub-A", "sub-B", "sub-C")] == [100, 30, 0]
    assert retained(rig) == 110
    for again in (rig.crash(), rig.crash_after(rig.checkpoint())):
        assert facts(again.broker) == facts(rig.broker)
        assert retained(again) == 110

    rig.now_ms += 500
    publish(rig, 100, 200)
    taken = serve(rig, lambda name, number: name == "sub-C")

    assert sorted(taken["sub-C"]) == list(range(200, 300))
    assert retained(rig) == 210
    assert [waits_for(rig, name) for name in ("sub-A", "sub-B", "sub-C")] == [200, 130, 0]
    rig.advance(DAY_MS - 500)
    assert retained(rig) == 100, "their life ended a day after their own publish"
    rig.advance(1000)
    assert retained(rig) == 0


def test_scenario_4_under_backoff_those_behind_a_failed_one_wait_and_go_out_in_order():
    rig = a_rig({"sub-A": [], "sub-C": []}, strategy="backoff")
    publish(rig, 200)

    taken = serve(rig, lambda name, number: name == "sub-C" or number < 100)

    assert taken == {"sub-A": list(range(100)), "sub-C": list(range(200))}
    counts = rig.broker.subscription_info(ACCOUNT, "news", "sub-A").counts
    assert (counts["waiting"], counts["in_retry"]) == (99, 1)
    assert retained(rig) == 100
    publish(rig, 100, 200)
    assert serve(rig, lambda name, number: name == "sub-C") == {"sub-A": [], "sub-C": list(range(200, 300))}
    assert retained(rig) == 200

    tried: list[int] = []

    def takes_new_ones(name: str, number: int) -> bool:
        tried.append(number)
        return number >= 200

    taken = {"sub-A": list[int]()}
    while not taken["sub-A"]:
        pass_time(rig)
        taken = serve(rig, takes_new_ones)
    assert tried == _each(range(100, 200), 4)[1:] + list(range(200, 300))
    assert taken["sub-A"] == list(range(200, 300))
    counts = rig.broker.subscription_info(ACCOUNT, "news", "sub-A").counts
    assert counts["dropped"] == 100
    assert retained(rig) == 0


def pass_time(rig: Rig) -> None:
    """Until the next attempt of A."""
    next_ms = rig.broker.subscription_info(ACCOUNT, "news", "sub-A", rig.now_ms).facts["next_attempt_ms"]
    rig.settle(next_ms - rig.now_ms)


def _each(numbers: Sequence[int], times: int) -> list[int]:
    return [number for number in numbers for _ in range(times)]


def test_scenario_5_the_topic_is_empty_once_every_subscriber_has_taken_all():
    rig = a_rig({"sub-A": [], "sub-B": [], "sub-C": []})
    publish(rig, 200)
    assert retained(rig) == 200

    taken = serve(rig)

    assert {name: sorted(numbers) for name, numbers in taken.items()} == {
        name: list(range(200)) for name in ("sub-A", "sub-B", "sub-C")
    }
    assert retained(rig) == 0
    assert rig.broker.topic_info(ACCOUNT, "news").facts["oldest_message_ms"] is None


def test_the_first_two_scenarios_hold_for_queues_too():
    rig = Rig()
    rig.create_topic()
    for name, tags in {"A": ["apple"], "B": ["xiaomi"], "C": ["imac", "xiaomi"], "D": []}.items():
        rig.subscribe(name, filter_tags=tags)

    publish(rig, 100, labels=FRUIT)

    assert {name: rig.counts(name)["active"] for name in "ABCD"} == {"A": 100, "B": 0, "C": 100, "D": 100}
    assert retained(rig) == 0
