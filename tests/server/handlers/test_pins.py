"""Pins: segments and checkpoints that stay for copies of the log, and the end of their stay."""

from pathlib import Path
from typing import Any

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.log.values import FoundRows, LogState
from cmqd.memory_log import MemoryLog
from cmqd.server.log_upkeep.pins import (
    MAX_PINS,
    MAX_STANDING_PINS,
    PIN_LIFE_MS,
    STANDING_LIMIT_MS,
    Pins,
)
from cmqd_protocol import messages as wire
from cmqd_segment.checkpoint import CheckpointHeader
from support.server.server_rig import RigClient, ServerRig, a_queue, code_of


async def pin_of(client: RigClient) -> wire.LogPinned:
    return await client.expect(wire.LogPinned, wire.PinLog)


async def segments_of(client: RigClient, pin: wire.LogPinned) -> list[int]:
    return (await client.expect(wire.PinnedSegments, wire.ListPinnedSegments, pin.pin_id)).numbers


async def tell(client: RigClient, pin: wire.LogPinned, name: str = "hourly", **changes: Any) -> Any:
    fields: dict[str, Any] = {"log_id": pin.log_id, "lsn": pin.lsn, "start": pin.start, "pinned_ms": pin.time_ms}
    return await client.ask(wire.SetStandingPin, name, **{**fields, "every_ms": 60_000, **changes})


async def gaps_told(client: RigClient, pin: wire.LogPinned, **changes: Any) -> list[tuple[int, int]]:
    reply = await tell(client, pin, **changes)
    assert isinstance(reply, wire.StandingPinSet), reply
    assert reply.limit_ms == STANDING_LIMIT_MS
    return reply.gaps


async def write_segment(rig: ServerRig, client: RigClient, *, consumed: bool = True) -> int:
    """Store a message in a segment of its own, consume it, and return the number of the closed segment."""
    await client.send("orders", b"espresso")
    if consumed:
        (message,) = await client.receive("orders")
        await client.expect(wire.HandlesDone, wire.DeleteMessages, "orders", [message.receipt_handle])
    await rig.log.seal_now()
    return rig.log.closed_segments()[-1].number


async def checkpoints(rig: ServerRig, count: int = 2) -> None:
    """Let the log keep new checkpoints, behind which closed segments may go; scans follow."""
    for _ in range(count):
        rig.server.checkpoints.want()
        await rig.turn()


async def scan(rig: ServerRig) -> set[int]:
    """Let the broker drop what it may, and return the closed segments that are left."""
    for _ in range(3):
        rig.server.reclaim.scan()
        await rig.turn()
    return {segment.number for segment in rig.log.closed_segments()}


def short(rig: ServerRig, *, is_short: bool = True) -> None:
    rig.log.report_state(LogState(False, "", 1, 1, 1, is_short=is_short))


async def ready(rig: ServerRig) -> RigClient:
    """Make a queue, and let the log keep checkpoints only when the test says so."""
    rig.log.on_checkpoint_wanted = lambda: None
    client = await rig.client()
    await a_queue(client, "orders")
    return client


# ---------------------------------------------------------------------- a copy


async def test_a_pin_names_a_durable_row_its_segments_and_a_checkpoint_below(rig: ServerRig) -> None:
    client = await ready(rig)
    await write_segment(rig, client, consumed=False)
    await checkpoints(rig, 1)
    await client.send("orders", b"ristretto")
    newest = rig.log.last_lsn

    pin = await pin_of(client)

    assert pin.lsn == newest <= rig.log.durable_lsn
    assert pin.time_ms == rig.broker_clock.now_ms()
    assert 0 < pin.checkpoint_lsn <= pin.lsn
    assert pin.lifetime_ms == PIN_LIFE_MS
    sealed = [segment for segment in rig.log.closed_segments() if segment.is_sealed]
    assert await segments_of(client, pin) == [segment.number for segment in sealed] == [1, 2]
    assert sealed[-1].last_lsn >= pin.lsn


