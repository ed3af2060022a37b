"""Messages to send."""

from collections.abc import Mapping

import msgspec

from cmqd_client.durations import Duration


class Outgoing(msgspec.Struct, frozen=True):
    """A message of a ``send_batch`` that has headers, a delay or a dedup id of its own."""

    body: bytes
    headers: Mapping[str, str] | None = None
    delay: Duration | None = None
    """None = the batch's, or else the queue's."""
    dedup_id: str | None = None
    """See :meth:`Queue.send`; None = the one that ``dedup_ids`` of the batch has for it, or none."""


def checked_body(body: bytes) -> bytes:
    """The body, unless it is something that msgpack would take and mean otherwise.

    Raises:
        TypeError: it is not bytes.
    """
    if not isinstance(body, (bytes, bytearray, memoryview)):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = "; encode it first: text.encode()" if isinstance(body, str) else ""
        raise TypeError(f"a body must be bytes, not {type(body).__name__}{hint}")
    return body
