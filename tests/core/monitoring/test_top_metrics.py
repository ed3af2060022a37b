"""The largest queues, topics and subscriptions, and sums over all queues: equal to a sort of all pages."""

import pytest

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import InvalidArgument
from cmqd.core.facts.subscription_backlog import Deliveries
from cmqd.core.operations.monitoring.top_metrics import RANKED_A_STEP, SHOWN_A_STEP, Top
from cmqd_types.metrics import MetricSums, TopicMetrics
from support.core.builders import ACCOUNT, Rig, end_of


def top_of(broker: Broker, limit: int = 100, account: str | None = None) -> Top:
    return end_of(broker.top_metrics(account, limit))


def a_mix() -> Rig:
    """Queues in all states, of two accounts, and a topic with subscriptions."""
    rig = Rig()
    rig.create("empty")
    rig.create("busy", rewind_ms=60_000)
    rig.send(b"1", b"2", b"3", b"4", name="busy")
    rig.delete(*rig.handles(most=1, name="busy"), name="busy")
    rig.handles(most=1, name="busy")
    rig.advance(1000)
    rig.create("late")
    rig.send(b"5", b"6", name="late", delay_ms=50_000)
    rig.create("pay", transactional=True)
    rig.send_half(b"7", name="pay")
    rig.wait("empty", wait_ms=5000)
    rig.done(rig.broker.create_queue("other", "theirs", {}, rig.now_ms))
    rig.create_topic()
    rig.create_topic("quiet")
    rig.subscribe("https://a.example/", name="web")
    rig.subscribe("https://b.example/", name="slow")
    rig.publish(b"8")
    return rig


def test_sums_and_figures_are_those_of_all_pages():
    rig = a_mix()
    queues, _ = rig.broker.queue_metrics(None, ("", ""), 1000)
    topics, _ = rig.broker.topic_metrics(None, ("", ""), 1000)

    top = top_of(rig.broker)

    assert sorted(top.queues, key=lambda queue: (queue.account, queue.queue)) == queues
    assert [queue.queue for queue in top.queues] == ["busy", "late", "pay", "empty", "theirs"]
    subscriptions = [one for topic in topics for one in topic.subscriptions]
    assert [one.subscription for one in top.subscriptions] == subscriptions
    assert [(one.account, one.topic) for one in top.subscriptions] == [(ACCOUNT, "news")] * 2
    assert [(topic.topic, topic.retained, topic.subscriptions) for topic in top.topics] == [
        ("news", 1, []),
        ("quiet", 0, []),
    ]
    sums = top.sums
    for state in ("active", "in_flight", "delayed", "half", "rewindable", "damaged", "waiting_receives"):
        assert getattr(sums, state) == sum(getattr(queue, state) for queue in queues), state
    assert sums.oldest_message_ms == min(
        queue.oldest_message_ms for queue in queues if queue.oldest_message_ms is not None
    )
    assert sums.undelivered == sum(one.waiting + one.in_retry for one in subscriptions)
    assert sums.oldest_undelivered_ms == min(
        one.oldest_message_ms for one in subscriptions if one.oldest_message_ms is not None
    )
    assert (sums.active, sums.in_flight, sums.delayed, sums.half, sums.rewindable) == (2, 1, 2, 1, 1)
    assert (sums.waiting_receives, sums.undelivered) == (1, 2)


def test_an_account_has_its_own_sums_and_queues_alone():
    rig = a_mix()

    top = top_of(rig.broker, account="other")

    assert top.sums == MetricSums()
    assert [queue.queue for queue in top.queues] == ["theirs"]
    assert (top.topics, top.subscriptions) == ([], [])
    assert top_of(rig.broker, account="nobody") == Top(MetricSums(), [], [], [])


