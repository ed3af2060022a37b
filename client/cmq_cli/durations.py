"""Durations and times. Durations are parsed as they are typed (``1.5`` seconds, ``250ms``, ``30s``, ``5m``, ``12h``,
``4d``), and shown either in the same form or in words.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, TypeAlias

from cyclopts import Parameter, Token

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "": 1}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d|)", re.ASCII)


def parse_duration(text: str) -> float:
    """Parse a typed duration into seconds.

    Raises:
        ValueError: it is not a number with one of the units.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no duration; write seconds (1.5) or use a unit: 250ms, 30s, 5m, 12h, 4d")
    # Rounded to the wire's precision: 0.1 * 3600 would otherwise show as 360.00000000000006.
    return round(float(found[1]) * _UNITS[found[2]], 6)


_WORDS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000))


def show_duration(seconds: float) -> str:
    """Return a duration in words, without loss: ``345600`` becomes ``4 days``, ``5400`` ``1 hour 30 minutes``."""
    milliseconds = round(seconds * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds} ms"
    parts: list[str] = []
    for unit, factor in _WORDS:
        count, milliseconds = divmod(milliseconds, factor)
        if count:
            parts.append(f"{count:,} {unit}{'' if count == 1 else 's'}")
    if milliseconds or not parts:
        parts.append("1 second" if milliseconds == 1000 else f"{milliseconds / 1000:g} seconds")
    return " ".join(parts)


def typed_duration(seconds: float) -> str:
    """Return a duration as an option takes it, in the largest unit that divides it: ``345600`` becomes ``4d``."""
    milliseconds = round(seconds * 1000)
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % factor == 0:
            return f"{milliseconds // factor}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def parse_ago(text: str) -> float | None:
    """Seconds of a time typed as how long ago; None if it is typed otherwise."""
    try:
        return parse_duration(text)
    except ValueError:
        return None


def parse_moment(text: str, now: float) -> datetime:
    """Parse a typed time: ISO 8601, local if it names no zone, or a duration before ``now`` (seconds since 1970).

    Raises:
        ValueError: it is neither.
    """
    ago = parse_ago(text)
    if ago is not None:
        return datetime.fromtimestamp(max(now - ago, 0.0), UTC)
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except ValueError as wrong:
        raise ValueError(
            f"{text!r} is no time; write one as 2026-01-31T12:00 (or ...Z, ...+02:00), or how long ago: 10m, 2h, 1d"
        ) from wrong


def _convert(type_: object, tokens: Sequence[Token]) -> float:
    return parse_duration(tokens[0].value)


Seconds: TypeAlias = Annotated[float, Parameter(converter=_convert, n_tokens=1)]
"""An option that takes a duration."""
