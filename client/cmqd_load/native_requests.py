"""Requests of cmqd's protocol for the generator in C."""

from collections.abc import Sequence

from cmqd_load.native_job import Request
from cmqd_load.wire import frame, shortest
from cmqd_protocol.messages import DeleteMessages, ReceiveMessages, SendMessages, WireMessage

PROTOCOL = "cmqd"
NUMBER = 256
"""A request number that takes three bytes; the generator patches the last two."""
NUMBER_AT = 3
"""Position of the number in a payload, after array, opcode and the number's first byte."""
HEADER = 4
WAIT_MS = 20_000
"""Wait of a receive: far above any wait in a run."""


def request_of(message: WireMessage, messages: int, *, is_stamped: bool = False) -> Request:
    """Return a request of the generator; the message's number must be ``NUMBER``."""
    return Request(frame(message), messages, number_at=HEADER + NUMBER_AT, is_stamped=is_stamped)


def without_last_list(message: WireMessage) -> bytes:
    """Return a payload without its last field that is set, an empty list: the generator appends the handles."""
    payload = shortest(message)
    assert payload[-1] == 0x90
    return payload[:-1]


def send_request(queue: str, bodies: Sequence[bytes]) -> Request:
    """Return a send."""
    return request_of(SendMessages(NUMBER, queue, list(bodies)), len(bodies), is_stamped=True)


def receive_request(queue: str, batch: int) -> Request:
    """Return a receive of up to ``batch`` messages."""
    return request_of(ReceiveMessages(NUMBER, queue, batch, WAIT_MS), batch)


def delete_start(queue: str, batch: int, *, inside: bool = False) -> bytes:
    """Return the start of a delete, to which handles are appended; ``inside``: of a receive that deletes."""
    if inside:
        return without_last_list(ReceiveMessages(NUMBER, queue, batch, WAIT_MS, acknowledge=[]))
    return without_last_list(DeleteMessages(NUMBER, queue, []))
