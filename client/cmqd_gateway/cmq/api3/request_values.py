"""The parameters of a request as values: from a JSON body, or from a form whose names have paths.

    {"QueueName": "orders", "Tags": [{"TagKey": "a"}]}         a JSON body
    QueueName=orders&Tags.0.TagKey=a                           a form: the query of a GET, or the body of the older form

Lists and objects of a form become a :class:`Branch`; the declaration of the parameter says which of the two it is.
"""

import re
from collections.abc import Generator, Mapping
from secrets import token_hex
from typing import Any, Final, NamedTuple, cast

import msgspec

from cmqd_gateway.cmq.api3.faults import Code, Fault

MAX_DEPTH: Final = 4
"""Levels of a value: ``Filters.0.Values.0`` has four names."""
MAX_STRUCTURE: Final = 16_384
"""Bytes of a JSON body outside its strings. The largest legal request needs far fewer; the limit bounds the number of
values that a body of 4 MiB makes."""
MAX_STRINGS: Final = 2_048
MAX_SHORT: Final = 65_536
"""Bytes of a body with escapes that are decoded at once. Only the content of a message is longer than some KiB."""
_LARGE: Final = 16_384
"""Bytes of a body from which the search for its strings is cut into steps."""
_SHOWN: Final = 80
_MARK: Final = 8
"""Length of the second part of a mark."""
_FIRST_HALF = re.compile(rb"\\u[dD][89abAB]")
"""An escape that is the first half of a character beyond 16 bits."""
_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")


class Branch(dict[str, Any]):
    """A list or an object of a form, by index or name."""


def json_steps(raw: bytes) -> Generator[None, None, dict[str, Any]]:
    """Read a JSON body, with a yield behind each step of a large body.

    Raises:
        Fault: the body is not JSON or no object, has a name twice, or has too many values.
    """
    body = (yield from _without_insides(raw)) if b"\\" in raw else _Body(raw, raw, "", {})
    if len(raw) > _LARGE:
        yield
    if body.without_escapes.count(b'"') > 2 * MAX_STRINGS:
        raise Fault(Code.INVALID_PARAMETER, f"the body of the request has more than {MAX_STRINGS} strings")
    structure = b"".join(body.without_escapes.split(b'"')[::2])
    if len(structure) > MAX_STRUCTURE:
        raise Fault(
            Code.INVALID_PARAMETER,
            f"the body of the request has more than {MAX_STRUCTURE} bytes outside its strings, blanks included",
        )
    if len(raw) > _LARGE:
        yield
    if body.json is not raw and len(body.json) > MAX_SHORT:
        raise Fault(
            Code.INVALID_PARAMETER,
            f"the body of the request has more than {MAX_SHORT} bytes beside the insides of its long strings",
        )
    value = _decoded(body.json)
    if not isinstance(value, dict):
        raise Fault(Code.INVALID_PARAMETER, "the body of the request must be a JSON object")
    parameters = cast("dict[str, Any]", value)
    names = _names_in(parameters, MAX_DEPTH)
    if body.insides:
        parameters = _with_insides(parameters, body)
        names = _names_in(parameters, MAX_DEPTH)
    # The decoder keeps the last of two values. A colon outside a string belongs to a name.
    if structure.count(b":") != names:
        raise Fault(Code.INVALID_PARAMETER, "a name stands twice in an object of the request")
    return parameters


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # The error of a number out of range has the path to the number, as deep as the body.
        reason = str(error)[:_SHOWN]
        raise Fault(Code.INVALID_PARAMETER, f"the body of the request is not JSON in UTF-8: {reason}") from None
    except RecursionError:
        raise Fault(Code.INVALID_PARAMETER, "the JSON of the request is nested too deeply") from None


class _Body(NamedTuple):
    """A JSON body without the insides of its long strings."""

    without_escapes: bytes
    """The body without escaped backslashes and escaped quotes: each quote that stays bounds a string."""
    json: bytes
    """The body with a mark in place of each inside."""
    secret: str
    """The first part of each mark, which no body can have."""
    insides: dict[str, list[str]]
    """Decoded pieces of the insides, by the second part of the mark."""


def _without_insides(raw: bytes) -> Generator[None, None, _Body]:
    """Decode the insides of long strings, in slices with a yield behind each: a body of escapes takes 10 ms at once."""
    kept: list[bytes] = []
    json: list[bytes] = []
    insides: dict[str, list[str]] = {}
    secret = mark = ""
    is_inside = False
    start = 0
    while start < len(raw):
        end = _end_of_character(raw, start, min(start + _LARGE, len(raw)))
        piece = raw[start:end]
        # Without escaped backslashes each backslash before a quote escapes it.
        without_escapes = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes = without_escapes.count(b'"')
        if is_inside and not quotes:
            if not mark:
                secret = secret or token_hex(16)
                mark = f"{len(insides):08x}"
                insides[mark] = []
                json.append((secret + mark).encode())
            insides[mark].append(_decoded(b'"%b"' % piece))
        else:
            kept.append(without_escapes)
            json.append(piece)
            is_inside ^= bool(quotes % 2)
            mark = ""
        start = end
        if start < len(raw):
            yield
    return _Body(b"".join(kept), b"".join(json), secret, insides)


