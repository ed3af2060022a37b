"""Remembered deletes of several processes: the first process remembers, and further processes ask before a delete.

A further process makes its deletes itself, over its own connections to the broker. The first process knows the deletes
in progress of all processes, and their answers for a minute, as :class:`cmqd_gateway.cmq.api2.repeats.DeleteAnswers`
does for a gateway of a single process. A process that ends takes the outcomes of its deletes in progress along; a
repeat of such a delete waits for the time limit, and then tries again.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from typing import Any, TypeAlias

from cmqd_client.errors import ServerUnreachable
from cmqd_gateway.cmq.api2.repeats import Deletes
from cmqd_gateway.processes.channel import (
    BeginDelete,
    Channel,
    Delete,
    DeleteAnswered,
    DeleteEnded,
    DeleteFailed,
    Message,
)

Fields: TypeAlias = Mapping[str, Any]


def _unknown() -> ServerUnreachable:
    return ServerUnreachable("the gateway cannot find out now whether this delete is a repeat; send it again")


class AskingDeletes:
    """The deletes of a further process."""

    def __init__(self, channel: Channel, seconds: float) -> None:
        """Make the object.

        Args:
            channel: to the first process.
            seconds: time limit of a delete in a different process.
        """
        self._channel = channel
        self._seconds = seconds
        # Random, because processes that end leave messages with their numbers.
        self._numbers = count(secrets.randbits(60))
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._tasks: set[asyncio.Task[Fields]] = set()

    def take(self, message: Message) -> None:
        """Take a message of the first process."""
        if isinstance(message, Delete | DeleteAnswered | DeleteFailed):
            future = self._asked.get(message.number)
            if future is not None and not future.done():
                future.set_result(message)
            elif isinstance(message, Delete):
                # The request has given up: a repeat tries again.
                self._channel.send(DeleteEnded(message.number, None))

    async def answer(self, secret_id: str, digest: str, delete: Callable[[], Coroutine[Any, Any, Fields]]) -> Fields:
        """Return the answer to a delete; see :class:`cmqd_gateway.cmq.api2.repeats.Deletes`."""
        # A task: the delete goes on when its caller is cancelled, so that a repeat finds its answer.
        task = asyncio.create_task(self._answer(secret_id, digest, delete))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[Fields]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Marks an error as seen: a cancelled caller reads none.
            task.exception()

    async def _answer(self, secret_id: str, digest: str, delete: Callable[[], Coroutine[Any, Any, Fields]]) -> Fields:
        number = next(self._numbers)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            if not self._channel.send(BeginDelete(number, secret_id, digest)):
                raise _unknown()
            async with asyncio.timeout(self._seconds):
                message = await future
        except TimeoutError:
            raise _unknown() from None
        finally:
            del self._asked[number]
        if isinstance(message, DeleteAnswered):
            return message.fields
        if isinstance(message, DeleteFailed):
            raise _unknown()
        fields: Fields | None = None
        try:
            fields = await delete()
            return fields
        finally:
            self._channel.send(DeleteEnded(number, fields))


class AnsweringDeletes:
    """The deletes of the further processes, at the first process."""

    def __init__(self, deletes: Deletes, seconds: float) -> None:
        """Make the object.

        Args:
            deletes: the remembered deletes.
            seconds: time limit of a delete in a different process.
        """
        self._deletes = deletes
        self._seconds = seconds
        self._made_elsewhere: dict[int, asyncio.Future[Fields]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, channel: Channel, message: Message) -> None:
        """Take a message of a further process."""
        if isinstance(message, BeginDelete):
            task = asyncio.get_running_loop().create_task(self._answer(channel, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(message, DeleteEnded):
            future = self._made_elsewhere.get(message.number)
            if future is None or future.done():
                return
            if message.fields is None:
                future.set_exception(_unknown())
            else:
                future.set_result(message.fields)

    async def _answer(self, channel: Channel, begin: BeginDelete) -> None:
        is_repeat = True

        async def make_elsewhere() -> Fields:
            nonlocal is_repeat
            is_repeat = False
            future: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
            self._made_elsewhere[begin.number] = future
            try:
                if not channel.send(Delete(begin.number)):
                    raise _unknown()
                async with asyncio.timeout(self._seconds):
                    return await future
            finally:
                del self._made_elsewhere[begin.number]

        try:
            fields = await self._deletes.answer(begin.secret_id, begin.digest, make_elsewhere)
        except Exception:
            if is_repeat:
                channel.send(DeleteFailed(begin.number))
            return
        if is_repeat:
            channel.send(DeleteAnswered(begin.number, fields))
