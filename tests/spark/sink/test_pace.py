"""The rate of the sink, without bursts. No Spark, and no clock."""

import random

from cmqd_log.copy.pace import Pace


def test_messages_go_at_the_rate():
    pace = Pace(100)

    waits = [round(pace.wait_seconds(10, 5.0), 6) for _ in range(4)]

    assert waits == [0.0, 0.1, 0.2, 0.3]


def test_time_that_passed_is_not_made_up_for():
    pace = Pace(100)
    pace.wait_seconds(10, 0.0)

    assert pace.wait_seconds(10, 60.0) == 0.0
    assert round(pace.wait_seconds(10, 60.0), 6) == 0.1


def test_requests_are_a_tenth_of_a_second_or_one_message():
    assert Pace(5000).most_at_once == 500
    assert Pace(3).most_at_once == 1
    assert Pace(0.25).most_at_once == 1


def test_no_stretch_of_time_holds_more_than_the_rate_allows():
    chance = random.Random(3)
    pace, now = Pace(50), 0.0
    sent: list[tuple[float, int]] = []
    for _ in range(400):
        count = chance.randint(1, pace.most_at_once)
        now += pace.wait_seconds(count, now)
        sent.append((now, count))
        now += chance.choice((0.0, 0.0, 0.01, 1.0))

    for place, (begin, _) in enumerate(sent):
        total = 0
        for at, count in sent[place:]:
            total += count
            assert total <= 50 * (at - begin) + pace.most_at_once + 1e-6
