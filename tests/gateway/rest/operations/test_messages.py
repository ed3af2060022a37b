"""The operations of the JSON API with the tag messages: each succeeds, and has its own errors."""

from support.gateway.operation_checks import check_batch, check_tag, checks, received
from support.gateway.rest_calls import RestCalls


@checks("send_message")
async def check_send_message(rest: RestCalls) -> None:
    sent = await rest.ok("send_message", queue="orders", body={"body": "héllo\x00\n", "headers": {"kind": "test"}})
    (message,) = await rest.received("orders")
    assert (message.id, message.body, message.encoding) == (sent.id, "héllo\x00\n", "utf-8")
    assert message.headers == {"kind": "test"}
    large = await rest.refused("send_message", queue="orders", body={"body": "x" * 65_537})
    assert (large.status, large.name) == (413, "message_too_large")
    empty = await rest.refused("send_message", queue="orders", body={"body": ""})
    assert (empty.status, empty.field) == (400, "body")
    wrong = await rest.refused("send_message", queue="orders", body={"body": "a*", "encoding": "base64"})
    assert (wrong.status, wrong.field) == (400, "body")
    both = {"body": "x", "delay": 1, "at": "2027-01-01T00:00:00Z"}
    assert (await rest.refused("send_message", queue="orders", body=both)).field == "at"


@checks("send_messages")
async def check_send_messages(rest: RestCalls) -> None:
    messages = [{"body": "first"}, {"body": "/w==", "encoding": "base64", "headers": {"a": "b"}}]
    batch = await rest.ok("send_messages", queue="orders", body={"messages": messages})
    first, second = await rest.received("orders")
    assert [result.id for result in batch.results] == [first.id, second.id]
    assert (first.body, first.encoding) == ("first", "utf-8")
    assert (second.body, second.encoding, second.headers) == ("/w==", "base64", {"a": "b"})
    # All or none: the second message is too large.
    refusal = await rest.refused(
        "send_messages", queue="orders", body={"messages": [{"body": "a"}, {"body": "x" * 70_000}]}
    )
    assert (refusal.status, refusal.name, refusal.details["index"]) == (413, "message_too_large", 1)
    large = [{"body": "x" * 60_000}] * 20
    assert (await rest.refused("send_messages", queue="orders", body={"messages": large})).name == "batch_too_large"
    many = await rest.refused("send_messages", queue="orders", body={"messages": [{"body": "x"}] * 257})
    assert many.status == 400
    assert (await rest.refused("send_messages", queue="orders", body={"messages": []})).field == "messages"
    after = await rest.refused("send_messages", queue="orders", body={"messages": [{"body": "a"}], "after": "unknown"})
    assert (after.status, after.name) == (409, "out_of_order")
    assert (await rest.ok("get_queue", queue="orders")).counts.active == 0


@checks("get_message_history")
async def check_get_message_history(rest: RestCalls) -> None:
    await received(rest)
    (message,) = (await rest.ok("peek_messages", queue="orders")).messages
    history = await rest.ok("get_message_history", message=message.id)
    assert [(event.kind, event.queue, event.id) for event in history.events] == [
        ("sent", "orders", message.id),
        ("received", "orders", message.id),
    ]
    assert history.events[0].description.startswith("sent, ")
    assert [(place.queue, place.state) for place in history.places] == [("orders", "in_flight")]
    gone = await rest.refused("get_message_history", message="Msg-00000000ffffffff")
    assert (gone.status, gone.name) == (404, "message_not_found")
    assert (await rest.refused("get_message_history", message="12")).field == "message"
    assert (await rest.refused("get_message_history", message="Msg-0010000000000001")).name == "invalid_argument"


@checks("find_messages")
async def check_find_messages(rest: RestCalls) -> None:
    body = {"body": "a", "headers": {"order": "4711"}, "dedup_id": "order-4711"}
    sent = await rest.ok("send_message", queue="orders", body=body)
    for query in ({"header": "order=4711"}, {"dedup_id": "order-4711"}, {"header": "order=4711", "source": "orders"}):
        found = await rest.ok("find_messages", query=query)
        assert [(message.id, message.source) for message in found.messages] == [(sent.id, "orders")]
        assert (found.missing, found.is_cut) == ([], False)
    assert (await rest.ok("find_messages", query={"header": "order=", "since": "2023-01-01T00:00:00Z"})).messages == []
    absent = await rest.refused("find_messages", query={"header": "order=4711", "source": "absent"})
    assert (absent.status, absent.name) == (404, "queue_not_found")
    for query, field in (
        ({"header": "order"}, "header"),
        ({"header": "order=4711", "limit": 0}, "limit"),
        ({"header": "order=4711", "limit": 1_001}, "limit"),
        ({"header": "order=4711", "dedup_id": "order-4711"}, "dedup_id"),
        ({}, "dedup_id"),
    ):
        refused = await rest.refused("find_messages", query=query)
        assert (refused.status, refused.field) == (400, field), query


