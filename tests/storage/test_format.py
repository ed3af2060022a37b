"""The format on disk: rows, the sparse index, manifest, checkpoint files, and the reader for outsiders."""

import random
import sqlite3
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmqd.storage.decoded_row import KNOWN_QUEUES, Audiences, DecodedRow
from cmqd.storage.row_builder import RowBuilder
from cmqd.storage.summaries import Summaries, Summary, summary_of
from cmqd_segment import records
from cmqd_segment.checkpoint import CheckpointEnd, CheckpointHeader
from cmqd_segment.checkpoint_file import MAGIC, CheckpointError, encode_part, frame, read_payloads, verify_checkpoint
from cmqd_segment.manifest import (
    LossEntry,
    Manifest,
    ManifestError,
    SegmentEntry,
    SegmentState,
    merge_ranges,
    read_manifest,
    write_manifest,
)
from cmqd_segment.newer import NewerFormatError
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
    QueueAttributes,
    StoredMessage,
    SubscriptionAttributes,
    TopicAttributes,
)
from cmqd_segment.rows import (
    decode_queues,
    decode_records,
    encode_queues,
    encode_records,
    join_records,
    meta_checksum,
    sent_runs,
    stored_messages,
)
from cmqd_segment.scan import RowError, scan_segment, verify_folder
from cmqd_segment.schema import SegmentFormatError, create_tables, open_read_only
from cmqd_segment.sparse import (
    BYTES_PER_ENTRY,
    MESSAGES_PER_ENTRY,
    LsnRange,
    SparseIndex,
    pack_u64,
    sparse_queue,
    unpack_u64,
)
from cmqd_types.messages import CopyOf, Labels, Origin
from support.log_rig import NOW_MS, OpenProcess, body, deleted, sent

# Rows


def one_of_each() -> list[records.AnyRecord]:
    return [
        records.NumbersReserved(1, 2, 3),
        records.QueueCreated(1, "account", "name", QueueAttributes(), NOW_MS),
        records.QueueAttributesSet(1, QueueAttributes(delay_ms=5), NOW_MS, 1 << 62),
        records.QueueDeleted(1),
        records.QueueCleared(1, 7),
        records.MessagesExpired(1, 7),
        records.MessagesSent(1, 0, 9, NOW_MS, [3, 4], [None, {"a": "b"}], [1, 2], 5, 6),
        records.MessagesSent(1, 0, 9, NOW_MS, [3, 4, 5], numbered=[5, 6, 9, 1, 7, 8, 11, 1]),
        records.QueueRewound(1, 5, 7, NOW_MS, 4),
        records.DeadLettersFrom(1, -1),
        records.RedriveStarted(1, "target", 100, 7, NOW_MS),
        records.RedriveEnded(1, "done", NOW_MS, {"gone": 2}),
        records.ClockOffset(-(365 * 86_400_000), NOW_MS, True),
        records.MessagesSent(1, 0, 9, NOW_MS, [3, 4], origins=[Origin("q" * 64, 1 << 62, NOW_MS, 3, "receives"), None]),
        records.MessagesSent(1, 0, 9, NOW_MS, [3, 4], visible_ms=NOW_MS, half=True, dedup_ids=["i" * 64, None]),
        records.MessagesSent(
            *(1, 0, 9, NOW_MS, [3, 4]),
            copies_of=[CopyOf("t" * 64, "s" * 64, 1 << 62, NOW_MS, ["\u20ac" * 16] * 10), None],
        ),
        records.MessagesReceived(1, [0, 2], 1, NOW_MS, NOW_MS + 1),
        records.MessagesDeleted(1, [0, 2], [1, 2], NOW_MS),
        records.LeasesEnded(1, [1, 2]),
        records.MessagesReleased(1, [1, 2], True),
        records.VisibilityChanged(1, [1, 2], NOW_MS),
        records.MessagesActivated(1, [0, 2]),
        records.DelaysScheduled(1, [0, 2], [5, 6]),
        records.MessagesMoved(1, [0, 2], True),
        records.TransactionsEnded(1, [0, 2], True, NOW_MS),
        records.TransactionsChecked(1, [0, 2], NOW_MS, [NOW_MS, 0]),
        records.TransactionsUndecided(1, [0, 2], NOW_MS),
        records.TopicCreated(1, "account", "name", TopicAttributes(filter_type="routing"), NOW_MS),
        records.TopicAttributesSet(1, TopicAttributes(max_message_bytes=5), NOW_MS),
        records.TopicDeleted(1),
        records.Subscribed(1, 2, "name", SubscriptionAttributes(endpoint="q" * 64, filter_tags=["t" * 16] * 5), NOW_MS),
        records.SubscriptionAttributesSet(
            1, 2, SubscriptionAttributes("https", "u" * 500, "backoff", binding_keys=["a.*"], paused=True), NOW_MS
        ),
        records.Unsubscribed(1, 2),
        records.MessagesPublished(
            *(1, 0, 9, NOW_MS, [3, 4], [70_000, 1 << 31] * 100, 1 << 40, [5, 6]),
            topic="t" * 64,
            subscriptions=["s" * 64] * 100,
        ),
        records.MessagesPublished(
            *(1, 0, 9, NOW_MS, [3, 4], [2, 0], 11, [5], [None, {"a": "b"}], [["\u20ac" * 16] * 10, "a.b"]),
            *([1 << 62, 6, 1 << 40, 3] * 20, ["i" * 64, None], "topic", ["subscription"]),
        ),
        records.MessagesPublished(
            *(1, 0, 9, NOW_MS, [3, 4, 5], [2, 0, 3, 7], 11, [5]),
            message_sets=[b"\x03", b"\x04"],
            taken=[0, 1, 0],
            message_ids=[0, 2, 250, 1],
        ),
        records.MessagesPublishedAlike(
            *(1, 0, 9, NOW_MS, [3, 4], [2, 0], 11, [5]), topic="topic", subscriptions=["subscription"]
        ),
        records.MessagesDelivered(1, 2, [0, 2], NOW_MS),
        records.DeliveriesFailed(1, 2, [0, 2], [1, 9], [NOW_MS, 0], "e" * 200, NOW_MS),
        records.DeliveriesDropped(1, 2, [0, 2], "retries", NOW_MS),
        records.DeliveriesCleared(1, 2, 7, NOW_MS),
        records.TopicMessagesExpired(1, 7),
    ]


