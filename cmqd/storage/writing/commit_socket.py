"""The storage process's end of the third socketpair, as the commit thread uses it: reads and writes that block.

The thread waits for a batch inside the kernel and answers with one system call. A socket of asyncio would put the loop
between the thread and both.
"""

import contextlib
import socket

import msgspec

from cmqd.storage import ipc
from cmqd.storage.segments.row_inserts import LogRow

BUFFER_BYTES = 64 * 1024
"""Size of the buffer at the beginning. The buffer grows to the largest batch and stays: fresh memory for each large
batch would cost a page fault for every 4 KiB."""

PREFIX_BYTES = ipc.PREFIX.size

_decode = msgspec.msgpack.Decoder(ipc.Commit).decode


class CommitSocket:
    """Receives batches and answers them. All methods but ``shut`` and ``close`` are for the commit thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        ipc.enlarge_buffers(sock)
        self._socket = sock
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self._size = 0
        """Bytes of the batch that was received last."""
        self._have = 0
        """Bytes in the buffer."""

    def receive(self) -> list[LogRow] | None:
        """Wait for a batch and return its rows, None at the end of the other side. Rows are views of the buffer, valid
        until the next call.
        """
        if self._have > self._size:
            self._keep_next()
        else:
            self._have = 0
        if not self._read(PREFIX_BYTES):
            return None
        rest, head_size = ipc.PREFIX.unpack_from(self._view)
        size = self._size = 4 + rest
        if self._have < size and not self._read(size):
            return None
        view = self._view
        offset = PREFIX_BYTES + head_size
        commit = _decode(view[PREFIX_BYTES:offset])
        rows: list[LogRow] = []
        for lsn, (time_ms, messages, queues, meta_size, data_size) in enumerate(commit.rows, commit.first_lsn):
            body = offset + meta_size
            end = body + data_size
            rows.append(LogRow(lsn, time_ms, messages, queues, view[offset:body], view[body:end]))
            offset = end
        return rows

    def hand_on(self, descriptor: int) -> None:
        """Hand a descriptor on to the loop process, before the first answer (``ipc.handed_on``)."""
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._socket, [b"\0"], [descriptor])

    def answer(self, lsn: int, fsync_us: int) -> None:
        """Tell the loop process that every row up to ``lsn`` is durable. Does nothing if it has ended."""
        try:
            self._socket.sendall(ipc.ANSWER.pack(lsn, fsync_us))
        except ConnectionError:
            pass

    def shut(self) -> None:
        """Let ``receive`` find the end of the other side. From any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close the socket, after the end of the commit thread."""
        self._socket.close()

    def _keep_next(self) -> None:
        """Move the bytes behind the last batch to the beginning: there are none while one batch is outstanding."""
        beyond = bytes(self._view[self._size : self._have])
        self._view[: len(beyond)] = beyond
        self._have = len(beyond)

    def _read(self, needed: int) -> bool:
        """Read until the buffer has ``needed`` bytes; False at the end of the other side."""
        if needed > len(self._view):
            larger = memoryview(bytearray(needed))
            larger[: self._have] = self._view[: self._have]
            self._view = larger
        while self._have < needed:
            try:
                count = self._socket.recv_into(self._view[self._have :])
            except ConnectionError:
                return False
            if not count:
                return False
            self._have += count
        return True
