"""The contract of ``cmqd.log.interface``, checked for every log of this project."""

import asyncio

import pytest
from msgspec import structs

from cmqd.log.log_errors import LogFailed
from cmqd.log.values import ROW_BYTES, FoundRows
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader
from cmqd_segment.manifest import StandingPinEntry
from cmqd_segment.records import (
    MessagesSent,
    NumbersReserved,
    QueueCreated,
    StoredMessage,
    pack_runs,
)
from cmqd_types.attributes import QueueAttributes
from cmqd_types.messages import Origin
from support.storage.log_rig import NOW_MS, LogRig, OpenRig, Place, body, checkpoint_parts, deleted, sent


def positions(messages: list[StoredMessage]) -> list[int]:
    return [message.position for message in messages]


# Appending


async def test_a_new_log_is_empty(open_rig: OpenRig) -> None:
    rig = await open_rig()

    assert rig.report is not None
    assert rig.report.created
    assert rig.report.clean
    assert (rig.report.checkpoint_lsn, rig.report.last_lsn, rig.stored_rows, rig.parts) == (0, 0, [], [])


async def test_appends_between_two_flushes_share_a_row(open_rig: OpenRig) -> None:
    rig = await open_rig()

    assert [rig.send(1, position, 1) for position in range(3)] == [rig.begin_lsn + 1] * 3
    await rig.commit()
    assert rig.send(1, 3, 1) == rig.begin_lsn + 2
    await rig.commit()


async def test_nothing_is_durable_before_a_flush(open_rig: OpenRig) -> None:
    rig = await open_rig()

    rig.send(1, 0, 4)

    assert rig.log.durable_lsn == rig.begin_lsn
    assert rig.log.pending.records == 1
    assert rig.log.pending.bytes > 4 * 40
    await rig.commit()
    assert rig.durable == [rig.begin_lsn + 1]
    assert (rig.log.pending.records, rig.log.pending.bytes) == (0, 0)


async def test_a_row_ends_at_about_64_kib_of_bodies(open_rig: OpenRig) -> None:
    rig = await open_rig()

    lsns = [rig.send(1, 16 * index, 16, 1024) for index in range(8)]

    assert [lsn - rig.begin_lsn for lsn in lsns] == [1, 1, 1, 1, 2, 2, 2, 2]
    await rig.commit()
    assert rig.durable[-1] == rig.begin_lsn + 2


