"""Previews of rewinds: the count, the times allowed, and the refusals of the rewind that would follow."""

import random

import pytest

from cmqd.core.domain_errors import QueueDeleted, QueueNotFound, TimeNotRewindable
from cmqd.core.outcome import WAITING
from cmqd_types.queues import RewindPreview
from support.cases import each_case
from support.core.builders import ACCOUNT, START_MS, Rig
from support.core.facts import facts
from support.core.rewinds import HOUR_MS, consume, rewindable

AHEAD_MS = 3
"""Of a later message in the same time step as the message that is searched."""


def test_a_preview_counts_the_messages_that_would_come_back_and_tells_the_times_allowed():
    rig = rewindable(b"1", b"2", b"3", gap_ms=1000, rewind_ms=60_000)

    preview = rig.preview_rewind(START_MS + 1000)

    assert preview == RewindPreview(
        messages=2,
        time_ms=START_MS + 1000,
        clamped=False,
        earliest_ms=rig.now_ms - 60_000,
        latest_ms=rig.now_ms,
        oldest_ms=START_MS,
    )


def test_without_a_time_the_whole_window_is_counted():
    rig = rewindable(b"1", b"2", b"3", gap_ms=1000, rewind_ms=60_000)
    rig.now_ms = START_MS + 60_001

    preview = rig.preview_rewind()

    assert (preview.messages, preview.time_ms, preview.clamped) == (2, START_MS + 1, False)
    assert preview.oldest_ms is not None
    assert preview.oldest_ms >= preview.earliest_ms


def test_an_earlier_time_is_clamped_as_by_the_rewind():
    rig = rewindable(b"1", b"2", gap_ms=1000, rewind_ms=60_000)
    rig.now_ms = START_MS + 60_001

    preview = rig.preview_rewind(START_MS)

    assert (preview.messages, preview.time_ms, preview.clamped) == (1, START_MS + 1, True)
    rewound = rig.rewind(START_MS)
    assert (rewound.messages, rewound.time_ms, rewound.clamped) == (1, START_MS + 1, True)


def test_without_a_message_that_can_come_back_there_is_no_oldest():
    rig = Rig()
    rig.create(rewind_ms=HOUR_MS)

    preview = rig.preview_rewind()

    assert (preview.messages, preview.oldest_ms, preview.latest_ms) == (0, None, rig.now_ms)


@pytest.mark.parametrize("crashed", [False, True])
def test_a_preview_changes_no_fact_and_reads_the_boundary_to_the_millisecond(crashed: bool):
    rig = rewindable(*[b"%d" % number for number in range(40)])
    if crashed:
        rig = rig.crash()
    before = facts(rig.broker)

    for first in range(40):
        assert rig.preview_rewind(START_MS + first).messages == 40 - first

    assert facts(rig.broker) == before
    assert rig.receive() == []
    assert rig.rewind(START_MS + 17).messages == 23


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("state", ["active", "in flight"])
def test_the_latest_time_is_the_send_of_the_oldest_unconsumed_message_to_the_millisecond(state: str, crashed: bool):
    rig = rewindable(b"1", b"2", gap_ms=2)
    rig.send(b"oldest")
    oldest_ms = rig.now_ms
    rig.now_ms += AHEAD_MS
    rig.send(b"of the same step")
    if state == "in flight":
        rig.receive()
    if crashed:
        rig = rig.crash()

    assert rig.preview_rewind().latest_ms == oldest_ms
    assert rig.preview_rewind(oldest_ms) == RewindPreview(
        messages=0,
        time_ms=oldest_ms,
        clamped=False,
        earliest_ms=rig.now_ms - HOUR_MS,
        latest_ms=oldest_ms,
        oldest_ms=START_MS,
    )
    with pytest.raises(TimeNotRewindable) as refused:
        rig.preview_rewind(oldest_ms + 1)
    with pytest.raises(TimeNotRewindable) as also_refused:
        rig.rewind(oldest_ms + 1)
    assert str(refused.value) == str(also_refused.value)
    assert refused.value.details == also_refused.value.details


