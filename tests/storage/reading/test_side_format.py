"""The side file: its bytes, and the messages that rows name."""

import struct
from collections.abc import Sequence
from typing import Any, get_args
from zlib import crc32

import msgspec
import pytest
from msgspec import structs
from pyroaring import BitMap64

from cmqd.core.broker import Broker
from cmqd.core.facts.queue import Queue
from cmqd_reading.naming import NamedMessages, names_message
from cmqd_reading.queue_records import OF_QUEUES
from cmqd_reading.topic_records import OF_TOPICS
from cmqd_segment import records
from cmqd_segment.manifest import SourceName
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.records import AnyRecord
from cmqd_segment.rows import encode_records, sent_runs
from cmqd_segment.side import (
    HEAD_BYTES,
    MAGIC,
    SideError,
    SideHistory,
    SideIds,
    SideNamed,
    SidePlan,
    SideRange,
    SideSource,
    check_segment,
    decode_named,
    decode_plan,
    decode_side,
    encode_side,
    names_in,
    plan_stop,
    side_history,
    side_plan,
)
from cmqd_segment.sparse import SparseIndex
from cmqd_types.actors import Actor
from cmqd_types.attributes import QueueAttributes
from support.core.builders import KEY, every
from support.core.busy_rig import busy_rig
from support.storage.log_rig import NOW_MS

SOURCES = [
    SideSource(3, "owner", "orders", False, 300, 12_000, 5, [5, 256], [2, 4]),
    SideSource(9, None, None, None, 1, 40, 0, [0], [9]),
    SideSource(10, "owner", "events", True, 2, 50, 7, [7], [3]),
    SideSource(400, "other", "orders", False, 1, 0, 0, [0], [2]),
]
NAMED = [SideNamed(3, b"positions", [SideRange(6, 8, 0, 77), SideRange(4, 9, 0, None)]), SideNamed(77, b"others", [])]
PLAN = side_plan(
    7,
    "ab" * 32,
    (1000, 1299),
    [(source.id, source.sparse()) for source in SOURCES],
    {source.id: name for source in SOURCES if (name := source.source_name) is not None},
)
HISTORY = side_history(b"leases", [(3, 5, 305), (9, 0, 1), (10, 7, 9), (400, 0, 1)], NAMED)
WHOLE = encode_side(PLAN, HISTORY)


def framed(magic: bytes, *parts: Any) -> bytes:
    """A side file of these parts, which are arrays with their tags."""
    payloads = [msgspec.msgpack.encode(part) for part in parts]
    frames = [struct.pack("<II", len(payload), crc32(payload)) + payload for payload in payloads]
    head = struct.pack("<8sII", magic, *map(len, frames))
    return head + struct.pack("<I", crc32(head)) + b"".join(frames)


def arrays(part: Any) -> list[Any]:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(part))


FIRST_FORM = framed(
    b"CMQDSID1",
    [1, 7, "ab" * 32, 1000, 1299, SOURCES],
    [
        *(2, b"leases"),
        [
            [3, 5, 305, b"positions", [[6, 8, 0, 77], [4, 9, 0, None]]],
            [9, 0, 1, b"", []],
            [10, 7, 9, b"", []],
            [77, 0, 0, b"others", []],
            [400, 0, 1, b"", []],
        ],
    ],
)


def test_both_parts_come_back() -> None:
    plan, history = decode_side(WHOLE)
    assert (plan, history) == (PLAN, HISTORY)
    assert plan.sources == SOURCES
    assert history.named == NAMED
    assert WHOLE.startswith(MAGIC)
    ids, history = decode_named(WHOLE)
    assert (ids, history) == (SideIds(*structs.astuple(PLAN)[:4]), HISTORY)
    assert [history.stores(3, position) for position in (4, 5, 304, 305)] == [False, True, True, False]
    assert not history.stores(4, 5)
    assert history.stores(400, 0)
    assert not history.stores(401, 0)
    assert list(history.stored()) == [(3, 5, 305), (9, 0, 1), (10, 7, 9), (400, 0, 1)]


def test_a_file_of_the_first_form_is_read() -> None:
    assert decode_side(FIRST_FORM) == (PLAN, HISTORY)
    assert decode_named(FIRST_FORM) == decode_named(WHOLE)
    assert decode_plan(FIRST_FORM[: plan_stop(FIRST_FORM)]) == PLAN
    without = framed(b"CMQDSID1", [1, 7, "", None, None, [[3, None, None, None, 1, 1, 0, [], []]]], [2, b"", []])
    with pytest.raises(SideError, match="cannot be decoded"):
        decode_plan(without)


