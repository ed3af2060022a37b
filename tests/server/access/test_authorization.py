"""Every operation with every role and every name: refused, or carried out, by the whole server.

The expectation stands here a second time, written from the words of the issue and not from the table of the server.
"""

from pathlib import Path
from typing import Any

import pytest

from cmqd.server.access.accounts_file import Key
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import REQUEST_TYPES, operation_name
from cmqd_types.keys import Role
from support.server.server_rig import RigClient, ServerRig, a_queue, beat, code_of

ROLE_OF: dict[str, str] = {
    operation: role
    for role, operations in {
        "send": "send_messages publish_messages send_half_messages end_transactions register_checker"
        " unregister_checker",
        "consume": "receive_messages delete_messages change_visibility release_messages dead_letter_messages",
        "read": "peek_messages get_message_history find_messages list_queues list_queue_summaries preview_rewind"
        " get_queue_attributes"
        " list_dead_letter_sources get_redrive list_topics"
        " get_topic_attributes list_subscriptions get_subscription peek_deliveries get_message_deliveries"
        " match_subscriptions list_queue_subscriptions"
        " list_half_messages list_schedules get_schedule"
        " get_metrics get_queue_metrics get_topic_metrics get_top_metrics list_segments",
        "manage": "create_queue ensure_queue set_queue_attributes delete_queue clear_queue rewind_queue start_redrive"
        " cancel_redrive create_topic ensure_topic set_topic_attributes delete_topic subscribe ensure_subscription"
        " set_subscription_attributes unsubscribe retry_deliveries drop_deliveries retry_delivery drop_delivery"
        " rotate_secret create_schedule ensure_schedule set_schedule delete_schedule seal_segments"
        " list_audit_entries"
        " list_connections list_waiting_receives list_consumers get_settings"
        " pin_log list_pinned_segments release_pin set_standing_pin delete_standing_pin",
        "admin": "create_account list_accounts delete_account list_all_queues create_key create_role_key import_key"
        " list_keys set_key_enabled set_key_roles delete_key",
        "gateway": "get_key_secret watch_keys",
        "any": "get_server_status get_own_key locate",
    }.items()
    for operation in operations.split()
}
"""The role of each operation."""

SECRET = "0123456789abcdef0123456789abcdef"

