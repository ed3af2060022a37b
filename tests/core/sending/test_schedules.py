"""Schedules: the message of each firing and its record are one row, and no time is fired twice."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import (
    InvalidArgument,
    MessageTooLarge,
    QueueNotFound,
    ScheduleDiffers,
    ScheduleExists,
    ScheduleNotFound,
    TooManySchedules,
)
from cmqd.core.facts.schedules import schedule_bytes
from cmqd.core.limits import MIB, Limits
from cmqd.core.operations.sending.schedules import FIRED_AT_ONCE, FIRED_BYTES, PUT_OFF_MS
from cmqd.core.outcome import WAITING, MissedFiring
from cmqd.server.loop import cron
from cmqd_segment.records import (
    ClockOffset,
    MessagesReceived,
    MessagesSent,
    ScheduleFired,
    SchedulePlanned,
)
from cmqd_types.messages import Headers
from cmqd_types.schedules import ScheduleInfo
from support.core.builders import ACCOUNT, KEY, START_MS, Rig, every, reread
from support.core.facts import facts

MINUTE_MS = 60_000
EVERY_MINUTE = str(MINUTE_MS)
NEXT_MS = (START_MS // MINUTE_MS + 1) * MINUTE_MS
"""The first minute after the start."""


def make(
    rig: Rig,
    name: str = "s",
    queue: str = "q",
    cron: str = EVERY_MINUTE,
    body: bytes = b"tick",
    headers: Headers | None = None,
    **attributes: Any,
) -> ScheduleInfo:
    named = {"queue": queue, "cron": cron, **attributes}
    return rig.done(rig.broker.create_schedule(ACCOUNT, name, named, body, headers, rig.now_ms))


def change(
    rig: Rig,
    attributes: Mapping[str, Any] | None = None,
    body: bytes | None = None,
    headers: Headers | None = None,
    name: str = "s",
) -> ScheduleInfo:
    return rig.done(rig.broker.set_schedule(ACCOUNT, name, attributes or {}, body, headers, rig.now_ms))


def info(rig: Rig, name: str = "s") -> ScheduleInfo:
    return rig.broker.schedule_info(ACCOUNT, name)


def firings(rig: Rig) -> list[ScheduleFired]:
    return [record for _, record in rig.log.records() if isinstance(record, ScheduleFired)]


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.create()
    return rig


# ---------------------------------------------------------------------- firing


def test_a_schedule_sends_its_message_at_each_time(rig: Rig):
    made = make(rig, headers={"kind": "tick"})
    assert (made.created, made.facts["next_ms"]) == (True, NEXT_MS)

    rig.advance(NEXT_MS - rig.now_ms - 1)
    assert rig.receive() == []
    rig.advance(1)
    (first,) = rig.receive()
    rig.delete(first.receipt_handle)
    rig.advance(MINUTE_MS)
    (second,) = rig.receive()

    assert (first.body, first.headers, first.enqueue_ms) == (b"tick", {"kind": "tick"}, NEXT_MS)
    assert (second.body, second.headers, second.enqueue_ms) == (b"tick", {"kind": "tick"}, NEXT_MS + MINUTE_MS)
    shown = info(rig)
    assert shown.counts == {"fired": 2, "missed": 0}
    assert shown.facts["last_message_id"] == second.message_id
    assert shown.facts["last_fired_ms"] == NEXT_MS + MINUTE_MS
    assert shown.facts["next_ms"] == NEXT_MS + 2 * MINUTE_MS


def test_the_message_and_the_firing_and_the_receive_that_waits_are_one_row(rig: Rig):
    make(rig)
    rig.now_ms = NEXT_MS - 1000
    _, reply = rig.wait(wait_ms=30_000)
    assert reply is WAITING
    rig.now_ms = NEXT_MS
    rows = rig.log.last_lsn

    rig.tick()

    assert rig.log.last_lsn == rows + 1
    kinds = [type(record) for record in rig.log.rows[-1]]
    assert kinds.index(MessagesSent) < kinds.index(MessagesReceived) < kinds.index(ScheduleFired)
    ((_, (message,)),) = rig.woken
    assert message.body == b"tick"


def test_all_times_that_passed_in_a_downtime_are_one_firing(rig: Rig):
    make(rig)
    down = rig.crash()
    down.now_ms = NEXT_MS + 600 * MINUTE_MS + 17

    down.advance(0)

    (message,) = down.receive()
    assert message.body == b"tick"
    down.delete(message.receipt_handle)
    (fired,) = firings(down)
    assert (fired.due_ms, fired.fired_ms) == (NEXT_MS, down.now_ms)
    assert fired.next_ms == NEXT_MS + 601 * MINUTE_MS
    down.advance(fired.next_ms - down.now_ms)
    assert down.bodies() == [b"tick"]


def test_a_crash_after_any_row_leaves_message_and_firing_or_neither(rig: Rig):
    make(rig)
    for _ in range(3):
        rig.advance(MINUTE_MS)

    for rows in range(rig.log.last_lsn + 1):
        crashed = rig.crash_after_row(rows)
        if not crashed.broker.schedules:
            continue
        fired = firings(crashed)
        assert info(crashed).counts["fired"] == len(fired)
        assert crashed.counts()["active"] == len(fired)
        # The missed message of the live broker is sent, once.
        crashed.advance(0)
        assert len(firings(crashed)) == len(fired) + (len(fired) < 3)
        assert len(crashed.bodies()) == len(firings(crashed))


def test_a_replay_asks_no_calendar(rig: Rig):
    make(rig)
    for _ in range(3):
        rig.advance(MINUTE_MS)

    replayed = Broker(KEY)
    for lsn, record in rig.log.records():
        replayed.replay(record, lsn)

    assert facts(replayed)["schedules"] == facts(rig.broker)["schedules"]
    assert replayed.schedule_info(ACCOUNT, "s").facts["next_ms"] == info(rig).facts["next_ms"]


def test_many_schedules_that_are_due_at_once_are_fired_in_bounded_ticks(rig: Rig):
    count = 5 * FIRED_AT_ONCE
    for number in range(count):
        make(rig, f"s{number}", body=b"%d" % number)
    rig.now_ms = NEXT_MS + 5
    rows = rig.log.last_lsn

    ticks = rig.advance(0)

    assert ticks == 5
    assert [sum(type(record) is ScheduleFired for record in row) for row in rig.log.rows[rows:]] == [FIRED_AT_ONCE] * 5
    assert sorted(rig.bodies(most=256)) == sorted(b"%d" % number for number in range(count))


def test_the_longest_due_fires_first_and_no_schedule_fires_twice_before_another(rig: Rig):
    for number in range(3 * FIRED_AT_ONCE):
        make(rig, f"fast{number}", cron="10")
    make(rig, "slow", body=b"slow")
    rig.now_ms = NEXT_MS + MINUTE_MS

    # The clock goes on while the ticks are made.
    for _ in range(4):
        rig.tick()
        rig.now_ms += 10

    assert b"slow" in rig.bodies(most=256)


def test_a_tick_begins_no_firing_beyond_its_bytes():
    rig = Rig()
    rig.create(max_message_bytes=MIB)
    for number in range(4):
        make(rig, f"s{number}", body=b"x" * (FIRED_BYTES - 100))
    rig.now_ms = NEXT_MS

    rig.tick()

    assert len(firings(rig)) == 2
    rig.advance(0)
    assert len(firings(rig)) == 4


def test_a_firing_takes_the_delay_of_its_queue(rig: Rig):
    rig.set(delay_ms=5000)
    make(rig)

    rig.advance(NEXT_MS - rig.now_ms)

    assert rig.counts()["delayed"] == 1
    rig.advance(5000)
    assert rig.bodies() == [b"tick"]


@pytest.mark.parametrize(
    ("gate", "closed", "opened"), [("moves_held_up", "disk full", ""), ("is_log_behind", True, False)]
)
def test_no_firing_is_made_while_the_disk_takes_no_bodies_and_one_afterwards(
    rig: Rig, gate: str, closed: object, opened: object
):
    make(rig)
    setattr(rig.broker.gates, gate, closed)
    rig.now_ms = NEXT_MS
    rows = rig.log.last_lsn
    assert rig.advance(0) == 1
    rig.advance(10 * MINUTE_MS)
    assert rig.log.last_lsn == rows

    setattr(rig.broker.gates, gate, opened)
    rig.advance(PUT_OFF_MS)

    assert rig.bodies() == [b"tick"]
    assert info(rig).counts == {"fired": 1, "missed": 0}


# ---------------------------------------------------------------------- misses


def tick_replies(rig: Rig, ms: int) -> list[Any]:
    """Let time pass to its end in a single step; return the reports of the ticks."""
    rig.now_ms += ms
    events: list[Any] = []
    while rig.due():
        events += rig.done(rig.broker.tick(rig.now_ms))
    return events


def test_a_missing_queue_is_a_miss_and_a_later_queue_of_its_name_gets_the_next_message(rig: Rig):
    make(rig)
    rig.delete_queue()

    events = tick_replies(rig, MINUTE_MS)

    reason = "queue 'q' does not exist; create it first"
    assert events == [MissedFiring(ACCOUNT, "s", "q", reason)]
    shown = info(rig)
    assert shown.counts == {"fired": 0, "missed": 1}
    assert (shown.facts["last_error"], shown.facts["last_error_ms"]) == (reason, rig.now_ms)
    assert facts(rig.crash().broker)["schedules"] == facts(rig.broker)["schedules"]
    rig.create()
    rig.advance(MINUTE_MS)
    assert rig.bodies() == [b"tick"]
    assert info(rig).counts == {"fired": 1, "missed": 1}


def test_a_full_queue_is_a_miss_and_the_next_time_is_tried(rig: Rig):
    make(rig)
    rig.force(max_backlog=1)
    rig.send(b"there")

    (event,) = tick_replies(rig, MINUTE_MS)

    assert "max_backlog of 1" in event.error
    rig.delete(*rig.handles())
    rig.advance(MINUTE_MS)
    assert rig.bodies() == [b"tick"]


def test_a_queue_that_takes_no_bodies_of_this_size_any_more_is_a_miss(rig: Rig):
    make(rig, body=b"x" * 5000)
    rig.set(max_message_bytes=1024)

    (event,) = tick_replies(rig, MINUTE_MS)

    assert "5000 bytes" in event.error


def test_a_transactional_queue_is_refused_and_is_a_miss_if_it_took_the_name_later(rig: Rig):
    rig.create("tx", transactional=True)
    with pytest.raises(InvalidArgument, match="'tx' is transactional"):
        make(rig, queue="tx")
    make(rig)
    rig.delete_queue()
    rig.create(transactional=True)

    (event,) = tick_replies(rig, MINUTE_MS)

    assert "transactional" in event.error
    assert rig.counts()["active"] == 0


def test_a_zone_that_the_machine_forgot_keeps_this_message_and_no_next_time_until_a_start_finds_it(rig: Rig):
    make(rig)
    record = msgspec.structs.replace(rig.broker.facts.schedules.find(ACCOUNT, "s").definition, zone="Atlantis")
    rig.log.append([record])
    moved = rig.crash()

    moved.advance(NEXT_MS - moved.now_ms)

    assert moved.bodies() == [b"tick"]
    shown = info(moved)
    assert (shown.facts["next_ms"], shown.facts["last_error"]) == (None, "no such time")
    assert shown.counts == {"fired": 1, "missed": 0}
    assert info(moved.crash()).facts["next_ms"] is None
    again = moved.crash()
    again.advance(0)
    assert again.broker.next_deadline_ms() != 0, "the tick asks the calendar for ever"

    found = Broker(KEY, moved.limits, calendar=lambda cron, zone, after_ms: every(cron, "UTC", after_ms))
    for lsn, one in moved.log.records():
        found.replay(one, lsn)
    found.recovered()
    healed = Rig(broker=found, log=moved.log.only(moved.log.rows))
    healed.now_ms = moved.now_ms
    healed.advance(0)
    assert isinstance(healed.log.rows[-1][-1], SchedulePlanned)
    assert info(healed).facts["next_ms"] == NEXT_MS + MINUTE_MS


def test_an_expression_without_any_time_left_never_fires(rig: Rig):
    made = make(rig, cron="0")

    assert made.facts["next_ms"] is None
    rig.advance(1 << 40)
    assert firings(rig) == []


# ---------------------------------------------------------------------- the clock


def test_after_a_step_back_of_the_clock_the_next_time_is_near_again():
    rig = Rig()
    rig.now_ms = START_MS + 365 * 86_400_000
    rig.create()
    make(rig)
    make(rig, "paused", paused=True)

    back = rig.crash(step_to_ms=START_MS)

    assert info(back).facts["next_ms"] == NEXT_MS
    assert info(back, "paused").facts["next_ms"] is None
    step = back.log.rows[-1] if back.log.rows[-1] else back.log.rows[-2]
    assert [type(record) for record in step[:2]] == [ClockOffset, SchedulePlanned]
    assert facts(back.crash().broker)["schedules"] == facts(back.broker)["schedules"]
    back.advance(NEXT_MS - back.now_ms)
    assert len(firings(back)) == 1


def test_after_a_step_forward_the_times_in_between_are_one_firing(rig: Rig):
    make(rig)

    ahead = rig.crash(step_to_ms=START_MS + 86_400_000)
    ahead.advance(0)

    assert len(firings(ahead)) == 1


def test_a_zone_has_its_own_hours_and_a_change_of_its_clock_skips_and_doubles_nothing():
    """With the server's calendar: 02:30 in Berlin, around both changes of 2026."""
    rig = Rig(broker=Broker(KEY, calendar=cron.calendar))
    rig.now_ms = at("2026-03-27T12:00")
    rig.create()
    make(rig, cron="30 2 * * *", zone="Europe/Berlin")
    seen: list[str] = []
    for _ in range(4):
        due_ms = info(rig).facts["next_ms"]
        rig.advance(due_ms - rig.now_ms)
        seen.append(datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="minutes")[:16])
    rig.now_ms = at("2026-10-24T12:00")
    rig.advance(0)
    for _ in range(3):
        due_ms = info(rig).facts["next_ms"]
        rig.advance(due_ms - rig.now_ms)
        seen.append(datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="minutes")[:16])

    # In March 02:30 does not exist and comes an hour later; in October 02:30 exists twice and counts once.
    assert seen == [
        *("2026-03-28T01:30", "2026-03-29T01:30", "2026-03-30T00:30", "2026-03-31T00:30"),
        *("2026-10-25T00:30", "2026-10-26T01:30", "2026-10-27T01:30"),
    ]
    assert len(firings(rig)) == 8


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


