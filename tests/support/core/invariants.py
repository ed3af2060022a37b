"""Invariants of a broker and of its parts, as assertions."""

# pyright: reportPrivateUsage=false

from collections import Counter
from collections.abc import Collection, Mapping

from pyroaring import BitMap64

from cmqd.core.broker import Broker
from cmqd.core.facts.dedup import DedupIds
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.promised_memory import PromisedMemory
from cmqd.core.facts.schedules import ScheduleTable
from cmqd.core.facts.sessions import Sessions
from cmqd.core.facts.subscription_backlog import Deliveries
from cmqd.core.facts.topic import Subscription
from cmqd.core.runtime.pending import PendingDeadLetters
from cmqd.core.runtime.runtime import Runtime
from cmqd.core.runtime.window import cost
from cmqd_fold.queue_index import QueueIndex


def check_broker(broker: Broker) -> None:
    """Raise AssertionError if an invariant does not hold."""
    facts, runtime, is_salvaging = broker.facts, broker.runtime, broker.parts.replay.is_salvaging
    for queue in facts.queues.by_id.values():
        check_index(queue.index)
        assert facts.queues.names[queue.account][queue.name] is queue
    for queue_id, kept in runtime.queues.items():
        index, window = facts.queues.by_id[queue_id].index, kept.window
        for position in window.messages:
            assert position in index.active, "the window holds a body that is not active"
        for position in window.soon:
            assert position in index.delays.scheduled, "the window holds a body ahead of time that is not delayed"
        for position in window.half:
            assert position in index.half, "the window holds a body as half that is not"
    _check_topics(facts, is_salvaging)
    for table in (facts.queues, facts.topics):
        entries = sorted(table.by_id.values(), key=lambda entry: (entry.account, entry.name))
        assert table.in_order.behind(None, ("", ""), len(entries) + 1) == entries, "the order of names lacks changes"
    slots = runtime.push_slots
    assert sum(endpoint.under_way for endpoint in slots.endpoints.values()) == len(slots.under_way)
    assert sum(not is_trusted for _, is_trusted in slots.under_way.values()) == slots.doubtful_count
    _check_windows(runtime)
    _check_commits(runtime)
    _check_rejections(facts, runtime)
    _check_memory(facts)
    ended = sum(
        waiter_id in runtime.waiters for _, waiter_ids in runtime.agenda.ended_waits for waiter_id in waiter_ids
    )
    waiting = sum(len(queue.line.waiting) for queue in runtime.queues.values())
    assert len(runtime.waiters) == ended + waiting


def _check_topics(facts: Facts, is_salvaging: bool) -> None:
    for topic in facts.topics.by_id.values():
        assert facts.topics.names[topic.account][topic.name] is topic
        for subscription_id, subscription in topic.subscriptions.items():
            assert facts.topics.subscriptions[subscription_id] is subscription
            if not is_salvaging:
                assert subscription.flows == subscription.may_flow(), "messages take another way than they may"
            check_deliveries(subscription.deliveries)
    by_queue: dict[tuple[str, str], list[Subscription]] = {}
    for each in facts.topics.subscriptions.values():
        if not each.is_push:
            by_queue.setdefault((each.account, each.attributes.endpoint), []).append(each)
    for subscriptions in by_queue.values():
        subscriptions.sort(key=lambda each: (each.topic.name, each.name))
    listed = {endpoint: list(each) for endpoint, each in facts.queues.subscribers.items()}
    assert listed == by_queue, "the subscriptions by queue lack changes, or have another order"


def _check_windows(runtime: Runtime) -> None:
    windows = [queue.window for queue in runtime.queues.values()]
    assert runtime.budget.used == sum(window.size for window in windows)
    for window in windows:
        held = [*window.messages.values(), *window.soon.values(), *window.half.values()]
        assert window.size == sum(map(cost, held))
        assert window.half_size == sum(map(cost, window.half.values()))


def _check_commits(runtime: Runtime) -> None:
    for commits in runtime.commits.values():
        assert all(commits.decisions.values()), "a commit that no request waits for is kept"
    reading = sorted(owner_id for _, owner_id, _ in runtime.pages.commits.requests())
    assert sorted(runtime.commits) == reading, "a commit waits for a page nobody reads"
    waiting = {
        request.waiter_id: request
        for commits in runtime.commits.values()
        for decisions in commits.decisions.values()
        for request, *_ in decisions
    }
    for waiter_id, request in runtime.deciding.items():
        assert waiting[waiter_id] is request, "a request waits, and none of its decisions does"