REQUESTS: dict[str, tuple[tuple[Any, ...], list[str]]] = {
    "send_messages": (("orders", [b"x"]), ["orders"]),
    "receive_messages": (("orders", 1, 0), ["orders"]),
    "delete_messages": (("orders", [1]), ["orders"]),
    "change_visibility": (("orders", [1], 1_000), ["orders"]),
    "release_messages": (("orders", [1]), ["orders"]),
    "peek_messages": (("orders",), ["orders"]),
    "get_message_history": ((1,), []),
    "find_messages": (("orders", "order-4711"), ["orders"]),
    "dead_letter_messages": (("orders", [1], ["broken"]), ["orders"]),
    "create_queue": (("new", {"dead_letter_queue": "dead", "dead_letter_max_receives": 3}), ["new", "dead"]),
    "ensure_queue": (("new", {"dead_letter_queue": "dead", "dead_letter_max_receives": 3}), ["new", "dead"]),
    "list_queues": ((), []),
    "list_queue_summaries": ((), []),
    "preview_rewind": (("orders",), ["orders"]),
    "get_queue_attributes": (("orders",), ["orders"]),
    "set_queue_attributes": (("orders", {"dead_letter_queue": "dead"}), ["orders", "dead"]),
    "delete_queue": (("orders",), ["orders"]),
    "clear_queue": (("orders",), ["orders"]),
    "rewind_queue": (("orders", 0), ["orders"]),
    "list_dead_letter_sources": (("orders",), ["orders"]),
    "start_redrive": (("dead", "orders"), ["dead", "orders"]),
    "cancel_redrive": (("dead",), ["dead"]),
    "get_redrive": (("dead",), ["dead"]),
    "create_topic": (("newtopic", {}), ["newtopic"]),
    "ensure_topic": (("newtopic", {}), ["newtopic"]),
    "list_topics": ((), []),
    "get_topic_attributes": (("events",), ["events"]),
    "set_topic_attributes": (("events", {"retention_ms": 60_000}), ["events"]),
    "delete_topic": (("events",), ["events"]),
    "publish_messages": (("events", [b"x"]), ["events"]),
    "subscribe": (("events", "copies", {"endpoint": "orders"}), ["events", "orders"]),
    "ensure_subscription": (("events", "copies", {"endpoint": "orders"}), ["events", "orders"]),
    "list_subscriptions": (("events",), ["events"]),
    "list_queue_subscriptions": (("orders",), ["orders"]),
    "get_subscription": (("events", "copies"), ["events"]),
    "set_subscription_attributes": (("events", "copies", {"endpoint": "orders"}), ["events", "orders"]),
    "unsubscribe": (("events", "copies"), ["events"]),
    "retry_deliveries": (("events", "copies"), ["events"]),
    "drop_deliveries": (("events", "copies"), ["events"]),
    "peek_deliveries": (("events", "copies"), ["events"]),
    "retry_delivery": (("events", "copies", 1), ["events"]),
    "drop_delivery": (("events", "copies", 1), ["events"]),
    "get_message_deliveries": (("events", 1), ["events"]),
    "match_subscriptions": (("events", ["red"]), ["events"]),
    "rotate_secret": (("events", "copies"), ["events"]),
    "send_half_messages": (("pay", [b"x"]), ["pay"]),
    "end_transactions": (("pay", [1], [wire.COMMIT]), ["pay"]),
    "list_half_messages": (("pay",), ["pay"]),
    "register_checker": (("pay",), ["pay"]),
    "unregister_checker": (("pay",), ["pay"]),
    "create_schedule": (("nightly", {"queue": "orders", "cron": "0 3 * * *"}, b"x"), ["nightly", "orders"]),
    "ensure_schedule": (("nightly", {"queue": "orders", "cron": "0 3 * * *"}, b"x"), ["nightly", "orders"]),
    "list_schedules": ((), []),
    "get_schedule": (("nightly",), ["nightly"]),
    "set_schedule": (("nightly", {"queue": "orders"}), ["nightly", "orders"]),
    "delete_schedule": (("nightly",), ["nightly"]),
    "create_account": (("shop",), []),
    "list_accounts": ((), []),
    "delete_account": (("shop",), []),
    "list_all_queues": ((), []),
    "create_key": ((), []),
    "create_role_key": ((["send"], ["*"]), []),
    "import_key": (("AKIDimported", SECRET, ["send"], ["*"]), []),
    "list_keys": ((), []),
    "set_key_enabled": (("AKIDabsent", True), []),
    "set_key_roles": (("AKIDabsent", ["send"], ["*"]), []),
    "delete_key": (("AKIDabsent",), []),
    "get_own_key": ((), []),
    "get_key_secret": (("AKIDabsent",), []),
    "watch_keys": ((), []),
    "get_server_status": ((), []),
    "locate": (("orders",), ["orders"]),
    "seal_segments": ((), []),
    "list_segments": ((), []),
    "pin_log": ((), []),
    "list_pinned_segments": ((1,), []),
    "release_pin": ((1,), []),
    "set_standing_pin": (("hourly", "", 0, "", 0, 60_000), []),
    "delete_standing_pin": (("hourly",), []),
    "list_audit_entries": ((), []),
    "list_connections": ((), []),
    "list_waiting_receives": ((), []),
    "list_consumers": ((), []),
    "get_settings": ((), []),
    "get_metrics": ((), []),
    "get_queue_metrics": ((), []),
    "get_topic_metrics": ((), []),
    "get_top_metrics": ((), []),
}
"""Of each operation: the fields of a request, and the names that the patterns must match."""

OPERATIONS = {operation_name(kind): kind for kind in REQUEST_TYPES.values()}


async def a_rig(folder: Path) -> ServerRig:
    """A server with the queues and the topic that the requests name."""
    rig = await ServerRig.make(folder)
    admin = await rig.client()
    for name in ("orders", "dead"):
        await a_queue(admin, name)
    await a_queue(admin, "pay", transactional=True)
    await admin.expect(wire.TopicInfo, wire.CreateTopic, "events", {})
    return rig


async def a_key(rig: ServerRig, roles: list[str], names: list[str] | None = None) -> Key:
    return await rig.accounts.create_role_key("admin", None, roles, names or ["*"], 1)


async def ask(client: RigClient, operation: str) -> Any:
    return await client.ask(OPERATIONS[operation], *REQUESTS[operation][0])


