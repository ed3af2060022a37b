"""Questions to a broker that took over a folder; every later version gives the same answers.

The questions go over the wire, because the wire keeps its meaning from version to version. The order matters: a
question sees the changes of the questions before.
"""

from pathlib import Path
from typing import Any, cast

import msgspec

from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd_protocol import messages as wire
from support.core.invariants import check_broker
from support.formats.broker import FolderBroker, open_folder
from support.formats.caches import OpenLog
from support.formats.content import BEGIN_MS, HOUR_MS, SESSION, Kept
from support.server.server_rig import RigClient

QUEUES = ("orders", "later", "payments", "dead", "work", "inbox", "closed", "removed", "emptied")
STATES = ["active", "in_flight", "delayed", "half", "rewindable"]


class Asking:
    """Asks, and notes the answers by name."""

    def __init__(self, rig: FolderBroker, client: RigClient) -> None:
        self.rig = rig
        self.client = client
        self.answers: dict[str, Any] = {}

    async def ask(self, name: str, make: Any, *arguments: Any, client: RigClient | None = None, **named: Any) -> Any:
        client = client or self.client
        reply = await self.rig.answer(client, make(client.next_id(), *arguments, **named))
        fields: dict[str, Any] = {field: getattr(reply, field) for field in reply.__struct_fields__}
        for volatile in ("request_id", "text"):
            fields.pop(volatile, None)
        self.answers[name] = plain(fields)
        return reply

    async def queues(self, when: str) -> None:
        for name in QUEUES:
            await self.ask(f"{when}: queue {name}", wire.GetQueueAttributes, name)
            await self.ask(f"{when}: messages of {name}", wire.PeekMessages, name, 100, 0, STATES)

    async def everything(self, kept: Kept) -> None:
        await self.ask("queues", wire.ListQueues)
        await self.queues("first")
        await self.topics("first")
        await self.ask("half messages", wire.ListHalfMessages, "payments")
        await self.ask("redrive", wire.GetRedrive, "dead")
        await self.ask("sources", wire.ListDeadLetterSources, "dead")
        await self.repeats()
        if kept.has_format_2:
            await self.format_2(kept)
        await self.ask("old receipts are deleted", wire.DeleteMessages, "orders", kept.receipts["orders"])
        await self.ask("deleted once", wire.DeleteMessages, "orders", kept.receipts["orders"])
        await self.pass_time(30_000)
        await self.queues("the third lease goes on")
        await self.pass_time(60_000)
        await self.queues("the third lease has ended")
        await self.ask("rewound", wire.RewindQueue, "orders", BEGIN_MS)
        await self.ask("committed", wire.EndTransactions, "payments", kept.sent["half"], [wire.COMMIT])
        await self.queues("changed")
        await self.pass_time(HOUR_MS)
        await self.queues("an hour later")
        await self.ask("redrive, an hour later", wire.GetRedrive, "dead")
        await self.deliver()
        for name in QUEUES:
            await self.receive(name)
        other = await self.rig.client(self.rig.accounts.first_key("shop"))
        await self.ask("another account", wire.PeekMessages, "orders", 100, 0, STATES, client=other)

    async def format_2(self, kept: Kept) -> None:
        await self.ask("schedule", wire.GetSchedule, "tick")
        await self.ask("audit trail", wire.ListAuditEntries)
        for name in ("strict", "refused", "ticks"):
            await self.ask(f"messages of {name}", wire.PeekMessages, name, 100, 0, STATES)
        await self.ask("the handle of a rejected message", wire.DeleteMessages, "strict", kept.receipts["strict"])

    async def repeats(self) -> None:
        """Sends and publishes that the old broker has stored under the same number or id."""
        await self.ask("numbered", wire.SendMessages, "orders", [b"numbered"], session=SESSION, sequence=1)
        await self.ask("dedup id", wire.SendMessages, "orders", [b"only once"], dedup_ids=["the-id"])
        bodies = [b"red one", b"blue one"]
        tags = [["red"], ["blue"]]
        await self.ask("published", wire.PublishMessages, "news", bodies, tags=tags, session=SESSION, sequence=2)

    async def pass_time(self, ms: int) -> None:
        """Let time pass by the second at first, because the redrive has a rate per second."""
        for _ in range(10):
            self.rig.clock.advance(1_000)
            await self.rig.due()
        self.rig.clock.advance(ms - 10_000)
        await self.rig.due()

    async def deliver(self) -> None:
        """End every post to a URL well, and note the counts of the subscriptions."""
        await self.rig.quiet()
        await self.rig.turn()
        while self.rig.pusher.end():
            await self.rig.quiet()
            await self.rig.due()
            await self.rig.turn()
        for name in ("hook", "paused"):
            info = await self.rig.answer(self.client, wire.GetSubscription(self.client.next_id(), "news", name))
            assert isinstance(info, wire.SubscriptionInfo), info
            self.answers[f"delivered: {name}"] = plain(info.counts)

    async def receive(self, queue: str) -> None:
        """Receive all that can be received."""
        received: list[Any] = []
        while True:
            reply = await self.rig.answer(
                self.client, wire.ReceiveMessages(self.client.next_id(), queue, 100, 0, HOUR_MS)
            )
            if not isinstance(reply, wire.MessagesReceived) or not reply.messages:
                break
            for message in reply.messages:
                kept = (message.message_id, message.body, message.receive_count, message.headers)
                received.append(plain([*kept, message.origin, message.copy_of]))
        self.answers[f"received from {queue}"] = received

    async def topics(self, when: str) -> None:
        for topic in ("news", "routes"):
            await self.ask(f"{when}: topic {topic}", wire.GetTopicAttributes, topic)
            listed = await self.ask(f"{when}: subscriptions of {topic}", wire.ListSubscriptions, topic)
            for summary in listed.subscriptions:
                name = f"{when}: subscription {summary.name}"
                await self.ask(name, wire.GetSubscription, topic, summary.name)


async def interrogate(folder: Path, kept: Kept, open_log: OpenLog = StorageProcessLog) -> dict[str, Any]:
    """Open a folder one second after its crash, and ask the questions. This changes the folder: pass a copy."""
    rig = await open_folder(folder, kept.crashed_ms + 1_000, open_log)
    try:
        client = await rig.client()
        asking = Asking(rig, client)
        await asking.everything(kept)
        check_broker(rig.broker)
        assert not rig.failures
        return asking.answers
    finally:
        await rig.stop()


def plain(value: Any) -> Any:
    """The answer in JSON types, with bodies as text, and without the wording of refusals."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__ if name != "text"}
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in cast("list[Any]", value)]
    return value