def test_there_is_one_of_each() -> None:
    assert {type(record) for record in one_of_each()} == set(get_args(records.AnyRecord))


def test_every_record_comes_back_from_a_row() -> None:
    assert decode_records(encode_records(one_of_each())) == one_of_each()


def test_an_unknown_record_is_not_read_as_something_else() -> None:
    with pytest.raises(NewerFormatError, match=r"records of kind 99, .* use a newer cmqd"):
        decode_records(encode_records([sent(1, 0, 1)[0], [99, 1]]))


def test_a_known_record_with_a_wrong_field_is_not_taken_for_a_newer_one() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_records(encode_records([[4, "no number"]]))


def test_an_unknown_part_of_a_checkpoint_is_of_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "1.ckpt"
    parts: list[Any] = [CheckpointHeader(3, NOW_MS, 1, 1, 1), [99, 3], CheckpointEnd(4, 2)]
    path.write_bytes(MAGIC + b"".join(frame(msgspec.msgpack.encode(part)) for part in parts))

    with pytest.raises(NewerFormatError, match=r"parts of kind 99, .* use a newer cmqd"):
        verify_checkpoint(path)
    parts[1] = [4, "no number"]
    path.write_bytes(MAGIC + b"".join(frame(msgspec.msgpack.encode(part)) for part in parts))
    with pytest.raises(CheckpointError):
        verify_checkpoint(path)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 40, 65_535, 65_536])
