"""Decisions of a consumer about receives, extensions and settlements: pure, with time as an argument."""

from collections.abc import Callable
from random import Random

import pytest

from cmqd_client.consumers.consumption import (
    DELETE,
    GIVE_BACK,
    Action,
    Consumption,
    ConsumptionLimits,
    Lease,
    LeaseState,
    Settlement,
)
from cmqd_types.messages import ReceivedMessage
from support.cases import each_case

RETRY_AT_ONCE = Settlement(Action.RETRY)


def messages(*handles: int, receive_count: int = 1) -> list[ReceivedMessage]:
    return [ReceivedMessage(handle, handle, b"x", 0, 0, 0, receive_count) for handle in handles]


def begun(core: Consumption, now: float) -> Lease:
    lease = core.begin(now)
    assert lease is not None
    return lease


def settle_all(core: Consumption) -> list[tuple[Settlement, list[int]]]:
    """Answer every settlement with success."""
    requests: list[tuple[Settlement, list[int]]] = []
    while (batch := core.next_batch()) is not None:
        requests.append((batch.settlement, [lease.handle for lease in batch.leases]))
        assert core.answered(batch, set()) == []
    return requests


def consumption(**limits: int | float | bool | None) -> Consumption:
    return Consumption(ConsumptionLimits(**limits))  # pyright: ignore[reportArgumentType]


# ---------------------------------------------------------------------- receive


def test_without_a_measurement_only_messages_for_idle_handlers_are_received() -> None:
    core = consumption(concurrency=8)

    assert core.receive_size() == 8
    core.arrived(messages(1, 2, 3), 1, 0)
    for _ in range(3):
        begun(core, 0)

    assert core.receive_size() == 5


def test_fast_handlers_get_a_stock_and_slow_ones_none() -> None:
    fast, slow = consumption(concurrency=2), consumption(concurrency=2)
    for core, seconds in (fast, 0.004), (slow, 5.0):
        core.arrived(messages(1), 1, 0)
        core.settle(begun(core, 0), DELETE, seconds)
        settle_all(core)

    # 2 handlers begin 100 messages in 0.2 s, or 0.08.
    assert (fast.prefetch, fast.receive_size()) == (100, 102)
    assert (slow.prefetch, slow.receive_size()) == (0, 2)


def test_the_next_receive_waits_until_half_of_the_stock_is_used() -> None:
    core = consumption(concurrency=1, prefetch=8)
    core.arrived(messages(*range(9)), 1, 0)
    sizes: list[int] = []
    for now in range(6):
        core.settle(begun(core, now), DELETE, now)
        sizes.append(core.receive_size())

    assert sizes == [0, 0, 0, 0, 5, 6]


def test_an_idle_handler_is_reason_enough_for_a_receive() -> None:
    core = consumption(concurrency=4, prefetch=0)
    core.arrived(messages(1, 2, 3, 4), 1, 0)
    leases = [begun(core, 0) for _ in range(4)]

    assert core.receive_size() == 0
    core.settle(leases[2], DELETE, 1)
    assert core.receive_size() == 1


def test_settlements_without_an_answer_stop_the_receives() -> None:
    core = consumption(concurrency=1, prefetch=300)
    core.arrived(messages(*range(256)), 1, 0)
    for _ in range(256):
        core.settle(begun(core, 0), DELETE, 0)

    assert core.receive_size() == 0
    settle_all(core)
    assert core.receive_size() == 256


def test_the_handlers_begin_no_more_messages_than_the_limit() -> None:
    core = consumption(concurrency=2, prefetch=2)
    core.arrived(messages(1, 2, 3), 1, 0)
    first, _ = begun(core, 0), begun(core, 0)

    assert core.begin(0) is None
    core.settle(first, DELETE, 0)
    assert begun(core, 0).handle == 3


# ---------------------------------------------------------------------- leases


def test_a_third_of_the_lease_after_its_arrival_a_message_is_extended_with_those_due_soon() -> None:
    core = consumption(concurrency=8, prefetch=8, lease=30)
    core.arrived(messages(1), 1, 0)
    core.arrived(messages(2), 2, 4)
    core.arrived(messages(3), 3, 8)
    begun(core, 8)
    assert core.examine_at == 10
    assert core.examine(9.9).extend == []

    extend = core.examine(10).extend

    assert [lease.handle for lease in extend] == [1, 2]  # 3 is due at 18: more than 5 s later
    assert core.examine(10).extend == [], "an extension is unanswered"
    core.extended(extend, set(), 10, 10.1)
    assert core.examine_at == 18
    assert [lease.ends_at for lease in extend] == [40, 40]


