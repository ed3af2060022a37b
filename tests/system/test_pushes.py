"""Pushes of a real server: endpoints that hang, dawdle, break off and fail, within a life of the server and beyond."""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cmqd_client import RetryStrategy, Subscription, SubscriptionInfo, Topic, connect
from support.eventually import eventually
from support.processes.running_server import RunningServer
from support.server.webhook_receiver import (
    WebhookReceiver,
    answer,
    answer_after,
    disconnect,
    endless_body,
    hang,
    say,
    silent_body,
)

pytestmark = pytest.mark.system

LOOPBACK = "--push-allow-loopback"


def bodies(count: int) -> list[bytes]:
    return [f"{number:05}".encode() for number in range(count)]


async def publish_all(topic: Topic, contents: list[bytes]) -> None:
    for first in range(0, len(contents), 250):
        await topic.publish_batch(contents[first : first + 250])


def received_at(receiver: WebhookReceiver, path: str) -> list[bytes]:
    """The published bodies that came to a path."""
    requests = [one for one in receiver.received if one.target == path]
    return [json.loads(one.body)["msgBody"].encode() for one in requests]


async def info_until(subscription: Subscription, is_wanted: Callable[[SubscriptionInfo], bool]) -> SubscriptionInfo:
    """Poll a subscription until it is in the expected state."""
    while not is_wanted(info := await subscription.info()):  # noqa: ASYNC110 - a process acts meanwhile
        await asyncio.sleep(0.02)
    return info


def is_idle(info: SubscriptionInfo) -> bool:
    return not info.waiting and not info.in_retry


# ---------------------------------------------------------------- endpoints that misbehave


async def test_forty_hanging_endpoints_do_not_delay_a_healthy_one(tmp_path: Path) -> None:
    async with WebhookReceiver() as receiver:
        # No hanging push times out during the test, so its slot stays taken.
        with RunningServer(tmp_path, LOOPBACK, "--push-timeout-ms", "60000") as server:
            async with connect(server.url) as client:
                topic = await client.create_topic("news")
                for number in range(40):
                    receiver.always(f"/hangs/{number}", hang())
                    await topic.subscribe(f"hangs-{number}", url=receiver.url(f"/hangs/{number}"))
                healthy = await topic.subscribe("healthy", url=receiver.url("/healthy"))

                await publish_all(topic, bodies(200))
                await info_until(healthy, is_idle)

                assert sorted(received_at(receiver, "/healthy")) == bodies(200)
                # At most 16 at once per endpoint, and all without an answer.
                received = await receiver.wait_for(200 + 40 * 16)
                hung = Counter(one.target for one in received if one.target != "/healthy")
                assert set(hung.values()) == {16}
                # Also new messages, after the hanging pushes have hung for a while.
                await topic.publish(b"late")
                await info_until(healthy, is_idle)
                assert received_at(receiver, "/healthy")[-1] == b"late"
            server.kill()


@pytest.mark.parametrize("misbehaviour", [silent_body(), endless_body()], ids=["silent", "endless"])
async def test_a_body_that_does_not_end_is_a_success_and_holds_up_no_other_push(
    tmp_path: Path, misbehaviour: Callable[..., object]
) -> None:
    async with WebhookReceiver() as receiver:
        receiver.always("/dawdles", misbehaviour)  # pyright: ignore[reportArgumentType]
        with RunningServer(tmp_path, LOOPBACK) as server:
            async with connect(server.url) as client:
                topic = await client.create_topic("news")
                dawdling = await topic.subscribe("dawdles", url=receiver.url("/dawdles"))
                healthy = await topic.subscribe("healthy", url=receiver.url("/healthy"))

                await publish_all(topic, bodies(40))
                await info_until(healthy, is_idle)
                info = await info_until(dawdling, is_idle)

                assert (info.delivered, info.last_error) == (40, None)
                assert sorted(received_at(receiver, "/healthy")) == bodies(40)
                assert sorted(received_at(receiver, "/dawdles")) == bodies(40)


async def test_an_endpoint_that_breaks_off_gets_the_message_again(tmp_path: Path) -> None:
    async with WebhookReceiver() as receiver:
        receiver.next("/hook", disconnect(), say(b"HTTP/1.1 200"), answer(200))
        with RunningServer(tmp_path, LOOPBACK) as server:
            async with connect(server.url) as client:
                topic = await client.create_topic("news")
                hook = await topic.subscribe("hook", url=receiver.url("/hook"))

                await topic.publish(b"x")
                failed = await info_until(hook, lambda info: info.in_retry == 1)
                info = await info_until(hook, is_idle)

                assert failed.last_error
                assert info.delivered == 1
                assert received_at(receiver, "/hook") == [b"x"] * 3


# ---------------------------------------------------------------- over a restart


