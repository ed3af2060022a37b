"""Sums of counted totals by account."""

from cmqd.core.runtime.counted_totals import CountedTotals
from cmqd_types.totals import QueueTotals, TopicTotals


def test_the_sums_of_an_account_end_with_its_last_queue_and_topic() -> None:
    counted = CountedTotals()
    counted.count(1, "shop", QueueTotals(sent=1))
    counted.count(1, "shop", QueueTotals(sent=5))
    counted.count(2, "shop", TopicTotals())
    counted.count(3, "bank", QueueTotals(sent=7))

    counted.forget(1)
    counted.forget(1)
    sums = counted.sums("shop")
    assert sums is not None
    assert sums.queues.sent == 0
    counted.forget(2)

    assert counted.accounts() == {"bank"}
    assert counted.sums("shop") is None
    counted.count(4, "shop", QueueTotals(sent=2))
    sums = counted.sums("shop")
    assert sums is not None
    assert sums.queues.sent == 2
