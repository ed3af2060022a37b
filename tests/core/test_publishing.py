"""Publishing: labels, who gets what, one row for all copies, repeats, and queues that do not take their copy."""

from itertools import product

import pytest

from cmqd.core.errors import BatchTooLarge, InvalidArgument, MessageTooLarge, SequenceTooOld
from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING, Published, PublishRequest
from cmqd_segment.records import (
    AnyRecord,
    DeliveriesFailed,
    Headers,
    Labels,
    MessagesPublished,
    MessagesReceived,
    StoredMessage,
)
from support.core_builders import ACCOUNT, START_MS, Rig, counts
from support.core_facts import facts

URL = "https://example.com/in"


def a_rig(filter_type: str = "tag", limits: Limits | None = None) -> Rig:
    """With one topic."""
    rig = Rig(limits)
    rig.create_topic("news", filter_type=filter_type)
    return rig


def request(*bodies: bytes, labels: Labels | None = None, number: int = 0, dedup: str | None = None) -> PublishRequest:
    """Of session 7, if it has a number."""
    dedup_ids: list[str | None] | None = None if dedup is None else list(dedup)
    listed = None if labels is None else [labels]
    return PublishRequest(list(bodies), None, listed, 7 if number else 0, number, dedup_ids)


def together(rig: Rig, *requests: PublishRequest) -> list[Published | Exception]:
    """Several clients' publishes, decided in one call."""
    return list(rig.done(rig.broker.publish(ACCOUNT, "news", list(requests), rig.now_ms)))


def published(rig: Rig) -> list[MessagesPublished]:
    return [record for _, record in rig.log.records() if isinstance(record, MessagesPublished)]


def check_recovery(rig: Rig) -> None:
    """After every row what is left works, after all of them it is what there was."""
    for rows in range(rig.log.last_lsn):
        again = rig.crash_after_row(rows)
        again.settle()
        again.broker.check_invariants()
    assert facts(rig.crash().broker) == facts(rig.broker)
    assert facts(rig.crash_after(rig.checkpoint()).broker) == facts(rig.broker)


# ---------------------------------------------------------------------- what may be published


TEN = [f"t{number}" for number in range(10)]


@pytest.mark.parametrize("tags", [[], ["a"], ["x" * 16], ["标" * 16], TEN, ["a"] * 11], ids=str)
def test_up_to_ten_different_tags_of_sixteen_characters_are_allowed(tags: list[str]):
    rig = a_rig()
    rig.subscribe(URL)

    assert rig.publish(b"1", labels=tags).matched == [1]


@pytest.mark.parametrize("tags", [[""], ["x" * 17], ["a,b"], ["a\n"], ["\x00"], ["\ud800"], [*TEN, "more"]], ids=ascii)
def test_tags_that_are_not_legal_are_refused(tags: list[str]):
    rig = a_rig()
    rig.subscribe("q")
    rows = rig.log.last_lsn

    with pytest.raises(InvalidArgument):
        rig.publish(b"1", labels=tags)

    assert rig.log.last_lsn == rows


@pytest.mark.parametrize("key", ["a", "a.b", "." * 15, "x" * 64, "键" * 21, "*.#"])
def test_a_routing_key_has_up_to_64_bytes_and_16_words(key: str):
    rig = a_rig("routing")
    rig.subscribe("q", binding_keys=["#"])

    assert rig.publish(b"1", labels=key).matched == [1]


@pytest.mark.parametrize("key", [None, "", "x" * 65, "键" * 22, "." * 16, "\ud800"], ids=ascii)
def test_a_routing_key_that_is_missing_or_not_legal_is_refused(key: str | None):
    rig = a_rig("routing")
    rig.subscribe("q", binding_keys=["#"])

    with pytest.raises(InvalidArgument):
        rig.publish(b"1", labels=key)


