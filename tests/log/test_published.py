"""Publishes in every log: bodies stored once, found by the topic and by every queue with a copy."""

from collections.abc import Sequence

from cmqd_segment.published import pack_set
from cmqd_segment.records import MessagesPublished, MessagesSent, PublishedMessage, StoredMessage, pack_runs
from cmqd_types.messages import CopyOf, Labels
from support.storage.log_rig import NOW_MS, LogRig, OpenRig, Place, body

TOPIC = 9
QUEUES = (11, 12, 13)
FIRST_COPY = 5000


def names_of(queues: Sequence[int]) -> list[str]:
    return [f"for-{queue_id}" for queue_id in queues]


def published(
    first: int, count: int, queues: Sequence[int] = QUEUES, size: int = 40, labels: list[Labels] | None = None
) -> tuple[MessagesPublished, list[bytes]]:
    """Messages of the topic and their copies: same position in the first queue, ten higher in every further queue."""
    bodies = [body(TOPIC, position, size) for position in range(first, first + count)]
    copies = [number for place, queue_id in enumerate(queues) for number in (queue_id, first + 10 * place)]
    sizes = [len(each) for each in bodies]
    record = MessagesPublished(
        *(TOPIC, first, 100 + first, NOW_MS, sizes, copies, FIRST_COPY + 100 * first, [77]),
        labels=labels,
        topic="topic",
        subscriptions=names_of(queues),
    )
    return record, bodies


def publish(
    rig: LogRig,
    first: int,
    count: int,
    queues: Sequence[int] = QUEUES,
    size: int = 40,
    labels: list[Labels] | None = None,
) -> int:
    record, bodies = published(first, count, queues, size, labels)
    return rig.log.append([record], bodies, NOW_MS)


def copy(place: int, first: int, count: int, number: int, labels: Labels | None = None) -> StoredMessage:
    """Message ``number`` of ``published``, in the ``place``-th queue."""
    copy_id = FIRST_COPY + 100 * first + place * count + number
    copy_of = CopyOf("topic", f"for-{QUEUES[place]}", 100 + first + number, NOW_MS, labels)
    return StoredMessage(first + 10 * place + number, copy_id, NOW_MS, body(TOPIC, first + number), copy_of=copy_of)


async def test_a_page_of_the_third_queue_has_the_copies_of_it(open_rig: OpenRig) -> None:
    rig = await open_rig()
    publish(rig, 0, 3)
    publish(rig, 3, 4)
    await rig.commit()

    messages, missing = await rig.page(QUEUES[2], [20, 7])

    assert messages == [
        *(copy(2, 0, 3, number) for number in range(3)),
        *(copy(2, 3, 4, number) for number in range(4)),
    ]
    assert missing == []


async def test_a_page_may_begin_inside_a_publish_and_skip_some_of_it(open_rig: OpenRig) -> None:
    rig = await open_rig()
    publish(rig, 0, 6)
    publish(rig, 6, 6)
    await rig.commit()

    messages, missing = await rig.page(QUEUES[1], pack_runs([12, 13, 15, 17, 20, 21, 30]))

    assert messages == [
        *(copy(1, 0, 6, number) for number in (2, 3, 5)),
        *(copy(1, 6, 6, number) for number in (1, 4, 5)),
    ]
    assert missing == [30, 1]


async def test_labels_come_by_topic_and_in_what_a_copy_is_a_copy_of(open_rig: OpenRig) -> None:
    rig = await open_rig()
    publish(rig, 0, 2, labels=[["a", "b"]])
    publish(rig, 2, 2, labels=["x.y", "x.z"])
    publish(rig, 4, 2)
    await rig.commit()

    messages, _ = await rig.page(TOPIC, [0, 6])
    assert [message.labels for message in messages] == [["a", "b"], ["a", "b"], "x.y", "x.z", None, None]
    assert [message.message_id for message in messages] == list(range(100, 106))
    assert [message.body for message in messages] == [body(TOPIC, position) for position in range(6)]
    messages, _ = await rig.page(TOPIC, [1, 1, 1, 1])
    assert [(message.position, message.labels) for message in messages] == [(1, ["a", "b"]), (3, "x.z")]
    messages, _ = await rig.page(QUEUES[1], [10, 6])
    assert messages == [
        *(copy(1, 0, 2, number, ["a", "b"]) for number in range(2)),
        *(copy(1, 2, 2, number, label) for number, label in enumerate(("x.y", "x.z"))),
        *(copy(1, 4, 2, number) for number in range(2)),
    ]
    messages, _ = await rig.page(QUEUES[1], [11, 1, 1, 1])
    assert messages == [copy(1, 0, 2, 1, ["a", "b"]), copy(1, 2, 2, 1, "x.z")]


