"""The parameters of a request as values: from a JSON body, or from a form whose names have paths.

    {"QueueName": "orders", "Tags": [{"TagKey": "a"}]}         a JSON body
    QueueName=orders&Tags.0.TagKey=a                           a form: the query of a GET, or the body of the older form

Lists and objects of a form become a :class:`Branch`; the declaration of the parameter says which of the two it is.
"""

import re
from collections.abc import Generator, Mapping
from typing import Any, Final, cast

import msgspec

from cmqd_gateway.cmq.api3.faults import Code, Fault

MAX_DEPTH: Final = 4
"""Levels of a value: ``Filters.0.Values.0`` has four names."""
MAX_STRUCTURE: Final = 16_384
"""Bytes of a JSON body outside its strings. The largest legal request needs far fewer; the limit bounds the number of
values that a body of 4 MiB makes."""
MAX_STRINGS: Final = 2_048
_LARGE: Final = 16_384
"""Bytes of a body from which the search for its strings is cut into steps."""
_SHOWN: Final = 80
_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")


class Branch(dict[str, Any]):
    """A list or an object of a form, by index or name."""


def json_steps(raw: bytes) -> Generator[None, None, dict[str, Any]]:
    """Read a JSON body, with a yield behind each step of a large body.

    Raises:
        Fault: the body is not JSON or no object, has a name twice, or has too many values.
    """
    without_escapes = (yield from _without_escapes(raw)) if b"\\" in raw else raw
    if len(raw) > _LARGE:
        yield
    if without_escapes.count(b'"') > 2 * MAX_STRINGS:
        raise Fault(Code.INVALID_PARAMETER, f"the body of the request has more than {MAX_STRINGS} strings")
    structure = b"".join(without_escapes.split(b'"')[::2])
    if len(structure) > MAX_STRUCTURE:
        raise Fault(
            Code.INVALID_PARAMETER,
            f"the body of the request has more than {MAX_STRUCTURE} bytes outside its strings, blanks included",
        )
    if len(raw) > _LARGE:
        yield
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # The error of a number out of range has the path to the number, as deep as the body.
        reason = str(error)[:_SHOWN]
        raise Fault(Code.INVALID_PARAMETER, f"the body of the request is not JSON in UTF-8: {reason}") from None
    except RecursionError:
        raise Fault(Code.INVALID_PARAMETER, "the JSON of the request is nested too deeply") from None
    if not isinstance(value, dict):
        raise Fault(Code.INVALID_PARAMETER, "the body of the request must be a JSON object")
    parameters = cast("dict[str, Any]", value)
    # The decoder keeps the last of two values. A colon outside a string belongs to a name.
    if structure.count(b":") != _names_in(parameters, MAX_DEPTH):
        raise Fault(Code.INVALID_PARAMETER, "a name stands twice in an object of the request")
    return parameters


def _without_escapes(raw: bytes) -> Generator[None, None, bytes]:
    """Return a body without escaped backslashes and escaped quotes: each quote that stays bounds a string.

    The body is read in slices, with a yield behind each.
    """
    kept: list[bytes] = []
    start = 0
    while start < len(raw):
        piece = raw[start : start + _LARGE]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if backslashes % 2 and len(piece) == _LARGE:
            # The last backslash belongs to the next character.
            piece = piece[:-1]
        start += len(piece)
        # Without escaped backslashes each backslash before a quote escapes it.
        kept.append(piece.replace(b"\\\\", b"").replace(b'\\"', b""))
        if start < len(raw):
            yield
    return b"".join(kept)


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