def test_the_field_of_the_other_kind_must_be_empty():
    tags, keys = a_rig(), a_rig("routing")

    with pytest.raises(InvalidArgument, match="routing_keys"):
        tags.publish(b"1", labels="a.b")
    with pytest.raises(InvalidArgument, match="tags"):
        keys.publish(b"1", labels=["a"])
    assert tags.publish(b"1", labels="").matched == [0]
    with pytest.raises(InvalidArgument, match="routing_keys"):
        keys.publish(b"1", labels=[])


def test_labels_are_one_for_all_or_one_for_each():
    rig = a_rig()
    rig.subscribe("q", filter_tags=["a"])

    assert rig.publish(b"1", b"2", labels=["a"]).matched == [1, 1]
    assert rig.publish(b"1", b"2", b"3", each=[["a"], [], ["b", "a"]]).matched == [1, 0, 1]
    with pytest.raises(InvalidArgument, match="one for each of the 3 bodies"):
        rig.publish(b"1", b"2", b"3", each=[["a"], ["b"]])


def test_bodies_and_headers_are_limited_as_those_of_a_send():
    rig = a_rig()
    rig.done(rig.broker.set_topic_attributes(ACCOUNT, "news", {"max_message_bytes": 1024}, rig.now_ms))
    rig.subscribe("q")

    for bodies in ([b""], [b"x" * 1025]):
        with pytest.raises(MessageTooLarge):
            rig.publish(*bodies)
    with pytest.raises(InvalidArgument):
        rig.publish()
    with pytest.raises(InvalidArgument):
        rig.publish(*[b"x"] * 257)
    many: Headers = {f"h{number}": "" for number in range(rig.limits.max_headers + 1)}
    with pytest.raises(InvalidArgument):
        rig.publish(b"1", headers=[many])
    with pytest.raises(InvalidArgument):
        rig.publish(b"1", headers=[{}, {}])
    assert rig.publish(*[b"x" * 1024] * 256).matched == [1] * 256


def test_a_batch_is_limited_as_a_whole():
    rig = a_rig(limits=Limits(max_batch_bytes=100))
    rig.subscribe("q")

    with pytest.raises(BatchTooLarge):
        rig.publish(b"x" * 60, b"x" * 60)
    assert rig.publish(b"x" * 110).matched == [1]


# ---------------------------------------------------------------------- ids, copies, rows


def test_the_reply_has_the_ids_and_how_many_match():
    rig = a_rig()
    rig.subscribe("q", filter_tags=["a", "b"])
    rig.subscribe("r", filter_tags=["b"])
    rig.subscribe(URL)

    reply = rig.publish(b"1", b"2", b"3", each=[["a"], ["a", "b"], []])

    first = reply.message_ids[0]
    assert list(reply.message_ids) == [first, first + 1, first + 2]
    assert reply.matched == [2, 3, 1]
    check_recovery(rig)


def test_a_copy_has_an_id_of_its_own_and_the_headers_and_time_of_its_publish():
    rig = a_rig()
    rig.subscribe("q")
    rig.subscribe("r")
    rig.now_ms += 5000

    reply = rig.publish(b"1", b"2", headers=[{"k": "v"}, None])

    copies = [*rig.receive("q"), *rig.receive("r")]
    assert [copy.body for copy in copies] == [b"1", b"2"] * 2
    assert [copy.headers or None for copy in copies] == [{"k": "v"}, None] * 2
    assert {copy.enqueue_ms for copy in copies} == {START_MS + 5000}
    assert [copy.origin for copy in copies] == [None] * 4
    assert len({*reply.message_ids, *(copy.message_id for copy in copies)}) == 6


def test_copies_read_from_the_log_are_those_that_were_in_memory():
    rig = a_rig()
    rig.subscribe("q")
    rig.subscribe("r")
    rig.publish(b"1", b"2", headers=[{"k": "v"}, None])
    again = rig.crash()

    for name in ("q", "r"):
        from_log, from_memory = again.receive(name), rig.receive(name)
        assert [(one.message_id, one.body, one.headers) for one in from_log] == [
            (one.message_id, one.body, one.headers) for one in from_memory
        ]


