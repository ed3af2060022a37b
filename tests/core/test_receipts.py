"""Receipt handles: a permutation of the 64-bit integers that only its key can read."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmqd.core.receipts import HandleKey, ReceiptHandles
from support.core_builders import KEY

words = st.integers(0, 2**64 - 1)
keys = st.tuples(words, words, words, words)


@settings(derandomize=True, database=None)
@given(key=keys, lease=words)
def test_each_handle_leads_back_to_its_lease(key: HandleKey, lease: int):
    handles = ReceiptHandles(key)

    handle = handles.handle(lease)

    assert 0 <= handle < 2**64
    assert handles.lease(handle) == lease


@settings(derandomize=True, database=None)
@given(key=keys, handle=words)
def test_each_64_bit_integer_is_the_handle_of_some_lease(key: HandleKey, handle: int):
    handles = ReceiptHandles(key)

    assert handles.handle(handles.lease(handle)) == handle


@pytest.mark.parametrize("first", [1, 2**32 - 3, 2**63])
def test_handles_of_a_batch_are_those_of_its_leases(first: int):
    handles = ReceiptHandles(KEY)

    assert handles.handles(first, 10) == [handles.handle(lease) for lease in range(first, first + 10)]


def test_handles_do_not_tell_how_many_receives_there_were():
    made = ReceiptHandles(KEY).handles(1, 1000)

    assert len(set(made)) == 1000
    assert all(abs(one - other) > 2**32 for one, other in pairwise(made))


def test_a_handle_of_one_broker_means_nothing_to_another():
    handle = ReceiptHandles(KEY).handle(5)

    assert ReceiptHandles((5, 6, 7, 8)).lease(handle) != 5
