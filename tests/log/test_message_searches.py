"""Searches for messages by dedup id or header, in every log of this project."""

import asyncio

import pytest
from msgspec import structs

from cmqd.log.log_errors import LogFailed
from cmqd_reading import message_search
from cmqd_reading.message_search import MAX_FOUND, TIME_SLACK_MS, FoundMessages, MessageQuery
from cmqd_segment.manifest import SourceName
from cmqd_segment.records import MessagesMoved, MessagesSent, QueueCreated, QueueDeleted
from cmqd_types.attributes import QueueAttributes
from cmqd_types.messages import Headers, Origin
from support.storage.log_rig import NOW_MS, LogRig, OpenRig

FIRST_ID = 1000
"""Ids are positions plus this number."""
MINUTE_MS = 60_000
ORDER: Headers = {"order": "4711", "region": "north"}


async def store(rig: LogRig, *records: object, bodies: int = 0, time_ms: int = NOW_MS) -> int:
    """Commit a row."""
    lsn = rig.log.append(list(records), [b"x"] * bodies, time_ms)  # pyright: ignore[reportArgumentType]
    await rig.commit()
    return lsn


async def send(
    rig: LogRig, queue_id: int, position: int, headers: Headers | None, dedup_id: str | None = None, minute: int = 0
) -> int:
    """Commit a message, and return its row."""
    time_ms = NOW_MS + minute * MINUTE_MS
    record = MessagesSent(
        *(queue_id, position, FIRST_ID + position, time_ms, [1]),
        headers=None if headers is None else [headers],
        dedup_ids=None if dedup_id is None else [dedup_id],
    )
    return await store(rig, record, bodies=1, time_ms=time_ms)


async def found(rig: LogRig, query: MessageQuery) -> list[int]:
    """The positions of all messages that a search finds, over all of its answers."""
    positions: list[int] = []
    while True:
        part = (await rig.log.find_messages(query)).found
        positions += [message.message_id - FIRST_ID for message in part.messages]
        if not part.next_lsn:
            return positions
        assert (part.next_lsn, part.next_index) > (query.start_lsn, query.start_index), "it goes on"
        query = structs.replace(query, start_lsn=part.next_lsn, start_index=part.next_index)


async def sealed(rig: LogRig) -> None:
    await rig.log.seal_now()


@pytest.mark.parametrize("is_again", [False, True])
async def test_messages_are_found_by_header_and_by_dedup_id_in_all_segments(open_rig: OpenRig, is_again: bool) -> None:
    rig = await open_rig()
    await store(rig, QueueCreated(1, "admin", "orders", QueueAttributes(), NOW_MS))
    lsns = {0: await send(rig, 1, 0, ORDER, "order-4711")}
    await send(rig, 1, 1, {"order": "47110"})
    await send(rig, 1, 2, {"4711": "order"})
    await sealed(rig)
    lsns[3] = await send(rig, 1, 3, {"other": "x", "order": "4711"})
    await send(rig, 1, 4, {"order": ""}, "4711")
    if is_again:
        await rig.log.close()
        rig = await open_rig()

    answer = await rig.log.find_messages(MessageQuery(header=("order", "4711")))

    assert [(each.source_id, each.message_id, each.sent_ms, each.lsn) for each in answer.found.messages] == [
        (1, FIRST_ID + position, NOW_MS, lsn) for position, lsn in lsns.items()
    ]
    assert answer.owners == [SourceName(1, "admin", "orders")]
    assert not answer.found.missing
    for header, positions in {("order", ""): [4], ("region", "north"): [0], ("order", "4"): [], ("", ""): []}.items():
        assert await found(rig, MessageQuery(header=header)) == positions, header
    assert await found(rig, MessageQuery(dedup_id="order-4711")) == [0]
    assert await found(rig, MessageQuery(dedup_id="4711")) == [4]
    assert await found(rig, MessageQuery(dedup_id="order")) == []