def test_a_failed_extension_is_tried_again_until_the_lease_ends() -> None:
    core = consumption(prefetch=0, lease=12)
    core.arrived(messages(1), 1, 0)
    lease = begun(core, 0)
    now, attempts = 4.0, 0
    while not (due := core.examine(now)).lost:
        if due.extend:
            attempts += 1
            core.not_extended(due.extend, now)
        assert core.examine_at is not None
        now = core.examine_at

    assert due.lost == [lease]
    assert (now, attempts) == (12, 8)
    assert lease.lost == "the lease of 12 s ended without an answer to its extension"
    assert core.is_settled
    core.settle(lease, DELETE, now)
    assert core.next_batch() is None


def test_an_extension_without_an_answer_does_not_hide_the_end_of_the_lease() -> None:
    core = consumption(prefetch=0, lease=12)
    core.arrived(messages(1), 1, 0)
    lease = begun(core, 0)
    core.examine(4)

    assert core.examine_at == 12
    assert core.examine(12).lost == [lease]


def test_a_refused_extension_loses_the_lease_of_a_begun_message_and_drops_a_waiting_one() -> None:
    core = consumption(prefetch=8)
    core.arrived(messages(1, 2, 3), 1, 0)
    first = begun(core, 0)

    lost = core.extended(core.examine(10).extend, {1, 2}, 10, 10)

    assert lost == [first]
    assert core.statistics().lost == 2
    assert begun(core, 10).handle == 3
    core.check_invariants()


def test_a_refused_extension_says_nothing_about_a_message_that_is_being_deleted() -> None:
    core = consumption()
    core.arrived(messages(1), 1, 0)
    lease = begun(core, 0)
    extend = core.examine(10).extend
    core.settle(lease, DELETE, 10)
    batch = core.next_batch()
    assert batch is not None

    assert core.extended(extend, {1}, 10, 10) == []
    assert core.answered(batch, set()) == []
    assert (core.statistics().deleted, core.statistics().lost) == (1, 0)


def test_a_retry_waits_for_the_answer_to_an_extension_which_could_undo_it() -> None:
    core = consumption()
    core.arrived(messages(1), 1, 0)
    lease = begun(core, 0)
    extend = core.examine(10).extend
    core.settle(lease, Settlement(Action.RETRY, 60.0), 10)

    assert core.next_batch() is None
    core.extended(extend, set(), 10, 10)
    assert settle_all(core) == [(Settlement(Action.RETRY, 60.0), [1])]


def test_messages_that_wait_for_long_behind_slow_handlers_go_back_uncounted() -> None:
    core = consumption(concurrency=1)
    core.arrived(messages(0), 1, 0)
    core.settle(begun(core, 0), DELETE, 0.01)  # fast so far
    settle_all(core)
    core.arrived(messages(1, 2, 3), 2, 1)
    begun(core, 1)
    assert core.prefetch == 20

    due = core.examine(11)

    assert [lease.handle for lease in due.extend] == [1]
    assert settle_all(core) == [(GIVE_BACK, [2, 3])]
    assert core.prefetch == 0
    core.check_invariants()


def test_messages_that_the_program_chose_to_hold_are_extended() -> None:
    core = consumption(concurrency=1, prefetch=2)
    core.arrived(messages(1, 2, 3), 1, 0)
    begun(core, 0)

    assert [lease.handle for lease in core.examine(10).extend] == [1, 2, 3]


# ---------------------------------------------------------------------- settle


def test_equal_settlements_share_a_request_of_at_most_256() -> None:
    core = consumption(concurrency=600)
    core.arrived(messages(*range(600)), 1, 0)
    for number in range(600):
        core.settle(begun(core, 0), DELETE if number % 2 else RETRY_AT_ONCE, 0)

    requests = settle_all(core)

    assert [(settlement.action, len(handles)) for settlement, handles in requests] == [
        (Action.DELETE, 256),
        (Action.DELETE, 44),
        (Action.RETRY, 256),
        (Action.RETRY, 44),
    ]
    assert core.is_settled