async def test_a_pin_without_a_checkpoint_has_every_segment(rig: ServerRig) -> None:
    client = await ready(rig)
    await write_segment(rig, client)

    pin = await pin_of(client)

    assert (pin.checkpoint, pin.checkpoint_lsn) == (0, 0)
    assert await segments_of(client, pin) == [1]


async def test_segments_that_close_behind_the_row_of_a_pin_are_not_of_its_copy(rig: ServerRig) -> None:
    client = await ready(rig)
    await write_segment(rig, client)
    pin = await pin_of(client)

    await write_segment(rig, client)

    assert await segments_of(client, pin) == [1]


async def test_segments_are_listed_in_pages(rig: ServerRig) -> None:
    client = await ready(rig)
    for _ in range(3):
        await write_segment(rig, client, consumed=False)
    pin = await pin_of(client)

    first = await client.expect(wire.PinnedSegments, wire.ListPinnedSegments, pin.pin_id, 0, 2)
    second = await client.expect(wire.PinnedSegments, wire.ListPinnedSegments, pin.pin_id, first.next, 2)
    end = await client.expect(wire.PinnedSegments, wire.ListPinnedSegments, pin.pin_id, 1 << 60)

    assert (first.numbers, first.next) == ([1, 2], 2)
    assert (second.numbers, second.next) == ([3], None)
    assert (end.numbers, end.next) == ([], None)
    for limit in (0, 10_001):
        assert code_of(await client.ask(wire.ListPinnedSegments, pin.pin_id, 0, limit)) == "invalid_argument"


async def test_no_file_of_a_copy_goes_while_its_pin_lives(rig: ServerRig) -> None:
    client = await ready(rig)
    await write_segment(rig, client, consumed=False)
    await checkpoints(rig, 1)
    pin = await pin_of(client)
    (message,) = await client.receive("orders")
    await client.expect(wire.HandlesDone, wire.DeleteMessages, "orders", [message.receipt_handle])

    later = await write_segment(rig, client)
    await checkpoints(rig, 3)

    assert await scan(rig) == {*await segments_of(client, pin), later}
    held = [part.lsn for parts in rig.log.disk.checkpoints for part in parts if isinstance(part, CheckpointHeader)]
    assert pin.checkpoint_lsn in held
    assert len(held) == 3

    await client.expect(wire.Done, wire.ReleasePin, pin.pin_id)

    assert await scan(rig) == set()
    assert len(rig.log.disk.checkpoints) == 2


async def test_reclaiming_goes_on_after_a_copy_that_died(rig: ServerRig) -> None:
    client = await ready(rig)
    await write_segment(rig, client)
    pin = await pin_of(client)
    await checkpoints(rig)

    # Each call extends the life of the pin.
    for _ in range(3):
        rig.clock.advance(PIN_LIFE_MS - 1)
        assert await scan(rig) == {*await segments_of(client, pin)}
    rig.clock.advance(PIN_LIFE_MS)

    assert await scan(rig) == set()
    assert len(rig.log.disk.checkpoints) == 2
    gone = await client.ask(wire.ListPinnedSegments, pin.pin_id)
    assert code_of(gone) == "invalid_argument"
    assert "begin a new copy" in gone.text  # pyright: ignore
    await client.expect(wire.Done, wire.ReleasePin, pin.pin_id)


async def test_a_full_disk_ends_pins_and_drops_the_oldest_segment_first(rig: ServerRig) -> None:
    client = await ready(rig)
    oldest = await write_segment(rig, client)
    await write_segment(rig, client, consumed=False)
    pin = await pin_of(client)
    await checkpoints(rig, 3)

    short(rig)
    await rig.turn()

    assert oldest not in {segment.number for segment in rig.log.closed_segments()}
    assert code_of(await client.ask(wire.ListPinnedSegments, pin.pin_id)) == "invalid_argument"
    assert len(rig.log.disk.checkpoints) == 2


async def test_a_full_disk_leaves_a_pin_whose_end_would_give_no_room(rig: ServerRig) -> None:
    client = await ready(rig)
    await write_segment(rig, client, consumed=False)
    pin = await pin_of(client)
    await checkpoints(rig)

    short(rig)
    await rig.turn()

    assert await segments_of(client, pin) == [1]


