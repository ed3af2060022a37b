"""Frames between the loop process and the storage process, over three socketpairs.

    frame = u32 length of the rest | u32 length of the head | head (msgpack) | blobs

The head is one of the Structs below. Blobs are raw bytes with sizes from the head, so bodies are never encoded.

The first socket carries checkpoint parts and control, the second pages and the recovery stream, the third commits and
their answers. The third is for the commit thread of the storage process alone (``commit_socket``), which blocks in its
read: no other frame and no other thread is between a batch and its durable LSN.

The order of frames is a promise on each socket alone. A control frame that states rows names the LSN up to which it
does, and takes effect when that LSN is durable (``durable_lsn``).
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TypeAlias, cast

import msgspec

from cmqd.log.values import (
    EngineStatus,
    FoundRows,
    HeldCheckpoint,
    HistoryAnswer,
    LogState,
    MessagesAnswer,
    RecoveryReport,
    SegmentReport,
    Takeover,
)
from cmqd.storage.storage_settings import StorageSettings
from cmqd_reading.message_search import MessageQuery
from cmqd_segment.manifest import SourceName, StandingPinEntry
from cmqd_segment.records import PublishedMessage, Runs
from cmqd_types.actors import Actor
from cmqd_types.messages import CopyOf, Headers, Labels, Origin

PREFIX = Struct("<II")
"""Beginning of a frame: length of the rest, length of the head."""
ANSWER = Struct("<QQ")
"""Answer to a commit: every row up to this LSN is durable; time of the transaction with its fsync, in microseconds."""
_encode = msgspec.msgpack.Encoder().encode

SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
"""Requested size; the kernel may cap it. A batch should fit, so that the loop never waits for the storage process to
read."""


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Head of a frame."""


# Loop to storage, first socket


class Open(Head, frozen=True, tag=1):
    """The first frame: the folder to open, and its settings."""

    settings: StorageSettings


class CheckpointParts(Head, frozen=True, tag=3):
    """Parts of a checkpoint. Blob: the parts as frames of the file."""

    first: bool
    """The parts begin with a ``CheckpointHeader``."""
    end_lsn: int
    """LSN of the last part if that is a ``CheckpointEnd``, else 0."""
    size: int


class DropSegments(Head, frozen=True, tag=4):
    """Reclaim these segments after ``min_lsn`` is durable, if a checkpoint covers them."""

    request_id: int
    numbers: list[int]
    min_lsn: int


class SealNow(Head, frozen=True, tag=5):
    """Retire and seal the active segment."""

    request_id: int


class FindHistory(Head, frozen=True, tag=50):
    """Read the life of a message from the rows up to ``last_lsn``. Answered ``HistoryFound``."""

    request_id: int
    message_id: int
    lease: int
    last_lsn: int


class FindMessages(Head, frozen=True, tag=53):
    """Search the rows up to ``last_lsn`` for messages. Answered ``MessagesFound``."""

    request_id: int
    query: MessageQuery
    last_lsn: int


class StopHistory(Head, frozen=True, tag=51):
    """The answer to a ``FindHistory`` or ``FindMessages`` is not needed any more; any answer will do."""

    request_id: int


class DescribeActive(Head, frozen=True, tag=9):
    """Describe the active segment. Answered ``ActiveSegment``."""

    request_id: int


class HoldCheckpoint(Head, frozen=True, tag=16):
    """Keep the newest checkpoint. Answered ``CheckpointHeld``."""

    request_id: int


class ReleaseCheckpoint(Head, frozen=True, tag=17):
    """End a hold."""

    number: int


class FindRows(Head, frozen=True, tag=18):
    """Find the start that wrote row ``lsn``, and the reclaimed rows above ``above`` up to ``lsn``. Answered
    ``RowsFound``.
    """

    request_id: int
    lsn: int
    above: int


class KeepStandingPins(Head, frozen=True, tag=19):
    """Replace the standing pins of the log. Answered ``Answered`` once the names are durable."""

    request_id: int
    pins: list[StandingPinEntry]


class Close(Head, frozen=True, tag=6):
    """Stop in order, once row ``last_lsn`` is durable: the last row that was sent."""

    last_lsn: int


class SegmentNames(Head, frozen=True, tag=7):
    """Names of the queues and topics of a segment before its seal, as far as the loop process knows them."""

    number: int
    names: list[SourceName]


class SegmentActors(Head, frozen=True, tag=20):
    """Actors of a segment before its seal, as far as the loop process knows them."""

    number: int
    actors: list[tuple[int, Actor]]


class CommitsWanted(Head, frozen=True, tag=13):
    """The process that shall commit from the next switch of segments on (``loop_side.commit_way``).

    False while the loop process commits is answered ``SwitchWanted``, as soon as a successor is ready.
    """

    by_loop: bool
    is_full: bool = False
    """A commit of the loop process met a full disk."""


