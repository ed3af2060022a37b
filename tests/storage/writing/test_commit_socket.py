"""Commits and their answers on the third socketpair, whole and in pieces."""

import asyncio
import socket
from collections.abc import Iterable, Iterator

import msgspec
import pytest

from cmqd.storage import ipc
from cmqd.storage.writing.commit_socket import BUFFER_BYTES, CommitSocket


@pytest.fixture
def pair() -> Iterator[tuple[CommitSocket, socket.socket]]:
    mine, other = socket.socketpair()
    commits = CommitSocket(mine)
    yield commits, other
    commits.close()
    other.close()


def frame(first_lsn: int, *rows: tuple[bytes, bytes]) -> bytes:
    """A commit of rows with these metas and bodies."""
    head = msgspec.msgpack.encode(ipc.Commit(first_lsn, [(7, 1, b"q", len(meta), len(data)) for meta, data in rows]))
    blobs = b"".join(meta + data for meta, data in rows)
    return ipc.PREFIX.pack(4 + len(head) + len(blobs), len(head)) + head + blobs


def received(commits: CommitSocket) -> list[tuple[int, bytes, bytes]]:
    """The rows of the next batch, copied."""
    rows = commits.receive()
    assert rows is not None
    assert all((row.time_ms, row.messages, row.queues) == (7, 1, b"q") for row in rows)
    return [(row.lsn, bytes(row.meta), bytes(row.data)) for row in rows]


def test_a_batch_has_the_rows_that_were_sent(pair: tuple[CommitSocket, socket.socket]) -> None:
    commits, other = pair

    other.sendall(frame(5, (b"one", b"body"), (b"two", b"")))

    assert received(commits) == [(5, b"one", b"body"), (6, b"two", b"")]


def test_batches_that_arrive_together_come_one_by_one(pair: tuple[CommitSocket, socket.socket]) -> None:
    commits, other = pair
    second = frame(6, (b"second", b"y" * 100))

    other.sendall(frame(5, (b"first", b"x" * 300)) + second[:9])
    assert received(commits) == [(5, b"first", b"x" * 300)]
    other.sendall(second[9:] + frame(7, (b"third", b"")))

    assert received(commits) == [(6, b"second", b"y" * 100)]
    assert received(commits) == [(7, b"third", b"")]


async def test_a_batch_larger_than_the_buffer_arrives_whole(pair: tuple[CommitSocket, socket.socket]) -> None:
    commits, other = pair
    body = bytes(range(256)) * (BUFFER_BYTES // 64)
    large = frame(1, (b"meta", body), (b"more", body[::-1]))

    sending = asyncio.get_running_loop().run_in_executor(None, other.sendall, large)
    rows = await asyncio.to_thread(received, commits)
    await sending
    other.sendall(frame(3, (b"small", b"z")))

    assert rows == [(1, b"meta", body), (2, b"more", body[::-1])]
    assert received(commits) == [(3, b"small", b"z")]


@pytest.mark.parametrize("cut", [0, 3, 20])
def test_the_end_of_the_other_side_ends_the_batches(pair: tuple[CommitSocket, socket.socket], cut: int) -> None:
    commits, other = pair
    other.sendall(frame(1, (b"meta", b"body"))[:cut])
    other.close()

    assert commits.receive() is None
    commits.answer(1, 1)


async def test_a_wait_for_a_batch_can_be_ended(pair: tuple[CommitSocket, socket.socket]) -> None:
    commits, _ = pair
    waiting = asyncio.create_task(asyncio.to_thread(commits.receive))
    await asyncio.sleep(0)

    commits.shut()

    assert await waiting is None


async def test_answers_arrive_whole_and_in_pieces() -> None:
    answers: list[tuple[int, int]] = []
    channel = ipc.CommitChannel(lambda lsn, fsync_us: answers.append((lsn, fsync_us)), lambda: None)
    data = ipc.ANSWER.pack(1, 100) + ipc.ANSWER.pack(1 << 40, 1 << 33) + ipc.ANSWER.pack(3, 0)

    channel.data_received(data[: ipc.ANSWER.size])
    for offset in range(ipc.ANSWER.size, len(data), 5):
        channel.data_received(data[offset : offset + 5])

    assert answers == [(1, 100), (1 << 40, 1 << 33), (3, 0)]


class Pieces(asyncio.Transport):
    """Keeps the pieces of each call of ``writelines``."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[list[bytes]] = []

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written.append([bytes(piece) for piece in list_of_data])


@pytest.mark.parametrize("data", [b"", b"body"])
def test_no_piece_of_a_frame_is_empty(data: bytes) -> None:
    transport, channel = Pieces(), ipc.CommitChannel(lambda _lsn, _fsync_us: None, lambda: None)
    channel.connection_made(transport)

    channel.send(ipc.Commit(5, [(7, 1, b"q", 4, len(data))]), [b"meta", data])

    ((*pieces,),) = transport.written
    assert b"".join(pieces) == frame(5, (b"meta", data))
    assert all(pieces)