def test_a_settlement_that_may_have_happened_succeeds_if_its_handle_is_invalid_afterwards() -> None:
    core = consumption()
    core.arrived(messages(1), 1, 0)
    core.settle(begun(core, 0), DELETE, 0)
    batch = core.next_batch()
    assert batch is not None
    assert core.not_answered(batch, 1, may_have_happened=True) == []
    batch = core.next_batch()
    assert batch is not None

    assert core.answered(batch, {1}) == []
    assert core.statistics().deleted == 1


def test_a_settlement_that_may_have_happened_failed_if_its_handle_became_invalid_otherwise() -> None:
    core = consumption()
    core.arrived(messages(1), 1, 0)
    core.settle(begun(core, 0), DELETE, 0)
    batch = core.next_batch()
    assert batch is not None
    assert core.not_answered(batch, 1, may_have_happened=True) == []
    batch = core.next_batch()
    assert batch is not None

    assert [lease.handle for lease in core.answered(batch, {1}, {1})] == [1]
    assert (core.statistics().deleted, core.statistics().lost) == (0, 1)


def test_a_settlement_is_given_up_when_the_lease_has_ended() -> None:
    core = consumption(lease=30)
    core.arrived(messages(1), 1, 0)
    core.settle(begun(core, 0), DELETE, 0)
    batch = core.next_batch()
    assert batch is not None

    (late,) = core.not_answered(batch, 30, may_have_happened=False)

    assert late.lost == "the lease ended before the server could be told"
    assert core.is_settled
    assert core.next_batch() is None


def test_a_late_delete_is_reported() -> None:
    core = consumption()
    core.arrived(messages(1), 1, 0)
    core.settle(begun(core, 0), DELETE, 0)
    batch = core.next_batch()
    assert batch is not None

    assert [lease.handle for lease in core.answered(batch, {1})] == [1]
    assert (core.statistics().deleted, core.statistics().lost) == (0, 1)


def test_a_claimed_message_is_the_programs_until_its_request_fails() -> None:
    core = consumption(lease=30)
    core.arrived(messages(1), 1, 0)
    lease = begun(core, 0)

    assert core.claim(lease)
    assert not core.claim(lease)
    assert core.examine(30).lost == []
    core.unclaim(lease)
    assert core.examine(30).lost == [lease]


# ---------------------------------------------------------------------- stop


def test_a_stop_gives_back_messages_not_begun_and_keeps_the_rest() -> None:
    core = consumption(prefetch=8)
    core.arrived(messages(1, 2, 3), 1, 0)
    lease = begun(core, 0)
    core.stop(0)
    core.arrived(messages(4), 2, 0)  # was on its way

    assert core.receive_size() == 0
    assert core.begin(0) is None
    assert settle_all(core) == [(GIVE_BACK, [2, 3, 4])]
    assert [due.handle for due in core.examine(10).extend] == [1]
    assert not core.is_settled
    core.settle(lease, DELETE, 11)
    assert settle_all(core) == [(DELETE, [1])]
    assert core.is_settled


# ---------------------------------------------------------------------- order


def test_in_order_the_next_messages_are_received_when_none_is_held() -> None:
    core = consumption(ordered=True, prefetch=2)
    assert core.receive_size() == 3
    core.arrived(messages(1, 2), 1, 0)
    for _ in range(2):
        assert core.receive_size() == 0
        core.settle(begun(core, 0), DELETE, 0)
    assert core.receive_size() == 0, "a delete is unanswered"
    settle_all(core)
    assert core.receive_size() == 3


def test_in_order_a_failed_message_comes_back_before_those_behind_it() -> None:
    core = consumption(ordered=True, prefetch=2, lease=30)
    core.arrived(messages(1, 2, 3), 1, 0)
    core.settle(begun(core, 0), Settlement(Action.RETRY, 15.0), 1)

    assert settle_all(core) == [(GIVE_BACK, [2, 3])]
    assert core.receive_size() == 0
    assert core.begin(1) is None
    extend = core.examine(10).extend
    assert [lease.handle for lease in extend] == [1]
    core.extended(extend, set(), 10, 10)
    assert core.examine_at == 16
    core.examine(16)
    assert settle_all(core) == [(RETRY_AT_ONCE, [1])]
    assert core.receive_size() == 3


def test_in_order_a_stop_releases_the_failed_message_at_once() -> None:
    core = consumption(ordered=True)
    core.arrived(messages(1), 1, 0)
    core.settle(begun(core, 0), Settlement(Action.RETRY, 500.0), 1)
    core.stop(2)

    assert core.examine_at == 2
    core.examine(2)
    assert settle_all(core) == [(RETRY_AT_ONCE, [1])]


