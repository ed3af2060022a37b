"""Sentences of errors as data: text, names of fields, and quantities with their units.

The broker makes a sentence; an error carries its parts. Each face puts the parts together with its own names and units
(``Words``), so no face reads names or numbers out of a text:

    sentence("{rewind_ms} is {}; ...", duration(90_000))
        native   rewind_ms is 1 min 30 s; ...
        JSON     rewind is 90 s; ...
        API 2.0  rewindSeconds is 90 s; ...

A part is text, or a pair of a kind and a value.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from string import Formatter
from typing import Any, Final, TypeAlias, cast

from msgspec import Struct

FIELD: Final = "field"
"""Kind of a part: the name of a field of the protocol."""
MILLISECONDS: Final = "ms"
"""Kind of a part: a duration."""
TIME: Final = "time"
"""Kind of a part: milliseconds since 1970."""
BYTES: Final = "bytes"
"""Kind of a part: a size."""
ENSURE: Final = "ensure"
"""Kind of a part: the advice to accept an existing object; faces without such a call leave the part out."""

MAX_PARTS: Final = 256
"""Longest sentence that is put together: the longest of the broker lists the fields of a queue."""


class Quantity(Struct, array_like=True, frozen=True, gc=False):
    """A part of a sentence that each face writes in its own way."""

    kind: str
    value: str | int


Part: TypeAlias = str | Quantity


class Sentence(Struct, frozen=True):
    """A sentence of an error."""

    parts: list[Part]

    def __str__(self) -> str:
        return put_together(self.parts, NATIVE) or ""


class Words(Struct, frozen=True):
    """Names and units of a face."""

    field: Callable[[str], str]
    """Name of a field, from its name in the protocol."""
    duration: Callable[[int], str]
    """Text of milliseconds."""
    time: Callable[[int], str]
    """Text of milliseconds since 1970."""
    size: Callable[[int], str]
    """Text of bytes."""
    ensure: str = ""
    """Advice at the end of the sentence about an object that exists already."""


def sentence(template: str, *values: object) -> Sentence:
    """Return a sentence: ``{name}`` in the template is a field of the protocol, ``{}`` the next of ``values``.

    A value that is no part of its own becomes text; the caller has cut the value before.
    """
    rest = iter(values)
    parts: list[Part] = []
    for text, name, _, _ in Formatter().parse(template):
        if text:
            parts.append(text)
        if name:
            parts.append(field_name(name))
        elif name is not None:
            value = next(rest)
            if isinstance(value, Sentence):
                parts.extend(value.parts)
            else:
                parts.append(value if isinstance(value, Quantity) else str(value))
    return Sentence(parts)


def joined(sentences: Sequence[Sentence], separator: str) -> Sentence:
    """Return one sentence of several."""
    parts: list[Part] = []
    for number, each in enumerate(sentences):
        if number:
            parts.append(separator)
        parts.extend(each.parts)
    return Sentence(parts)


def field_name(name: str) -> Quantity:
    """Return the part for the name of a field."""
    return Quantity(FIELD, name)


def field_names(names: Sequence[str]) -> Sentence:
    """Return the part of a sentence that lists fields."""
    return joined([Sentence([field_name(name)]) for name in names], ", ")


def duration(milliseconds: int) -> Quantity:
    """Return the part for a duration."""
    return Quantity(MILLISECONDS, milliseconds)


def time(milliseconds: int) -> Quantity:
    """Return the part for a time, in milliseconds since 1970."""
    return Quantity(TIME, milliseconds)


def size(count: int) -> Quantity:
    """Return the part for a number of bytes."""
    return Quantity(BYTES, count)


def unit_of(name: str) -> str | None:
    """Return the kind of a field's numbers, which its name ends with; None = the numbers have no unit."""
    name = name.partition("[")[0]
    if name in ("time_ms", "at_ms", "since_ms", "until_ms"):
        return TIME
    return MILLISECONDS if name.endswith("_ms") else BYTES if name.endswith("_bytes") else None


