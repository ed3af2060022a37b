"""Schedules through the client, with the clock of a broker that the test turns."""

from collections.abc import AsyncIterator
from datetime import UTC, timedelta

import pytest

from cmqd.testing import LocalBroker
from cmqd_client import Client, connect, sync
from cmqd_client.errors import (
    InvalidArgument,
    MessageTooLarge,
    QueueNotFound,
    ScheduleDiffers,
    ScheduleExists,
    ScheduleNotFound,
)
from cmqd_client.schedules import ScheduleInfo
from cmqd_protocol import messages as wire
from support.client.local_server import LocalServer


@pytest.fixture
async def local() -> AsyncIterator[LocalBroker]:
    async with LocalBroker() as broker:
        yield broker


@pytest.fixture
async def turned(local: LocalBroker) -> AsyncIterator[Client]:
    """A client of a broker with a clock that stands until it is turned, and the queue ``reports``."""
    local.clock.stop()
    async with connect(local.url, request_timeout=300, connect_timeout=300) as client:
        await client.create_queue("reports")
        yield client


async def pass_firings(local: LocalBroker, schedule: ScheduleInfo, count: int) -> None:
    """Turn the clock to the middle of the hour behind so many firings of an hourly schedule."""
    assert schedule.next_time is not None
    until = schedule.next_time + timedelta(hours=count - 1, minutes=30)
    await local.clock.advance_async(until - local.clock.now(), stepwise=True)


async def test_a_schedule_sends_its_message_at_its_times(local: LocalBroker, turned: Client) -> None:
    queue = turned.queue("reports")
    made = await turned.schedules.create("hourly", queue, "0 * * * *", b"go", headers={"kind": "report"})
    assert made.created
    assert made.next_time is not None
    assert (made.next_time.minute, made.next_time.tzinfo) == (0, UTC)

    await pass_firings(local, made, 3)

    messages = await queue.receive(max_messages=10, wait=0)
    assert [(one.body, one.headers) for one in messages] == [(b"go", {"kind": "report"})] * 3
    shown = await turned.schedules.info("hourly")
    assert (shown.fired, shown.missed, shown.last_error, shown.last_error_time) == (3, 0, None, None)
    assert shown.last_message_id == messages[-1].id
    assert shown.last_fired_time == made.next_time + timedelta(hours=2)
    assert shown.next_time == made.next_time + timedelta(hours=3)


async def test_a_zone_has_its_own_hours(turned: Client) -> None:
    made = await turned.schedules.create("daily", "reports", "30 9 * * *", b"go", zone="Asia/Tokyo")

    assert made.next_time is not None
    # No daylight saving time in Tokyo: nine hours ahead, always.
    assert (made.next_time.hour, made.next_time.minute) == (0, 30)
    assert made.zone == "Asia/Tokyo"


async def test_create_refuses_an_existing_name_and_ensure_other_attributes(client: Client, server: LocalServer) -> None:
    await client.create_queue("reports")
    await client.schedules.create("daily", "reports", "0 9 * * *", b"go")
    with pytest.raises(ScheduleExists):
        await client.schedules.create("daily", "reports", "0 9 * * *", b"go")
    assert not (await client.schedules.ensure("daily", "reports", "0  9 * * *", b"go")).created
    assert (await client.schedules.ensure("other", "reports", "0 9 * * *", b"go", headers={})).created

    with pytest.raises(ScheduleDiffers) as differs:
        await client.schedules.ensure("daily", "reports", "0 10 * * *", b"go", zone="Europe/Berlin")

    assert differs.value.difference == {"cron": ("0 9 * * *", "0 10 * * *"), "zone": ("UTC", "Europe/Berlin")}
    assert server.link.of(wire.EnsureSchedule)[0].attributes == {
        "queue": "reports",
        "cron": "0  9 * * *",
        "zone": "UTC",
    }


async def test_a_schedule_is_changed_paused_resumed_listed_and_deleted(client: Client) -> None:
    await client.create_queue("reports")
    await client.create_queue("others")
    await client.schedules.create("daily", "reports", "0 9 * * *", b"go", headers={"a": "b"}, paused=True)
    assert (await client.schedules.info("daily")).next_time is None

    changed = await client.schedules.set("daily", queue=client.queue("others"), cron="5 * * * *", body=b"new")
    assert (changed.queue, changed.cron, changed.body, changed.headers) == ("others", "5 * * * *", b"new", {"a": "b"})
    assert (await client.schedules.set("daily", headers={})).headers == {}
    resumed = await client.schedules.resume("daily")
    assert not resumed.paused
    assert resumed.next_time is not None
    assert resumed.next_time.minute == 5
    assert (await client.schedules.pause("daily")).paused
    await client.schedules.create("nightly", "reports", "0 2 * * *", b"go")
    page = await client.schedules.list(search="ly")
    assert (page.total, len(page)) == (2, 2)
    assert [(one.name, one.queue, one.paused, one.missed, one.last_error) for one in page] == [
        ("daily", "others", True, 0, None),
        ("nightly", "reports", False, 0, None),
    ]
    assert [one.next_time is None for one in page] == [True, False]
    await client.schedules.delete("daily")
    with pytest.raises(ScheduleNotFound):
        await client.schedules.info("daily")


async def test_a_miss_is_shown_with_its_reason(local: LocalBroker, turned: Client) -> None:
    made = await turned.schedules.create("hourly", "reports", "0 * * * *", b"go")
    await turned.delete_queue("reports")

    await pass_firings(local, made, 2)

    shown: ScheduleInfo = await turned.schedules.info("hourly")
    assert (shown.fired, shown.missed) == (0, 2)
    assert shown.last_error == "queue 'reports' does not exist; create it first"
    assert shown.last_error_time is not None
    (listed,) = await turned.schedules.list()
    assert (listed.missed, listed.last_error) == (2, shown.last_error)


async def test_wrong_arguments_are_refused_and_make_no_schedule(client: Client) -> None:
    await client.create_queue("reports")

    with pytest.raises(InvalidArgument, match="has 4 fields"):
        await client.schedules.create("daily", "reports", "0 9 * *", b"go")
    with pytest.raises(InvalidArgument, match="'Nowhere'"):
        await client.schedules.create("daily", "reports", "0 9 * * *", b"go", zone="Nowhere")
    with pytest.raises(QueueNotFound):
        await client.schedules.create("daily", "missing", "0 9 * * *", b"go")
    with pytest.raises(MessageTooLarge):
        await client.schedules.create("daily", "reports", "0 9 * * *", b"x" * 65_537)
    with pytest.raises(TypeError, match="a body must be bytes"):
        await client.schedules.create("daily", "reports", "0 9 * * *", "text")  # pyright: ignore[reportArgumentType]
    assert (await client.schedules.list()).total == 0


def test_the_synchronous_client_has_schedules() -> None:
    with LocalBroker() as broker, sync.connect(broker.url, request_timeout=300, connect_timeout=300) as client:
        broker.clock.stop()
        queue = client.create_queue("reports")
        made = client.schedules.ensure("hourly", queue, "0 * * * *", b"go")
        assert made.next_time is not None

        broker.clock.advance(made.next_time - broker.clock.now() + timedelta(hours=4, minutes=30), stepwise=True)

        assert len(queue.receive(max_messages=10, wait=0)) == 5
