"""The operations of the JSON API with the tag server: each succeeds, and has its own errors."""

import asyncio

from cmqd_gateway.callers.key_secrets import KeySecret
from support.gateway.operation_checks import (
    check_tag,
    checks,
)
from support.gateway.rest_calls import RestCalls


@checks("list_audit_entries")
async def check_list_audit_entries(rest: RestCalls) -> None:
    await rest.ok("create_queue", queue="payments", body={"delay": 5})
    await rest.ok("delete_queue", queue="payments")
    page = await rest.ok("list_audit_entries", query={"limit": 1})
    (deleted,) = page.entries
    assert (deleted.operation, deleted.name, deleted.changes) == ("delete_queue", "payments", "")
    assert (deleted.secret_id, deleted.peer.split(":")[0]) == (rest.key.secret_id, "127.0.0.1")
    rest_of = await rest.ok("list_audit_entries", query={"before": page.next, "search": "PAYMENTS"})
    created = rest_of.entries[0]
    assert (created.operation, created.changes, rest_of.next) == ("create_queue", "delay_ms=5000", None)
    newer = await rest.ok("list_audit_entries", query={"after": created.entry_id})
    assert [entry.operation for entry in newer.entries] == ["delete_queue"]
    late = {"since": created.time.isoformat(), "until": "2100-01-01T00:00:00Z", "operation": "create_queue"}
    assert "payments" in [entry.name for entry in (await rest.ok("list_audit_entries", query=late)).entries]
    assert (await rest.ok("list_audit_entries", query={"until": "2001-01-01T00:00:00Z"})).entries == []
    reader = await rest.ok("create_key", body={"roles": ["read"], "names": ["*"]})
    key = rest.rig.table.keys[reader.key.secret_id] = KeySecret(reader.key.secret_id, reader.secret_key)
    assert (await rest.refused("list_audit_entries", key=key)).name == "permission_denied"


@checks("list_segments")
async def check_list_segments(rest: RestCalls) -> None:
    await rest.ok("create_queue", queue="payments")
    await rest.ok("send_message", queue="payments", body={"body": "x"})
    page = await rest.ok("list_segments", query={"limit": 1000})
    newest = page.segments[-1]
    assert (newest.state, newest.kept_for, newest.live) == ("active", ["rows", "messages"], 1)
    assert (newest.holders[0].account, newest.holders[0].name) == ("admin", "payments")
    assert (page.total, page.next, page.sends_refused_reason) == (len(page.segments), None, None)
    assert newest.first_time <= newest.last_time <= page.time
    assert (await rest.ok("list_segments", query={"after": newest.number})).segments == []
    assert (await rest.refused("list_segments", query={"after": "-1"})).name == "invalid_argument"


@checks("list_connections")
async def check_list_connections(rest: RestCalls) -> None:
    admin, rest = rest, await rest.in_account("watched")
    page = await rest.ok("list_connections")
    (own,) = page.connections
    assert (own.account, own.secret_id) == ("watched", rest.key.secret_id)
    assert (own.peer.startswith("127.0.0.1:"), own.tls, own.requests > 0) == (True, False, True)
    assert (page.total, page.next_offset) == (1, None)
    assert own.since <= own.last_request <= page.time
    query = {"search": rest.key.secret_id, "sort": "bytes_in", "descending": "true", "limit": 1}
    assert [found.id for found in (await rest.ok("list_connections", query=query)).connections] == [own.id]
    assert (await rest.ok("list_connections", query={"search": "another"})).connections == []
    refused = await rest.refused("list_connections", query={"sort": "colour"})
    assert (refused.status, refused.field) == (400, "sort")
    assert {"admin", "watched"} <= {each.account for each in (await admin.ok("list_connections")).connections}


@checks("list_cmq_tcp_clients")
async def check_list_cmq_tcp_clients(rest: RestCalls) -> None:
    page = await rest.ok("list_cmq_tcp_clients")
    assert (page.clients, page.total, page.is_served, page.next_offset) == ([], 0, False, None)
    reader = await rest.ok("create_key", body={"roles": ["read"], "names": ["*"]})
    key = rest.rig.table.keys[reader.key.secret_id] = KeySecret(reader.key.secret_id, reader.secret_key)
    denied = await rest.refused("list_cmq_tcp_clients", key=key)
    assert (denied.status, denied.name) == (403, "permission_denied")
    assert (await rest.refused("list_cmq_tcp_clients", query={"limit": 1001})).field == "limit"


@checks("list_waiting_receives")
async def check_list_waiting_receives(rest: RestCalls) -> None:
    admin, rest = rest, await rest.in_account("waiting")
    assert (await rest.ok("list_waiting_receives")).receives == []
    polling = asyncio.create_task(rest.ok("receive_messages", queue="orders", body={"max_messages": 3, "wait": 30}))
    while not (page := await rest.ok("list_waiting_receives")).receives:
        assert not polling.done()
    (waiting,) = page.receives
    assert (waiting.queue, waiting.max_messages) == ("orders", 3)
    assert (waiting.secret_id, page.total, page.next_offset) == (rest.key.secret_id, 1, None)
    assert (waiting.until - waiting.since).total_seconds() == 30
    own = await rest.ok("list_waiting_receives", query={"connection": waiting.connection, "search": "ord"})
    assert own.receives == [waiting]
    assert (await rest.ok("list_waiting_receives", query={"search": "parcels"})).receives == []
    assert waiting in (await admin.ok("list_waiting_receives")).receives
    await rest.ok("send_message", queue="orders", body={"body": "x"})
    assert len((await polling).messages) == 1


@checks("list_consumers")
async def check_list_consumers(rest: RestCalls) -> None:
    admin, rest = rest, await rest.in_account("consuming")
    assert (await rest.ok("list_consumers")).consumers == []
    for number in range(3):
        await rest.ok("send_message", queue="orders", body={"body": f"{number}"})
    named = {"X-Cmqd-Client": "till 3"}
    body = {"max_messages": 3}
    received = (await rest.ok("receive_messages", queue="orders", body=body, headers=named)).messages
    handles = [message.receipt_handle for message in received]
    await rest.ok("delete_message", queue="orders", body={"receipt_handle": handles[0]}, headers=named)
    await rest.ok("release_message", queue="orders", body={"receipt_handle": handles[1]}, headers=named)
    page = await rest.ok("list_consumers")
    (consumer,) = page.consumers
    assert (consumer.queue, consumer.name, consumer.host, consumer.stated_by) == (
        "orders",
        "till 3",
        "127.0.0.1",
        "",
    )
    assert (consumer.received, consumer.in_flight, consumer.failed, consumer.waiting) == (3, 1, 1, 0)
    assert (page.total, page.next_offset) == (1, None)
    assert (await rest.ok("list_consumers", query={"queue": "orders", "search": "TILL"})).consumers == [consumer]
    assert (await rest.ok("list_consumers", query={"queue": "parcels"})).consumers == []
    assert consumer in (await admin.ok("list_consumers")).consumers
    assert (await rest.refused("list_consumers", query={"limit": 1001})).field == "limit"


@checks("get_settings")
async def check_get_settings(rest: RestCalls) -> None:
    denied = await (await rest.in_account("curious")).refused("get_settings")
    assert (denied.status, denied.name) == (403, "permission_denied")
    settings = {setting.name: setting for setting in (await rest.ok("get_settings")).settings}
    assert (settings["heartbeat_ms"].default, settings["durability"].allowed) == (30000, "fsync or os")
    assert settings["max_connections"].meaning.startswith("connections in total")


async def test_each_operation_succeeds_and_has_its_own_errors(rest: RestCalls):
    await check_tag("server", rest)