def is_denied(reply: object) -> bool:
    return isinstance(reply, wire.Error) and reply.name == "permission_denied"


def test_every_operation_is_in_the_tables_of_this_test() -> None:
    assert OPERATIONS.keys() == ROLE_OF.keys() == REQUESTS.keys()


@pytest.mark.parametrize("operation", ROLE_OF)
async def test_an_operation_is_carried_out_for_its_role_alone(tmp_path: Path, operation: str) -> None:
    rig = await a_rig(tmp_path)
    carried_out: dict[str, bool] = {}
    for role in Role:
        client = await rig.client(await a_key(rig, [role]))
        reply = await ask(client, operation)
        carried_out[role] = not is_denied(reply)
        if is_denied(reply):
            assert f"role {role}" in reply.text
            assert operation in reply.text
            assert reply.details["operation"] == operation
            assert reply.details["roles"] == [role]
            for name in REQUESTS[operation][1][:1]:
                assert repr(name) in reply.text
                assert reply.details["name"] == name
        else:
            assert "permission" not in getattr(reply, "text", "")

    assert carried_out == {role: ROLE_OF[operation] in (role, "any") for role in Role}
    rig.check()
    rig.close()


@pytest.mark.parametrize("operation", ROLE_OF)
async def test_a_key_without_roles_of_its_own_may_make_every_operation_but_those_of_gateways(
    tmp_path: Path, operation: str
) -> None:
    rig = await a_rig(tmp_path)
    client = await rig.client()

    assert is_denied(await ask(client, operation)) == (ROLE_OF[operation] == "gateway")
    rig.close()


@pytest.mark.parametrize("operation", [operation for operation, (_, names) in REQUESTS.items() if names])
async def test_each_name_of_a_request_must_match(tmp_path: Path, operation: str) -> None:
    rig = await a_rig(tmp_path)
    names = REQUESTS[operation][1]
    roles = ["read"] if ROLE_OF[operation] == "any" else [ROLE_OF[operation]]
    for left_out in names:
        others = [name for name in names if name != left_out]
        client = await rig.client(await a_key(rig, roles, [*others, "another"]))

        reply = await ask(client, operation)

        assert is_denied(reply), reply
        assert (reply.details["name"], reply.details["operation"]) == (left_out, operation)
        assert repr(left_out) in reply.text

    client = await rig.client(await a_key(rig, roles, [f"{name[:-1]}*" for name in names]))
    assert not is_denied(await ask(client, operation))
    rig.close()