@checks("peek_messages")
async def check_peek_messages(rest: RestCalls) -> None:
    await received(rest)
    await rest.ok("send_message", queue="orders", body={"body": "/w==", "encoding": "base64"})
    await rest.ok("send_message", queue="orders", body={"body": "later", "delay": 60})
    page = await rest.ok("peek_messages", queue="orders")
    assert [message.state for message in page.messages] == ["in_flight", "active", "delayed"]
    assert [message.encoding for message in page.messages] == ["utf-8", "base64", "utf-8"]
    only = await rest.ok("peek_messages", queue="orders", query={"states": ["active", "delayed"]})
    assert [message.state for message in only.messages] == ["active", "delayed"]
    seen: list[str] = []
    start: str | None = "0"
    while start is not None:
        page = await rest.ok("peek_messages", queue="orders", query={"max_messages": 1, "start": start})
        seen += [message.state for message in page.messages]
        start = page.next_start
    assert seen == ["in_flight", "active", "delayed"]
    assert (await rest.refused("peek_messages", queue="orders", query={"start": str(2**64)})).field == "start"
    assert (await rest.refused("peek_messages", queue="orders", query={"states": "lost"})).field == "states[0]"


@checks("receive_messages")
async def check_receive_messages(rest: RestCalls) -> None:
    assert await rest.received("orders") == []
    await rest.ok("send_message", queue="orders", body={"body": "x"})
    # Without a body: a message, with the queue's own times.
    (message,) = (await rest.ok("receive_messages", queue="orders")).messages
    assert message.receipt_handle.isdecimal()
    assert message.receive_count == 1
    assert (message.next_visible_time - message.first_receive_time).total_seconds() == 30
    assert (message.origin, message.copy_of) == (None, None)
    for body in ({"max_messages": 257}, {"max_messages": 0}, {"wait": 31}, {"visibility_timeout": 0}):
        refusal = await rest.refused("receive_messages", queue="orders", body=body)
        assert (refusal.status, refusal.field) == (400, *body)


@checks("delete_message")
async def check_delete_message(rest: RestCalls) -> None:
    (handle,) = await received(rest)
    await rest.ok("delete_message", queue="orders", body={"receipt_handle": handle})
    refusal = await rest.refused("delete_message", queue="orders", body={"receipt_handle": handle})
    assert (refusal.status, refusal.name) == (409, "receipt_handle_invalid")
    assert refusal.details["receipt_handle"] == handle
    too_large = await rest.refused("delete_message", queue="orders", body={"receipt_handle": str(2**64)})
    assert (too_large.status, too_large.field) == (400, "receipt_handle")


@checks("delete_messages")
async def check_delete_messages(rest: RestCalls) -> None:
    await check_batch(rest, "delete_messages")
    assert (await rest.ok("get_queue", queue="orders")).counts.in_flight == 0


@checks("change_visibility")
async def check_change_visibility(rest: RestCalls) -> None:
    (handle,) = await received(rest)
    reply = await rest.ok("change_visibility", queue="orders", body={"receipt_handle": handle, "timeout": 600})
    assert reply.next_visible_time is not None
    await rest.ok("change_visibility", queue="orders", body={"receipt_handle": handle, "timeout": 0})
    refusal = await rest.refused("change_visibility", queue="orders", body={"receipt_handle": handle, "timeout": 5})
    assert refusal.name == "receipt_handle_invalid"
    long = await rest.refused("change_visibility", queue="orders", body={"receipt_handle": handle, "timeout": 43_201})
    assert long.status == 400
    assert "43200" in long.detail


@checks("change_visibilities")
async def check_change_visibilities(rest: RestCalls) -> None:
    reply = await check_batch(rest, "change_visibilities", timeout=600)
    assert reply.next_visible_time is not None


@checks("release_message")
async def check_release_message(rest: RestCalls) -> None:
    (handle,) = await received(rest)
    await rest.ok("release_message", queue="orders", body={"receipt_handle": handle, "count_receive": False})
    (message,) = await rest.received("orders")
    assert message.receive_count == 1
    await rest.ok("release_message", queue="orders", body={"receipt_handle": message.receipt_handle})
    assert (await rest.received("orders"))[0].receive_count == 2


@checks("release_messages")
async def check_release_messages(rest: RestCalls) -> None:
    await check_batch(rest, "release_messages")
    assert (await rest.ok("get_queue", queue="orders")).counts.active == 1


async def test_each_operation_succeeds_and_has_its_own_errors(rest: RestCalls):
    await check_tag("messages", rest)
