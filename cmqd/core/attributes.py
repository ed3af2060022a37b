"""Checks of attributes against their declarations, and the rules between the attributes of a queue."""

from collections.abc import Mapping, Sequence
from typing import TypeGuard, TypeVar, cast

from msgspec import Struct, structs

from cmqd.core.domain_errors import InvalidArgument, shown
from cmqd.core.limits import check_range
from cmqd.core.names import check_name
from cmqd_types.attributes import QUEUE, QueueAttributes
from cmqd_types.declared import Attribute, Unit
from cmqd_types.sentences import duration, field_name, field_names, quantity, sentence

Kind = TypeVar("Kind", bound=Struct)


def defaults(kind: type[Kind], declared: Mapping[str, Attribute]) -> Kind:
    """Return the attributes of a new object."""
    return kind(**{name: attribute.default for name, attribute in declared.items()})


def check_each(
    noun: str, declared: Mapping[str, Attribute], base: Struct, changes: Mapping[str, object], *, creating: bool = False
) -> None:
    """Check each of ``changes`` to ``base`` by itself.

    Args:
        noun: kind of the object, for errors.
        declared: the attributes of this kind of object.
        base: the attributes that the object has.
        changes: new values by name.
        creating: True if attributes that are fixed at creation can differ from ``base``.

    Raises:
        InvalidArgument: an attribute is unknown, out of its range, or fixed.
    """
    for name, value in changes.items():
        attribute = declared.get(name)
        if attribute is None:
            raise InvalidArgument(
                sentence(
                    "a {} has no attribute {}; its attributes are {}", noun, shown(name), field_names(list(declared))
                ),
                field=name,
                value=value,
                limit=f"one of {', '.join(declared)}",
            )
        _check_value(attribute, value)
        if attribute.is_fixed and not creating and value != getattr(base, name):
            value_now = getattr(base, name)
            raise InvalidArgument(
                sentence(
                    "{} is fixed when a {} is created; this {} has {}",
                    *(field_name(name), noun, noun),
                    shown(value_now) if isinstance(value_now, str) else quantity(name, value_now),
                ),
                field=name,
                value=value,
                limit=str(value_now),
            )


def _check_value(attribute: Attribute, value: object) -> None:
    name = attribute.name
    match attribute.unit:
        case Unit.SWITCH:
            if type(value) is not bool:
                raise _wrong(name, value, "true or false")
        case Unit.CHOICE:
            if value not in attribute.choices:
                raise _wrong(name, value, " or ".join(attribute.choices))
        case Unit.NAME:
            if not isinstance(value, str):
                raise _wrong(name, value, "the name of a queue, or empty")
        case Unit.TEXT:
            if not isinstance(value, str) or not value:
                raise _wrong(name, value, "text")
        case Unit.TEXTS:
            if not _are_texts(value):
                raise _wrong(name, value, "a list of texts")
        case Unit.MILLISECONDS | Unit.BYTES | Unit.COUNT:
            number = check_range(name, value, attribute.low, attribute.high)
            if 0 < number < attribute.least:
                raise InvalidArgument(
                    sentence(
                        "{} is {}; it must be 0, or at least {}",
                        field_name(name),
                        quantity(name, number),
                        quantity(name, attribute.least),
                    ),
                    field=name,
                    value=number,
                    limit=f"0, or at least {attribute.least}",
                    range=(attribute.least, attribute.high),
                )


def _wrong(name: str, value: object, limit: str) -> InvalidArgument:
    text = sentence("{} must be {}, not {}", field_name(name), limit, shown(value))
    return InvalidArgument(text, field=name, value=value, limit=limit)


def _are_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(text, str) for text in cast("Sequence[object]", value))


# ---------------------------------------------------------------- queues


def check_queue_attributes(base: QueueAttributes, changes: Mapping[str, object], *, creating: bool = False) -> None:
    """Check each of ``changes`` to the attributes of a queue by itself.

    Raises:
        InvalidArgument: an attribute is unknown, out of its range, or fixed.
    """
    name = changes.get("dead_letter_queue")
    if isinstance(name, str) and name:
        # Before any comparison: an error must not repeat a text of any length.
        check_name("dead_letter_queue", name)
    check_each("queue", QUEUE, base, changes, creating=creating)


