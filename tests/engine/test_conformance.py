"""The promises of ``cmqd.engine.interface``, for every engine."""

import time
from collections.abc import Callable, Iterator

import pytest
from engine.conftest import OpenEngine
from msgspec import structs

from cmqd.engine.engine_errors import AccountsConflict, Fenced, LogRetired, NotEmpty, RowsBehind
from cmqd.engine.fencing import FencedEngine
from cmqd.engine.interface import EngineRow, ImportedLog, News, StoredAccounts, StoredCheckpoint, checksum_of
from cmqd.log.values import BrokerSeen
from support.eventually import eventually_elsewhere


def row(lsn: int, data: bytes = b"body") -> EngineRow:
    return EngineRow(lsn, 0, 1000 + lsn, 1, b"queues %d" % lsn, b"meta %d" % lsn, data)


def rows(first: int, last: int) -> list[EngineRow]:
    return [row(lsn) for lsn in range(first, last + 1)]


def lsns(engine: FencedEngine, above: int = 0) -> list[int]:
    return [stored.lsn for stored in engine.rows(above)]


def led(open_engine: OpenEngine, appended: int) -> FencedEngine:
    """An engine that leads, with rows from 2 on."""
    engine = open_engine()
    engine.take()
    engine.append(rows(2, 1 + appended))
    return engine


def test_the_first_leader_begins_with_row_1(open_engine: OpenEngine):
    engine = open_engine()

    taken = engine.take()

    assert (taken.epoch, taken.last_lsn, taken.log_id) == (1, 1, "log-1")
    assert list(engine.rows(0)) == [EngineRow(1, 1, 0, 0, b"", b"", b"")]


def test_an_empty_engine_has_nothing(open_engine: OpenEngine):
    engine = open_engine()

    assert engine.log_id() is None
    assert engine.newest_checkpoint() is None
    assert engine.load_accounts() is None
    assert list(engine.rows(0)) == []


def test_a_broker_that_does_not_lead_changes_nothing(open_engine: OpenEngine):
    leader = led(open_engine, 1)
    standby = open_engine()

    for change in changes_of(standby).values():
        with pytest.raises(Fenced, match="does not lead"):
            change()

    assert lsns(leader) == [1, 2]
    assert leader.newest_checkpoint() is None


def test_rows_come_back_as_they_were_appended(open_engine: OpenEngine):
    engine = open_engine()
    engine.take()
    appended = [row(2, b""), row(3, bytes(range(256)) * 5000), EngineRow(4, 0, 0, 0, b"", b"", b"x")]

    engine.append(appended)

    found = list(open_engine().rows(1))
    assert found == [appended_row._replace(epoch=1) for appended_row in appended]
    assert [checksum_of(stored) for stored in found] == [checksum_of(appended_row) for appended_row in appended]


def test_rows_are_appended_from_views(open_engine: OpenEngine):
    engine = open_engine()
    engine.take()
    whole = memoryview(b"0123456789")

    engine.append([EngineRow(2, 0, 1, 1, b"q", whole[:4], whole[4:])])  # type: ignore[arg-type]

    (stored,) = engine.rows(1)
    assert (stored.meta, stored.data) == (b"0123", b"456789")


def test_rows_are_read_in_pages(open_engine: OpenEngine):
    engine = open_engine()
    engine.take()
    for first in range(2, 5002, 500):
        engine.append(rows(first, first + 499))

    assert lsns(engine) == list(range(1, 5002))
    assert lsns(engine, above=4990) == list(range(4991, 5002))


def test_rows_are_read_without_data(open_engine: OpenEngine):
    engine = led(open_engine, 3)

    found = list(engine.rows(1, with_data=False))

    assert found == [row(lsn)._replace(epoch=1, data=b"") for lsn in (2, 3, 4)]