def test_what_matches_nobody_leaves_no_trace():
    rig = a_rig()
    rig.subscribe("q", filter_tags=["a"])
    rig.publish(b"0", labels=["a"])
    rows = rig.log.last_lsn

    outcome = rig.broker.publish(ACCOUNT, "news", [request(b"1", b"2")], rig.now_ms)

    assert list(outcome.records) == []
    assert list(outcome.bodies) == []
    (reply,) = rig.done(outcome)
    assert isinstance(reply, Published)
    assert reply.matched == [0, 0]
    assert rig.log.last_lsn == rows
    assert rig.broker.topic_info(ACCOUNT, "news").counts["retained"] == 0


def test_ids_of_what_matches_nobody_are_not_given_again():
    rig = a_rig()
    rig.subscribe("q", filter_tags=["a"])

    nobody = rig.publish(b"1").message_ids
    later = rig.publish(b"2", labels=["a"]).message_ids
    restarted = rig.crash().publish(b"3").message_ids

    assert nobody[0] < later[0] < restarted[0]


def test_a_publish_and_all_its_copies_are_one_row_with_one_body_each():
    rig = a_rig()
    for number in range(5):
        rig.subscribe(f"q{number}")
    rig.subscribe(URL)
    rows = rig.log.last_lsn

    outcome = rig.broker.publish(ACCOUNT, "news", [request(b"one", b"two")], rig.now_ms)
    rig.done(outcome)

    assert list(outcome.bodies) == [b"one", b"two"]
    assert rig.log.last_lsn == rows + 1
    (record,) = published(rig)
    assert record.sizes == [3, 3]
    assert len(record.copies) == 10
    assert len(record.waiting) == 1
    check_recovery(rig)


def test_a_batch_whose_messages_go_different_ways_is_one_row():
    rig = a_rig()
    rig.subscribe("a", filter_tags=["a"])
    rig.subscribe("b", filter_tags=["b"])
    rows = rig.log.last_lsn

    rig.publish(b"1", b"2", b"3", b"4", b"5", each=[["a"], ["a"], ["b"], [], ["a"]])

    assert rig.log.last_lsn == rows + 1
    assert [record.sizes for record in published(rig)] == [[1, 1], [1], [1]]
    assert rig.bodies("a") == [b"1", b"2", b"5"]
    assert rig.bodies("b") == [b"3"]


def test_two_subscriptions_to_one_queue_make_two_copies():
    rig = a_rig()
    rig.subscribe("q", name="one")
    rig.subscribe("q", name="two", filter_tags=["a"])

    assert rig.publish(b"1", b"2", labels=["a"]).matched == [2, 2]
    assert rig.publish(b"3").matched == [1]

    copies = rig.receive("q")
    assert sorted(copy.body for copy in copies) == [b"1", b"1", b"2", b"2", b"3"]
    assert len({copy.message_id for copy in copies}) == 5
    again = rig.crash()
    assert [copy.body for copy in again.receive("q")] == []
    check_recovery(rig)


def test_two_copies_for_one_queue_come_from_the_log_too():
    rig = a_rig()
    rig.subscribe("q", name="one")
    rig.subscribe("q", name="two")
    rig.publish(b"1", b"2")

    copies = rig.crash().receive("q")

    assert [copy.body for copy in copies] == [b"1", b"2", b"1", b"2"]
    assert [copy.message_id for copy in copies] == [copy.message_id for copy in rig.receive("q")]


