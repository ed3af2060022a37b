"""Changes of closed segments between two checkpoints, of a broker of the core over segments that the test names."""

import asyncio
from typing import Any

import pytest

from cmqd.log.values import SegmentReport, pack_ranges
from cmqd.server.log_upkeep.segment_changes import CHUNK_QUEUES, PAUSE_S, SLICE_S, SegmentChanges
from support.core.builders import Rig


class Segments:
    """Stands in for the log: closed segments, and the changes that it was told of."""

    def __init__(self) -> None:
        self.closed: list[SegmentReport] = []
        self.changed: list[int] = []
        self.unwanted: list[int] = []

    def closed_segments(self) -> list[SegmentReport]:
        return list(self.closed)

    def tell_changes(self, changed: list[int], unwanted: list[int]) -> None:
        self.changed, self.unwanted = changed, unwanted

    def close(self, *queues: tuple[int, int, int]) -> None:
        """Close a segment with messages (queue or topic id, first position, stop position)."""
        number = len(self.closed) + 1
        self.closed.append(SegmentReport(number, number, number, 0, 0, 0, 0, True, pack_ranges(queues)))


class Scene:
    """A broker with a queue of ten messages, five in each of two segments."""

    def __init__(self, **attributes: int) -> None:
        self.core = Rig()
        self.core.create("q", **attributes)
        self.core.send(*[b"x"] * 10)
        self.q = self.core.queue("q").queue_id
        self.log = Segments()
        self.log.close((self.q, 0, 5))
        self.log.close((self.q, 5, 10))
        self.counted: list[tuple[int, int, int]] = []
        self.kept: set[int] = set()
        self.changes = self.count_anew()

    def count_anew(self, **parts: Any) -> SegmentChanges:
        broker = self.core.broker

        def there_in(queue_id: int, first: int, stop: int) -> int:
            self.counted.append((queue_id, first, stop))
            return broker.there_in(queue_id, first, stop)

        log: Any = self.log
        given: dict[str, Any] = {"timer": lambda: 0.0, **parts}
        return SegmentChanges(
            log=log,
            live_in=broker.live_in,
            there_in=there_in,
            moves_of=broker.moves_of,
            is_kept=lambda segment: segment.number in self.kept,
            **given,
        )

    async def told(self) -> list[int]:
        """The changed segments."""
        await self.changes.tell()
        return self.log.changed


async def test_a_message_that_leaves_changes_its_segment_alone_and_once() -> None:
    scene = Scene()
    assert await scene.told() == []

    scene.core.delete(*scene.core.handles(most=2))

    assert await scene.told() == [1]
    assert await scene.told() == []


async def test_a_segment_that_closes_during_the_count_may_have_changed() -> None:
    scene = Scene()

    async def close_third(_: float) -> None:
        if len(scene.log.closed) == 2:
            scene.log.close((scene.q, 10, 11))

    scene.changes = scene.count_anew(timer=iter(range(100)).__next__, sleep=close_third)

    assert await scene.told() == [3]
    assert await scene.told() == []


async def test_messages_that_left_before_their_segment_closed_change_it() -> None:
    scene = Scene()
    scene.core.delete(*scene.core.handles(most=2))

    assert await scene.told() == [1]


async def test_a_delete_and_a_rewind_in_between_leave_the_counts_and_are_a_change() -> None:
    scene = Scene(rewind_ms=60_000)
    await scene.told()
    scene.core.delete(*scene.core.handles(most=2))
    before = scene.core.now_ms
    assert scene.core.rewind(before - 30_000).messages == 2

    assert scene.core.broker.there_in(scene.q, 0, 10) == 10
    assert 1 in await scene.told()


async def test_a_delete_of_a_rewindable_message_is_a_change_although_the_message_stays_wanted() -> None:
    scene = Scene(rewind_ms=60_000)
    await scene.told()
    scene.core.delete(*scene.core.handles(most=2))

    assert scene.core.broker.live_in(scene.q, 0, 5) == 5
    assert await scene.told() == [1]


