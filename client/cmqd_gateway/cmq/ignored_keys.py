"""Binding keys and routing keys of requests to topics that filter by tags: CMQ's doors ignore them, and count.

CMQ accepts such keys, and CMQ's own tests send them. A program that meant a topic with routing keys gets every message
of the topic, or publishes to every subscription; the counter and the log show the mistake. The broker decides about
the kind of a topic: the gateway sends the keys along, and repeats the refused request without keys. A look at the
topic beforehand would cost every request, and another client can replace the topic in between.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from cmqd_client.errors import InvalidArgument
from cmqd_gateway.process.gateway_logger import SparseWarning

API2: Final = "api2"
TCP: Final = "tcp"
DOORS: Final = (API2, "api3", TCP)
"""The doors that ignore keys, as in metrics and log lines."""


class IgnoredKeys:
    """Counts the requests with ignored keys, and warns about them in a few lines."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Make the counter; ``now`` is the clock in seconds."""
        self.counts: Counter[str] = Counter(dict.fromkeys(DOORS, 0))
        """Requests since the start of the gateway, by door."""
        self._warning = SparseWarning("key_of_tag_topic_ignored", now)

    @property
    def count(self) -> int:
        """Requests of all doors."""
        return self.counts.total()

    def note(self, secret_id: str, topic: str, parameter: str, door: str = API2) -> None:
        """Count a request of a key; ``parameter`` is the ignored parameter, in the words of the door."""
        self.counts[door] += 1
        self._warning.note(key=secret_id, topic=topic, parameter=parameter, door=door)

    def flush(self) -> None:
        """Write the line of requests that no line has counted so far."""
        self._warning.flush()


def is_of_other_kind(refusal: InvalidArgument, field: str) -> bool:
    """Return True for the refusal of keys because the topic filters by tags, or of tags because it filters by keys.

    ``field`` is the broker's name of the keys or tags.
    """
    return refusal.details.get("field") == field and refusal.details.get("limit") == "empty"
