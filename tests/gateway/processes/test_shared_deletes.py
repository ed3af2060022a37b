"""Remembered deletes of several processes: a delete is made once, although its repeats arrive in all processes."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from cmqd_client.errors import ServerUnreachable
from cmqd_gateway.cmq.api2.repeats import DeleteAnswers
from cmqd_gateway.processes.channel import Channel
from cmqd_gateway.processes.shared_deletes import AnsweringDeletes, AskingDeletes
from support.eventually import eventually

SECONDS = 300.0


class Delete:
    """A delete that a test lets end."""

    def __init__(self, fields: Mapping[str, Any] | Exception | None = None) -> None:
        self.made = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._fields: Mapping[str, Any] | Exception = fields or {}

    async def __call__(self) -> Mapping[str, Any]:
        self.made += 1
        await self.may_end.wait()
        if isinstance(self._fields, Exception):
            raise self._fields
        return self._fields


class Processes:
    """A first process and two further ones."""

    def __init__(self, seconds: float = SECONDS, seconds_elsewhere: float = SECONDS) -> None:
        self.first = DeleteAnswers()
        answering = AnsweringDeletes(self.first, seconds_elsewhere)
        self.further: list[AskingDeletes] = []
        self.channels: list[Channel] = []
        self.ends: list[socket.socket] = []
        for _ in range(2):
            end, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.ends += [end, its]
            self.channels.append(Channel(end, answering.take))
            # The channel is made first: it needs the object that takes its messages.
            takes: list[AskingDeletes] = []
            channel = Channel(its, lambda _, message, takes=takes: takes[0].take(message))
            takes.append(AskingDeletes(channel, seconds))
            self.channels.append(channel)
            self.further += takes

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
        for end in self.ends:
            end.close()


@pytest.fixture
async def processes() -> AsyncGenerator[Processes]:
    processes = Processes()
    yield processes
    processes.close()


async def test_a_repeat_gets_the_first_answer_in_every_process(processes: Processes) -> None:
    one, two = processes.further
    delete = Delete({"count": 1, "refusals": [("a", "B", "c")]})
    expected = {"count": 1, "refusals": [["a", "B", "c"]]}

    assert await one.answer("key", "digest", delete) == {"count": 1, "refusals": [("a", "B", "c")]}
    for process in (one, two, processes.first):
        await eventually(lambda: len(processes.first) == 1)
        assert await process.answer("key", "digest", delete) == expected
    assert await two.answer("key", "other", empty := Delete()) == {}
    await eventually(lambda: len(processes.first) == 2)
    assert await one.answer("key", "other", empty) == {}
    assert (delete.made, empty.made) == (1, 1)


async def test_repeats_wait_for_a_delete_in_another_process(processes: Processes) -> None:
    one, two = processes.further
    delete = Delete({"count": 1})
    delete.may_end.clear()
    waiting = [asyncio.create_task(process.answer("key", "digest", delete)) for process in (one, two, one)]
    await eventually(lambda: delete.made == 1)
    waiting.append(asyncio.create_task(processes.first.answer("key", "digest", delete)))

    delete.may_end.set()

    assert await asyncio.gather(*waiting) == [{"count": 1}] * 4
    assert delete.made == 1


async def test_a_delete_of_the_first_process_answers_repeats_elsewhere(processes: Processes) -> None:
    assert await processes.first.answer("key", "digest", delete := Delete({"count": 2})) == {"count": 2}
    assert await processes.further[0].answer("key", "digest", delete) == {"count": 2}
    assert delete.made == 1


async def test_a_cancelled_request_leaves_its_answer_to_the_repeat(processes: Processes) -> None:
    one, two = processes.further
    delete = Delete({"count": 1})
    delete.may_end.clear()
    request = asyncio.create_task(one.answer("key", "digest", delete))
    await eventually(lambda: delete.made == 1)
    request.cancel()
    repeat = asyncio.create_task(two.answer("key", "digest", delete))

    delete.may_end.set()

    assert await repeat == {"count": 1}
    assert delete.made == 1


async def test_a_failed_delete_is_forgotten(processes: Processes) -> None:
    one, two = processes.further
    with pytest.raises(ValueError, match="as it is"):
        await one.answer("key", "digest", Delete(ValueError("as it is")))
    assert await two.answer("key", "digest", Delete({"count": 1})) == {"count": 1}


async def test_a_repeat_of_a_delete_that_fails_meanwhile_may_be_sent_again(processes: Processes) -> None:
    one, two = processes.further
    delete = Delete(ServerUnreachable("away"))
    delete.may_end.clear()
    requests = [asyncio.create_task(process.answer("key", "digest", delete)) for process in (one, two)]
    await eventually(lambda: delete.made == 1)

    delete.may_end.set()

    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ServerUnreachable] * 2
    assert await two.answer("key", "digest", Delete()) == {}


async def test_without_an_answer_of_the_first_process_no_delete_is_made() -> None:
    processes = Processes(seconds=0.01)
    # The first process reads no more, as one that was killed.
    for channel in processes.channels[::2]:
        channel.close()
    delete = Delete()

    with pytest.raises(ServerUnreachable, match="whether this delete is a repeat"):
        await processes.further[0].answer("key", "digest", delete)
    assert delete.made == 0
    processes.close()


async def test_a_full_channel_refuses_at_once(processes: Processes) -> None:
    processes.channels[0].close()
    delete = Delete()
    # All questions stay in the socket, which takes some hundred.
    requests = [asyncio.create_task(processes.further[0].answer("key", str(number), delete)) for number in range(4_000)]
    done, waiting = await asyncio.wait(requests, return_when=asyncio.FIRST_EXCEPTION)
    assert {type(request.exception()) for request in done} == {ServerUnreachable}
    assert delete.made == 0
    for request in waiting:
        request.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_process_that_ended_leaves_its_delete_to_the_repeat_after_the_time_limit() -> None:
    processes = Processes(seconds_elsewhere=0.05)
    one, two = processes.further
    stuck = Delete()
    stuck.may_end.clear()
    request = asyncio.create_task(one.answer("key", "digest", stuck))
    await eventually(lambda: stuck.made == 1)

    delete = Delete({"count": 1})
    answer = None
    while answer is None:
        try:
            answer = await two.answer("key", "digest", delete)
        except ServerUnreachable:
            pass

    assert answer == {"count": 1}
    assert delete.made == 1
    stuck.may_end.set()
    await request
    processes.close()
