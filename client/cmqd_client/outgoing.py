"""Messages to send."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Final

import msgspec

from cmqd_client.durations import Duration, to_ms
from cmqd_types.messages import Headers

REPLY_TO: Final = "reply-to"
"""Header of a request: the queue for its reply."""
CORRELATION_ID: Final = "correlation-id"
"""Header of a request and of its reply: the number of the request."""


class Outgoing(msgspec.Struct, frozen=True):
    """A message of a ``send_batch`` that has headers, a delay or a dedup id of its own."""

    body: bytes
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


class Batch:
    """The messages of a batch in wire form, field by field."""

    __slots__ = ("bodies", "dedup_ids", "delays", "headers")

    def __init__(
        self,
        messages: Iterable[bytes | Outgoing],
        delay: Duration | None,
        headers: Mapping[str, str] | None,
        dedup_ids: Sequence[str | None] | None,
    ) -> None:
        common_headers = None if headers is None else dict(headers)
        common_delay = None if delay is None else to_ms(delay, "delay")
        self.bodies: list[bytes] = []
        self.delays: list[int | None] = []
        all_headers: list[Headers | None] = []
        all_ids: list[str | None] = []
        for message, dedup_id in zip(messages, chain(dedup_ids or (), repeat(None)), strict=False):
            outgoing = message if isinstance(message, Outgoing) else Outgoing(message)
            self.bodies.append(checked_body(outgoing.body))
            all_headers.append(common_headers if outgoing.headers is None else dict(outgoing.headers))
            self.delays.append(common_delay if outgoing.delay is None else to_ms(outgoing.delay, "delay"))
            all_ids.append(dedup_id if outgoing.dedup_id is None else outgoing.dedup_id)
        if dedup_ids is not None and len(dedup_ids) != len(self.bodies):
            raise ValueError(
                f"{len(dedup_ids)} dedup_ids for {len(self.bodies)} messages; give a name or None per message"
            )
        self.headers: list[Headers | None] | None = all_headers if any(all_headers) else None
        self.dedup_ids: list[str | None] | None = all_ids if any(name is not None for name in all_ids) else None
