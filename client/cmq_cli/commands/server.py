"""``cmq status``: the state of the server."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, cast

import msgspec
from cyclopts import Parameter
from msgspec.structs import asdict

from cmq_cli.options import CurrentSession, Flag
from cmq_cli.output import Output
from cmq_cli.session import Session
from cmq_cli.values import show_value
from cmqd_client.administration.inspection import Setting
from cmqd_types.pins import StandingPinInfo
from cmqd_types.sentences import in_seconds

_SECTIONS: Final = {
    "Clients": ("connections", "waiting_receives", "held_replies", "checkers", "pushes_under_way"),
    "Model": ("accounts", "queues", "topics", "subscriptions"),
    "Storage": (
        *("segments", "log_bytes", "history_bytes", "free_bytes", "pins", "standing_pins"),
        *("last_lsn", "durable_lsn", "pending_bytes", "pending_records"),
    ),
}
"""Headings and their fields, in the order of the output. Other fields, also those of a newer server, are shown under
``Server``; a map has a heading of its own."""

_OFFSET_WARNED_MS: Final = 60_000


async def status(
    *,
    settings: Annotated[
        Flag, Parameter(help="Show the settings in force instead, with their origins. Only for admin.")
    ] = False,
    session: CurrentSession,
) -> None:
    """Show the state of the server: version, durability, uptime, clients, storage, totals since its start.

    Accounts other than admin see only the first section.
    """
    if settings:
        await _show_settings(session)
        return
    async with session.client() as client:
        status = await client.status()
    if session.output.json:
        session.output.document(dict(status))
    else:
        _show(session.output, status)


async def _show_settings(session: Session) -> None:
    async with session.client() as client:
        settings = await client.settings()
    document = [asdict(setting) for setting in settings]
    rows = [
        [
            setting.name,
            show_value(setting.name, setting.value),
            _origin(setting),
            show_value(setting.name, setting.default),
        ]
        for setting in settings
    ]
    session.output.listing(document, ["setting", "value", "origin", "default"], rows)


def _origin(setting: Setting) -> str:
    return f"{setting.origin} {setting.place}".rstrip()


def _show(output: Output, status: Mapping[str, Any]) -> None:
    if status.get("sends_refused"):
        output.warning(f"sends are refused: {status.get('sends_refused_reason') or 'no reason given'}")
    offset_ms = status.get("clock_offset_ms", 0)
    if abs(offset_ms) >= _OFFSET_WARNED_MS:
        direction = "ahead of" if offset_ms > 0 else "behind"
        output.warning(f"the wall clock of the server is {direction} broker time, the time of all messages")
    for pin in msgspec.convert(status.get("standing_pins", []), list[StandingPinInfo]):
        if pin.is_overdue:
            output.warning(f"the last good copy of backup {pin.name} is {show_value('_ms', pin.copied_age_ms)} old")
    replication = status.get("replication", {})
    if replication.get("waiting_for"):
        output.warning(
            f"the broker has waited {in_seconds(replication['waiting_ms'])} for {replication['waiting_for']}"
        )
    elsewhere = {field for fields in _SECTIONS.values() for field in fields} | {"sends_refused_reason"}
    sections: dict[str, Mapping[str, Any]] = {
        "Server": {
            field: value for field, value in status.items() if field not in elsewhere and not isinstance(value, dict)
        }
    }
    for heading, fields in _SECTIONS.items():
        sections[heading] = {field: status[field] for field in fields if field in status}
    for field, value in status.items():
        if isinstance(value, dict):
            heading = "Totals since the start" if field == "counters" else _words(field).capitalize()
            sections[heading] = cast("dict[str, Any]", value)
    output.sections(
        {
            heading: {_label(field): _shown(field, value) for field, value in section.items()}
            for heading, section in sections.items()
            if section
        }
    )


def _shown(field: str, value: Any) -> str:
    if not isinstance(value, list):
        return show_value(field, value)
    rows = cast("list[dict[str, Any]]", value)
    return (
        "\n".join(", ".join(f"{_label(name)} {show_value(name, row[name])}" for name in row) for row in rows) or "none"
    )


def _words(field: str) -> str:
    return field.replace("_", " ")


def _label(field: str) -> str:
    return "duration" if field == "seconds" else _words(field.removesuffix("_ms").removesuffix("_bytes"))
