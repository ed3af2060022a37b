"""Counters that never give out a number twice."""

from cmqd.core.facts.numbers import BLOCK, JUMP, Numbers
from cmqd_segment.records import NumbersReserved, TotalsReset
from support.core_builders import Rig


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
    assert record == NumbersReserved(until + JUMP, until + JUMP, 1025 + JUMP)
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
