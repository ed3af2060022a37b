"""A limit of log lines, by kind of line and by caller: the log must not fill a disk because of its callers.

A *kind* is the fixed name of a line. A caller is the key of the request that caused the line, or the address of the
connection. Each kind has a bucket of tokens, and so has each caller of a kind: lines of a caller do not push out lines
of other callers, callers with a thousand addresses share the bucket of the kind, and a flood of one kind hides no line
of another kind. A line with a traceback takes more tokens, because the line is long.

Lines that were left out are counted, and the count is reported as a line of its own (see ``lines``).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

LINES_OF_CALLER: Final = 20
"""Lines of a kind that a caller gets in a row; then ``LINES_OF_CALLER_PER_SECOND``."""
LINES_OF_CALLER_PER_SECOND: Final = 1.0
LINES_OF_KIND: Final = 500
"""Lines of a kind in a row, all callers together; then ``LINES_OF_KIND_PER_SECOND``."""
LINES_OF_KIND_PER_SECOND: Final = 10.0
TRACEBACK_LINES: Final = 10
"""A line with a traceback counts as so many lines."""
MAX_CALLERS: Final = 1_000
"""Callers in memory, all kinds together; the caller that was quiet longest is forgotten first."""
MAX_CHARACTERS: Final = 8_000
"""Longest text in a line; the middle of a longer text is left out."""
_SHOWN_START: Final = 6_000
_SHOWN_END: Final = 1_500

CALLER_FIELDS: Final = ("by_key", "peer", "remote", "key", "account")
"""Fields of a line that name its caller, the first that a line has; ``peer`` has a port. ``secret_id`` is none of them:
in the line of a failed log-in it is any text of the client, a new one for each line."""


class LeftOut(NamedTuple):
    """Lines of a kind that were left out."""

    kind: str
    lines: int
    busiest: str
    """The caller with the most of these lines, as far as callers are remembered; empty if the lines name no caller."""


class _Bucket:
    """Tokens that return at a rate, up to the burst."""

    __slots__ = ("_burst", "_counted_s", "_per_second", "_tokens", "left_out")

    def __init__(self, burst: float, per_second: float, now_s: float) -> None:
        self._burst = self._tokens = burst
        self._per_second = per_second
        self._counted_s = now_s
        self.left_out = 0

    def has(self, cost: float, now_s: float) -> bool:
        self._tokens = min(self._burst, self._tokens + (now_s - self._counted_s) * self._per_second)
        self._counted_s = now_s
        return self._tokens >= cost

    def take(self, cost: float) -> None:
        self._tokens -= cost


class LineLimit:
    """The buckets of a process; see the module."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """``now_s`` is the clock, in seconds."""
        self._now_s = now_s
        self._kinds: dict[str, _Bucket] = {}
        self._callers: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of callers in memory."""
        return len(self._callers)

    def admits(self, line: Mapping[str, object]) -> bool:
        """Count a line; return False if the line must be left out."""
        now_s = self._now_s()
        name = str(line.get("event"))
        cost = TRACEBACK_LINES if line.get("exc_info") else 1
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = _Bucket(LINES_OF_KIND, LINES_OF_KIND_PER_SECOND, now_s)
        buckets = [kind]
        caller = caller_of(line)
        if caller:
            buckets.append(self._caller(name, caller, now_s))
        # All buckets are asked before one pays: a caller over its limit must not use up the lines of other callers.
        is_admitted = all(bucket.has(cost, now_s) for bucket in buckets)
        for bucket in buckets:
            if is_admitted:
                bucket.take(cost)
            else:
                bucket.left_out += 1
        return is_admitted

    def _caller(self, kind: str, caller: str, now_s: float) -> _Bucket:
        bucket = self._callers.pop((kind, caller), None)
        if bucket is None:
            bucket = _Bucket(LINES_OF_CALLER, LINES_OF_CALLER_PER_SECOND, now_s)
        self._callers[kind, caller] = bucket
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        return bucket

    def take_left_out(self) -> list[LeftOut]:
        """Return the lines that were left out since the call before, by kind."""
        busiest: dict[str, tuple[int, str]] = {}
        for (name, caller), bucket in self._callers.items():
            if bucket.left_out:
                busiest[name] = max(busiest.get(name, (0, "")), (bucket.left_out, caller))
                bucket.left_out = 0
        reports = [
            LeftOut(name, bucket.left_out, busiest.get(name, (0, ""))[1])
            for name, bucket in self._kinds.items()
            if bucket.left_out
        ]
        for kind in self._kinds.values():
            kind.left_out = 0
        return reports


def caller_of(line: Mapping[str, object]) -> str:
    """Return the caller of a line: a key, an address without its port, or an account; empty for a line without one."""
    for field in CALLER_FIELDS:
        caller = line.get(field)
        if caller:
            text = str(caller)
            return text.rpartition(":")[0] or text if field == "peer" else text
    return ""


def shortened(line: Mapping[str, object]) -> dict[str, object]:
    """Return a line without the middle of long texts: a caller's value of 4 MiB may be part of an error's text."""
    return {name: _short(value) for name, value in line.items()}


def _short(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else str(value)
    if len(text) <= MAX_CHARACTERS:
        return value
    left_out = len(text) - _SHOWN_START - _SHOWN_END
    return f"{text[:_SHOWN_START]} [{left_out} characters left out] {text[-_SHOWN_END:]}"
