"""The audit trail through the server: an entry for each administrative operation, in the row of its change."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cmqd.core.limits import Limits
from cmqd.server.access.audit_entries import MAX_CHANGES
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import operation_name
from cmqd_protocol.operations import requests_of
from cmqd_segment.records import Administered, AnyRecord, DeliveriesDropped, Lsn, QueueCreated, QueueRewound
from cmqd_types.audit import AuditEntry
from support.server.server_rig import RigClient, ServerRig, a_queue, code_of

SECRET = "0123456789abcdef0123456789abcdef"
URL = "https://example.com/hook?token=hunter2"


async def trail(client: RigClient, **query: Any) -> list[AuditEntry]:
    """Entries, oldest first."""
    reply = await client.expect(wire.AuditEntries, wire.ListAuditEntries, **query)
    return reply.entries[::-1]


def short(entries: list[AuditEntry]) -> list[tuple[str, str, str]]:
    return [(entry.operation, entry.name, entry.changes) for entry in entries]


async def test_every_administrative_operation_leaves_one_entry(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    admin = await rig.client()
    done: list[tuple[str, str, str]] = []
    made: set[type[wire.Request]] = set()

    async def do(kind: type[wire.Request], *arguments: Any, name: str, changes: str = "") -> Any:
        reply = await admin.ask(kind, *arguments)
        assert not isinstance(reply, wire.Error), reply
        done.append((operation_name(kind), name, changes))
        made.add(kind)
        return reply

    await do(wire.CreateQueue, "dead", {}, name="dead")
    queue = {"delay_ms": 0, "dead_letter_queue": "dead", "dead_letter_max_receives": 3, "rewind_ms": 60_000}
    text = "delay_ms=0 dead_letter_queue=dead dead_letter_max_receives=3 rewind_ms=60000"
    await do(wire.CreateQueue, "orders", queue, name="orders", changes=text)
    await do(wire.EnsureQueue, "more", {}, name="more")
    await do(wire.SetQueueAttributes, "more", {"polling_wait_ms": 5}, name="more", changes="polling_wait_ms=5")
    await do(wire.ClearQueue, "more", name="more")
    await do(wire.DeleteQueue, "more", name="more")
    await do(wire.StartRedrive, "dead", "orders", 5, name="dead", changes="target=orders max_per_second=5")
    await do(wire.CancelRedrive, "dead", name="dead")
    await do(wire.RewindQueue, "orders", rig.clock.now_ms(), name="orders", changes=f"time_ms={rig.clock.now_ms()}")

    await do(wire.CreateTopic, "news", {}, name="news")
    await do(wire.EnsureTopic, "more", {"filter_type": "routing"}, name="more", changes="filter_type=routing")
    await do(
        wire.SetTopicAttributes, "more", {"max_message_bytes": 2048}, name="more", changes="max_message_bytes=2048"
    )
    await do(wire.DeleteTopic, "more", name="more")
    waiting = {"endpoint": "orders", "paused": True, "filter_tags": ["a", "b"]}
    text = "endpoint=orders paused=true filter_tags=a,b"
    await do(wire.Subscribe, "news", "jobs", waiting, name="news/jobs", changes=text)
    await do(wire.EnsureSubscription, "news", "hook", {"endpoint": URL}, name="news/hook", changes="endpoint=(url)")
    await do(
        *(wire.SetSubscriptionAttributes, "news", "jobs", {"paused": True, "filter_tags": []}),
        name="news/jobs",
        changes="paused=true filter_tags=",
    )
    published = await admin.expect(wire.MessagesPublished, wire.PublishMessages, "news", [b"1", b"2"])
    first, second = published.message_ids
    await do(wire.RetryDelivery, "news", "jobs", first, name="news/jobs", changes=f"message_id=Msg-{first:016x}")
    await do(wire.DropDelivery, "news", "jobs", second, name="news/jobs", changes=f"message_id=Msg-{second:016x}")
    await do(wire.RetryDeliveries, "news", "jobs", name="news/jobs")
    await do(wire.DropDeliveries, "news", "jobs", name="news/jobs")
    await do(wire.RotateSecret, "news", "hook", 1000, name="news/hook", changes="overlap_ms=1000")
    await do(wire.Unsubscribe, "news", "hook", name="news/hook")

    schedule = {"queue": "orders", "cron": "0 3 * * *"}
    text = "queue=orders cron='0 3 * * *' body headers"
    await do(wire.CreateSchedule, "nightly", schedule, b"x", {"a": "b"}, name="nightly", changes=text)
    await do(wire.EnsureSchedule, "hourly", schedule, b"x", name="hourly", changes="queue=orders cron='0 3 * * *' body")
    await do(wire.SetSchedule, "hourly", {"paused": True}, name="hourly", changes="paused=true")
    await do(wire.DeleteSchedule, "hourly", name="hourly")

    await do(wire.CreateAccount, "shop", name="shop")
    key = await admin.expect(wire.KeyList, wire.CreateKey, "shop")
    done.append(("create_key", key.keys[0].secret_id, ""))
    made.add(wire.CreateKey)
    key = await admin.expect(wire.KeyList, wire.CreateRoleKey, ["send"], ["a-*", "b"], "shop")
    made_id = key.keys[0].secret_id
    done.append(("create_role_key", made_id, "roles=send names=a-*,b"))
    made.add(wire.CreateRoleKey)
    text = "roles=send names=*"
    await do(wire.ImportKey, "AKIDold", SECRET, ["send"], ["*"], name="AKIDold", changes=text)
    await do(
        *(wire.SetKeyRoles, made_id, ["read", "send"], ["*"], "shop"), name=made_id, changes="roles=read,send names=*"
    )
    await do(wire.SetKeyEnabled, made_id, False, "shop", name=made_id, changes="enabled=false")
    await do(wire.DeleteKey, made_id, "shop", name=made_id)
    await do(wire.DeleteAccount, "shop", name="shop")

    await admin.expect(wire.StandingPinSet, wire.SetStandingPin, "hourly", "", 0, "", 0, 60_000)
    await do(wire.DeleteStandingPin, "hourly", name="hourly")

    entries = await trail(admin, limit=1000)
    assert made == requests_of(lambda operation: operation.is_in_trail), "every operation of the set is tried here"
    assert short(entries) == done
    own = rig.accounts.first_key("admin").secret_id
    assert {(entry.by_account, entry.secret_id, entry.peer) for entry in entries} == {("admin", own, "127.0.0.1:1")}
    assert [entry.entry_id for entry in entries] == list(range(1, len(entries) + 1))
    assert {entry.time_ms for entry in entries} == {rig.clock.now_ms()}
    of_shop = [entry.operation for entry in entries if entry.account == "shop"]
    assert of_shop == [
        "create_account",
        "create_key",
        "create_role_key",
        "set_key_roles",
        "set_key_enabled",
        "delete_key",
        "delete_account",
    ]
    assert "hunter2" not in str(entries)
    assert SECRET not in str(entries)
    rig.check()
    rig.close()


async def test_operations_that_change_nothing_that_fail_or_that_are_about_messages_leave_no_entry(
    rig: ServerRig,
) -> None:
    admin = await rig.client()
    await a_queue(admin, "jobs")
    await admin.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    await admin.expect(wire.SubscriptionInfo, wire.Subscribe, "news", "jobs", {"endpoint": "jobs"})
    schedule = {"queue": "jobs", "cron": "0 3 * * *"}
    await admin.expect(wire.ScheduleInfo, wire.CreateSchedule, "nightly", schedule, b"x")
    before = len(await trail(admin))

    await admin.expect(wire.QueueInfo, wire.EnsureQueue, "jobs", {})
    await admin.expect(wire.TopicInfo, wire.EnsureTopic, "news", {})
    await admin.expect(wire.SubscriptionInfo, wire.EnsureSubscription, "news", "jobs", {"endpoint": "jobs"})
    await admin.expect(wire.ScheduleInfo, wire.EnsureSchedule, "nightly", schedule, b"x")
    assert code_of(await admin.ask(wire.CreateQueue, "jobs", {})) == "queue_exists"
    assert code_of(await admin.ask(wire.DeleteQueue, "nothing")) == "queue_not_found"
    assert code_of(await admin.ask(wire.RewindQueue, "jobs", 1)) == "time_not_rewindable"
    assert code_of(await admin.ask(wire.DeleteKey, "AKIDabsent")) == "key_not_found"
    assert code_of(await admin.ask(wire.RotateSecret, "news", "jobs")) == "invalid_argument"
    await admin.send("jobs", b"1", b"2")
    (first, second) = await admin.receive("jobs")
    await admin.expect(wire.HandlesDone, wire.DeleteMessages, "jobs", [first.receipt_handle])
    await admin.expect(wire.HandlesDone, wire.ReleaseMessages, "jobs", [second.receipt_handle])
    await admin.expect(wire.MessagesPublished, wire.PublishMessages, "news", [b"3"])

    assert len(await trail(admin)) == before == 4


def watch_appends(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> list[list[type]]:
    """Return a list that gets the types of the records of each append from now on. An append is whole or missing after
    a crash; two appends in a row are not."""
    appends: list[list[type]] = []
    append = rig.log.append

    def watched(records: Sequence[AnyRecord], bodies: Sequence[bytes], now_ms: int) -> Lsn:
        appends.append([type(record) for record in records])
        return append(records, bodies, now_ms)

    monkeypatch.setattr(rig.log, "append", watched)
    return appends


async def test_the_entry_is_in_the_append_of_the_change(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = await rig.client()
    appends = watch_appends(rig, monkeypatch)

    await a_queue(admin, "jobs")

    assert [each[-2:] for each in appends if QueueCreated in each] == [[QueueCreated, Administered]]


async def test_the_entry_of_a_drop_that_waited_is_in_the_append_of_the_drop(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = await rig.client()
    await a_queue(admin, "jobs")
    await admin.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    await admin.expect(wire.SubscriptionInfo, wire.Subscribe, "news", "jobs", {"endpoint": "jobs", "paused": True})
    published = await admin.expect(wire.MessagesPublished, wire.PublishMessages, "news", [b"1"])
    rig.log.hold_pages()
    appends = watch_appends(rig, monkeypatch)
    asking = admin.begin(wire.DropDelivery(admin.next_id(), "news", "jobs", published.message_ids[0]))
    await admin.settle()
    assert "drop_delivery" not in [entry.operation for entry in await trail(admin)]

    rig.log.let_pages_go()
    await admin.settle()

    assert admin.replies[asking] == wire.DeliveriesDone(asking, 1)
    assert (await trail(admin))[-1].operation == "drop_delivery"
    assert [each for each in appends if DeliveriesDropped in each] == [[DeliveriesDropped, Administered]]
    assert rig.server.part(WaitingRequests).actions == {}


@pytest.mark.parametrize("end", ["cancel", "lose", "refuse"])
async def test_a_wait_that_ends_without_the_change_leaves_no_entry(rig: ServerRig, end: str) -> None:
    admin = await rig.client()
    other = await rig.client()
    await a_queue(admin, "jobs")
    await admin.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    await admin.expect(wire.SubscriptionInfo, wire.Subscribe, "news", "jobs", {"endpoint": "jobs", "paused": True})
    published = await admin.expect(wire.MessagesPublished, wire.PublishMessages, "news", [b"1"])
    rig.log.hold_pages()
    asking = other.begin(wire.DropDelivery(other.next_id(), "news", "jobs", published.message_ids[0]))
    await other.settle()
    assert len(rig.server.part(WaitingRequests).actions) == 1

    if end == "cancel":
        other.cancel(asking)
    elif end == "lose":
        other.transport.lose()
    else:
        await admin.expect(wire.DeliveriesDone, wire.DropDeliveries, "news", "jobs")
    await admin.settle()
    rig.log.let_pages_go()
    await admin.settle()
    await admin.settle()

    assert "drop_delivery" not in [entry.operation for entry in await trail(admin)]
    assert rig.server.part(WaitingRequests).actions == {}


async def test_the_entry_of_a_rewind_is_in_the_append_of_the_rewind(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = await rig.client()
    await a_queue(admin, "jobs", rewind_ms=60_000)
    times: list[int] = []
    for _ in range(3):
        await admin.send("jobs", b"x")
        times.append(rig.clock.now_ms())
        rig.clock.advance(10)
    handles = [message.receipt_handle for message in await admin.receive("jobs")]
    await admin.expect(wire.HandlesDone, wire.DeleteMessages, "jobs", handles)

    appends = watch_appends(rig, monkeypatch)
    await admin.expect(wire.Rewound, wire.RewindQueue, "jobs", times[1])

    assert [each for each in appends if QueueRewound in each] == [[QueueRewound, Administered]]
    assert (await trail(admin))[-1].operation == "rewind_queue"


async def test_an_account_reads_its_own_entries_and_admin_reads_all(rig: ServerRig) -> None:
    admin = await rig.client()
    shop = await rig.client(await rig.accounts.create_account("admin", "shop", 1))
    await a_queue(admin, "secret-project")
    await a_queue(shop, "jobs")
    made = await admin.expect(wire.KeyList, wire.CreateKey, "shop")

    assert [(entry.operation, entry.by_account) for entry in await trail(shop)] == [
        ("create_queue", "shop"),
        ("create_key", "admin"),
    ]
    assert short(await trail(shop, account="shop")) == short(await trail(shop))
    assert [entry.name for entry in await trail(admin)] == ["secret-project", "jobs", made.keys[0].secret_id]
    assert [entry.name for entry in await trail(admin, account="admin")] == ["secret-project"]
    assert [entry.name for entry in await trail(admin, account="shop")] == ["jobs", made.keys[0].secret_id]
    assert code_of(await shop.ask(wire.ListAuditEntries, "admin")) == "permission_denied"
    assert await trail(admin, account="deleted-long-ago") == []


async def test_an_account_does_not_see_the_entries_of_a_deleted_account_of_the_same_name(rig: ServerRig) -> None:
    admin = await rig.client()
    first = await admin.expect(wire.KeyList, wire.CreateAccount, "shop")
    former = await rig.client(rig.accounts.find_key(first.keys[0].secret_id))
    await a_queue(former, "takeover-of-acme")
    await former.expect(wire.Done, wire.DeleteQueue, "takeover-of-acme")
    await admin.expect(wire.Done, wire.DeleteAccount, "shop")
    rig.clock.advance(1000)
    await rig.turn()

    second = await admin.expect(wire.KeyList, wire.CreateAccount, "shop")
    shop = await rig.client(rig.accounts.find_key(second.keys[0].secret_id))
    await a_queue(shop, "jobs")

    assert [entry.operation for entry in await trail(shop)] == ["create_account", "create_queue"]
    assert [entry.operation for entry in await trail(shop, since_ms=1)] == ["create_account", "create_queue"]
    assert len(await trail(admin, account="shop")) == 6


async def test_an_account_from_before_a_correction_of_the_clock_sees_its_entries(rig: ServerRig) -> None:
    shop = await rig.client(await rig.accounts.create_account("admin", "shop", rig.clock.now_ms() + 1_000_000))
    await a_queue(shop, "jobs")

    assert [entry.name for entry in await trail(shop)] == ["jobs"]


async def test_a_restricted_key_needs_manage_and_every_name(rig: ServerRig) -> None:
    for roles, names, is_allowed in (
        (["manage"], ["*"], True),
        (["manage"], ["a*"], False),
        (["read", "admin", "send", "consume"], ["*"], False),
    ):
        client = await rig.client(await rig.accounts.create_role_key("admin", None, roles, names, 1))
        reply = await client.ask(wire.ListAuditEntries)
        assert isinstance(reply, wire.AuditEntries) == is_allowed, (roles, names, reply)


async def test_queries_reach_the_trail(rig: ServerRig) -> None:
    admin = await rig.client()
    for name in ("one", "two", "three"):
        await a_queue(admin, name)
        rig.clock.advance(1000)
        await rig.turn()
    await admin.expect(wire.Done, wire.DeleteQueue, "two")
    start_ms = (await trail(admin))[0].time_ms

    page = await admin.expect(wire.AuditEntries, wire.ListAuditEntries, limit=2)
    rest = await admin.expect(wire.AuditEntries, wire.ListAuditEntries, before=page.next_before)

    assert [entry.name for entry in page.entries + rest.entries] == ["two", "three", "two", "one"]
    assert (page.next_before, rest.next_before) == (3, 0)
    assert [entry.name for entry in await trail(admin, after=3)] == ["two"]
    assert [entry.name for entry in await trail(admin, search="DELETE")] == ["two"]
    assert [entry.name for entry in await trail(admin, operation="create_queue")] == ["one", "two", "three"]
    assert [entry.name for entry in await trail(admin, since_ms=start_ms + 1, until_ms=start_ms + 1001)] == ["two"]
    assert code_of(await admin.ask(wire.ListAuditEntries, limit=1001)) == "invalid_argument"


async def test_a_page_waits_for_the_rows_of_its_entries(rig: ServerRig) -> None:
    admin = await rig.client()
    other = await rig.client()
    rig.log.hold()
    creating = admin.begin(wire.CreateQueue(admin.next_id(), "jobs", {}))
    await admin.settle()

    reading = other.begin(wire.ListAuditEntries(other.next_id()))
    for _ in range(5):
        await other.settle()
    assert reading not in other.replies, "a crash could take the entry back"
    rig.log.let_go()
    await other.settle()
    await admin.settle()

    page = other.replies[reading]
    assert isinstance(page, wire.AuditEntries)
    assert [entry.name for entry in page.entries] == ["jobs"]
    assert creating in admin.replies


async def test_a_change_of_keys_is_answered_when_its_entry_is_durable(rig: ServerRig) -> None:
    admin = await rig.client()
    rig.log.hold()

    creating = admin.begin(wire.CreateKey(admin.next_id()))
    await admin.settle()
    await admin.settle()
    assert creating not in admin.replies
    rig.log.let_go()
    await admin.settle()

    assert isinstance(admin.replies[creating], wire.KeyList)


async def test_a_secret_that_cannot_be_written_leaves_the_entries_of_the_subscription_and_of_its_end(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = await rig.client()
    await admin.expect(wire.TopicInfo, wire.CreateTopic, "news", {})

    async def fails(subscription_id: int) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rig.accounts, "make_secret", fails)
    assert code_of(await admin.ask(wire.Subscribe, "news", "hook", {"endpoint": URL})) == "internal_error"

    assert short(await trail(admin))[1:] == [
        ("subscribe", "news/hook", "endpoint=(url)"),
        ("unsubscribe", "news/hook", ""),
    ]


async def test_the_entry_of_a_key_that_deletes_itself_has_the_address_of_its_connection(rig: ServerRig) -> None:
    """The connection is closed before the entry is made."""
    key = await rig.accounts.create_role_key("admin", None, ["admin"], ["*"], 1)
    client = await rig.client(key, product="a program " + "x" * 90)

    client.begin(wire.DeleteKey(client.next_id(), key.secret_id))
    for _ in range(3):
        await client.settle()

    admin = await rig.client()
    (entry,) = await trail(admin)
    assert (entry.operation, entry.name, entry.secret_id) == ("delete_key", key.secret_id, key.secret_id)
    assert (entry.peer, entry.product) == ("127.0.0.1:1", "a program " + "x" * 54)
    assert client.ended is not None


async def test_changes_are_bounded(rig: ServerRig) -> None:
    key = await rig.accounts.create_role_key("admin", None, ["send"], ["*"], 1)
    admin = await rig.client()
    names = [f"{number:03}-{'x' * 50}" for number in range(50)]

    await admin.expect(wire.Done, wire.SetKeyRoles, key.secret_id, ["send"], names)

    (entry,) = await trail(admin)
    assert len(entry.changes) == MAX_CHANGES
    assert entry.changes.endswith("...")


async def test_the_trail_is_bounded(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, limits=Limits(max_audit_entries=3))
    admin = await rig.client()
    for name in ("a", "b", "c", "d", "e"):
        await a_queue(admin, name)

    assert [entry.name for entry in await trail(admin)] == ["c", "d", "e"]
    rig.close()