def _end_of_character(raw: bytes, start: int, end: int) -> int:
    """Return the last position up to ``end`` at which no character is cut: no UTF-8, escape or pair of escapes.

    Args:
        raw: a JSON body.
        start: a position between characters.
        end: at least 16 bytes behind ``start``, or the end of the body.
    """
    if end == len(raw):
        return end
    for _ in range(3):
        end -= raw[end] & 0xC0 == 0x80
    at = _escape_before(raw, start, end)
    if at >= 0 and at + (6 if raw[at + 1 : at + 2] == b"u" else 2) > end:
        end = at
        at = _escape_before(raw, start, end)
    # The second half of a pair may follow.
    return at if at >= 0 and at + 6 == end and _FIRST_HALF.match(raw, at) else end


def _escape_before(raw: bytes, start: int, end: int) -> int:
    """Return the position of the escape that begins in the last six bytes before a position; -1 = none."""
    at = raw.rfind(b"\\", max(start, end - 6), end)
    run = raw[start : at + 1]
    # Of an even number of backslashes the last one is escaped.
    return at if (len(run) - len(run.rstrip(b"\\"))) % 2 else -1


def _with_insides(value: Any, body: _Body) -> Any:
    """Return a decoded value with the insides in place of their marks."""
    if isinstance(value, str):
        head, found, tail = value.partition(body.secret)
        return "".join((head, *body.insides[tail[:_MARK]], tail[_MARK:])) if found else value
    if isinstance(value, list):
        return [_with_insides(entry, body) for entry in cast("list[Any]", value)]
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return {_with_insides(name, body): _with_insides(entry, body) for name, entry in entries}
    return value


def _names_in(value: dict[str, Any] | list[Any], depth: int) -> int:
    """Return the number of names in the objects of a value.

    Raises:
        Fault: the value has more than ``depth`` levels of lists and objects below it.
    """
    names, entries = (len(value), value.values()) if isinstance(value, dict) else (0, value)
    inner = cast("list[list[Any]]", [entry for entry in entries if isinstance(entry, (dict, list))])
    if not inner:
        return names
    if depth == 0:
        raise Fault(Code.INVALID_PARAMETER, "the JSON of the request is nested too deeply")
    return names + sum([_names_in(entry, depth - 1) for entry in inner])


def form_values(form: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the parameters of a form; a value is bytes or a :class:`Branch`.

    Raises:
        Fault: a name is malformed, or a parameter has a value and parts as well.
    """
    values = Branch()
    for path, value in form.items():
        first, *rest = path.split(".", MAX_DEPTH)
        if not rest:
            _put(values, first, value, path)
            continue
        if len(rest) >= MAX_DEPTH:
            raise Fault(Code.INVALID_PARAMETER, f"the name {path[:_SHOWN]!r} has more than {MAX_DEPTH} parts")
        branch, name = values, first
        for part in rest:
            inner = branch.setdefault(name, Branch())
            if not isinstance(inner, Branch):
                raise _mixed(path)
            branch, name = inner, part
        _put(branch, name, value, path)
    return values


def _put(branch: Branch, name: str, value: bytes, path: str) -> None:
    if name in branch:
        raise _mixed(path)
    branch[name] = value


def _mixed(path: str) -> Fault:
    return Fault(
        Code.INVALID_PARAMETER, f"the parameter {path[:_SHOWN]!r} contradicts another parameter of the request"
    )


def list_of(name: str, branch: Branch) -> list[Any]:
    """Return the entries of a list of a form, which begins with index 0 or 1.

    Raises:
        Fault: an index is no number, or an entry is missing.
    """
    wrong = next((index for index in branch if not _INDEX.fullmatch(index)), None)
    if wrong is not None:
        shown = f"{name}.{wrong}"[:_SHOWN]
        raise Fault(Code.INVALID_PARAMETER, f"{shown!r} has no index; the entries of {name} are {name}.0, {name}.1 ...")
    indexes = sorted(map(int, branch))
    if indexes[0] > 1 or indexes[-1] - indexes[0] != len(indexes) - 1:
        raise Fault(Code.INVALID_PARAMETER, f"the indexes of {name} must be consecutive and begin with 0 or 1")
    return [branch[str(index)] for index in indexes]