def test_a_copy_wakes_who_waits_for_it():
    rig = a_rig()
    rig.subscribe("q")
    rig.subscribe("r")
    waiters: dict[str, int] = {}
    for name in ("q", "r"):
        waiters[name], reply = rig.wait(name, most=1, wait_ms=30_000)
        assert reply is WAITING
    rows = rig.log.last_lsn

    rig.publish(b"1", b"2")

    assert {name: [one.body for one in rig.replies(waiter)[0]] for name, waiter in waiters.items()} == {
        "q": [b"1"],
        "r": [b"1"],
    }
    assert rig.log.last_lsn == rows + 1, "published and received in one row"
    kinds: list[type[AnyRecord]] = [type(record) for record in rig.log.rows[-1]]
    assert kinds.count(MessagesReceived) == 2
    check_recovery(rig)


def test_copies_take_no_delay_whatever_their_queue_s_default():
    rig = a_rig()
    rig.create("late", delay_ms=5000)
    rig.subscribe("late")

    rig.publish(b"1", b"2")

    assert rig.counts("late") == counts(active=2)
    check_recovery(rig)


def test_late_copies_take_no_delay_either():
    rig = a_rig()
    rig.create("late", delay_ms=5000)
    rig.subscribe("late")
    rig.force("late", max_backlog=1)
    rig.publish(b"1")
    rig.publish(b"2")

    rig.force("late", max_backlog=2)
    rig.settle(1000)

    assert rig.counts("late") == counts(active=2)
    check_recovery(rig)


def test_a_copy_becomes_a_dead_letter_when_its_own_queue_says_so():
    rig = a_rig()
    rig.create("dead")
    rig.create("moody", dead_letter_queue="dead", dead_letter_max_receives=1)
    rig.create("slow", dead_letter_queue="dead", dead_letter_after_ms=300_000)
    rig.subscribe("moody")
    rig.subscribe("slow")
    rig.publish(b"1")

    rig.receive("moody", visibility_timeout_ms=1000)
    rig.settle(2000)
    assert rig.counts("dead")["active"] == 1

    rig.settle(299_000)
    assert rig.counts("dead")["active"] == 2
    origins = [copy.origin for copy in rig.receive("dead")]
    assert [(one.queue, one.reason) for one in origins if one] == [("moody", "receives"), ("slow", "age")]


def test_a_copy_lives_as_long_as_its_queue_says():
    rig = a_rig()
    rig.create("short", retention_ms=60_000)
    rig.subscribe("short")
    rig.publish(b"1")

    rig.settle(61_000)

    assert rig.counts("short") == counts()


def test_a_copy_that_was_consumed_can_be_rewound():
    rig = a_rig()
    rig.create("q", rewind_ms=60_000)
    rig.subscribe("q")
    rig.publish(b"1")
    rig.delete(*rig.handles())

    rig.rewind(rig.now_ms)

    assert rig.bodies() == [b"1"]


def test_times_in_a_queue_never_decrease_when_the_clock_is_set_back():
    rig = a_rig()
    rig.subscribe("q")
    rig.subscribe(URL)
    rig.send(b"1")
    rig.now_ms -= 60_000

    rig.publish(b"2")
    rig.publish(b"3")

    assert [message.enqueue_ms for message in rig.receive()] == [START_MS] * 3
    check_recovery(rig)


# ---------------------------------------------------------------------- repeats


def test_a_numbered_publish_that_is_repeated_gets_its_ids_again():
    rig = a_rig()
    rig.subscribe("q")

    first = rig.publish(b"1", b"2", session=7, sequence=1)
    rows = rig.log.last_lsn
    again = rig.publish(b"1", b"2", session=7, sequence=1)

    assert list(again.message_ids) == list(first.message_ids)
    assert again.matched == [None, None], "that is not remembered"
    assert rig.log.last_lsn == rows
    for restarted in (rig.crash(), rig.crash_after(rig.checkpoint())):
        assert list(restarted.publish(b"1", b"2", session=7, sequence=1).message_ids) == list(first.message_ids)