class Committed(Head, frozen=True, tag=14):
    """The loop process has committed rows: the log may have grown, or reached a wanted LSN (``LsnWanted``)."""


class Switched(Head, frozen=True, tag=15):
    """Answer to ``SwitchWanted``: the next commit goes to the successor. The loop process has no connection to the
    segment before any more.
    """

    by_loop: bool
    """The loop process commits. False also if it could not open the successor."""


class LoadAccounts(Head, frozen=True, tag=10):
    """Read the accounts of the engine. Answered ``Accounts``."""

    request_id: int


class StoreAccounts(Head, frozen=True, tag=11):
    """Replace the accounts of the engine. Blob: the accounts. Answered ``Accounts`` without a blob."""

    request_id: int
    expected_version: int
    size: int


class Announce(Head, frozen=True, tag=12):
    """List this broker in the engine by its address."""

    address: str


class DeletedNames(Head, frozen=True, tag=8):
    """Names of deleted queues and topics. Sent before the end of a checkpoint, which lacks these names; takes effect
    with the end.
    """

    names: list[SourceName]


class SegmentChanges(Head, frozen=True, tag=60):
    """Segments with messages that left or came back since the checkpoint before, and segments without a wanted message.
    Sent before the end of a checkpoint; takes effect with the end.
    """

    changed: list[int]
    unwanted: list[int]
    counted: int
    """Newest closed segment that the loop process knew; 0 = none."""


# Storage to loop, first socket


class Opened(Head, frozen=True, tag=22):
    """The folder is locked, checked and ready for the recovery stream."""

    report: RecoveryReport
    droppable_lsn: int
    segments: list[SegmentReport]


class StateChanged(Head, frozen=True, tag=24):
    """Room and health of the log, after a change."""

    state: LogState


class SegmentClosed(Head, frozen=True, tag=25):
    """A segment was retired or sealed. Reported twice, because a retired segment may be dropped before its seal, and
    because the seal changes its size.
    """

    segment: SegmentReport
    sealed_upto: int
    """Every segment with a row up to this LSN is sealed."""


class SegmentsDropped(Head, frozen=True, tag=36):
    """A standby has dropped segments, because the engine has no row of them any more."""

    numbers: list[int]


class NamesWanted(Head, frozen=True, tag=31):
    """A segment is to be sealed. Answered ``SegmentNames``."""

    number: int
    ids: list[int]
    """Queues and topics with messages in the segment."""


class ActorsWanted(Head, frozen=True, tag=48):
    """A segment is to be sealed. Answered ``SegmentActors``, once the loop process knows the rows of the segment."""

    number: int
    numbers: list[int]
    """Of actors that the rows of the segment name."""
    last_lsn: int
    """Of the segment."""


class FolderInUse(Head, frozen=True, tag=32):
    """Another broker holds the lock of the folder; the answer to ``Open`` waits until that broker has ended."""

    text: str
    waiting_ms: int


class SwitchWanted(Head, frozen=True, tag=37):
    """The active segment is to be retired. Answered ``Switched`` between two commits."""

    number: int
    """The segment of the next commit."""
    by_loop: bool
    """The loop process shall commit."""


class LsnWanted(Head, frozen=True, tag=49):
    """The storage process waits for the row with this LSN, which the loop process commits. Answered ``Committed`` once
    the row is durable, or ``Switched`` before.
    """

    lsn: int


class EngineChanged(Head, frozen=True, tag=35):
    """The engine as the storage process sees it, after a change."""

    status: EngineStatus


class CheckpointWanted(Head, frozen=True, tag=26):
    """A checkpoint would be of use."""


class CheckpointDone(Head, frozen=True, tag=27):
    """A checkpoint is kept."""

    lsn: int
    droppable_lsn: int


class Answered(Head, frozen=True, tag=28):
    """Answer to ``DropSegments``, with the numbers of the segments that were dropped, to ``SealNow`` and to
    ``KeepStandingPins``.
    """

    request_id: int
    numbers: list[int]


class ActiveSegment(Head, frozen=True, tag=33):
    """Answer to ``DescribeActive``: the active segment, None if it has no rows."""

    request_id: int
    segment: SegmentReport | None


class CheckpointHeld(Head, frozen=True, tag=38):
    """Answer to ``HoldCheckpoint``: the checkpoint, None if the log has none."""

    request_id: int
    checkpoint: HeldCheckpoint | None


class RowsFound(Head, frozen=True, tag=39):
    """Answer to ``FindRows``."""

    request_id: int
    rows: FoundRows


class HistoryFound(Head, frozen=True, tag=52):
    """Answer to ``FindHistory``."""

    request_id: int
    answer: HistoryAnswer


class MessagesFound(Head, frozen=True, tag=54):
    """Answer to ``FindMessages``."""

    request_id: int
    answer: MessagesAnswer