DAMAGE: dict[str, Any] = {
    **{column: [0] for column in ("ids", "messages", "bytes", "first_positions", "lsns")},
    "names": [None],
    "accounts": ["owner"],
    "account_runs": [4, 0, 1],
}


@pytest.mark.parametrize("column", DAMAGE)
def test_columns_of_different_lengths_are_damage(column: str) -> None:
    with pytest.raises(SideError, match="different lengths"):
        decode_plan(encode_side(structs.replace(PLAN, **{column: DAMAGE[column]}), HISTORY))


@pytest.mark.parametrize("runs", [[4, -1], [-4, 0, 8, 0], [3, 0]])
def test_runs_of_accounts_that_do_not_fit_are_damage(runs: list[int]) -> None:
    with pytest.raises(SideError, match="different lengths"):
        decode_plan(encode_side(structs.replace(PLAN, account_runs=runs), HISTORY))


@pytest.mark.parametrize("column", [2, 3, 4])
def test_columns_of_part_two_have_one_length(column: int) -> None:
    history = arrays(HISTORY)
    history[column] = history[column][:-1]
    with pytest.raises(SideError, match="different lengths"):
        decode_side(framed(MAGIC, PLAN, history))


def test_a_file_of_many_queues_is_small() -> None:
    """At most 12 bytes a queue beside its name, which has 11: 10 messages of 256 bytes take some 2,900 in the log."""
    index = SparseIndex()
    for lsn in range(1, 1001):
        index.add_row(lsn, [(7 * lsn, 0, 10, 2560)], 30_000)
    names = {number: SourceName(number, "account", f"queue-{number:04}") for number in index.queues}
    plan = side_plan(7, "ab" * 32, (1, 10_000), list(index.queues.items()), names)
    stored = [(number, 0, 10) for number in index.queues]
    assert len(encode_side(plan, side_history(b"", stored, []))) < 1000 * (12 + 11)


def test_part_one_is_read_from_the_begin_of_the_file() -> None:
    stop = plan_stop(WHOLE[:HEAD_BYTES])

    assert stop < len(WHOLE)
    assert decode_plan(WHOLE[:stop]) == PLAN
    with pytest.raises(SideError, match="part 1"):
        decode_plan(WHOLE[: stop - 1])


