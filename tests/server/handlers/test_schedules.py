"""Schedules through the server: requests, log lines, counters, the zones of the machine, and the disk."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cmqd.core.broker import Broker
from cmqd.log.values import LogState
from cmqd.memory_log import MemoryLog
from cmqd.server.log_upkeep.disk_state import DiskState
from cmqd.server.loop.cron import calendar
from cmqd.server.monitoring.server_figures import ServerFigures
from cmqd_protocol import messages as wire
from support.server.server_rig import RigClient, ServerRig, code_of

HOURLY = {"queue": "orders", "cron": "0 * * * *"}
HOUR_MS = 3_600_000


async def connected(rig: ServerRig) -> RigClient:
    """A client of a server with the queue ``orders``."""
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "orders", {})
    return client


async def pass_time(rig: ServerRig, ms: int) -> None:
    """Time in which the server runs: its timer fires, and its loop turns."""
    rig.clock.advance(ms)
    now_ms = rig.broker_clock.now_ms()
    for _ in range(50):
        due_ms = rig.broker.next_deadline_ms()
        if due_ms is None or due_ms > now_ms:
            break
        rig.server.broker_events.tick(now_ms)
    await rig.turn()


async def until_fired(rig: ServerRig, client: RigClient, name: str = "report") -> None:
    """Let the time pass to the next firing."""
    info = await client.expect(wire.ScheduleInfo, wire.GetSchedule, name)
    await pass_time(rig, info.facts["next_ms"] - rig.broker_clock.now_ms())


async def test_a_schedule_is_made_shown_changed_fired_listed_and_deleted(rig: ServerRig) -> None:
    client = await connected(rig)
    made = await client.expect(wire.ScheduleInfo, wire.CreateSchedule, "report", HOURLY, b"go", {"kind": "report"})
    now_ms = rig.broker_clock.now_ms()
    assert made.created
    assert made.attributes == {**HOURLY, "zone": "UTC", "paused": False}
    assert made.facts["next_ms"] == (now_ms // HOUR_MS + 1) * HOUR_MS

    again = await client.expect(wire.ScheduleInfo, wire.EnsureSchedule, "report", HOURLY, b"go", {"kind": "report"})
    assert not again.created
    await until_fired(rig, client)
    (message,) = await client.receive("orders")
    assert (message.body, message.headers) == (b"go", {"kind": "report"})
    shown = await client.expect(wire.ScheduleInfo, wire.GetSchedule, "report")
    assert (shown.counts, shown.facts["last_message_id"]) == ({"fired": 1, "missed": 0}, message.message_id)
    paused = await client.expect(wire.ScheduleInfo, wire.SetSchedule, "report", {"paused": True})
    assert paused.facts["next_ms"] is None
    page = await client.expect(wire.ScheduleList, wire.ListSchedules)
    assert (page.total, [(one.name, one.paused) for one in page.schedules]) == (1, [("report", True)])
    await client.expect(wire.Done, wire.DeleteSchedule, "report")
    assert code_of(await client.ask(wire.GetSchedule, "report")) == "schedule_not_found"


@pytest.mark.parametrize(
    ("attributes", "field", "text"),
    [
        ({"cron": "61 * * * *"}, "cron", "'61' as minute"),
        ({"cron": "0 0 30 2 *"}, "cron", "matches no day"),
        ({"zone": "Mars/Olympus"}, "zone", "knows no time zone 'Mars/Olympus'"),
        ({"zone": "../../etc/passwd"}, "zone", "knows no time zone"),
        ({"zone": "x" * 200_000}, "zone", "knows no time zone"),
        ({"cron": "1," * 200_000}, "cron", "longer than 256 bytes"),
    ],
)
async def test_a_wrong_expression_or_zone_is_refused_with_a_sentence(
    rig: ServerRig, attributes: dict[str, Any], field: str, text: str
) -> None:
    client = await connected(rig)

    refused = await client.ask(wire.CreateSchedule, "report", {**HOURLY, **attributes}, b"go")

    assert isinstance(refused, wire.Error)
    assert (refused.name, refused.details and refused.details["field"]) == ("invalid_argument", field)
    assert text in refused.text
    assert len(refused.text) < 1000
    assert await client.counts("orders")


async def test_each_refusal_has_its_code(rig: ServerRig) -> None:
    client = await connected(rig)
    await client.expect(wire.ScheduleInfo, wire.CreateSchedule, "report", HOURLY, b"go")

    answers = [
        await client.ask(wire.CreateSchedule, "REPORT", HOURLY, b"go"),
        await client.ask(wire.EnsureSchedule, "report", HOURLY, b"other"),
        await client.ask(wire.SetSchedule, "reports", {"paused": True}),
        await client.ask(wire.DeleteSchedule, "reports"),
        await client.ask(wire.CreateSchedule, "other", {**HOURLY, "queue": "nowhere"}, b"go"),
        await client.ask(wire.SetSchedule, "report", {}, b"x" * 65_537),
    ]

    assert list(map(code_of, answers)) == [
        "schedule_exists",
        "schedule_differs",
        "schedule_not_found",
        "schedule_not_found",
        "queue_not_found",
        "message_too_large",
    ]


async def test_schedules_of_an_account_are_its_own(rig: ServerRig) -> None:
    client = await connected(rig)
    await client.expect(wire.ScheduleInfo, wire.CreateSchedule, "report", HOURLY, b"go")

    stranger = await rig.client(await rig.accounts.create_account("admin", "other", 1))

    assert code_of(await stranger.ask(wire.GetSchedule, "report")) == "schedule_not_found"
    assert (await stranger.expect(wire.ScheduleList, wire.ListSchedules)).total == 0


async def test_a_miss_is_logged_and_counted(rig: ServerRig) -> None:
    client = await connected(rig)
    await client.expect(wire.ScheduleInfo, wire.CreateSchedule, "report", HOURLY, b"go")
    await client.expect(wire.Done, wire.DeleteQueue, "orders")

    with capture_logs() as lines:
        await until_fired(rig, client)

    (line,) = [line for line in lines if line["event"] == "schedule_missed"]
    assert (line["account"], line["schedule"], line["queue"]) == ("admin", "report", "orders")
    assert line["reason"] == "queue 'orders' does not exist; create it first"
    status = rig.server.part(ServerFigures).status_reply("admin")
    assert (status["schedules"], status["counters"]["schedules_missed"]) == (1, 1)


async def test_a_nearly_full_disk_takes_no_schedules_and_one_firing_follows(rig: ServerRig) -> None:
    client = await connected(rig)
    await client.expect(wire.ScheduleInfo, wire.CreateSchedule, "report", HOURLY, b"go")
    full = LogState(True, "disk nearly full", 0, 0, 0)
    rig.server.part(DiskState).reported(full)

    assert code_of(await client.ask(wire.CreateSchedule, "other", HOURLY, b"go")) == "disk_nearly_full"
    assert code_of(await client.ask(wire.EnsureSchedule, "report", HOURLY, b"go")) == "disk_nearly_full"
    assert code_of(await client.ask(wire.SetSchedule, "report", {}, b"new")) == "disk_nearly_full"
    await until_fired(rig, client)
    await pass_time(rig, 3 * HOUR_MS)
    assert (await client.counts("orders"))["active"] == 0
    rig.server.part(DiskState).reported(LogState(False, "", 0, 0, 0))
    await pass_time(rig, 1000)

    assert (await client.counts("orders"))["active"] == 1
    # Neither body nor headers: a schedule can be paused whatever the disk has.
    rig.server.part(DiskState).reported(full)
    assert (await client.expect(wire.ScheduleInfo, wire.SetSchedule, "report", {"paused": True})).attributes["paused"]


async def test_firings_wait_while_the_disk_is_far_behind(tmp_path: Path) -> None:
    """Many large bodies that come due at once would otherwise fill the memory."""
    rig = await ServerRig.make(tmp_path, busy_pending_bytes=200_000)
    client = await connected(rig)
    for number in range(12):
        await client.expect(wire.ScheduleInfo, wire.CreateSchedule, f"s{number}", HOURLY, b"x" * 60_000)
    due_ms = (await client.expect(wire.ScheduleInfo, wire.GetSchedule, "s0")).facts["next_ms"]
    rig.log.hold()

    await pass_time(rig, due_ms - rig.broker_clock.now_ms())

    # A tick ends beyond its bytes, and the next tick finds the disk behind.
    assert rig.broker.queue_info("admin", "orders").counts["active"] == 5
    rig.log.let_go()
    await rig.turn(30)
    for _ in range(5):
        await pass_time(rig, 1000)
    infos = [rig.broker.schedule_info("admin", f"s{number}") for number in range(12)]
    assert [info.counts for info in infos] == [{"fired": 1, "missed": 0}] * 12
    rig.close()


async def test_the_log_of_administration_has_no_body(rig: ServerRig) -> None:
    client = await connected(rig)

    with capture_logs() as lines:
        await client.expect(wire.ScheduleInfo, wire.CreateSchedule, "report", HOURLY, b"secret", {"h": "secret"})

    (line,) = [line for line in lines if line["event"] == "administration"]
    assert (line["operation"], line["schedule"], line["body_bytes"]) == ("create_schedule", "report", 6)
    assert (line["attributes"], line["headers"]) == (["cron", "queue"], ["h"])
    assert "secret" not in str({name: value for name, value in line.items() if name != "by_key"})


async def test_an_account_with_a_schedule_is_not_deleted(rig: ServerRig) -> None:
    admin = await rig.client()
    other = await rig.client(await rig.accounts.create_account("admin", "other", 1))
    await other.expect(wire.QueueInfo, wire.CreateQueue, "orders", {})
    await other.expect(wire.ScheduleInfo, wire.CreateSchedule, "report", HOURLY, b"go")
    await other.expect(wire.Done, wire.DeleteQueue, "orders")

    refused = await admin.ask(wire.DeleteAccount, "other")

    assert isinstance(refused, wire.Error)
    assert refused.name == "account_not_empty"
    assert refused.details is not None
    assert (refused.details["queues"], refused.details["schedules"]) == (0, 1)


async def test_a_restart_fires_once_for_a_downtime_in_the_zone_of_the_schedule(rig: ServerRig) -> None:
    client = await connected(rig)
    attributes = {"queue": "orders", "cron": "30 9 * * *", "zone": "Europe/Berlin"}
    made = await client.expect(wire.ScheduleInfo, wire.CreateSchedule, "report", attributes, b"go")
    first = datetime.fromtimestamp(made.facts["next_ms"] / 1000, UTC)
    assert (first.hour, first.minute) in ((7, 30), (8, 30))

    restarted = Broker(rig.accounts.handle_key, calendar=calendar)
    log = MemoryLog(rig.log.disk)
    await log.open()
    async for batch in log.recover():
        for item in batch:
            assert isinstance(item, tuple), "no checkpoint was written"
            for record in item[2]:
                restarted.replay(record, item[0])
    restarted.recovered()
    now_ms = made.facts["next_ms"] + 40 * 24 * HOUR_MS
    while (due_ms := restarted.next_deadline_ms()) is not None and due_ms <= now_ms:
        restarted.tick(now_ms)

    info = restarted.schedule_info("admin", "report")
    assert info.counts == {"fired": 1, "missed": 0}
    assert restarted.queue_info("admin", "orders").counts["active"] == 1
    assert 0 < info.facts["next_ms"] - now_ms <= 25 * HOUR_MS
