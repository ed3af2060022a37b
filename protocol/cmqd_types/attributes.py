"""The attributes of queues, topics, subscriptions and schedules: all else about them is read or made from here.

The core checks values by these declarations, records and checkpoints store the structs as maps, and the types of the
client, the options of ``cmq``, the JSON API with its OpenAPI document, the forms of the console and the tables of the
documents follow the tables ``QUEUE``, ``TOPIC`` and ``SUBSCRIPTION``.

The value behind the annotation of a field is the stored default, which is frozen: see :mod:`cmqd_types.declared`. So is
the name of a field. A new attribute is appended.
"""

from typing import Annotated, Final

from msgspec import Struct

from cmqd_types.choices import ContentFormat, FilterType, RetryStrategy
from cmqd_types.declared import Attribute, choice, count, declared, milliseconds, name_of, size, switch, text, texts


class QueueAttributes(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """The attributes that the owner of a queue can set."""

    polling_wait_ms: Annotated[
        int,
        milliseconds(
            0,
            30_000,
            label="Polling wait",
            help="Wait of a receive without a wait of its own, while the queue is empty",
            cmq="pollingWaitSeconds",
        ),
    ] = 200
    visibility_timeout_ms: Annotated[
        int,
        milliseconds(
            1000,
            43_200_000,
            label="Visibility timeout",
            help="Time for which a received message is hidden from other receives",
            details="Without a delete the message is active again.",
            cmq="visibilityTimeout",
        ),
    ] = 30_000
    max_message_bytes: Annotated[
        int, size(1024, 1_048_576, label="Longest body", help="Longest body of a message", cmq="maxMsgSize")
    ] = 65_536
    retention_ms: Annotated[
        int,
        milliseconds(
            60_000,
            1_296_000_000,
            label="Retention",
            help="Life of a message from its send, received or not",
            cmq="msgRetentionSeconds",
        ),
    ] = 345_600_000
    delay_ms: Annotated[
        int,
        milliseconds(
            0, 3_600_000, label="Delay", help="Delay of sends without a delay of their own; less than the retention"
        ),
    ] = 0
    max_backlog: Annotated[
        int,
        count(
            1_000_000,
            100_000_000,
            label="Backlog limit",
            help="Number of messages (active, in flight, delayed) at which sends are refused",
            cmq="maxMsgHeapNum",
        ),
    ] = 100_000_000
    max_delayed: Annotated[
        int,
        count(
            1,
            1_000_000,
            label="Limit of delayed messages",
            help="Number of delayed messages above which further delayed messages wait in order for a slot",
        ),
    ] = 1_000_000
    rewind_ms: Annotated[
        int,
        milliseconds(
            0,
            1_296_000_000,
            zero="never",
            label="Rewind window",
            help="Time after its send in which a rewind can make a deleted message active again; at most the retention",
            cmq="rewindSeconds",
        ),
    ] = 0
    dead_letter_queue: Annotated[
        str,
        name_of(
            label="Dead-letter queue",
            help="Queue of the same account for messages that reach the number of receives or the time below",
            details="The dead-letter queue exists, is not transactional and has no dead-letter queue of its own. Up to"
            " 6 queues can share it.",
        ),
    ] = ""
    dead_letter_max_receives: Annotated[
        int,
        count(
            0,
            1000,
            zero="never",
            least=1,
            label="Receives before a dead letter",
            help="Number of receives without a delete after which a message moves to the dead-letter queue",
        ),
    ] = 0
    dead_letter_after_ms: Annotated[
        int,
        milliseconds(
            0,
            43_200_000,
            zero="never",
            least=300_000,
            label="Time before a dead letter",
            help="Time without a delete after which a message moves to the dead-letter queue, received or not; less"
            " than the retention",
            details="The time counts from the moment when the message became active.",
        ),
    ] = 0
    transactional: Annotated[
        bool,
        switch(
            is_fixed=True,
            label="Transactional",
            help="Accept half messages, which become active when their producer commits",
        ),
    ] = False
    first_check_ms: Annotated[
        int,
        milliseconds(
            1000,
            3_600_000,
            label="First check",
            help="Time after which a producer is asked about an undecided half message",
            details="The interval doubles from then on, up to 5 minutes.",
            cmq="firstQueryInterval",
        ),
    ] = 5_000
    max_checks: Annotated[
        int,
        count(
            1,
            100,
            label="Limit of checks",
            help="Number of checks of a half message",
            details="Then the half message waits for a decision by hand.",
            cmq="maxQueryCount",
        ),
    ] = 15
    auto_delete_after_ms: Annotated[
        int,
        milliseconds(
            0,
            1_296_000_000,
            zero="never",
            # Twice the longest wait of a receive: a client that reconnects for its next receive keeps its queue.
            least=60_000,
            label="Deleted when unused for",
            help="Time without use after which the queue is deleted",
            details="Receives, sends, copies and changes of leases and attributes are uses, and so is each message in"
            " flight or delayed. Time in which the server is down does not count. Not for a transactional queue, a"
            " dead-letter queue or a queue that has one.",
        ),
    ] = 0
    auto_delete_only_empty: Annotated[
        bool,
        switch(
            label="Only if the queue is empty",
            help="Keep an unused queue that has messages; without this they are deleted with the queue",
        ),
    ] = True


class TopicAttributes(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """The attributes of a topic."""

    max_message_bytes: Annotated[
        int, size(1024, 1_048_576, label="Longest body", help="Longest body of a message", cmq="maxMsgSize")
    ] = 65_536
    filter_type: Annotated[
        str,
        choice(
            *FilterType,
            is_fixed=True,
            label="Filter",
            help="Matching of messages with subscriptions: by tags, or by a routing key",
        ),
    ] = "tag"


class SubscriptionAttributes(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """The attributes of a subscription."""

    protocol: Annotated[
        str,
        choice(
            *("queue", "http", "https"),
            is_fixed=True,
            label="Protocol",
            help="Protocol of the endpoint",
            default_text="by the endpoint",
        ),
    ] = "queue"
    endpoint: Annotated[
        str,
        name_of(
            is_fixed=True,
            label="Endpoint",
            help="Name of a queue of the account, or an `http://` or `https://` URL of at most 2,048 ASCII characters"
            " without user, password and fragment",
            default_text="none: a subscription needs an endpoint",
        ),
    ] = ""
    strategy: Annotated[
        str,
        choice(
            *RetryStrategy,
            label="Retries",
            help="Retries of a failed delivery: at increasing intervals for a day, while other messages are delivered;"
            " or three times within a minute, while later messages wait, before the message is dropped",
        ),
    ] = "exponential_decay"
    content_format: Annotated[
        str,
        choice(
            *ContentFormat,
            label="Format",
            help="Content of a request to a URL: a JSON object with facts and body, or the body alone",
        ),
    ] = "json"
    filter_tags: Annotated[
        list[str],
        texts(
            5,
            label="Filter tags",
            help="On a tag topic: only messages with at least one of these tags; empty = every message",
        ),
    ] = []
    binding_keys: Annotated[
        list[str],
        texts(
            5,
            label="Binding keys",
            help="On a routing topic, at least one: only messages with a key that matches one of these patterns",
            details="`*` stands for exactly one word, `#` for any number of words, also none.",
            default_text="none",
        ),
    ] = []
    paused: Annotated[bool, switch(label="Paused", help="Deliver no message; messages published meanwhile wait")] = (
        False
    )


class ScheduleAttributes(Struct, frozen=True):
    """The attributes of a schedule. The log has each as a field of a record, so no value is left out on disk."""

    queue: Annotated[
        str, text(label="Queue", help="Name of a queue of the account that is not transactional", default_text="none")
    ] = ""
    cron: Annotated[
        str,
        text(
            label="Expression",
            help="Cron expression of at most 256 bytes: minute, hour, day of the month, month, day of the week",
            default_text="none",
        ),
    ] = ""
    zone: Annotated[
        str, text(label="Time zone", help="Time zone of the expression, UTC or a name of the tz database of the server")
    ] = "UTC"
    paused: Annotated[bool, switch(label="Paused", help="Send no message until the schedule is resumed")] = False


QUEUE: Final[dict[str, Attribute]] = declared(QueueAttributes)
TOPIC: Final[dict[str, Attribute]] = declared(TopicAttributes)
SUBSCRIPTION: Final[dict[str, Attribute]] = declared(SubscriptionAttributes)
SCHEDULE: Final[dict[str, Attribute]] = declared(ScheduleAttributes)

TOPIC_CHANGES: Final = {name: attribute for name, attribute in TOPIC.items() if not attribute.is_fixed}
SUBSCRIPTION_CHANGES: Final = {name: attribute for name, attribute in SUBSCRIPTION.items() if not attribute.is_fixed}
"""The attributes that a change can set."""
SUBSCRIPTION_OPTIONS: Final = {name: each for name, each in SUBSCRIPTION_CHANGES.items() if name != "paused"}
"""Attributes of a new subscription beside its endpoint. The faces pause and resume a subscription by other acts."""
SCHEDULE_OPTIONS: Final = {name: each for name, each in SCHEDULE.items() if name not in ("queue", "cron", "paused")}
"""Attributes of a schedule that a caller may leave out, apart from the pause, which is another act."""
