"""The attributes of a queue as the client has them: the text of ``cmqd_client/queue_attributes.py``.

Type checkers know keyword arguments and fields from source text alone, so this module makes a file.
"""

import textwrap

from cmqd_bench.documents.attribute_tables import readable_number
from cmqd_types.attributes import QUEUE
from cmqd_types.declared import Attribute, Unit

WIDTH = 120

_KEYWORDS = {Unit.MILLISECONDS: "Duration", Unit.SWITCH: "bool", Unit.NAME: "str", Unit.CHOICE: "str"}
_FIELDS = {
    Unit.MILLISECONDS: "float = 0.0",
    Unit.BYTES: "int = 0",
    Unit.COUNT: "int = 0",
    Unit.NAME: 'str = ""',
    Unit.CHOICE: 'str = ""',
}

_HEAD = '''\
"""Attributes of a queue, as keyword arguments and as fields.

Made from ``cmqd_types.attributes`` by ``cmqd_bench.pages``; changes belong there.
"""

from typing import TypedDict

import msgspec

from cmqd_client.durations import Duration


class QueueAttributes(TypedDict, total=False):
    """Attributes that can be set; an omitted attribute keeps its value, or has its default in a new queue.

    Durations are seconds or ``timedelta``. The server refuses a value out of range, with the attribute's name.
    """

'''
_FIELDS_HEAD = '''

class QueueValues(msgspec.Struct, frozen=True, kw_only=True):
    """Name and attributes of a queue; durations are seconds."""

    name: str
    id: int
    """Changes if the queue is deleted and created again."""
    created: bool
    """True if this call created the queue."""

'''


def queue_attributes() -> str:
    """Return the text of the file."""
    keywords: list[str] = []
    fields: list[str] = []
    for attribute in QUEUE.values():
        keywords += [f"    {attribute.argument}: {_KEYWORDS.get(attribute.unit, 'int')}", _docstring(attribute)]
        fields.append(f"    {attribute.argument}: {_FIELDS.get(attribute.unit, f'bool = {attribute.stored_default}')}")
    return _HEAD + "\n".join(keywords) + "\n" + _FIELDS_HEAD + "\n".join(fields) + "\n"


def _docstring(attribute: Attribute) -> str:
    text = f"{attribute.help} ({attribute.limits(readable_number)}). {attribute.details}".strip()
    lines = textwrap.wrap(f'"""{text}"""', WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)