async def test_a_moved_message_is_found_at_its_first_store(open_rig: OpenRig) -> None:
    rig = await open_rig()
    await send(rig, 1, 0, ORDER)
    moved = MessagesSent(
        2, 0, FIRST_ID + 1, NOW_MS, [1], headers=[ORDER], origins=[Origin("orders", FIRST_ID, 1, 3, "")]
    )
    await store(rig, MessagesMoved(1, [0, 1]), moved, bodies=1)

    assert await found(rig, MessageQuery(header=("order", "4711"))) == [0]


async def test_only_messages_of_the_range_of_time_are_found(open_rig: OpenRig) -> None:
    rig = await open_rig()
    for position in range(8):
        await send(rig, 1, position, ORDER, minute=position)
        if position % 2:
            await sealed(rig)

    async def within(first: float, last: float | None = None) -> list[int]:
        to_ms = None if last is None else round(NOW_MS + last * MINUTE_MS)
        return await found(
            rig, MessageQuery(header=("order", "4711"), from_ms=round(NOW_MS + first * MINUTE_MS), to_ms=to_ms)
        )

    assert await within(-1000) == list(range(8))
    assert await within(2, 5) == [2, 3, 4]
    assert await within(2.5, 3.5) == [3]
    assert await within(7) == [7]
    assert await within(8) == await within(-9, 0) == await within(1e9, 1e12) == []


async def test_a_row_that_began_before_the_end_of_the_range_is_searched(open_rig: OpenRig) -> None:
    """The time of a row is that of its newest record."""
    rig = await open_rig()
    for position in range(3):
        record = MessagesSent(1, position, FIRST_ID + position, NOW_MS, [1], headers=[ORDER])
        await store(rig, record, bodies=1, time_ms=NOW_MS + TIME_SLACK_MS - 1)
        await sealed(rig)

    assert await found(rig, MessageQuery(header=("order", "4711"), to_ms=NOW_MS + 1)) == [0, 1, 2]


async def test_an_answer_is_full_within_a_row_and_the_next_one_goes_on_there(open_rig: OpenRig) -> None:
    rig = await open_rig()
    count = MAX_FOUND * 2 + 5
    headers: list[Headers | None] = [None if place % 2 else ORDER for place in range(count)]
    for first in (0, count):
        record = MessagesSent(1, first, FIRST_ID + first, NOW_MS, [1] * count, headers=headers)
        await store(rig, record, bodies=count)

    query = MessageQuery(header=("order", "4711"))
    first = (await rig.log.find_messages(query)).found
    assert len(first.messages) == MAX_FOUND
    assert await found(rig, query) == [
        first + place for first in (0, count) for place in range(count) if place % 2 == 0 or place == count - 1
    ]


