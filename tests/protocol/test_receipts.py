"""Receipt handles: a permutation of the 64-bit integers that only its key can read."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmqd_fold.receipts import HandleKey, ReceiptHandles
from support.core.builders import KEY

words = st.integers(0, 2**64 - 1)
keys = st.tuples(words, words, words, words)
quick = settings(derandomize=True, database=None)


@quick
@given(key=keys, lease=words)
def test_each_handle_leads_back_to_its_lease(key: HandleKey, lease: int):
    (handle,) = ReceiptHandles(key).handles(lease, 1)

    assert 0 <= handle < 2**64
    assert ReceiptHandles(key).leases([handle]) == [lease]


@quick
@given(key=keys, handle=words)
def test_each_64_bit_integer_is_the_handle_of_some_lease(key: HandleKey, handle: int):
    (lease,) = ReceiptHandles(key).leases([handle])

    assert 0 <= lease < 2**64
    assert ReceiptHandles(key).handles(lease, 1) == [handle]


@quick
@given(key=keys, leases=st.lists(st.integers(0, 2000) | words, max_size=20))
def test_what_was_asked_before_makes_no_difference(key: HandleKey, leases: list[int]):
    handles = ReceiptHandles(key)

    made = [handle for lease in leases for handle in handles.handles(lease, 1)]

    assert made == [handle for lease in leases for handle in ReceiptHandles(key).handles(lease, 1)]
    assert handles.leases(made) == leases


@pytest.mark.parametrize("first", [1, 200, 255, 256, 2**32 - 3, 2**63])
def test_handles_of_a_batch_are_those_of_its_leases(first: int):
    one_by_one = [ReceiptHandles(KEY).handles(lease, 1)[0] for lease in range(first, first + 300)]

    assert ReceiptHandles(KEY).handles(first, 300) == one_by_one
    assert len(set(one_by_one)) == 300


@pytest.mark.parametrize("handle", [-1, 2**64, 2**80, -(2**70)])
def test_what_is_no_64_bit_integer_stands_for_no_lease(handle: int):
    assert ReceiptHandles(KEY).leases([handle]) == [-1]


def test_handles_do_not_tell_how_many_receives_there_were():
    made = ReceiptHandles(KEY).handles(1, 256 * 100)[::256]

    assert made != sorted(made)
    assert all(abs(one - other) > 2**32 for one, other in pairwise(made))


def test_a_handle_of_one_broker_means_nothing_to_another():
    made = ReceiptHandles(KEY).handles(1, 1000)

    assert not set(ReceiptHandles((5, 6, 7, 8)).leases(made)) & set(range(1, 1001))


def test_a_single_handle_is_made_and_read_as_one_of_many():
    handles = ReceiptHandles(KEY)

    assert handles.handle(300) == handles.handles(299, 2)[1]
    assert handles.lease(handles.handle(300)) == 300
