"""Publishes that are repeated, and publishes of several clients that are decided together."""

from itertools import product

import pytest

from cmqd.core.domain_errors import InvalidArgument, MessageTooLarge, SequenceTooOld
from cmqd.core.limits import Limits
from cmqd.core.outcome import Published
from cmqd_types.messages import Labels
from support.cases import each_case
from support.core.publishing import a_rig, check_recovery, published, request, together

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


def test_a_repeat_of_a_batch_with_unmatched_messages_gets_all_its_ids():
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


def test_a_request_that_repeats_only_messages_of_an_earlier_request_of_the_call_gets_their_ids():
    rig = a_rig()
    rig.subscribe("q")

    one, two = together(rig, request(b"1", b"2", dedup="ab"), request(b"2", b"1", dedup="ba"))

    assert isinstance(one, Published)
    assert isinstance(two, Published)
    assert list(two.message_ids) == list(one.message_ids)[::-1]
    assert two.matched == [None, None]
    assert rig.counts()["active"] == 2
    check_recovery(rig)


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


def test_the_dedup_id_of_an_unmatched_message_is_free():
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


@each_case(("one", "two", "three"), list(product(["", "a", "b", "ab"], repeat=3)))
def test_merged_or_not_every_publish_gets_its_own_answer(one: str, two: str, three: str):
    rig = a_rig()
    rig.subscribe("a", filter_tags=["a"])
    rig.subscribe("b", filter_tags=["b"])
    labels = [list(one), list(two), list(three)]

    replies = together(rig, *[request(b"%d" % number, labels=tags) for number, tags in enumerate(labels)])

    assert [reply.matched for reply in replies if isinstance(reply, Published)] == [[len(tags)] for tags in labels]
    for name in "ab":
        assert rig.bodies(name) == [b"%d" % number for number, tags in enumerate(labels) if name in tags]
