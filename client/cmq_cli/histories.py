"""Histories of messages as tables and documents."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from cmq_cli.output import Output
from cmq_cli.values import from_ms, printable, show_time
from cmqd_client.messages.message_ids import printed_id
from cmqd_reading.life_texts import life_text, place_text
from cmqd_reading.places import LIVE
from cmqd_types.histories import LifeEvent, MessageHistory


def show_history(output: Output, histories: Sequence[MessageHistory]) -> None:
    """Print histories: an event per line, and the place of the message now; with JSON a list of documents."""
    if output.json:
        output.document([_document(history) for history in histories])
        return
    for number, history in enumerate(histories):
        if number:
            output.remark("")
        _show(output, history)


def _show(output: Output, history: MessageHistory) -> None:
    days = {_local(event.time_ms).date() for event in history.events}
    # A table of a day has the day in its head, and the times are short enough to be compared.
    heading, form = (str(days.pop()), "%H:%M:%S") if len(days) == 1 else ("time", "%Y-%m-%d %H:%M:%S")
    rows = [
        (
            f"{_local(event.time_ms).strftime(form)}.{event.time_ms % 1000:03}",
            event.queue or "-",
            printable(life_text(event)).replace("\n", "\\n"),
        )
        for event in history.events
    ]
    output.table((f"{heading}!", "queue", printed_id(history.message_id)), rows)
    if history.left_out:
        output.warning(f"{history.left_out:,} events in the middle of the history are left out")
    as_of = f"as of row {history.last_lsn} ({show_time(from_ms(history.last_ms))})"
    for place in history.places:
        if place.state in LIVE:
            output.remark(f"{as_of}: {printed_id(place.message_id)} {place_text(place)} in {place.queue or '-'}")
    if history.places and not any(place.state in LIVE for place in history.places):
        output.remark(f"{as_of}: in no queue any more")


def _local(time_ms: int) -> datetime:
    return from_ms(time_ms).astimezone()


def _document(history: MessageHistory) -> dict[str, Any]:
    return {
        "id": printed_id(history.message_id),
        "events": [_event(event) for event in history.events],
        "places": [
            {
                "queue": place.queue,
                "id": printed_id(place.message_id),
                "state": place.state,
                "since": from_ms(place.since_ms),
                "until": from_ms(place.until_ms) if place.until_ms else None,
                "certain": place.is_certain,
            }
            for place in history.places
        ],
        "last_lsn": history.last_lsn,
        "last_time": from_ms(history.last_ms),
        "left_out": history.left_out,
    }


_TIMES = {"time_ms": "time", "until_ms": "until"}
_IDS = {"message_id": "id", "from_id": "from_id"}
_FLAGS = {"is_counted": "counted", "is_certain": "certain"}


def _event(event: LifeEvent) -> dict[str, Any]:
    """Return an event for JSON: its text, and the fields that say more than their defaults."""
    document: dict[str, Any] = {}
    defaults = {field.name: field.default for field in msgspec.structs.fields(LifeEvent)}
    for name, value in msgspec.structs.asdict(event).items():
        if value == defaults[name] or name == "sent_ms":
            continue
        if name in _TIMES:
            document[_TIMES[name]] = from_ms(value)
        elif name == "actor":
            document[name] = {field: each for field, each in msgspec.structs.asdict(value).items() if each}
        elif name in _IDS:
            document[_IDS[name]] = printed_id(value)
        else:
            document[_FLAGS.get(name, name)] = value
    return document | {"text": life_text(event)}
