"""Metrics of the core: pages in order of name, and totals of accounts that never sink."""

import pytest
from msgspec.structs import asdict

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import InvalidArgument
from cmqd.core.facts.gone_totals import AccountTotals
from cmqd.core.operations.monitoring.metrics import ACCOUNTS_A_STEP, COUNTED_A_STEP, ENTRIES_A_PAGE, EXAMINED_A_PAGE
from cmqd.core.runtime.counted_totals import AnyTotals
from cmqd_types.totals import QueueTotals
from support.core import alone
from support.core.builders import ACCOUNT, Rig, end_of


def totals_of(broker: Broker, account: str | None = None) -> AccountTotals:
    """The totals after a whole round of steps."""
    return end_of(broker.add_up_totals(account))


def counted(broker: Broker, account: str | None = None) -> QueueTotals:
    return totals_of(broker, account).queues


def test_a_queue_shows_its_states_its_oldest_message_and_its_waiting_receives():
    rig = Rig()
    rig.create(rewind_ms=60_000)
    sent_ms = rig.now_ms
    rig.send(b"12", b"3", b"456")
    rig.delete(*rig.handles(most=1))
    rig.handles(most=1)
    rig.advance(1000)
    rig.send(b"later", delay_ms=50_000)
    rig.create("empty")
    rig.wait("empty", wait_ms=5000)

    (empty, queue), after = rig.broker.queue_metrics(ACCOUNT, ("", ""), 10)

    assert after is None
    assert (empty.queue, empty.waiting_receives, empty.oldest_message_ms) == ("empty", 1, None)
    assert (queue.active, queue.in_flight, queue.delayed, queue.half, queue.rewindable) == (1, 1, 1, 0, 1)
    assert queue.oldest_message_ms is not None
    assert sent_ms - 100 <= queue.oldest_message_ms <= sent_ms
    assert queue.received_bytes == 3
    assert queue.totals.deleted == 1


def test_a_page_is_as_of_now_although_its_reply_waits_for_the_disk():
    rig = Rig()
    rig.create()
    (queue,), _ = rig.broker.queue_metrics(ACCOUNT, ("", ""), 10)

    rig.send(b"1")

    assert queue.totals == QueueTotals()


def test_pages_go_on_behind_a_name_also_if_queues_come_and_go_between_them():
    rig = Rig()
    for number in range(10):
        rig.create(f"q{number}")
    seen: list[str] = []
    after: tuple[str, str] | None = ("", "")
    while after is not None:
        page, after = rig.broker.queue_metrics(None, after, 3)
        seen += [queue.queue for queue in page]
        if len(seen) == 3:
            rig.delete_queue("q2")
            rig.delete_queue("q5")
            rig.create("q31")

    assert seen == ["q0", "q1", "q2", "q3", "q31", "q4", "q6", "q7", "q8", "q9"]


def test_pages_of_one_account_have_no_queue_of_another_and_an_unknown_account_has_none():
    rig = Rig()
    rig.create("own")
    rig.done(rig.broker.create_queue("other", "theirs", {}, rig.now_ms))

    assert [queue.queue for queue in rig.broker.queue_metrics("other", ("", ""), 10)[0]] == ["theirs"]
    assert [queue.queue for queue in rig.broker.queue_metrics(ACCOUNT, ("admin", "a"), 10)[0]] == ["own"]
    assert rig.broker.queue_metrics(ACCOUNT, ("b", ""), 10) == ([], None)
    assert rig.broker.queue_metrics("nobody", ("", ""), 10) == ([], None)
    assert [queue.account for queue in rig.broker.queue_metrics(None, ("", ""), 10)[0]] == ["admin", "other"]


def test_a_page_has_a_bounded_number_of_entries_whatever_the_limit_is():
    rig = Rig()
    for number in range(ENTRIES_A_PAGE + 1):
        rig.create(f"q{number}")
    page, after = rig.broker.queue_metrics(ACCOUNT, ("", ""), 1000)
    rest, end = rig.broker.queue_metrics(ACCOUNT, after or ("", ""), 1000)

    assert (len(page), len(rest), end) == (ENTRIES_A_PAGE, 1, None)
    for limit in (0, 1001):
        with pytest.raises(InvalidArgument, match="limit"):
            rig.broker.queue_metrics(ACCOUNT, ("", ""), limit)


