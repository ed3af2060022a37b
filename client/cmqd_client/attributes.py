"""Attributes: their form on the wire, and the result about a queue."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, cast

from msgspec import field

from cmqd_client.declared_attributes import QueueAttributes, QueueValues
from cmqd_client.durations import to_ms
from cmqd_client.replies.infos import info_fields
from cmqd_protocol import messages
from cmqd_types.attributes import QUEUE
from cmqd_types.declared import Attribute, Unit

_TYPES = {Unit.SWITCH: bool, Unit.NAME: str, Unit.TEXT: str}
"""Types of values that are sent as they are, beside numbers."""


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


def to_wire(
    noun: str, declared: Mapping[str, Attribute], given: Mapping[str, Any], *, skips_none: bool = True
) -> dict[str, Any]:
    """Return attributes in wire form.

    Args:
        noun: kind of the object, for errors.
        declared: the attributes that can be given.
        given: the attributes.
        skips_none: True = None stands for an omitted attribute.

    Raises:
        TypeError: an attribute is unknown, or a value is of the wrong type.
        ValueError: a duration is not finite.
    """
    known = {attribute.argument: attribute for attribute in declared.values()}
    wire: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"a {noun} has no attribute {name!r}; its attributes are {', '.join(sorted(known))}")
        if value is not None or not skips_none:
            wire[known[name].name] = _wire_value(known[name], value)
    return wire


def _wire_value(attribute: Attribute, value: Any) -> Any:
    match attribute.unit:
        case Unit.MILLISECONDS:
            return to_ms(value, attribute.argument)
        case Unit.TEXTS:
            return strings(value, attribute.argument)
        case Unit.CHOICE:
            return str(value)
        case unit:
            kind = _TYPES.get(unit, int)
            if type(value) is not kind:
                article = "an" if kind is int else "a"
                raise TypeError(f"{attribute.argument} must be {article} {kind.__name__}, not {value!r}")
            return value


def strings(values: Iterable[str], field: str) -> list[str]:
    """Return tags or keys as a list.

    Raises:
        TypeError: the value is a single string (its letters would be taken for tags), or an element is not a string.
    """
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{field} must be a list of strings, not {values!r}")
    texts = list(values)
    for value in texts:
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{field} must be strings, not {value!r}")
    return texts


def queue_info(reply: messages.QueueInfo) -> QueueInfo:
    """Convert the reply about a queue."""
    return QueueInfo(name=reply.queue, id=reply.queue_id, **info_fields(QueueInfo, reply, QUEUE))


def queue_attributes(given: QueueAttributes) -> dict[str, Any]:
    """Return the given attributes of a queue in wire form; see :func:`to_wire`."""
    return to_wire("queue", QUEUE, given, skips_none=False)
