"""The event stream and the history of the console: contents, permissions, limits and ends."""

import asyncio
import json
from typing import Any

import pytest

from cmqd_client.errors import ConnectionLost
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.console import events as events_module
from cmqd_gateway.console import sampler as sampler_module
from cmqd_gateway.console import streams as streams_module
from support.eventually import eventually
from support.gateway.event_stream import EventStream
from support.gateway.gateway_rig import GatewayRig


async def get(rig: GatewayRig, path: str, key: KeySecret | None, **headers: str) -> tuple[int, Any]:
    if key is not None:
        headers["Authorization"] = f"Bearer {key.secret_id}:{key.secret_key}"
    async with rig.session.get(f"http://{rig.host}{path}", headers=headers) as response:
        return response.status, json.loads(await response.read())


async def key_of(rig: GatewayRig, account: str | None = None, **permissions: Any) -> KeySecret:
    """A further key of ``admin``, or the first key of a new account."""
    accounts = rig.server.admin.accounts
    made = await (accounts.create_key(**permissions) if account is None else accounts.create(account))
    assert made.secret_key is not None
    return rig.add_key(made.secret_id, made.secret_key)


async def until_closed(rig: GatewayRig, open_streams: int = 0) -> None:
    await eventually(lambda: len(rig.console.streams) == open_streams)


# ---------------------------------------------------------------- contents


async def test_a_page_gets_figures_the_largest_queues_and_findings(rig: GatewayRig) -> None:
    await rig.server.put("orders", b"a", b"b")
    async with EventStream(rig) as events:
        hello = await events.next("hello")
        assert (hello["account"], hello["is_admin"], hello["reads_figures"], hello["is_kept"]) == (
            *("admin", True, True),
            False,
        )
        figures = second = await events.next("figures")
        rig.wall_offset += 5
        rig.console.sampler.wake()
        while second["now"]["sent"] is None:
            second = await events.next("figures")
        top = await events.next("top")

    assert (figures["now"]["active"], figures["now"]["sent"], figures["counts"]["queues"]) == (2, None, 1)
    assert figures["server"]["sends_refused"] is False
    assert second["now"]["sent"] == 0
    assert second["point"]["values"][hello["series"].index("active")] == 2
    (queue,) = top["queues"]
    assert (queue["queue"], queue["active"], queue["account"]) == ("orders", 2, "admin")
    assert events.seen[:2] == ["hello", "broker"]


async def test_findings_come_with_details_of_the_own_account(rig: GatewayRig) -> None:
    await rig.server.put("orders", b"a")
    retention = (await rig.server.admin.queue("orders").attributes()).retention
    rig.server.advance(retention * 0.9)
    async with EventStream(rig) as events:
        while not (found := await events.next("findings")) or "near_retention" not in {each["code"] for each in found}:
            pass

    near = next(each for each in found if each["code"] == "near_retention")
    assert near["names"] == {"account": "admin", "queue": "orders"}
    assert near["figures"]["retention_seconds"] == retention
    assert 0.85 * retention < near["figures"]["age_seconds"] < retention


async def test_the_history_has_the_readings_of_the_account(rig: GatewayRig) -> None:
    await rig.server.put("orders", b"a")
    status, part = await get(rig, "/console/history?range=15m", rig.own_key)
    assert (status, part["columns"]) == (200, {})

    async with EventStream(rig) as events:
        await events.next("figures")
        status, part = await get(rig, "/console/history?range=15m", rig.own_key)

    assert (status, part["step"], len(part["columns"]["active"])) == (200, 5, 180)
    assert 1 in part["columns"]["active"]


async def test_an_account_sees_its_own_figures_and_no_server(rig: GatewayRig) -> None:
    await rig.server.put("orders", b"a")
    shop = await key_of(rig, "shop")
    async with EventStream(rig, shop) as events:
        assert (await events.next("hello"))["account"] == "shop"
        figures = await events.next("figures")

    assert (figures["counts"]["queues"], figures["now"]["active"], figures["server"]) == (0, 0, None)
    assert figures["now"]["free_bytes"] is None
    assert (await get(rig, "/console/history", shop))[1]["columns"]["active"][-1] in (0, None)


async def test_pages_of_an_account_share_a_reading_and_its_bytes(rig: GatewayRig) -> None:
    another = await key_of(rig)
    async with EventStream(rig) as first, EventStream(rig, another) as second:
        await first.next("figures")
        times = {(await second.next("figures"))["time"] for _ in range(2)}
        assert (await first.next("figures"))["time"] in times
        (feed,) = rig.console.sampler.feeds
        assert len(feed.viewers) == 2


