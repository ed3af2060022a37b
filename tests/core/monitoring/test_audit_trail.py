"""The audit trail: entries, bounds, pages, and the same trail after a replay and from a checkpoint."""

from collections.abc import Callable
from typing import Any

import pytest

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import InvalidArgument
from cmqd.core.facts.audit_trail import BLOCK, AuditTrail
from cmqd.core.limits import Limits
from cmqd.core.operations.monitoring.audit import EXAMINED_A_STEP, FOLDED_OF_AN_ENTRY, AuditAction, AuditPage
from cmqd_segment.checkpoint import AuditSlice
from cmqd_segment.records import Administered
from cmqd_types.audit import AuditEntry, AuditQuery
from support.core.builders import KEY, START_MS, Rig
from support.core.facts import facts


def act(
    rig: Rig,
    name: str = "orders",
    account: str = "admin",
    operation: str = "create_queue",
    changes: str = "",
    secret_id: str = "AKIDone",
) -> AuditEntry:
    """An entry in the trail and in the log."""
    action = AuditAction(account, account, secret_id, "10.0.0.7:1234", operation, name, changes)
    record = rig.broker.audit_record(action, rig.now_ms)
    rig.log.append([record])
    rig.broker.facts.audit_trail.check_invariants()
    return record.entry


def page(rig: Rig, account: str | None = None, limit: int = 100, **query: Any) -> AuditPage:
    """The page of a query, read without other operations in between."""
    steps = rig.broker.audit_entries(account, AuditQuery(**query), limit, rig.now_ms)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def names(rig: Rig, account: str | None = None, **query: Any) -> list[str]:
    return [entry.name for entry in page(rig, account, **query).entries]


def test_an_entry_has_the_key_the_peer_the_operation_the_name_and_the_time() -> None:
    rig = Rig()

    entry = act(rig, "orders", "shop", "set_queue_attributes", "attributes=delay_ms")

    assert entry == AuditEntry(
        entry_id=1,
        time_ms=START_MS,
        account="shop",
        by_account="shop",
        secret_id="AKIDone",
        peer="10.0.0.7:1234",
        operation="set_queue_attributes",
        name="orders",
        changes="attributes=delay_ms",
    )
    assert page(rig) == ([entry], 0)


def test_pages_are_newest_first_and_continue_before_the_last_entry() -> None:
    rig = Rig()
    for number in range(1, 8):
        act(rig, f"q{number}")

    first = page(rig, limit=3)
    second = page(rig, limit=3, before=first.next_before)
    third = page(rig, limit=3, before=second.next_before)

    assert [[entry.name for entry in each.entries] for each in (first, second, third)] == [
        ["q7", "q6", "q5"],
        ["q4", "q3", "q2"],
        ["q1"],
    ]
    assert third.next_before == 0
    assert page(rig, limit=7).next_before == 0, "a page that ends with the oldest entry is the last page"


def test_a_reader_asks_for_entries_newer_than_those_it_has() -> None:
    rig = Rig()
    act(rig, "q1")
    known = act(rig, "q2").entry_id
    assert names(rig, after=known) == []

    act(rig, "q3")
    act(rig, "q4")

    assert names(rig, after=known) == ["q4", "q3"]


def test_an_account_gets_its_own_entries_alone() -> None:
    rig = Rig()
    act(rig, "q1", "shop")
    act(rig, "q2", "other")
    act(rig, "q3", "shop")

    assert names(rig, "shop") == ["q3", "q1"]
    assert names(rig, "nothing") == []
    assert names(rig) == ["q3", "q2", "q1"]


@pytest.mark.parametrize("search", ["ORDERS", "akidspecial", "10.0.0.7", "clear_q", "target=Jobs"])
def test_a_search_compares_key_peer_operation_name_and_changes(search: str) -> None:
    rig = Rig()
    act(rig, "orders-1", operation="clear_queue", secret_id="AKIDspecial", changes="target=jobs")
    record = Administered(AuditEntry(2, rig.now_ms, "a", "a", "AKIDtwo", "[::1]:5", "create_topic", "news", ""))
    rig.broker.facts.audit_trail.apply(record)

    assert names(rig, search=search) == ["orders-1"]


def test_queries_by_operation_and_by_time() -> None:
    rig = Rig()
    act(rig, "q1")
    rig.settle(1000)
    act(rig, "q2", operation="delete_queue")
    rig.settle(1000)
    act(rig, "q3")

    assert names(rig, operation="delete_queue") == ["q2"]
    assert names(rig, since_ms=START_MS + 1000) == ["q3", "q2"]
    assert names(rig, until_ms=START_MS + 1000) == ["q1"]
    assert names(rig, since_ms=START_MS + 1, until_ms=START_MS + 2000) == ["q2"]