class Accounts(Head, frozen=True, tag=34):
    """Answer to ``LoadAccounts`` and ``StoreAccounts``, and, with the id 0, accounts that a standby has found. Blob:
    the accounts, except in the answer to ``StoreAccounts``.
    """

    request_id: int
    version: int
    """0 = the engine has none."""
    size: int = 0
    is_conflict: bool = False
    """A ``StoreAccounts`` changed nothing, because ``version`` is stored."""


class Closed(Head, frozen=True, tag=29):
    """Every segment is sealed and the folder is free."""


class Failed(Head, frozen=True, tag=30):
    """The last frame: the storage process is about to exit. ``kind`` names a class of ``storage_errors``."""

    kind: str
    text: str


# Second socket


class RecoverNext(Head, frozen=True, tag=40):
    """Ask for the next chunk of the recovery stream."""


class CheckpointChunk(Head, frozen=True, tag=41):
    """Blobs: checkpoint parts of these sizes."""

    sizes: list[int]


class RowsChunk(Head, frozen=True, tag=42):
    """Rows above the checkpoint. Blobs: the meta of each row."""

    rows: list[tuple[int, int, int]]
    """(lsn, time_ms, bytes of meta)"""


class RecoverEnd(Head, frozen=True, tag=43):
    """The recovery stream is over. With an engine: this broker leads from now on."""

    last_lsn: int
    """The last row of the log."""
    log_id: str
    epoch: int
    """Epoch of this broker in the engine, 0 without an engine."""
    takeover: Takeover | None = None
    """None without an engine, and without a row but fences."""
    standing_pins: list[StandingPinEntry] | None = None
    """Of the folder, or of the engine; None if the engine cannot keep any."""


class ReadPage(Head, frozen=True, tag=44):
    """See ``cmqd.log.interface.Log.read_page``."""

    read_id: int
    queue_id: int
    positions: Runs
    max_bytes: int
    min_lsn: int


Column: TypeAlias = tuple[
    int,
    int,
    int,
    list[int],
    list[Headers | None] | None,
    int | list[int] | None,
    list[Origin | None] | None,
    list[Labels] | None,
    int | None,
    list[CopyOf | None] | None,
]
"""The columns of a ``cmqd_segment.rows.Run`` without the offset; of its source the id alone."""


class Page(Head, frozen=True, tag=45):
    """Messages of a page, ascending by position. Blob: the bodies side by side."""

    read_id: int
    runs: list[Column]
    missing: Runs
    sources: list[tuple[int, str, str]]
    """(number of a run, topic, subscription) of the copies in that run and in later runs, up to the next entry."""


class ReadPublished(Head, frozen=True, tag=46):
    """See ``cmqd.log.interface.Log.read_published``."""

    read_id: int
    topic_id: int
    start: int
    stop: int
    min_lsn: int


class Published(Head, frozen=True, tag=47):
    """The answer to a ``ReadPublished``."""

    read_id: int
    message: PublishedMessage | None


# Loop to storage, third socket; answered ``ANSWER``


class Commit(Head, frozen=True):
    """Rows to make durable together. Blobs: meta and data of each row in turn."""

    first_lsn: int
    rows: list[tuple[int, int, bytes, int, int]]
    """(time_ms, messages, queues, bytes of meta, bytes of data)"""


AnyHead: TypeAlias = (
    Open
    | CheckpointParts
    | DropSegments
    | SealNow
    | FindHistory
    | FindMessages
    | StopHistory
    | DescribeActive
    | HoldCheckpoint
    | ReleaseCheckpoint
    | FindRows
    | KeepStandingPins
    | Close
    | SegmentNames
    | SegmentActors
    | DeletedNames
    | SegmentChanges
    | LoadAccounts
    | StoreAccounts
    | FolderInUse
    | Opened
    | Announce
    | StateChanged
    | EngineChanged
    | SegmentClosed
    | SegmentsDropped
    | NamesWanted
    | ActorsWanted
    | CheckpointWanted
    | CheckpointDone
    | CommitsWanted
    | Committed
    | Switched
    | SwitchWanted
    | LsnWanted
    | Answered
    | ActiveSegment
    | HistoryFound
    | MessagesFound
    | CheckpointHeld
    | RowsFound
    | Accounts
    | Closed
    | Failed
    | RecoverNext
    | CheckpointChunk
    | RowsChunk
    | RecoverEnd
    | ReadPage
    | Page
    | ReadPublished
    | Published
)

_heads = msgspec.msgpack.Decoder(AnyHead)

OnFrame: TypeAlias = Callable[[AnyHead, bytes, int], None]
"""(head, buffer, offset of the blobs in the buffer). The receiver may keep the buffer; the channel never writes to
it."""


