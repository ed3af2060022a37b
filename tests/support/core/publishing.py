"""A broker with a topic, and publishes."""

from cmqd.core.limits import Limits
from cmqd.core.outcome import Published, PublishRequest
from cmqd_segment.records import MessagesPublished
from cmqd_types.messages import Labels
from cmqd_types.topics import TopicInfo
from support.core.builders import ACCOUNT, Rig
from support.core.facts import facts
from support.core.invariants import check_broker

URL = "https://example.com/in"


def a_rig(filter_type: str = "tag", limits: Limits | None = None, max_message_bytes: int = 65_536) -> Rig:
    """A rig with a topic."""
    rig = Rig(limits)
    rig.create_topic("news", filter_type=filter_type, max_message_bytes=max_message_bytes)
    return rig


def topic_info(rig: Rig, name: str = "news") -> TopicInfo:
    return rig.broker.topic_info(ACCOUNT, name)


def unsubscribe(rig: Rig, name: str) -> None:
    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", name, rig.now_ms))


def request(
    *bodies: bytes, labels: Labels | None = None, number: int = 0, dedup: str | None = None, all_or_none: bool = False
) -> PublishRequest:
    """A publish; with a number, of session 7."""
    dedup_ids: list[str | None] | None = None if dedup is None else list(dedup)
    listed = None if labels is None else [labels]
    return PublishRequest(list(bodies), None, listed, 7 if number else 0, number, dedup_ids, all_or_none=all_or_none)


def together(rig: Rig, *requests: PublishRequest) -> list[Published | Exception]:
    """Publishes of several clients, decided in a single call."""
    return list(rig.done(rig.broker.publish(ACCOUNT, "news", list(requests), rig.now_ms)))


def published(rig: Rig) -> list[MessagesPublished]:
    return [record for _, record in rig.log.records() if isinstance(record, MessagesPublished)]


def check_recovery(rig: Rig) -> None:
    """A recovery after any row works; a recovery after all rows has the facts of the broker."""
    for rows in range(rig.log.last_lsn):
        again = rig.crash_after_row(rows)
        again.settle()
        check_broker(again.broker)
    assert facts(rig.crash().broker) == facts(rig.broker)
    assert facts(rig.crash_after(rig.checkpoint()).broker) == facts(rig.broker)