def test_the_largest_are_shown_and_equal_queues_keep_their_rank():
    rig = Rig()
    for number in range(12):
        rig.create(f"q{number:02}")
    for number, count in ((3, 5), (7, 9), (8, 5), (1, 1)):
        rig.send(*[b"x"] * count, name=f"q{number:02}")

    assert [queue.queue for queue in top_of(rig.broker, 6).queues] == ["q07", "q03", "q08", "q01", "q00", "q02"]
    top = top_of(rig.broker, 0)
    assert (top.queues, top.sums.active) == ([], 20)


@pytest.mark.parametrize("limit", [-1, 1001])
def test_a_limit_out_of_range_is_refused(limit: int):
    with pytest.raises(InvalidArgument, match="limit"):
        Rig().broker.check_top_limit(limit)


def test_queues_may_come_and_go_between_the_steps():
    rig = Rig()
    names = [f"q{number:05}" for number in range(2 * RANKED_A_STEP + 1)]
    for name in names:
        rig.create(name)
        rig.send(b"1", name=name)
    rig.create_topic()
    rig.subscribe("https://a.example/", name="web")
    steps = rig.broker.top_metrics(None, 1000)
    next(steps)
    rig.delete_queue(names[0])
    rig.delete_queue(names[-1])
    rig.create("later")
    for _ in range(3):
        next(steps)
    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", "web", rig.now_ms))
    top = end_of(steps)

    shown = [queue.queue for queue in top.queues]
    assert shown == names[1:-1]
    assert top.sums.active == len(names) - 1, "the first queue was counted before its deletion"
    assert top.sums.undelivered == 0
    assert top.subscriptions == []
    assert [type(topic) for topic in top.topics] == [TopicMetrics]


def test_a_step_examines_a_bounded_number_of_queues(monkeypatch: pytest.MonkeyPatch):
    rig = Rig()
    for number in range(1000):
        rig.create(f"q{number:05}")
    of_queue, shown = rig.broker.parts.metrics.of_queue, 0
    metrics = rig.broker.parts.metrics

    def counted(queue: object, consumers_since_ms: int) -> object:
        nonlocal shown
        shown += 1
        return of_queue(queue, consumers_since_ms)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(metrics, "of_queue", counted)
    steps: list[int] = []
    for _ in rig.broker.top_metrics(None, 1000):
        steps.append(shown)
        shown = 0

    assert len(steps) >= 1000 / RANKED_A_STEP + 1000 / SHOWN_A_STEP
    assert max(steps) == SHOWN_A_STEP


def test_the_subscriptions_of_a_topic_are_examined_once(monkeypatch: pytest.MonkeyPatch):
    rig = Rig()
    for topic in ("aaa", "bbb", "ccc"):
        rig.create_topic(topic)
        for number in range(100):
            rig.subscribe(f"https://a.example/{number}", topic=topic, name=f"sub{number}")
        rig.publish(b"1", topic=topic)
    first_pending, examined = Deliveries.first_pending, 0

    def counted(deliveries: Deliveries) -> int | None:
        nonlocal examined
        examined += 1
        return first_pending(deliveries)

    monkeypatch.setattr(Deliveries, "first_pending", counted)
    steps: list[int] = []
    for _ in rig.broker.top_metrics(None, 3):
        steps.append(examined)
        examined = 0

    # A second look for each of the three subscriptions in the reply.
    assert sum(steps) + examined == 303
    assert max(steps) == 200


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_the_oldest_message_is_found_in_whatever_queue_it_is(order: str):
    rig = Rig()
    for name in order:
        rig.create(name)
        rig.send(b"1", b"2", name=name)
        rig.advance(1000)
        rig.send(b"3", name=name)
        rig.advance(1000)
    # The first queue has the oldest step, and no message of that step any more.
    rig.delete(*rig.handles(most=2, name=order[0]), name=order[0])

    top = top_of(rig.broker)

    times = [queue.oldest_message_ms for queue in top.queues if queue.oldest_message_ms is not None]
    assert len(times) == 3
    assert top.sums.oldest_message_ms == min(times)
