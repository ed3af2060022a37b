"""Messages between the first gateway process and a further one, over a pair of sockets that keep their bounds.

    further process                              first process
    BeginDelete  ──────────────────────────────► a repeat: DeleteAnswered, or DeleteFailed
                 ◄────────────────────── Delete  no repeat
    DeleteEnded  ──────────────────────────────► remembered for repeats
    CountedFigures, once a second ─────────────► added up by /metrics

A socket that is full, because the other process stands still, takes no message: ``send`` says so, and the sender
refuses its request. A process that is killed leaves whole messages, so its successor reads on. A number belongs to a
request of a single process; a message with an unknown number is dropped.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

MAX_MESSAGE_BYTES: Final = 128 << 10
"""Largest message: far more than the failures of a delete or the counters of a process take."""
_READ_AT_ONCE: Final = 32
"""Messages that are read before other connections have a turn."""


class BeginDelete(msgspec.Struct, tag=True, frozen=True):
    """A further process was asked for a delete."""

    number: int
    """Names the request in later messages."""
    secret_id: str
    digest: str


class Delete(msgspec.Struct, tag=True, frozen=True):
    """The delete is no repeat: the further process makes it."""

    number: int


class DeleteEnded(msgspec.Struct, tag=True, frozen=True):
    """The further process made the delete, or failed to."""

    number: int
    fields: Mapping[str, Any] | None
    """The answer; None = the delete failed, and a repeat tries again."""


class DeleteAnswered(msgspec.Struct, tag=True, frozen=True):
    """The delete is a repeat, with this answer."""

    number: int
    fields: Mapping[str, Any]


class DeleteFailed(msgspec.Struct, tag=True, frozen=True):
    """The delete is a repeat of a delete that failed."""

    number: int


class CountedFigures(msgspec.Struct, tag=True, frozen=True):
    """Figures of a process for ``/metrics``."""

    pid: int
    gauges: dict[str, int]
    counters: list[tuple[str, tuple[str, ...], int]]
    """Names, labels and values."""


Message: TypeAlias = BeginDelete | Delete | DeleteEnded | DeleteAnswered | DeleteFailed | CountedFigures

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Message)


class Channel:
    """An end of a pair of sockets; see the module."""

    def __init__(self, end: socket.socket, on_message: Callable[["Channel", Message], None]) -> None:
        """Read from now on; ``on_message`` takes each message with this channel."""
        end.setblocking(False)
        self._end = end
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end.fileno(), self._read)

    def send(self, message: Message) -> bool:
        """Send a message; False if the other process does not read."""
        try:
            self._end.send(_encoder.encode(message))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Read no more. The socket stays open: the next process at this end has it too."""
        self._loop.remove_reader(self._end.fileno())

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_READ_AT_ONCE):
                received = self._end.recv(MAX_MESSAGE_BYTES)
                if not received:
                    # All other holders of the pair have ended, the parent too.
                    self.close()
                    return
                self._on_message(self, _decoder.decode(received))
