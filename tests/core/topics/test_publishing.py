"""Publishing: labels, matching subscriptions, a single row for all copies."""

import pytest

from cmqd.core.domain_errors import BatchTooLarge, InvalidArgument, MessageTooLarge
from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING, Published
from cmqd_segment.records import AnyRecord, MessagesReceived
from cmqd_types.messages import Headers
from support.core.builders import ACCOUNT, START_MS, counts
from support.core.publishing import URL, a_rig, check_recovery, published, request

# ---------------------------------------------------------------------- legal publishes


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
    with pytest.raises(InvalidArgument, match="2 entries for 3 bodies"):
        rig.publish(b"1", b"2", b"3", each=[["a"], ["b"]])


def test_bodies_and_headers_are_limited_as_those_of_a_send():
    rig = a_rig()
    rig.done(rig.broker.set_topic_attributes(ACCOUNT, "news", {"max_message_bytes": 1024}, rig.now_ms))
    rig.subscribe("q")

    with pytest.raises(InvalidArgument, match="body 0 is empty"):
        rig.publish(b"")
    with pytest.raises(MessageTooLarge):
        rig.publish(b"x" * 1025)
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


def test_an_unmatched_message_leaves_no_trace():
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


def test_ids_of_unmatched_messages_are_not_given_again():
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
    assert [record.sizes for record in published(rig)] == [[1, 1, 1, 1]]
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


def test_a_copy_wakes_a_waiting_receive():
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