async def test_a_row_ends_at_about_64_kib_of_records(open_rig: OpenRig) -> None:
    rig = await open_rig()
    header = {"key": "x" * (ROW_BYTES // 3)}

    lsns = [
        rig.log.append([MessagesSent(1, position, position, NOW_MS, [1], headers=[header])], [b"x"], NOW_MS)
        for position in range(4)
    ]

    assert [lsn - rig.begin_lsn for lsn in lsns] == [1, 1, 2, 2]
    await rig.commit()


async def test_a_large_append_stands_in_a_row_alone(open_rig: OpenRig) -> None:
    rig = await open_rig()

    assert rig.send(1, 0, 1, 10) == rig.begin_lsn + 1
    assert rig.send(1, 1, 2, 600_000) == rig.begin_lsn + 2
    assert rig.send(1, 3, 1, 10) == rig.begin_lsn + 3
    await rig.commit()

    messages, missing = await rig.page(1, [0, 4], 10_000_000)
    assert [len(message.body) for message in messages] == [10, 600_000, 600_000, 10]
    assert missing == []


async def test_a_closed_row_takes_nothing_more(open_rig: OpenRig) -> None:
    rig = await open_rig()

    rig.send(1, 0, 1)
    assert rig.log.close_row() == rig.begin_lsn + 1
    assert rig.log.close_row() == rig.begin_lsn + 1
    assert rig.send(1, 1, 1) == rig.begin_lsn + 2
    await rig.commit()
    assert rig.log.durable_lsn == rig.begin_lsn + 2


async def test_many_batches_become_durable_in_order(open_rig: OpenRig) -> None:
    rig = await open_rig()

    for index in range(300):
        rig.send(1, 16 * index, 16, 4096)
        rig.log.flush()
    await rig.commit()

    assert rig.durable == sorted(rig.durable)
    messages, _ = await rig.page(1, [0, 300 * 16], 1 << 30)
    assert positions(messages) == list(range(300 * 16))


async def test_an_append_that_cannot_be_encoded_leaves_no_trace(open_rig: OpenRig, place: Place) -> None:
    rig = await open_rig()
    rig.send(1, 0, 1)
    before = (rig.log.last_lsn, rig.log.pending.records, rig.log.pending.bytes)

    with pytest.raises(UnicodeEncodeError):
        rig.log.append([deleted(1, 0, 1), QueueCreated(2, "admin", "\ud800", QueueAttributes(), NOW_MS)], [], NOW_MS)

    assert (rig.log.last_lsn, rig.log.pending.records, rig.log.pending.bytes) == before
    await rig.store(1, 1, 1)
    await place.crash(rig.log)
    assert (await open_rig()).recovered == [sent(1, 0, 1)[0], sent(1, 1, 1)[0]]


# Recovery


async def test_after_a_close_everything_is_there_again(open_rig: OpenRig) -> None:
    rig = await open_rig()
    first, second = sent(1, 0, 3), sent(2, 0, 2)
    rig.log.append([NumbersReserved(9, 9, 9), first[0]], first[1], NOW_MS)
    await rig.commit()
    rig.log.append([second[0], deleted(1, 0, 2)], second[1], NOW_MS + 5)
    await rig.log.close()

    again = await open_rig()

    assert again.report is not None
    assert again.report.clean
    assert not again.report.created
    assert again.report.last_lsn == rig.begin_lsn + 2
    assert again.stored_rows == [
        (rig.begin_lsn + 1, NOW_MS, [NumbersReserved(9, 9, 9), first[0]]),
        (rig.begin_lsn + 2, NOW_MS + 5, [second[0], deleted(1, 0, 2)]),
    ]
    assert [message.body for message in (await again.page(2, [0, 2]))[0]] == second[1]


async def test_after_a_crash_what_was_durable_is_there_and_the_rest_is_not(open_rig: OpenRig, place: Place) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 3)
    await rig.store(1, 3, 3)
    rig.send(1, 6, 3)
    await place.crash(rig.log)

    again = await open_rig()

    assert again.report is not None
    assert not again.report.clean
    assert not again.report.numbers_jump
    assert [lsn - rig.begin_lsn for lsn, _, _ in again.stored_rows] == [1, 2]
    assert positions((await again.page(1, [0, 6]))[0]) == list(range(6))
    assert again.begin_lsn - rig.begin_lsn == len(again.rows) - len(rig.rows)
    assert again.send(1, 6, 1) == again.begin_lsn + 1


def told(rig: LogRig) -> list[AnyPart]:
    """The parts of the checkpoint as written by the core; the storage adds the id of its log."""
    header, *others = rig.parts
    assert isinstance(header, CheckpointHeader)
    assert rig.report is not None
    assert header.log_id == rig.report.log_id
    return [structs.replace(header, log_id=""), *others]


async def test_recovery_begins_with_the_newest_checkpoint_and_goes_on_above_it(open_rig: OpenRig, place: Place) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 1)
    await rig.checkpoint()
    await rig.store(1, 1, 1)
    await rig.checkpoint()
    await rig.store(1, 2, 1)
    await place.crash(rig.log)

    again = await open_rig()

    assert again.report is not None
    begin_lsn = rig.begin_lsn
    assert again.report.checkpoint_lsn == begin_lsn + 2
    assert told(again) == list(checkpoint_parts(begin_lsn + 2, begin_lsn + 2))
    assert [lsn for lsn, _, _ in again.stored_rows] == [begin_lsn + 3]


async def test_crash_after_crash_loses_nothing(open_rig: OpenRig, place: Place) -> None:
    stored: list[int] = []
    for life in range(4):
        rig = await open_rig()
        assert [lsn for lsn, _, _ in rig.stored_rows] == stored
        assert [lsn for lsn, _, _ in rig.rows] == list(range(1, rig.begin_lsn + 1))
        stored.append(await rig.store(1, life, 1))
        await place.crash(rig.log)

    rig = await open_rig()
    assert positions((await rig.page(1, [0, 4]))[0]) == [0, 1, 2, 3]