async def test_headers_go_to_all(open_rig: OpenRig) -> None:
    rig = await open_rig()
    headers = [{"k": "v"}, None]
    copies = [11, 0, 12, 0, 13, 0]
    names = names_of(QUEUES)
    record = MessagesPublished(
        TOPIC, 0, 1, NOW_MS, [1, 2], copies, 10, headers=headers, topic="topic", subscriptions=names
    )
    rig.log.append([record], [b"a", b"bb"], NOW_MS)
    await rig.commit()

    for queue_id in (TOPIC, 11, 12, 13):
        messages, _ = await rig.page(queue_id, [0, 2])
        assert [message.headers for message in messages] == headers
        assert [message.visible_ms for message in messages] == [0, 0]


async def test_a_queue_may_have_copies_from_several_topics_and_messages_of_its_own(open_rig: OpenRig) -> None:
    rig = await open_rig()
    for topic_id, topic, subscription, first in ((8, "news", "s-1", 0), (9, "news", "s-2", 1), (10, "other", "s-2", 3)):
        rig.log.append(
            [
                MessagesPublished(
                    topic_id, 0, 100 * topic_id, NOW_MS, [1], [11, first], 7, topic=topic, subscriptions=[subscription]
                )
            ],
            [b"x"],
            NOW_MS,
        )
        if first == 1:
            rig.send(11, 2, 1)
    await rig.commit()

    messages, _ = await rig.page(11, [0, 4])

    assert [message.copy_of for message in messages] == [
        CopyOf("news", "s-1", 800, NOW_MS),
        CopyOf("news", "s-2", 900, NOW_MS),
        None,
        CopyOf("other", "s-2", 1000, NOW_MS),
    ]


async def test_bodies_are_found_beside_those_that_were_sent(open_rig: OpenRig) -> None:
    rig = await open_rig()
    rig.send(QUEUES[0], 0, 2, 7)
    record = MessagesPublished(
        TOPIC, 0, 1, NOW_MS, [3, 0, 2], [QUEUES[0], 2, QUEUES[1], 0], 50, subscriptions=["s", "u"]
    )
    rig.log.append([record], [b"abc", b"", b"de"], NOW_MS)
    rig.send(QUEUES[0], 5, 1, 9)
    await rig.commit()

    messages, _ = await rig.page(QUEUES[0], [0, 6])
    assert [message.body for message in messages] == [
        *(body(QUEUES[0], position, 7) for position in (0, 1)),
        *(b"abc", b"", b"de"),
        body(QUEUES[0], 5, 9),
    ]
    assert [message.message_id for message in messages] == [1000, 1001, 50, 51, 52, 1005]
    assert [message.body for message in (await rig.page(QUEUES[1], [2, 1]))[0]] == [b"de"]


async def test_a_queue_that_is_named_twice_has_two_copies(open_rig: OpenRig) -> None:
    rig = await open_rig()
    record = MessagesPublished(TOPIC, 0, 1, NOW_MS, [1, 1], [11, 0, 12, 0, 11, 2], 50, subscriptions=["s", "u", "v"])
    rig.log.append([record], [b"a", b"b"], NOW_MS)
    await rig.commit()

    messages, missing = await rig.page(11, [0, 4])

    assert [(message.message_id, message.body) for message in messages] == [
        *((50, b"a"), (51, b"b")),
        *((54, b"a"), (55, b"b")),
    ]
    assert [message.copy_of and message.copy_of.subscription for message in messages] == ["s", "s", "v", "v"]
    assert missing == []