async def test_two_copies_at_a_time_do_not_end_each_other(rig: ServerRig) -> None:
    client = await ready(rig)
    await write_segment(rig, client)
    await checkpoints(rig, 1)
    first, second = await pin_of(client), await pin_of(client)
    assert first.pin_id != second.pin_id
    await checkpoints(rig, 3)

    await client.expect(wire.Done, wire.ReleasePin, first.pin_id)

    assert await scan(rig) == {*await segments_of(client, second)}
    await client.expect(wire.Done, wire.ReleasePin, second.pin_id)
    assert await scan(rig) == set()


async def test_copies_are_limited(rig: ServerRig) -> None:
    client = await rig.client()
    pins = [await pin_of(client) for _ in range(MAX_PINS)]

    refused = await client.ask(wire.PinLog)

    assert code_of(refused) == "busy"
    await client.expect(wire.Done, wire.ReleasePin, pins[0].pin_id)
    await pin_of(client)


async def test_a_pin_of_a_client_that_is_gone_before_the_answer_ends(rig: ServerRig) -> None:
    gone = await rig.client()
    rig.log.hold()
    await_sent = gone.begin(wire.SendMessages(gone.next_id(), "orders", [b"x"]))
    assert await_sent
    admin = await rig.client()
    admin.begin(wire.CreateQueue(admin.next_id(), "orders", {}))
    gone.begin(wire.PinLog(gone.next_id()))
    await rig.server.tasks.wait(0)
    assert len(rig.server.part(Pins)) == 1

    gone.transport.lose()
    rig.log.let_go()
    await rig.turn()

    assert len(rig.server.part(Pins)) == 0


