"""The handle of a queue on a connection without faults."""

from datetime import UTC, datetime, timedelta

import pytest

import cmqd
from cmqd_client import Client, Outgoing, connect
from cmqd_client.accounts import AccountQueue
from cmqd_client.address import parse_address
from cmqd_client.administration.segments import SegmentHolder
from cmqd_client.connection import Connection
from cmqd_client.errors import (
    InvalidArgument,
    MessageTooLarge,
    NotSupported,
    PartialFailure,
    QueueDiffers,
    QueueExists,
    QueueNotFound,
    ReceiptHandleInvalid,
)
from cmqd_protocol import messages as wire
from cmqd_types.segments import KeptFor
from support.client.local_server import LocalServer


async def test_a_message_is_sent_received_and_deleted(client: Client, server: LocalServer) -> None:
    queue = client.queue("orders")
    # The server's time is in whole milliseconds, and may lie behind the wall clock by as much as two readings differ.
    before = datetime.now(UTC) - timedelta(milliseconds=100)

    sent = await queue.send(b"one espresso", headers={"table": "7"})
    (message,) = await queue.receive()

    assert message.id == sent.id
    assert message.id.startswith("Msg-")
    assert len(message.id) == 4 + 16
    assert message.body == b"one espresso"
    assert message.headers == {"table": "7"}
    assert message.receive_count == 1
    assert before <= message.enqueue_time <= message.first_receive_time < message.next_visible_time
    await message.delete()
    assert await queue.receive(wait=0) == []
    assert (await server.info("orders")).in_flight == 0


async def test_durations_are_seconds_or_timedelta_and_milliseconds_on_the_wire(
    client: Client, server: LocalServer
) -> None:
    queue = client.queue("orders")

    await queue.send(b"x", delay=1.5)
    await queue.send(b"x", delay=timedelta(minutes=1))
    await queue.receive(wait=0, visibility_timeout=timedelta(hours=1))

    assert [request.delay_ms for request in server.link.of(wire.SendMessages)] == [1500, 60_000]
    (receive,) = server.link.of(wire.ReceiveMessages)
    assert (receive.wait_ms, receive.visibility_timeout_ms) == (0, 3_600_000)


async def test_missing_arguments_are_left_to_the_queue(client: Client, server: LocalServer) -> None:
    queue = client.queue("orders")

    await queue.send(b"x")
    await queue.receive()

    assert server.link.of(wire.SendMessages)[0].delay_ms is None
    receive = server.link.of(wire.ReceiveMessages)[0]
    assert (receive.wait_ms, receive.visibility_timeout_ms) == (None, None)


async def test_a_batch_keeps_its_order_and_gives_an_id_for_each(client: Client, server: LocalServer) -> None:
    queue = client.queue("orders")

    sent = await queue.send_batch([b"a", Outgoing(b"b", headers={"k": "v"}, delay=0.25), b"c"], delay=2)

    (request,) = server.link.of(wire.SendMessages)
    assert request.bodies == [b"a", b"b", b"c"]
    assert request.headers == [None, {"k": "v"}, None]
    assert request.delay_ms == [2000, 250, 2000]
    assert len(set(sent.ids)) == 3


async def test_a_batch_of_which_a_part_names_a_delay_gives_the_rest_the_queues_own(
    client: Client, server: LocalServer
) -> None:
    await server.admin.create_queue("later", delay=5)

    await client.queue("later").send_batch([b"a", Outgoing(b"b", delay=0)])

    assert server.link.of(wire.SendMessages)[0].delay_ms == [5000, 0]


async def test_an_empty_batch_asks_nothing_of_the_server(client: Client, server: LocalServer) -> None:
    assert (await client.queue("orders").send_batch([])).ids == []
    assert (await client.queue("orders").delete_batch([])).ok
    assert not server.link.handled


async def test_text_is_refused_as_a_body_with_a_hint(client: Client) -> None:
    with pytest.raises(TypeError, match=r"encode\(\)"):
        await client.queue("orders").send("text")  # pyright: ignore[reportArgumentType]