async def test_a_publish_without_queues_is_read_by_topic(open_rig: OpenRig) -> None:
    rig = await open_rig()
    publish(rig, 0, 2, ())
    await rig.commit()

    assert [message.position for message in (await rig.page(TOPIC, [0, 2]))[0]] == [0, 1]
    assert await rig.page(QUEUES[0], [0, 1]) == ([], [0, 1])


async def test_a_page_is_bounded_by_labels_too(open_rig: OpenRig) -> None:
    rig = await open_rig()
    label = "x" * 960
    each: list[Labels] = [label] * 5
    publish(rig, 0, 5, labels=[[label]])
    publish(rig, 5, 5, labels=each)
    await rig.commit()

    assert [message.position for message in (await rig.page(TOPIC, [0, 10], 7100))[0]] == list(range(7))
    assert [message.position for message in (await rig.page(QUEUES[0], [0, 10], 7380))[0]] == list(range(7))


async def test_a_publish_counts_its_bodies_once(open_rig: OpenRig) -> None:
    rig = await open_rig()
    publish(rig, 0, 100, size=256)
    rig.send(QUEUES[0], 100, 5)
    assert rig.log.pending.bytes < 2 * 100 * 256
    await rig.commit()
    await rig.log.seal_now()

    (segment,) = rig.log.closed_segments()

    assert segment.messages == 105
    assert sorted(segment.queues) == [(TOPIC, 0, 100), (11, 0, 105), (12, 10, 110), (13, 20, 120)]


async def test_copies_and_records_are_there_after_a_crash(open_rig: OpenRig, place: Place) -> None:
    rig = await open_rig()
    first, bodies = published(0, 3, labels=["a"])
    rig.log.append([first], bodies, NOW_MS)
    await rig.commit()
    await rig.log.seal_now()
    second, bodies = published(3, 3)
    rig.log.append([second], bodies, NOW_MS)
    await rig.commit()
    await place.crash(rig.log)

    again = await open_rig()

    assert again.recovered == [first, second]
    messages, missing = await again.page(QUEUES[2], [20, 6])
    assert [message.body for message in messages] == [body(TOPIC, position) for position in range(6)]
    assert missing == []
    messages, _ = await again.page(TOPIC, [0, 6])
    assert [message.labels for message in messages] == ["a"] * 3 + [None] * 3


async def test_a_segment_goes_with_what_was_published_in_it(open_rig: OpenRig) -> None:
    rig = await open_rig()
    publish(rig, 0, 3)
    await rig.commit()
    await rig.log.seal_now()
    publish(rig, 3, 3)
    await rig.commit()
    await rig.log.seal_now()
    await rig.checkpoint()
    await rig.checkpoint()
    first, _ = (segment.number for segment in rig.log.closed_segments())

    assert await rig.log.drop_segments([first], 0) == [first]

    for queue_id, start in ((TOPIC, 0), *zip(QUEUES, (0, 10, 20), strict=True)):
        messages, missing = await rig.page(queue_id, [start, 6])
        assert [message.position for message in messages] == [start + 3, start + 4, start + 5]
        assert missing == [start, 3]


async def test_many_queues_read_many_rows_in_any_order(open_rig: OpenRig) -> None:
    """A row is decoded once for all queues; rows arrive during the reads."""
    rig = await open_rig()
    queues = range(100, 140)
    for index in range(150):
        publish(rig, index, 1, queues)
        await rig.commit()
        if index % 10 == 9:
            place = index % len(queues)
            messages, missing = await rig.page(queues[place], [10 * place, index + 1])
            assert [message.body for message in messages] == [body(TOPIC, position) for position in range(index + 1)]
            assert missing == []
    await rig.log.seal_now()

    for place, queue_id in enumerate(queues):
        wanted = [10 * place + number for number in (0, 1, 63, 64, 65, 149)]
        messages, missing = await rig.page(queue_id, pack_runs(wanted))
        assert [message.position for message in messages] == wanted
        assert [message.message_id for message in messages] == [
            FIRST_COPY + 100 * (position - 10 * place) + place for position in wanted
        ]
        assert missing == []


