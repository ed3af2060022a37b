"""Typed bodies: values in place of bytes, encoded by msgspec or pydantic.

    orders = client.queue("orders", Order)
    await orders.send(Order(7, "espresso"))
    for message in await orders.receive():
        message.body.drink                  an Order, or PoisonMessage if the body does not decode

The header ``content-type`` names the encoding, so consumers of another type or language can read the body, and a queue
can hold both JSON and MessagePack. A body without the header is decoded by the format of the handle.

pydantic is optional: a program with pydantic models has it installed. All other types go through msgspec: Structs,
dataclasses, TypedDicts, and other types that msgspec decodes.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, cast, is_typeddict

import msgspec

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # the default of a type variable came with Python 3.13

    BodyT = TypeVar("BodyT", default=bytes)
else:
    from typing import TypeVar

    BodyT = TypeVar("BodyT")

CONTENT_TYPE = "content-type"
"""Header with the encoding of a typed body."""

JSON = "application/json"
MSGPACK = "application/msgpack"

BodyFormat: TypeAlias = Literal["json", "msgpack"]


class PoisonPolicy(StrEnum):
    """Treatment of a message with a body that does not decode, by a consumer."""

    REJECT = "reject"
    """Move the message to the dead-letter queue, with the reason."""
    DEAD_LETTER = REJECT
    """Old name of ``REJECT``, an alias until version 0.3, and so is the text ``dead_letter``."""
    SKIP = "skip"
    """Delete the message, and log it."""
    RAISE = "raise"
    """End the consumer with :class:`cmqd_client.errors.PoisonMessage`; the message goes back to the queue."""

    @classmethod
    def _missing_(cls, value: object) -> "PoisonPolicy | None":
        return cls.REJECT if value == "dead_letter" else None


class NotDecodable(Exception):
    """A body is not a value of the type; the text says why."""


class _Encodings(Protocol):
    """Encodes and decodes the values of a type, in either format."""

    def encode(self, value: Any, content_type: str) -> bytes: ...
    def decode(self, body: bytes, content_type: str) -> Any: ...


class _Msgspec:
    def __init__(self, body_type: type) -> None:
        if isinstance(msgspec.inspect.type_info(body_type), msgspec.inspect.CustomType):
            raise TypeError(f"{body_type!r} cannot be a type of bodies: neither msgspec nor pydantic decodes it")
        self._encoders = {JSON: msgspec.json.Encoder(), MSGPACK: msgspec.msgpack.Encoder()}
        self._decoders: dict[str, Any] = {
            JSON: msgspec.json.Decoder(body_type),
            MSGPACK: msgspec.msgpack.Decoder(body_type),
        }

    def encode(self, value: Any, content_type: str) -> bytes:
        return self._encoders[content_type].encode(value)

    def decode(self, body: bytes, content_type: str) -> Any:
        return self._decoders[content_type].decode(body)


class _Pydantic:
    def __init__(self, body_type: type) -> None:
        import pydantic

        self._adapter: Any = pydantic.TypeAdapter(body_type)

    def encode(self, value: Any, content_type: str) -> bytes:
        if content_type == JSON:
            return self._adapter.dump_json(value)
        return msgspec.msgpack.encode(self._adapter.dump_python(value, mode="json"))

    def decode(self, body: bytes, content_type: str) -> Any:
        if content_type == JSON:
            return self._adapter.validate_json(body)
        return self._adapter.validate_python(msgspec.msgpack.decode(body))


class BodyCodec(Generic[BodyT]):
    """Encodes and decodes the bodies of a typed queue."""

    __slots__ = ("_checked_type", "_content_type", "_encodings", "body_type", "poison")

    def __init__(
        self, body_type: type[BodyT], body_format: BodyFormat, poison: PoisonPolicy = PoisonPolicy.REJECT
    ) -> None:
        """Make a codec.

        Raises:
            TypeError: neither msgspec nor pydantic can decode the type.
            ValueError: the format is unknown.
        """
        if body_format not in ("json", "msgpack"):
            raise ValueError(f"body_format is {body_format!r}; it must be 'json' or 'msgpack'")
        self.body_type: type[BodyT] = body_type
        self.poison: PoisonPolicy = poison
        """Treatment of a body that does not decode, by a consumer."""
        self._content_type = JSON if body_format == "json" else MSGPACK
        # isinstance() takes neither a TypedDict nor a parametrized type such as list[Order].
        self._checked_type = body_type if type(body_type) is not _GENERIC and not is_typeddict(body_type) else None
        self._encodings: _Encodings = (
            _Pydantic(body_type) if hasattr(body_type, "__pydantic_validator__") else _Msgspec(body_type)
        )

    @property
    def type_name(self) -> str:
        """Name of the type, for errors."""
        return repr(self.body_type) if self._checked_type is None else self._checked_type.__name__

    def encode(self, value: BodyT) -> bytes:
        """Return the body for a value.

        Raises:
            TypeError: the value is not of the type, or has a part that cannot be encoded. (A value of another type
                might be encoded, and then be poison for every consumer.)
        """
        if self._checked_type is not None and not isinstance(value, self._checked_type):
            raise TypeError(f"a body of this queue must be of the type {self.type_name}, not {type(value).__name__}")
        return self._encodings.encode(value, self._content_type)

    def headers(self, headers: dict[str, str] | None) -> dict[str, str]:
        """Return the headers of a message with the content type."""
        return {**(headers or {}), CONTENT_TYPE: self._content_type}

    def decode(self, body: bytes, headers: dict[str, str] | None) -> BodyT:
        """Return the value of a body.

        Raises:
            NotDecodable: the body is of another content type or not a value of the type.
        """
        named = (headers or {}).get(CONTENT_TYPE, self._content_type)
        content_type = named.partition(";")[0].strip().lower()
        if content_type not in (JSON, MSGPACK):
            raise NotDecodable(f"its content type is {named!r}; this queue reads {JSON} and {MSGPACK}")
        try:
            return cast("BodyT", self._encodings.decode(body, content_type))
        except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
            # pydantic's ValidationError and a failed UTF-8 decoding are ValueErrors.
            raise NotDecodable(str(problem)) from problem


_GENERIC = type(list[int])
