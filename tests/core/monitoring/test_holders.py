"""The messages of a stretch of the log that are needed, by queue and topic."""

from collections.abc import Generator, Sequence

from cmqd.core.operations.monitoring.segment_holders import COUNTED_A_STEP, MAX_HOLDERS, STRETCH, Held
from cmqd_types.segments import SegmentHolder
from support.core.builders import ACCOUNT, Rig

Ranges = Sequence[tuple[int, int, int]]


def held(rig: Rig, ranges: Ranges, since_step: int = 0) -> tuple[Held, int]:
    """Count, and return the number of steps too."""
    steps: Generator[None, None, Held] = rig.broker.holders_of(ranges, since_step)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def holder(name: str, live: int, rewindable: int = 0, *, is_topic: bool = False) -> SegmentHolder:
    return SegmentHolder(ACCOUNT, name, is_topic, live, rewindable)


def test_every_state_counts_but_consumed_messages():
    rig = Rig()
    orders = rig.create("orders", rewind_ms=60_000)
    rig.send(b"1", b"2", b"3", b"4", name="orders")
    rig.delete(*rig.handles(most=1, name="orders"), name="orders")
    rig.handles(most=1, name="orders")
    late = rig.create("late")
    rig.send(b"5", name="late", delay_ms=50_000)
    pay = rig.create("pay", transactional=True)
    rig.send_half(b"6", name="pay")
    plain = rig.create("plain")
    rig.send(b"7", b"8", name="plain")
    rig.delete(*rig.handles(most=1, name="plain"), name="plain")
    everything = [(queue.queue_id, 0, 100) for queue in (orders, late, pay, plain)]

    found, _ = held(rig, everything)

    assert (found.live, found.rewindable, found.undelivered) == (3 + 1 + 1 + 1, 1, 0)
    assert found.largest == [holder("orders", 3, 1), holder("late", 1), holder("pay", 1), holder("plain", 1)]
    assert (found.holders, found.examined) == (4, 4)


def test_only_the_positions_of_the_stretch_count():
    rig = Rig()
    queue = rig.create("orders")
    rig.send(*[b"x"] * 10, name="orders")
    rig.delete(*rig.handles(most=4, name="orders"), name="orders")

    assert held(rig, [(queue.queue_id, 0, 4)])[0].holders == 0
    assert held(rig, [(queue.queue_id, 2, 7)])[0].largest == [holder("orders", 3)]


def test_deliveries_of_a_topic_count_once_for_each_subscription():
    rig = Rig()
    rig.create("copies")
    topic = rig.create_topic("news")
    rig.subscribe("https://a.example/", name="web")
    rig.subscribe("https://b.example/", name="slow")
    rig.subscribe("copies", name="queue", protocol="queue")
    rig.publish(b"1", b"2")
    copies = rig.queue("copies").queue_id

    found, _ = held(rig, [(topic.topic_id, 0, 2), (copies, 0, 2)])

    assert (found.live, found.undelivered) == (2, 4)
    assert found.largest == [holder("news", 4, is_topic=True), holder("copies", 2)]
    assert found.examined == 3 + 1


def test_the_counts_are_those_by_which_segments_are_reclaimed():
    rig = Rig()
    topic = rig.create_topic("news")
    rig.subscribe("https://a.example/", name="web")
    ids = [topic.topic_id]
    for number in range(4):
        name = f"q{number}"
        ids.append(rig.create(name, rewind_ms=60_000 * (number % 2)).queue_id)
        rig.send(*[b"x"] * 8, name=name)
        rig.delete(*rig.handles(most=2 * number + 1, name=name), name=name)
        rig.publish(b"x")

    for first, stop in ((0, 3), (2, 5), (4, 100)):
        ranges = [(number, first, stop) for number in ids]
        found, _ = held(rig, ranges)
        assert found.live + found.rewindable + found.undelivered == sum(rig.broker.live_in(*one) for one in ranges)
        assert found.holders == sum(rig.broker.live_in(*one) > 0 for one in ranges)


def test_deleted_queues_and_unknown_ids_need_nothing():
    rig = Rig()
    queue = rig.create("orders")
    rig.send(b"1", name="orders")
    rig.delete_queue("orders")

    assert held(rig, [(queue.queue_id, 0, 1), (99, 0, 1)])[0][:5] == (0, 0, 0, [], 0)


def test_the_largest_are_named_and_equal_queues_keep_their_order():
    rig = Rig()
    ranges: list[tuple[int, int, int]] = []
    for number in range(MAX_HOLDERS + 4):
        queue = rig.create(f"q{number}")
        rig.send(*[b"x"] * (3 if number == 7 else 1), name=f"q{number}")
        ranges.append((queue.queue_id, 0, 10))

    found, _ = held(rig, ranges)

    assert [one.name for one in found.largest] == ["q7", "q0", "q1", "q2", "q3"]
    assert (found.holders, found.live) == (MAX_HOLDERS + 4, MAX_HOLDERS + 6)


def test_the_largest_of_all_steps_are_named():
    rig = Rig()
    ranges: list[tuple[int, int, int]] = []
    for number in range(2 * COUNTED_A_STEP):
        queue = rig.create(f"q{number:04}")
        rig.send(*[b"x"] * (2 if number % 400 == 7 else 1), name=f"q{number:04}")
        ranges.append((queue.queue_id, 0, 10))

    found, steps = held(rig, ranges)

    assert [one.name for one in found.largest] == ["q0007", "q0407", "q0807", "q0000", "q0001"]
    assert (found.holders, steps) == (2 * COUNTED_A_STEP, 2)


def test_a_step_ends_by_queues_subscriptions_and_stretches():
    rig = Rig()
    topic = rig.create_topic("news")
    for number in range(100):
        rig.subscribe("https://a.example/", name=f"sub{number}")
    news = (topic.topic_id, 0, 1)

    # Each subscription counts: five times a topic with a hundred of them is a step, and the stretch itself counts too.
    assert held(rig, [news] * 4)[1] == 0
    assert held(rig, [news] * 5)[1] == 1
    # What was counted since the last step goes on in the next stretch.
    found, steps = held(rig, [news] * 2)
    assert (steps, found.since_step) == (0, 200 + STRETCH)
    assert held(rig, [news] * 3, found.since_step)[1] == 1
    # A log of very many segments without messages is divided too.
    since_step, steps = 0, 0
    for _ in range(COUNTED_A_STEP // STRETCH + 1):
        found, more = held(rig, [(99, 0, 1)], since_step)
        since_step, steps = found.since_step, steps + more
    assert steps == 1


def test_stretches_without_messages_are_counted_in_steps_too():
    rig = Rig()
    steps = since_step = 0
    for _ in range(2 * COUNTED_A_STEP // STRETCH):
        found, taken = held(rig, [], since_step)
        since_step = found.since_step
        steps += taken

    assert steps == 2
