"""Attributes of queues, topics, subscriptions and schedules, as keyword arguments and as fields.

Made from ``cmqd_types.attributes`` by ``cmqd_bench.pages``; changes belong there.
"""

from collections.abc import Iterable
from typing import Literal, TypedDict

import msgspec

from cmqd_client.durations import Duration
from cmqd_types.choices import ContentFormat, FilterType, RetryStrategy


class QueueAttributes(TypedDict, total=False):
    """Attributes that can be set; an omitted attribute keeps its value, or has its default in a new queue.

    Durations are seconds or ``timedelta``. The server refuses a value out of range, with the attribute's name.
    """

    polling_wait: Duration
    """Wait of a receive without a wait of its own, while the queue is empty (0 s to 30 s, default 200 ms)."""
    visibility_timeout: Duration
    """Time for which a received message is hidden from other receives (1 s to 12 h, default 30 s). Without a delete the
    message is active again."""
    max_message_bytes: int
    """Longest body of a message (1 KiB to 1 MiB, default 64 KiB)."""
    retention: Duration
    """Life of a message from its send, received or not (1 min to 15 d, default 4 d)."""
    delay: Duration
    """Delay of sends without a delay of their own; less than the retention (0 s to 1 h, default 0 s)."""
    max_backlog: int
    """Number of messages (active, in flight, delayed) at which sends are refused (1,000,000 to 100,000,000, the
    default)."""
    max_delayed: int
    """Number of delayed messages above which further delayed messages wait in order for a slot (1 to 1,000,000, the
    default)."""
    rewind: Duration
    """Time after its send in which a rewind can make a deleted message active again; at most the retention (up to 15 d;
    0 = never, the default)."""
    dead_letter_queue: str
    """Queue of the same account for messages that reach the number of receives or the time below (empty = none, the
    default). The dead-letter queue exists, is not transactional and has no dead-letter queue of its own. Up to 6 queues
    can share it."""
    dead_letter_max_receives: int
    """Number of receives without a delete after which a message moves to the dead-letter queue (1 to 1,000; 0 = never,
    the default)."""
    dead_letter_after: Duration
    """Time without a delete after which a message moves to the dead-letter queue, received or not; less than the
    retention (5 min to 12 h; 0 = never, the default). The time counts from the moment when the message became
    active."""
    transactional: bool
    """Accept half messages, which become active when their producer commits (default false; fixed at creation)."""
    first_check: Duration
    """Time after which a producer is asked about an undecided half message (1 s to 1 h, default 5 s). The interval
    doubles from then on, up to 5 minutes."""
    max_checks: int
    """Number of checks of a half message (1 to 100, default 15). Then the half message waits for a decision by hand."""
    auto_delete_after: Duration
    """Time without use after which the queue is deleted (1 min to 15 d; 0 = never, the default). Receives, sends,
    copies and changes of leases and attributes are uses, and so is each message in flight or delayed. Time in which the
    server is down does not count. Not for a transactional queue, a dead-letter queue or a queue that has one."""
    auto_delete_only_empty: bool
    """Keep an unused queue that has messages; without this they are deleted with the queue (default true)."""


class QueueValues(msgspec.Struct, frozen=True, kw_only=True):
    """Name and attributes of a queue; durations are seconds."""

    name: str
    id: int
    """Changes if the queue is deleted and created again."""
    created: bool
    """True if this call created the queue."""

    polling_wait: float = 0.0
    visibility_timeout: float = 0.0
    max_message_bytes: int = 0
    retention: float = 0.0
    delay: float = 0.0
    max_backlog: int = 0
    max_delayed: int = 0
    rewind: float = 0.0
    dead_letter_queue: str = ""
    dead_letter_max_receives: int = 0
    dead_letter_after: float = 0.0
    transactional: bool = False
    first_check: float = 0.0
    max_checks: int = 0
    auto_delete_after: float = 0.0
    auto_delete_only_empty: bool = True


class TopicAttributes(TypedDict, total=False):
    """Attributes of a new topic; an omitted attribute, or None, has its default."""

    max_message_bytes: int | None
    """Longest body of a message (1 KiB to 1 MiB, default 64 KiB)."""
    filter_type: FilterType | Literal["tag", "routing"] | None
    """Matching of messages with subscriptions: by tags, or by a routing key (tag or routing, default tag; fixed at
    creation)."""


class TopicChanges(TypedDict, total=False):
    """Attributes of a topic that can be changed, for messages published from now on; an omitted attribute stays."""

    max_message_bytes: int
    """Longest body of a message (1 KiB to 1 MiB, default 64 KiB)."""


class TopicValues(msgspec.Struct, frozen=True, kw_only=True):
    """Name and attributes of a topic; durations are seconds."""

    name: str
    id: int
    """Changes if the topic is deleted and created again."""
    created: bool
    """True if this call created the topic."""

    max_message_bytes: int = 0
    filter_type: FilterType | str = FilterType.TAG


class SubscriptionAttributes(TypedDict, total=False):
    """Attributes of a subscription; an omitted attribute, or None, has its default, or stays as it is."""

    strategy: RetryStrategy | Literal["exponential_decay", "backoff"] | None
    """Retries of a failed delivery: at increasing intervals for a day, while other messages are delivered; or three
    times within a minute, while later messages wait, before the message is dropped (exponential_decay or backoff,
    default exponential_decay)."""
    content_format: ContentFormat | Literal["json", "simplified"] | None
    """Content of a request to a URL: a JSON object with facts and body, or the body alone (json or simplified, default
    json)."""
    filter_tags: Iterable[str] | None
    """On a tag topic: only messages with at least one of these tags; empty = every message (up to 5, default none)."""
    binding_keys: Iterable[str] | None
    """On a routing topic, at least one: only messages with a key that matches one of these patterns (default none). `*`
    stands for exactly one word, `#` for any number of words, also none."""


class SubscriptionValues(msgspec.Struct, frozen=True, kw_only=True):
    """Names and attributes of a subscription."""

    topic: str
    name: str
    created: bool
    """True if this call created the subscription."""
    secret: str | None
    """The key of the request signatures (``whsec_...``, Standard Webhooks), if this call created a subscription to a
    URL; else None. The server shows the secret only once; keep it."""

    id: int = 0
    """Changes if the subscription is made again. 0 = the server is too old to report the id."""
    protocol: str = ""
    endpoint: str = ""
    strategy: RetryStrategy | str = RetryStrategy.EXPONENTIAL_DECAY
    content_format: ContentFormat | str = ContentFormat.JSON
    filter_tags: list[str] = []
    binding_keys: list[str] = []
    paused: bool = False


class ScheduleOptions(TypedDict, total=False):
    """Attributes of a schedule; an omitted attribute, or None, has its default, or stays as it is."""

    zone: str | None
    """Time zone of the expression, UTC or a name of the tz database of the server (default UTC)."""


class ScheduleValues(msgspec.Struct, frozen=True, kw_only=True):
    """Name and attributes of a schedule."""

    name: str
    id: int
    """Changes if the schedule is deleted and created again."""
    created: bool
    """True if this call created the schedule."""

    queue: str = ""
    cron: str = ""
    zone: str = ""
    paused: bool = False
