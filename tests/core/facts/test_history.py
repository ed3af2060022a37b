"""Numbers of receives of messages that came back: small dicts and dense arrays must agree."""

import pytest

from cmqd_fold.receive_history import CHUNK, MAX_COUNT, ReceiveHistory
from support.core.builders import START_MS


def history_of(positions: range) -> ReceiveHistory:
    history = ReceiveHistory()
    for position in positions:
        history.set(position, position % 7 + 1, START_MS + position)
    return history


def test_a_message_never_received_has_no_history():
    history = ReceiveHistory()

    assert history.get(5) == (0, 0)
    assert not history.chunks


@pytest.mark.parametrize("count", [1, 63, 64, 65, CHUNK, 3 * CHUNK])
def test_few_and_many_are_remembered_alike(count: int):
    history = history_of(range(10, 10 + count))

    assert all(history.get(position) == (position % 7 + 1, START_MS + position) for position in range(10, 10 + count))
    assert history.get(9) == (0, 0)
    assert history.get(10 + count) == (0, 0)


def test_a_later_entry_replaces_an_earlier_one():
    history = history_of(range(100))

    history.set(3, 9, START_MS)

    assert history.get(3) == (9, START_MS)


def test_the_count_stays_at_its_highest():
    history = ReceiveHistory()

    history.set(1, MAX_COUNT + 1, START_MS)

    assert history.get(1) == (MAX_COUNT, START_MS)


@pytest.mark.parametrize("count", [10, 1000])
@pytest.mark.parametrize("step", [1, -1])
def test_memory_goes_with_the_last_message_in_whatever_order_they_go(count: int, step: int):
    history = history_of(range(count))

    for position in range(count)[::step]:
        history.discard(position)

    assert not history.chunks


def test_memory_goes_after_entries_were_replaced_and_discarded_twice():
    history = history_of(range(200))
    for position in range(200):
        history.set(position, 3, START_MS)
        history.discard(position)
        history.discard(position)

    assert not history.chunks
    assert history.get(7) == (0, 0)


def test_discarding_what_was_never_there_changes_nothing():
    history = history_of(range(10))

    history.discard(500)
    history.discard(5000)

    assert history.get(9) == (3, START_MS + 9)


@pytest.mark.parametrize("count", [40, 1000, 5000])
def test_a_floor_forgets_what_is_below_and_nothing_else(count: int):
    history = history_of(range(count))

    history.drop_below(count - 10)

    assert [position for position in range(count) if history.get(position)[0]] == list(range(count - 10, count))


def test_a_floor_over_everything_leaves_nothing():
    history = history_of(range(3000))

    history.drop_below(2 * CHUNK)
    history.drop_below(3000)
    history.drop_below(4000)

    assert not history.chunks


def test_a_floor_in_a_chunk_without_history_forgets_the_chunks_below():
    history = history_of(range(5))
    history.set(10 * CHUNK, 1, START_MS)

    history.drop_below(3 * CHUNK + 7)

    assert history.get(4) == (0, 0)
    assert history.get(10 * CHUNK) == (1, START_MS)


@pytest.mark.parametrize("count", [1, 40, 200, 2500])
def test_a_checkpoint_restores_it(count: int):
    history = history_of(range(7, 7 + count))
    restored = ReceiveHistory()

    for first_position, content in history.entries():
        restored.load(first_position, content)

    assert [restored.get(position) for position in range(count + 10)] == [
        history.get(position) for position in range(count + 10)
    ]
    for position in range(7, 7 + count):
        restored.discard(position)
    assert not restored.chunks


def test_ten_million_messages_that_came_back_cost_eight_bytes_each():
    history = history_of(range(20 * CHUNK))

    assert sum(len(content) for _, content in history.entries()) == 20 * CHUNK * 8


def test_what_was_received_often_is_found_in_chunks_of_every_kind():
    history = ReceiveHistory()
    for position in range(5):
        history.set(position, position, 1000)
    for position in range(CHUNK, 2 * CHUNK):
        history.set(position, 3, 1000)
    for position in range(2 * CHUNK, 2 * CHUNK + 500):
        history.set(position, 2 + position % 2, 1000)
    for position in range(3 * CHUNK, 3 * CHUNK + 500):
        history.set(position, 2, 1000)

    found = history.at_least(3)

    assert sorted(found) == [3, 4, *range(CHUNK, 2 * CHUNK), *range(2 * CHUNK + 1, 2 * CHUNK + 500, 2)]