@pytest.mark.parametrize("call", ["prove", "append", "put_checkpoint", "trim", "store_accounts", "store_standing_pins"])
def test_a_later_leader_fences_every_call(open_engine: OpenEngine, call: str):
    first = led(open_engine, 4)
    first.put_checkpoint(3, b"three")
    first.store_accounts(b"keys", expected_version=0)
    first.store_standing_pins(b"[hourly]")
    second = open_engine()
    taken = second.take()
    before = list(second.rows(0))

    with pytest.raises(Fenced, match="fenced: row 6 has epoch 6, mine is 1"):
        (changes_of(first) | {"prove": first.prove})[call]()

    assert (taken.epoch, taken.last_lsn, taken.log_id) == (6, 6, "log-1")
    assert list(second.rows(0)) == before
    assert second.newest_checkpoint() == StoredCheckpoint(3, b"three")
    assert second.load_accounts() == StoredAccounts(1, b"keys")
    assert second.load_standing_pins() == b"[hourly]"


def test_a_fenced_engine_asks_no_more(open_engine: OpenEngine):
    first = led(open_engine, 1)
    open_engine().take()
    with pytest.raises(Fenced):
        first.prove()

    for change in changes_of(first).values():
        with pytest.raises(Fenced):
            change()


def test_epochs_are_the_fences_below(open_engine: OpenEngine):
    led(open_engine, 2)
    second = open_engine()
    second.take()
    second.append(rows(5, 6))

    assert [(stored.lsn, stored.epoch) for stored in second.rows(0)] == [(1, 1), (2, 1), (3, 1), (4, 4), (5, 4), (6, 4)]
    assert [stored.is_fence for stored in second.rows(0)] == [True, False, False, True, False, False]


def test_a_leader_learns_the_time_of_the_newest_row_that_is_no_fence(open_engine: OpenEngine):
    assert open_engine().take().newest is None
    leader = open_engine()
    leader.take()
    leader.append(rows(3, 4))

    second, third = open_engine().take(), open_engine().take()

    assert second.newest == third.newest
    assert second.newest is not None
    assert second.newest[:3] == (4, 2, 1004)
    assert second.newest.stamp_ms is not None
    assert second.stamp_ms is not None
    assert third.stamp_ms is not None
    assert second.newest.stamp_ms <= second.stamp_ms <= third.stamp_ms


def test_an_imported_row_has_no_stamp(open_engine: OpenEngine):
    open_engine().import_log(imported(1, 2, last_lsn=2))

    taken = open_engine().take()

    assert taken.newest == (2, 0, 1002, None)
    assert taken.stamp_ms is not None


def test_a_proof_has_the_time_of_its_begin(open_engine: OpenEngine):
    engine = open_engine()
    assert engine.proved_at == float("-inf")
    engine.take()
    first = engine.proved_at
    engine.prove()
    second = engine.proved_at
    engine.append([row(2)])

    assert float("-inf") < first < second < engine.proved_at


def test_a_lower_checkpoint_never_replaces_a_higher(open_engine: OpenEngine):
    engine = led(open_engine, 5)

    engine.put_checkpoint(4, b"four")
    engine.put_checkpoint(3, b"three")
    assert engine.newest_checkpoint() == StoredCheckpoint(4, b"four")

    engine.put_checkpoint(4, b"four again")
    assert engine.newest_checkpoint() == StoredCheckpoint(4, b"four again")

    engine.put_checkpoint(6, b"six" * 1_000_000)
    assert engine.newest_checkpoint() == StoredCheckpoint(6, b"six" * 1_000_000)


def test_a_checkpoint_above_the_newest_row_is_refused(open_engine: OpenEngine):
    engine = led(open_engine, 2)

    with pytest.raises(ValueError, match="LSN 4 above the newest row 3"):
        engine.put_checkpoint(4, b"")

    assert engine.newest_checkpoint() is None
    engine.append([row(4)])


def test_a_trim_without_a_checkpoint_removes_nothing(open_engine: OpenEngine):
    engine = led(open_engine, 4)

    engine.trim([(1, 5)])

    assert lsns(engine) == [1, 2, 3, 4, 5]


def test_a_trim_removes_exactly_its_ranges(open_engine: OpenEngine):
    engine = led(open_engine, 9)
    engine.put_checkpoint(8, b"")

    engine.trim([(2, 3), (5, 5), (100, 200)])

    assert lsns(engine) == [1, 4, 6, 7, 8, 9, 10]