def quantity(name: str, value: object) -> Quantity | str:
    """Return the part for a value of a field, with the unit of the field."""
    unit = unit_of(name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if unit is None or type(value) is not int else Quantity(unit, value)


def put_together(parts: object, words: Words) -> str | None:
    """Return the text of a sentence in the words of a face; None if ``parts`` is no sentence of a known form.

    A newer broker may send kinds that this version does not know: the text of the error is shown then.
    """
    if not isinstance(parts, list) or len(cast("list[object]", parts)) > MAX_PARTS:
        return None
    texts = [_text_of(part, words) for part in cast("list[Any]", parts)]
    return None if None in texts else "".join(cast("list[str]", texts))


def _text_of(part: Any, words: Words) -> str | None:
    if isinstance(part, str):
        return part
    if isinstance(part, Quantity):
        kind, value = part.kind, part.value
    elif isinstance(part, list | tuple) and len(cast("Sequence[Any]", part)) == 2:
        kind, value = cast("Sequence[Any]", part)
    else:
        return None
    if kind == FIELD and isinstance(value, str):
        return words.field(value)
    if kind == ENSURE:
        return words.ensure
    write = {MILLISECONDS: words.duration, TIME: words.time, BYTES: words.size}.get(kind)
    return None if write is None or type(value) is not int else write(value)


# ---------------------------------------------------------------- units


def readable_duration(milliseconds: int) -> str:
    """Return a duration without loss, in units for people: ``13 h``, ``1 min 30 s``, ``250 ms``."""
    if milliseconds < 0:
        return f"-{readable_duration(-milliseconds)}"
    texts: list[str] = []
    rest = milliseconds
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        count, rest = divmod(rest, factor)
        if count:
            texts.append(f"{count} {unit}")
    if rest or not texts:
        texts.append(f"{rest} ms" if 0 < rest < 1000 else in_seconds(rest))
    return " ".join(texts)


def in_seconds(milliseconds: int) -> str:
    """Return a duration in seconds, without loss and without an exponent: ``1296000 s``, ``0.5 s``."""
    return f"{plain_seconds(milliseconds)} s"


def plain_seconds(milliseconds: int) -> str:
    """Return the number of seconds of a duration: ``1296000``, ``0.5``."""
    whole, rest = divmod(abs(milliseconds), 1000)
    sign = "-" if milliseconds < 0 else ""
    return f"{sign}{whole}" + (f".{rest:03}".rstrip("0") if rest else "")


def readable_size(count: int) -> str:
    """Return a size without loss, in the largest unit that divides the size: ``64 KiB``, ``65537 bytes``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % factor == 0:
            return f"{count // factor} {unit}"
    return in_bytes(count)


def in_bytes(count: int) -> str:
    """Return a size in bytes."""
    return f"{count} byte{'' if count == 1 else 's'}"


def counted(count: int, noun: str) -> str:
    """Return a number and its noun: ``1 message``, ``2 messages``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def iso_time(milliseconds: int) -> str:
    """Return a time in ISO 8601, in UTC: ``2027-01-31T09:00:00Z``."""
    moment = moment_of(milliseconds)
    if moment is None:
        return f"{milliseconds} ms after 1970"
    return moment.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds").replace("+00:00", "Z")


def moment_of(milliseconds: int) -> datetime | None:
    """Return a time of the protocol, or None if no ``datetime`` has the time."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


NATIVE: Final = Words(str, readable_duration, iso_time, readable_size, "; use ensure, or another name")
"""Words of the protocol, in the text of the error frame."""


def missing_extra(module: str, extra: str, missing: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error of a module whose extra is not installed; to be raised ``from None``."""
    library = (missing.name or "").partition(".")[0]
    return ModuleNotFoundError(f"{module} needs {library}: pip install 'cmqd[{extra}]'", name=missing.name)
