"""Changes that a traced process made to the files of a folder, as a list of events; and the file of the events.

Events are in the order of the ends of the calls. ``at_ns`` (CLOCK_MONOTONIC, a single clock for all processes) is read
while the caller is still stopped at the call's end, before any consequence of the call. Files are numbered: a number is
an inode from its creation on, under all its names. Paths are relative to the folder, without a leading slash; the
folder itself is "".
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    at_ns: int


class Present(Event, frozen=True, tag=1):
    """A file or folder that was there, durable, before the trace began."""

    path: str
    file: int
    mode: int
    is_folder: bool
    data: bytes


class Created(Event, frozen=True, tag=2):
    path: str
    file: int
    mode: int


class FolderCreated(Event, frozen=True, tag=3):
    path: str
    mode: int


class Renamed(Event, frozen=True, tag=4):
    old_path: str
    new_path: str


class Linked(Event, frozen=True, tag=5):
    old_path: str
    new_path: str


class Removed(Event, frozen=True, tag=6):
    """A name of a file, or an empty folder."""

    path: str


class Written(Event, frozen=True, tag=7):
    file: int
    offset: int
    data: bytes
    zeros: int = 0
    """Length, when the data is only zeros (then ``data`` is empty)."""
    synced: bool = False
    """The call itself made the data durable (O_DSYNC)."""


class Resized(Event, frozen=True, tag=8):
    """Cut or extended with zeros to ``size`` bytes."""

    file: int
    size: int


class Allocated(Event, frozen=True, tag=9):
    """At least ``size`` bytes long now."""

    file: int
    size: int


class SyncStarted(Event, frozen=True, tag=10):
    """``started`` of the sync event with the same number; that may never come."""

    sync: int


class Synced(Event, frozen=True, tag=11):
    """Changes of this file before ``SyncStarted`` with this number are durable now."""

    sync: int
    file: int


class FolderSynced(Event, frozen=True, tag=12):
    """The names in this folder, as of ``SyncStarted``, are durable now."""

    sync: int
    path: str


class AllSynced(Event, frozen=True, tag=13):
    """sync() or syncfs()."""

    sync: int


class Unfollowed(Event, frozen=True, tag=14):
    """A call that this tracer cannot follow; a trace with this event proves nothing."""

    what: str


AnyEvent: TypeAlias = (
    Present
    | Created
    | FolderCreated
    | Renamed
    | Linked
    | Removed
    | Written
    | Resized
    | Allocated
    | SyncStarted
    | Synced
    | FolderSynced
    | AllSynced
    | Unfollowed
)

_length = struct.Struct("=I")
_encoder = msgspec.msgpack.Encoder()
_decoder: "msgspec.msgpack.Decoder[AnyEvent]" = msgspec.msgpack.Decoder(AnyEvent)


def write_event(file: BinaryIO, event: AnyEvent) -> None:
    payload = _encoder.encode(event)
    file.write(_length.pack(len(payload)))
    file.write(payload)


def _read_events(file: BinaryIO) -> Iterator[AnyEvent]:
    while len(prefix := file.read(_length.size)) == _length.size:
        (size,) = _length.unpack(prefix)
        payload = file.read(size)
        if len(payload) < size:
            return
        yield _decoder.decode(payload)


def read_trace(path: Path) -> list[AnyEvent]:
    """Return the events of a trace that has ended.

    A tracer that was killed leaves the first events: the events in its buffer are lost, and the last event of the file
    may be torn. A torn event is left out.
    """
    with path.open("rb") as file:
        return list(_read_events(file))
