"""Lines of text and of JSON, as messages to store."""

from collections.abc import Mapping
from typing import Any

import msgspec

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)
_TAGS = msgspec.json.Decoder(str | list[str] | None)


class LineError(Exception):
    """A line is no message; the text gives the reason."""


class Line(msgspec.Struct, frozen=True):
    """A message, and the line that it comes from."""

    number: int
    """From 1, empty lines counted."""
    body: bytes
    tags: list[str] = []
    routing_key: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the message in a batch, without headers."""
        return len(self.body) + sum(map(len, self.tags)) + len(self.routing_key or "")


class LineFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the lines, and the labels of all messages."""

    tags: list[str] = []
    routing_key: str | None = None
    ndjson: bool = False
    """True: a line is a JSON object."""
    body_field: str | None = None
    """Field with the body: the text of a string, the JSON of any other value. None = the line is the body."""
    tag_field: str | None = None
    """Field with a tag or a list of tags. A message without the field, or with null, has no tags."""
    key_field: str | None = None
    """Field with the routing key."""

    def read(self, number: int, line: bytes) -> Line:
        """Return the message of a line.

        Raises:
            LineError: the line is no JSON object, or a field is missing or has the wrong type.
        """
        if not self.ndjson:
            return Line(number, line, self.tags, self.routing_key)
        try:
            fields = _OBJECT.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LineError(f"it is no JSON object: {error}") from error
        body, tags, key = line, self.tags, self.routing_key
        if self.body_field is not None:
            body = bytes(_field(fields, self.body_field))
            if body.startswith(b'"'):
                body = _decode(_TEXT, body, self.body_field, "a string").encode()
        if self.tag_field is not None:
            tags = _decode(_TAGS, fields.get(self.tag_field, b"null"), self.tag_field, "a string or a list of strings")
            tags = [tags] if isinstance(tags, str) else tags or []
        if self.key_field is not None:
            key = _decode(_TEXT, _field(fields, self.key_field), self.key_field, "a string")
        return Line(number, body, tags, key)


def _field(fields: Mapping[str, msgspec.Raw], name: str) -> msgspec.Raw:
    if name not in fields:
        raise LineError(f"it has no field {name!r}")
    return fields[name]


def _decode(decoder: "msgspec.json.Decoder[Any]", raw: msgspec.Raw | bytes, name: str, expected: str) -> Any:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = f"must be {expected}" if isinstance(error, msgspec.ValidationError) else f"is no JSON: {error}"
        raise LineError(f"its field {name!r} {reason}") from error