# Checkpoints


async def test_a_checkpoint_counts_only_once_its_end_is_durable(open_rig: OpenRig, place: Place) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 1)
    rig.send(1, 1, 1)
    first_lsn = rig.begin_lsn + 1
    for part in checkpoint_parts(first_lsn, first_lsn + 1):
        rig.log.write_checkpoint(part)
    await rig.page(1, [0, 1])  # all earlier answers have arrived by now
    assert rig.checkpoints_done == []

    await rig.commit()

    await rig.until(lambda: rig.checkpoints_done == [first_lsn])
    assert rig.log.droppable_lsn == first_lsn


async def test_a_new_header_abandons_the_unfinished_checkpoint(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 1)
    rig.log.write_checkpoint(CheckpointHeader(rig.begin_lsn + 1, NOW_MS, 5, 5, 5))

    await rig.checkpoint()
    await rig.log.close()

    again = await open_rig()
    assert told(again) == list(checkpoint_parts(rig.begin_lsn + 1, rig.begin_lsn + 1))


async def test_parts_may_come_between_appends(open_rig: OpenRig) -> None:
    rig = await open_rig()
    rig.send(1, 0, 1)
    rig.log.flush()
    rig.log.write_checkpoint(CheckpointHeader(1, NOW_MS, 1, 1, 1))
    rig.send(1, 1, 1)
    rig.log.flush()
    rig.log.write_checkpoint(CheckpointEnd(2, 1))

    await rig.commit()

    await rig.until(lambda: rig.checkpoints_done == [1])


# Pages


async def test_a_page_brings_back_messages_as_they_were_sent(open_rig: OpenRig) -> None:
    rig = await open_rig()
    record = MessagesSent(7, 0, 50, NOW_MS, [1, 2, 3], headers=[None, {"a": "ä"}, None], visible_ms=[0, 5, 6])
    rig.log.append([record], [b"x", b"yy", b"zzz"], NOW_MS)
    await rig.commit()

    messages, missing = await rig.page(7, [1, 2])

    assert messages == [
        StoredMessage(1, 51, NOW_MS, b"yy", {"a": "ä"}, 5),
        StoredMessage(2, 52, NOW_MS, b"zzz", None, 6),
    ]
    assert missing == []


async def test_a_page_picks_scattered_positions_out_of_many_queues(open_rig: OpenRig) -> None:
    rig = await open_rig()
    for index in range(40):
        for queue_id in (1, 2, 3):
            rig.send(queue_id, 25 * index, 25)
        await rig.commit()
    wanted = [0, 24, 25, 26, 333, 500, 501, 502, 503, 999]

    messages, missing = await rig.page(2, pack_runs(wanted))

    assert positions(messages) == wanted
    assert [message.body for message in messages] == [body(2, position) for position in wanted]
    assert [message.message_id for message in messages] == [position + 1000 for position in wanted]
    assert missing == []


async def test_a_page_is_a_prefix_that_fits(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 10, 100)
    await rig.store(1, 10, 10, 100)

    assert positions((await rig.page(1, [0, 20], 1250))[0]) == list(range(12))
    assert positions((await rig.page(1, [3, 2, 10, 2], 300))[0]) == [3, 4, 15]


async def test_a_page_is_bounded_by_headers_and_origins_too(open_rig: OpenRig) -> None:
    rig = await open_rig()
    header = {"ä": "x" * 998}
    record = MessagesSent(1, 0, 0, NOW_MS, [1] * 20, headers=[None, *[header] * 19])
    origins: list[Origin | None] = [Origin("other", 1, NOW_MS, 1, "age")] * 20
    moved = MessagesSent(2, 0, 20, NOW_MS, [1] * 20, origins=origins)
    rig.log.append([record, moved], [b"x"] * 40, NOW_MS)
    await rig.commit()

    messages, missing = await rig.page(1, [0, 20], 3100)
    assert (positions(messages), missing) == ([0, 1, 2, 3], [])
    assert [message.headers for message in messages] == [None, header, header, header]
    assert positions((await rig.page(1, [2, 3, 5, 2], 3100))[0]) == [2, 3, 4]
    assert positions((await rig.page(1, [2, 3, 5, 2], 10))[0]) == [2]
    assert positions((await rig.page(2, [0, 20], 1000))[0]) == list(range(7))
    assert [message.body for message in (await rig.page(2, [3, 2]))[0]] == [b"x"] * 2