def test_a_trim_keeps_fences_the_newest_row_and_rows_above_the_checkpoint(open_engine: OpenEngine):
    first = led(open_engine, 3)
    first.put_checkpoint(4, b"")
    second = open_engine()
    second.take()
    second.append(rows(6, 8))

    second.put_checkpoint(7, b"")
    second.trim([(1, 1000)])
    assert lsns(second) == [1, 5, 8]

    second.put_checkpoint(8, b"")
    second.trim([(1, 1000)])
    assert lsns(second) == [1, 5, 8]
    third = open_engine()
    assert third.take().epoch == 9
    third.trim([(1, 1000)])
    assert lsns(third) == [1, 5, 8, 9], "the time of the log is read from row 8"


def test_news_are_the_newest_row_and_the_version_of_the_accounts(open_engine: OpenEngine):
    standby = open_engine()
    assert standby.news() == News(0, 0, 0)
    leader = led(open_engine, 2)
    assert standby.news() == News(3, 1, 0)

    leader.store_accounts(b"accounts", expected_version=0)

    assert standby.news() == leader.news() == News(3, 1, 1)


def test_reclaimed_ranges_have_no_row_but_fences(open_engine: OpenEngine):
    leader = led(open_engine, 6)
    standby = open_engine()
    ranges = [(1, 3), (4, 5), (6, 6), (7, 9)]
    assert standby.reclaimed(ranges) == []
    leader.put_checkpoint(6, b"checkpoint")

    leader.trim([(1, 5)])

    assert sorted(standby.reclaimed(ranges)) == [(1, 3), (4, 5)]
    assert standby.reclaimed([(3, 6), (20, 30)]) == [], "a row is left, and no row was ever there"


def test_accounts_are_compared_and_set(open_engine: OpenEngine):
    engine = led(open_engine, 1)

    assert engine.store_accounts(b"one", expected_version=0) == 1
    assert engine.store_accounts(b"two", expected_version=1) == 2
    for expected_version in (0, 1, 3):
        with pytest.raises(AccountsConflict, match=f"version 2, not {expected_version}"):
            engine.store_accounts(b"other", expected_version=expected_version)

    assert engine.load_accounts() == StoredAccounts(2, b"two")
    assert engine.store_accounts(b"", expected_version=2) == 3
    assert open_engine().load_accounts() == StoredAccounts(3, b"")


def test_the_lock_has_one_owner(open_engine: OpenEngine):
    first, second = open_engine(), open_engine()

    assert first.try_lead()
    assert first.try_lead()
    assert not second.try_lead()

    first.take()
    first.release()
    assert second.try_lead()
    assert not first.try_lead()


def test_a_released_lead_changes_nothing(open_engine: OpenEngine):
    engine = led(open_engine, 1)
    engine.try_lead()

    engine.release()

    for change in changes_of(engine).values():
        with pytest.raises(Fenced, match="does not lead"):
            change()
    assert engine.take().epoch == 3


def test_a_leader_takes_again(open_engine: OpenEngine):
    engine = led(open_engine, 1)

    assert engine.take().epoch == 3
    engine.append([row(4)])

    assert [stored.epoch for stored in engine.rows(0)] == [1, 1, 3, 3]


def changes_of(engine: FencedEngine) -> dict[str, Callable[[], object]]:
    """Every call that changes anything; the row is the next one of the engine of ``led(..., 4)``."""
    return {
        "append": lambda: engine.append([row(6)]),
        "put_checkpoint": lambda: engine.put_checkpoint(4, b"stale"),
        "trim": lambda: engine.trim([(1, 5)]),
        "store_accounts": lambda: engine.store_accounts(b"stale", expected_version=1),
        "store_standing_pins": lambda: engine.store_standing_pins(b"stale"),
    }


