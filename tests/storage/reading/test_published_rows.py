"""Published messages in rows: runs of the topic and of every queue with copies."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cmqd.storage.loop_side.row_builder import RowBuilder
from cmqd.storage.reading.decoded_row import KNOWN_QUEUES, Audiences, DecodedRow
from cmqd_segment import records
from cmqd_segment.published import (
    SetSizes,
    copies_of,
    first_of_set,
    message_ids_of,
    pack_set,
    set_positions,
    set_ranges,
    unpack_set,
    waiting_sets,
)
from cmqd_segment.records import (
    MessagesSent,
    StoredMessage,
)
from cmqd_segment.rows import (
    decode_queues,
    decode_records,
    encode_records,
    sent_runs,
    stored_messages,
)
from cmqd_types.messages import CopyOf, Labels
from support.storage.log_rig import NOW_MS


def test_a_copy_takes_few_bytes_in_a_row_of_its_own() -> None:
    """With 100 queues and names of 20 characters; the sparse index adds 16 bytes per 256 messages."""

    def row(queues: int) -> int:
        copies = [each for queue_id in range(queues) for each in (70_000 + queue_id, 1_000_000)]
        names = [f"subscription-{number:07}" for number in range(queues)]
        record = records.MessagesPublished(
            9, 1_000_000, 1 << 33, NOW_MS, [256], copies, 1 << 34, topic="t" * 20, subscriptions=names
        )
        builder = RowBuilder()
        builder.add([record], encode_records([record]), [b"x" * 256], 256, NOW_MS)
        closed = builder.close()
        return len(closed.queues) + len(closed.meta) + len(closed.data)

    assert (row(100) - row(0)) / 100 <= 63


def test_records_with_other_names_for_the_same_queues_keep_their_own() -> None:
    recs: list[records.AnyRecord] = [
        records.MessagesPublished(9, place, 1, NOW_MS, [0], [3, place, 4, place], 5, topic="t", subscriptions=names)
        for place, names in enumerate((["s", "u"], ["s", "u"], ["v", "w"], ["s", "u"]))
    ]

    row = DecodedRow(recs, b"", Audiences())

    sources = [run.source for run in row.runs_of(4)]
    assert [source.subscription for source in sources if source is not None] == ["u", "u", "w", "u"]
    assert sources[0] is not None
    assert sources[1] is not None
    assert sources[0].subscription is sources[1].subscription


def test_a_publish_stands_in_the_row_as_its_fields_in_order() -> None:
    record = records.MessagesPublished(
        9,
        5,
        300,
        1,
        [2],
        [17, 3, 18, 200],
        301,
        [19],
        labels=[["a"]],
        numbered=[7, 1, 300, 2],
        topic="t",
        subscriptions=["s", "u"],
        actors=[4],
    )

    encoded = encode_records([record])

    fields = "09 05 cd012c 01 9102 94110312ccc8 cd012d 9113 c0 9191a161 940701cd012c02 c0 a174 92a173a175"
    assert encoded == bytes.fromhex(f"91dc0013 36 {fields} 90 90 90 9104")
    assert decode_records(encoded) == [record]
    bare = bytes.fromhex("9196 36 09 05 cd012c 01 9102")
    assert decode_records(bare) == [records.MessagesPublished(9, 5, 300, 1, [2])]


def test_a_publish_of_format_1_is_read_as_a_publish_that_all_queues_take_whole() -> None:
    old = "919f 30 09 05 cd012c 01 920203 94110312ccc8 cd012d 9113 c0 9191a161 940701cd012c02 c0 a174 92a173a175"

    (record,) = decode_records(bytes.fromhex(old))

    assert isinstance(record, records.MessagesPublished)
    assert list(copies_of(record)) == [(17, 3, 2), (18, 200, 2)]
    assert list(waiting_sets(record)) == [(19, 0b11)]
    assert list(message_ids_of(record)) == [300, 301]
    runs = [(queue_id, run.first_position, run.first_message_id, run.sizes) for queue_id, run in sent_runs([record])]
    assert runs == [(9, 5, 300, [2, 3]), (17, 3, 301, [2, 3]), (18, 200, 303, [2, 3])]


def test_a_queue_has_a_run_for_each_stretch_of_the_messages_that_it_takes() -> None:
    record = records.MessagesPublished(
        *(9, 5, 300, NOW_MS, [1, 2, 3, 4], [17, 3, 18, 0], 400),
        headers=[None, {"k": "v"}, None, None],
        labels=["a", "b", "c", "d"],
        topic="t",
        subscriptions=["s", "u"],
        message_sets=[pack_set(0b1101), pack_set(0b0110)],
        taken=[0, 1],
        message_ids=[0, 2, 7, 2],
    )
    recs: list[records.AnyRecord] = [MessagesSent(17, 2, 1, NOW_MS, [1]), record]

    found = [
        (queue_id, message)
        for queue_id, run in sent_runs(recs)
        for message in stored_messages(run, b"-abbcccdddd")
        if queue_id != 17 or message.position != 2
    ]

    def copy(queue_id: int, position: int, copy_id: int, body: bytes, original: int, label: str) -> tuple[int, Any]:
        headers = {"k": "v"} if label == "b" else None
        name = "s" if queue_id == 17 else "u"
        copy_of = CopyOf("t", name, original, NOW_MS, label)
        return queue_id, StoredMessage(position, copy_id, NOW_MS, body, headers, copy_of=copy_of)

    assert found == [
        (9, StoredMessage(5, 300, NOW_MS, b"a", labels="a")),
        (9, StoredMessage(6, 301, NOW_MS, b"bb", {"k": "v"}, labels="b")),
        (9, StoredMessage(7, 309, NOW_MS, b"ccc", labels="c")),
        (9, StoredMessage(8, 310, NOW_MS, b"dddd", labels="d")),
        copy(17, 3, 400, b"a", 300, "a"),
        copy(17, 4, 401, b"ccc", 309, "c"),
        copy(17, 5, 402, b"dddd", 310, "d"),
        copy(18, 0, 403, b"bb", 301, "b"),
        copy(18, 1, 404, b"ccc", 309, "c"),
    ]
    row = DecodedRow(recs, b"-abbcccdddd", Audiences())
    for queue_id in (9, 17, 18):
        assert list(row.runs_of(queue_id)) == [run for _, run in sent_runs(recs, queue_id)]
    builder = RowBuilder()
    builder.add(recs, encode_records(recs), [b"-", b"a", b"bb", b"ccc", b"dddd"], 11, NOW_MS)
    assert decode_queues(builder.close().queues) == [(17, 2, 6, 9), (9, 5, 9, 10), (18, 0, 2, 5)]


@given(st.lists(st.integers(0, 2**20), max_size=40), st.integers(0, 2**40))
def test_sets_of_messages_are_packed_counted_and_added_up(sizes: list[int], chance: int) -> None:
    messages = chance & (1 << len(sizes)) - 1
    numbers = [number for number in range(len(sizes)) if messages >> number & 1]

    assert unpack_set(pack_set(messages)) == messages
    assert [number for start, stop in set_ranges(messages) for number in range(start, stop)] == numbers
    assert set_positions(messages, 7) == [7 + number for number in numbers]
    assert SetSizes(sizes).of(messages) == sum(sizes[number] for number in numbers)
    for count in range(len(numbers) + 2):
        assert set_positions(first_of_set(messages, count)) == numbers[:count]


def test_a_row_has_a_summary_for_the_topic_and_for_each_queue_with_copies() -> None:
    builder = RowBuilder()
    first = records.MessagesPublished(9, 5, 300, NOW_MS, [2, 3], [17, 3, 18, 200], 301, subscriptions=["s", "u"])
    second = records.MessagesPublished(9, 7, 306, NOW_MS, [4], [18, 202, 20, 0], 307, subscriptions=["s", "u"])
    published = [first, second]
    builder.add(published, encode_records(published), [b"aa", b"bbb", b"cccc"], 9, NOW_MS)
    later = [MessagesSent(17, 5, 400, NOW_MS, [1])]
    builder.add(later, encode_records(later), [b"d"], 1, NOW_MS)

    row = builder.close()

    assert (row.messages, row.data) == (4, b"aabbbccccd")
    assert decode_queues(row.queues) == [(9, 5, 8, 9), (17, 3, 6, 6), (18, 200, 203, 9), (20, 0, 1, 4)]


def test_runs_of_a_publish_are_those_of_its_topic_and_of_its_queues() -> None:
    record = records.MessagesPublished(
        9, 5, 300, NOW_MS, [2, 3], [17, 3, 18, 0], 302, labels=["k"], topic="t", subscriptions=["s", "u"]
    )
    recs = [MessagesSent(17, 1, 1, NOW_MS, [1, 1]), record, MessagesSent(17, 5, 400, NOW_MS, [1])]

    found = {(queue_id, run.first_position): stored_messages(run, b"xyaabbbz") for queue_id, run in sent_runs(recs)}

    assert list(found) == [(17, 1), (9, 5), (17, 3), (18, 0), (17, 5)]
    assert found[9, 5] == [
        StoredMessage(5, 300, NOW_MS, b"aa", labels="k"),
        StoredMessage(6, 301, NOW_MS, b"bbb", labels="k"),
    ]
    for queue_id, place, first, name in ((17, 3, 302, "s"), (18, 0, 304, "u")):
        assert found[queue_id, place] == [
            StoredMessage(place, first, NOW_MS, b"aa", copy_of=CopyOf("t", name, 300, NOW_MS, "k")),
            StoredMessage(place + 1, first + 1, NOW_MS, b"bbb", copy_of=CopyOf("t", name, 301, NOW_MS, "k")),
        ]
    assert found[17, 5] == [StoredMessage(5, 400, NOW_MS, b"z")]
    assert [queue_id for queue_id, _ in sent_runs(recs, 18)] == [18]


@given(st.integers(0, 2**32))
def test_a_decoded_row_has_the_runs_of_its_records(seed: int) -> None:
    chance = random.Random(seed)
    nexts = dict.fromkeys(range(1, 8), 0)
    recs: list[records.AnyRecord] = []

    def taken(queue_id: int, count: int) -> int:
        nexts[queue_id] += count
        return nexts[queue_id] - count

    for number in range(chance.randint(0, 8)):
        sizes = [chance.randint(0, 9) for _ in range(chance.randint(1, 3))]
        if chance.random() < 0.5:
            queue_id = chance.randint(3, 7)
            recs.append(MessagesSent(queue_id, taken(queue_id, len(sizes)), number, NOW_MS, sizes))
        else:
            topic_id = chance.randint(1, 2)
            first = taken(topic_id, len(sizes))
            queues = chance.choice([(3, 4, 5), (3, 5, 3), (6,), ()])
            copies = [each for queue_id in queues for each in (queue_id, taken(queue_id, len(sizes)))]
            names = chance.choice([["s", "u", "v"], ["a", "b", "c"]])[: len(queues)]
            labels: list[Labels] | None = chance.choice([None, ["k"], list("klm"[: len(sizes)])])
            recs.append(
                records.MessagesPublished(
                    *(topic_id, first, 1, NOW_MS, sizes, copies, number),
                    labels=labels,
                    topic=chance.choice("tx"),
                    subscriptions=names,
                )
            )

    row = DecodedRow(recs, b"", Audiences())

    for queue_id in nexts:
        assert list(row.runs_of(queue_id)) == [run for _, run in sent_runs(recs, queue_id)]


def test_audiences_are_shared_until_there_are_too_many() -> None:
    audiences = Audiences()
    first = audiences.of((1, 2))
    assert audiences.of((1, 2)) is first
    assert audiences.of((2, 1)) is not first

    for number in range(KNOWN_QUEUES // 100 + 1):
        audiences.of(tuple(range(number, number + 100)))

    assert audiences.of((1, 2)) is not first
    assert (first.of(2), first.of(3)) == ((1,), ())
