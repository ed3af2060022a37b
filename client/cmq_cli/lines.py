"""Lines of text and of JSON, as messages to store."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from cyclopts import Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.options import Flag, Repeated

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)
_TAGS = msgspec.json.Decoder(str | list[str] | None)


class LineError(Exception):
    """A line cannot be read as a message; the text gives the reason."""


class Line(msgspec.Struct, frozen=True):
    """A message, and the line that it comes from."""

    number: int
    """Number of the line, from 1; empty lines count."""
    body: bytes
    tags: list[str] = []
    routing_key: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the message in a batch, without headers."""
        return len(self.body) + sum(map(len, self.tags)) + len(self.routing_key or "")


@Parameter(name="*")
@dataclass(frozen=True)
class LineFormat:
    """The form of the lines of a stream, and the labels of the messages.

    Parameters
    ----------
    body_field
        With --ndjson: the field with the body, the text of a string or the JSON of any other value. By default the
        line is the body.
    """

    tag: Repeated = None
    "A tag of each message; can be repeated, up to 10."
    routing_key: str | None = None
    "On a routing topic: the routing key of each message."
    ndjson: Flag = False
    "Publish each line of --file or standard input as a message. A line is a JSON object."
    body_field: str | None = None
    tag_field: str | None = None
    "With --ndjson: the field with a tag or a list of tags. A message without the field, or with null, has no tags."
    key_field: str | None = None
    "With --ndjson: the field with the routing key."

    def check(self) -> None:
        """Check that the options do not contradict each other.

        Raises:
            CommandFailed: they do.
        """
        if not self.ndjson and (self.body_field or self.tag_field or self.key_field):
            raise CommandFailed("--body-field, --tag-field and --key-field need --ndjson", ExitCode.USAGE)
        if (self.tag and self.tag_field) or (self.routing_key is not None and self.key_field):
            raise CommandFailed("give --tag or --tag-field, --routing-key or --key-field, not both", ExitCode.USAGE)
        if (self.tag or self.tag_field) and (self.routing_key is not None or self.key_field):
            raise CommandFailed("a topic takes tags or routing keys, not both", ExitCode.USAGE)

    def read(self, number: int, line: bytes) -> Line:
        """Return the message of a line.

        Raises:
            LineError: the line is not a JSON object, or a field is missing or has the wrong type.
        """
        if not self.ndjson:
            return Line(number, line, self.tag or [], self.routing_key)
        try:
            fields = _OBJECT.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LineError(f"the line is not a JSON object: {error}") from error
        body, tags, key = line, self.tag or [], self.routing_key
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
        raise LineError(f"the object has no field {name!r}")
    return fields[name]


def _decode(decoder: "msgspec.json.Decoder[Any]", raw: msgspec.Raw | bytes, name: str, expected: str) -> Any:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = f"must be {expected}" if isinstance(error, msgspec.ValidationError) else f"is not JSON: {error}"
        raise LineError(f"the field {name!r} {reason}") from error
