"""Repeats of sends and publishes within a connection: a repeat gets the answer of the first request.

The SDK repeats a request without an answer over the same connection, with the same command, request id and content, and
sometimes another ``seqno``. The three name a send for certain, because request ids count from 1 in a process, and a
connection belongs to a process. Across connections no repeat is recognised: two processes of a machine count alike.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final, TypeAlias

ANSWER_SECONDS: Final = 60.0
"""Time for which an answer is remembered. The SDK makes three attempts within 9 s, if its time-outs are not changed."""
ANSWER_BYTES: Final = 350
"""Memory of an answer beside its own bytes, its share of the tables included."""
MAX_ANSWERS: Final = 65_536
"""Answers of a connection: as many requests as the SDK has in progress."""
MAX_BYTES: Final = 64 << 20
"""Memory of the answers of all connections: those of 3,100 sends a second for a minute."""

CONNECTIONS_AT_ONCE: Final = 2_000
"""Connections of which old answers are forgotten in a second: a millisecond of work."""

_Name: TypeAlias = tuple[int, int, int]
"""Command, request id and hash of the content."""


class SendRepeats:
    """The remembered answers of all connections of a gateway.

    At most ``MAX_BYTES`` of answers are remembered. Beyond that, connections with the average number of answers or more
    lose their oldest, so busy connections shorten their own memory. A search for the largest would look at each of
    20,000 connections, again and again where all have a few answers.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """Make an empty memory; ``now`` is the clock in seconds."""
        self.now: Callable[[], float] = now
        self.repeats: int = 0
        """Repeats since the start that got the answer of an earlier request."""
        self._connections: dict[SentAnswers, None] = {}
        """The connections with answers; the next to be looked at first."""
        self._answers = 0
        self.bytes_in_use: int = 0
        """Approximate memory of the remembered answers."""

    def connection(self) -> "SentAnswers":
        """Return the memory of a new connection."""
        return SentAnswers(self)

    def forget_expired(self) -> None:
        """Forget old answers of some connections in turn; to be called about once a second."""
        for connection in list(islice(self._connections, CONNECTIONS_AT_ONCE)):
            del self._connections[connection]
            self._connections[connection] = None
            connection.forget_expired()

    def added(self, connection: "SentAnswers", size: int) -> None:
        """Note that a connection remembers a further answer."""
        self._connections[connection] = None
        self._answers += 1
        self.bytes_in_use += size
        if self.bytes_in_use > MAX_BYTES:
            self._make_room()

    def forgot(self, connection: "SentAnswers", count: int, size: int) -> None:
        """Note that a connection forgot answers."""
        self._answers -= count
        self.bytes_in_use -= size
        if not len(connection):
            self._connections.pop(connection, None)

    def _make_room(self) -> None:
        """Forget so many answers that the next time is far off."""
        while self.bytes_in_use > MAX_BYTES - MAX_BYTES // 256:
            connection = next(iter(self._connections))
            del self._connections[connection]
            self._connections[connection] = None
            if len(connection) * len(self._connections) >= self._answers:
                connection.forget_oldest((len(connection) + 3) // 4)


class SentAnswers:
    """The answers of a connection's last sends and publishes."""

    __slots__ = ("_all", "_answers", "_running")

    def __init__(self, all_connections: SendRepeats) -> None:
        self._all = all_connections
        self._answers: OrderedDict[_Name, tuple[float, bytes]] = OrderedDict()
        """Times and answers by name, the oldest first."""
        self._running: dict[_Name, list[asyncio.Future[bytes]] | None] = {}
        """Sends without an answer so far, by name, with the repeats that wait for the answer; None = no repeats."""

    def __len__(self) -> int:
        """Return the number of remembered answers."""
        return len(self._answers)

    async def answer(self, command: int, request_id: int, content: int, send: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the encoded answer to a send; a repeat gets the answer of the first request.

        A failed send is forgotten, so that a later repeat tries again. Repeats that wait for the send fail with it.

        Args:
            command: number of the command.
            request_id: the program's number of the request; 0 names no request, and ``send`` is called.
            content: hash of the command's body.
            send: makes the request.
        """
        if not request_id:
            return await send()
        name = command, request_id, content
        remembered = self._answers.get(name)
        if remembered is not None and remembered[0] > self._all.now() - ANSWER_SECONDS:
            self._all.repeats += 1
            return remembered[1]
        if name in self._running:
            self._all.repeats += 1
            future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._running[name] = [*(self._running[name] or ()), future]
            return await future
        self._running[name] = None
        try:
            answer = await send()
        except BaseException as error:
            for future in self._waiting(name):
                if isinstance(error, Exception):
                    future.set_exception(error)
                else:
                    future.cancel()
            raise
        for future in self._waiting(name):
            future.set_result(answer)
        self._remember(name, answer)
        return answer

    def forget_expired(self) -> None:
        """Forget old answers."""
        latest = self._all.now() - ANSWER_SECONDS
        count = 0
        for answered_at, _ in self._answers.values():
            if answered_at > latest:
                break
            count += 1
        self.forget_oldest(count)

    def forget_oldest(self, count: int) -> None:
        """Forget so many answers."""
        self._all.forgot(self, count, sum(self._pop_oldest() for _ in range(count)))

    def close(self) -> None:
        """Forget all answers, because the connection ended."""
        self.forget_oldest(len(self._answers))

    # ------------------------------------------------------------------ inside

    def _waiting(self, name: _Name) -> list["asyncio.Future[bytes]"]:
        """Return the repeats that still wait for a send, which has ended."""
        futures = self._running.pop(name)
        return [] if futures is None else [future for future in futures if not future.done()]

    def _pop_oldest(self) -> int:
        """Forget the oldest answer; return its memory."""
        _, (_, answer) = self._answers.popitem(last=False)
        return ANSWER_BYTES + len(answer)

    def _remember(self, name: _Name, answer: bytes) -> None:
        expired = self._answers.pop(name, None)
        if expired is not None:
            # The answer of an earlier send of the name.
            self._all.forgot(self, 1, ANSWER_BYTES + len(expired[1]))
        elif len(self._answers) >= MAX_ANSWERS:
            self.forget_oldest(1)
        self._answers[name] = self._all.now(), answer
        self._all.added(self, ANSWER_BYTES + len(answer))
