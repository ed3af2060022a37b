"""``cmq status``."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, cast

from cyclopts import Parameter

from cmq_cli.durations import show_duration
from cmq_cli.output import Output, show_count, show_size, show_time, show_value
from cmq_cli.session import Session

_SECTIONS: Final = {
    "Clients": ("connections", "waiting_receives", "held_replies", "checkers", "pushes_under_way"),
    "Model": ("accounts", "queues", "topics", "subscriptions"),
    "Storage": (
        "segments",
        "log_bytes",
        "history_bytes",
        "free_bytes",
        "last_lsn",
        "durable_lsn",
        "pending_bytes",
        "pending_records",
    ),
}
"""Headings and fields in the order in which they are shown. A field that no heading names, from a newer server too,
stands under ``Server``; a map has a heading of its own."""

_MOMENTS: Final = frozenset({"time_ms", "broker_time_ms"})
"""Fields in milliseconds that are a time since 1970 and not a duration."""

_OFFSET_WARNED_MS: Final = 60_000


async def status(*, session: Annotated[Session, Parameter(parse=False)]) -> None:
    """Show the state of the server: version, durability, uptime, clients, storage, totals since its start.

    The account admin sees all of it, other accounts the first section.
    """
    async with session.client() as client:
        found = await client.status()
    if session.output.json:
        session.output.document(found)
    else:
        _show(session.output, found)


def _show(output: Output, found: Mapping[str, Any]) -> None:
    if found.get("sends_refused"):
        output.warning(f"sends are refused: {found.get('sends_refused_reason') or 'no reason given'}")
    offset_ms = found.get("clock_offset_ms", 0)
    if abs(offset_ms) >= _OFFSET_WARNED_MS:
        where = "ahead of" if offset_ms > 0 else "behind"
        output.warning(f"the wall clock of the server is {where} broker time, the time of all messages")
    named = {field for fields in _SECTIONS.values() for field in fields}
    hidden = named | {"sends_refused_reason"}
    sections: dict[str, Mapping[str, Any]] = {
        "Server": {
            field: value for field, value in found.items() if field not in hidden and not isinstance(value, dict)
        }
    }
    for heading, fields in _SECTIONS.items():
        sections[heading] = {field: found[field] for field in fields if field in found}
    for field, value in found.items():
        if isinstance(value, dict):
            heading = "Totals since the start" if field == "counters" else _words(field).capitalize()
            sections[heading] = cast("dict[str, Any]", value)
    output.sections(
        {
            heading: {_name(field): _text(field, value) for field, value in section.items()}
            for heading, section in sections.items()
            if section
        }
    )


def _words(field: str) -> str:
    return field.replace("_", " ")


def _name(field: str) -> str:
    return _words(field.removesuffix("_ms").removesuffix("_bytes"))


def _text(field: str, value: Any) -> str:
    """Return a value in words; the end of a field's name says what its number counts."""
    if isinstance(value, int) and not isinstance(value, bool):
        if field in _MOMENTS:
            return show_time(datetime.fromtimestamp(value / 1000, UTC))
        if field.endswith("_ms"):
            duration = show_duration(round(abs(value) / 1000) if abs(value) >= 60_000 else abs(value) / 1000)
            return f"-{duration}" if value < 0 else duration
        if field.endswith("_bytes"):
            return show_size(value)
        # Process ids and rows of the log are names to be typed, and no counts.
        return str(value) if field.endswith(("pid", "lsn")) else show_count(value)
    return show_value(value)