def test_the_limit_of_a_page_has_a_range() -> None:
    rig = Rig()
    for limit in (0, 1001, -1):
        with pytest.raises(InvalidArgument, match="the range is 1 to 1000"):
            rig.broker.check_audit_limit(limit)
    rig.broker.check_audit_limit(1)
    rig.broker.check_audit_limit(1000)


def test_entries_past_their_time_are_neither_shown_nor_kept() -> None:
    rig = Rig(Limits(audit_ms=10_000))
    for number in range(100):
        act(rig, f"old{number}")
    rig.settle(10_000)
    assert len(names(rig)) == 100
    rig.settle(1)
    assert names(rig) == [], "not shown, before a newer entry removes them"

    act(rig, "new")
    act(rig, "newer")

    assert len(rig.broker.facts.audit_trail) == 2
    assert names(rig) == ["newer", "new"]
    assert facts(rig.crash().broker) == facts(rig.broker)


def test_over_the_limit_the_account_with_the_most_entries_loses_its_oldest() -> None:
    rig = Rig(Limits(max_audit_entries=2000))
    act(rig, "alone", "quiet")
    for number in range(5):
        act(rig, f"s{number}", "small")

    for number in range(6000):
        action = AuditAction("flood", "flood", "k", "p", "clear_queue", f"f{number}", "")
        rig.log.append([rig.broker.audit_record(action, rig.now_ms)])

    trail = rig.broker.facts.audit_trail
    trail.check_invariants()
    assert len(trail) == 2000
    assert names(rig, "quiet") == ["alone"]
    assert names(rig, "small") == ["s4", "s3", "s2", "s1", "s0"]
    kept = names(rig, "flood", limit=1000)
    assert (kept[0], len(kept)) == ("f5999", 1000)
    assert len(trail.blocks()) <= 2 * 2000 // BLOCK + 2, "short blocks are joined"
    assert facts(rig.crash().broker) == facts(rig.broker)
    assert facts(rig.crash_after(rig.checkpoint()).broker) == facts(rig.broker)


def test_of_accounts_with_equally_many_entries_the_one_with_the_oldest_entry_loses_it_after_a_restart_too() -> None:
    rig = Rig(Limits(max_audit_entries=4))
    for account in ("a", "b", "a", "b", "a", "b"):
        act(rig, account, account)
    # Now b came later than a, and has the oldest entry, or the other way round.
    again = rig.crash_after(rig.checkpoint())
    for each in (rig, again):
        act(each, "c", "c")
        act(each, "d", "d")

    assert names(rig) == names(again) == ["d", "c", "b", "a"]
    assert facts(again.broker) == facts(rig.broker)


def test_entries_that_leave_from_the_middle_leave_the_pages_whole() -> None:
    """Accounts take turns, in an order that mixes their entries in every block."""
    rig = Rig(Limits(max_audit_entries=1500))
    for number in range(5000):
        account = "abcdefg"[number * number % 7]
        action = AuditAction(account, account, "k", "p", "clear_queue", f"{number}", "")
        rig.broker.audit_record(action, rig.now_ms)
        if number % 500 == 0:
            rig.broker.facts.audit_trail.check_invariants()

    found: list[int] = []
    before = 0
    while True:
        each = page(rig, limit=37, before=before)
        found += [int(entry.name) for entry in each.entries]
        before = each.next_before
        if not before:
            break

    assert len(found) == 1500
    assert found == sorted(set(found), reverse=True)


