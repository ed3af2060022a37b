"""Tables of attributes in Markdown, from their declarations in ``cmqd_types.attributes``."""

from collections.abc import Mapping

from cmqd_types.attributes import QUEUE, SCHEDULE, SUBSCRIPTION, TOPIC
from cmqd_types.declared import Attribute, Unit
from cmqd_types.sentences import readable_duration, readable_size

STORED: Mapping[str, Mapping[str, Attribute]] = {"queue": QUEUE, "topic": TOPIC, "subscription": SUBSCRIPTION}
"""Attributes with a stored default."""
TABLES: Mapping[str, Mapping[str, Attribute]] = {**STORED, "schedule": SCHEDULE}
CREATING: Mapping[str, str] = {
    "queue": "`create_queue` and `ensure_queue`",
    "topic": "`create_topic` and `ensure_topic`",
    "subscription": "`subscribe` and `ensure_subscription`",
}


def spec_table(noun: str) -> str:
    """Return the table of SPEC.md: names, ranges and defaults on the wire."""
    lines = ["| attribute | values | default | meaning |", "| --- | --- | --- | --- |"]
    for name, attribute in TABLES[noun].items():
        fixed = f", only in {CREATING[noun]}" if attribute.is_fixed else ""
        default = attribute.default_text or shown_value(attribute.default)
        lines.append(f"| `{name}` | {_values(attribute)}{fixed} | {default} | {attribute.help} |")
    return "\n".join(lines)


def segments_table(noun: str) -> str:
    """Return the table of SEGMENTS.md: values of attributes that a stored map lacks."""
    lines = ["| attribute | default |", "| --- | --- |"]
    for name, attribute in TABLES[noun].items():
        lines.append(f"| `{name}` | {shown_value(attribute.stored_default)} |")
    return "\n".join(lines)


def docs_table(noun: str) -> str:
    """Return the table for users: names, ranges and defaults of the client, ``cmq`` and the JSON API."""
    lines = ["| attribute | range and default | meaning |", "| --- | --- | --- |"]
    for attribute in TABLES[noun].values():
        limits = attribute.limits(readable_number, marks="`")
        cmq = f" API 2.0: `{attribute.cmq}`." if attribute.cmq else ""
        meaning = f"{attribute.help}. {attribute.details}".strip()
        lines.append(f"| `{attribute.argument}` | {limits} | {meaning}{cmq} |")
    return "\n".join(lines)


def readable_number(attribute: Attribute, number: int) -> str:
    """Return a number of an attribute with its unit."""
    match attribute.unit:
        case Unit.MILLISECONDS:
            return readable_duration(number)
        case Unit.BYTES:
            return readable_size(number)
        case _:
            return f"{number:,}"


def shown_value(value: object) -> str:
    """Return a default as the protocol has it."""
    if value in ("", []):
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else f"`{value}`"


def _values(attribute: Attribute) -> str:
    match attribute.unit:
        case Unit.SWITCH:
            return "boolean"
        case Unit.CHOICE:
            return " or ".join(f"`{word}`" for word in attribute.choices)
        case Unit.NAME | Unit.TEXT:
            return "text"
        case Unit.TEXTS:
            return f"list of at most {attribute.high} texts"
        case Unit.MILLISECONDS | Unit.BYTES | Unit.COUNT:
            least = f"0, or {attribute.least:,}" if attribute.least > 1 else f"{attribute.low:,}"
            return f"{least}-{attribute.high:,}"
