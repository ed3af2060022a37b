"""Records and rows: a written row is read back, and unknown records differ from damage."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from cmqd.storage.loop_side.row_builder import RowBuilder
from cmqd_segment import records
from cmqd_segment.checkpoint import CheckpointEnd, CheckpointHeader
from cmqd_segment.checkpoint_file import MAGIC, CheckpointError, frame, verify_checkpoint
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.records import MessagesSent, StoredMessage
from cmqd_segment.rows import (
    decode_queues,
    decode_records,
    encode_records,
    join_records,
    meta_checksum,
    sent_runs,
    stored_messages,
)
from cmqd_types.actors import Actor
from cmqd_types.attributes import QueueAttributes, SubscriptionAttributes, TopicAttributes
from cmqd_types.audit import AuditEntry
from cmqd_types.messages import CopyOf, Origin
from support.storage.log_rig import NOW_MS, body, deleted, sent


def one_of_each() -> list[records.AnyRecord]:
    return [
        records.NumbersReserved(1, 2, 3),
        records.NumbersReserved(1, 2, 3, 1 << 40),
        records.LogRestored(NOW_MS, 5),
        records.ActorSeen(1, Actor("account", "AKID" + "x" * 32, "\u20ac" * 128, "h" * 64, "::1")),
        records.QueueCreated(1, "account", "name", QueueAttributes(), NOW_MS),
        records.QueueAttributesSet(1, QueueAttributes(delay_ms=5), NOW_MS, 1 << 62),
        records.QueueDeleted(1),
        records.QueueDeleted(1, records.UNUSED),
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
        records.MessagesSent(1, 0, 9, NOW_MS, [3], origins=[Origin("q", 1 << 62, NOW_MS, 3, "rejected", "é" * 128)]),
        records.MessagesSent(1, 0, 9, NOW_MS, [3, 4], visible_ms=NOW_MS, half=True, dedup_ids=["i" * 64, None]),
        records.MessagesSent(
            *(1, 0, 9, NOW_MS, [3, 4]),
            copies_of=[CopyOf("t" * 64, "s" * 64, 1 << 62, NOW_MS, ["\u20ac" * 16] * 10), None],
        ),
        records.MessagesReceived(1, [0, 2], 1, NOW_MS, NOW_MS + 1),
        records.MessagesReceived(1, [0, 3], 1, NOW_MS, NOW_MS + 1, [2, 1, 1, 70_000]),
        records.MessagesDeleted(1, [0, 2], [1, 2], NOW_MS),
        records.MessagesDeleted(1, [0, 2], [1, 2], NOW_MS, [127]),
        records.LeasesEnded(1, [1, 2]),
        records.MessagesReleased(1, [1, 2], True),
        records.VisibilityChanged(1, [1, 2], NOW_MS),
        records.MessagesActivated(1, [0, 2]),
        records.DelaysScheduled(1, [0, 2], [5, 6]),
        records.MessagesMoved(1, [0, 2], True),
        records.MessagesDeadLettered(1, [0, 2], [1, 2], NOW_MS),
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
        records.ScheduleSet(
            *(1, "account", "name", "q" * 64, "0 9 * * mon-fri", "Europe/Berlin", False, b"b" * 300, {"a": "\u20ac"}),
            *(NOW_MS, NOW_MS + 5),
        ),
        records.ScheduleSet(1, "account", "name", "queue", "* * * * *", "UTC", True, b"b", None, NOW_MS, 0),
        records.ScheduleDeleted(1),
        records.ScheduleFired(1, NOW_MS, NOW_MS + 1, NOW_MS + 60_000, 1 << 62),
        records.ScheduleFired(1, NOW_MS, NOW_MS + 1, 0, 0, "queue 'q' does not exist; create it first"),
        records.SchedulePlanned(1, NOW_MS, NOW_MS + 5),
        records.TotalsReset(NOW_MS),
        records.Administered(
            AuditEntry(7, NOW_MS, "account", "admin", "AKID" + "x" * 32, "[::1]:65535", "set_key_enabled", "k", "a=b")
        ),
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
    if get_origin(declared) is Annotated:
        declared = get_args(declared)[0]
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


def test_a_row_counts_the_messages_of_each_queue() -> None:
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