def test_a_repeat_of_a_batch_of_which_some_matched_nobody_gets_all_its_ids():
    rig = a_rig()
    rig.subscribe("q", filter_tags=["a"])
    each: list[Labels] = [[], ["a"], [], ["a"]]

    first = rig.publish(*[b"x"] * 4, each=each, session=7, sequence=1)

    assert list(rig.publish(*[b"x"] * 4, each=each, session=7, sequence=1).message_ids) == list(first.message_ids)
    again = rig.crash()
    assert list(again.publish(*[b"x"] * 4, each=each, session=7, sequence=1).message_ids) == list(first.message_ids)
    assert rig.counts()["active"] == 2


def test_sends_and_publishes_of_a_session_are_numbered_together():
    rig = a_rig()
    rig.subscribe("q")
    sent = rig.send(b"1", session=7, sequence=1)

    assert list(rig.publish(b"1", session=7, sequence=1).message_ids) == sent
    rig.publish(b"2", session=7, sequence=2)
    for sequence in range(3, rig.limits.session_answers + 3):
        rig.send(b"x", session=7, sequence=sequence)
    with pytest.raises(SequenceTooOld):
        rig.publish(b"2", session=7, sequence=2)


def test_a_repeat_in_the_same_call_is_stored_once():
    rig = a_rig()
    rig.subscribe("q")

    first, again = together(rig, request(b"1", b"2", number=1), request(b"1", b"2", number=1))

    assert isinstance(first, Published)
    assert isinstance(again, Published)
    assert list(first.message_ids) == list(again.message_ids)
    assert (first.matched, again.matched) == ([1, 1], [None, None])
    assert rig.counts()["active"] == 2


def test_a_dedup_id_is_published_once():
    rig = a_rig()
    rig.subscribe("q")

    first = rig.publish(b"1", b"2", dedup_ids=["a", None])
    second = rig.publish(b"3", b"4", b"5", dedup_ids=["b", "a", None])

    assert second.matched == [1, None, 1]
    assert second.message_ids[1] == first.message_ids[0]
    assert rig.bodies() == [b"1", b"2", b"3", b"5"]
    for restarted in (rig.crash(), rig.crash_after(rig.checkpoint())):
        (repeated,) = restarted.publish(b"1", dedup_ids=["a"]).message_ids
        assert repeated == first.message_ids[0]
    check_recovery(rig)


def test_a_dedup_id_twice_in_a_batch_is_published_once():
    rig = a_rig()
    rig.subscribe("q")

    reply = rig.publish(b"1", b"2", b"3", dedup_ids=["a", "a", "b"])

    first = reply.message_ids[0]
    assert list(reply.message_ids) == [first, first, first + 1]
    assert reply.matched == [1, None, 1]
    assert rig.bodies() == [b"1", b"3"]


def test_a_dedup_id_in_two_requests_of_a_call_is_published_once():
    rig = a_rig()
    rig.subscribe("q")

    one, two = together(rig, request(b"1", b"2", dedup="ab"), request(b"3", b"4", b"5", b"6", dedup="cbdd"))

    assert isinstance(one, Published)
    assert isinstance(two, Published)
    assert one.matched == [1, 1]
    assert two.matched == [1, None, 1, None]
    assert two.message_ids[1] == one.message_ids[1]
    assert two.message_ids[2] == two.message_ids[3]
    assert rig.bodies() == [b"1", b"2", b"3", b"5"]
    check_recovery(rig)


def test_a_batch_of_repeats_only_stores_nothing():
    rig = a_rig()
    rig.subscribe("q")
    first = rig.publish(b"1", dedup_ids=["a"])
    rows = rig.log.last_lsn

    again = rig.publish(b"1", b"1", dedup_ids=["a", "a"])

    assert list(again.message_ids) == [*first.message_ids, *first.message_ids]
    assert again.matched == [None, None]
    assert rig.log.last_lsn == rows


