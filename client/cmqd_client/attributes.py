"""Attributes of a queue: values that its owner sets, and facts from the server."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from msgspec import field

from cmqd_client.durations import to_ms
from cmqd_client.infos import info_fields
from cmqd_client.queue_attributes import QueueAttributes, QueueValues
from cmqd_protocol import messages
from cmqd_types.attributes import QUEUE
from cmqd_types.declared import Unit

_TYPES = {Unit.SWITCH: bool, Unit.NAME: str, Unit.CHOICE: str}
"""Types of values that are not numbers."""


class QueueInfo(QueueValues, frozen=True, kw_only=True):
    """A queue at the time of the request; durations are seconds."""

    active: int = 0
    """Messages that can be received."""
    in_flight: int = 0
    """Messages received, hidden and not deleted."""
    delayed: int = 0
    """Messages that cannot be received yet."""
    half: int = 0
    """Half messages that are neither committed nor rolled back."""
    rewindable: int = 0
    """Deleted messages that ``rewind`` can bring back."""
    dead_letter_sources: list[str] = field(default_factory=list[str])
    """Queues that use this queue as their dead-letter queue, by name."""
    oldest_message_time: datetime | None = None
    """Time of the send of the oldest message that is active or in flight; None = no message is."""
    create_time: datetime | None = None
    modify_time: datetime | None = None
    """Time of the last change of an attribute."""
    region: str = ""
    address: str = ""
    """``host:port`` at which clients reach the queue's server."""

    details: Mapping[str, Any]
    """The server's full reply under its names on the wire, including facts unknown to this version."""
    request_id: int

    def attributes(self) -> QueueAttributes:
        """The attributes that can be set, as arguments for ``create_queue`` and ``set_attributes``.

        An attribute that the server does not know is left out; an older server would refuse it.
        """
        known = [attribute.argument for attribute in QUEUE.values() if attribute.name in self.details]
        return cast("QueueAttributes", {name: getattr(self, name) for name in known})


def check_names(given: Mapping[str, Any], known: Mapping[str, Any], noun: str) -> None:
    """Check that all given attributes are among the known attributes.

    Raises:
        TypeError: an attribute is unknown.
    """
    for name in given:
        if name not in known:
            raise TypeError(f"a {noun} has no attribute {name!r}; its attributes are {', '.join(sorted(known))}")


def to_wire(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes in wire form.

    Raises:
        TypeError: an attribute is unknown, or a value is of the wrong type.
        ValueError: a duration is not finite.
    """
    declared = {attribute.argument: attribute for attribute in QUEUE.values()}
    check_names(attributes, declared, "queue")
    wire: dict[str, Any] = {}
    for name, value in attributes.items():
        attribute = declared[name]
        kind = _TYPES.get(attribute.unit, int)
        if attribute.unit is Unit.MILLISECONDS:
            wire[attribute.name] = to_ms(value, name)
        elif type(value) is kind:
            wire[attribute.name] = value
        else:
            raise TypeError(f"{name} must be {'an' if kind is int else 'a'} {kind.__name__}, not {value!r}")
    return wire


def from_wire(reply: messages.QueueInfo) -> QueueInfo:
    """Convert the reply about a queue."""
    return QueueInfo(name=reply.queue, id=reply.queue_id, **info_fields(QueueInfo, reply))