def test_in_order_a_lost_lease_sends_back_those_behind_it() -> None:
    core = consumption(ordered=True, prefetch=2)
    core.arrived(messages(1, 2, 3), 1, 0)
    begun(core, 0)
    core.extended(core.examine(10).extend, {1}, 10, 10)

    assert core.begin(10) is None
    assert settle_all(core) == [(GIVE_BACK, [2, 3])]


# ---------------------------------------------------------------------- random events


@each_case("limits", [{"concurrency": 3}, {"concurrency": 2, "prefetch": 5}, {"ordered": True}])
@each_case("seed", range(20))
def test_every_message_ends_once_and_none_is_forgotten(limits: dict[str, int | bool], seed: int) -> None:
    """Random events; at the end each message is settled or lost, and the timer was never missing."""
    random = Random(seed)
    core = consumption(lease=30, **limits)
    now, handle = 0.0, 0
    in_hands: list[Lease] = []
    extensions: list[tuple[float, list[Lease]]] = []

    def receive() -> None:
        nonlocal handle
        size = core.receive_size()
        count = random.randint(0, size)
        core.arrived(messages(*range(handle, handle + count)), 1, now)
        handle += count

    def begin() -> None:
        if (lease := core.begin(now)) is not None:
            in_hands.append(lease)

    def finish() -> None:
        if in_hands:
            lease = in_hands.pop(random.randrange(len(in_hands)))
            settlement = random.choice([DELETE, RETRY_AT_ONCE, Settlement(Action.RETRY, 20.0), GIVE_BACK])
            core.settle(lease, settlement, now)

    def claim() -> None:
        if in_hands and core.claim(in_hands[0]):
            end = random.choice([core.unclaim, core.claim_refused, lambda lease: core.claimed(lease, now)])
            end(in_hands[0])

    def answer() -> None:
        if (batch := core.next_batch()) is not None:
            if random.random() < 0.3:
                core.not_answered(batch, now, may_have_happened=random.random() < 0.5)
            else:
                core.answered(batch, {lease.handle for lease in batch.leases if random.random() < 0.2})

    def examine() -> None:
        if extend := core.examine(now).extend:
            extensions.append((now, extend))

    def extend() -> None:
        if extensions:
            asked_at, leases = extensions.pop()
            if random.random() < 0.5:
                core.not_extended(leases, now)
            else:
                core.extended(leases, {lease.handle for lease in leases if random.random() < 0.1}, asked_at, now)

    steps: list[Callable[[], None]] = [receive, begin, begin, finish, finish, claim, answer, answer, examine, extend]
    for _ in range(400):
        random.choice(steps)()
        now += random.choice([0, 0, 1, 7])
        core.check_invariants()
    core.stop(now)
    while not core.is_settled:
        now += 1
        for step in finish, answer, examine, extend:
            step()
            core.check_invariants()

    statistics = core.statistics()
    assert statistics.received == handle > 0
    assert statistics.received == (
        statistics.deleted + statistics.retried + statistics.given_back + statistics.settled_by_caller + statistics.lost
    )
    assert all(lease.state is LeaseState.OVER for lease in in_hands)


# ---------------------------------------------------------------------- without a limit of concurrency


def asked(core: Consumption, now: float) -> int:
    """Let a task of the program ask for a message; return the number of messages received for the task."""
    core.asked(now)
    return core.receive_size()


def take(core: Consumption, now: float) -> Lease:
    """Let the task that asked begin a message."""
    core.asks_no_more()
    return begun(core, now)


def test_a_program_without_a_limit_gets_messages_only_while_it_asks() -> None:
    core = consumption(concurrency=None)

    assert core.receive_size() == 0
    assert asked(core, 0) == 1
    core.arrived(messages(1), 1, 0)
    assert core.receive_size() == 0  # the message is on its way to the task
    take(core, 0)
    assert core.receive_size() == 0
    assert asked(core, 0) == 3  # and two ahead, because the program asks again at once
    core.asks_no_more()
    assert core.receive_size() == 0


def test_a_program_that_takes_messages_at_once_gets_twice_as_many_each_time() -> None:
    core = consumption(concurrency=None)
    sizes: list[int] = []
    handle = 0
    for _ in range(8):
        size = asked(core, 0)
        sizes.append(size)
        core.arrived(messages(*range(handle, handle + size)), 1, 0)
        for number in range(size):
            if number:
                core.asked(0)
            take(core, 0)
        handle += size
        core.check_invariants()

    assert sizes == [1, 3, 7, 15, 31, 63, 127, 255]