def _check_rejections(facts: Facts, runtime: Runtime) -> None:
    reading = sorted(owner_id for _, owner_id, _ in runtime.pages.rejections.requests())
    assert sorted(runtime.rejections) == reading, "a rejected message waits for a page nobody reads"
    waiting: dict[int, PendingDeadLetters] = {}
    left: Counter[int] = Counter()
    for queue_id, rejections in runtime.rejections.items():
        assert rejections.by_position, "rejections without a message are kept"
        assert rejections.leases == {one.lease for one in rejections.by_position.values()}
        queue = facts.queues.by_id.get(queue_id)
        for position, one in rejections.by_position.items():
            for request in (one.request, *(repeat for repeat, _ in one.repeats)):
                waiting[request.waiter_id] = request
                left[id(request)] += 1
            if queue is not None and position >= queue.index.floor:
                assert queue.index.leases.by_number[one.lease].position == position, "a moving message lost its lease"
    for waiter_id, request in runtime.rejecting.items():
        assert waiting[waiter_id] is request, "a request waits, and none of its messages moves"
        assert left[id(request)] == request.left


def _check_memory(facts: Facts) -> None:
    tables: dict[str, list[DedupIds]] = {}
    for queue in facts.queues.by_id.values():
        tables.setdefault(queue.account, []).append(queue.dedup_ids)
    for topic in facts.topics.by_id.values():
        if topic.known_dedup_ids is not None:
            tables.setdefault(topic.account, []).append(topic.known_dedup_ids)
    for schedule_id, schedule in facts.schedules.by_id.items():
        assert facts.schedules.names[schedule.account][schedule.name] is schedule
        assert schedule.schedule_id == schedule_id
        assert not (schedule.definition.paused and schedule.next_ms), "a paused schedule has a next time"
    check_promises(facts.promises.memory, tables, facts.promises.sessions, facts.schedules)


def check_index(index: QueueIndex) -> None:
    """Assert the invariants; for tests."""
    leased = [entry.position for entry in index.leases.by_number.values() if entry.position >= index.floor]
    in_flight = BitMap64(leased)
    assert len(in_flight) == len(leased), "a position is held by two leases"
    sets = (
        index.active,
        index.delays.scheduled,
        index.delays.overflow,
        index.half,
        index.moving,
        index.damaged,
        in_flight,
    )
    together = BitMap64()
    for positions in sets:
        assert not together & positions, "a position is in two states"
        together |= positions
    assert together == index.live, "a live position has no state, or a dead one has"
    assert index.delays.damaged <= index.damaged
    assert index.damaged_in_flight <= in_flight
    assert index.live_count == len(index.live)
    assert index.active_count == len(index.active)
    assert index.delays.scheduled_count == len(index.delays.scheduled)
    assert index.delays.overflow_count == len(index.delays.overflow)
    assert index.half_count == len(index.half)
    assert index.moving_count == len(index.moving)
    assert not index.rewindable & index.live, "a rewindable position is live"
    for position in index.half:
        message_id = index.halves.id_of(position)
        assert message_id is not None, "a half message has no id"
        assert index.halves.position_of(message_id) == position
    assert index.in_flight_count == len(leased)
    if index.live_count:
        assert index.floor <= index.live.min()
        assert index.live.max() < index.next_position
    if index.active_count:
        assert index.head <= index.active.min(), "an active position is below the head"


def check_deliveries(deliveries: Deliveries) -> None:
    """Assert the relations that hold after each call; for tests."""
    under_way = BitMap64(deliveries.under_way)
    assert deliveries._failed == BitMap64(deliveries.retries)
    assert not deliveries.waiting & deliveries._failed
    assert deliveries.exhausted == BitMap64(
        [position for position, retry in deliveries.retries.items() if not retry.next_ms]
    )
    assert deliveries._unsent == deliveries.waiting - under_way
    assert deliveries._hurried <= deliveries._failed | deliveries._unsent
    assert not deliveries._hurried & under_way
    assert deliveries._picked <= set(deliveries.under_way)
    entries = set(deliveries._heap)
    for position, retry in deliveries.retries.items():
        assert retry.attempts >= 1
        known = (retry.next_ms, position) in entries or not retry.next_ms
        assert known or position in deliveries._hurried or position in deliveries.under_way, position
        assert deliveries.under_way.get(position, retry.attempts + 1) == retry.attempts + 1
    for position in deliveries.waiting & under_way:
        assert deliveries.under_way[position] == 1


def check_promises(
    memory: PromisedMemory,
    tables: Mapping[str, Collection[DedupIds]],
    sessions: Sessions,
    schedules: ScheduleTable | None = None,
) -> None:
    """Assert that the memory is that of these tables of dedup ids, by account, sessions and schedules."""
    by_account = {account: sum(table.size_bytes for table in tables[account]) for account in tables}
    for account, size_bytes in sessions.sizes_bytes().items():
        by_account[account] = by_account.get(account, 0) + size_bytes
    for schedule in schedules.by_id.values() if schedules is not None else ():
        by_account[schedule.account] = by_account.get(schedule.account, 0) + schedule.size_bytes
    assert memory._by_account == {account: size_bytes for account, size_bytes in by_account.items() if size_bytes}
    assert memory.total_bytes == sum(by_account.values())
