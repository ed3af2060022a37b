"""Assertions over the tables of facts and of the runtime; for tests."""

from cmqd.core.facts.dedup import DedupIds
from cmqd.core.facts.facts import Facts
from cmqd.core.runtime.runtime import Runtime
from cmqd.core.runtime.window import cost


def check_invariants(facts: Facts, runtime: Runtime, is_salvaging: bool) -> None:
    """Raise AssertionError if an invariant does not hold."""
    for queue in facts.queues.by_id.values():
        queue.index.check_invariants()
        assert facts.queues.names[queue.account][queue.name] is queue
    for queue_id, kept in runtime.queues.items():
        index, window = facts.queues.by_id[queue_id].index, kept.window
        for position in window.messages:
            assert position in index.active, "the window holds a body that is not active"
        for position in window.soon:
            assert position in index.delayed, "the window holds a body ahead of time that is not delayed"
        for position in window.half:
            assert position in index.half, "the window holds a body as half that is not"
    _check_topics(facts, is_salvaging)
    slots = runtime.push_slots
    assert sum(endpoint.under_way for endpoint in slots.endpoints.values()) == len(slots.under_way)
    assert sum(not is_trusted for _, is_trusted in slots.under_way.values()) == slots.doubtful_count
    _check_windows(runtime)
    _check_commits(runtime)
    _check_promises(facts)
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
            subscription.deliveries.check_invariants()


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


def _check_promises(facts: Facts) -> None:
    tables: dict[str, list[DedupIds]] = {}
    for queue in facts.queues.by_id.values():
        tables.setdefault(queue.account, []).append(queue.dedup_ids)
    for topic in facts.topics.by_id.values():
        if topic.known_dedup_ids is not None:
            tables.setdefault(topic.account, []).append(topic.known_dedup_ids)
    facts.promises.memory.check_invariants(tables, facts.promises.sessions)
