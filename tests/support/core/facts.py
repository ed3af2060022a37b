"""Facts that must agree between a broker and a broker recovered from its log."""

from collections.abc import Collection
from typing import Any

from msgspec.structs import astuple
from pyroaring import BitMap64

from cmqd.core.broker import Broker
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.schedules import Schedule
from cmqd.core.facts.topic import Subscription, Topic


def facts(broker: Broker) -> dict[str, Any]:
    """All facts of a broker. Damage, bodies in memory, waiting receives and stale entries are not facts."""
    return {
        "queues": {queue_id: queue_facts(queue) for queue_id, queue in sorted(broker.queues.items())},
        "topics": {topic_id: topic_facts(topic) for topic_id, topic in sorted(broker.topics.items())},
        "schedules": {schedule_id: schedule_facts(each) for schedule_id, each in sorted(broker.schedules.items())},
        "sessions": broker.facts.promises.sessions.packed(broker.facts.promises.sessions.keys()),
        "reserved": (
            broker.facts.numbers.message_id_until,
            broker.facts.numbers.lease_until,
            broker.facts.numbers.queue_id_until,
        ),
        "gone totals": {
            account: (astuple(totals.queues), astuple(totals.topics), astuple(totals.subscriptions))
            for account, totals in sorted(broker.facts.gone_totals.by_account.items())
        },
        "audit trail": (
            [entry for block in broker.facts.audit_trail.blocks() for entry in block],
            broker.facts.audit_trail.next_id,
        ),
        "clock offset": broker.facts.clock_offset_ms,
    }


def without_totals(found: dict[str, Any]) -> dict[str, Any]:
    """Facts without their running totals, which begin at 0 after a loss."""
    return {
        name: without_totals(fact) if isinstance(fact, dict) else fact  # pyright: ignore[reportUnknownArgumentType]
        for name, fact in found.items()
        if name not in ("totals", "gone totals")
    }


def schedule_facts(schedule: Schedule) -> Any:
    """The facts of a schedule."""
    definition = schedule.definition
    return (
        *(definition.account, definition.name, definition.queue, definition.cron, definition.zone, definition.paused),
        *(definition.body, definition.headers, schedule.created_ms, schedule.modified_ms, schedule.next_ms),
        *(schedule.fired, schedule.missed, schedule.last_fired_ms, schedule.last_message_id),
        *(schedule.last_error, schedule.last_error_ms),
    )


def topic_facts(topic: Topic) -> dict[str, Any]:
    """The facts of a topic and its subscriptions; attempts in progress are not facts."""
    known = topic.known_dedup_ids
    return {
        "account": topic.account,
        "name": topic.name,
        "created": topic.created_ms,
        "modified": topic.modified_ms,
        "attributes": topic.attributes,
        "floor": topic.floor,
        "next position": topic.next_position,
        "last enqueue": topic.last_enqueue_ms,
        "dedup ids": [] if known is None else known.entries(),
        "totals": astuple(topic.totals),
        "subscriptions": {one: subscription_facts(each) for one, each in sorted(topic.subscriptions.items())},
    }


def subscription_facts(subscription: Subscription) -> dict[str, Any]:
    """The facts of a subscription."""
    deliveries = subscription.deliveries
    return {
        "name": subscription.name,
        "attributes": subscription.attributes,
        "created": subscription.created_ms,
        "modified": subscription.modified_ms,
        "waiting": list(deliveries.waiting),
        "retries": {
            position: (one.attempts, one.next_ms, one.error, one.failed_ms)
            for position, one in sorted(deliveries.retries.items())
        },
        "drops": (deliveries.drops.known_from, deliveries.drops.packed()),
        "exhausted": list(deliveries.exhausted),
        "blocked": deliveries.blocked,
        "totals": astuple(deliveries.totals()),
        "last error": (deliveries.last_error, deliveries.last_error_ms),
    }


def queue_facts(queue: Queue) -> dict[str, Any]:
    """The facts of a queue."""
    index = queue.index
    active = index.active | index.moving | (index.damaged - index.delays.damaged)
    overflow = index.delays.overflow | index.delays.damaged
    return {
        "account": queue.account,
        "name": queue.name,
        "created": queue.created_ms,
        "modified": queue.modified_ms,
        "attributes": queue.attributes(),
        "floor": index.floor,
        "next position": index.next_position,
        "last enqueue": index.last_enqueue_ms,
        "live": list(index.live),
        "active": list(active),
        "overflow": list(overflow),
        "delayed": delays(queue),
        "in flight": {
            lease: (held.position, held.deadline_ms, held.receive_count, held.first_receive_ms)
            for lease, held in sorted(index.leases.by_number.items())
            if held.position >= index.floor
        },
        "rewindable": list(index.rewindable),
        "half": list(index.half),
        "halves": halves(queue),
        "dedup ids": queue.dedup_ids.entries(),
        "dead-letter floor": index.dead_letter_floor,
        "activations": [
            (second, kept)
            for second, positions in index.activations.entries()
            if (kept := [position for position in BitMap64.deserialize(positions) if position in index.live])
        ],
        "redrive": index.redrive,
        "totals": astuple(index.totals),
        "settled": settled(queue),
        "history": {position: index.history.get(position) for position in index.live},
    }


def settled(queue: Queue) -> tuple[int, list[list[int]]] | None:
    """The leases that ended with a delete or a move, by generation."""
    table = queue.index.settled
    assert table is not None
    packed = table.packed()
    return (table.since_ms, [list(BitMap64.deserialize(one)) if one else [] for one in packed]) if packed else None


def halves(queue: Queue) -> dict[str, Any]:
    """The facts of half messages."""
    table = queue.index.halves
    return {
        "ids": {position: table.id_of(position) for position in queue.index.half},
        "committed": {position: table.id_of(position) for position in table.committed},
        "rolled back": {position: table.id_of(position) for position in table.rolled_back},
        "checked": {
            position: (one.attempts, one.last_check_ms, one.last_unknown_ms, one.next_check_ms)
            for position, one in sorted(table.checked.items())
        },
    }


def delays(queue: Queue) -> dict[int, int]:
    """Time of activation of every delayed message, by position; a message must be in exactly a single bucket."""
    found: dict[int, int] = {}
    for due_ms, positions in queue.index.delays.buckets.of_queue(queue.queue_id):
        for position in positions:
            if position in queue.index.delays.scheduled:
                assert position not in found, "a delayed message is in two buckets"
                found[position] = due_ms
    assert sorted(found) == list(queue.index.delays.scheduled), "a delayed message is in no bucket"
    return found


def check_lease_buckets(queue: Queue, moving: Collection[int] = ()) -> None:
    """Check that every lease is in the bucket of its deadline. Leases of ``moving`` messages may have been passed over
    when their buckets came due.
    """
    index = queue.index
    ends: dict[int, set[int]] = {}
    for due_ms, pairs in index.leases.buckets.of_queue(queue.queue_id):
        for at in range(0, len(pairs), 2):
            for lease in range(pairs[at], pairs[at] + pairs[at + 1]):
                ends.setdefault(lease, set()).add(due_ms)
    for lease, held in index.leases.by_number.items():
        width_ms = index.leases.buckets.width_ms
        due_ms = -(-held.deadline_ms // width_ms) * width_ms
        assert lease in moving or due_ms in ends.get(lease, ()), f"lease {lease} does not end at {due_ms}"