async def test_late_copies_are_messages_that_were_sent(open_rig: OpenRig) -> None:
    rig = await open_rig()
    publish(rig, 0, 2)
    copies_of = [CopyOf("topic", "for-14", 100, NOW_MS - 5, ["a"]), CopyOf("topic", "for-14", 101, NOW_MS - 5, "k")]
    late = MessagesSent(14, 0, 900, NOW_MS, [40, 40], copies_of=[*copies_of])
    rig.log.append([late], [body(TOPIC, 0), body(TOPIC, 1)], NOW_MS)
    await rig.commit()

    messages, _ = await rig.page(14, [0, 2])

    assert [(message.message_id, message.body) for message in messages] == [
        (900, body(TOPIC, 0)),
        (901, body(TOPIC, 1)),
    ]
    assert [message.copy_of for message in messages] == copies_of
    assert [message.copy_of for message in (await rig.page(14, [1, 1]))[0]] == copies_of[1:]
    assert len((await rig.page(14, [0, 2], 80 + 40))[0]) == 1


# ---------------------------------------------------------------------- the subscriptions of a message


async def test_a_published_message_is_read_with_its_subscriptions(open_rig: OpenRig) -> None:
    rig = await open_rig()
    publish(rig, 0, 3, labels=[["a"]])
    publish(rig, 3, 4, queues=QUEUES[:2])
    await rig.commit()

    first = await rig.published(TOPIC, 1, 7)
    later = await rig.published(TOPIC, 4, 7)

    assert first == PublishedMessage(
        position=1,
        message_id=101,
        enqueue_ms=NOW_MS,
        size=len(body(TOPIC, 1)),
        labels=["a"],
        copies=[("for-11", 11, 5001), ("for-12", 12, 5004), ("for-13", 13, 5007)],
        waiting=[77],
    )
    assert later is not None
    assert (later.position, later.labels) == (4, None)
    assert later.copies == [("for-11", 11, 5301), ("for-12", 12, 5305)]


async def test_a_read_of_a_published_message_finds_the_first_of_its_range(open_rig: OpenRig) -> None:
    rig = await open_rig()
    for first in range(0, 12, 3):
        publish(rig, first, 3)
        await rig.commit()
    await rig.log.seal_now()
    publish(rig, 12, 3)
    await rig.commit()

    for position in range(15):
        message = await rig.published(TOPIC, position, 15)
        assert message is not None
        assert (message.position, message.message_id) == (position, 100 + position)
    assert await rig.published(TOPIC, 15, 1000) is None
    assert await rig.published(TOPIC, 3, 3) is None
    assert await rig.published(TOPIC + 1, 0, 15) is None


async def test_each_message_of_a_mixed_publish_has_its_own_subscriptions(open_rig: OpenRig) -> None:
    rig = await open_rig()
    record = MessagesPublished(
        *(TOPIC, 0, 100, NOW_MS, [2, 2, 2], [11, 0, 12, 0], 50, [77, 78]),
        labels=[["a"], [], ["b"]],
        topic="topic",
        subscriptions=["s", "u"],
        message_sets=[pack_set(0b101), pack_set(0b110), pack_set(0b010)],
        taken=[0, 1, 2, 1],
        message_ids=[0, 1, 1, 2],
    )
    rig.log.append([record], [b"m0", b"m1", b"m2"], NOW_MS)
    await rig.commit()

    found = [await rig.published(TOPIC, position, 3) for position in range(3)]

    assert [(one.message_id, one.labels, one.copies, one.waiting) for one in found if one is not None] == [
        (100, ["a"], [("s", 11, 50)], []),
        (102, [], [("u", 12, 52)], [77, 78]),
        (103, ["b"], [("s", 11, 51), ("u", 12, 53)], [78]),
    ]


async def test_a_read_of_a_published_message_waits_until_its_lsn_is_durable(open_rig: OpenRig) -> None:
    rig = await open_rig()
    lsn = publish(rig, 0, 1)
    read_id = rig.ask_published(TOPIC, 0, 1, lsn)
    await rig.commit()
    await rig.until(lambda: read_id in rig.published_messages)

    message = rig.published_messages[read_id]
    assert message is not None
    assert message.message_id == 100