async def test_a_receive_takes_up_to_so_many(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b", b"c")

    first = await client.queue("orders").receive(2)
    rest = await client.queue("orders").receive(2)

    assert [message.body for message in first + rest] == [b"a", b"b", b"c"]


async def test_a_stale_handle_cannot_delete(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a")
    (message,) = await client.queue("orders").receive()
    await message.release()

    with pytest.raises(ReceiptHandleInvalid) as caught:
        await message.delete()

    assert caught.value.code == 402
    assert caught.value.name == "receipt_handle_invalid"
    assert caught.value.request_id == server.link.of(wire.DeleteMessages)[0].request_id
    assert caught.value.details == {"receipt_handle": message.receipt_handle, "gone": 0}


async def test_a_batch_lists_failures_and_does_the_rest(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b")
    queue = client.queue("orders")
    first, second = await queue.receive(2)

    result = await queue.delete_batch([first, 12345, second.receipt_handle], check=False)

    assert not result.ok
    assert result.done == [first.receipt_handle, second.receipt_handle]
    assert [failure.receipt_handle for failure in result.failures] == [12345]
    assert isinstance(result.failures[0].error, ReceiptHandleInvalid)
    assert (await server.info("orders")).in_flight == 0
    with pytest.raises(PartialFailure, match="1 of 3 failed") as caught:
        result.raise_for_failures()
    assert caught.value.failures == result.failures


async def test_a_message_named_twice_counts_once(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b")
    queue = client.queue("orders")
    first, second = await queue.receive(2)

    result = await queue.delete_batch([first, second, first.receipt_handle, second])

    assert result.ok
    assert result.done == [first.receipt_handle, second.receipt_handle]
    assert server.link.of(wire.DeleteMessages)[0].receipt_handles == result.done


async def test_several_requests_tell_the_earliest_next_visible_time(client: Client, server: LocalServer) -> None:
    await server.put("orders", *[b"x"] * 257)
    queue = client.queue("orders")
    handles = [message.receipt_handle for _ in range(2) for message in await queue.receive(256)]

    kept = await queue.change_visibility_batch(handles, timedelta(hours=2))
    partly = await queue.change_visibility_batch([*handles[:256], *range(1000, 1256)], timedelta(hours=1), check=False)

    assert len(server.link.of(wire.ChangeVisibility)) == 4
    assert kept.next_visible_time is not None
    assert partly.next_visible_time is not None
    assert partly.next_visible_time < kept.next_visible_time


async def test_more_than_256_handles_go_in_several_requests(client: Client, server: LocalServer) -> None:
    await server.put("orders", *[b"x"] * 600)
    queue = client.queue("orders")
    messages = [message for _ in range(3) for message in await queue.receive(200)]

    result = await queue.delete_batch(messages)

    assert result.ok
    assert len(result.done) == 600
    assert [len(request.receipt_handles) for request in server.link.of(wire.DeleteMessages)] == [256, 256, 88]


async def test_release_hands_back_at_once_counted_or_not(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a")
    queue = client.queue("orders")

    (first,) = await queue.receive()
    await first.release()
    (second,) = await queue.receive()
    await second.release(count_receive=False)
    (third,) = await queue.receive()

    assert [first.receive_count, second.receive_count, third.receive_count] == [1, 2, 2]


async def test_change_visibility_says_until_when(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a")
    (message,) = await client.queue("orders").receive()

    result = await message.change_visibility(timedelta(hours=2))

    assert result.next_visible_time is not None
    assert result.next_visible_time > message.next_visible_time


async def test_peek_pages_through_without_receiving(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b", b"c")
    queue = client.queue("orders")
    await queue.receive()

    first = await queue.peek(2)
    assert first.next_start is not None
    second = await queue.peek(2, start=first.next_start)

    assert [(one.body, one.state) for one in (*first, *second)] == [
        (b"a", "in_flight"),
        (b"b", "active"),
        (b"c", "active"),
    ]
    assert len(second) == 1
    assert second.next_start is None
    assert (await server.info("orders")).active == 2


async def test_attributes_show_the_set_values_and_the_counts(client: Client, server: LocalServer) -> None:
    queue = await client.create_queue("jobs", visibility_timeout=timedelta(minutes=2), polling_wait=0.5)
    await server.put("jobs", b"a", b"b")
    await queue.receive()

    info = await queue.set_attributes(retention=3600)

    assert (info.name, info.created) == ("jobs", False)
    assert (info.visibility_timeout, info.polling_wait, info.retention) == (120.0, 0.5, 3600.0)
    assert (info.active, info.in_flight, info.delayed) == (1, 1, 0)
    assert info.oldest_message_time is not None
    assert info.details["retention_ms"] == 3_600_000
    assert info.attributes().get("max_message_bytes") == 65536


async def test_an_unknown_attribute_is_refused_before_anything_is_sent(client: Client, server: LocalServer) -> None:
    with pytest.raises(TypeError, match="a queue has no attribute 'colour'"):
        await client.create_queue("jobs", colour="red")  # pyright: ignore[reportCallIssue]
    assert not server.link.handled


async def test_create_refuses_an_existing_name_and_ensure_accepts_it(client: Client, server: LocalServer) -> None:
    await client.create_queue("jobs", visibility_timeout=60)

    with pytest.raises(QueueExists):
        await client.create_queue("jobs")
    assert (await client.ensure_queue("jobs", visibility_timeout=60)).name == "jobs"
    assert (await client.ensure_queue_info("new")).created
    with pytest.raises(QueueDiffers) as caught:
        await client.ensure_queue("jobs", visibility_timeout=61)
    assert caught.value.details["difference"] == {"visibility_timeout_ms": {"is": 60_000, "wanted": 61_000}}


async def test_queues_are_listed_cleared_and_deleted(client: Client, server: LocalServer) -> None:
    for name in ("jobs-1", "jobs-2", "mail"):
        await client.create_queue(name)
    await server.put("mail", b"a")

    page = await client.queues(search="jobs", limit=1)
    await client.queue("mail").clear()
    await client.delete_queue("jobs-1")

    assert (page.names, page.total, len(page), list(page)) == (["jobs-1"], 2, 1, ["jobs-1"])
    assert (await client.queue("mail").attributes()).active == 0
    assert list(await client.queues()) == ["jobs-2", "mail", "orders"]


async def test_errors_name_field_value_and_limit(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="visibility_timeout is 500 ms; the range is 1 s to 12 h") as caught:
        await client.create_queue("jobs", visibility_timeout=0.5)
    assert caught.value.details == {
        "field": "visibility_timeout_ms",
        "value": 500,
        "limit": "an integer from 1000 to 43200000",
        "range": [1000, 43_200_000],
        "unit": "ms",
    }
    with pytest.raises(QueueNotFound):
        await client.queue("nowhere").send(b"x")
    with pytest.raises(MessageTooLarge):
        await client.queue("orders").send(b"x" * 65537)


async def test_a_request_that_does_not_fit_a_frame_is_refused_without_being_sent(
    client: Client, server: LocalServer
) -> None:
    with pytest.raises(MessageTooLarge, match="a frame may have"):
        await client.queue("orders").send(b"x" * 5_000_000)
    assert not server.link.handled
    await client.queue("orders").send(b"x")


async def test_accounts_and_keys_are_managed(client: Client) -> None:
    key = await client.accounts.create("kitchen")

    assert key.account == "kitchen"
    assert key.secret_key is not None
    assert key.secret_key not in repr(key)
    assert await client.accounts.list() == ["admin", "kitchen"]
    second = await client.accounts.create_key(account="kitchen")
    third = await client.accounts.create_key(account="kitchen")
    await client.accounts.set_key_enabled(second.secret_id, False, account="kitchen")
    await client.accounts.delete_key(third.secret_id, account="kitchen")
    left = await client.accounts.keys(account="kitchen")
    assert {(one.secret_id, one.enabled, one.secret_key) for one in left} == {
        (key.secret_id, True, None),
        (second.secret_id, False, None),
    }
    await client.accounts.delete("kitchen")
    assert await client.accounts.list() == ["admin"]


async def test_the_queues_of_all_accounts_come_by_pages(client: Client) -> None:
    await client.ensure_queue("a")
    await client.ensure_queue("b")

    first = await client.accounts.queues(limit=1)
    assert (first.queues, first.next) == ([AccountQueue("admin", "a")], AccountQueue("admin", "a"))
    second = await client.accounts.queues(after=first.next, limit=1000)
    assert second.queues[0] == AccountQueue("admin", "b")
    assert second.next is None


async def test_status_tells_about_the_server(client: Client, server: LocalServer) -> None:
    assert (await client.status())["version"] == cmqd.__version__
    assert (await client.seal_segments()).last_lsn == await server.status("durable_lsn")


async def test_segments_tell_what_keeps_them(client: Client, server: LocalServer) -> None:
    await client.queue("orders").send(b"1")
    await client.seal_segments()
    await client.queue("orders").send_batch([b"2", b"3"])

    page = await client.segments()

    sealed, active = page.segments
    assert (sealed.state, sealed.live, sealed.holders) == ("sealed", 1, [SegmentHolder("admin", "orders", False, 1, 0)])
    assert KeptFor.MESSAGES in sealed.kept_for
    assert (active.state, active.live, active.kept_for) == ("active", 2, [KeptFor.ROWS, KeptFor.MESSAGES])
    assert (page.total, page.next, page.keep_history) == (2, None, timedelta(0))
    assert page.time >= active.last_time
    behind = await client.segments(after=sealed.number, limit=1)
    assert [segment.number for segment in behind.segments] == [active.number]
    assert (await client.segments(limit=1)).next == sealed.number


# ---------------------------------------------------------------------- at a time


async def test_a_message_is_sent_for_a_time(client: Client, server: LocalServer) -> None:
    queue = client.queue("orders")
    moment = datetime(2100, 1, 1, tzinfo=UTC)

    with pytest.raises(InvalidArgument, match=r"at is 2100-01-01T00:00:00Z, .* ahead; .* a delay of at most 1 h"):
        await queue.send(b"a", at=moment)
    await queue.send(b"b", at=datetime.now(UTC) + timedelta(minutes=10))
    await queue.send_batch([b"c", b"d"], at=1_700_000_000.5)

    assert await server.bodies("orders") == [b"c", b"d"]
    server.advance(601)
    assert await server.bodies("orders") == [b"b", b"c", b"d"]
    requests = server.link.of(wire.SendMessages)
    assert [(request.delay_ms, request.at_ms) for request in requests if request.at_ms != requests[1].at_ms] == [
        (None, 4_102_444_800_000),
        (None, 1_700_000_000_500),
    ]


async def test_a_delay_and_a_time_are_not_sent_together(client: Client, server: LocalServer) -> None:
    queue = client.queue("orders")
    moment = datetime(2100, 1, 1, tzinfo=UTC)

    with pytest.raises(ValueError, match="delay or at, not both"):
        await queue.send(b"a", delay=1, at=moment)
    with pytest.raises(ValueError, match="delay or at, not both"):
        await queue.send_batch([b"a", Outgoing(b"b", delay=1)], at=moment)
    with pytest.raises(ValueError, match="names no zone"):
        await queue.send(b"a", at=datetime(2100, 1, 1))
    assert not server.link.handled


async def test_an_older_server_is_not_asked_for_a_time(server: LocalServer) -> None:
    server.link.features = ()

    async with connect(server.url) as client:
        with pytest.raises(NotSupported, match="send_at"):
            await client.queue("orders").send(b"a", at=datetime(2100, 1, 1, tzinfo=UTC))
    assert not server.link.of(wire.SendMessages)


@pytest.mark.parametrize(("setting", "named"), [({}, False), ({"max_delay_ms": 86_400_000}, True)])
async def test_a_server_that_takes_long_delays_says_so(setting: dict[str, int], named: bool) -> None:
    async with LocalServer(**setting) as server:
        address = parse_address(server.url)
        connection = await Connection.open(address, timeout=300)
        assert ("long_delays" in connection.facts.features) is named
        await connection.close()
