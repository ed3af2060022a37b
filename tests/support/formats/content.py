"""The content of the folders: messages in every state, over sealed segments, a checkpoint and a WAL."""

from typing import Any

import msgspec

from cmqd_protocol import messages as wire
from cmqd_types.messages import ReceivedMessage
from support.formats.broker import FolderBroker
from support.server.server_rig import RigClient

BEGIN_MS = 1_700_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SESSION = 77


class Kept(msgspec.Struct):
    """Facts that only the clients of the old broker knew: numbers that the new one must still take."""

    crashed_ms: int = 0
    receipts: dict[str, list[int]] = {}
    """Receipt handles by queue, of leases that run beyond the crash."""
    sent: dict[str, list[int]] = {}
    """Message ids by the name of a send."""
    has_format_2: bool = False
    """The content has facts that format 2 brought."""


class Filling:
    """Fills a folder as one client of the account ``admin``."""

    def __init__(self, rig: FolderBroker, client: RigClient, other: RigClient) -> None:
        self.rig = rig
        self.client = client
        self.other = other
        self.kept = Kept()

    async def ask(self, make: Any, *arguments: Any, client: RigClient | None = None, **named: Any) -> Any:
        """A reply that is no error."""
        client = client or self.client
        reply = await self.rig.answer(client, make(client.next_id(), *arguments, **named))
        assert not isinstance(reply, wire.Error), reply
        return reply

    async def queue(self, name: str, **attributes: Any) -> None:
        await self.ask(wire.CreateQueue, name, attributes)

    async def send(self, queue: str, *bodies: str, **named: Any) -> list[int]:
        return (await self.ask(wire.SendMessages, queue, [body.encode() for body in bodies], **named)).message_ids

    async def receive(self, queue: str, count: int, visibility_ms: int = 30_000) -> list[ReceivedMessage]:
        return (await self.ask(wire.ReceiveMessages, queue, count, 0, visibility_ms)).messages

    async def delete(self, queue: str, messages: list[ReceivedMessage]) -> None:
        done = await self.ask(wire.DeleteMessages, queue, [message.receipt_handle for message in messages])
        assert not done.failures

    async def pass_time(self, ms: int) -> None:
        self.rig.clock.advance(ms)
        await self.rig.due()

    # The first segment

    async def first(self) -> None:
        """Queues and topics, and messages that the first segment holds; some are deleted and rewindable."""
        await self.queue("orders", rewind_ms=HOUR_MS, retention_ms=4 * 24 * HOUR_MS)
        await self.queue("later", max_delayed=2)
        await self.queue("payments", transactional=True, rewind_ms=HOUR_MS)
        await self.queue("dead")
        await self.queue("work", dead_letter_queue="dead", dead_letter_max_receives=1)
        await self.queue("inbox")
        await self.queue("closed")
        await self.queue("removed")
        await self.queue("emptied")
        await self.ask(wire.CreateQueue, "orders", {}, client=self.other)
        await self.ask(wire.SendMessages, "orders", [b"of another account"], client=self.other)
        await self.topics()
        await self.format_2()
        await self.send("orders", *(f"order {number}" for number in range(6)), headers=[{"kind": "a", "n": "1"}] * 6)
        await self.delete("orders", await self.receive("orders", 2))
        self.kept.sent["numbered"] = await self.send("orders", "numbered", session=SESSION, sequence=1)
        self.kept.sent["dedup"] = await self.send("orders", "only once", dedup_ids=["the-id"])
        await self.send("removed", "lost with its queue", "and this one")
        await self.send("emptied", "cleared")
        await self.pass_time(MINUTE_MS)

    async def format_2(self) -> None:
        """A rejected message, and a schedule that fires before the first segment is sealed."""
        await self.queue("refused")
        await self.queue("strict", dead_letter_queue="refused", dead_letter_max_receives=9)
        await self.queue("ticks")
        await self.send("strict", "without a customer", "with a customer")
        (rejected,) = await self.receive("strict", 1)
        handles = self.kept.receipts["strict"] = [rejected.receipt_handle]
        await self.ask(wire.DeadLetterMessages, "strict", handles, ["no such customer"])
        await self.ask(wire.CreateSchedule, "tick", {"queue": "ticks", "cron": "* * * * *"}, b"tick")
        self.kept.has_format_2 = True

    async def topics(self) -> None:
        """Subscriptions to queues, to a queue that is removed, and to URLs: one is paused."""
        await self.ask(wire.CreateTopic, "news", {})
        await self.ask(wire.CreateTopic, "routes", {"filter_type": "routing"})
        for name, topic, attributes in (
            ("to-inbox", "news", {"endpoint": "inbox", "filter_tags": ["red"]}),
            ("to-closed", "news", {"endpoint": "closed", "strategy": "backoff"}),
            ("hook", "news", {"endpoint": "https://example.com/hook"}),
            ("paused", "news", {"endpoint": "https://example.com/paused", "content_format": "simplified"}),
            ("to-orders", "routes", {"endpoint": "orders", "binding_keys": ["order.*"]}),
        ):
            await self.ask(wire.Subscribe, topic, name, attributes)

    # The second segment

    async def second(self) -> None:
        """Delays, transactions, dead letters, publishes that wait and publishes that are retried."""
        await self.send("later", "soon", "second", "third", "beyond max_delayed", delay_ms=20 * MINUTE_MS)
        await self.send("later", "now")
        await self.half_messages()
        await self.send("work", *(f"poison {number}" for number in range(6)))
        await self.receive("work", 6, 5_000)
        await self.pass_time(10_000)
        await self.ask(wire.DeleteQueue, "removed")
        await self.ask(wire.ClearQueue, "emptied")
        await self.ask(wire.DeleteQueue, "closed")
        await self.ask(wire.SetSubscriptionAttributes, "news", "paused", {"paused": True})
        published = await self.ask(
            wire.PublishMessages,
            "news",
            [b"red one", b"blue one"],
            tags=[["red"], ["blue"]],
            session=SESSION,
            sequence=2,
        )
        self.kept.sent["published"] = published.message_ids
        await self.ask(wire.PublishMessages, "routes", [b"by key"], routing_keys=["order.new"])
        await self.rig.quiet()
        await self.rig.turn()
        self.rig.pusher.end("status 500")
        await self.rig.quiet()

    async def half_messages(self) -> None:
        ids: list[int] = (
            await self.ask(wire.SendHalfMessages, "payments", [b"commit", b"roll back", b"unknown", b"open"])
        ).message_ids
        self.kept.sent["half"] = ids
        await self.ask(wire.EndTransactions, "payments", ids[:2], [wire.COMMIT, wire.ROLL_BACK])
        await self.ask(wire.RegisterChecker, "payments")
        await self.pass_time(5_000)
        await self.client.settle()
        await self.ask(wire.EndTransactions, "payments", [ids[2]], [wire.UNKNOWN])
        await self.ask(wire.UnregisterChecker, "payments")

    # The WAL

    async def last(self) -> None:
        """Rows that stand in the WAL alone: leases, a redrive under way, more of everything."""
        (again,) = await self.receive("orders", 1)
        await self.ask(wire.ReleaseMessages, "orders", [again.receipt_handle])
        held = await self.receive("orders", 3, HOUR_MS)
        self.kept.receipts["orders"] = [message.receipt_handle for message in held[:2]]
        await self.delete("orders", held[2:])
        await self.receive("orders", 1, MINUTE_MS)
        await self.send("orders", "in the WAL", headers=[{"where": "wal"}])
        await self.ask(wire.StartRedrive, "dead", max_per_second=1)
        await self.rig.due()
        await self.pass_time(1_000)
        await self.ask(wire.PublishMessages, "news", [b"late red"], tags=[["red"]])
        await self.rig.quiet()

    async def seal(self) -> None:
        await self.ask(wire.SealSegments)
        await self.rig.checkpoint()


async def fill(rig: FolderBroker) -> Kept:
    """Fill an empty folder and leave it as a crash does; returns the numbers that clients hold."""
    client = await rig.client()
    (key,) = (await _answer(rig, client, wire.CreateAccount(client.next_id(), "shop"))).keys
    other = await rig.client(rig.accounts.first_key("shop"))
    assert key.account == "shop"
    filling = Filling(rig, client, other)
    await filling.first()
    await filling.seal()
    await filling.second()
    await filling.seal()
    await filling.last()
    filling.kept.crashed_ms = rig.clock.now_ms()
    await rig.kill()
    return filling.kept


async def _answer(rig: FolderBroker, client: RigClient, request: Any) -> Any:
    return await rig.answer(client, request)
