"""Messages to send."""

from collections.abc import Mapping

import msgspec

from cmqd_client.durations import Duration


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