def test_a_program_that_takes_its_time_gets_no_stock() -> None:
    core = consumption(concurrency=None)
    asked(core, 0)
    core.arrived(messages(1), 1, 0)
    take(core, 0)

    assert asked(core, 60) == 1  # a message a minute: no message waits here that another consumer could take


def test_a_message_that_a_program_without_a_limit_does_not_take_goes_back() -> None:
    core = consumption(concurrency=None, lease=30.0)
    asked(core, 0)
    core.arrived(messages(1), 1, 0)
    take(core, 0)
    asked(core, 0)
    core.arrived(messages(2, 3), 2, 0)
    take(core, 0)

    due = core.examine(10)

    assert [lease.handle for lease in due.extend] == [1, 2]
    assert settle_all(core) == [(GIVE_BACK, [3])]
    core.check_invariants()


def test_the_number_of_tasks_that_ask_is_received() -> None:
    core = consumption(concurrency=None)
    for _ in range(5):
        core.asked(0)
    assert core.receive_size() == 5


def test_an_ordered_consumer_has_a_limit() -> None:
    with pytest.raises(ValueError, match="concurrency is None"):
        consumption(concurrency=None, ordered=True)


# ---------------------------------------------------------------------- deletes that ride in a receive


def handled(core: Consumption, now: float, *handles: int, is_full: bool = True) -> list[Lease]:
    """Messages of a receive that were handled, and wait for their delete."""
    core.arrived(messages(*handles), 1, now, is_full=is_full)
    leases = [begun(core, now) for _ in handles]
    for lease in leases:
        core.settle(lease, DELETE, now)
    return leases


def test_deletes_ride_after_a_full_receive_only() -> None:
    core = consumption(concurrency=2)
    handled(core, 0, 1, 2, is_full=False)
    assert core.deletes_to_ride() is None
    assert core.has_unsettled

    handled(core, 0, 3, 4)
    batch = core.deletes_to_ride()

    assert batch is not None
    assert [lease.handle for lease in batch.leases] == [1, 2, 3, 4]
    assert not core.has_unsettled
    assert core.answered(batch, set()) == []
    assert core.statistics().deleted == 4
    core.check_invariants()


def test_the_answer_alone_decides_a_delete_that_rides_also_after_the_end_of_its_lease() -> None:
    core = consumption(concurrency=2, lease=1.0)
    _, failed = handled(core, 0, 1, 2)
    riding = core.deletes_to_ride()
    assert riding is not None

    due = core.examine(1.0)

    assert (due.lost, due.extend, core.examine_at) == ([], [], None)
    assert core.next_batch() is None
    assert (core.statistics().deleted, core.statistics().ending) == (0, 2)
    core.check_invariants()
    assert core.answered(riding, {2}) == [failed]
    assert (core.statistics().deleted, core.statistics().lost) == (1, 1)


def test_deletes_of_a_receive_without_an_answer_are_sent_again() -> None:
    core = consumption(concurrency=1)
    handled(core, 0, 1)
    riding = core.deletes_to_ride()
    assert riding is not None

    assert core.not_answered(riding, 0.1, may_have_happened=True) == []

    assert settle_all(core) == [(DELETE, [1])]
    assert core.is_settled


def test_in_order_the_next_message_is_received_with_the_delete_of_the_last() -> None:
    core = consumption(concurrency=1, ordered=True, prefetch=1)
    core.arrived(messages(1, 2), 1, 0, is_full=True)
    core.settle(begun(core, 0), DELETE, 0)
    assert core.receive_size(with_deletes=True) == 0, "a message is held that waits"
    core.settle(begun(core, 0), DELETE, 0)

    assert core.receive_size() == 0
    assert core.receive_size(with_deletes=True) == 2


def test_in_order_a_lost_message_among_the_deletes_does_not_stand_for_a_message_that_is_held() -> None:
    core = consumption(concurrency=1, ordered=True, prefetch=1)
    core.arrived(messages(1, 2), 1, 0, is_full=True)
    core.settle(begun(core, 0), DELETE, 0)
    begun(core, 1)
    assert [lease.handle for lease in core.examine(31).lost] == [2]

    core.arrived(messages(3), 2, 31, is_full=True)

    assert core.receive_size(with_deletes=True) == 0
