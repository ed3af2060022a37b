"""Histories through the client: the life of a message, by id and by handle."""

from datetime import timedelta

import pytest

from cmqd_client import Client
from cmqd_client.errors import InvalidArgument, MessageNotFound, QueueNotFound
from cmqd_types.actors import StatedClient
from cmqd_types.histories import LifeKind


async def test_the_life_of_a_message_is_read_by_id_and_by_handle(client: Client) -> None:
    queue = await client.ensure_queue("orders", visibility_timeout=30)
    sent = await queue.send(b"abc")
    (message,) = await queue.receive()

    history = await client.message_history(sent.id)

    assert (history.id, len(history), history.left_out) == (sent.id, 2, 0)
    first, second = history
    assert (first.kind, first.queue, first.id, first.size) == (LifeKind.SENT, "orders", sent.id, 3)
    assert first.client_name
    assert (first.client_host, first.client_stated_by) == ("127.0.0.1", "")
    assert first.description == f'sent, 3 bytes, by "{first.client_name}" (AKID...{first.client_key[-2:]})'
    assert (first.from_id, first.until_time) == (None, None)
    assert (second.kind, second.receive_count, second.certain) == (LifeKind.RECEIVED, 1, True)
    assert second.until_time == second.time + timedelta(seconds=30)
    (place,) = history.places
    assert place.until_time is not None
    assert (place.queue, place.id, place.state, place.until_time) == (
        "orders",
        sent.id,
        "in_flight",
        second.until_time,
    )
    assert history.life.events[1].until_ms == round(place.until_time.timestamp() * 1000)
    by_handle = await client.message_history(receipt_handle=message.receipt_handle)
    assert (by_handle.events, by_handle.places) == (history.events, history.places)


async def test_a_host_that_the_server_did_not_see_is_stated_by_the_peer(client: Client) -> None:
    shop = client.on_behalf_of(StatedClient("shop", "10.9.8.7"))
    sent = await (await shop.ensure_queue("orders")).send(b"abc")

    (event,) = await client.message_history(sent.id)

    assert (event.client_name, event.client_host, event.client_stated_by) == ("shop", "10.9.8.7", "127.0.0.1")


async def test_a_message_that_no_row_tells_of_is_not_found(client: Client) -> None:
    with pytest.raises(MessageNotFound, match="Msg-00000000ffffffff"):
        await client.message_history("Msg-00000000ffffffff")
    with pytest.raises(MessageNotFound, match="receipt handle 12"):
        await client.message_history(receipt_handle=12)
    with pytest.raises(InvalidArgument, match="give one of them"):
        await client.message_history()
    with pytest.raises(ValueError, match="message id"):
        await client.message_history("12")


async def test_messages_are_found_by_header_and_dedup_id(client: Client) -> None:
    queue = await client.ensure_queue("orders")
    first = await queue.send(b"abc", headers={"order": "4711"}, dedup_id="order-4711")
    others = [(await queue.send(b"x", headers={"customer": "7"})).id for _ in range(5)]

    found = await client.find_messages("orders", header=("order", "4711"))

    (message,) = found
    assert (message.id, message.source, found.missing, found.is_cut) == (first.id, "orders", [], False)
    assert found.request_id > 0
    assert found.from_time >= message.sent_time - timedelta(hours=24)
    assert [each.id for each in await client.find_messages(dedup_id="order-4711")] == [first.id]
    cut = await client.find_messages(header=("customer", "7"), limit=3)
    assert ([each.id for each in cut], cut.is_cut) == (others[:3], True)
    assert len(await client.find_messages(header=("customer", "7"), since=message.sent_time)) == 5
    assert not len(await client.find_messages(header=("customer", "7"), until=found.from_time))
    with pytest.raises(QueueNotFound):
        await client.find_messages("absent", dedup_id="a")
    with pytest.raises(InvalidArgument, match="give one of them"):
        await client.find_messages("orders")
    with pytest.raises(ValueError, match="limit is 0"):
        await client.find_messages(dedup_id="a", limit=0)