def test_brokers_and_copies_are_listed(open_engine: OpenEngine):
    leader, standby, silent = led(open_engine, 2), open_engine(), open_engine()
    leader.announce(1, "11@boot", "first:5680")
    assert leader.try_lead()
    leader.prove()
    for engine in (standby, silent):
        assert not engine.try_lead()
    standby.announce(2, "12@boot", "second:5680")
    assert not standby.try_lead()

    view = leader.view()

    assert (view.newest_lsn, view.epoch) == (3, 1)
    # The clocks are those of the machine, and their difference is the time on the way.
    assert [structs.replace(broker, clock_offset_ms=None) for broker in view.brokers] == [
        BrokerSeen("first:5680", "11@boot", 1, True),
        BrokerSeen("second:5680", "12@boot", 2, False),
    ]
    assert view.leader == view.brokers[0]
    assert [view.rows_behind(broker) for broker in view.standbys] == [1]
    second = view.second_copy
    assert second is not None
    assert second.bytes_behind is not None
    assert second.bytes_behind >= 0
    standby.announce(3, "12@boot", "second:5680")
    assert not standby.try_lead()
    view = leader.view()
    assert [view.rows_behind(broker) for broker in view.standbys] == [0]


def test_brokers_are_listed_with_the_offsets_of_their_clocks(open_engine: OpenEngine):
    ahead_ms = [7_200_000]
    leader = open_engine(wall_ms=lambda: time.time_ns() // 1_000_000 + ahead_ms[0])
    assert leader.try_lead()
    for offset_ms in (7_200_000, -90_000_000):
        ahead_ms[0] = offset_ms
        leader.announce(1, "11@boot", "first:5680")
        assert leader.try_lead()

        (seen,) = leader.view().brokers

        assert seen.clock_offset_ms == pytest.approx(offset_ms, abs=20_000)
        assert (seen.address, seen.process, seen.lsn) == ("first:5680", "11@boot", 1)


def test_a_broker_that_has_ended_is_not_listed(open_engine: OpenEngine):
    leader, standby = led(open_engine, 1), open_engine()
    standby.announce(2, "12@boot", "second:5680")
    standby.try_lead()
    assert leader.view().brokers

    standby.close()

    eventually_elsewhere(lambda: not leader.view().brokers)


def test_an_empty_engine_has_an_empty_view(open_engine: OpenEngine):
    view = open_engine().view()

    assert (view.newest_lsn, view.epoch, view.brokers) == (0, 0, [])


def imported(*lsns: int, last_lsn: int, log_id: str = "imported", standing_pins: bytes = b"") -> ImportedLog:
    """A log with these rows, a checkpoint at the last, and accounts."""
    stored = [row(lsn) for lsn in lsns]
    batches = [stored[start : start + 2] for start in range(0, len(stored), 2)]
    checkpoint = StoredCheckpoint(last_lsn, b"checkpoint")
    return ImportedLog(log_id, last_lsn, lambda: iter(batches), checkpoint, b"keys", standing_pins)


def test_an_imported_log_keeps_its_numbers(open_engine: OpenEngine):
    open_engine().import_log(imported(2, 3, 6, last_lsn=7))

    leader = open_engine()
    assert leader.log_id() == "imported"
    assert (leader.newest_checkpoint(), leader.load_accounts()) == (
        StoredCheckpoint(7, b"checkpoint"),
        StoredAccounts(1, b"keys"),
    )
    assert [(stored.lsn, stored.epoch) for stored in leader.rows(0)] == [(2, 0), (3, 0), (6, 0), (8, 8)]
    assert checksum_of(next(iter(leader.rows(0)))) == checksum_of(row(2))
    taken = leader.take()
    leader.append([row(10)])
    assert (taken.epoch, taken.log_id, lsns(leader)) == (9, "imported", [2, 3, 6, 8, 9, 10])


def test_a_log_without_rows_is_imported(open_engine: OpenEngine):
    engine = open_engine()

    engine.import_log(ImportedLog("imported", 0, lambda: iter(()), None, b"keys"))

    assert lsns(engine) == [1]
    assert (engine.log_id(), engine.newest_checkpoint()) == ("imported", None)


def test_an_import_brings_the_standing_pins_and_a_repeat_those_of_its_time(open_engine: OpenEngine):
    open_engine().import_log(imported(1, 2, last_lsn=2, standing_pins=b"[hourly]"))
    assert open_engine().load_standing_pins() == b"[hourly]"

    open_engine().import_log(imported(1, 2, last_lsn=2, standing_pins=b"[nightly]"))
    assert open_engine().load_standing_pins() == b"[nightly]"
    leader = open_engine()
    leader.take()
    assert leader.load_standing_pins() == b"[nightly]"
    with pytest.raises(NotEmpty):
        open_engine().import_log(imported(1, 2, last_lsn=2, standing_pins=b"[late]"))

    assert leader.load_standing_pins() == b"[nightly]"


def test_an_import_is_repeated_until_a_broker_leads(open_engine: OpenEngine):
    log = imported(1, 2, 3, last_lsn=3)
    open_engine().import_log(log)
    open_engine().import_log(log)
    leader = open_engine()
    assert lsns(leader) == [1, 2, 3, 4]
    leader.take()

    with pytest.raises(NotEmpty, match="it has log imported, with rows up to 5"):
        open_engine().import_log(log)

    assert lsns(leader) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "other", [imported(1, last_lsn=1), imported(1, 2, last_lsn=2, log_id="other")], ids=["shorter", "other log"]
)
def test_an_engine_with_a_log_takes_no_other(open_engine: OpenEngine, other: ImportedLog):
    engine = open_engine()
    engine.import_log(imported(1, 2, last_lsn=2))
    before = list(engine.rows(0))

    with pytest.raises(NotEmpty):
        open_engine().import_log(other)

    assert (list(engine.rows(0)), open_engine().log_id()) == (before, "imported")


