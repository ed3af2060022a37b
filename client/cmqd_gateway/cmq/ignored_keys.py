"""Binding keys and routing keys of requests to topics that filter by tags: API 2.0 ignores them, and counts.

CMQ accepts such keys, and CMQ's own tests send them. A program that meant a topic with routing keys gets every message
of the topic, or publishes to every subscription; the counter and the log show the mistake. The broker decides about
the kind of a topic: the gateway sends the keys along, and repeats the refused request without keys. A look at the
topic beforehand would cost every request, and another client can replace the topic in between.
"""

from collections.abc import Callable

from cmqd_client.errors import InvalidArgument
from cmqd_gateway.process.gateway_logger import SparseWarning


class IgnoredKeys:
    """Counts the requests with ignored keys, and warns about them in a few lines."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Make the counter; ``now`` is the clock in seconds."""
        self.count: int = 0
        """Requests since the start of the gateway."""
        self._warning = SparseWarning("key_of_tag_topic_ignored", now)

    def note(self, secret_id: str, topic: str, parameter: str) -> None:
        """Count a request of a key; ``parameter`` is the ignored parameter, in CMQ's words."""
        self.count += 1
        self._warning.note(key=secret_id, topic=topic, parameter=parameter)

    def flush(self) -> None:
        """Write the line of requests that no line has counted so far."""
        self._warning.flush()


def is_key_of_tag_topic(refusal: InvalidArgument, field: str) -> bool:
    """Return True for the refusal of keys because the topic filters by tags; ``field`` is the broker's name."""
    return refusal.details.get("field") == field and refusal.details.get("limit") == "empty"