class Channel(asyncio.Protocol):
    """One end of a socketpair. Both processes come from one installation, so a bad frame is a defect, not an attack."""

    def __init__(self, on_frame: OnFrame, on_lost: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        """The beginning of a frame that has not arrived whole."""
        self._have = 0
        self._need = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the other side; later calls of ``send`` do nothing."""
        self._transport = None
        self._on_lost()

    def send(self, head: Head, *blobs: bytes | memoryview) -> None:
        """Send a frame. Does nothing after the other end is gone."""
        transport = self._transport
        if transport is None:
            return
        if blobs:
            transport.writelines(_pieces(head, blobs))
            return
        encoded = _encode(head)
        transport.write(PREFIX.pack(4 + len(encoded), len(encoded)) + encoded)

    def data_received(self, data: bytes) -> None:
        """Hand on every whole frame, keep the rest."""
        # A batch of 4 MiB arrives in many reads. Joining at each read would copy its beginning again and again.
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        view = memoryview(data)
        end = len(data)
        offset = 0
        while end - offset >= 8:
            size, head_size = PREFIX.unpack_from(data, offset)
            stop = offset + 4 + size
            if stop > end:
                # ``_need`` counts from the beginning of this frame, where the kept bytes begin.
                self._need = stop - offset
                break
            blobs = offset + 8 + head_size
            self._on_frame(_heads.decode(view[offset + 8 : blobs]), data, blobs)
            offset = stop
        else:
            # Not even the prefix is whole, so the size of the frame is unknown.
            self._need = 8
        if offset < end:
            self._chunks.append(data[offset:] if offset else data)
            self._have = end - offset

    def close(self) -> None:
        """Flush the frames, then end the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection without flushing."""
        if self._transport is not None:
            self._transport.abort()


class CommitChannel(asyncio.Protocol):
    """The loop process's end of the third socketpair: commits leave, answers arrive."""

    def __init__(self, on_durable: Callable[[int, int], None], on_lost: Callable[[], None]) -> None:
        """Take the receiver of the answers, called with the fields of ``ANSWER``, and of the end of the other side."""
        self._on_durable = on_durable
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._beginning = b""
        """Of an answer that has not arrived whole."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the other side; later calls of ``send`` do nothing."""
        self._transport = None
        self._on_lost()

    def send(self, commit: Commit, blobs: Sequence[bytes]) -> None:
        """Send a commit. Does nothing after the other end is gone."""
        if self._transport is not None:
            self._transport.writelines(_pieces(commit, blobs))

    def data_received(self, data: bytes) -> None:
        """Hand on every whole answer, keep the rest."""
        if self._beginning:
            data = self._beginning + data
        whole = len(data) - len(data) % ANSWER.size
        for offset in range(0, whole, ANSWER.size):
            self._on_durable(*ANSWER.unpack_from(data, offset))
        self._beginning = data[whole:]

    def close(self) -> None:
        """Flush the commits, then end the connection."""
        if self._transport is not None:
            self._transport.close()


def _pieces(head: Head, blobs: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return a frame for ``writelines``: one system call for all blobs. Joining them first would copy, and above
    128 KiB fault in fresh pages. Empty blobs are left out: asyncio of Python 3.12 and later never takes an empty
    piece at the end off its buffer, and calls ``sendmsg`` for it at each turn of the loop.
    """
    encoded = _encode(head)
    size = 4 + len(encoded) + sum(map(len, blobs))
    return [PREFIX.pack(size, len(encoded)) + encoded, *filter(None, blobs)]


async def attach(sock: socket.socket, on_frame: OnFrame, on_lost: Callable[[], None]) -> Channel:
    """Make a channel over one end of a socketpair, on asyncio's loop or uvloop. The channel owns the socket."""
    channel = Channel(on_frame, on_lost)
    await _attach(sock, channel)
    return channel


async def attach_commits(
    sock: socket.socket, on_durable: Callable[[int, int], None], on_lost: Callable[[], None]
) -> CommitChannel:
    """Make the loop process's channel of the third socketpair, as ``attach`` does."""
    channel = CommitChannel(on_durable, on_lost)
    await _attach(sock, channel)
    return channel


def handed_on(sock: socket.socket) -> int | None:
    """Take the descriptor that the other end has handed on (``CommitSocket.hand_on``); None if there is none."""
    sock.setblocking(False)
    try:
        _, descriptors, _, _ = socket.recv_fds(sock, 1, 1)
    except OSError:
        return None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return descriptors[0] if descriptors else None


async def _attach(sock: socket.socket, protocol: asyncio.Protocol) -> None:
    sock.setblocking(False)
    enlarge_buffers(sock)
    await asyncio.get_running_loop().create_unix_connection(lambda: protocol, sock=sock)


def enlarge_buffers(sock: socket.socket) -> None:
    """Ask the kernel for buffers of ``SOCKET_BUFFER_BYTES``."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
