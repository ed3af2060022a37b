"""The parts of messages that a clone hides: bodies by JSON paths, headers by names, or all bodies. Pure.

A mask names what is to be hidden, and everything else that could repeat it is left out: other headers, labels, dedup
ids, the texts of rejections. A body in which a path finds no value is replaced whole, because a value that was not
found may stand there in another form.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec import structs

from cmqd_backup.refusals import Refused
from cmqd_types.messages import CopyOf, Headers, Origin

HIDDEN: Final = "***"
"""Takes the place of a value."""
_ALL: Final = object()
"""The step ``[*]`` of a path."""

_STEP: Final = re.compile(r"""\.([A-Za-z_][A-Za-z0-9_-]*)|\[([0-9]{1,9})\]|\["([^"\\]+)"\]|\['([^'\\]+)'\]|(\[\*\])""")
_HEADER: Final = re.compile(r"[^\s$\[\]\"']+")

Step = str | int | object


class Shown(NamedTuple):
    """The parts of a message that a clone gets."""

    body: bytes
    headers: Headers | None
    origin: Origin | None
    copy_of: CopyOf | None
    dedup_id: str | None


class Masking:
    """Hides parts of messages."""

    def __init__(self, masks: Sequence[str] = (), *, no_bodies: bool = False) -> None:
        """``masks``: JSON paths that begin with ``$``, and names of headers. Raises Refused."""
        self._paths = [_steps(mask) for mask in masks if mask.startswith("$")]
        self._headers = {_header(mask).lower() for mask in masks if not mask.startswith("$")}
        self._no_bodies = no_bodies
        self.hides = bool(masks)
        """Parts of messages are hidden, and not bodies alone."""
        self.replaced = 0
        """Bodies that were replaced whole because of a path."""

    def message(self, message: Shown, max_body_bytes: int) -> Shown:
        """Return the parts of a message that may be shown. ``max_body_bytes``: of its queue."""
        body = self.body(message.body, max_body_bytes)
        if not self.hides:
            return message._replace(body=body)
        return Shown(
            body,
            self.headers(message.headers),
            None if message.origin is None else structs.replace(message.origin, rejection=""),
            None if message.copy_of is None else structs.replace(message.copy_of, labels=None),
            None,
        )

    def headers(self, headers: Headers | None) -> Headers | None:
        """Return the named headers alone, each with a hidden value."""
        if headers is None or not self.hides:
            return headers
        return {name: HIDDEN for name in headers if name.lower() in self._headers} or None

    def body(self, body: bytes, max_body_bytes: int) -> bytes:
        """Return a body with its named values hidden; zero bytes of the same size if a path finds none, or if hidden
        values make the body too long for its queue, which could not move the message then.
        """
        if self._no_bodies:
            return bytes(len(body))
        if not self._paths:
            return body
        masked = self._masked(body)
        if masked is None or len(masked) > max(len(body), max_body_bytes):
            self.replaced += 1
            return bytes(len(body))
        return masked

    def _masked(self, body: bytes) -> bytes | None:
        """Return a body with its named values hidden; None if it is no JSON, or a path finds no value."""
        try:
            document = msgspec.json.decode(body)
            for path in self._paths:
                document, found = _hide(document, path)
                if not found:
                    return None
            return msgspec.json.encode(document)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
            return None


def _header(mask: str) -> str:
    if not _HEADER.fullmatch(mask):
        raise Refused(f"--mask {mask[:100]!r}: write a JSON path such as $.card.number, or the name of a header")
    return mask


def _steps(mask: str) -> list[Step]:
    steps: list[Step] = []
    place = 1
    while place < len(mask):
        match = _STEP.match(mask, place)
        if match is None:
            raise Refused(
                f"--mask {mask[:100]!r} is not a JSON path at character {place + 1}: write steps .name, [0], [*] or"
                ' ["a name"] behind the $'
            )
        name, index, quoted, other, star = match.groups()
        steps.append(_ALL if star else int(index) if index is not None else name or quoted or other)
        place = match.end()
    return steps


def _hide(value: Any, steps: Sequence[Step]) -> tuple[Any, bool]:
    """Hide the values at a path; return the changed document, and whether each branch of the path has a value."""
    if not steps:
        return HIDDEN, True
    step, rest = steps[0], steps[1:]
    keys = _keys(value, step)
    is_found = bool(keys)
    for key in keys:
        value[key], found = _hide(value[key], rest)
        is_found = is_found and found
    return value, is_found


def _keys(value: Any, step: Step) -> list[Any]:
    """Return the keys or indexes of a value that a step names."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return list(members) if step is _ALL else [step] if step in members else []
    if isinstance(value, list):
        count = len(cast("list[Any]", value))
        return list(range(count)) if step is _ALL else [step] if isinstance(step, int) and step < count else []
    return []
