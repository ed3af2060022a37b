"""Slots for pushes: per URL and in total, and their distribution."""

from typing import Any

import pytest

from cmqd.core.limits import Limits
from support.core.builders import ACCOUNT
from support.core.delivering import (
    URL,
    a_rig,
    change,
    drop,
    end_all,
    state,
    unsubscribe,
)
from support.core.invariants import check_broker


def test_so_many_pushes_go_to_an_endpoint_at_once():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(*[b"%d" % number for number in range(40)])

    rig.settle()
    assert len(rig.pushes) == 16
    rig.end_push(rig.pushes[0])
    rig.end_push(rig.pushes[0])
    rig.settle()
    assert len(rig.pushes) == 16

    end_all(rig)
    rig.settle()
    end_all(rig)
    rig.settle()
    assert end_all(rig) == 6
    assert state(rig) == (0, 0, 40, 0)


def test_two_subscriptions_with_one_url_share_its_room_and_take_turns():
    rig = a_rig()
    rig.subscribe(URL, name="to-a")
    rig.subscribe(URL, name="to-b")
    rig.publish(*[b"%d" % number for number in range(40)])
    rig.settle()
    assert {push.subscription for push in rig.pushes} == {"to-a"}
    assert len(rig.pushes) == 16

    while rig.pushes:
        assert len(rig.pushes) <= 16
        rig.end_push(rig.pushes[0])
        rig.settle()
        check_broker(rig.broker)

    assert state(rig, "to-a") == state(rig, "to-b") == (0, 0, 40, 0)


@pytest.mark.parametrize("what", ["paused", "unsubscribed", "dropped"])
def test_room_is_passed_on_by_one_in_line_that_has_no_use_for_it(what: str):
    rig = a_rig(Limits(max_pushes_per_endpoint=1))
    for name in ("to-a", "to-b", "to-c"):
        rig.subscribe(URL, name=name)
    rig.publish(b"1")
    rig.settle()
    assert [push.subscription for push in rig.pushes] == ["to-a"]

    if what == "paused":
        change(rig, "to-b", paused=True)
    elif what == "unsubscribed":
        unsubscribe(rig, "to-b")
    else:
        drop(rig, "to-b")
    rig.end_push(rig.pushes[0])
    rig.settle()

    assert [push.subscription for push in rig.pushes] == ["to-c"]


def test_room_is_passed_on_when_the_next_one_leaves_after_it_was_its_turn():
    rig = a_rig(Limits(max_pushes_per_endpoint=1))
    for name in ("to-a", "to-b", "to-c"):
        rig.subscribe(URL, name=name)
    rig.publish(b"1")
    rig.settle()

    rig.end_push(rig.pushes[0])
    unsubscribe(rig, "to-b")
    rig.settle()

    assert [push.subscription for push in rig.pushes] == ["to-c"]


def test_room_in_all_is_shared():
    rig = a_rig(Limits(max_pushes=6, max_pushes_per_endpoint=2))
    names = ("to-a", "to-b", "to-c", "to-d")
    for name in names:
        rig.subscribe(f"https://{name}.example/", name=name)
    rig.publish(*[b"%d" % number for number in range(5)])
    rig.settle()
    assert len(rig.pushes) == 3, "half of it for those that have not answered yet"

    while rig.pushes:
        assert len(rig.pushes) <= 6
        rig.end_push(rig.pushes[-1])
        rig.settle()
        check_broker(rig.broker)

    assert {state(rig, name) for name in names} == {(0, 0, 5, 0)}


def test_a_url_is_forgotten_with_its_subscription():
    rig = a_rig()
    rig.subscribe(URL)
    rig.publish(b"1")
    rig.settle()
    rig.end_push(rig.pushes[0])
    broker: Any = rig.broker
    assert list(broker.runtime.push_slots.trusted) == [URL]

    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", "web", rig.now_ms))

    assert not broker.runtime.push_slots.trusted
    assert not broker.runtime.push_slots.endpoints


def test_500_dead_endpoints_do_not_delay_a_healthy_one():
    rig = a_rig()
    for number in range(499):
        rig.subscribe(f"https://dead{number}.example/", name=f"dead{number}")
    rig.subscribe(URL)
    for _ in range(12):
        rig.publish(*[b"x"] * 8)
        ticks = 0
        while sum(push.url == URL for push in rig.pushes) < 1:
            assert rig.due(), "it waits for the dead ones"
            rig.tick()
            ticks += 1
        assert ticks <= 63, "64 deliveries a tick"
        rig.advance(0)
        # The first URL answers at once, over and over; the other URLs do not answer.
        while healthy := [push for push in rig.pushes if push.url == URL]:
            for push in healthy:
                rig.end_push(push)
            assert rig.advance(0) <= 63
    assert state(rig) == (0, 0, 96, 0)
    assert len(rig.pushes) == 499 * 4, "half of the pushes, in equal shares"
    assert state(rig, "dead7")[0] == 96


def test_dead_endpoints_that_fail_over_and_over_do_not_delay_a_healthy_one():
    rig = a_rig()
    for number in range(100):
        rig.subscribe(f"https://dead{number}.example/", name=f"dead{number}")
    rig.subscribe(URL)
    for number in range(10):
        rig.publish(b"%d" % number)
        ticks = 0
        while not any(push.url == URL for push in rig.pushes):
            rig.tick()
            ticks += 1
        assert ticks <= 8
        rig.settle()
        for push in list(rig.pushes):
            rig.end_push(push, None if push.url == URL else "down")
        rig.now_ms += 1000
    assert state(rig) == (0, 0, 10, 0)


def test_more_dead_urls_than_slots_do_not_delay_a_url_that_answers():
    rig = a_rig(Limits(max_pushes=64, max_pushes_per_endpoint=4))
    rig.subscribe(URL)
    rig.publish(b"first")
    rig.settle()
    rig.end_push(rig.pushes[0])
    for number in range(200):
        rig.subscribe(f"https://dead{number}.example/", name=f"dead{number}")

    for number in range(10):
        rig.publish(b"%d" % number)
        rig.settle()
        (healthy,) = [push for push in rig.pushes if push.url == URL]
        rig.end_push(healthy)
        rig.now_ms += 1

    assert state(rig) == (0, 0, 11, 0)
    assert len(rig.pushes) <= 32, "the dead URLs have half of the slots"
