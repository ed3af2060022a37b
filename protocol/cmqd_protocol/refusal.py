"""Errors for requests that cannot be decoded, with the field, the value and the expected type or limit.

Off the hot path: msgspec has already refused the payload. A payload that is well-formed to its last byte, an array
with an operation and a request number in front, gets an Error reply. Any other payload ends the connection, because
without a request number the client could not assign the error. Only values of a few bytes are decoded. A large payload
is not examined whole, because the scan would delay other clients: the error names the field and no value, and bytes
behind the fault are not examined.
"""

import re
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from cmqd_protocol import large_frames
from cmqd_protocol.frames import Payload
from cmqd_protocol.limits import LARGE_PAYLOAD_BYTES, MAX_REQUEST_ID, VERSION
from cmqd_protocol.messages import REQUEST_TYPES, ClientHello, Error, Request, error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.actors import PATTERNS
from cmqd_types.sentences import Sentence, field_name, quantity, sentence

DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for bytes that are malformed or of a wrong type, not UTF-8, or nested too deep."""

SHOWN_BYTES: Final = 64
"""Longest encoding of a refused value that the error repeats."""


SECRETS: Final = frozenset({"secret_key"})
"""Fields with a value of any type that no error repeats: errors reach logs."""


class _Envelope(Struct, array_like=True, gc=False):
    """First elements of every request. Decoding skips the other elements and checks that the array is well-formed."""

    opcode: int
    request_id: Annotated[int, Meta(ge=1, le=MAX_REQUEST_ID)]


# Elements of a request, undecoded. A Struct and no list, so that elements behind the last known field make no objects.
_Elements = msgspec.defstruct(
    "_Elements",
    [
        (f"e{index}", msgspec.Raw, msgspec.Raw())
        for index in range(1 + max(len(request_type.__struct_fields__) for request_type in REQUEST_TYPES.values()))
    ],
    array_like=True,
    gc=False,
)
_envelope_decoder = msgspec.msgpack.Decoder(_Envelope)
_elements_decoder = msgspec.msgpack.Decoder(_Elements)
_list_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_text_decoder = msgspec.msgpack.Decoder(str)
_short_decoder = msgspec.msgpack.Decoder()

SAID_CHARACTERS: Final = 512
"""Longest text of msgspec that is examined. Its texts have names of types and numbers; a text with a part of a payload,
as another release may have, must not cost more."""

# Error texts of msgspec, for instance: Expected `array` of length <= 256 - at `$[3]`
_TOO_SHORT: Final = re.compile(r"Expected `array` of at least length \d+, got (?P<length>\d+)$")
_WRONG_TYPE: Final = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`")
_OUT_OF_BOUNDS: Final = re.compile(
    r"Expected `(?P<kind>[^`]*)`(?P<length> of length)? (?P<operator>[<>]=) (?P<limit>\d+)"
)
_PATH: Final = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`$")
_INDEX: Final = re.compile(r"\[(\d+)\]")
_INSIDE_MAP: Final = "[...]"


def refuse(payload: Payload, problem: Exception) -> Error | None:
    """Return the error for a request that cannot be decoded; None if the payload has no valid request number."""
    is_large = len(payload) > LARGE_PAYLOAD_BYTES
    try:
        envelope = _large_envelope(payload, problem) if is_large else _envelope_decoder.decode(payload)
    except DECODE_ERRORS:
        return None
    if envelope is None or envelope.opcode < 16:
        # An operation of the connection: a second hello or a malformed cancel has no reply.
        return None
    request_type = REQUEST_TYPES.get(envelope.opcode)
    if request_type is None:
        return error(
            envelope.request_id,
            ErrorCode.UNKNOWN_OPERATION,
            f"operation {envelope.opcode} is not known to version {VERSION} of the protocol",
            details={"opcode": envelope.opcode, "version": VERSION},
        )
    if is_large:
        payload = b""
    if isinstance(problem, UnicodeDecodeError):
        field = _field_that_is_not_text(payload, request_type)
        text, details = sentence("{} is not UTF-8", field_name(field)), {"field": field, "expected": "UTF-8"}
    else:
        text, details = _explain(payload, request_type.__struct_fields__, str(problem)[:SAID_CHARACTERS])
    return error(
        envelope.request_id, ErrorCode.INVALID_ARGUMENT, str(text), details={**details, "sentence": text.parts}
    )


def hello_refusal(payload: Payload, problem: Exception) -> str | None:
    """Return the text of the error for a hello with a wrong field; None if the payload is no hello at all."""
    if not isinstance(problem, msgspec.ValidationError):
        return None
    try:
        if _short_decoder.decode(payload)[0] != ClientHello.__struct_config__.tag:
            return None
        text, _ = _explain(payload, ClientHello.__struct_fields__, str(problem)[:SAID_CHARACTERS])
    except (*DECODE_ERRORS, LookupError, TypeError):
        return None
    return f"in the hello, {text}"


def _large_envelope(payload: Payload, problem: Exception) -> _Envelope | None:
    """Read the envelope of a large payload, without examining its end; None = malformed, or without an envelope."""
    # None and not ``raise problem``: this frame has the problem and the payload, so the traceback would be a cycle that
    # keeps the payload in memory until a garbage collection.
    if not isinstance(problem, msgspec.ValidationError | UnicodeDecodeError):
        return None
    count, start = large_frames.array_header(payload)
    opcode, start = large_frames.integer_at(payload, start)
    request_id, _ = large_frames.integer_at(payload, start)
    if count < 2 or opcode < 0 or not 1 <= request_id <= MAX_REQUEST_ID:
        return None
    return _Envelope(opcode, request_id)


_Explanation: TypeAlias = tuple[Sentence, dict[str, Any]]


def _explain(payload: Payload, fields: tuple[str, ...], said: str) -> _Explanation:
    """Translate the error text of msgspec into a sentence about a field of the request."""
    if too_short := _TOO_SHORT.match(said):
        # Element 0 is the operation, so element N, the first missing element, is field N - 1.
        field = fields[int(too_short["length"]) - 1]
        return sentence("{} is missing", field_name(field)), {"field": field}
    where = _PATH.search(said)
    path = where["path"] if where else ""
    indexes = [int(index) for index in _INDEX.findall(path)]
    field = "".join((fields[indexes[0] - 1], *(f"[{index}]" for index in indexes[1:]))) if indexes else "request"
    is_key = bool(where and where["key"])
    in_map = _INSIDE_MAP in path
    has_no_value = is_key or in_map or not indexes or not payload or field in SECRETS
    encoded = b"" if has_no_value else _encoded_at(payload, indexes)
    if bounds := _OUT_OF_BOUNDS.match(said):
        return _out_of_bounds(field, bounds, encoded)
    part = "a key of " if is_key else "a value of " if in_map else ""
    return _wrong_type(sentence("{}{}", part, field_name(field)), field, said, encoded)


def _out_of_bounds(field: str, bounds: re.Match[str], encoded: bytes) -> _Explanation:
    limit = f"{'at most' if bounds['operator'] == '<=' else 'at least'} {bounds['limit']}"
    if not bounds["length"]:
        value = _short_value(encoded)
        words = "at most" if bounds["operator"] == "<=" else "at least"
        given = quantity(field, value) if type(value) is int else repr(value)
        text = sentence(
            "{} is {}; it must be {} {}", field_name(field), given, words, quantity(field, int(bounds["limit"]))
        )
        return text, {"field": field, "value": value, "limit": limit}
    count = _count_entries(encoded)
    unit = "entries"
    if count is None and encoded:
        count, unit = len(_text_decoder.decode(encoded)), "characters"
    if count is None:
        unit = "characters" if bounds["kind"] == "str" else "bytes" if bounds["kind"] == "bytes" else "entries"
        text = sentence("{} must have {} {}", field_name(field), limit, unit)
    else:
        text = sentence("{} has {} {}; it must have {}", field_name(field), count, unit, limit)
    return text, {"field": field, "value": count, "limit": limit}


def _words_of_pattern(said: str) -> str | None:
    """Return the words for the pattern that msgspec's error text names; None = the text names no pattern."""
    return next((words for pattern, words in PATTERNS.items() if repr(pattern) in said), None)