# ---------------------------------------------------------------- permissions


@pytest.mark.parametrize("permissions", [{"roles": ["consume"]}, {"roles": ["read"], "names": ["orders-*"]}])
async def test_a_key_that_may_not_read_all_figures_gets_none(rig: GatewayRig, permissions: dict[str, Any]) -> None:
    key = await key_of(rig, **permissions)
    async with EventStream(rig, key) as events:
        assert (await events.next("hello"))["reads_figures"] is False
        rig.key_changed(key.secret_id)
        assert (await events.next("broker"))["is_away"] is False
        rig.console.streams.end_all()
        await events.next("bye")

    assert events.seen == ["hello", "broker", "bye"]
    status, problem = await get(rig, "/console/history", key)
    assert (status, problem["name"]) == (403, "permission_denied")


@pytest.mark.parametrize("path", ["/console/events", "/console/history"])
async def test_a_request_needs_a_key_of_its_own_site(rig: GatewayRig, path: str) -> None:
    wrong = KeySecret(rig.own_key.secret_id, "wrong")

    assert (await get(rig, path, None))[0] == 401
    assert (await get(rig, path, wrong))[0] == 401
    assert (await get(rig, path, rig.own_key, **{"Sec-Fetch-Site": "cross-site"}))[1]["name"] == "cross_site_request"
    assert len(rig.console.streams) == 0


async def test_an_unknown_range_is_refused(rig: GatewayRig) -> None:
    status, problem = await get(rig, "/console/history?range=1y", rig.own_key)

    assert (status, problem["field"]) == (400, "range")
    assert "15m, 1h, 6h, 24h" in problem["detail"]


async def test_a_stream_ends_when_the_roles_of_its_key_change(rig: GatewayRig) -> None:
    key = await key_of(rig)
    async with EventStream(rig, key) as events, EventStream(rig) as other:
        await events.next("figures")
        await rig.server.admin.accounts.set_key_roles(key.secret_id, roles=["send"])
        rig.key_changed(key.secret_id)

        assert await events.next("bye") == {"reason": "key_changed"}
        assert await events.ended()
        await other.next("figures")
        await other.next("figures")


async def test_a_stream_ends_with_its_key(rig: GatewayRig) -> None:
    key = await key_of(rig)
    async with EventStream(rig, key) as events:
        await events.next("figures")
        del rig.table.keys[key.secret_id]
        rig.key_changed(None)

        assert await events.next("bye") == {"reason": "session_ended"}
        assert await events.ended()
    await until_closed(rig)


async def test_a_stream_is_checked_with_its_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "HEARTBEAT_SECONDS", 0.01)
    async with GatewayRig() as rig:
        key = await key_of(rig, roles=["send"])
        async with EventStream(rig, key) as events:
            await events.next("comment")
            # No word of the change reaches the gateway.
            rig.table.keys[key.secret_id] = KeySecret(key.secret_id, key.secret_key, enabled=False)
            rig.clock.advance(5)
            rig.gateway.secrets.drop_unconfirmed()

            assert await events.next("bye") == {"reason": "session_ended"}


# ---------------------------------------------------------------- limits and ends


async def test_a_key_has_a_limited_number_of_streams(rig: GatewayRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "MAX_STREAMS_PER_KEY", 1)
    another = await key_of(rig)
    async with EventStream(rig) as events, EventStream(rig, another):
        await events.next("hello")
        status, problem = await get(rig, "/console/events", rig.own_key)

        assert (status, problem["name"]) == (503, "too_many_connections")
    await until_closed(rig)
    async with EventStream(rig) as events:
        await events.next("hello")


async def test_all_keys_have_a_limited_number_of_streams(rig: GatewayRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "MAX_STREAMS", 1)
    another = await key_of(rig)
    async with EventStream(rig):
        assert (await get(rig, "/console/events", another))[0] == 503


async def test_an_account_without_a_page_makes_room(rig: GatewayRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "MAX_ACCOUNTS", 1)
    shop, store = await key_of(rig, "shop"), await key_of(rig, "store")
    async with EventStream(rig, shop) as events:
        await events.next("figures")
        assert (await get(rig, "/console/events", store))[0] == 503
        assert len(rig.console.streams) == 1
    await until_closed(rig)

    async with EventStream(rig, store) as events:
        await events.next("figures")
        assert [feed.account for feed in rig.console.sampler.feeds] == ["store"]


