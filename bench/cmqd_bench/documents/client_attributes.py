"""The attributes of objects as the client has them: the text of ``cmqd_client/declared_attributes.py``.

Type checkers know keyword arguments and fields from source text alone, so this module makes a file.
"""

import textwrap
from collections.abc import Mapping

from cmqd_bench.documents.attribute_tables import readable_number
from cmqd_types import attributes
from cmqd_types.declared import Attribute, Unit

WIDTH = 120

_KEYWORDS = {
    Unit.MILLISECONDS: "Duration",
    Unit.SWITCH: "bool",
    Unit.NAME: "str",
    Unit.TEXT: "str",
    Unit.CHOICE: "str",
    Unit.TEXTS: "Iterable[str]",
}
_FIELDS = {
    Unit.MILLISECONDS: "float = 0.0",
    Unit.BYTES: "int = 0",
    Unit.COUNT: "int = 0",
    Unit.NAME: 'str = ""',
    Unit.TEXT: 'str = ""',
    Unit.CHOICE: 'str = ""',
    Unit.TEXTS: "list[str] = []",
}

_HEAD = '''\
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

'''
_QUEUE_VALUES = '''

class QueueValues(msgspec.Struct, frozen=True, kw_only=True):
    """Name and attributes of a queue; durations are seconds."""

    name: str
    id: int
    """Changes if the queue is deleted and created again."""
    created: bool
    """True if this call created the queue."""

'''
_TOPIC_ATTRIBUTES = '''

class TopicAttributes(TypedDict, total=False):
    """Attributes of a new topic; an omitted attribute, or None, has its default."""

'''
_TOPIC_CHANGES = '''

class TopicChanges(TypedDict, total=False):
    """Attributes of a topic that can be changed, for messages published from now on; an omitted attribute stays."""

'''
_TOPIC_VALUES = '''

class TopicValues(msgspec.Struct, frozen=True, kw_only=True):
    """Name and attributes of a topic; durations are seconds."""

    name: str
    id: int
    """Changes if the topic is deleted and created again."""
    created: bool
    """True if this call created the topic."""

'''
_SUBSCRIPTION_ATTRIBUTES = '''

class SubscriptionAttributes(TypedDict, total=False):
    """Attributes of a subscription; an omitted attribute, or None, has its default, or stays as it is."""

'''
_SUBSCRIPTION_VALUES = '''

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
'''
_SCHEDULE_OPTIONS = '''

class ScheduleOptions(TypedDict, total=False):
    """Attributes of a schedule; an omitted attribute, or None, has its default, or stays as it is."""

'''
_SCHEDULE_VALUES = '''

class ScheduleValues(msgspec.Struct, frozen=True, kw_only=True):
    """Name and attributes of a schedule."""

    name: str
    id: int
    """Changes if the schedule is deleted and created again."""
    created: bool
    """True if this call created the schedule."""

'''


def declared_attributes() -> str:
    """Return the text of the file."""
    queue, topic, subscription = attributes.QUEUE, attributes.TOPIC, attributes.SUBSCRIPTION
    parts = [
        *(_HEAD, _keywords(queue), _QUEUE_VALUES, _fields(queue)),
        *(_TOPIC_ATTRIBUTES, _keywords(topic, " | None"), _TOPIC_CHANGES, _keywords(attributes.TOPIC_CHANGES)),
        *(_TOPIC_VALUES, _fields(topic)),
        *(_SUBSCRIPTION_ATTRIBUTES, _keywords(attributes.SUBSCRIPTION_OPTIONS, " | None")),
        *(_SUBSCRIPTION_VALUES, _fields(subscription)),
        *(_SCHEDULE_OPTIONS, _keywords(attributes.SCHEDULE_OPTIONS, " | None")),
        *(_SCHEDULE_VALUES, _fields(attributes.SCHEDULE)),
    ]
    return "".join(parts)


def _keywords(declared: Mapping[str, Attribute], omitted: str = "") -> str:
    lines: list[str] = []
    for attribute in declared.values():
        kind = _KEYWORDS.get(attribute.unit, "int")
        if attribute.enumeration is not None:
            words = ", ".join(f'"{word}"' for word in attribute.choices)
            kind = f"{attribute.enumeration.__name__} | Literal[{words}]"
        lines.append(f"    {attribute.argument}: {kind}{omitted}\n{_docstring(attribute)}\n")
    return "".join(lines)


def _fields(declared: Mapping[str, Attribute]) -> str:
    lines: list[str] = []
    for attribute in declared.values():
        kind = _FIELDS.get(attribute.unit, f"bool = {attribute.stored_default}")
        if attribute.enumeration is not None:
            member = attribute.enumeration(str(attribute.stored_default))
            kind = f"{type(member).__name__} | str = {type(member).__name__}.{member.name}"
        lines.append(f"    {attribute.argument}: {kind}\n")
    return "".join(lines)


def _docstring(attribute: Attribute) -> str:
    text = f"{attribute.help} ({attribute.limits(readable_number)}). {attribute.details}".strip()
    lines = textwrap.wrap(f'"""{text}"""', WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)
