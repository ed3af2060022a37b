"""Repeats of sends within a connection: the first answer, also while the first is under way; bounds and time."""

import asyncio

import pytest

from cmqd_gateway.cmq.tcp import repeats
from cmqd_gateway.cmq.tcp.repeats import ANSWER_BYTES, ANSWER_SECONDS, SendRepeats, SentAnswers


class Rig:
    """The memory of a gateway with a clock, and a queue that counts."""

    def __init__(self) -> None:
        self.time = 0.0
        self.all = SendRepeats(lambda: self.time)
        self.connection = self.all.connection()
        self.stored = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.failure: Exception | None = None

    async def store(self) -> bytes:
        self.stored += 1
        answer = str(self.stored).encode()
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return answer

    async def send(
        self, request_id: int = 1, content: int = 5, command: int = 1021, by: SentAnswers | None = None
    ) -> bytes:
        connection = self.connection if by is None else by
        return await connection.answer(command, request_id, content, self.store)


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_a_repeat_gets_the_first_answer(rig: Rig) -> None:
    assert [await rig.send(), await rig.send(), await rig.send()] == [b"1"] * 3
    assert (rig.stored, rig.all.repeats) == (1, 2)


async def test_command_request_id_and_content_name_a_send_within_its_connection(rig: Rig) -> None:
    other = rig.all.connection()
    sends = [
        await rig.send(),
        await rig.send(request_id=2),
        await rig.send(content=6),
        await rig.send(command=1027),
        await rig.send(by=other),
        await rig.send(request_id=2**64 - 1),
    ]

    assert sends == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert rig.all.repeats == 0


async def test_an_absent_request_id_names_nothing(rig: Rig) -> None:
    assert [await rig.send(request_id=0), await rig.send(request_id=0)] == [b"1", b"2"]
    assert len(rig.connection) == rig.all.bytes_in_use == 0


async def test_repeats_wait_for_the_send_that_is_under_way(rig: Rig) -> None:
    rig.may_answer.clear()
    tasks = [asyncio.create_task(rig.send()) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.wait([tasks[2]])
    rig.may_answer.set()

    assert [await task for task in (tasks[0], tasks[1], tasks[3])] == [b"1"] * 3
    assert (rig.stored, rig.all.repeats) == (1, 3)


async def test_repeats_fail_with_the_send_that_is_under_way_and_a_later_repeat_tries_again(rig: Rig) -> None:
    rig.may_answer.clear()
    rig.failure = ValueError("busy")
    tasks = [asyncio.create_task(rig.send()) for _ in range(3)]
    await asyncio.sleep(0)
    rig.may_answer.set()
    assert await asyncio.gather(*tasks, return_exceptions=True) == [rig.failure] * 3

    rig.failure = None
    assert await rig.send() == b"2"
    assert await rig.send() == b"2"


async def test_a_cancelled_send_cancels_its_repeats(rig: Rig) -> None:
    rig.may_answer.clear()
    tasks = [asyncio.create_task(rig.send()) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks)

    assert all(task.cancelled() for task in tasks)
    rig.may_answer.set()
    assert await rig.send() == b"2"


async def test_an_answer_is_remembered_for_a_minute(rig: Rig) -> None:
    await rig.send()
    rig.time = ANSWER_SECONDS - 1
    assert await rig.send() == b"1"
    rig.time = ANSWER_SECONDS
    # Expired, though the regular look for old answers has not come by.
    assert await rig.send() == b"2"
    assert rig.all.bytes_in_use == ANSWER_BYTES + 1

    rig.all.forget_expired()
    assert len(rig.connection) == 1
    rig.time = 2 * ANSWER_SECONDS
    rig.all.forget_expired()
    assert len(rig.connection) == rig.all.bytes_in_use == 0


async def test_a_connection_that_ended_leaves_no_answers(rig: Rig) -> None:
    other = rig.all.connection()
    await rig.send()
    await rig.send(by=other)

    rig.connection.close()

    assert rig.all.bytes_in_use == ANSWER_BYTES + 1
    assert await rig.send(by=other) == b"2"


async def test_the_answers_of_a_connection_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MAX_ANSWERS", 3)
    for request_id in range(1, 5):
        await rig.send(request_id)

    assert len(rig.connection) == 3
    assert [await rig.send(4), await rig.send(2)] == [b"4", b"2"]
    assert await rig.send(1) == b"5"


async def test_the_connection_with_the_most_answers_makes_room(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MAX_BYTES", 20 * (ANSWER_BYTES + 2))
    quiet = rig.all.connection()
    await rig.send(by=quiet)

    for request_id in range(1, 200):
        await rig.send(request_id)
        assert rig.all.bytes_in_use <= repeats.MAX_BYTES

    assert len(rig.connection) > 10
    assert await rig.send(by=quiet) == b"1"
    assert await rig.send(199) == b"200"


async def test_many_connections_with_a_few_answers_make_room_together(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "MAX_BYTES", 400 * (ANSWER_BYTES + 3))
    connections = [rig.all.connection() for _ in range(100)]
    looks = 0

    def counted(self: SentAnswers, count: int) -> None:
        nonlocal looks
        looks += 1
        forget_oldest(self, count)

    forget_oldest = SentAnswers.forget_oldest
    monkeypatch.setattr(SentAnswers, "forget_oldest", counted)
    for request_id in range(1, 41):
        for connection in connections:
            await rig.send(request_id, by=connection)
            assert rig.all.bytes_in_use <= repeats.MAX_BYTES

    assert rig.stored == 4_000
    assert looks < 4_000
    assert max(map(len, connections)) < 10
    assert sum(map(len, connections)) > 380


async def test_old_answers_of_many_connections_are_forgotten_in_turns(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "CONNECTIONS_AT_ONCE", 3)
    connections = [rig.all.connection() for _ in range(7)]
    for connection in connections:
        await rig.send(by=connection)
    rig.time = ANSWER_SECONDS

    left: list[int] = []
    for _ in range(3):
        rig.all.forget_expired()
        left.append(sum(map(len, connections)))

    assert left == [4, 1, 0]