def _wrong_type(part: Sentence, field: str, said: str, encoded: bytes) -> _Explanation:
    if pattern_words := _words_of_pattern(said):
        expected = pattern_words
        text = sentence("{} must be {}", part, expected)
    elif types := _WRONG_TYPE.match(said):
        expected = types["expected"]
        text = sentence("{} is of type {}; expected {}", part, types["got"], expected)
    else:
        expected = said
        text = sentence("{}: {}", part, said)
    details: dict[str, Any] = {"field": field, "expected": expected}
    value = _short_value(encoded)
    if value is not None:
        details["value"] = value
        text = sentence("{} (value {})", text, repr(value))
    return text, details


def _element(payload: Payload, index: int) -> msgspec.Raw:
    element: msgspec.Raw = getattr(_elements_decoder.decode(payload), f"e{index}")
    return element


def _encoded_at(payload: Payload, indexes: list[int]) -> bytes:
    """Return the encoded element at a path of indexes."""
    raw = _element(payload, indexes[0])
    for index in indexes[1:]:
        # Bounded, because msgspec checks the length of a list before its entries.
        raw = _list_decoder.decode(raw)[index]
    return bytes(raw)


def _short_value(encoded: bytes) -> str | bytes | float | None:
    """Return a value that is not an array or map and short enough for an error, else None."""
    if not 0 < len(encoded) <= SHOWN_BYTES or _count_entries(encoded) is not None:
        return None
    try:
        value: Any = _short_decoder.decode(encoded)
    except DECODE_ERRORS:
        return None  # text that is not UTF-8
    return value if isinstance(value, (str, bytes, int, float)) else None


def _count_entries(encoded: bytes) -> int | None:
    """Return the number of entries of an array or map, None for other values. The payload is well-formed."""
    if not encoded:
        return None
    kind = encoded[0]
    if 0x80 <= kind <= 0x9F:
        return kind & 0x0F
    if kind in (0xDC, 0xDE):
        return int.from_bytes(encoded[1:3], "big")
    if kind in (0xDD, 0xDF):
        return int.from_bytes(encoded[1:5], "big")
    return None


def _field_that_is_not_text(payload: Payload, request_type: type[Request]) -> str:
    """Return the first field that is not UTF-8; ``request`` if unknown, as in a large payload."""
    if not payload:
        return "request"
    for index, field in enumerate(msgspec.structs.fields(request_type), start=1):
        try:
            msgspec.msgpack.decode(_element(payload, index), type=field.type)
        except UnicodeDecodeError:
            return field.name
        except DECODE_ERRORS:
            break
    return "request"
