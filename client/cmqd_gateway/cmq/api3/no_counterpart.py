"""Parameters of API 3.0 without a counterpart in this broker.

A value without an effect is accepted. A value that has another meaning in CMQ is refused, with both meanings in the
text: a program must not believe that its messages are traced, or lose unread messages after an hour.
"""

from typing import Final

from cmqd_gateway.cmq.api3.faults import Code, Fault
from cmqd_gateway.cmq.api3.parameters import Values
from cmqd_gateway.process.gateway_settings import Settings

TOPIC_RETENTION_SECONDS: Final = 86_400
MIN_REWIND_MEGABYTES: Final = 10_240
MAX_REWIND_MEGABYTES: Final = 512_000


def check_trace(values: Values) -> None:
    """Take ``Trace`` out of the values.

    Raises:
        Fault: the value is true.
    """
    if values.pop("Trace", False):
        raise Fault(
            Code.UNSUPPORTED_OPERATION,
            "Trace is true; in CMQ this records the path of each message of the queue or topic. This broker records no"
            " paths: the deliveries of a message of a topic can be asked for without Trace (QueryMessageDeliveries of"
            " API 2.0). Leave Trace out, or set it to false",
        )


def check_tags(values: Values) -> None:
    """Take ``Tags``, the tags of a resource, out of the values.

    Raises:
        Fault: there are tags.
    """
    if values.pop("Tags", None):
        raise Fault(
            Code.UNSUPPORTED_OPERATION,
            "Tags has entries; in CMQ these are labels of a queue or topic, for bills and permissions. Queues and"
            " topics of this broker have no labels. Leave Tags out",
        )


def check_retention(values: Values, settings: Settings) -> None:
    """Keep ``MsgRetentionSeconds`` of a queue, if the gateway takes it for the retention.

    Raises:
        Fault: the setting ``api3_retention`` is off.
    """
    if "MsgRetentionSeconds" in values and not settings.api3_retention:
        raise Fault(
            Code.UNSUPPORTED_OPERATION,
            f"MsgRetentionSeconds is {values['MsgRetentionSeconds']}; in a request of API 3.0 this is the longest time"
            " for which a message stays unacknowledged (30 to 43200), in API 2.0 and in this broker the time after"
            " which a message is deleted, received or not. Leave it out; with api3_retention the gateway takes it for"
            " the second meaning",
        )


def check_topic_retention(values: Values) -> None:
    """Take ``MsgRetentionSeconds`` of a topic out of the values.

    Raises:
        Fault: the value is not a day.
    """
    seconds = values.pop("MsgRetentionSeconds", TOPIC_RETENTION_SECONDS)
    if seconds != TOPIC_RETENTION_SECONDS:
        raise Fault(
            Code.INVALID_PARAMETER_VALUE,
            f"MsgRetentionSeconds is {seconds}; a topic of this broker keeps a message that waits for a delivery for"
            f" {TOPIC_RETENTION_SECONDS} s",
        )


def check_rewind_space(values: Values) -> None:
    """Take ``RetentionSizeInMB`` out of the values: the rewind window of this broker is a time without a size.

    Raises:
        Fault: the value is out of range.
    """
    size = values.pop("RetentionSizeInMB", 0)
    if size != 0 and (not MIN_REWIND_MEGABYTES <= size <= MAX_REWIND_MEGABYTES or values.get("RewindSeconds") == 0):
        raise Fault(
            Code.INVALID_PARAMETER_VALUE,
            f"RetentionSizeInMB is {size}; the range is {MIN_REWIND_MEGABYTES} to {MAX_REWIND_MEGABYTES} for a queue"
            " with a rewind window (RewindSeconds), and 0 for a queue without",
        )


def is_filtered_by_tags(values: Values) -> bool:
    """Take the filters of a list out of the values; return True if they ask for tags, which no queue or topic has.

    Raises:
        Fault: a filter is of another kind.
    """
    values.pop("IsTagFilter", None)
    filters = values.pop("Filters", [])
    for each in filters:
        name = each.get("Name", "")
        if not name.startswith("tag:"):
            raise Fault(
                Code.INVALID_PARAMETER_VALUE, f"the Name of a filter is {name[:80]!r}; it must begin with 'tag:'"
            )
    return bool(filters)