async def test_a_failed_log_is_told_and_ends_the_pin(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise LogFailed("the disk is gone")

    client = await rig.client()
    monkeypatch.setattr(rig.log, "seal_now", fail)

    assert code_of(await client.ask(wire.PinLog)) == "outcome_unknown"
    assert len(rig.server.part(Pins)) == 0


async def test_a_pin_that_ended_before_the_seal_is_refused_and_holds_nothing(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await ready(rig)
    await write_segment(rig, client)
    await checkpoints(rig, 1)
    seal = rig.log.seal_now

    async def slowly() -> None:
        rig.clock.advance(PIN_LIFE_MS)
        await seal()

    monkeypatch.setattr(rig.log, "seal_now", slowly)

    assert code_of(await client.ask(wire.PinLog)) == "invalid_argument"
    await checkpoints(rig, 3)
    assert len(rig.log.disk.checkpoints) == 2


async def test_only_admin_with_a_key_for_every_name_may_use_pins(rig: ServerRig) -> None:
    admin = await rig.client()
    pin = await pin_of(admin)
    await admin.expect(wire.KeyList, wire.CreateAccount, "shop")
    shop = await rig.client(rig.accounts.first_key("shop"))
    limited = await rig.client(await rig.accounts.create_role_key("admin", None, ["manage"], ["orders"], 1))

    for client in (shop, limited):
        requests: list[tuple[Any, ...]] = [
            (wire.PinLog,),
            (wire.ListPinnedSegments, pin.pin_id),
            (wire.ReleasePin, pin.pin_id),
            (wire.SetStandingPin, "hourly", pin.log_id, pin.lsn, pin.start, pin.time_ms, 60_000),
            (wire.DeleteStandingPin, "hourly"),
        ]
        for request in requests:
            assert code_of(await client.ask(*request)) == "permission_denied"
    assert await segments_of(admin, pin) == []


# ---------------------------------------------------------------------- standing pins


async def test_a_standing_pin_keeps_consumed_segments_until_they_are_copied(rig: ServerRig) -> None:
    client = await ready(rig)
    pin = await pin_of(client)
    assert await gaps_told(client, pin) == []
    await client.expect(wire.Done, wire.ReleasePin, pin.pin_id)
    kept = {await write_segment(rig, client), await write_segment(rig, client)}
    await checkpoints(rig, 3)
    assert kept <= await scan(rig)
    info = await client.expect(wire.SegmentList, wire.ListSegments)
    assert {segment.number for segment in info.segments if segment.kept_for == ["backup"]} >= kept

    copy = await pin_of(client)
    assert kept <= {*await segments_of(client, copy)}
    assert await gaps_told(client, copy) == []
    await client.expect(wire.Done, wire.ReleasePin, copy.pin_id)

    assert not kept & await scan(rig)


async def test_after_a_start_nothing_goes_until_the_backup_has_told_its_row(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    client = await ready(rig)
    pin = await pin_of(client)
    await tell(client, pin)
    await rig.log.close()
    # A new server over the names that the log has kept.
    again = Pins(log=MemoryLog(rig.log.disk), now_ms=rig.broker_clock.now_ms)
    again.log.last_lsn = pin.lsn + 10  # pyright: ignore[reportAttributeAccessIssue]

    assert again.holds(1)
    assert again.holds(pin.lsn)
    (info,) = again.infos()
    assert (info.name, info.copied_lsn, info.every_ms) == ("hourly", None, 60_000)
    assert info.copied_age_ms == 0

    again.copied("hourly", pin.lsn, pin.time_ms, 60_000)
    assert not again.holds(pin.lsn)
    assert again.holds(pin.lsn + 1)
    rig.close()


async def test_after_a_day_without_a_call_segments_go_and_the_backup_is_told_its_gap(rig: ServerRig) -> None:
    client = await ready(rig)
    await checkpoints(rig, 1)
    copy = await pin_of(client)
    await tell(client, copy)
    await client.expect(wire.Done, wire.ReleasePin, copy.pin_id)
    await write_segment(rig, client)
    last = await write_segment(rig, client)
    (newest,) = (segment for segment in rig.log.closed_segments() if segment.number == last)
    await checkpoints(rig, 3)

    rig.clock.advance(STANDING_LIMIT_MS - 1)
    assert last in await scan(rig)
    rig.clock.advance(1)
    assert last not in await scan(rig)

    (info,) = rig.server.part(Pins).infos()
    assert info.gaps_total == 2
    assert info.copied_age_ms == STANDING_LIMIT_MS
    assert info.is_overdue
    pin = await pin_of(client)
    gap = [(copy.lsn + 1, newest.last_lsn)]
    assert await gaps_told(client, pin, after_lsn=copy.lsn) == gap
    # The reply may have been lost: a repeat is told the same.
    assert await gaps_told(client, pin, after_lsn=copy.lsn) == gap
    # The first copy of a new backup has no copy before, and so no gap.
    assert await gaps_told(client, pin, name="other") == []
    later = await write_segment(rig, client)
    assert await gaps_told(client, await pin_of(client), after_lsn=pin.lsn) == []
    assert later in {segment.number for segment in rig.log.closed_segments()}


async def test_a_full_disk_takes_the_oldest_segments_of_a_standing_pin_and_no_more_than_needed(rig: ServerRig) -> None:
    client = await ready(rig)
    copy = await pin_of(client)
    await tell(client, copy)
    await client.expect(wire.Done, wire.ReleasePin, copy.pin_id)
    numbers = [await write_segment(rig, client) for _ in range(3)]
    await checkpoints(rig, 3)
    await scan(rig)

    short(rig)
    await rig.turn()
    left = {segment.number for segment in rig.log.closed_segments()}
    assert {*numbers[1:]} <= left
    assert numbers[0] not in left
    short(rig, is_short=False)
    await rig.turn()

    assert {*numbers[1:]} <= await scan(rig)
    gaps = await gaps_told(client, await pin_of(client), after_lsn=copy.lsn)
    assert [first for first, _ in gaps] == [copy.lsn + 1]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"log_id": "f" * 32}, "is of log"),
        ({"lsn": 1 << 40}, "newest row of the broker"),
        ({"every_ms": 999}, "every_ms"),
        ({"every_ms": 86_400_001}, "every_ms"),
        ({"name": ""}, "no name of a standing pin"),
        ({"name": "x" * 65}, "no name of a standing pin"),
        ({"name": "a/b"}, "no name of a standing pin"),
    ],
)
async def test_a_wrong_row_or_name_is_refused_with_a_sentence(
    rig: ServerRig, changes: dict[str, Any], text: str
) -> None:
    client = await rig.client()
    pin = await pin_of(client)

    refused = await tell(client, pin, **changes)

    assert code_of(refused) == "invalid_argument"
    assert text in refused.text
    assert rig.server.part(Pins).infos() == []