def test_appends_that_are_joined_are_the_row_that_one_append_would_have_made(count: int) -> None:
    whole: list[records.AnyRecord] = [records.NumbersReserved(number, 2, 3) for number in range(count)]
    cuts = sorted({0, 1 % count, count // 3, count - 17 if count > 17 else 0, count})
    lists = [encode_records(whole[start:stop]) for start, stop in pairwise(cuts)]

    assert join_records(lists, count) == encode_records(whole)


ENCODED_WITHOUT_FAIL = (int, str, bytes, bool, type(None))
"""Text of a record was decoded from UTF-8, or is a name; a number has less than 64 bits. Both are checked before the
core sees them, so no value of these types is refused by the encoder."""


def leaves(declared: Any) -> Iterator[object]:
    """The types that values of a declared type are made of."""
    arguments = get_args(declared)
    if not arguments and hasattr(declared, "__struct_fields__"):
        arguments = tuple(field.type for field in msgspec.structs.fields(declared))
    for argument in arguments:
        yield from leaves(argument)
    if not arguments:
        yield getattr(declared, "__supertype__", declared)


def test_no_record_holds_a_type_that_its_encoder_could_refuse() -> None:
    kinds = {leaf for record in get_args(records.AnyRecord) for leaf in leaves(record)}

    assert kinds <= set(ENCODED_WITHOUT_FAIL), kinds
    assert {int, str} <= kinds


def test_a_row_counts_what_was_sent_to_each_queue() -> None:
    builder = RowBuilder()
    for queue_id, first, count in ((1, 5, 2), (2, 0, 1), (1, 7, 3)):
        record, bodies = sent(queue_id, first, count, 10)
        builder.add([record], encode_records([record]), bodies, 10 * count, NOW_MS + first)

    row = builder.close()

    assert (row.messages, row.records, row.time_ms, len(row.data)) == (6, 3, NOW_MS + 7, 60)
    assert decode_queues(row.queues) == [(1, 5, 10, 50), (2, 0, 1, 10)]
    assert not builder.records


def test_bodies_are_found_behind_those_of_other_queues() -> None:
    first, second, third = sent(1, 0, 2, 5), sent(2, 0, 3, 7), sent(1, 2, 2, 9)
    data = b"".join(first[1] + second[1] + third[1])
    recs = [first[0], deleted(1, 0, 1), second[0], third[0]]

    found = [message for queue_id, run in sent_runs(recs, 1) for message in stored_messages(run, data) if queue_id == 1]

    assert [message.body for message in found] == [body(1, 0, 5), body(1, 1, 5), body(1, 2, 9), body(1, 3, 9)]
    assert [run.offset for _, run in sent_runs(recs)] == [0, 10, 31]


def test_delays_and_headers_go_with_their_message() -> None:
    record = MessagesSent(1, 4, 8, NOW_MS, [1, 1], [{"k": "v"}, None], 77)

    (run,) = (run for _, run in sent_runs([record]))

    assert stored_messages(run, b"xy") == [
        StoredMessage(4, 8, NOW_MS, b"x", {"k": "v"}, 77),
        StoredMessage(5, 9, NOW_MS, b"y", None, 77),
    ]


def test_origins_go_with_their_message() -> None:
    origin = Origin("source", 3, NOW_MS - 5, 2, "age")
    record = MessagesSent(1, 4, 8, NOW_MS, [1, 1], origins=[origin, None])

    (run,) = (run for _, run in sent_runs([record]))

    assert stored_messages(run, b"xy") == [
        StoredMessage(4, 8, NOW_MS, b"x", origin=origin),
        StoredMessage(5, 9, NOW_MS, b"y"),
    ]


def test_what_late_and_moved_copies_are_copies_of_goes_with_them() -> None:
    copy_of = CopyOf("topic", "subscription", 3, NOW_MS - 5, ["a"])
    record = MessagesSent(1, 4, 8, NOW_MS, [1, 1], copies_of=[copy_of, None])

    (run,) = (run for _, run in sent_runs([record]))

    assert stored_messages(run, b"xy") == [
        StoredMessage(4, 8, NOW_MS, b"x", copy_of=copy_of),
        StoredMessage(5, 9, NOW_MS, b"y"),
    ]


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
    )

    encoded = encode_records([record])

    fields = "09 05 cd012c 01 9102 94110312ccc8 cd012d 9113 c0 9191a161 940701cd012c02 c0 a174 92a173a175"
    assert encoded == bytes.fromhex(f"91dc0012 36 {fields} 90 90 90")
    assert decode_records(encoded) == [record]
    bare = bytes.fromhex("9196 36 09 05 cd012c 01 9102")
    assert decode_records(bare) == [records.MessagesPublished(9, 5, 300, 1, [2])]


def test_a_publish_of_format_1_is_read_as_one_that_everybody_takes_whole() -> None:
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


# Summaries


class Rows:
    """Rows of one queue, and which of them were asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.audiences = Audiences()
        self.whole = True

    def fetch(self, span: LsnRange) -> tuple[list[Summary], bool]:
        self.asked.append(span)
        summaries = [
            summary_of(lsn, encode_queues([[7, lsn, lsn + 1, 5]]), self.audiences)
            for lsn in range(span.first, span.last + 1)
        ]
        return summaries, self.whole


def test_a_block_is_read_once_and_then_only_what_came_behind_it() -> None:
    rows = Rows()
    summaries = Summaries()

    span, found = summaries.block(1, 70, 80, rows.fetch)
    assert span == (64, 80)
    assert [summary.of(7) for summary in found] == [(lsn, lsn + 1, 5) for lsn in range(64, 81)]
    assert found[0].of(8) is None
    summaries.block(1, 64, 80, rows.fetch)
    _, found = summaries.block(1, 64, 500, rows.fetch)
    assert [summary.lsn for summary in found] == list(range(64, 128))
    summaries.block(2, 100, 500, rows.fetch)

    assert rows.asked == [(64, 80), (81, 127), (64, 127)], "another segment has other rows"


def test_a_block_that_cannot_be_read_whole_is_read_again() -> None:
    rows = Rows()
    summaries = Summaries()
    rows.whole = False
    summaries.block(1, 1, 500, rows.fetch)
    rows.whole = True
    summaries.block(1, 1, 500, rows.fetch)
    summaries.block(1, 1, 500, rows.fetch)

    assert rows.asked == [(0, 63), (0, 63)]


def test_the_blocks_used_least_recently_are_forgotten() -> None:
    rows = Rows()
    summaries = Summaries(3 * 65 * 280)
    for lsn in (0, 64, 128, 0, 192):
        summaries.block(1, lsn, 1000, rows.fetch)
    rows.asked.clear()

    for lsn in (0, 128, 192, 64):
        summaries.block(1, lsn, 1000, rows.fetch)

    assert rows.asked == [(64, 127)]


def test_a_record_of_before_rewind_and_transactions_is_read_with_their_defaults() -> None:
    old = encode_records([[16, 1, 0, 9, NOW_MS, [3], None, None, 5, 6], [22, 1, [0, 2]], [2, 1, "a", "n", {}, NOW_MS]])

    assert decode_records(old) == [
        MessagesSent(1, 0, 9, NOW_MS, [3], session=5, sequence=6),
        records.MessagesActivated(1, [0, 2]),
        records.QueueCreated(1, "a", "n", QueueAttributes(), NOW_MS),
    ]


def test_the_checksum_covers_every_column_but_the_bodies() -> None:
    columns = (1, NOW_MS, 2, b"queues", b"meta")
    others = [(2, NOW_MS, 2, b"queues", b"meta"), (1, 0, 2, b"queues", b"meta"), (1, NOW_MS, 3, b"queues", b"meta")]
    others += [(1, NOW_MS, 2, b"queuez", b"meta"), (1, NOW_MS, 2, b"queues", b"metb")]

    assert len({meta_checksum(*columns), *(meta_checksum(*other) for other in others)}) == 6


# Sparse index


def test_entries_come_every_256_messages() -> None:
    index = SparseIndex()
    for lsn in range(1, 1001):
        index.add_row(lsn, [(1, lsn - 1, lsn, 10)], 10)

    entries = index.queues[1]

    assert list(entries.positions) == list(range(0, 1000, MESSAGES_PER_ENTRY))
    assert (entries.first_position, entries.stop_position, entries.bytes) == (0, 1000, 10_000)


def test_entries_come_every_256_kib_of_log() -> None:
    index = SparseIndex()
    for lsn in range(1, 41):
        index.add_row(lsn, [(1, lsn - 1, lsn, 9)], BYTES_PER_ENTRY // 4)

    assert list(index.queues[1].lsns) == list(range(1, 41, 4))


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_every_message_is_among_the_rows_that_the_index_names(seed: int, rows: int) -> None:
    chance = random.Random(seed)
    index = SparseIndex()
    where: dict[tuple[int, int], int] = {}
    nexts = {1: 0, 2: 1 << 33, 3: 5}
    for lsn in range(100, 100 + rows):
        queues: list[tuple[int, int, int, int]] = []
        for queue_id in chance.sample(list(nexts), chance.randint(0, 3)):
            first = nexts[queue_id]
            stop = nexts[queue_id] = first + chance.choice([1, 16, 300])
            queues.append((queue_id, first, stop, stop - first))
            where |= {(queue_id, position): lsn for position in (first, stop - 1)}
        index.add_row(lsn, queues, chance.choice([100, 70_000]))
    stored = {row[0]: sparse_queue(*row[1:3], *row[4:]) for row in index.to_rows()}

    for (queue_id, position), lsn in where.items():
        for entries in (index.queues[queue_id], stored[queue_id]):
            span = entries.rows_of(position, position + 1, 99 + rows)
            assert span.first <= lsn <= span.last


def test_numbers_are_stored_little_endian() -> None:
    assert pack_u64(unpack_u64(struct.pack("<2Q", 1, 1 << 40))) == struct.pack("<2Q", 1, 1 << 40)


# Manifest


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    manifest = Manifest(
        clean=True,
        segments=[SegmentEntry(1, SegmentState.SEALED, 1, 2, 3, 4, 5, 6, 7, "ab")],
        dropped=[(1, 2)],
        losses=[LossEntry(3, 4, "why")],
    )

    write_manifest(tmp_path, manifest)

    assert read_manifest(tmp_path) == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["manifest"]


def test_a_manifest_of_a_newer_format_says_so(tmp_path: Path) -> None:
    (tmp_path / "manifest").write_text('{"format": 3, "unknown": {}}')

    with pytest.raises(NewerFormatError, match=r"format 3; this version knows up to 2: use a newer cmqd"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("mask", [0xFF, 0x80, 0x02])
def test_a_manifest_with_a_wrong_byte_is_damaged(tmp_path: Path, mask: int) -> None:
    """Also in a key, which would else be one that readers ignore."""
    write_manifest(tmp_path, Manifest(boot_id="abc", segments=[SegmentEntry(1, SegmentState.SEALED, 1, 2)]))
    whole = (tmp_path / "manifest").read_bytes()
    for offset in range(len(whole) - 1):
        (tmp_path / "manifest").write_bytes(whole[:offset] + bytes([whole[offset] ^ mask]) + whole[offset + 1 :])
        with pytest.raises(ManifestError, match="cannot be read"):
            read_manifest(tmp_path)


def test_a_manifest_of_format_1_has_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "manifest").write_text('{"format": 1, "clean": true}')

    assert read_manifest(tmp_path).clean


def test_ranges_merge_where_they_touch() -> None:
    assert merge_ranges([(5, 6), (1, 2), (3, 3), (9, 9), (5, 5)]) == [(1, 3), (5, 6), (9, 9)]


# Checkpoint files


def checkpoint_bytes() -> bytes:
    parts = [CheckpointHeader(3, NOW_MS, 1, 1, 1), CheckpointEnd(4, 1)]
    return MAGIC + b"".join(frame(encode_part(part)) for part in parts)


def test_a_whole_checkpoint_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "1.ckpt"
    path.write_bytes(checkpoint_bytes())

    header, end = verify_checkpoint(path)

    assert (header.lsn, end.lsn) == (3, 4)
    assert len(list(read_payloads(path))) == 2


def test_a_checkpoint_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "1.ckpt"
    whole = checkpoint_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            verify_checkpoint(path)


def test_a_checkpoint_is_refused_wherever_a_bit_flips(tmp_path: Path) -> None:
    path = tmp_path / "1.ckpt"
    whole = checkpoint_bytes()
    for offset in range(len(whole)):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x40]) + whole[offset + 1 :])
        with pytest.raises(CheckpointError):
            verify_checkpoint(path)


# Schema and scan


def test_a_stray_database_is_not_taken_for_a_segment(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "stray.db")
    raw.execute("CREATE TABLE log(lsn)")
    raw.close()

    with pytest.raises(SegmentFormatError, match="not a cmqd segment"):
        open_read_only(tmp_path / "stray.db", sealed=False)


def test_a_segment_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
    create_tables(raw)
    raw.execute("PRAGMA user_version=2")
    raw.close()

    with pytest.raises(SegmentFormatError, match="format 2"):
        open_read_only(tmp_path / "new.db", sealed=False)


@pytest.mark.system
async def test_an_outsider_reads_live_and_sealed_rows_while_the_broker_works(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    for index in range(600):
        rig.send(1, index, 1)
        rig.log.close_row()
    await rig.commit()
    await rig.log.seal_now()
    await rig.store(1, 600, 2)
    manifest = read_manifest(folder)

    rows = [
        row
        for entry in manifest.segments
        for row in scan_segment(folder / entry.file, sealed=entry.state is SegmentState.SEALED, above=10)
    ]

    assert [row.lsn for row in rows] == list(range(11, 602))
    assert rows[-1].data == body(1, 600) + body(1, 601)
    assert list(verify_folder(folder)) == []


@pytest.mark.system
async def test_verify_finds_a_flipped_bit(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    for index in range(3):
        await rig.store(1, index, 1, 3000)
    await rig.checkpoint()
    await rig.log.close()
    path = folder / "segments" / "00000001.db"
    path.chmod(0o644)
    content = path.read_bytes().replace(body(1, 1, 30), body(1, 2, 30), 1)
    path.write_bytes(content)

    problems = list(verify_folder(folder))

    assert "checksum that the manifest lists" in problems[0]
    assert "row 2 of 00000001.db has bodies with a wrong checksum" in problems
    with pytest.raises(RowError) as raised:
        list(scan_segment(path, sealed=True))
    assert raised.value.lsn == 2
    assert [row.lsn for row in scan_segment(path, sealed=True, bodies=False)] == [1, 2, 3]