async def test_the_end_of_the_gateway_ends_streams_at_once_and_says_so(rig: GatewayRig) -> None:
    async with EventStream(rig) as events:
        await events.next("figures")
        closing = asyncio.create_task(rig.http_server.close())

        assert await events.next("bye") == {"reason": "draining"}
        assert await events.ended()
        await closing
    assert len(rig.console.streams) == 0


async def test_a_page_that_does_not_read_is_closed_and_keeps_a_frame_of_each_kind(rig: GatewayRig) -> None:
    reader, writer = await rig.open_raw()
    key = f"{rig.own_key.secret_id}:{rig.own_key.secret_key}"
    writer.write(f"GET /console/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    await reader.readuntil(b"event: figures")
    (stream,) = rig.console.streams.streams
    (guard,) = rig.gateway.guards._guards.values()  # pyright: ignore[reportPrivateUsage]
    large = b": " + b"x" * (1 << 20) + b"\n\n"
    reader._transport.pause_reading()  # type: ignore[attr-defined] # pyright: ignore
    while guard.stuck_since is None:
        stream.post("figures", large)
        await rig.server.status("connections")
    for _ in range(100):
        stream.post("figures", large)
    unsent = stream.take()
    assert unsent.count(large) == 1
    assert len(unsent) < 2 * len(large)

    rig.clock.advance(rig.settings.slow_client_seconds + 1)
    rig.gateway.guards.close_slow()

    await until_closed(rig)
    writer.close()


async def test_the_pages_are_told_when_the_broker_is_away_and_back(rig: GatewayRig) -> None:
    rig.console.streams.probe_seconds = 0.001
    is_away = True

    async def probe() -> None:
        if is_away:
            raise ConnectionLost("no answer")

    async with EventStream(rig) as events:
        assert (await events.next("broker"))["is_away"] is False
        await events.next("figures")
        rig.console.readiness.probe = probe
        rig.clock.advance(5)
        away = await events.next("broker")
        assert away["is_away"] is True
        assert away["since"] <= rig.gateway.wall_clock()
        async with EventStream(rig) as later:
            assert (await later.next("broker"))["is_away"] is True

        is_away = False
        rig.clock.advance(5)
        assert await events.next("broker") == {"is_away": False, "since": None}
        await events.next("figures")


# ---------------------------------------------------------------- without a page


async def test_the_account_of_a_closed_page_is_read_further_with_the_same_key(rig: GatewayRig) -> None:
    key = await key_of(rig)
    async with EventStream(rig, key) as events:
        await events.next("figures")
    await until_closed(rig)
    (feed,) = rig.console.sampler.feeds
    before = feed.history.until
    feed.wake.set()
    await eventually(lambda: feed.history.until != before)
    assert not feed.last, "without a page nothing is encoded"

    del rig.table.keys[key.secret_id]
    rig.key_changed(key.secret_id)
    feed.wake.set()
    await eventually(lambda: feed.task is not None and feed.task.done())


async def test_an_account_is_not_read_for_longer_than_a_session(rig: GatewayRig) -> None:
    async with EventStream(rig) as events:
        await events.next("figures")
    await until_closed(rig)
    (feed,) = rig.console.sampler.feeds
    rig.clock.advance(sampler_module.KEPT_SECONDS)
    feed.wake.set()

    await eventually(lambda: feed.task is not None and feed.task.done())


async def test_the_gateway_reads_admin_with_its_own_key_before_a_page_is_open(rig: GatewayRig) -> None:
    sampler = rig.console.sampler
    refused = await key_of(rig, roles=["send"])
    sampler.own_keys = [refused, await key_of(rig, roles=["read", "gateway"])]
    await rig.server.put("orders", b"a")
    sampler.start()
    (feed,) = sampler.feeds
    await eventually(lambda: feed.history.until is not None)

    part = (await get(rig, "/console/history", rig.own_key))[1]
    assert 1 in part["columns"]["active"]
    async with EventStream(rig) as events:
        assert (await events.next("hello"))["is_kept"] is True


async def test_without_a_key_that_may_read_the_gateway_reads_with_the_key_of_a_page(rig: GatewayRig) -> None:
    sampler = rig.console.sampler
    sampler.own_keys = [await key_of(rig, roles=["send"])]
    sampler.start()
    await eventually(lambda: not sampler.reads_unwatched)

    async with EventStream(rig) as events:
        assert (await events.next("hello"))["is_kept"] is False
        assert (await events.next("figures"))["now"]["active"] == 0