# ---------------------------------------------------------------------- checkpoints


def test_a_checkpoint_has_the_schedules_and_replay_begins_behind_each():
    rig = Rig()
    rig.create()
    make(rig, headers={"h": "v"})
    make(rig, "other", body=b"o" * 5000, cron=str(2 * MINUTE_MS))
    make(rig, "deleted")
    rig.advance(MINUTE_MS)
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts)]
    for part in parts:
        taken.append(part)
        # The broker goes on between two parts.
        rig.advance(MINUTE_MS)
        if len(taken) == 3:
            rig.done(rig.broker.delete_schedule(ACCOUNT, "deleted"))
            make(rig, "Deleted", body=b"new")
            change(rig, {"cron": str(3 * MINUTE_MS)}, name="other")
    rig.advance(MINUTE_MS)

    recovered = rig.crash_after(reread(taken))

    assert facts(recovered.broker)["schedules"] == facts(rig.broker)["schedules"]
    assert recovered.broker.facts.promises.memory.total_bytes == rig.broker.facts.promises.memory.total_bytes
    assert facts(rig.crash_after(reread(rig.checkpoint())).broker)["schedules"] == facts(rig.broker)["schedules"]


def test_a_record_of_an_unknown_schedule_is_damage(rig: Rig):
    rig.log.append([ScheduleFired(77, 1, 1, 2)])

    with pytest.raises(ValueError, match="unknown schedule 77"):
        rig.crash()