def test_a_dedup_id_may_be_used_again_after_its_time_and_in_another_topic():
    rig = a_rig()
    rig.create_topic("topic-u")
    rig.subscribe("q")
    rig.subscribe("q", topic="topic-u")
    rig.publish(b"1", dedup_ids=["a"])

    assert rig.publish(b"2", topic="topic-u", dedup_ids=["a"]).matched == [1]
    rig.settle(300_000)
    assert rig.publish(b"3", dedup_ids=["a"]).matched == [1]
    rig.settle(700_000)
    assert not any(topic.has_dedup_ids for topic in rig.broker.topics.values())


def test_the_dedup_id_of_what_matched_nobody_is_free():
    rig = a_rig()
    rig.subscribe("q", filter_tags=["a"])

    assert rig.publish(b"1", dedup_ids=["x"]).matched == [0]
    assert rig.publish(b"1", labels=["a"], dedup_ids=["x"]).matched == [1]


# ---------------------------------------------------------------------- several requests


def test_one_refused_request_hinders_none_of_the_others():
    rig = a_rig()
    rig.subscribe("q")

    replies = together(rig, request(b"1"), request(b"x" * 70_000), request(b"2", labels=["a,b"]), request(b"3"))

    assert [type(reply) for reply in replies] == [Published, MessageTooLarge, InvalidArgument, Published]
    assert rig.bodies() == [b"1", b"3"]


def test_requests_with_the_same_audience_are_one_record_in_their_order():
    rig = a_rig()
    rig.subscribe("q")
    rig.subscribe("r")

    replies = together(rig, *[request(b"%d" % number, number=number) for number in range(1, 5)])

    (record,) = published(rig)
    assert len(record.sizes) == 4
    ids = [reply.message_ids[0] for reply in replies if isinstance(reply, Published)]
    assert ids == sorted(ids)
    assert rig.bodies("q") == rig.bodies("r") == [b"1", b"2", b"3", b"4"]
    again = rig.crash()
    for number, message_id in enumerate(ids, 1):
        assert list(again.publish(b"?", session=7, sequence=number).message_ids) == [message_id]


def test_order_is_kept_whatever_goes_between():
    rig = a_rig()
    rig.subscribe("all")
    rig.subscribe("a", filter_tags=["a"])
    rig.subscribe("b", filter_tags=["b"])

    together(rig, *[request(b"%d" % number, labels=[tag]) for number, tag in enumerate("aabxaba")])

    assert rig.bodies("all") == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]
    assert rig.bodies("a") == [b"0", b"1", b"4", b"6"]
    assert rig.bodies("b") == [b"2", b"5"]
    check_recovery(rig)


