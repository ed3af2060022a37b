"""Messages of a log as requests: stretches of runs go in, requests come out. Pure.

A request has neighbouring messages: at most as many as the sender allows, and at most 1 MiB of bodies and headers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any

from cmqd_types.messages import Headers, printed_id

if TYPE_CHECKING:
    from cmqd_log.copy.journal import Journal
    from cmqd_log.reading.arrow_batches import Facts
    from cmqd_log.reading.tasks import Stretch
    from cmqd_segment.rows import Run

MAX_REQUEST_BYTES = 1 << 20
"""Limit of bodies and headers of a request: the server's own limit. A larger message is a request of its own, which the
server accepts or refuses."""
MARK = "cmqd-replayed-from"
"""Header that says where a message comes from: ``queue/message id/time of its send``."""
_HEX = [f"{low:03x}" for low in range(4096)]
"""The last three digits of message ids: ids of neighbours differ in little else."""


@dataclass(frozen=True, slots=True)
class Request:
    """Messages of a request, column by column; None = no message has a value."""

    bodies: list[bytes]
    dedup_ids: list[str]
    headers: list[Headers | None] | None = None
    delays: list[float | None] | None = None
    """Delays in seconds."""
    tags: list[list[str]] | None = None
    routing_keys: list[str] | None = None
    size: int = 0
    """Bytes of bodies and headers."""


def requests_of(stretches: "Iterable[Stretch]", journal: "Journal", most: int) -> Iterator[Request]:
    """Yield the messages that a run sends as requests, in order.

    A message keeps body, headers and, in a topic, tags or routing key; it does not keep delay, id and times. Its dedup
    id is the name of the run and the message id, the same in every attempt.

    Args:
        stretches: messages of the log, with their bodies.
        journal: the run.
        most: maximum number of messages of a request.
    """
    events = frozenset(journal.events)
    columns = _Columns(journal)
    for stretch in stretches:
        if stretch.facts.event in events:
            yield from columns.add(stretch, most)
    if columns.bodies:
        yield columns.take()


class _Columns:
    """The columns of the next request."""

    def __init__(self, journal: "Journal") -> None:
        self._prefix = f"{journal.run}:"
        self._is_marked = journal.mark
        self._labels_in = _no_labels if journal.queue else _keys if journal.routing else _tags
        self._is_routing = journal.routing
        self._no_label: Any = "" if journal.routing else []
        self._clear()

    def _clear(self) -> None:
        self.bodies: list[bytes] = []
        self._ids: list[str] = []
        self._headers: list[Headers | None] | None = None
        self._labels: list[Any] | None = None
        self._size = 0

    def take(self) -> Request:
        """Return the request, and begin the next one."""
        request = Request(
            bodies=self.bodies,
            dedup_ids=self._ids,
            headers=self._headers,
            tags=None if self._is_routing else self._labels,
            routing_keys=self._labels if self._is_routing else None,
            size=self._size,
        )
        self._clear()
        return request

    def add(self, stretch: "Stretch", most: int) -> Iterator[Request]:
        """Add messages; yield the requests that are full."""
        facts, run, start, stop, data = stretch
        sizes = run.sizes[start:stop]
        headers = None if run.headers is None else run.headers[start:stop]
        if self._is_marked:
            headers = _marked(facts, run, start, stop, headers)
        weights = sizes if headers is None else list(map(_weight, sizes, headers))
        bodies = _bodies(run, start, sizes, data)
        labels = self._labels_in(run, start, stop)
        ids = _dedup_ids(self._prefix, run.first_message_id + start, stop - start)
        place, count = 0, stop - start
        while place < count:
            end, size = self._fitting(weights, place, min(place + most - len(self.bodies), count))
            before = len(self.bodies)
            self.bodies += bodies[place:end]
            self._ids += ids[place:end]
            # A column begins with the first value; the messages before have none.
            if headers is not None and self._headers is None:
                self._headers = list[Headers | None](repeat(None, before))
            if self._headers is not None:
                self._headers.extend(repeat(None, end - place) if headers is None else headers[place:end])
            if labels is not None and self._labels is None:
                self._labels = [self._no_label] * before
            if self._labels is not None:
                self._labels.extend(repeat(self._no_label, end - place) if labels is None else labels[place:end])
            self._size += size
            place = end
            if place < count or len(self.bodies) == most:
                yield self.take()

    def _fitting(self, weights: Sequence[int], place: int, end: int) -> tuple[int, int]:
        """Return up to which message the request has room, and the bytes of these messages."""
        size = sum(weights[place:end])
        if self._size + size <= MAX_REQUEST_BYTES:
            return end, size
        size = 0
        for number in range(place, end):
            if self._size + size + weights[number] > MAX_REQUEST_BYTES:
                if number > place or self.bodies:
                    return number, size
                return number + 1, weights[number]
            size += weights[number]
        return end, size


def _bodies(run: "Run", start: int, sizes: Sequence[int], data: bytes) -> list[bytes]:
    begin = run.offset + sum(run.sizes[:start])
    bodies: list[bytes] = []
    for size in sizes:
        end = begin + size
        bodies.append(data[begin:end])
        begin = end
    return bodies


def _dedup_ids(prefix: str, number: int, count: int) -> list[str]:
    ids: list[str] = []
    stop = number + count
    while number < stop:
        low = number & 0xFFF
        high = min(0x1000, low + stop - number)
        head = prefix + printed_id(number)[:-3]
        ids += [head + tail for tail in _HEX[low:high]]
        number += high - low
    return ids


def _weight(size: int, headers: Headers | None) -> int:
    if not headers:
        return size
    return size + sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())


def _marked(
    facts: "Facts", run: "Run", start: int, stop: int, headers: Sequence[Headers | None] | None
) -> list[Headers | None]:
    """Return the headers with the header of ``--mark``."""
    # The record of a publish names its topic, also when all other records with the name were reclaimed.
    source = facts.queue or facts.topic or (run.source.topic if run.source is not None else "")
    seconds, milliseconds = divmod(run.enqueue_ms, 1000)
    moment = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03}Z"
    marked: list[Headers | None] = []
    for place in range(start, stop):
        named = None if headers is None else headers[place - start]
        others = {name: value for name, value in named.items() if name != MARK} if named else {}
        others[MARK] = f"{source}/{printed_id(run.first_message_id + place)}/{moment}"
        marked.append(others)
    return marked


def _no_labels(run: "Run", start: int, stop: int) -> None:
    return None


def _tags(run: "Run", start: int, stop: int) -> list[list[str]] | None:
    if not run.labels:
        return None
    labels = run.labels * (stop - start) if len(run.labels) == 1 else run.labels[start:stop]
    return [[] if isinstance(label, str) else list(label) for label in labels]


def _keys(run: "Run", start: int, stop: int) -> list[str] | None:
    if not run.labels:
        return None
    labels = run.labels * (stop - start) if len(run.labels) == 1 else run.labels[start:stop]
    return [label if isinstance(label, str) else "" for label in labels]
