"""The waits of a message as spans, in the JSON form of OTLP: the time in a queue, in flight, delayed, or undecided.

A trace of a program shows the send and the receive; these spans show the time between. With a header ``traceparent``
the spans belong to the trace of the producer, else each message has a trace of its own. The ids of traces and spans
follow from the message and its events, so a repeated export has the same spans.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmqd_client.messages.message_ids import printed_id
from cmqd_client.messages.tracing import SYSTEM
from cmqd_types.histories import LifeEvent, LifeKind, MessageHistory

_WAITS: Final = {
    LifeKind.SENT: "wait in",
    LifeKind.COPIED: "wait in",
    LifeKind.COMMITTED: "wait in",
    LifeKind.DEAD_LETTERED: "wait in",
    LifeKind.REDRIVEN: "wait in",
    LifeKind.ACTIVATED: "wait in",
    LifeKind.LEASE_ENDED: "wait in",
    LifeKind.RELEASED: "wait in",
    LifeKind.REWOUND: "wait in",
    LifeKind.HALF: "undecided in",
    LifeKind.RECEIVED: "in flight of",
}
"""Kinds of events that begin a wait."""
_ENDS: Final = frozenset(
    {
        *(LifeKind.DELETED, LifeKind.EXPIRED, LifeKind.CLEARED, LifeKind.QUEUE_DELETED, LifeKind.ROLLED_BACK),
        *_WAITS,
    }
)
"""Kinds of events that end a wait; all that begin another wait do."""
TIMEOUT_SECONDS: Final = 10
_INTERNAL: Final = 1


def export_waits(histories: Sequence[MessageHistory], target: str) -> int:
    """Write the waits of messages to a file, or post them to a URL; return their number.

    Raises:
        CommandFailed: the URL refuses, or does not answer.
        OSError: the file cannot be written.
    """
    spans = [span for history in histories for span in spans_of(history)]
    content = msgspec.json.encode(document(spans))
    if not target.startswith(("http://", "https://")):
        Path(target).write_bytes(content + b"\n")
        return len(spans)
    # Here, because every command would start slower for it.
    import urllib.error
    import urllib.request

    request = urllib.request.Request(target, content, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
            return len(spans)
    except urllib.error.HTTPError as error:
        error.close()
        raise CommandFailed(f"{target} refused the spans: {error.code} {error.reason}") from error
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise CommandFailed(f"{target} did not take the spans: {reason}", ExitCode.UNREACHABLE) from error


def document(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """Return spans as an ``ExportTraceServiceRequest``."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes({"service.name": SYSTEM})},
                "scopeSpans": [{"scope": {"name": "cmq history"}, "spans": spans}],
            }
        ]
    }


def spans_of(history: MessageHistory) -> Iterator[dict[str, Any]]:
    """Yield a span for each wait that is over, in the order of their ends."""
    trace_id, parent_id = _trace_of(history.events, history.message_id)
    begun: dict[int, LifeEvent] = {}
    for event in history.events:
        if event.kind == LifeKind.ROWS_MISSING:
            # A wait with missing rows in it may have been several waits.
            begun.clear()
            continue
        # A move ends the wait under the former id.
        before = None
        if event.kind in _ENDS:
            before = begun.pop(event.message_id, None) or begun.pop(event.from_id, None)
        if before is not None and event.is_certain:
            yield _span(before, event, trace_id, parent_id)
        if event.kind in _WAITS and event.lsn:
            begun[event.message_id] = event


def _trace_of(events: Iterable[LifeEvent], message_id: int) -> tuple[str, str]:
    """Return the ids of trace and parent span: of the producer, or of the message."""
    for event in events:
        if event.trace_parent:
            _, trace_id, parent_id, _ = event.trace_parent.split("-")
            return trace_id, parent_id
    return sha256(printed_id(message_id).encode()).hexdigest()[:32], ""


def _span(begin: LifeEvent, end: LifeEvent, trace_id: str, parent_id: str) -> dict[str, Any]:
    is_delayed = begin.kind == LifeKind.SENT and begin.until_ms > begin.time_ms
    name = "delayed in" if is_delayed else _WAITS[LifeKind(begin.kind)]
    identity = f"{trace_id} {begin.message_id} {begin.lsn} {begin.kind} {begin.time_ms}"
    return {
        "traceId": trace_id,
        "spanId": sha256(identity.encode()).hexdigest()[:16],
        "parentSpanId": parent_id,
        "name": f"{name} {begin.queue}",
        "kind": _INTERNAL,
        "startTimeUnixNano": str(begin.time_ms * 1_000_000),
        "endTimeUnixNano": str(max(end.time_ms, begin.time_ms) * 1_000_000),
        "attributes": _attributes(
            {
                "messaging.system": SYSTEM,
                "messaging.destination.name": begin.queue,
                "messaging.message.id": printed_id(begin.message_id),
                "cmqd.begin": begin.kind,
                "cmqd.end": end.kind,
            }
        ),
    }


def _attributes(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]