def test_an_import_that_ends_has_left_nothing(open_engine: OpenEngine):
    def batches() -> Iterator[list[EngineRow]]:
        yield [row(1)]
        raise OSError("the disk of the folder")

    with pytest.raises(OSError, match="the disk"):
        open_engine().import_log(ImportedLog("imported", 1, batches, None, b"keys"))

    engine = open_engine()
    assert (lsns(engine), engine.log_id(), engine.load_accounts()) == ([], None, None)
    assert engine.take().epoch == 1


def test_a_retired_log_has_no_leader_and_is_read(open_engine: OpenEngine):
    leader = led(open_engine, 4)
    leader.put_checkpoint(2, b"two")
    leader.store_accounts(b"keys", expected_version=0)
    exporter = open_engine()
    taken = exporter.take()
    exporter.release()

    exporter.retire(taken.last_lsn)
    exporter.retire(taken.last_lsn)

    standby = open_engine()
    for call in (standby.log_id, standby.take, exporter.take):
        with pytest.raises(LogRetired, match="log log-1 in the engine is retired"):
            call()
    with pytest.raises(NotEmpty):
        standby.import_log(imported(1, last_lsn=1))
    for change in changes_of(leader).values():
        with pytest.raises(Fenced):
            change()
    assert lsns(standby) == [1, 2, 3, 4, 5, 6]
    assert (standby.newest_checkpoint(), standby.load_accounts()) == (
        StoredCheckpoint(2, b"two"),
        StoredAccounts(1, b"keys"),
    )


@pytest.mark.parametrize("last_lsn", [1, 3, 4])
def test_a_log_is_retired_behind_its_newest_fence_alone(open_engine: OpenEngine, last_lsn: int):
    """A leader with a row above the fence, or another fence, goes on."""
    leader = led(open_engine, 2)

    with pytest.raises(RowsBehind, match="ends with row 3"):
        open_engine().retire(last_lsn)

    leader.append([row(4)])
    assert lsns(leader) == [1, 2, 3, 4]


def test_standing_pins_are_there_for_the_next_leader(open_engine: OpenEngine):
    first = led(open_engine, 1)
    assert first.load_standing_pins() == b""

    first.store_standing_pins(b"[hourly]")
    first.store_standing_pins(b"[nightly]")

    second = open_engine()
    second.take()
    assert second.load_standing_pins() == b"[nightly]"
    second.store_standing_pins(b"")
    assert open_engine().load_standing_pins() == b""