def test_with_an_unconsumed_message_from_before_the_window_its_start_can_be_previewed():
    rig = Rig()
    rig.create(rewind_ms=10_000)
    rig.send(b"left")
    rig.now_ms += 20_000
    rig.send(b"1")
    for message in rig.receive(most=2, visibility_timeout_ms=43_200_000)[1:]:
        rig.delete(message.receipt_handle)
    rig = rig.crash()

    preview = rig.preview_rewind()

    assert (preview.messages, preview.time_ms) == (1, rig.now_ms - 10_000)
    assert preview.latest_ms == preview.earliest_ms == rig.now_ms - 10_000


def test_an_oldest_message_that_cannot_be_read_is_taken_as_late_as_it_may_be():
    rig = rewindable(b"1", b"2")
    rig.send(b"oldest")
    rig.log.damaged.add((rig.queue().queue_id, 2))
    rig = rig.crash()

    preview = rig.preview_rewind(START_MS + 1)

    assert (preview.messages, preview.latest_ms) == (1, START_MS + 2)
    assert rig.counts()["damaged"] == 0, "only the time was needed"


def test_a_queue_without_a_window_is_refused_like_its_rewind():
    rig = Rig()
    rig.create()

    with pytest.raises(TimeNotRewindable, match="it has no rewind window; set its attribute rewind_ms first"):
        rig.preview_rewind()
    with pytest.raises(QueueNotFound):
        rig.preview_rewind(name="other")


def test_a_preview_is_no_use_of_the_queue():
    rig = rewindable(b"1", b"2")
    used_ms = rig.runtime().used_ms
    rig.now_ms += 5000

    rig.preview_rewind()

    assert rig.runtime().used_ms == used_ms


def waiting_preview(rig: Rig, time_ms: int) -> None:
    assert rig.done(rig.broker.preview_rewind(ACCOUNT, "q", 77, time_ms, rig.now_ms)) is WAITING


def test_deletes_that_come_while_a_preview_reads_the_log_count():
    rig = rewindable(b"1", b"2", b"3").crash()
    for body in (b"4", b"5"):
        rig.send(body)
    waiting_preview(rig, START_MS + 1)
    consume(rig, 2)

    rig.answer_reads()

    [preview] = rig.replies(77)
    assert preview.messages == 4


def test_a_window_removed_while_a_preview_reads_the_log_ends_it():
    rig = rewindable(b"1", b"2", b"3").crash()
    waiting_preview(rig, START_MS + 1)
    rig.set(rewind_ms=0)

    rig.answer_reads()

    [error] = rig.replies(77)
    assert isinstance(error, TimeNotRewindable)


def test_a_queue_deleted_while_a_preview_reads_the_log_ends_it():
    rig = rewindable(b"1", b"2", b"3").crash()
    waiting_preview(rig, START_MS + 1)
    rig.delete_queue()

    rig.answer_reads()

    [error] = rig.replies(77)
    assert isinstance(error, QueueDeleted)


def test_a_cancelled_preview_leaves_nothing_under_way():
    rig = rewindable(b"1", b"2", b"3").crash()
    waiting_preview(rig, START_MS + 1)

    rig.broker.cancel_receive(77)

    assert rig.broker.runtime.pages.under_way == {}


@each_case("seed", range(40))
def test_a_rewind_brings_back_the_messages_that_its_preview_counted(seed: int):
    chance = random.Random(seed)
    rig = Rig()
    rig.create(rewind_ms=20_000)
    for _ in range(chance.randrange(20, 80)):
        rig.send(b"x")
        rig.settle(chance.choice([0, 1, 30, 400, 2000]))
        if chance.random() < 0.6:
            rig.delete(*rig.handles(most=chance.randrange(1, 4)))
        if chance.random() < 0.05:
            rig = rig.crash()
    time_ms = rig.now_ms - chance.randrange(25_000)
    if time_ms > rig.preview_rewind().latest_ms:
        with pytest.raises(TimeNotRewindable) as refused:
            rig.preview_rewind(time_ms)
        with pytest.raises(TimeNotRewindable) as also_refused:
            rig.rewind(time_ms)
        assert also_refused.value.details["value"] == refused.value.details["value"]
        return
    preview = rig.preview_rewind(time_ms)
    assert preview.earliest_ms <= preview.time_ms <= preview.latest_ms

    rewound = rig.rewind(time_ms)

    assert (rewound.messages, rewound.time_ms, rewound.clamped) == (preview.messages, preview.time_ms, preview.clamped)