async def test_a_page_has_at_least_one_message(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 3, 5000)

    assert positions((await rig.page(1, [1, 2], 10))[0]) == [1]


async def test_a_page_tells_what_cannot_be_found(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 4)

    messages, missing = await rig.page(1, [2, 5])
    nothing, all_missing = await rig.page(99, [0, 2, 3, 1])

    assert positions(messages) == [2, 3]
    assert missing == [4, 3]
    assert (nothing, all_missing) == ([], [0, 2, 3, 1])


async def test_a_page_waits_until_its_lsn_is_durable(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 1)
    lsn = rig.send(1, 1, 1)
    waiting = rig.ask(1, [0, 2], min_lsn=lsn)
    await rig.page(1, [0, 1])
    assert waiting not in rig.pages

    await rig.commit()

    await rig.until(lambda: waiting in rig.pages)
    assert positions(rig.pages[waiting][0]) == [0, 1]


# Segments


async def test_sealing_keeps_every_message_readable(open_rig: OpenRig) -> None:
    rig = await open_rig()
    for index in range(5):
        await rig.store(1, 10 * index, 10)
        await rig.store(2, 3 * index, 3)
        await rig.log.seal_now()
    await rig.store(1, 50, 10)

    messages, missing = await rig.page(1, [5, 55])
    assert positions(messages) == list(range(5, 60))
    assert missing == []
    assert [(segment.first_lsn, segment.last_lsn, segment.queues) for segment in rig.log.closed_segments()] == [
        (
            1 if not index else rig.begin_lsn + 2 * index + 1,
            rig.begin_lsn + 2 * index + 2,
            [(1, 10 * index, 10 * index + 10), (2, 3 * index, 3 * index + 3)],
        )
        for index in range(5)
    ]


async def test_sealing_nothing_makes_no_segment(open_rig: OpenRig) -> None:
    rig = await open_rig()

    for _ in range(2):
        await rig.log.seal_now()

    assert len(rig.log.closed_segments()) == rig.begin_lsn, "an engine's row is all that can be sealed"


