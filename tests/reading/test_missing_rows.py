"""Lives from a log with missing rows: each certain event is true, and no event of a readable row is left out."""

import random

import msgspec
from msgspec import structs

from cmqd_reading.births import birth_in, births_in, may_store_in
from cmqd_reading.life import Life
from cmqd_segment.records import AnyRecord
from cmqd_types.histories import LifeEvent, LifeKind
from support.cases import each_case
from support.core.busy_rig import busy_rig

LIVES = 60
encode = msgspec.msgpack.encode
OF_RANGES = {LifeKind.EXPIRED, LifeKind.CLEARED, LifeKind.QUEUE_DELETED, LifeKind.REWOUND, LifeKind.DELIVERY_DROPPED}
"""Kinds of events that may come from a record of a range, which need the state of the message."""


def events(rows: list[list[AnyRecord]], path: list[int], missing: set[int]) -> list[LifeEvent]:
    life = Life(path)
    for lsn, records in enumerate(rows, 1):
        if lsn in missing:
            life.miss(lsn, lsn)
        else:
            life.feed(lsn, lsn, records)
    return life.result(len(rows), len(rows)).events


@each_case("seed", range(20))
def test_each_certain_event_is_true_and_no_named_event_is_left_out(seed: int) -> None:
    choose = random.Random(seed)
    rig, _ = busy_rig(seed, 150)
    rows = rig.log.rows
    births = {birth.message_id: birth for records in rows for birth in births_in(records)}
    ids = sorted(births)
    told = 0
    for message_id in choose.sample(ids, min(LIVES, len(ids))):
        path = [message_id]
        while parent := births[path[0]].parent_id:
            path.insert(0, parent)
        whole = events(rows, path, set())
        stores = {lsn for lsn, records in enumerate(rows, 1) if any(birth_in(records, each) for each in path)}
        missing = {lsn for lsn in range(1, len(rows) + 1) if lsn not in stores and choose.random() < 0.3}

        partial = events(rows, path, missing)

        facts = {(event.lsn, event.kind, event.message_id) for event in whole}
        for event in partial:
            if event.is_certain and event.kind != LifeKind.ROWS_MISSING:
                assert (event.lsn, event.kind, event.message_id) in facts
        found = {(event.lsn, event.kind, event.message_id) for event in partial}
        # A move in a missing row is not seen, and the life behind it neither.
        followed = {event.message_id for event in partial}
        # A record of a lease names the message only if the row of the receive is readable.
        leases = {LifeKind.LEASE_ENDED, LifeKind.LEASE_CHANGED, LifeKind.RELEASED}
        for event in whole:
            is_readable = event.lsn not in missing and event.message_id in followed
            if is_readable and event.kind not in leases | OF_RANGES:
                assert (event.lsn, event.kind, event.message_id) in found
        told += len(partial)
        lost = [event for event in whole if event.lsn in missing]
        later = [event for event in partial if lost and event.lsn > lost[0].lsn]
        assert not later or any(event.kind == LifeKind.ROWS_MISSING for event in partial)
    assert told > LIVES


@each_case("seed", range(20))
def test_rows_that_do_not_name_the_message_may_be_left_out(seed: int) -> None:
    choose = random.Random(seed)
    rig, _ = busy_rig(seed, 150)
    rows = rig.log.rows
    metas = [encode(records) for records in rows]
    births = {birth.message_id: birth for records in rows for birth in births_in(records)}
    left_out = 0
    for message_id in choose.sample(sorted(births), LIVES // 2):
        path = [message_id]
        while parent := births[path[0]].parent_id:
            path.insert(0, parent)
        life, whole = Life(path), Life(path)
        for lsn, (records, meta) in enumerate(zip(rows, metas, strict=True), 1):
            whole.feed(lsn, lsn, records)
            if life.may_name(meta):
                life.feed(lsn, lsn, records)
            else:
                left_out += 1

        def nameless(event: LifeEvent) -> LifeEvent:
            return structs.replace(event, queue="", from_queue="", subscription="", schedule="")

        found, expected = life.result(len(rows), 0), whole.result(len(rows), 0)
        assert list(map(nameless, found.events)) == list(map(nameless, expected.events))
        assert [place.state for place in found.places] == [place.state for place in expected.places]
        assert whole.is_over == life.is_over
    assert left_out > len(rows)


def test_rows_that_store_a_message_are_found_without_a_decoder() -> None:
    rig, _ = busy_rig(3, 150)
    metas = [encode(records) for records in rig.log.rows]
    ids = sorted({birth.message_id for records in rig.log.rows for birth in births_in(records)})
    left_out = 0
    for message_id in [*ids[::7], ids[-1] + 1]:
        for records, meta in zip(rig.log.rows, metas, strict=True):
            may_store = may_store_in(meta, message_id)
            assert may_store or birth_in(records, message_id) is None
            left_out += not may_store
    assert left_out > len(ids)
