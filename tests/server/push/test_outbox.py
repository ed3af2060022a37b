"""Pushes on their way: durable first, signed always, none after the end."""

from collections.abc import Callable
from typing import Any

from cmqd.core.outcome import Push, PushResult
from cmqd.server.push.outbox import Outbox
from cmqd_segment.records import StoredMessage
from support.server.fake_pusher import FakePusher
from support.server.invariants import check_outbox


def a_push(subscription_id: int, position: int) -> Push:
    message = StoredMessage(position, position + 100, 1, b"x")
    return Push("admin", "news", "hook", subscription_id, "https://example.com/", "json", message, 1)


def an_outbox(*with_secret: int, durable_lsn: int = 0) -> tuple[Outbox, FakePusher, set[int], list[PushResult]]:
    """An outbox, its pusher, the subscriptions that have a secret, and the results that it has told."""
    secrets = set(with_secret)
    outbox = Outbox(lambda: durable_lsn, secrets.__contains__)
    results: list[PushResult] = []
    no_secrets: Callable[[int], Any] = lambda subscription_id: []  # noqa: E731
    pusher = FakePusher(secrets_of=no_secrets, on_results=results.extend, now_ms=lambda: 5)
    outbox.use(pusher)
    return outbox, pusher, secrets, results


def positions(pusher: FakePusher) -> list[int]:
    return [push.message.position for push in pusher.pushes]


def test_pushes_of_a_durable_row_leave_at_once() -> None:
    outbox, pusher, _, _ = an_outbox(1, durable_lsn=7)

    outbox.hold(7, [a_push(1, 0)])
    outbox.hold(8, [a_push(1, 1)])
    check_outbox(outbox)

    assert positions(pusher) == [0]
    assert (len(outbox), outbox.under_way) == (1, 1)
    assert "held=1" in repr(outbox)


def test_the_rest_leaves_in_order_as_the_log_grows() -> None:
    outbox, pusher, _, _ = an_outbox(1)
    for lsn in (1, 2, 2, 3):
        outbox.hold(lsn, [a_push(1, lsn)])

    outbox.open_to(2)
    assert positions(pusher) == [1, 2, 2]
    outbox.open_to(5)

    assert positions(pusher) == [1, 2, 2, 3]
    check_outbox(outbox)


def test_what_cannot_be_signed_waits_and_holds_up_nothing_else() -> None:
    outbox, pusher, secrets, _ = an_outbox(1)
    outbox.hold(1, [a_push(2, 0), a_push(1, 1), a_push(2, 2)])
    outbox.open_to(1)
    assert positions(pusher) == [1]

    secrets.add(2)
    outbox.secret_made(2)
    outbox.secret_made(3)

    assert positions(pusher) == [1, 0, 2]
    assert len(outbox) == 0


def test_one_that_goes_before_it_has_a_secret_is_told_of() -> None:
    outbox, pusher, _, results = an_outbox()
    outbox.hold(0, [a_push(2, 0), a_push(2, 1)])

    results += outbox.forget(2, 9)
    results += outbox.forget(2, 9)

    assert results == [PushResult(2, 0, 9, "unsubscribed"), PushResult(2, 1, 9, "unsubscribed")]
    assert pusher.pushes == []


async def test_once_stopped_nothing_leaves() -> None:
    outbox, pusher, secrets, results = an_outbox(1)
    outbox.hold(1, [a_push(1, 0)])
    outbox.hold(1, [a_push(2, 1)])

    outbox.stop()
    secrets.add(2)
    outbox.open_to(1)
    outbox.secret_made(2)
    results += outbox.forget(2, 9)
    outbox.hold(0, [a_push(1, 2)])
    await outbox.close(3.0)

    assert (pusher.pushes, results, len(outbox)) == ([], [], 0)
    assert pusher.closed_within_s == 3.0


async def test_without_a_pusher_there_is_nothing_to_close() -> None:
    outbox = Outbox(lambda: 0, lambda _: True)
    outbox.hold(0, [a_push(1, 0)])

    await outbox.close(1.0)

    assert not outbox.can_push
    assert outbox.under_way == 0