@pytest.mark.parametrize("place", range(len(WHOLE)))
def test_every_flipped_bit_is_found(place: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[place] ^= 0x10
    with pytest.raises(SideError):
        decode_side(bytes(damaged))


@pytest.mark.parametrize("size", [0, 3, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 5, len(WHOLE) - 1])
def test_a_file_that_was_cut_is_found(size: int) -> None:
    with pytest.raises(SideError):
        decode_side(WHOLE[:size])
    with pytest.raises(SideError):
        decode_side(WHOLE + b"x")


def test_a_newer_format_is_not_called_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd_segment.side.MAGIC", b"CMQDSID3")
    newer = encode_side(PLAN, HISTORY)
    monkeypatch.undo()

    with pytest.raises(NewerFormatError, match="use a newer cmqd"):
        decode_plan(newer)


def test_a_newer_part_is_not_called_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(msgspec.Struct, array_like=True, tag=9):
        segment: int = 1

    newer: Any = Later()

    with pytest.raises(NewerFormatError):
        decode_plan(encode_side(newer, HISTORY))


def test_fields_of_later_versions_are_ignored() -> None:
    class Later(SidePlan, frozen=True, array_like=True, tag=1):
        more: int = 7

    assert decode_plan(encode_side(Later(*structs.astuple(PLAN)), HISTORY)) == PLAN


def test_a_side_file_of_another_segment_is_found() -> None:
    check_segment(PLAN, 7, "ab" * 32)
    for number, sha256 in ((8, "ab" * 32), (7, "ac" * 32)):
        with pytest.raises(SideError, match="another file"):
            check_segment(PLAN, number, sha256)


def test_only_known_names_are_told() -> None:
    assert names_in([PLAN]) == [
        SourceName(3, "owner", "orders"),
        SourceName(10, "owner", "events", True),
        SourceName(400, "other", "orders"),
    ]


def test_the_sparse_index_comes_back() -> None:
    index = SparseIndex()
    for lsn in range(10, 40):
        index.add_row(lsn, [(1, 100 * lsn, 100 * lsn + 100, 5_000)], 90_000)

    (source,) = side_plan(1, "", (None, None), [(1, index.queues[1])], {}).sources

    found, expected = source.sparse(), index.queues[1]
    assert list(found.positions) == list(expected.positions) == [100 * lsn for lsn in range(10, 40, 3)]
    assert list(found.lsns) == list(expected.lsns)
    assert (found.first_position, found.stop_position, found.bytes) == (1000, 4000, 150_000)
    assert found.rows_of(1250, 1260, 39) == expected.rows_of(1250, 1260, 39) == (10, 12)


def test_ids_outside_the_range_are_not_stored() -> None:
    assert [PLAN.may_store(number) for number in (999, 1000, 1299, 1300)] == [False, True, True, False]
    assert not side_plan(1, "", (None, None), [], {}).may_store(0)


def collect(
    *rows: Sequence[AnyRecord], first_lsn: int = 1, stored: Sequence[tuple[int, int, int]] = (), together: int = 1
) -> NamedMessages:
    collected = NamedMessages(stored)
    metas = [
        (lsn, sum(run.stop_position - run.first_position for _, run in sent_runs(row)), encode_records(row))
        for lsn, row in enumerate(rows, first_lsn)
    ]
    for start in range(0, len(metas), together):
        collected.add_rows(metas[start : start + together])
    return collected


def named(*rows: Sequence[AnyRecord], **arguments: Any) -> SideHistory:
    return collect(*rows, **arguments).history()


def positions_named(history: SideHistory, number: int, upto: int = 100) -> list[int]:
    return [position for position in range(upto) if names_message(history, number, position)]


SETS: list[tuple[AnyRecord, int, list[int], list[int]]] = [
    (records.MessagesReceived(1, [3, 2, 4, 1], 50, NOW_MS, NOW_MS), 1, [3, 4, 9], [50, 51, 52]),
    (records.MessagesDeleted(1, [3, 1], [50, 1], NOW_MS), 1, [3], [50]),
    (records.MessagesDeadLettered(1, [3, 1], [50, 1], NOW_MS), 1, [3], [50]),
    (records.LeasesEnded(1, [50, 1, 3, 1]), 1, [], [50, 54]),
    (records.MessagesReleased(1, [50, 1], True), 1, [], [50]),
    (records.VisibilityChanged(1, [50, 1], NOW_MS), 1, [], [50]),
    (records.MessagesActivated(1, [7, 1]), 1, [7], []),
    (records.DelaysScheduled(1, [7, 1], [NOW_MS]), 1, [7], []),
    (records.MessagesMoved(1, [7, 1]), 1, [7], []),
    (records.TransactionsEnded(1, [7, 1], True, NOW_MS), 1, [7], []),
    (records.TransactionsChecked(1, [7, 1], NOW_MS, [0]), 1, [7], []),
    (records.TransactionsUndecided(1, [7, 1], NOW_MS), 1, [7], []),
    (records.MessagesDelivered(1, 2, [7, 1], NOW_MS), 1, [7], []),
    (records.DeliveriesFailed(1, 2, [7, 1], [1], [0], "", NOW_MS), 1, [7], []),
    (records.DeliveriesDropped(1, 2, [7, 1], "retries", NOW_MS), 1, [7], []),
]
RANGES: list[tuple[AnyRecord, list[SideRange]]] = [
    (records.QueueAttributesSet(1, QueueAttributes(), NOW_MS, 8), [SideRange(3, 1, 0, 8)]),
    (records.QueueAttributesSet(1, QueueAttributes(), NOW_MS, 0), []),
    (records.QueueAttributesSet(1, QueueAttributes(), NOW_MS), [SideRange(3, 1, 0, None)]),
    (records.QueueDeleted(1), [SideRange(4, 1, 0, None)]),
    (records.QueueCleared(1, 8), [SideRange(5, 1, 0, 8)]),
    (records.MessagesExpired(1, 8), [SideRange(6, 1, 0, 8)]),
    (records.QueueRewound(1, 4, 8, NOW_MS, 0), [SideRange(7, 1, 4, 8)]),
    (records.QueueRewound(1, 4, 8, NOW_MS, 2), [SideRange(7, 1, 0, 2), SideRange(7, 1, 4, 8)]),
    (records.QueueRewound(1, 4, 8, NOW_MS), [SideRange(7, 1, 0, None), SideRange(7, 1, 4, 8)]),
    (records.RedriveStarted(1, "", 0, 8, NOW_MS), [SideRange(9, 1, 0, 8)]),
    (records.RedriveStarted(1, "", 0, 0, NOW_MS), []),
    (records.Unsubscribed(1, 2), [SideRange(45, 1, 0, None)]),
    (records.TopicMessagesExpired(1, 8), [SideRange(52, 1, 0, 8)]),
    (records.DeliveriesCleared(1, 2, 8, NOW_MS), [SideRange(53, 1, 0, 8)]),
]


@pytest.mark.parametrize(("record", "number", "positions", "leases"), SETS)
def test_a_record_names_its_positions_and_leases(
    record: AnyRecord, number: int, positions: list[int], leases: list[int]
) -> None:
    history = named([record])

    assert positions_named(history, number) == positions
    assert [lease for lease in range(100) if names_message(history, 0, 0, [lease])] == leases


@pytest.mark.parametrize(("record", "expected"), RANGES)
def test_a_record_names_its_range(record: AnyRecord, expected: list[SideRange]) -> None:
    assert [each for entry in named([record]).named for each in entry.ranges] == expected


def test_every_record_with_positions_leases_or_a_floor_is_in_the_lists_of_this_test() -> None:
    """``DeadLettersFrom`` has a bound and changes no message."""
    listed = {type(record) for record, *_ in (*SETS, *RANGES)}
    telling = {"positions", "leases", "floor", "rewind_floor", "stop_position"}
    assert {kind for kind in get_args(AnyRecord) if telling & set(kind.__struct_fields__)} - listed == {
        records.DeadLettersFrom
    }


def test_every_record_that_a_life_takes_is_in_the_lists_of_this_test() -> None:
    """Otherwise a history would differ where the record is alone in a sealed segment."""
    listed = {type(record) for record, *_ in (*SETS, *RANGES)}

    assert {*OF_QUEUES, *OF_TOPICS} - listed == set()


def test_ids_are_those_of_messages_and_copies() -> None:
    sent = records.MessagesSent(1, 0, 500, NOW_MS, [1, 1], [{"a": "b"}, None])
    published = records.MessagesPublished(
        *(9, 0, 700, NOW_MS, [1, 1, 1]),
        copies=[1, 2, 3, 0],
        first_copy_id=800,
        message_sets=[b"\x07", b"\x01"],
        taken=[0, 1],
        message_ids=[0, 1, 10, 2],
    )
    scattered = records.MessagesPublished(9, 3, 300, NOW_MS, [1], message_ids=[20, 1])
    # A message that moves keeps its id, which lies within the ids of an earlier record.
    moved = records.MessagesSent(2, 0, 501, NOW_MS, [1])
    for rows, lowest, highest in (
        ([[sent]], 500, 501),
        ([[sent, moved]], 500, 501),
        ([[sent], [moved], [records.MessagesReceived(1, [0, 1], 1, NOW_MS, NOW_MS)]], 500, 501),
        ([[sent], [published]], 500, 803),
        ([[sent], [published], [scattered]], 300, 803),
    ):
        for together in (1, 3):
            collected = collect(*rows, together=together)
            assert (collected.lowest_message_id, collected.highest_message_id) == (lowest, highest)


CLIENTS: list[AnyRecord] = [
    records.ActorSeen(3, Actor("shop", "AKID", "worker", "10.0.0.1")),
    records.MessagesSent(1, 0, 500, NOW_MS, [1], actors=[3]),
    records.MessagesSent(1, 0, 500, NOW_MS, [1, 1, 1], [{"a": "b"}, None, None], 5, actors=[1, 3, 1, 0, 1, 400]),
    records.MessagesReceived(1, [3, 1], 50, NOW_MS, NOW_MS, [3]),
    records.MessagesDeleted(1, [3, 1], [50, 1], NOW_MS, [3]),
    records.MessagesDeadLettered(1, [3, 1], [50, 1], NOW_MS, [3]),
    records.MessagesReleased(1, [50, 1], True, [3]),
    records.VisibilityChanged(1, [50, 1], NOW_MS, [3]),
    records.TransactionsEnded(1, [7, 1], True, NOW_MS, [3]),
    records.TransactionsUndecided(1, [7, 1], NOW_MS, [3]),
    records.MessagesPublished(9, 3, 300, NOW_MS, [1], labels=[["red"]], actors=[3]),
    records.MessagesPublishedAlike(9, 3, 300, NOW_MS, [1], actors=[3]),
]


@pytest.mark.parametrize("record", CLIENTS)
def test_a_record_names_its_clients(record: AnyRecord) -> None:
    assert collect([record]).actors == ({3, 400} if getattr(record, "actors", []) not in ([], [3]) else {3})
    assert collect([records.MessagesReceived(1, [3, 1], 50, NOW_MS, NOW_MS), record], [record]).actors >= {3}


def test_every_record_with_clients_is_in_the_list_of_this_test() -> None:
    kinds = {kind for kind in get_args(AnyRecord) if "actors" in kind.__struct_fields__}
    assert kinds | {records.ActorSeen} == {type(record) for record in CLIENTS}


def test_the_leases_of_receives_are_named_up_to_a_leap() -> None:
    far = 1 << 52
    received = [
        [
            records.MessagesReceived(1, [0, 2], 5, NOW_MS, NOW_MS),
            records.MessagesReceived(1, [2, 3], 7, NOW_MS, NOW_MS),
        ],
        [records.LeasesEnded(1, [6, 1])],
        [records.MessagesReceived(1, [5, 1, 3, 1], far, NOW_MS, NOW_MS)],
        [records.LeasesEnded(1, [3, 1, 2, 1]), records.MessagesDeleted(1, [9, 1], [far + 1, 1], NOW_MS)],
    ]
    for together in (1, 2, 4):
        history = named(*received, together=together)
        leases = [*range(20), *range(far - 3, far + 5)]
        found = [lease for lease in leases if names_message(history, 0, 0, [lease])]
        assert found == [3, 5, 6, 7, 8, 9, far, far + 1], together


def test_a_record_is_found_by_all_of_its_leases_or_by_none() -> None:
    """The first lease decides, because leases ascend: a record with an older lease is decoded whole."""
    history = named(
        [
            records.MessagesReceived(1, [10, 2], 100, NOW_MS, NOW_MS),
            records.MessagesDeleted(1, [4, 1, 5, 1], [90, 1, 10, 1], NOW_MS),
        ],
        stored=[(1, 10, 12)],
    )
    assert positions_named(history, 1) == [4, 10, 11]
    assert [lease for lease in range(120) if names_message(history, 0, 0, [lease])] == [90, 100, 101]


def test_an_unknown_record_is_of_a_newer_version() -> None:
    with pytest.raises(NewerFormatError, match="records of kind 99"):
        NamedMessages([]).add_rows([(1, 0, encode_records([[99, 1]]))])


def test_a_message_below_an_earlier_floor_is_not_named_again() -> None:
    history = named(
        [records.MessagesExpired(1, 10)], [records.MessagesExpired(1, 20)], [records.MessagesExpired(1, 15)]
    )
    assert history.named[0].ranges == [SideRange(6, 1, 0, 10), SideRange(6, 2, 10, 20)]


def states(queue: Queue) -> dict[int, tuple[bool, bool, bool]]:
    """Active, in flight or otherwise waiting, and half, of each live message."""
    index = queue.index
    live = list(BitMap64.deserialize(index.packed_live())) if index.live_count else []
    active = set(index.active_from(0, index.active_count + 1)) if index.active_count else set[int]()
    return {position: (position in active, True, position in index.half) for position in live}


@pytest.mark.parametrize("seed", range(6))
def test_a_row_that_changes_a_message_names_the_message(seed: int) -> None:
    """Each row is a segment of its own; the broker that replays the rows tells which messages change."""
    rig, _ = busy_rig(seed, 300)
    broker = Broker(KEY, calendar=every)
    before: dict[int, dict[int, tuple[bool, bool, bool]]] = {}
    leases: dict[tuple[int, int], list[int]] = {}
    changes = 0
    for lsn, row in enumerate(rig.log.rows, 1):
        index = SparseIndex()
        for number, run in sent_runs(row):
            index.add_row(lsn, [(number, run.first_position, run.stop_position, 0)], 0)
        stored = [(number, queue.first_position, queue.stop_position) for number, queue in index.queues.items()]
        history = named(row, first_lsn=lsn, stored=stored)
        for record in row:
            broker.replay(record, lsn)
            if isinstance(record, records.MessagesReceived):
                for lease, position in enumerate(records.unpack_runs(record.positions), record.first_lease):
                    leases.setdefault((record.queue_id, position), []).append(lease)
        after = {number: states(queue) for number, queue in broker.queues.items()}
        for number in before.keys() | after.keys():
            old, new = before.get(number, {}), after.get(number, {})
            for position in old.keys() | new.keys():
                if old.get(position) != new.get(position):
                    changes += 1
                    assert names_message(history, number, position, leases.get((number, position), [])), (lsn, row)
        before = after
    assert changes > 300