def test_a_few_entries_of_a_quiet_account_among_many_of_a_busy_account_leave_no_short_blocks() -> None:
    """The quiet account keeps one entry of each block, which nothing pushes out."""
    rig = Rig(Limits(max_audit_entries=1000))
    for number in range(1, 100 * BLOCK):
        account = "quiet" if number % BLOCK == 0 else "busy"
        rig.broker.audit_record(AuditAction(account, account, "k", "p", "clear_queue", "q", ""), rig.now_ms)

    trail = rig.broker.facts.audit_trail
    trail.check_invariants()
    assert len(names(rig, "quiet")) == 99
    assert len(trail.blocks()) <= 2 * 1000 // BLOCK + 1


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_an_entry_over_the_limit_does_not_compare_all_accounts(
    with_checkpoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(Limits(max_audit_entries=400))
    for number in range(410):
        act_fast(rig, number, f"account{number % 200}")
    if with_checkpoint:
        rig = rig.crash_after(rig.checkpoint())
    rank_of: Callable[[AuditTrail, str], Any] = vars(AuditTrail)["_rank_of"]
    ranked: list[str] = []

    def counted(trail: AuditTrail, account: str) -> Any:
        ranked.append(account)
        return rank_of(trail, account)

    monkeypatch.setattr(AuditTrail, "_rank_of", counted)
    act_fast(rig, 1, "another")

    assert len(ranked) <= 4
    monkeypatch.undo()
    rig.broker.facts.audit_trail.check_invariants()


def test_a_search_of_texts_beyond_ascii_takes_shorter_steps_and_finds_each_entry_once() -> None:
    rig = Rig()
    for number in range(EXAMINED_A_STEP):
        action = AuditAction("admin", "admin", "k", "p", "subscribe", f"q{number}", "ß" * 400)
        rig.broker.audit_record(action, rig.now_ms)
    steps = rig.broker.audit_entries(None, AuditQuery(search="Q"), 1000, rig.now_ms)
    taken = 0
    while True:
        try:
            next(steps)
            taken += 1
        except StopIteration as end:
            result: AuditPage = end.value
            break

    assert taken >= 400 // FOLDED_OF_AN_ENTRY
    assert [int(entry.name[1:]) for entry in result.entries] == list(reversed(range(EXAMINED_A_STEP)))
    assert names(rig, search="SS", limit=1) == [f"q{EXAMINED_A_STEP - 1}"]


def test_a_page_is_read_in_steps_and_passes_over_entries_that_come_in_between() -> None:
    rig = Rig(Limits(max_audit_entries=3 * EXAMINED_A_STEP))
    for number in range(3 * EXAMINED_A_STEP):
        action = AuditAction("admin", "admin", "k", "p", "create_queue", f"q{number}", "")
        rig.broker.audit_record(action, rig.now_ms)
    steps = rig.broker.audit_entries(None, AuditQuery(search="q17"), 1000, rig.now_ms)
    taken = 0

    result: AuditPage | None = None
    while result is None:
        try:
            next(steps)
            taken += 1
            act(rig, "q17new")
        except StopIteration as end:
            result = end.value

    assert taken == 3
    expected = [number for number in range(3 * EXAMINED_A_STEP) if str(number).startswith("17")]
    # The new entries pushed the oldest entries out, none of which the search is for.
    assert [int(entry.name[1:]) for entry in result.entries] == sorted(expected, reverse=True)


def test_a_checkpoint_in_parts_restores_the_trail_with_entries_that_come_meanwhile() -> None:
    rig = Rig()
    for number in range(5 * BLOCK):
        act_fast(rig, number)
    parts = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
    taken = [next(parts)]
    for part in parts:
        taken.append(part)
        act_fast(rig, 10_000 + len(taken))

    slices = [part for part in taken if isinstance(part, AuditSlice)]
    assert len(slices) == 4
    assert max(len(part.entries) for part in slices) == 2 * BLOCK
    recovered = rig.crash_after(taken)
    assert facts(recovered.broker) == facts(rig.broker)
    recovered.broker.facts.audit_trail.check_invariants()


def act_fast(rig: Rig, number: int, account: str = "admin") -> None:
    action = AuditAction(account, account, "k", "p", "create_queue", f"q{number}", "")
    rig.log.append([rig.broker.audit_record(action, rig.now_ms)])


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_the_ids_of_entries_go_on_after_a_restart_even_if_the_trail_ran_empty(with_checkpoint: bool) -> None:
    rig = Rig(Limits(audit_ms=10_000))
    last = [act(rig) for _ in range(3)][-1].entry_id
    rig.settle(20_000)

    again = rig.crash_after(rig.checkpoint()) if with_checkpoint else rig.crash()

    assert act(again, "new").entry_id == last + 1
    assert names(again) == ["new"]


def test_a_broker_without_administration_has_no_part_for_the_trail() -> None:
    rig = Rig()
    rig.create()
    assert [part for part in rig.checkpoint() if isinstance(part, AuditSlice)] == []


def test_entries_of_a_part_do_not_change_with_later_records() -> None:
    rig = Rig(Limits(max_audit_entries=3))
    for number in range(3):
        act(rig, f"q{number}")
    parts = [part for part in rig.checkpoint() if isinstance(part, AuditSlice)]

    act(rig, "late")

    assert [entry.name for part in parts for entry in part.entries] == ["q0", "q1", "q2"]


def test_a_record_that_the_checkpoint_has_is_not_applied_again() -> None:
    rig = Rig()
    act(rig, "q1")
    broker = Broker(KEY)
    load: Callable[[Any], None] = broker.load
    for part in rig.checkpoint():
        load(part)

    for lsn, record in rig.log.records():
        broker.replay(record, lsn)

    assert len(broker.facts.audit_trail) == 1