# ---------------------------------------------------------------------- administration


@pytest.mark.parametrize(
    ("attributes", "field"),
    [
        ({"queue": "q"}, "cron"),
        ({"cron": "5"}, "queue"),
        ({"queue": "q", "cron": ""}, "cron"),
        ({"queue": "q", "cron": "often"}, "cron"),
        ({"queue": "q", "cron": "5", "zone": "Atlantis"}, "cron"),
        ({"queue": "q", "cron": 5}, "cron"),
        ({"queue": "q", "cron": "5", "paused": "yes"}, "paused"),
        ({"queue": "q", "cron": "often", "paused": True}, "cron"),
        ({"queue": "q", "cron": "5", "colour": "red"}, "colour"),
    ],
)
def test_wrong_attributes_are_refused_and_change_nothing(rig: Rig, attributes: dict[str, Any], field: str):
    before = facts(rig.broker)

    with pytest.raises(InvalidArgument) as refused:
        rig.broker.create_schedule(ACCOUNT, "s", attributes, b"x", None, rig.now_ms)

    assert refused.value.details["field"] == field
    assert facts(rig.broker) == before


def test_the_message_obeys_the_limits_of_the_queue(rig: Rig):
    with pytest.raises(QueueNotFound):
        make(rig, queue="nowhere")
    with pytest.raises(MessageTooLarge):
        make(rig, body=b"x" * 65_537)
    with pytest.raises(InvalidArgument, match="is empty"):
        make(rig, body=b"")
    with pytest.raises(InvalidArgument, match="at most 16384 bytes"):
        make(rig, headers={"h": "v" * 16_384})
    with pytest.raises(InvalidArgument, match="is not the name of a schedule"):
        make(rig, "no name")
    assert rig.broker.schedules == {}
    make(rig, body=b"x" * 65_536)