async def test_a_row_of_another_start_is_refused(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_rows(_lsn: int, _above: int) -> FoundRows:
        return FoundRows("00000000000000aa", [])

    client = await rig.client()
    monkeypatch.setattr(rig.log, "find_rows", find_rows)
    pin = await pin_of(client)
    assert pin.start == "00000000000000aa"

    refused = await tell(client, pin, start="00000000000000bb")

    assert code_of(refused) == "invalid_argument"
    assert "went two ways" in refused.text
    assert await gaps_told(client, pin) == []


async def test_a_row_below_the_row_that_was_told_is_refused(rig: ServerRig) -> None:
    client = await ready(rig)
    old = await pin_of(client)
    await client.send("orders", b"espresso")
    new = await pin_of(client)
    await tell(client, new)

    refused = await tell(client, old)

    assert code_of(refused) == "invalid_argument"
    assert "another backup" in refused.text
    await tell(client, old, name="other")


async def test_names_are_limited_and_can_be_deleted(rig: ServerRig) -> None:
    client = await rig.client()
    pin = await pin_of(client)
    for number in range(MAX_STANDING_PINS):
        await gaps_told(client, pin, name=f"backup-{number}")
    refused = await tell(client, pin, name="one-more")
    assert code_of(refused) == "invalid_argument"
    assert "16 standing pins" in refused.text

    await client.expect(wire.Done, wire.DeleteStandingPin, "backup-3")

    assert "backup-3" not in {entry.name for entry in rig.log.standing_pins}
    await gaps_told(client, pin, name="one-more")
    unknown = await client.ask(wire.DeleteStandingPin, "backup-3")
    assert code_of(unknown) == "invalid_argument"
    assert "backup-0, backup-1" in unknown.text  # pyright: ignore
    entries = await client.expect(wire.AuditEntries, wire.ListAuditEntries)
    assert [(entry.operation, entry.name) for entry in entries.entries] == [("delete_standing_pin", "backup-3")]


async def test_a_deleted_standing_pin_holds_nothing(rig: ServerRig) -> None:
    client = await ready(rig)
    pin = await pin_of(client)
    await tell(client, pin)
    await client.expect(wire.Done, wire.ReleasePin, pin.pin_id)
    number = await write_segment(rig, client)
    await checkpoints(rig, 3)
    assert number in await scan(rig)

    await client.expect(wire.Done, wire.DeleteStandingPin, "hourly")

    assert number not in await scan(rig)


async def test_a_time_of_the_future_counts_as_now(rig: ServerRig) -> None:
    client = await rig.client()
    pin = await pin_of(client)

    await tell(client, pin, pinned_ms=pin.time_ms + 1_000_000)

    assert rig.server.part(Pins).infos()[0].copied_age_ms == 0
    rig.clock.advance(180_001)
    assert rig.server.part(Pins).infos()[0].is_overdue


async def test_status_and_metrics_tell_pins_and_the_age_of_the_last_copy(rig: ServerRig) -> None:
    client = await rig.client()
    pin = await pin_of(client)
    await tell(client, pin)
    rig.clock.advance(61_000)

    status = (await client.expect(wire.ServerStatus, wire.GetServerStatus)).status
    metrics = (await client.expect(wire.Metrics, wire.GetMetrics)).server

    assert status["pins"] == 1
    assert status["standing_pins"] == [
        {"name": "hourly", "copied_lsn": pin.lsn, "copied_age_ms": 61_000, "every_ms": 60_000, "gaps_total": 0}
    ]
    assert metrics is not None
    assert metrics.pins == 1
    assert [(info.name, info.copied_age_ms) for info in metrics.standing_pins] == [("hourly", 61_000)]
