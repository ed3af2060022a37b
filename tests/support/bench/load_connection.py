"""A connection of the load generator without a socket"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cmqd_protocol.messages import AnyReply, Cancel, MessagesReceived, Request, encoder, request_decoder
from cmqd_types.messages import ReceivedMessage


@dataclass(eq=False)
class FakeConnection:
    """The part of a LoadConnection that producers and consumers need; the test plays the server."""

    requests: list[Request | Cancel] = field(default_factory=list[Request | Cancel])
    on_reply: Callable[[bytes, int], Any] = lambda payload, opcode: None

    def write(self, data: bytes) -> None:
        while data:
            stop = 4 + int.from_bytes(data[:4], "big")
            self.requests.append(request_decoder.decode(data[4:stop]))
            data = data[stop:]

    def take(self) -> list[Request | Cancel]:
        taken, self.requests = self.requests, []
        return taken

    def answer(self, reply: AnyReply) -> None:
        payload = encoder.encode(reply)
        self.on_reply(payload, payload[2])


def received(request_id: int, *handles: int) -> MessagesReceived:
    return MessagesReceived(request_id, [ReceivedMessage(handle, handle, b"x" * 20, 0, 0, 0, 1) for handle in handles])
