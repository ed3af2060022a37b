"""A broker with a topic and a subscription to a URL."""

from collections.abc import Iterable

from cmqd.core.limits import Limits
from cmqd.core.outcome import Push, PushResult
from cmqd_types.topics import SubscriptionInfo
from support.core.builders import ACCOUNT, Rig
from support.core.facts import facts
from support.core.invariants import check_broker

URL = "https://example.com/in"
DAY_MS = 86_400_000


def a_rig(limits: Limits | None = None) -> Rig:
    """A rig with a topic."""
    rig = Rig(limits)
    rig.create_topic()
    return rig


def info(rig: Rig, name: str = "web") -> SubscriptionInfo:
    return rig.broker.subscription_info(ACCOUNT, "news", name, rig.now_ms)


def state(rig: Rig, name: str = "web") -> tuple[int, int, int, int]:
    """The counts: waiting, in retry, delivered, dropped."""
    counts = info(rig, name).counts
    return counts["waiting"], counts["in_retry"], counts["delivered"], counts["dropped"]


def retained(rig: Rig) -> int:
    return rig.broker.topic_info(ACCOUNT, "news").counts["retained"]


def change(rig: Rig, name: str = "web", **attributes: object) -> None:
    rig.done(rig.broker.set_subscription_attributes(ACCOUNT, "news", name, attributes, rig.now_ms))


def retry_now(rig: Rig, name: str = "web") -> int:
    return rig.done(rig.broker.retry_deliveries(ACCOUNT, "news", name, rig.now_ms))


def drop(rig: Rig, name: str = "web") -> int:
    return rig.done(rig.broker.drop_deliveries(ACCOUNT, "news", name, rig.now_ms))


def unsubscribe(rig: Rig, name: str = "web") -> None:
    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", name, rig.now_ms))


def bodies(pushes: Iterable[Push]) -> list[bytes]:
    return [push.message.body for push in pushes]


def end_all(rig: Rig, error: str | None = None) -> int:
    """All that is being posted ends; how many that were."""
    pushes, rig.pushes = rig.pushes, []
    results = [PushResult(one.subscription_id, one.message.position, rig.now_ms, error) for one in pushes]
    rig.done(rig.broker.pushes_ended(results, rig.now_ms))
    return len(results)


def posts(rig: Rig, ms: int) -> list[bytes]:
    """The bodies of the pushes that begin within this time."""
    there = list(rig.pushes)
    rig.settle(ms)
    return bodies(push for push in rig.pushes if push not in there)


def check_recovery(rig: Rig) -> None:
    """A recovery after any row works and delivers; a recovery after all rows has the facts of the broker."""
    for rows in range(rig.log.last_lsn):
        again = rig.crash_after_row(rows)
        again.settle()
        check_broker(again.broker)
    for again in (rig.crash(), rig.crash_after(rig.checkpoint())):
        assert facts(again.broker) == facts(rig.broker)
        again.settle()
        check_broker(again.broker)