def test_a_topic_comes_with_all_its_subscriptions_and_a_page_ends_before_a_topic_that_is_too_much():
    rig = Rig()
    for topic in ("aaa", "bbb", "ccc"):
        rig.create_topic(topic)
        for number in range(ENTRIES_A_PAGE // 2):
            rig.subscribe(f"https://a.example/{number}", topic=topic, name=f"sub{number}")
    rig.publish(b"1", topic="bbb")
    published_ms = rig.now_ms

    pages = [rig.broker.topic_metrics(ACCOUNT, ("", ""), 1000)]
    while pages[-1][1] is not None:
        pages.append(rig.broker.topic_metrics(ACCOUNT, pages[-1][1], 1000))

    assert [[topic.topic for topic in page] for page, _ in pages] == [["aaa"], ["bbb"], ["ccc"]]
    bbb = pages[1][0][0]
    assert bbb.retained == bbb.totals.published == 1
    assert {(one.waiting, one.in_retry) for one in bbb.subscriptions} == {(1, 0)}
    oldest_ms = bbb.subscriptions[0].oldest_message_ms
    assert oldest_ms is not None
    assert published_ms - 100 <= oldest_ms <= published_ms
    assert [len(page) for page, _ in pages] == [1, 1, 1]
    assert rig.broker.count_objects(ACCOUNT) == rig.broker.count_objects(None) == (0, 3, 3 * (ENTRIES_A_PAGE // 2))


def test_totals_of_an_account_keep_those_of_deleted_queues():
    rig = Rig()
    rig.create()
    rig.create("other")
    rig.send(b"1", b"2")
    rig.send(b"3", name="other")
    assert counted(rig.broker).sent == 3

    rig.delete_queue()
    assert counted(rig.broker).sent == 3
    rig.create()
    rig.send(b"4")

    assert counted(rig.broker).sent == counted(rig.broker, ACCOUNT).sent == 4
    assert counted(rig.broker, "other").sent == 0
    assert counted(rig.crash().broker).sent == 4


def test_totals_of_an_account_never_sink_whatever_is_deleted_between_two_steps():
    rig = Rig()
    names = [f"q{number}" for number in range(2 * COUNTED_A_STEP + 1)]
    for name in names:
        rig.create(name)
        rig.send(b"1", name=name)
    highest = counted(rig.broker).sent
    assert highest == len(names)
    for deleted in (names[0], names[-1], names[COUNTED_A_STEP]):
        steps = rig.broker.add_up_totals(None)
        next(steps)
        rig.send(b"2", name=deleted)
        rig.delete_queue(deleted)
        found = end_of(steps).queues.sent
        assert highest <= found <= highest + 1
        highest = found

    assert counted(rig.broker).sent == len(names) + 3


def test_totals_of_topics_and_subscriptions_are_added_up_too():
    rig = Rig()
    rig.create_topic()
    rig.subscribe("reader")
    rig.subscribe("https://a.example/", name="web")
    rig.publish(b"12")
    rig.settle()
    rig.end_push(rig.pushes[0], "down")
    before = totals_of(rig.broker, ACCOUNT)
    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", "web", rig.now_ms))

    found = totals_of(rig.broker, ACCOUNT)

    assert asdict(found.topics) == asdict(before.topics) == {"published": 1, "published_bytes": 2}
    assert asdict(found.subscriptions) == {"delivered": 1, "failed": 1, "dropped": 0}


def test_a_call_examines_a_bounded_number_of_names_and_goes_on_behind_them():
    rig = Rig()
    for number in range(EXAMINED_A_PAGE + 1):
        rig.create(f"q{number:05d}")

    page, after = rig.broker.queue_metrics(ACCOUNT, ("", ""), 1000, lambda name: name == f"q{EXAMINED_A_PAGE:05d}")
    assert page == []
    assert after is not None
    page, end = rig.broker.queue_metrics(ACCOUNT, after, 1000, lambda name: name == f"q{EXAMINED_A_PAGE:05d}")

    assert ([queue.queue for queue in page], end) == ([f"q{EXAMINED_A_PAGE:05d}"], None)


def test_a_step_counts_a_bounded_number_of_names_and_a_deletion_counts_none(monkeypatch: pytest.MonkeyPatch):
    rig = Rig()
    for number in range(2 * COUNTED_A_STEP):
        rig.create(f"q{number:05d}")
    for topic in ("aaa", "bbb", "ccc"):
        rig.create_topic(topic)
        for number in range(300):
            rig.subscribe(f"https://a.example/{number}", topic=topic, name=f"sub{number}")
    counted = rig.broker.runtime.counted
    count_one, calls = counted.count, 0

    def count(number: int, account: str, totals: AnyTotals) -> None:
        nonlocal calls
        calls += 1
        count_one(number, account, totals)

    monkeypatch.setattr(counted, "count", count)
    steps: list[int] = []
    for _ in rig.broker.add_up_totals(None):
        steps.append(calls)
        calls = 0
        if len(steps) == 2:
            rig.delete_queue("q00000")
            assert calls == 0

    assert sum(steps) == 2 * COUNTED_A_STEP + 3 * 301
    assert max(steps) == 301, "a topic is never divided"


def test_the_totals_of_very_many_accounts_are_added_up_in_steps_too():
    rig = Rig()
    accounts = [f"account{number}" for number in range(2 * ACCOUNTS_A_STEP + 1)]
    for account in accounts:
        rig.done(rig.broker.create_queue(account, "q", {}, rig.now_ms))
        rig.done(alone.send(rig.broker, account, "q", [b"1"], None, None, 0, 0, rig.now_ms))
    rig.done(rig.broker.delete_queue(accounts[0], "q", rig.now_ms))

    steps = rig.broker.add_up_totals(None)
    next(steps)
    in_between = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            totals = end.value
            break
        # The totals of this queue move from the present to the deleted ones, before or after its account is added.
        rig.done(rig.broker.delete_queue(accounts[-1 - in_between], "q", rig.now_ms))
        in_between += 1

    assert in_between == 2
    assert totals.queues.sent == len(accounts)


def test_a_deleted_topic_leaves_its_totals_to_its_account_and_the_pages():
    rig = Rig()
    for topic in ("aaa", "bbb"):
        rig.create_topic(topic)
        rig.subscribe("https://a.example/", topic=topic, name="web")
        rig.publish(b"12", topic=topic)
    before = totals_of(rig.broker)
    assert [topic.topic for topic in rig.broker.topic_metrics(None, ("", ""), 10)[0]] == ["aaa", "bbb"]

    rig.done(rig.broker.unsubscribe(ACCOUNT, "aaa", "web", rig.now_ms))
    rig.done(rig.broker.delete_topic(ACCOUNT, "aaa"))

    assert totals_of(rig.broker).topics == before.topics
    assert before.topics.published == 2
    assert [topic.topic for topic in rig.broker.topic_metrics(None, ("", ""), 10)[0]] == ["bbb"]
    assert rig.broker.count_objects(None) == (0, 1, 1)
