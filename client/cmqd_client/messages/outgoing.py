"""Messages to send."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Final, Generic, Self, cast

import msgspec

from cmqd_client.durations import Duration, to_ms
from cmqd_client.messages.typed_bodies import BodyCodec, BodyT
from cmqd_protocol.limits import MAX_BATCH, MAX_BATCH_BYTES
from cmqd_types.messages import Headers

REPLY_TO: Final = "reply-to"
"""Header of a request: the queue for its reply."""
CORRELATION_ID: Final = "correlation-id"
"""Header of a request and of its reply: the number of the request."""


class Outgoing(msgspec.Struct, Generic[BodyT], frozen=True):
    """A message of a ``send_batch`` that has headers, a delay or a dedup id of its own."""

    body: BodyT
    headers: Mapping[str, str] | None = None
    delay: Duration | None = None
    """None = the delay of the batch, or else of the queue."""
    dedup_id: str | None = None
    """See :meth:`Queue.send`; None = the entry of the batch's ``dedup_ids``, if given."""


def checked_body(body: bytes) -> bytes:
    """Return the body; refuse types that msgpack would encode as another type.

    Raises:
        TypeError: the body is not bytes.
    """
    if not isinstance(body, (bytes, bytearray, memoryview)):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = "; encode it first: text.encode()" if isinstance(body, str) else ""
        raise TypeError(f"a body must be bytes, not {type(body).__name__}{hint}")
    return body


def headers_size(headers: Headers) -> int:
    """Return the bytes of headers as the server counts them: names and values."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())


class Batch(msgspec.Struct, frozen=True):
    """The messages of a batch in wire form, field by field."""

    bodies: list[bytes]
    delays: list[int | None]
    """In milliseconds; None = the queue's own."""
    headers: list[Headers | None] | None
    dedup_ids: list[str | None] | None

    @classmethod
    def of(
        cls,
        messages: Iterable[BodyT | Outgoing[BodyT]],
        delay: Duration | None,
        headers: Mapping[str, str] | None,
        dedup_ids: Sequence[str | None] | None,
        codec: BodyCodec[BodyT] | None = None,
    ) -> Self:
        """Return the wire form of these messages, with common values where a message has none of its own.

        ``codec`` encodes the bodies; None = the bodies are bytes.

        Raises:
            TypeError: a body is not bytes, or not of the type of the codec.
            ValueError: there are not as many dedup ids as messages.
        """
        common_headers = None if headers is None else dict(headers)
        if codec is not None:
            common_headers = codec.headers(common_headers)
        common_delay = None if delay is None else to_ms(delay, "delay")
        bodies: list[bytes] = []
        delays: list[int | None] = []
        all_headers: list[Headers | None] = []
        all_ids: list[str | None] = []
        for message, dedup_id in zip(messages, chain(dedup_ids or (), repeat(None)), strict=False):
            outgoing = cast("Outgoing[BodyT]", message) if isinstance(message, Outgoing) else Outgoing(message)
            body, own_headers = outgoing.body, None if outgoing.headers is None else dict(outgoing.headers)
            if codec is None:
                bodies.append(checked_body(cast("bytes", body)))
            else:
                bodies.append(codec.encode(body))
                own_headers = None if own_headers is None else codec.headers(own_headers)
            all_headers.append(common_headers if own_headers is None else own_headers)
            delays.append(common_delay if outgoing.delay is None else to_ms(outgoing.delay, "delay"))
            all_ids.append(dedup_id if outgoing.dedup_id is None else outgoing.dedup_id)
        if dedup_ids is not None and len(dedup_ids) != len(bodies):
            raise ValueError(f"{len(dedup_ids)} dedup_ids for {len(bodies)} messages; give a name or None per message")
        return cls(
            bodies,
            delays,
            all_headers if any(all_headers) else None,
            all_ids if any(name is not None for name in all_ids) else None,
        )

    def parts(self) -> Iterator["Batch"]:
        """Yield the batch in parts within the server's limits, in order.

        A message that is over the limit by itself is a part of its own: the server takes a large single message, or
        says why not.
        """
        start = size = 0
        for index in range(len(self.bodies)):
            message_size = self._size(index)
            if index - start == MAX_BATCH or (index > start and size + message_size > MAX_BATCH_BYTES):
                yield self._slice(start, index)
                start, size = index, 0
            size += message_size
        yield self._slice(start, len(self.bodies))

    def _size(self, index: int) -> int:
        """Return the bytes of a message as the server counts them: body, and names and values of its headers."""
        size = memoryview(self.bodies[index]).nbytes
        headers = None if self.headers is None else self.headers[index]
        return size + headers_size(headers) if headers else size

    def _slice(self, start: int, end: int) -> "Batch":
        headers = None if self.headers is None else self.headers[start:end]
        dedup_ids = None if self.dedup_ids is None else self.dedup_ids[start:end]
        return Batch(
            self.bodies[start:end],
            self.delays[start:end],
            headers if headers is not None and any(headers) else None,
            dedup_ids if dedup_ids is not None and any(name is not None for name in dedup_ids) else None,
        )