async def test_a_refused_request_changes_nothing_and_tells_nothing_about_names(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    admin = await rig.client()
    client = await rig.client(await a_key(rig, ["send"], ["dead"]))

    absent = await client.expect(wire.Error, wire.SendMessages, "absent-queue", [b"x"])
    present = await client.expect(wire.Error, wire.SendMessages, "orders", [b"x"])

    assert absent.text.replace("absent-queue", "") == present.text.replace("orders", "")
    assert (await admin.counts("orders"))["active"] == 0
    assert len(await client.send("dead", b"x")) == 1
    rig.check()
    rig.close()


async def test_a_long_topic_name_is_compared_as_it_is_created(tmp_path: Path) -> None:
    """The name of a new topic is cut: the key must match the name that the topic gets."""
    rig = await a_rig(tmp_path)
    client = await rig.client(await a_key(rig, ["manage"], ["t*end"]))

    assert is_denied(await client.ask(wire.CreateTopic, "t" * 64 + "end", {}))
    rig.close()


async def test_a_url_as_endpoint_is_no_name(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    client = await rig.client(await a_key(rig, ["manage"], ["events"]))

    await client.expect(
        wire.SubscriptionInfo, wire.Subscribe, "events", "to-url", {"endpoint": "https://example.com/hook"}
    )
    rig.close()


async def test_a_redrive_to_the_origins_needs_every_name(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    some = await rig.client(await a_key(rig, ["manage"], ["dead", "orders"]))
    every = await rig.client(await a_key(rig, ["manage"]))

    refused = await some.expect(wire.Error, wire.StartRedrive, "dead")

    assert is_denied(refused)
    assert "target" in refused.text
    assert not is_denied(await every.ask(wire.StartRedrive, "dead"))
    rig.close()


async def a_rig_with_names_of_others(folder: Path) -> ServerRig:
    """Objects of ``team-*`` that an administrator bound to queues of another team."""
    rig = await ServerRig.make(folder)
    admin = await rig.client()
    for name in ("billing", "billing-dead"):
        await a_queue(admin, name)
    await a_queue(admin, "team-orders", dead_letter_queue="billing-dead", dead_letter_max_receives=3)
    attributes = {"queue": "billing", "cron": "0 3 * * *"}
    await admin.expect(wire.ScheduleInfo, wire.CreateSchedule, "team-nightly", attributes, b"x")
    await admin.expect(wire.TopicInfo, wire.CreateTopic, "team-events", {})
    for name, endpoint in (("copies", "billing"), ("posts", "https://hooks.example.com:8443/T0KEN?key=1")):
        await admin.expect(wire.SubscriptionInfo, wire.Subscribe, "team-events", name, {"endpoint": endpoint})
    return rig


ACTS_ON_NAMES_OF_OBJECTS: list[tuple[str, tuple[Any, ...], str]] = [
    ("set_schedule", ("team-nightly", {}, b"my own message"), "billing"),
    ("set_schedule", ("team-nightly", {"cron": "* * * * *"}), "billing"),
    ("set_schedule", ("team-nightly", {"queue": ""}, b"my own message"), "billing"),
    ("ensure_schedule", ("team-nightly", {"queue": "team-orders", "cron": "0 3 * * *"}, b"x"), "billing"),
    ("set_subscription_attributes", ("team-events", "copies", {"filter_tags": ["red"]}), "billing"),
    ("set_subscription_attributes", ("team-events", "copies", {}), "billing"),
    ("ensure_subscription", ("team-events", "copies", {"endpoint": "team-orders"}), "billing"),
    ("set_queue_attributes", ("team-orders", {"dead_letter_max_receives": 1}), "billing-dead"),
    ("set_queue_attributes", ("team-orders", {"dead_letter_after_ms": 60_000}), "billing-dead"),
    ("ensure_queue", ("team-orders", {"dead_letter_queue": "team-dead"}), "billing-dead"),
    ("ensure_queue", ("team-orders", {"dead_letter_max_receives": 1}), "billing-dead"),
]
"""Requests of which every name matches ``team-*``, and the queue that their object has already."""


@pytest.mark.parametrize(("operation", "fields", "queue"), ACTS_ON_NAMES_OF_OBJECTS)
async def test_a_name_that_the_object_has_already_must_match(
    tmp_path: Path, operation: str, fields: tuple[Any, ...], queue: str
) -> None:
    rig = await a_rig_with_names_of_others(tmp_path)
    team = await rig.client(await a_key(rig, ["manage"], ["team-*"]))
    both = await rig.client(await a_key(rig, ["manage"], ["team-*", queue]))

    refused: Any = await team.ask(OPERATIONS[operation], *fields)

    assert is_denied(refused), refused
    assert queue not in repr(refused)
    assert (refused.details["operation"], refused.details["name"]) == (operation, fields[0])
    assert not is_denied(await both.ask(OPERATIONS[operation], *fields))
    rig.check()
    rig.close()


USES_OR_ENDS_AN_ARRANGEMENT: list[tuple[str, tuple[Any, ...]]] = [
    ("set_schedule", ("team-nightly", {"queue": "team-orders"}, b"my own message")),
    ("delete_schedule", ("team-nightly",)),
    ("set_queue_attributes", ("team-orders", {"retention_ms": 600_000})),
    ("set_queue_attributes", ("team-orders", {"dead_letter_queue": "", "dead_letter_max_receives": 0})),
    ("ensure_queue", ("team-orders", {})),
    ("set_subscription_attributes", ("team-events", "posts", {"paused": True})),
    ("retry_deliveries", ("team-events", "copies")),
    ("unsubscribe", ("team-events", "copies")),
]


@pytest.mark.parametrize(("operation", "fields"), USES_OR_ENDS_AN_ARRANGEMENT)
async def test_an_operation_that_sends_nothing_of_its_own_to_another_queue_is_carried_out(
    tmp_path: Path, operation: str, fields: tuple[Any, ...]
) -> None:
    rig = await a_rig_with_names_of_others(tmp_path)
    team = await rig.client(await a_key(rig, ["manage"], ["team-*"]))

    reply = await team.ask(OPERATIONS[operation], *fields)

    assert not isinstance(reply, wire.Error), reply
    assert "billing" not in repr(reply)
    rig.check()
    rig.close()


async def test_an_arrangement_works_for_keys_without_its_names(tmp_path: Path) -> None:
    """A publish reaches the queues of all subscriptions, and a rejected message the dead-letter queue."""
    rig = await a_rig_with_names_of_others(tmp_path)
    admin = await rig.client()
    team = await rig.client(await a_key(rig, ["send", "consume"], ["team-*"]))

    await team.expect(wire.MessagesPublished, wire.PublishMessages, "team-events", [b"x"])
    await team.send("team-orders", b"broken")
    [message] = await team.receive("team-orders")
    done = await team.expect(
        wire.HandlesDone, wire.DeadLetterMessages, "team-orders", [message.receipt_handle], ["why"]
    )

    assert done.failures == []
    assert (await admin.counts("billing"))["active"] == 1
    assert (await admin.counts("billing-dead"))["active"] == 1
    rig.check()
    rig.close()


async def test_details_hide_names_that_do_not_match(tmp_path: Path) -> None:
    rig = await a_rig_with_names_of_others(tmp_path)
    team = await rig.client(await a_key(rig, ["read"], ["team-*"]))

    queue = await team.expect(wire.QueueInfo, wire.GetQueueAttributes, "team-orders")
    copies = await team.expect(wire.SubscriptionInfo, wire.GetSubscription, "team-events", "copies")
    listed = await team.expect(wire.SubscriptionList, wire.ListSubscriptions, "team-events")
    matched = await team.expect(wire.SubscriptionsMatched, wire.MatchSubscriptions, "team-events", ["red"])
    schedule = await team.expect(wire.ScheduleInfo, wire.GetSchedule, "team-nightly")
    schedules = await team.expect(wire.ScheduleList, wire.ListSchedules)

    assert queue.attributes["dead_letter_queue"] == "(hidden)"
    assert copies.attributes["endpoint"] == "(hidden)"
    assert [one.endpoint for one in listed.subscriptions] == ["(hidden)", "https://hooks.example.com:8443/(hidden)"]
    assert [one.endpoint for one in matched.subscriptions] == [one.endpoint for one in listed.subscriptions]
    assert schedule.attributes["queue"] == schedules.schedules[0].queue == "(hidden)"
    assert "billing" not in repr([queue, copies, listed, matched, schedule, schedules])

    wider = await rig.client(await a_key(rig, ["read"], ["team-*", "billing*"]))
    info = await wider.expect(wire.QueueInfo, wire.GetQueueAttributes, "team-orders")
    assert info.attributes["dead_letter_queue"] == "billing-dead"
    rig.close()


async def test_the_url_of_a_subscription_is_shown_whole_to_keys_that_may_set_it(tmp_path: Path) -> None:
    rig = await a_rig_with_names_of_others(tmp_path)
    shown: list[str] = []
    for roles, names in ((["read"], ["*"]), (["read", "manage"], ["team-*"])):
        client = await rig.client(await a_key(rig, roles, names))
        info = await client.expect(wire.SubscriptionInfo, wire.GetSubscription, "team-events", "posts")
        shown.append(info.attributes["endpoint"])
        matched = await client.expect(wire.SubscriptionsMatched, wire.MatchSubscriptions, "team-events")
        assert [match.endpoint for match in matched.subscriptions if match.subscription == "posts"] == shown[-1:]

    assert shown == [
        "https://hooks.example.com:8443/(hidden)",
        "https://hooks.example.com:8443/T0KEN?key=1",
    ]
    rig.close()


async def test_deliveries_hide_endpoints_and_names_in_their_errors(tmp_path: Path) -> None:
    rig = await a_rig_with_names_of_others(tmp_path)
    admin = await rig.client()
    await admin.expect(wire.Done, wire.DeleteQueue, "billing")
    published = await admin.expect(wire.MessagesPublished, wire.PublishMessages, "team-events", [b"x"])
    await rig.tick()
    team = await rig.client(await a_key(rig, ["read"], ["team-*"]))

    peeked = await team.expect(wire.DeliveriesPeeked, wire.PeekDeliveries, "team-events", "copies")
    report = await team.expect(
        wire.MessageDeliveries, wire.GetMessageDeliveries, "team-events", published.message_ids[0]
    )
    info = await team.expect(wire.SubscriptionInfo, wire.GetSubscription, "team-events", "copies")

    assert [message.last_error for message in peeked.messages] == ["queue (hidden) does not exist"]
    assert [(one.endpoint, one.last_error) for one in report.deliveries if one.subscription == "copies"] == [
        ("(hidden)", "queue (hidden) does not exist")
    ]
    assert info.facts["last_error"] == "queue (hidden) does not exist"
    assert "billing" not in repr([peeked, report, info])
    assert "T0KEN" not in repr(report)
    rig.close()


async def test_the_name_that_differs_only_in_case_is_hidden(tmp_path: Path) -> None:
    rig = await a_rig_with_names_of_others(tmp_path)
    admin = await rig.client()
    await a_queue(admin, "TEAM-late")
    await admin.expect(wire.TopicInfo, wire.CreateTopic, "TEAM-late", {})
    nightly: dict[str, Any] = {"queue": "team-orders", "cron": "0 3 * * *"}
    await admin.expect(wire.ScheduleInfo, wire.CreateSchedule, "TEAM-late", nightly, b"x")
    team = await rig.client(await a_key(rig, ["manage"], ["team-*"]))

    refusals = [
        await team.expect(wire.Error, wire.CreateQueue, "team-late", {}),
        await team.expect(wire.Error, wire.EnsureQueue, "team-late", {}),
        await team.expect(wire.Error, wire.CreateTopic, "team-late", {}),
        await team.expect(wire.Error, wire.CreateSchedule, "team-late", nightly, b"x"),
    ]

    for refusal in refusals:
        assert refusal.details is not None
        assert refusal.details["existing"] == "(hidden)"
        assert "'team-late' differs only in case from (hidden)" in refusal.text
        assert "TEAM-late" not in repr(refusal)
    rig.close()


async def test_a_redrive_hides_its_target_and_the_origins(tmp_path: Path) -> None:
    rig = await a_rig_with_names_of_others(tmp_path)
    admin = await rig.client()
    await a_queue(admin, "team-dead")
    await a_queue(admin, "billing-source", dead_letter_queue="team-dead", dead_letter_max_receives=1)
    await a_queue(admin, "team-source", dead_letter_queue="team-dead", dead_letter_max_receives=1)
    for name in ("billing-source", "team-source"):
        await admin.send(name, b"x")
        [message] = await admin.receive(name)
        await admin.expect(wire.HandlesDone, wire.DeadLetterMessages, name, [message.receipt_handle], ["why"])
        await admin.expect(wire.Done, wire.DeleteQueue, name)
    await admin.expect(wire.RedriveStatus, wire.StartRedrive, "team-dead")
    await rig.tick()
    team = await rig.client(await a_key(rig, ["read", "manage"], ["team-*"]))

    to_origins = await team.expect(wire.RedriveStatus, wire.GetRedrive, "team-dead")
    await admin.ask(wire.CancelRedrive, "team-dead")
    await admin.expect(wire.RedriveStatus, wire.StartRedrive, "team-dead", "billing", 1)
    to_billing = await team.expect(wire.RedriveStatus, wire.GetRedrive, "team-dead")

    assert to_origins.missing_origins == {"(hidden)": 1, "team-source": 1}
    assert to_billing.target == "(hidden)"
    rig.close()


async def test_refusals_hide_names_that_do_not_match(tmp_path: Path) -> None:
    rig = await a_rig_with_names_of_others(tmp_path)
    admin = await rig.client()
    await a_queue(admin, "team-dead")
    for name in ("billing-source", "team-source"):
        await a_queue(admin, name, dead_letter_queue="team-dead", dead_letter_max_receives=1)
    team = await rig.client(await a_key(rig, ["manage", "send", "consume"], ["team-*"]))

    in_use = await team.expect(wire.Error, wire.DeleteQueue, "team-dead")
    bound = await team.expect(wire.Error, wire.SetQueueAttributes, "team-dead", {"dead_letter_queue": "team-orders"})
    unused = await team.expect(wire.Error, wire.SetQueueAttributes, "team-dead", {"auto_delete_after_ms": 60_000})
    await admin.expect(wire.QueueInfo, wire.SetQueueAttributes, "billing-dead", {"max_message_bytes": 1024})
    await team.send("team-orders", b"x" * 1025)
    [message] = await team.receive("team-orders")
    too_large = await team.expect(
        wire.HandlesDone, wire.DeadLetterMessages, "team-orders", [message.receipt_handle], ["why"]
    )

    assert in_use.name == "dead_letter_queue_in_use"
    assert in_use.details is not None
    assert in_use.details["sources"] == ["(hidden)", "team-source"]
    assert "of (hidden), 'team-source'" in in_use.text
    for reply in (bound, unused):
        assert reply.name == "invalid_argument"
    assert "(hidden)" in unused.text
    assert "(hidden) takes 1 byte to 1 KiB" in too_large.failures[0].text
    assert "billing" not in repr([in_use, bound, unused, too_large])

    rest = await admin.expect(wire.Error, wire.DeleteQueue, "team-dead")
    assert rest.details is not None
    assert rest.details["sources"] == ["billing-source", "team-source"]
    rig.check()
    rig.close()


async def test_lists_show_the_names_that_match(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    admin = await rig.client()
    for name in ("orders-a", "orders-b", "stock"):
        await a_queue(admin, name, dead_letter_queue="dead", dead_letter_max_receives=3)
    for name in ("orders-events", "stock-events"):
        await admin.expect(wire.TopicInfo, wire.CreateTopic, name, {})
    for name in ("orders-nightly", "stock-nightly"):
        attributes = {"queue": "orders-a", "cron": "0 3 * * *"}
        await admin.expect(wire.ScheduleInfo, wire.CreateSchedule, name, attributes, b"x")
    client = await rig.client(await a_key(rig, ["read", "admin"], ["orders*", "dead"]))

    queues = await client.expect(wire.QueueList, wire.ListQueues)
    assert [name for _, name in queues.queues] == ["dead", "orders", "orders-a", "orders-b"]
    assert queues.total == 4
    page = await client.expect(wire.QueueList, wire.ListQueues, "", 2, 1)
    assert ([name for _, name in page.queues], page.total) == (["orders-a"], 4)
    topics = await client.expect(wire.TopicList, wire.ListTopics)
    assert ([name for _, name in topics.topics], topics.total) == (["orders-events"], 1)
    schedules = await client.expect(wire.ScheduleList, wire.ListSchedules)
    assert ([schedule.name for schedule in schedules.schedules], schedules.total) == (["orders-nightly"], 1)
    sources = await client.expect(wire.QueueList, wire.ListDeadLetterSources, "dead")
    assert ([name for _, name in sources.queues], sources.total) == (["orders-a", "orders-b"], 2)
    info = await client.expect(wire.QueueInfo, wire.GetQueueAttributes, "dead")
    assert info.facts["dead_letter_sources"] == ["orders-a", "orders-b"]
    everything = await client.expect(wire.AllQueues, wire.ListAllQueues)
    assert [name for _, _, name in everything.queues] == ["dead", "orders", "orders-a", "orders-b"]
    rig.close()


async def test_the_whole_status_needs_the_role_read(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    statuses: dict[str, dict[str, Any]] = {}
    for role in ("send", "read"):
        client = await rig.client(await a_key(rig, [role]))
        statuses[role] = (await client.expect(wire.ServerStatus, wire.GetServerStatus)).status

    assert statuses["send"].keys() < statuses["read"].keys()
    assert "queues" in statuses["read"]
    rig.close()


async def test_a_change_of_roles_holds_from_the_next_request_on(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    admin = await rig.client()
    key = await a_key(rig, ["send"], ["orders"])
    client = await rig.client(key)
    await client.send("orders", b"1")

    await admin.expect(wire.Done, wire.SetKeyRoles, key.secret_id, ["consume"], ["*"])
    refused = await client.ask(wire.SendMessages, "orders", [b"2"])
    received = await client.receive("orders")
    await admin.expect(wire.Done, wire.SetKeyRoles, key.secret_id, list(map(str, ROLES_OF_ROOT)), ["*"])
    await client.send("dead", b"3")

    assert is_denied(refused)
    assert [message.body for message in received] == [b"1"]
    assert client.connection.permissions is None
    rig.close()


async def test_a_waiting_receive_ends_with_the_role_and_gets_no_later_message(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    admin = await rig.client()
    key, other_key = await a_key(rig, ["consume"]), await a_key(rig, ["consume"])
    client, other = await rig.client(key), await rig.client(other_key)
    ended = client.begin(wire.ReceiveMessages(client.next_id(), "orders", 1, 30_000))
    kept = client.begin(wire.ReceiveMessages(client.next_id(), "dead", 1, 30_000))
    others = other.begin(wire.ReceiveMessages(other.next_id(), "orders", 1, 30_000))
    await client.settle()

    await admin.expect(wire.Done, wire.SetKeyRoles, key.secret_id, ["consume"], ["dead"])
    await admin.send("orders", b"after")
    await admin.send("dead", b"mine")
    await client.settle()
    await other.settle()

    assert code_of(client.replies[ended]) == "permission_denied"
    taken: Any = client.replies[kept]
    assert [message.body for message in taken.messages] == [b"mine"]
    theirs: Any = other.replies[others]
    assert [message.body for message in theirs.messages] == [b"after"]
    rig.check()
    rig.close()


async def test_all_connections_of_a_key_have_its_new_roles_when_the_change_is_answered(tmp_path: Path) -> None:
    """More connections than are changed without a pause, each with a waiting receive."""
    rig = await a_rig(tmp_path)
    admin = await rig.client()
    key = await a_key(rig, ["consume"])
    clients = [await rig.client(key) for _ in range(150)]
    waits = [client.begin(wire.ReceiveMessages(client.next_id(), "orders", 1, 30_000)) for client in clients]

    await admin.expect(wire.Done, wire.SetKeyRoles, key.secret_id, ["send"], ["*"])

    for client, wait in zip(clients, waits, strict=True):
        await rig.turn(2)
        client.read()
        assert code_of(client.replies[wait]) == "permission_denied"
    await admin.send("orders", b"x")
    assert (await admin.counts("orders"))["active"] == 1
    rig.check()
    rig.close()


async def test_a_checker_that_loses_its_role_gets_no_more_checks_and_another_is_asked(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    admin = await rig.client()
    key = await a_key(rig, ["send"])
    client = await rig.client(key)
    await client.expect(wire.Done, wire.RegisterChecker, "pay")
    [message_id] = await admin.send_half("pay", b"half")
    rig.clock.advance(60_000)
    await rig.tick()
    await client.settle()
    assert client.take_checks() == [(message_id, 1)]

    await admin.expect(wire.Done, wire.RegisterChecker, "pay")
    await admin.expect(wire.Done, wire.SetKeyRoles, key.secret_id, ["consume"], ["*"])
    await rig.tick()
    await admin.settle()
    assert [asked for asked, _ in admin.take_checks()] == [message_id]
    rig.clock.advance(3_600_000)
    await rig.tick()
    await client.settle()

    assert client.take_checks() == []
    assert client.connection.checked_queues is None
    rig.check()
    rig.close()


async def test_a_request_that_was_parked_before_the_change_is_refused_after_it(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    admin = await rig.client()
    key = await a_key(rig, ["consume", "send"])
    client = await rig.client(key)
    client.connection.unread_receives = 1_000_000
    parked = client.begin(wire.ReceiveMessages(client.next_id(), "orders", 1, 0))
    await admin.expect(wire.Done, wire.SetKeyRoles, key.secret_id, ["send"], ["*"])
    client.connection.unread_receives = 0
    await client.send("orders", b"takes up the parked receive")
    await client.settle()

    assert code_of(client.replies[parked]) == "permission_denied"
    beat(rig, 100)
    rig.check()
    rig.close()


async def test_refused_administration_is_logged(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    key = await a_key(rig, ["send"])
    client = await rig.client(key)
    lines: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:

        def keep(event: str, **facts: Any) -> None:
            lines.append(facts)

        patch.setattr("cmqd.server.access.audit_lines._log.info", keep)
        await client.ask(wire.DeleteQueue, "orders")
        await client.ask(wire.ImportKey, "AKIDother", SECRET, ["send"], ["*"])
        admin = await rig.client()
        await admin.ask(wire.ImportKey, "AKIDother", SECRET, ["send"], ["*"])

    assert [(line["operation"], line["outcome"], line["by_key"] == key.secret_id) for line in lines] == [
        ("delete_queue", "permission_denied", True),
        ("import_key", "permission_denied", True),
        ("import_key", "done", False),
    ]
    assert SECRET not in repr(lines)
    rig.close()


ROLES_OF_ROOT = (Role.ADMIN, Role.MANAGE, Role.SEND, Role.CONSUME, Role.READ)
