"""Options of the transport: constants, and the entries of ``transport_options`` (``broker_transport_options``).

Pure: no kombu, no socket, no thread.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from cmqd_client.durations import check_seconds
from cmqd_types.attributes import QUEUE

SCHEME = "cmq"
"""The scheme of the broker's URL."""
LEASE = 30.0
"""Default visibility timeout in seconds of received messages: after this time the broker delivers the messages of a
killed process again. A lease is extended after a third of the time, so that two extensions in a row may fail."""
RETENTION = QUEUE["retention_ms"].high / 1000
"""Default life in seconds of a message in a queue that the transport creates: the broker's maximum. A task with a
later ETA is refused."""
MAX_MESSAGE_BYTES = QUEUE["max_message_bytes"].high
"""Longest message of the queues and exchanges that the transport creates: the broker's maximum. AMQP has no limit."""
LONGEST_DELAY = QUEUE["delay_ms"].high / 1000
"""Longest delay of a send in seconds that every server takes. If the server refuses a longer delay, a later task is
received when this delay ends, and hidden again; these receives count."""
LONGEST_LEASE = QUEUE["visibility_timeout_ms"].high / 1000
"""Longest visibility timeout in seconds (the broker's limit)."""
LONGEST_POLL = QUEUE["polling_wait_ms"].high / 1000
"""Wait of a receive in seconds: the broker's maximum, so an idle queue costs a request per 30 s."""
SHORTEST_EXPIRY = QUEUE["retention_ms"].low / 1000
"""Shortest time in seconds after which the broker deletes an unused queue, and shortest retention (the broker's)."""
BUFFER = 64
"""Messages that a consumer without a prefetch limit receives ahead of its callbacks."""
PRIORITY_STEPS = (0, 3, 6, 9)
"""Lowest priorities of the levels of a queue with ``max_priority``; a level is a queue of the broker."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The entries of ``transport_options`` that this transport knows. Durations are seconds."""

    lease: float = LEASE
    """1 s to 12 h; see :data:`LEASE`."""
    retention: float = RETENTION
    """1 min to 15 d; for new queues."""
    queue_prefix: str = ""
    """Put before the names of all queues and exchanges, so that several programs can share an account."""
    eta_in_broker: bool = True
    """True: tasks with an ETA wait in the broker. False: they wait in the memory of a worker, which receives them at
    once; they do not count towards the prefetch limit, and ``celery inspect scheduled`` lists them."""
    connections: int = 1
    """Connections to the server, 1 to 64; see :func:`cmqd_client.connect`."""


_KOMBU_OPTIONS = frozenset(
    {"max_retries", "interval_start", "interval_step", "interval_max", "errback", "callback", "on_revive"}
    | {"confirm_publish", "client_properties", "polling_interval", "visibility_timeout"}
)
"""Options that kombu and Celery read themselves, or that programs set for several transports. Among
them is ``visibility_timeout``: with Redis and SQS it limits the time of a task, and a lease here does not."""


def parse_options(given: Mapping[str, Any] | None) -> Options:
    """Read ``transport_options``.

    Raises:
        ValueError: an option is unknown, of the wrong type or out of range.
    """
    values = {name: value for name, value in (given or {}).items() if name not in _KOMBU_OPTIONS}
    try:
        options = msgspec.convert(values, Options)
    except msgspec.ValidationError as error:
        raise ValueError(f"transport_options of cmq://: {error}") from None
    check_seconds("lease", options.lease, QUEUE["visibility_timeout_ms"])
    check_seconds("retention", options.retention, QUEUE["retention_ms"])
    return options


def levels(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the priority steps of a queue with these AMQP arguments, lowest first; ``(0,)`` = no priorities."""
    highest = arguments.get("x-max-priority")
    return PRIORITY_STEPS[:1] if not highest else tuple(step for step in PRIORITY_STEPS if step <= highest)


def level_of(priority: int | None, steps: tuple[int, ...]) -> int:
    """Return the step of a message with this priority: the highest step that is not above the priority."""
    return max((step for step in steps if step <= (priority or 0)), default=steps[0])