async def test_a_long_search_ends_early_and_the_next_one_goes_on(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The storage process has its own limit; the smaller limit of this process takes effect in the other logs.
    monkeypatch.setattr(message_search, "SEARCHED_BYTES", 4096)
    rig = await open_rig()
    for position in range(40):
        await send(rig, 1, position, ORDER if position % 13 == 0 else {"other": "x"})
        if position == 20:
            await sealed(rig)

    assert await found(rig, MessageQuery(header=("order", "4711"))) == [0, 13, 26, 39]
    assert await found(rig, MessageQuery(header=("order", "none"))) == []


async def test_reclaimed_rows_of_the_range_are_told(open_rig: OpenRig) -> None:
    rig = await open_rig()
    lsns: list[int] = []
    for position in range(4):
        lsns.append(await send(rig, 1, position, ORDER, minute=position))
        await sealed(rig)
    await rig.checkpoint()
    await rig.checkpoint()
    second = next(each for each in rig.log.closed_segments() if each.first_lsn <= lsns[1] <= each.last_lsn)
    assert await rig.log.drop_segments([second.number], rig.log.last_lsn) == [second.number]

    async def missing(first: float, last: float) -> list[tuple[int, int]]:
        query = MessageQuery(
            header=("order", "4711"),
            from_ms=round(NOW_MS + first * MINUTE_MS),
            to_ms=round(NOW_MS + last * MINUTE_MS),
        )
        return (await rig.log.find_messages(query)).found.missing

    gone = [(second.first_lsn, second.last_lsn)]
    assert await missing(0, 9) == await missing(1, 1.5) == await missing(-1, 1) == gone
    assert await missing(2.5, 9) == await missing(-5, -1) == []
    assert await found(rig, MessageQuery(header=("order", "4711"))) == [0, 2, 3]


async def test_messages_of_one_queue_are_found_and_those_of_a_deleted_queue_of_the_name(open_rig: OpenRig) -> None:
    rig = await open_rig()
    for number, (account, name) in enumerate([("admin", "orders"), ("shop", "orders"), ("admin", "mails")], 1):
        await store(rig, QueueCreated(number, account, name, QueueAttributes(), NOW_MS))
        await send(rig, number, number, ORDER)
    await store(rig, QueueDeleted(1))
    await store(rig, QueueCreated(4, "admin", "orders", QueueAttributes(), NOW_MS))
    await send(rig, 4, 4, ORDER)
    await sealed(rig)

    answer = await rig.log.find_messages(MessageQuery(header=("order", "4711"), account="admin", source="orders"))

    # A log that does not know a queue hands on its messages: the server has the names.
    owners = {owner.id: (owner.account, owner.name) for owner in answer.owners}
    positions = [
        each.message_id - FIRST_ID for each in answer.found.messages if owners[each.source_id] == ("admin", "orders")
    ]
    assert positions == [1, 4]


async def test_an_empty_log_has_no_message(open_rig: OpenRig) -> None:
    rig = await open_rig()

    assert (await rig.log.find_messages(MessageQuery(dedup_id="a"))).found == FoundMessages([], [])


async def test_a_cancelled_search_ends_and_a_close_ends_all(open_rig: OpenRig) -> None:
    rig = await open_rig()
    for position in range(40):
        await send(rig, 1, position, ORDER)
    query = MessageQuery(header=("order", "4711"))

    searches = [asyncio.ensure_future(rig.log.find_messages(query)) for _ in range(9)]
    await asyncio.sleep(0)
    for search in searches[:8]:
        search.cancel()
    assert len((await searches[8]).found.messages) == 40

    searches = [asyncio.ensure_future(rig.log.find_messages(query)) for _ in range(5)]
    await asyncio.sleep(0)
    await rig.log.close()
    done, pending = await asyncio.wait(searches, timeout=10)
    assert not pending
    assert {type(each.exception()) for each in done} <= {type(None), LogFailed}
    assert not rig.fatal


async def test_a_full_answer_has_no_message_of_another_account(open_rig: OpenRig) -> None:
    """Also of rows that are not sealed, whose queues the storage process does not know."""
    rig = await open_rig()
    for number, account in enumerate(["admin", "shop", "shop"], 1):
        await store(rig, QueueCreated(number, account, f"orders-{number}", QueueAttributes(), NOW_MS))
    await store(rig, QueueDeleted(3))
    for queue_id, count in ((2, 1), (1, 2 * MAX_FOUND), (3, 1), (1, 1)):
        headers: list[Headers | None] = [ORDER] * count
        record = MessagesSent(queue_id, 0, FIRST_ID * queue_id, NOW_MS, [1] * count, headers=headers)
        await store(rig, record, bodies=count)

    answer = await rig.log.find_messages(MessageQuery(header=("order", "4711"), account="shop"))

    assert [message.source_id for message in answer.found.messages if message.source_id != 1] == [2, 3]
    assert answer.found.next_lsn == 0


async def test_a_full_answer_leaves_out_the_messages_of_hundreds_of_unknown_queues(open_rig: OpenRig) -> None:
    rig = await open_rig()
    queues = range(1, 2 * MAX_FOUND)
    await store(rig, *(QueueCreated(number, "admin", f"q-{number}", QueueAttributes(), NOW_MS) for number in queues))
    await store(rig, QueueCreated(1000, "shop", "orders", QueueAttributes(), NOW_MS))
    records = [MessagesSent(number, 0, FIRST_ID, NOW_MS, [1], headers=[ORDER]) for number in (*queues, 1000)]
    await store(rig, *records, bodies=len(records))

    answer = await rig.log.find_messages(MessageQuery(header=("order", "4711"), account="shop"))

    assert [message.source_id for message in answer.found.messages] == [1000]
    assert answer.found.next_lsn == 0