def test_names_are_unique_without_regard_to_case(rig: Rig):
    make(rig, "Report")
    with pytest.raises(ScheduleExists, match="differs only in case from 'Report'"):
        make(rig, "report")
    with pytest.raises(ScheduleExists, match="already exists"):
        make(rig, "Report")
    with pytest.raises(ScheduleNotFound):
        info(rig, "report")


def test_ensure_makes_a_schedule_confirms_it_and_tells_differences(rig: Rig):
    def ensure(attributes: dict[str, Any], body: bytes = b"x", headers: Headers | None = None) -> ScheduleInfo:
        return rig.done(rig.broker.ensure_schedule(ACCOUNT, "s", attributes, body, headers, rig.now_ms))

    wanted = {"queue": "q", "cron": EVERY_MINUTE}
    assert ensure(wanted).created
    rows = rig.log.last_lsn
    assert not ensure(wanted).created
    change(rig, {"paused": True})
    # Attributes that are not named are not compared.
    assert ensure({**wanted, "cron": f"  {EVERY_MINUTE} "}, headers={}).attributes["paused"]
    assert rig.log.last_lsn == rows + 1

    with pytest.raises(ScheduleDiffers) as differs:
        ensure({**wanted, "cron": "7", "zone": "UTC", "paused": False}, b"yy", {"h": "v"})

    assert differs.value.details["difference"] == {
        "cron": {"is": EVERY_MINUTE, "wanted": "7"},
        "paused": {"is": True, "wanted": False},
        "body": {"is": "1 bytes (CRC-32 8cdc1683)", "wanted": "2 bytes (CRC-32 96fd19d8)"},
        "headers": {"is": "{}", "wanted": "{'h': 'v'}"},
    }
    assert rig.log.last_lsn == rows + 1


