"""Counters that never give out a number twice."""

from typing import Any

import pytest

from cmqd.core.facts.numbers import BLOCK, JUMP, Numbers, NumbersUsedUp, WrongShard
from cmqd_segment.records import NumbersReserved, TotalsReset
from support.core.builders import Rig


def test_nothing_is_used_before_it_is_reserved():
    numbers = Numbers()

    record = numbers.reserve(message_ids=1)

    assert record == NumbersReserved(1 + BLOCK, 1 + BLOCK, 1025)


def test_within_a_block_nothing_is_reserved():
    numbers = Numbers()
    numbers.apply(NumbersReserved(100, 100, 100))

    assert numbers.reserve(99, 99, 99) is None
    assert numbers.reserve(100) is not None
    assert numbers.reserve(leases=100) is not None
    assert numbers.reserve(queue_ids=100) is not None


def test_a_reservation_never_goes_back():
    numbers = Numbers()
    numbers.apply(NumbersReserved(100, 100, 100))

    numbers.apply(NumbersReserved(50, 200, 50))

    assert (numbers.message_id_until, numbers.lease_until, numbers.queue_id_until) == (100, 200, 100)


def test_recovery_starts_where_the_blocks_end():
    rig = Rig()
    rig.create()
    (first,) = rig.send(b"1")

    recovered = rig.crash()
    (second,) = recovered.send(b"2")

    assert first < 1 + BLOCK <= second
    assert recovered.broker.facts.numbers.next_lease >= 1 + BLOCK
    recovered.create("other")
    assert recovered.queue("other").queue_id > 1024


def test_numbers_leap_when_part_of_the_log_was_lost():
    rig = Rig()
    rig.create()
    until = rig.broker.facts.numbers.message_id_until

    record, reset = rig.broker.recovered(lost=True)

    assert type(reset) is TotalsReset
    assert record == NumbersReserved(until + JUMP, until + JUMP, 1025 + JUMP, 1 + 1_000_000)
    assert rig.broker.facts.numbers.next_message_id == until + JUMP


def test_a_block_used_up_is_followed_by_another_in_the_same_outcome():
    rig = Rig()
    rig.create()
    numbers = rig.broker.facts.numbers
    numbers.next_message_id = numbers.message_id_until - 1

    rig.send(b"1", b"2")
    assert isinstance(rig.log.rows[-1][0], NumbersReserved)
    numbers.next_lease = numbers.lease_until - 1
    rig.receive()
    assert isinstance(rig.log.rows[-1][0], NumbersReserved)

    assert numbers.next_message_id <= numbers.message_id_until
    assert numbers.next_lease <= numbers.lease_until


SHARD_IDS = 1 << 52


def test_the_ids_of_shard_0_are_the_counter() -> None:
    numbers = Numbers()
    numbers.take_shard(0)

    assert numbers.take_message_ids(3, []) == 1


def test_a_new_log_begins_with_the_ids_of_its_shard_and_goes_on_with_them() -> None:
    numbers = Numbers()
    numbers.take_shard(3)
    records: list[Any] = []

    first = numbers.take_message_ids(1, records)
    recovered = Numbers()
    for record in records:
        recovered.apply(record)
    recovered.take_shard(3)
    recovered.skip_reserved()

    assert first == 3 * SHARD_IDS + 1
    assert recovered.take_message_ids(1, []) == first + BLOCK


@pytest.mark.parametrize(
    ("until", "shard"), [(SHARD_IDS + 1, 0), (3 * SHARD_IDS + 5, 0), (1 + BLOCK, 3), (4 * SHARD_IDS + 5, 3)]
)
def test_a_log_with_the_ids_of_another_shard_is_refused(until: int, shard: int) -> None:
    numbers = Numbers()
    numbers.apply(NumbersReserved(until, 1, 1))

    with pytest.raises(
        WrongShard, match=rf"reach {until - 1}, which is shard {(until - 1) >> 52} .* is shard {shard}:"
    ):
        numbers.take_shard(shard)


@pytest.mark.parametrize("shard", [0, 3, 4095])
def test_leases_have_the_shard_in_their_upper_12_bits(shard: int) -> None:
    numbers = Numbers()
    numbers.take_shard(shard)
    records: list[Any] = []

    numbers.ensure(records, leases=1)
    recovered = Numbers()
    for record in records:
        recovered.apply(record)
    recovered.take_shard(shard)
    recovered.skip_reserved()

    assert numbers.next_lease == shard * SHARD_IDS + 1
    assert recovered.next_lease == numbers.next_lease + BLOCK


@pytest.mark.parametrize("lost", [False, True])
def test_a_log_from_before_leases_had_a_shard_goes_on_with_the_leases_of_its_shard(lost: bool) -> None:
    numbers = Numbers()
    numbers.apply(NumbersReserved(5 * SHARD_IDS + BLOCK, 7 * BLOCK, 100))
    numbers.take_shard(5)
    first = 5 * SHARD_IDS + 1
    if lost:
        numbers.apply(numbers.jump())
        first += JUMP
    numbers.skip_reserved()

    assert numbers.next_lease == first
    record = numbers.reserve(leases=1)
    assert record is not None
    assert record.lease_until == first + BLOCK


def test_leases_of_shard_0_go_on_with_their_counter() -> None:
    numbers = Numbers()
    numbers.apply(NumbersReserved(BLOCK, 7 * BLOCK, 100))
    numbers.take_shard(0)
    numbers.skip_reserved()

    assert numbers.next_lease == 7 * BLOCK


@pytest.mark.parametrize("shard", [0, 3])
def test_the_broker_ends_before_a_lease_reaches_the_bits_of_the_shard(shard: int) -> None:
    end = (shard + 1) * SHARD_IDS
    numbers = Numbers()
    numbers.apply(NumbersReserved(shard * SHARD_IDS + 100, end - BLOCK, 1))
    numbers.skip_reserved()

    numbers.ensure([], leases=2)
    numbers.next_lease = numbers.lease_until
    with pytest.raises(NumbersUsedUp, match=f"leases are used up: .* is not a lease of shard {shard};"):
        numbers.ensure([], leases=1)
    assert numbers.lease_until == end


@pytest.mark.parametrize("shard", [0, 3])
def test_the_broker_ends_before_its_counter_reaches_the_bits_of_the_shard(shard: int) -> None:
    end = (shard + 1) * SHARD_IDS
    numbers = Numbers()
    numbers.apply(NumbersReserved(end - BLOCK, 1, 1))
    numbers.skip_reserved()

    assert numbers.take_message_ids(2, []) == end - BLOCK
    numbers.next_message_id = numbers.message_id_until
    with pytest.raises(NumbersUsedUp, match=f"is not a message id of shard {shard};"):
        numbers.take_message_ids(1, [])
    with pytest.raises(NumbersUsedUp):
        numbers.jump()
    assert numbers.message_id_until == end
