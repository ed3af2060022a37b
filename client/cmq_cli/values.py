"""Values as text: counts, sizes, times and durations, in tables and in arguments.

A duration is typed as seconds (``1.5``) or with a unit: ``250ms``, ``30s``, ``5m``, ``12h``, ``4d``.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

from cmqd_types.sentences import counted, iso_time, moment_of
from cmqd_types.units import SIZE

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "": 1}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|min|h|d|)", re.ASCII)
_WORDS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000))
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but the tab and the line feed
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    "\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff]"  # characters without width; the joiners U+200C and U+200D stay
)


def parse_duration(text: str) -> float:
    """Parse a typed duration into seconds.

    Raises:
        ValueError: the text is not a number with a known unit.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(
            f"{text!r} is not a duration; write seconds (1.5), or a number with a unit: 250ms, 30s, 5m, 12h, 4d"
        )
    # Rounded to the precision of the wire: 0.1 * 3600 would otherwise show as 360.00000000000006.
    return round(float(match[1]) * _UNITS[match[2]], 6)


def parse_size(text: str) -> int:
    """Parse a typed size into bytes: a whole number, or a number with a unit: ``64KiB``, ``1MiB``.

    Raises:
        ValueError: the text is not a whole number of bytes.
    """
    size = int(text) if text.strip().isdecimal() and len(text) < 20 else SIZE.parse(text)
    if size is None:
        raise ValueError(
            f"{printable(text)!r} is not a size; write bytes (65536), or a number with a unit: {SIZE.named}"
        )
    return size


def parse_age(text: str) -> float | None:
    """Return the seconds of a time typed as an age (``2h``), or None if the text is not a duration."""
    try:
        return parse_duration(text)
    except ValueError:
        return None


def parse_moment(text: str, now: float) -> datetime:
    """Parse a typed time: ISO 8601, local without a zone, or an age before ``now`` (seconds since 1970).

    Raises:
        ValueError: the text is neither.
    """
    age = parse_age(text)
    if age is not None:
        return datetime.fromtimestamp(max(now - age, 0.0), UTC)
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not a time; write a time (2026-01-31T12:00, ...Z, ...+02:00) or an age (10m, 2h, 1d)"
        ) from error


def show_duration(seconds: float) -> str:
    """Return a duration in words, without loss: ``345600`` becomes ``4 days``, ``5400`` ``1 hour 30 minutes``."""
    milliseconds = round(seconds * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds} ms"
    parts: list[str] = []
    for unit, factor in _WORDS:
        count, milliseconds = divmod(milliseconds, factor)
        if count:
            parts.append(counted(count, unit))
    if milliseconds or not parts:
        parts.append("1 second" if milliseconds == 1000 else f"{milliseconds / 1000:g} seconds")
    return " ".join(parts)


def typed_duration(seconds: float) -> str:
    """Return a duration in the form of an option, in the largest whole unit: ``345600`` becomes ``4d``."""
    milliseconds = round(seconds * 1000)
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % factor == 0:
            return f"{milliseconds // factor}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def show_count(count: int) -> str:
    """Return a number with thousands separators: ``1,461,173``."""
    return f"{count:,}"


def show_size(size: int) -> str:
    """Return a number of bytes in the largest unit that fits: ``64 KiB``, ``1.5 GiB``, ``512 bytes``."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} bytes"


def show_time(moment: datetime | None) -> str:
    """Return a time in the local time zone; ``-`` for None."""
    return "-" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def local_time(milliseconds: int) -> str:
    """Return a time that the options of a command accept: ISO 8601 in the local zone, to the millisecond if needed."""
    if moment_of(milliseconds) is None:
        return iso_time(milliseconds)
    return from_ms(milliseconds).astimezone().isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds")


def from_ms(milliseconds: int) -> datetime:
    """Return the UTC time of a number of milliseconds since 1970."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def show_value(field: str, value: Any) -> str:
    """Return the value of a field; its type, and the end of the name for a number, choose the form."""
    if value is None or value == "" or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return show_time(value)
    if isinstance(value, float):
        return show_duration(value)
    if isinstance(value, int):
        return _show_number(field, value)
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, cast("Sequence[Any]", value)))
    return printable(str(value)).replace("\n", " ")


def _show_number(field: str, number: int) -> str:
    if field in ("time_ms", "broker_time_ms"):
        return show_time(from_ms(number))
    if field.endswith("_ms"):
        duration = show_duration(round(abs(number) / 1000) if abs(number) >= 60_000 else abs(number) / 1000)
        return f"-{duration}" if number < 0 else duration
    if field.endswith("_bytes"):
        return show_size(number)
    # Ids, process ids and rows are arguments of other commands: no separators.
    return str(number) if field == "id" or field.endswith(("pid", "lsn")) else show_count(number)


def printable(text: str) -> str:
    """Return the text with escapes in place of characters that would command the terminal or hide themselves.

    Control characters command the terminal. Bidirectional controls show text in another order than a program reads it,
    and characters without width make two texts look the same. The joiners are letters' parts in Persian and in emoji.
    """
    return _HIDDEN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