def test_a_change_of_the_message_leaves_the_next_time(rig: Rig):
    make(rig)
    rig.now_ms = NEXT_MS + 1

    shown = change(rig, body=b"new", headers={"h": "v"})

    assert shown.facts["next_ms"] == NEXT_MS
    rig.advance(0)
    (message,) = rig.receive()
    assert (message.body, message.headers) == (b"new", {"h": "v"})
    assert change(rig, headers={}).headers is None
    assert info(rig).body == b"new"


def test_a_new_expression_counts_from_now_on(rig: Rig):
    make(rig)
    rig.now_ms += 10

    shown = change(rig, {"cron": "7"})

    assert shown.facts["next_ms"] == (rig.now_ms // 7 + 1) * 7
    assert shown.facts["modified_ms"] == rig.now_ms
    rig.advance(7)
    assert rig.bodies() == [b"tick"]
    # Later than before, too.
    change(rig, {"cron": EVERY_MINUTE})
    rows = rig.log.last_lsn
    rig.advance(100)
    assert rig.log.last_lsn == rows


def test_a_change_that_changes_nothing_has_no_record(rig: Rig):
    make(rig, headers={"h": "v"})
    rows = rig.log.last_lsn

    change(rig, {"cron": EVERY_MINUTE, "queue": "q", "paused": False, "zone": "UTC"}, b"tick", {"h": "v"})

    assert rig.log.last_lsn == rows


def test_a_paused_schedule_leaves_out_the_times_that_pass_and_can_be_resumed_without_its_queue(rig: Rig):
    make(rig)
    assert change(rig, {"paused": True}).facts["next_ms"] is None
    rig.advance(10 * MINUTE_MS)
    assert rig.broker.next_deadline_ms() is None or rig.broker.next_deadline_ms() > rig.now_ms  # pyright: ignore[reportOptionalOperand]
    assert firings(rig) == []
    assert firings(rig.crash()) == []
    rig.delete_queue()

    shown = change(rig, {"paused": False})

    assert shown.facts["next_ms"] == (rig.now_ms // MINUTE_MS + 1) * MINUTE_MS
    with pytest.raises(QueueNotFound):
        change(rig, body=b"other")
    rig.create()
    rig.advance(MINUTE_MS)
    assert rig.bodies() == [b"tick"]


def test_a_refused_change_changes_nothing(rig: Rig):
    make(rig)
    before = facts(rig.broker)

    for attributes, body in (({"cron": "often"}, None), ({"queue": "nowhere"}, None), ({}, b""), ({"x": 1}, None)):
        with pytest.raises((InvalidArgument, QueueNotFound)):
            change(rig, attributes, body)
    with pytest.raises(ScheduleNotFound):
        change(rig, {"paused": True}, name="other")

    assert facts(rig.broker) == before


def test_a_deleted_schedule_fires_no_more_and_its_messages_stay(rig: Rig):
    make(rig)
    rig.advance(MINUTE_MS)

    rig.done(rig.broker.delete_schedule(ACCOUNT, "s"))

    rig.advance(10 * MINUTE_MS)
    assert rig.bodies() == [b"tick"]
    with pytest.raises(ScheduleNotFound):
        rig.broker.delete_schedule(ACCOUNT, "s")
    assert rig.broker.facts.promises.memory.total_bytes == 0
    assert make(rig).counts == {"fired": 0, "missed": 0}


def test_schedules_are_listed_by_name_a_page_at_a_time(rig: Rig):
    for name in ("b-night", "a-night", "c-day"):
        make(rig, name, paused=name == "b-night")

    total, page = rig.broker.list_schedules(ACCOUNT, "night", 1, 5)

    assert total == 2
    (summary,) = page
    assert (summary.name, summary.queue, summary.cron, summary.zone) == ("b-night", "q", EVERY_MINUTE, "UTC")
    assert (summary.paused, summary.next_ms, summary.missed, summary.last_error) == (True, None, 0, None)
    assert [one.name for one in rig.broker.list_schedules(ACCOUNT, "", 0, 100)[1]] == ["a-night", "b-night", "c-day"]
    assert rig.broker.list_schedules("stranger", "", 0, 100) == (0, [])
    with pytest.raises(InvalidArgument):
        rig.broker.list_schedules(ACCOUNT, "", 0, 1001)


def test_an_account_has_a_limit_of_schedules():
    rig = Rig(Limits(max_schedules_per_account=2))
    rig.create()
    make(rig, "one")
    make(rig, "two")

    with pytest.raises(TooManySchedules, match="has 2 schedules, its limit"):
        make(rig, "three")

    rig.done(rig.broker.delete_schedule(ACCOUNT, "one"))
    make(rig, "three")


def test_the_memory_of_schedules_is_that_of_promises():
    """Bodies are kept in memory, so an account may not fill the memory with a thousand large bodies."""
    size = schedule_bytes(b"x" * 60_000, None)
    rig = Rig(Limits(budget_bytes=16 * size))
    rig.create()
    for number in range(8):
        make(rig, f"s{number}", body=b"x" * 60_000)
    with pytest.raises(TooManySchedules, match="sessions, dedup ids and schedules of"):
        make(rig, "s8", body=b"x" * 60_000)
    small = {"queue": "q", "cron": EVERY_MINUTE}
    with pytest.raises(TooManySchedules):
        change(rig, body=b"x" * 60_001, name="s0")

    change(rig, body=b"small", name="s0")
    change(rig, body=b"small", name="s1")

    rig.done(rig.broker.create_schedule(ACCOUNT, "more", small, b"x", None, rig.now_ms))


def test_a_schedule_uses_its_queue_by_its_messages_alone():
    rig = Rig()
    rig.create(auto_delete_after_ms=MINUTE_MS, auto_delete_only_empty=False)
    make(rig, cron=str(10 * MINUTE_MS))

    rig.advance(MINUTE_MS)

    assert rig.broker.queues == {}
    rig.create(auto_delete_after_ms=MINUTE_MS, auto_delete_only_empty=False)
    change(rig, {"cron": str(MINUTE_MS // 2)})
    for _ in range(20):
        rig.advance(MINUTE_MS // 4)
    assert rig.counts()["active"] == 10
    # Refused messages are no use: the queue is not kept in use by refusals.
    rig.force(max_message_bytes=1)
    rig.advance(2 * MINUTE_MS)
    assert rig.broker.queues == {}


def test_plans_that_are_changed_again_and_again_take_no_memory(rig: Rig):
    make(rig)
    for number in range(5000):
        change(rig, {"cron": str(10**11 + number)})

    assert len(rig.broker.runtime.agenda.schedules.heap) < 200
    change(rig, {"cron": EVERY_MINUTE})
    rig.advance(MINUTE_MS)
    assert rig.bodies() == [b"tick"]


def test_a_broker_without_a_calendar_makes_no_schedules():
    rig = Rig(broker=Broker(KEY))
    rig.create()

    with pytest.raises(InvalidArgument, match="no calendar"):
        make(rig)
