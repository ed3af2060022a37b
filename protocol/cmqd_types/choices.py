"""The words of attributes that are a choice."""

from enum import StrEnum


class FilterType(StrEnum):
    """Matching of messages with subscriptions; fixed when the topic is created."""

    TAG = "tag"
    """The default. A message has up to 10 tags. A subscription with filter tags gets the messages that share at least a
    tag with its filter tags; a subscription without filter tags gets every message."""
    ROUTING = "routing"
    """A message has a routing key of words between dots. A subscription gets the messages with a key that matches at
    least one of its binding keys: ``*`` stands for one word, ``#`` for any number of words, also none."""


class RetryStrategy(StrEnum):
    """The retries of a message that could not be delivered."""

    EXPONENTIAL_DECAY = "exponential_decay"
    """The default. Deliveries are concurrent; their order is not promised. A failed delivery is tried again after 1, 2,
    4 ... 512, 512 ... s, up to 176 times, just under a day."""
    BACKOFF = "backoff"
    """In order, one at a time. A failed message is tried again three times, after 10-20 s each, while the messages
    behind wait; then the message is dropped for this subscription."""


class ContentFormat(StrEnum):
    """Content of the requests to a URL. A queue gets body and headers as published, regardless of this setting."""

    JSON = "json"
    """The default: an object with body and facts of the message. A body that is not UTF-8 is base64-encoded."""
    SIMPLIFIED = "simplified"
    """The body alone."""