def new_queue_attributes(changes: Mapping[str, object]) -> QueueAttributes:
    """Return the attributes of a new queue.

    Raises:
        InvalidArgument: as :func:`checked_attributes`.
    """
    return checked_attributes(defaults(QueueAttributes, QUEUE), changes, creating=True)


def checked_attributes(
    base: QueueAttributes, changes: Mapping[str, object], *, creating: bool = False
) -> QueueAttributes:
    """Return ``base`` with ``changes`` applied. The existence of the dead-letter queue is not checked here.

    Raises:
        InvalidArgument: an attribute is unknown, out of its range, or contradicts a second attribute.
    """
    check_queue_attributes(base, changes, creating=creating)
    chosen = dict(changes)
    if base.dead_letter_queue and changes.get("dead_letter_queue") == "":
        # Unbound: the policy goes too, unless ``changes`` names a policy, which then fails as a contradiction.
        chosen = {"dead_letter_max_receives": 0, "dead_letter_after_ms": 0} | chosen
    attributes = structs.replace(base, **chosen)
    _check_together(attributes)
    return attributes


def _check_together(attributes: QueueAttributes) -> None:
    retention_ms = attributes.retention_ms
    if attributes.rewind_ms > retention_ms:
        raise InvalidArgument(
            sentence(
                "{rewind_ms} ({}) is longer than {retention_ms} ({})",
                duration(attributes.rewind_ms),
                duration(retention_ms),
            ),
            field="rewind_ms",
            value=attributes.rewind_ms,
            limit=f"at most retention_ms ({retention_ms})",
            range=(0, retention_ms),
        )
    if attributes.auto_delete_after_ms and (attributes.transactional or attributes.dead_letter_queue):
        # The messages of such a queue are still to be decided or moved, by clients and queues that do not know that the
        # queue may go.
        reason = "is transactional" if attributes.transactional else "has a dead-letter queue"
        raise InvalidArgument(
            sentence(
                "{auto_delete_after_ms} ({}) must be 0 for a queue that {}",
                duration(attributes.auto_delete_after_ms),
                reason,
            ),
            field="auto_delete_after_ms",
            value=attributes.auto_delete_after_ms,
            limit=f"0 for a queue that {reason}",
            range=(0, 0),
        )
    if attributes.delay_ms >= retention_ms:
        raise InvalidArgument(
            sentence(
                "{delay_ms} ({}) must be less than {retention_ms} ({}): messages would expire before they become"
                " active",
                duration(attributes.delay_ms),
                duration(retention_ms),
            ),
            field="delay_ms",
            value=attributes.delay_ms,
            limit=f"less than retention_ms ({retention_ms})",
            range=(0, retention_ms - 1),
        )
    _check_dead_letters(attributes)


def _check_dead_letters(attributes: QueueAttributes) -> None:
    """Check the dead-letter policy against the retention and the dead-letter queue."""
    retention_ms = attributes.retention_ms
    receives, after_ms = attributes.dead_letter_max_receives, attributes.dead_letter_after_ms
    if after_ms and after_ms >= retention_ms:
        raise InvalidArgument(
            sentence(
                "{dead_letter_after_ms} ({}) must be less than {retention_ms} ({})",
                duration(after_ms),
                duration(retention_ms),
            ),
            field="dead_letter_after_ms",
            value=after_ms,
            limit=f"less than retention_ms ({retention_ms})",
            range=(0, retention_ms - 1),
        )
    if not attributes.dead_letter_queue:
        if receives or after_ms:
            field = "dead_letter_max_receives" if receives else "dead_letter_after_ms"
            raise InvalidArgument(
                sentence(
                    "{} needs a {dead_letter_queue}; set both, or leave {} at 0", field_name(field), field_name(field)
                ),
                field=field,
                value=receives or after_ms,
                limit="0 without a dead_letter_queue",
                range=(0, 0),
            )
    elif bool(receives) == bool(after_ms):
        raise InvalidArgument(
            sentence(
                "with a {dead_letter_queue}, exactly one of {dead_letter_max_receives} and {dead_letter_after_ms} must"
                " be set; they are {} and {}",
                receives,
                duration(after_ms),
            ),
            field="dead_letter_max_receives",
            value=receives,
            limit="one of the two set, the other 0",
        )