async def test_the_active_segment_shows_its_durable_rows(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await rig.log.seal_now()
    sealed = rig.log.closed_segments()
    assert await rig.log.active_segment() is None
    await rig.store(1, 0, 3)
    await rig.store(2, 0, 1)
    await rig.store(1, 3, 2)

    active = await rig.log.active_segment()

    assert active is not None
    assert (active.first_lsn, active.last_lsn) == (rig.begin_lsn + 1, rig.begin_lsn + 3)
    assert (active.messages, active.is_sealed) == (6, False)
    assert (active.first_ms, active.last_ms, active.bytes > 0) == (NOW_MS, NOW_MS, True)
    assert active.queues == [(1, 0, 5), (2, 0, 1)]

    await rig.log.seal_now()

    assert await rig.log.active_segment() is None
    [closed] = rig.log.closed_segments()[len(sealed) :]
    assert (closed.number, closed.is_sealed, closed.first_ms, closed.queues) == (
        active.number,
        True,
        NOW_MS,
        active.queues,
    )


async def test_a_failed_log_describes_no_segment(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 3)
    await rig.log.close()

    with pytest.raises(LogFailed):
        await rig.log.active_segment()


async def test_a_retired_segment_asks_for_a_checkpoint(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 1)

    await rig.log.seal_now()

    await rig.until(lambda: rig.checkpoints_wanted)


async def test_a_segment_is_not_dropped_before_the_oldest_kept_checkpoint_covers_it(
    open_rig: OpenRig, place: Place
) -> None:
    """Else its deletes would be forgotten and the messages of older segments would rise again."""
    rig = await open_rig()
    await rig.store(1, 0, 3)
    await rig.log.seal_now()
    rig.log.append([deleted(1, 0, 3)], (), NOW_MS)
    await rig.commit()
    await rig.log.seal_now()
    first, second = (segment.number for segment in rig.log.closed_segments())

    assert await rig.log.drop_segments([second], 0) == []
    await rig.checkpoint(rig.begin_lsn + 1)
    assert await rig.log.drop_segments([second], 0) == []
    await rig.checkpoint()
    assert rig.log.droppable_lsn == rig.begin_lsn + 1, (
        "two checkpoints are kept and the older one does not know the deletes"
    )
    assert await rig.log.drop_segments([second], 0) == []
    assert [segment.number for segment in rig.log.closed_segments()] == [first, second]
    await place.crash(rig.log)

    again = await open_rig()
    assert again.report is not None
    assert again.report.checkpoint_lsn == rig.begin_lsn + 2


async def test_a_covered_segment_is_dropped_and_stays_away(open_rig: OpenRig, place: Place) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 3)
    await rig.log.seal_now()
    await rig.store(1, 3, 3)
    await rig.log.seal_now()
    await rig.checkpoint()
    await rig.checkpoint()
    first, second = (segment.number for segment in rig.log.closed_segments())

    assert await rig.log.drop_segments([first], 0) == [first]

    assert [segment.number for segment in rig.log.closed_segments()] == [second]
    messages, missing = await rig.page(1, [0, 6])
    assert positions(messages) == [3, 4, 5]
    assert missing == [0, 3]
    await place.crash(rig.log)
    again = await open_rig()
    assert [segment.number for segment in again.log.closed_segments()] == [second]
    assert again.send(1, 6, 1) == again.begin_lsn + 1


async def test_a_segment_stays_until_the_deletes_that_emptied_it_are_durable(open_rig: OpenRig) -> None:
    """Else a crash would take the deletes back, and messages that live again would have lost their bodies."""
    rig = await open_rig()
    await rig.store(1, 0, 3)
    await rig.log.seal_now()
    await rig.checkpoint()
    await rig.checkpoint()
    (segment,) = rig.log.closed_segments()
    # No row leaves before a flush: the open row stands for a slow commit.
    delete_lsn = rig.log.append([deleted(1, 0, 3)], (), NOW_MS)

    dropping = asyncio.create_task(rig.log.drop_segments([segment.number], delete_lsn))
    await asyncio.sleep(0)
    assert rig.log.closed_segments() == []
    # A second request, answered behind the first: the first has been examined by then.
    assert await rig.log.drop_segments([77], 0) == []
    assert not dropping.done()
    messages, _ = await rig.page(1, [0, 3])
    assert positions(messages) == [0, 1, 2]

    await rig.commit()
    assert await dropping == [segment.number]
    assert await rig.page(1, [0, 3]) == ([], [0, 3])


async def test_a_held_checkpoint_and_the_rows_behind_it_stay_until_the_last_release(
    open_rig: OpenRig, place: Place
) -> None:
    rig = await open_rig()
    assert await rig.log.hold_checkpoint() is None
    await rig.store(1, 0, 3)
    held_lsn = await rig.checkpoint()
    held = await rig.log.hold_checkpoint()
    assert held is not None
    assert held.lsn == held_lsn
    assert await rig.log.hold_checkpoint() == held
    await rig.store(1, 3, 3)
    await rig.log.seal_now()
    (segment,) = rig.log.closed_segments()

    newest = held_lsn
    for _ in range(3):
        await rig.store(2, 0, 1)
        newest = await rig.checkpoint()

    # The caller knows its holds: the log tells what may go without them, and keeps the rows of the held checkpoint.
    assert rig.log.droppable_lsn == newest - 1
    rig.log.release_checkpoint(held.number)
    assert await rig.log.drop_segments([segment.number], 0) == []
    rig.log.release_checkpoint(held.number)
    assert await rig.log.drop_segments([segment.number], 0) == [segment.number]
    first_lsn, last_lsn = segment.first_lsn, segment.last_lsn
    assert (await rig.log.find_rows(last_lsn, 0)).reclaimed == [(first_lsn, last_lsn)]
    await place.crash(rig.log)
    again = await open_rig()
    assert [part.lsn for part in again.parts if isinstance(part, CheckpointHeader)] == [newest]
    assert (await again.log.find_rows(last_lsn + 5, last_lsn - 1)).reclaimed == [(last_lsn, last_lsn)]
    assert (await again.log.find_rows(first_lsn, first_lsn - 1)).reclaimed == [(first_lsn, first_lsn)]
    assert (await again.log.find_rows(last_lsn + 5, last_lsn)).reclaimed == []