async def test_attempts_and_their_times_survive_kill_nine(tmp_path: Path) -> None:
    async with WebhookReceiver() as receiver:
        receiver.always("/hook", answer(503))
        with RunningServer(tmp_path, LOOPBACK) as server:
            async with connect(server.url) as client:
                topic = await client.create_topic("news")
                hook = await topic.subscribe("hook", url=receiver.url("/hook"))
                await topic.publish(b"x")
                due = (await info_until(hook, lambda info: info.blocked)).next_attempt_time
                assert due is not None
                await publish_all(topic, bodies(3))
                before = await hook.info()
                # Else the machine stood still until the third attempt; below, until the fourth.
                is_quick = time.time() < due.timestamp() - 0.2
                assert (before.in_retry, before.waiting) == (1, 3) or not is_quick, "a blocked one gets nothing new"
            server.kill()

            server.start()
            async with connect(server.url) as client:
                hook = client.topic("news").subscription("hook")
                after = await hook.info()

                if time.time() < due.timestamp() - 0.2:  # else the start took longer than the rest of the time
                    assert after.next_attempt_time == due
                    assert (after.in_retry, after.waiting) == (1, 3)
                assert (after.blocked, after.last_error) == (True, before.last_error)

                # The third attempt of the first message, with a probe beside it; the next attempt is in 4 seconds.
                await receiver.wait_for(3)
                assert time.time() > due.timestamp() - 0.2
                await info_until(hook, lambda info: info.in_retry >= 2)
                # The attempt and the probe leave together, over two connections, and arrive in either order.
                assert received_at(receiver, "/hook")[:2] == [b"x"] * 2
                assert sorted(received_at(receiver, "/hook")[2:4]) == sorted([b"x", *bodies(1)])
                receiver.always("/hook", answer(200))
                is_quick = is_quick and time.time() < due.timestamp() + 4
                await info_until(hook, is_idle)
                assert received_at(receiver, "/hook")[4:].count(b"x") == 1 or not is_quick


async def test_backoff_keeps_the_order_over_a_restart(tmp_path: Path) -> None:
    async with WebhookReceiver() as receiver:
        receiver.next("/hook", answer(200), answer(500))
        with RunningServer(tmp_path, LOOPBACK) as server:
            async with connect(server.url) as client:
                topic = await client.create_topic("news")
                url = receiver.url("/hook")
                hook = await topic.subscribe("hook", url=url, strategy=RetryStrategy.BACKOFF)
                await publish_all(topic, bodies(20))
                before = await info_until(hook, lambda info: info.in_retry == 1)
                assert (before.delivered, before.waiting) == (1, 18)
            server.kill()

            server.start()
            async with connect(server.url) as client:
                topic = client.topic("news")
                hook = topic.subscription("hook")
                after = await hook.info()
                await topic.publish(b"later")
                pushes = len(receiver.received)
                retried = (await hook.retry_now()).messages
                due = before.next_attempt_time
                assert due is not None
                if time.time() < due.timestamp() - 0.2:  # else the start took longer than the pause of 10 to 20 s
                    assert (after.in_retry, after.waiting) == (1, 18)
                    assert after.next_attempt_time == due
                    assert pushes == 2, "those behind one that failed wait"
                    assert retried == 1
                await info_until(hook, is_idle)

                first, second, *rest = bodies(20)
                assert received_at(receiver, "/hook") == [first, second, second, *rest, b"later"]


async def test_sigterm_with_pushes_under_way_ends_in_time_and_loses_none(tmp_path: Path) -> None:
    count = 300
    async with WebhookReceiver() as receiver:
        receiver.always("/slow", answer_after(0.3))
        receiver.always("/hangs", hang())
        # A quarter of the memory for pushes in progress: many times the need of /slow.
        with RunningServer(tmp_path, LOOPBACK, "--drain-timeout-ms", "20000") as server:
            async with connect(server.url) as client:
                topic = await client.create_topic("news")
                await topic.subscribe("slow", url=receiver.url("/slow"))
                await topic.subscribe("hangs", url=receiver.url("/hangs"))
                await publish_all(topic, bodies(count))
                await eventually(lambda: len(received_at(receiver, "/slow")) >= 40)

            server.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.wait) == 0
            assert "drain_incomplete" not in server.log
            first_life = received_at(receiver, "/slow")
            assert len(first_life) < count, "nothing was left to do: the test shows nothing"

            receiver.always("/slow", answer(200))
            receiver.always("/hangs", answer(200))
            await asyncio.to_thread(server.start)
            assert "clean=True" in server.log
            async with connect(server.url) as client:
                topic = client.topic("news")
                info = await info_until(topic.subscription("slow"), is_idle)
                await info_until(topic.subscription("hangs"), is_idle)
                assert (info.delivered, info.dropped) == (count, 0)
                assert (await topic.attributes()).retained == 0
            # Pushes in progress were answered in time, and the results were noted.
            assert sorted(received_at(receiver, "/slow")) == bodies(count)
            assert set(received_at(receiver, "/hangs")) == set(bodies(count))


async def test_thousands_of_pending_messages_survive_kill_nine(tmp_path: Path) -> None:
    count = 4_000
    flags = (LOOPBACK, "--segment-bytes", str(1 << 20))
    async with WebhookReceiver() as receiver:
        with RunningServer(tmp_path, *flags) as server:
            async with connect(server.url) as client:
                topic = await client.create_topic("news")
                hook = await topic.subscribe("hook", url=receiver.url("/hook"))
                await hook.pause()
                await publish_all(topic, [body + bytes(1_000) for body in bodies(count)])
            server.kill()

            server.start()
            async with connect(server.url) as client:
                topic = client.topic("news")
                hook = topic.subscription("hook")
                info = await hook.info()
                assert (info.paused, info.waiting, info.in_retry) == (True, count, 0)
                assert (await topic.attributes()).retained == count
                assert receiver.received == []

                await hook.resume()
                info = await info_until(hook, is_idle)

                assert info.delivered == count
                assert (await topic.attributes()).retained == 0
                assert sorted(body[:5] for body in received_at(receiver, "/hook")) == bodies(count)