async def test_a_rewind_of_one_queue_does_not_make_up_for_a_deleted_queue() -> None:
    """Numbers are compared by queue: in a sum over the queues the two would cancel out."""
    scene = Scene(rewind_ms=60_000)
    core = scene.core
    core.create("other", rewind_ms=60_000)
    core.send(b"y", b"y", name="other")
    other = core.queue("other").queue_id
    scene.log.close((scene.q, 9, 10), (other, 0, 2))
    for name in ("q", "other"):
        core.delete(*core.handles(name, most=2), name=name)
        core.rewind(core.now_ms - 30_000, name=name)
    core.delete(*core.handles("other", most=2), name="other")
    await scene.told()

    core.delete_queue("other")
    core.delete(*core.handles(most=2))
    core.rewind(core.now_ms - 30_000)

    assert await scene.told() == [1, 2, 3]


async def test_the_deletion_of_a_queue_changes_the_segments_with_its_messages_once() -> None:
    scene = Scene()
    await scene.told()
    scene.core.delete_queue("q")

    assert await scene.told() == [1, 2]
    assert scene.log.unwanted == [1, 2]
    assert await scene.told() == []


async def test_a_queue_without_a_move_is_passed_over() -> None:
    scene = Scene()
    scene.core.create("other")
    scene.core.send(b"y", name="other")
    other = scene.core.queue("other").queue_id
    scene.log.close((other, 0, 1))
    await scene.told()
    scene.counted.clear()
    scene.core.delete(*scene.core.handles("other", most=1), name="other")

    assert await scene.told() == [3]
    assert scene.counted == [(other, 0, 1)]
    scene.counted.clear()
    assert await scene.told() == []
    assert scene.counted == []


async def test_messages_of_a_topic_do_not_leave_it() -> None:
    scene = Scene()
    topic = scene.core.create_topic()
    scene.core.subscribe("http://127.0.0.1/hook")
    scene.core.publish(b"p")
    scene.core.settle()
    scene.core.answer_reads()
    scene.log.close((topic.topic_id, 0, 1))

    assert await scene.told() == []
    assert scene.log.unwanted == []
    scene.core.end_push(scene.core.pushes[0])
    assert await scene.told() == []
    assert scene.log.unwanted == [3]


async def test_a_segment_without_a_wanted_message_is_unwanted_unless_it_is_kept() -> None:
    scene = Scene()
    await scene.told()
    for _ in range(2):
        scene.core.delete(*scene.core.handles(most=5))
    scene.kept = {2}

    assert await scene.told() == [1, 2]
    assert scene.log.unwanted == [1]


@pytest.mark.parametrize("pauses", range(3))
async def test_a_message_that_leaves_during_the_count_is_told_at_the_latest_with_the_next_checkpoint(
    pauses: int,
) -> None:
    scene = Scene()
    (handle,) = scene.core.handles(most=1)
    left = pauses

    async def sleep(_seconds: float) -> None:
        nonlocal left
        if left == 0:
            assert scene.core.delete(handle) == []
        left -= 1

    await scene.told()
    # Each look at the clock ends a slice, so that each step is followed by a pause.
    ticks = iter(range(1_000))
    scene.changes.timer, scene.changes.sleep = lambda: float(next(ticks)), sleep

    found = [*await scene.told(), *await scene.told()]

    assert left < 0
    assert set(found) == {1}
    assert await scene.told() == []


async def test_the_work_is_done_in_slices() -> None:
    scene = Scene()
    slept: list[float] = []
    now = 0.0
    ids = list(range(1_000, 1_000 + 2 * CHUNK_QUEUES))
    scene.log.close(*((number, 0, 1) for number in ids))

    def timer() -> float:
        nonlocal now
        now += SLICE_S / 100
        return now

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    scene.changes = scene.count_anew(timer=timer, sleep=sleep)

    await scene.told()

    assert set(slept) == {PAUSE_S}
    assert len(slept) >= len(ids) // 100


@pytest.mark.parametrize("count", [CHUNK_QUEUES - 1, CHUNK_QUEUES, CHUNK_QUEUES + 1])
async def test_the_last_queue_of_a_large_segment_is_compared(count: int) -> None:
    scene = Scene()
    scene.log.close(*((1_000_000 + number, 0, 1) for number in range(count)), (scene.q, 9, 10))
    await scene.told()
    for _ in range(2):
        scene.core.delete(*scene.core.handles(most=5))

    assert await scene.told() == [1, 2, 3]