async def test_a_checkpoint_that_was_held_at_a_crash_is_superseded_like_any_other(
    open_rig: OpenRig, place: Place
) -> None:
    rig = await open_rig()
    await rig.store(1, 0, 3)
    await rig.checkpoint()
    assert await rig.log.hold_checkpoint() is not None
    await rig.log.seal_now()
    for _ in range(2):
        await rig.store(2, 0, 1)
        await rig.checkpoint()
    await place.crash(rig.log)

    again = await open_rig()
    first = again.log.closed_segments()[0].number
    assert await again.log.drop_segments([first], 0) in ([], [first])
    await again.checkpoint()
    await again.checkpoint()
    # The storage first keeps how messages of the life before left.
    await again.until(lambda: again.log.droppable_lsn >= rig.begin_lsn + 2)


async def test_standing_pins_outlive_a_crash(open_rig: OpenRig, place: Place) -> None:
    rig = await open_rig()
    assert not rig.log.standing_pins
    pins = [StandingPinEntry("hourly", NOW_MS, 60_000), StandingPinEntry("nightly", NOW_MS, 3_600_000)]
    await rig.log.keep_standing_pins(pins)
    await rig.store(1, 0, 1)
    await place.crash(rig.log)

    again = await open_rig()
    assert list(again.log.standing_pins or ()) == pins
    await again.log.keep_standing_pins(pins[:1])
    await again.log.close()
    assert list((await open_rig()).log.standing_pins or ()) == pins[:1]


async def test_rows_of_two_starts_have_two_numbers(open_rig: OpenRig, place: Place) -> None:
    rig = await open_rig()
    before = await rig.store(1, 0, 1)
    number = (await rig.log.find_rows(before, before)).start
    await rig.log.close()

    again = await open_rig()
    after = await again.store(1, 1, 1)

    assert await again.log.find_rows(before, 0) == FoundRows(number, [])
    # A log in memory has no numbers of starts.
    assert ((await again.log.find_rows(after, 0)).start != number) == bool(number)
    assert await again.log.find_rows(0, 0) == FoundRows("", [])
    assert again.log.log_id == rig.log.log_id


async def test_the_log_takes_time_from_the_broker_only(open_rig: OpenRig) -> None:
    """The next start and the age of history go on from times in the log, and the machine's clock may be wrong."""
    rig = await open_rig()
    await rig.store(1, 0, 3)
    await rig.checkpoint()
    await rig.log.seal_now()
    await rig.log.close()

    again = await open_rig()

    assert [segment.last_ms for segment in again.log.closed_segments()] == [NOW_MS]
    assert [part.time_ms for part in again.parts if isinstance(part, CheckpointHeader)] == [NOW_MS]


async def test_unknown_segments_are_not_dropped(open_rig: OpenRig) -> None:
    rig = await open_rig()

    assert await rig.log.drop_segments([1, 77], 0) == []


async def test_a_failed_log_takes_nothing_more(open_rig: OpenRig, place: Place) -> None:
    rig = await open_rig()
    await place.crash(rig.log)

    with pytest.raises(LogFailed):
        rig.send(1, 0, 1)
    with pytest.raises(LogFailed):
        rig.log.flush()
    with pytest.raises(LogFailed):
        rig.ask(1, [0, 1])
