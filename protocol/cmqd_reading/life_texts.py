"""Texts of histories: each event of a life as a line, and the place of the message at the end, for people."""

from typing import Final

from cmqd_types.actors import Actor
from cmqd_types.histories import LifeEvent, LifeKind, LifePlace
from cmqd_types.messages import printed_id
from cmqd_types.sentences import counted, in_bytes, readable_duration

_DEAD: Final = {"receives": "received too often", "age": "too old", "rejected": "rejected"}
_DROPPED: Final = {
    "retries": "the retries are used up",
    "damaged": "the body is damaged",
    "operator": "by an operator",
    "expired": "the retention ended",
    "unsubscribed": "the subscription was deleted",
}
_SHORT_KEY: Final = 8
"""Characters of the id of a key that are shown whole."""
_GONE: Final = "the row is not readable any more"


def life_text(event: LifeEvent) -> str:
    """Return an event as a line, without its time and queue. Words of clients in it are as they came."""
    match event.kind:
        case LifeKind.SENT:
            text = _sent(event)
        case LifeKind.HALF:
            text = f"sent as a half message, {in_bytes(event.size)}{_by(event, ', by')}; first check {_until(event)}"
        case LifeKind.COMMITTED:
            text = f"committed{_by(event)}"
        case LifeKind.ROLLED_BACK:
            text = f"rolled back{_by(event)}{_after(event)}"
        case LifeKind.CHECKED:
            text = "producer asked for its decision" + (f", next check {_until(event)}" if event.until_ms else "")
        case LifeKind.UNDECIDED:
            text = f"producer answered{_by(event)}: not decided yet"
        case LifeKind.PUBLISHED:
            text = _published(event)
        case LifeKind.COPIED:
            text = _copied(event)
        case LifeKind.DELIVERED:
            text = f"delivered to {_subscription(event)}"
        case LifeKind.DELIVERY_FAILED:
            retry = f"next {_until(event)}" if event.until_ms else "no retries left"
            text = f"attempt {event.receive_count} for {_subscription(event)} failed, {retry}: {event.text}"
        case LifeKind.DELIVERY_DROPPED:
            text = f"not delivered to {_subscription(event)}: {_DROPPED.get(event.reason, event.reason)}"
        case _:
            text = _in_queue(event)
    return text if event.is_certain else f"{text}, or gone before in missing rows"


def _in_queue(event: LifeEvent) -> str:
    match event.kind:
        case LifeKind.ACTIVATED:
            return "delay ended"
        case LifeKind.RECEIVED:
            count = f", receive {event.receive_count}" if event.receive_count > 1 else ""
            return f"received{_by(event)}, lease until {_until(event)}{count}"
        case LifeKind.LEASE_CHANGED:
            return f"lease changed{_by(event)}, until {_until(event)}"
        case LifeKind.LEASE_ENDED:
            return "lease ended without an answer" + (f" of {_client(event.actor)}" if event.actor else "")
        case LifeKind.RELEASED:
            return f"given back{_by(event)}" + ("" if event.is_counted else ", the receive does not count")
        case LifeKind.DELETED:
            return f"deleted{_by(event)}{_after(event)}"
        case LifeKind.REWOUND:
            return f"rewound{_by(event)}: active again"
        case LifeKind.DEAD_LETTERED:
            reason = _DEAD.get(event.reason, event.reason) + (f" {_quoted(event.text)}" if event.text else "")
            receives = counted(event.receive_count, "receive")
            return f"dead letter: {reason}{_by(event)}, after {receives}; now {printed_id(event.message_id)}"
        case LifeKind.REDRIVEN:
            return f"redriven from {event.from_queue}{_by(event)}; now {printed_id(event.message_id)}"
        case LifeKind.EXPIRED:
            return "expired: the retention ended" + _after(event)
        case LifeKind.CLEARED:
            return f"cleared with the queue{_by(event)}{_after(event)}"
        case LifeKind.QUEUE_DELETED:
            why = "unused" if event.reason else f"deleted{_by(event)}"
            return f"gone with its queue, which was {why}{_after(event)}"
        case LifeKind.ROWS_MISSING:
            rows = (
                f"rows {event.first_lsn} to {event.last_lsn}"
                if event.last_lsn > event.first_lsn
                else (f"row {event.first_lsn}")
            )
            return f"{rows} of the log, after this time, are reclaimed or lost; events in them are not known"
        case _:
            return event.kind.replace("_", " ")


def _sent(event: LifeEvent) -> str:
    if not event.lsn:
        return f"sent; {_GONE}, and the receives in this queue are not known"
    parts = [f"sent, {in_bytes(event.size)}"]
    if event.until_ms > event.time_ms:
        parts.append(f"delayed until {_until(event)}")
    if event.schedule:
        parts.append(f"by schedule {event.schedule}")
    if event.replayed_from:
        parts.append(f"replayed from {event.replayed_from}")
    return ", ".join(parts) + _by(event, ", by")


def _published(event: LifeEvent) -> str:
    if not event.lsn:
        return f"published; {_GONE}"
    copies = f"{event.copies} {'copy' if event.copies == 1 else 'copies'} in queues"
    return f"published, {in_bytes(event.size)}{_by(event, ', by')}, {copies}"


def _copied(event: LifeEvent) -> str:
    if not event.lsn:
        return f"copied; {_GONE}, and the receives in this queue are not known"
    return f"copied from topic {event.from_queue} by {_subscription(event)}; now {printed_id(event.message_id)}"


def _by(event: LifeEvent, word: str = " by") -> str:
    return f"{word} {_client(event.actor)}" if event.actor is not None else ""


def _client(actor: Actor) -> str:
    """Return the client as text: its own name beside the key, which is proved."""
    key = actor.secret_id
    short = key if len(key) <= _SHORT_KEY else f"{key[:4]}...{key[-2:]}"
    # In quotes: a name is the client's own word, and may look like another part of the line.
    return f"{_quoted(actor.name)} ({short})" if actor.name else f"key {short}"


def _quoted(text: str) -> str:
    """Return words of a client in quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _subscription(event: LifeEvent) -> str:
    return f"subscription {event.subscription}" if event.subscription else "a subscription that was deleted"


def _until(event: LifeEvent) -> str:
    return f"+{readable_duration(max(event.until_ms - event.time_ms, 0))}"


def _after(event: LifeEvent) -> str:
    return f", {readable_duration(event.time_ms - event.sent_ms)} after its send" if event.sent_ms else ""


def place_text(place: LifePlace) -> str:
    """Return the state of a message in a queue as a sentence, without the name of the queue."""
    state = {
        "active": "waits for a consumer",
        "delayed": "waits for the end of its delay",
        "in_flight": "is in flight",
        "half": "waits for its decision",
    }.get(place.state, place.state.replace("_", " "))
    return state if place.is_certain else f"{state}, unless missing rows changed that"