def test_one_record_has_no_more_than_a_batch():
    rig = a_rig(limits=Limits(max_batch=4, max_batch_bytes=10))
    rig.subscribe("q")

    together(rig, *[request(b"%d" % number) for number in range(6)], request(b"x" * 9), request(b"y" * 2))

    assert [record.sizes for record in published(rig)] == [[1, 1, 1, 1], [1, 1], [9], [2]]
    assert [body for _ in range(6) for body in rig.bodies(most=1)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize(("one", "two", "three"), list(product(["", "a", "b", "ab"], repeat=3)))
def test_merged_or_not_everybody_gets_his_own(one: str, two: str, three: str):
    rig = a_rig()
    rig.subscribe("a", filter_tags=["a"])
    rig.subscribe("b", filter_tags=["b"])
    labels = [list(one), list(two), list(three)]

    replies = together(rig, *[request(b"%d" % number, labels=tags) for number, tags in enumerate(labels)])

    assert [reply.matched for reply in replies if isinstance(reply, Published)] == [[len(tags)] for tags in labels]
    for name in "ab":
        assert rig.bodies(name) == [b"%d" % number for number, tags in enumerate(labels) if name in tags]


# ---------------------------------------------------------------------- queues that refuse


def waiting(rig: Rig, name: str) -> tuple[int, int]:
    """How many messages wait for a subscription, and are in retry."""
    found = rig.broker.subscription_info(ACCOUNT, "news", name, rig.now_ms).counts
    return found["waiting"], found["in_retry"]


def test_a_full_queue_gets_its_copy_when_there_is_room():
    rig = a_rig()
    rig.subscribe("q")
    rig.subscribe("r")
    rig.force("q", max_backlog=2)
    rig.send(b"x", name="q")

    assert rig.publish(b"1", b"2", b"3").matched == [2, 2, 2]

    assert rig.bodies("r") == [b"1", b"2", b"3"]
    assert waiting(rig, "to-q") == (0, 2)
    assert rig.counts("q")["active"] == 2
    error = rig.broker.subscription_info(ACCOUNT, "news", "to-q").facts["last_error"]
    assert error == "queue 'q' is full: it holds 2 messages"
    check_recovery(rig)
    rig.delete(*rig.handles("q"), name="q")
    rig.settle(1000)
    assert rig.bodies("q") == [b"2", b"3"]
    assert waiting(rig, "to-q") == (0, 0)
    assert rig.broker.topic_info(ACCOUNT, "news").counts["retained"] == 0
    check_recovery(rig)


def test_a_message_too_large_for_a_queue_is_retried_until_it_takes_it():
    rig = a_rig()
    rig.create("small", max_message_bytes=1024)
    rig.subscribe("small")

    rig.publish(b"1", b"x" * 2000, b"3")

    assert rig.bodies("small") == [b"1", b"3"]
    assert waiting(rig, "small") == (0, 1)
    rig.set("small", max_message_bytes=4096)
    rig.settle(1000)
    assert rig.bodies("small") == [b"x" * 2000]


def test_a_queue_that_is_gone_gets_what_waited_when_it_is_back():
    rig = a_rig()
    rig.subscribe("q")
    rig.delete_queue("q")

    assert rig.publish(b"1", b"2").matched == [1, 1]

    assert waiting(rig, "to-q") == (2, 0)
    rig.settle()
    assert waiting(rig, "to-q") == (0, 2)
    assert rig.broker.subscription_info(ACCOUNT, "news", "to-q").facts["last_error"] == "queue 'q' does not exist"
    check_recovery(rig)
    rig.create("q")
    rig.settle(1000)
    assert rig.bodies("q") == [b"1", b"2"]


def test_a_late_copy_has_the_time_at_which_it_came():
    rig = a_rig()
    rig.subscribe("q")
    rig.delete_queue("q")
    rig.publish(b"1", headers=[{"k": "v"}])
    rig.create("q")

    rig.settle(1000)

    (copy,) = rig.receive("q")
    assert (copy.enqueue_ms, copy.headers, copy.origin) == (START_MS + 1000, {"k": "v"}, None)


def test_under_backoff_later_messages_wait_behind_one_that_is_refused():
    rig = a_rig()
    rig.create("small", max_message_bytes=1024)
    rig.subscribe("small", strategy="backoff")

    rig.publish(b"1", b"x" * 2000, b"3")
    rig.publish(b"4")

    assert rig.bodies("small") == [b"1"]
    assert waiting(rig, "small") == (2, 1)
    check_recovery(rig)
    rig.set("small", max_message_bytes=4096)
    rig.settle(20_000)
    assert rig.bodies("small") == [b"x" * 2000, b"3", b"4"]
    assert waiting(rig, "small") == (0, 0)
    assert rig.publish(b"5").matched == [1]
    assert rig.bodies("small") == [b"5"]


def test_under_backoff_order_holds_for_publishes_that_are_decided_together():
    rig = a_rig()
    rig.create("small", max_message_bytes=1024)
    rig.subscribe("small", strategy="backoff")
    rig.subscribe("other", strategy="backoff")

    together(rig, request(b"1"), request(b"x" * 2000), request(b"3"), request(b"4", labels=["a"]))

    assert rig.bodies("other") == [b"1", b"x" * 2000, b"3", b"4"]
    assert rig.bodies("small") == [b"1"]
    rig.set("small", max_message_bytes=4096)
    rig.settle(20_000)
    assert rig.bodies("small") == [b"x" * 2000, b"3", b"4"]


def test_after_three_retries_under_backoff_the_next_one_goes_out():
    rig = a_rig()
    rig.create("small", max_message_bytes=1024)
    rig.subscribe("small", strategy="backoff")
    rig.publish(b"x" * 2000, b"2")

    for _ in range(3):
        assert rig.counts("small")["active"] == 0
        rig.settle(20_000)

    assert rig.bodies("small") == [b"2"]
    found = rig.broker.subscription_info(ACCOUNT, "news", "small")
    assert found.counts == {"waiting": 0, "in_retry": 0, "dropped": 1}
    assert found.facts["last_error"] == "the message has 2000 bytes; queue 'small' takes up to 1024"
    assert len([record for _, record in rig.log.records() if isinstance(record, DeliveriesFailed)]) == 4
    check_recovery(rig)


def test_two_subscriptions_to_a_queue_with_room_for_one_more():
    rig = a_rig()
    rig.subscribe("q", name="one")
    rig.subscribe("q", name="two")
    rig.force("q", max_backlog=1)

    rig.publish(b"1")

    assert rig.counts("q")["active"] == 1
    assert [waiting(rig, "one"), waiting(rig, "two")] == [(0, 0), (0, 1)]
    rig.delete(*rig.handles())
    rig.settle(1000)
    assert rig.bodies("q") == [b"1"]
    check_recovery(rig)


def test_a_subscriber_that_failed_twice_is_blocked_until_a_copy_arrives():
    rig = a_rig()
    rig.subscribe("q")
    rig.delete_queue("q")
    rig.publish(b"1")
    rig.settle()
    rig.settle(1000)
    assert rig.broker.subscription_info(ACCOUNT, "news", "to-q").facts["blocked"]
    rig.create("q")

    rig.publish(b"2")
    assert rig.counts("q")["active"] == 0, "no new one is started"
    rig.settle(2000)

    assert rig.bodies("q") == [b"1", b"2"]
    assert rig.publish(b"3").matched == [1]
    assert rig.bodies("q") == [b"3"]


def test_while_a_subscription_to_a_queue_is_paused_its_messages_wait():
    rig = a_rig()
    rig.subscribe("q", paused=True)

    assert rig.publish(b"1", b"2").matched == [1, 1]
    rig.settle(60_000)
    assert rig.counts("q")["active"] == 0
    check_recovery(rig)
    rig.done(rig.broker.set_subscription_attributes(ACCOUNT, "news", "to-q", {"paused": False}, rig.now_ms))
    rig.settle()

    assert rig.bodies("q") == [b"1", b"2"]
    assert rig.publish(b"3").matched == [1]
    assert rig.bodies("q") == [b"3"]


def test_copies_wait_while_the_disk_is_nearly_full():
    rig = a_rig()
    rig.subscribe("q")
    rig.delete_queue("q")
    rig.publish(b"1")
    rig.settle()
    rig.create("q")
    rig.broker.moves_held_up = "the disk is nearly full"

    rig.settle(10_000)
    assert rig.counts("q")["active"] == 0
    rig.broker.moves_held_up = ""
    rig.settle(1000)

    assert rig.bodies("q") == [b"1"]


def test_bodies_of_a_topic_are_read_with_their_labels():
    rig = a_rig()
    topic = rig.broker.topic(ACCOUNT, "news")
    rig.subscribe(URL)
    rig.publish(b"1", b"2", each=[["a"], []], headers=[None, {"k": "v"}])

    stored: list[StoredMessage] = [rig.log.stored[topic.topic_id, position] for position in (0, 1)]

    assert [one.labels for one in stored] == [["a"], []]
    assert [one.headers for one in stored] == [None, {"k": "v"}]
