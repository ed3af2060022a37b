"""I/O batches: replies leave, the sockets are polled again, then the common work is done once."""

import asyncio
from dataclasses import dataclass

import pytest

from cmqd.server.loop.io_batch import (
    CLOCK_BYTES,
    IO_BATCH_SECONDS,
    LATE_INPUT_SECONDS,
    MAX_LOOKS,
    READS_PER_IO_BATCH,
    IoBatch,
)


@dataclass
class Replies:
    is_for_lone_client: bool


class Client:
    def __init__(self, log: list[str], name: str, *, broken: bool = False) -> None:
        self.log = log
        self.name = name
        self.broken = broken

    def flush(self) -> None:
        if self.broken:
            raise ZeroDivisionError
        self.log.append(f"flush {self.name}")

    def abort(self) -> None:
        self.log.append(f"abort {self.name}")


def nothing() -> None:
    pass


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_replies_leave_first_and_what_is_common_comes_once_when_nothing_more_comes() -> None:
    log: list[str] = []
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: log.append("end"), timer=lambda: 0.0)

    io_batch.schedule()
    io_batch.write_later(Client(log, "a"))
    io_batch.schedule()
    io_batch.write_later(Client(log, "b"))
    assert log == []
    await turns(1)
    assert log == ["flush a", "flush b"]
    await turns(1)

    assert log == ["flush a", "flush b", "end"]
    await turns(3)
    assert len(log) == 3


class TestALoneClient:
    @staticmethod
    def io_batch(log: list[str], *, is_lone_client: bool = True) -> IoBatch:
        """An I/O batch that never runs out of time."""
        return IoBatch(
            asyncio.get_running_loop(),
            lambda: 0,
            lambda: log.append("end"),
            timer=lambda: 0.0,
            replies=Replies(is_lone_client),
        )

    async def test_does_not_wait_for_another_poll(self) -> None:
        log: list[str] = []
        io_batch = self.io_batch(log)

        for _ in range(2):
            assert io_batch.take_input(100)
            assert log == []
            await turns(1)
            assert log == ["end"]
            log.clear()
            await turns(3)
            assert log == []

    @pytest.mark.parametrize(
        ("reads", "is_lone_client"), [(2, True), (1, False), (0, True)], ids=["two reads", "two clients", "no read"]
    )
    async def test_is_alone_with_its_only_read(self, reads: int, is_lone_client: bool) -> None:
        log: list[str] = []
        io_batch = self.io_batch(log, is_lone_client=is_lone_client)

        for _ in range(reads):
            io_batch.take_input(100)
        io_batch.schedule()
        await turns(1)
        assert log == []
        await turns(1)

        assert log == ["end"]

    async def test_has_the_second_poll_when_a_reply_left_before_its_read(self) -> None:
        log: list[str] = []
        io_batch = self.io_batch(log)

        io_batch.schedule()
        await turns(1)
        io_batch.take_input(100)
        await turns(1)
        assert log == [], "the batch began without a read, so requests of other clients may follow their replies"
        await turns(1)

        assert log == ["end"]


async def test_what_is_done_before_the_end_is_part_of_it() -> None:
    log: list[str] = []

    def before() -> None:
        log.append("before")
        io_batch.now_ms()
        io_batch.write_later(Client(log, "answered"))

    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: log.append("end"), before, timer=lambda: 0.0)
    io_batch.schedule()
    await turns(8)

    assert log == ["before", "end", "flush answered"], "it is no reason for another I/O batch"


async def test_what_the_sockets_bring_meanwhile_shares_the_end() -> None:
    log: list[str] = []
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: log.append("end"), timer=lambda: 0.0)

    class Asking(Client):
        def flush(self) -> None:
            super().flush()
            io_batch.write_later(Client(log, "next"))

    io_batch.schedule()
    io_batch.write_later(Asking(log, "first"))
    await turns(3)

    assert log == ["flush first", "flush next", "end"]


async def test_replies_alone_are_written_once_and_have_no_end() -> None:
    log: list[str] = []
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: log.append("end"), timer=lambda: 0.0)

    for name in ("a", "b"):
        io_batch.write_later(Client(log, name))
        await turns(5)

    assert log == ["flush a", "flush b"]


class TestReleasedReplies:
    @staticmethod
    def io_batch(log: list[str]) -> IoBatch:
        return IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: log.append("end"), timer=lambda: 0.0)

    async def test_are_written_in_the_call_without_a_look(self) -> None:
        log: list[str] = []
        io_batch = self.io_batch(log)

        for name in ("a", "b"):
            io_batch.write_released(lambda _, name=name: io_batch.write_later(Client(log, name)), 1)
            assert log[-1] == f"flush {name}"
        await turns(5)

        assert log == ["flush a", "flush b"]

    async def test_are_written_by_the_next_look_if_there_is_work(self) -> None:
        log: list[str] = []
        io_batch = self.io_batch(log)

        def release(lsn: int) -> None:
            io_batch.write_later(Client(log, "a"))
            io_batch.schedule()

        io_batch.write_released(release, 1)
        assert log == []
        await turns(1)
        assert log == ["flush a"]
        await turns(5)

        assert log == ["flush a", "end"]

    async def test_are_written_by_the_next_look_while_a_batch_is_under_way(self) -> None:
        log: list[str] = []
        io_batch = self.io_batch(log)

        io_batch.schedule()
        io_batch.write_released(lambda _: io_batch.write_later(Client(log, "a")), 1)
        assert log == []
        await turns(5)

        assert log == ["flush a", "end"]

    async def test_may_bring_work_and_further_replies_when_they_are_written(self) -> None:
        log: list[str] = []
        io_batch = self.io_batch(log)

        class Causing(Client):
            def flush(self) -> None:
                super().flush()
                io_batch.write_later(Client(log, "caused"))
                io_batch.schedule()

        io_batch.write_released(lambda _: io_batch.write_later(Causing(log, "a")), 1)
        assert log == ["flush a"]
        await turns(5)

        assert log == ["flush a", "flush caused", "end"]

    async def test_are_written_although_the_call_fails(self) -> None:
        log: list[str] = []
        io_batch = self.io_batch(log)

        def release(lsn: int) -> None:
            io_batch.write_later(Client(log, "a"))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            io_batch.write_released(release, 1)
        assert log == ["flush a"]
        io_batch.write_later(Client(log, "b"))
        await turns(3)

        assert log == ["flush a", "flush b"]


async def test_a_reply_that_another_reply_causes_is_written_too() -> None:
    log: list[str] = []
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: log.append("end"), timer=lambda: 0.0)

    class Causing(Client):
        def flush(self) -> None:
            super().flush()
            io_batch.write_later(Client(log, "second"))

    io_batch.write_later(Causing(log, "first"))
    await turns(5)

    assert log == ["flush first", "flush second"]


@pytest.mark.parametrize("work", ["schedule", "now_ms"])
async def test_work_that_a_reply_causes_has_an_end(work: str) -> None:
    log: list[str] = []
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: log.append("end"), timer=lambda: 0.0)

    class Working(Client):
        def flush(self) -> None:
            super().flush()
            getattr(io_batch, work)()

    io_batch.write_later(Working(log, "a"))
    await turns(8)

    assert log == ["flush a", "end"]


@pytest.mark.parametrize("work", ["schedule", "now_ms", "take_input"])
async def test_work_that_comes_before_replies_are_written_has_the_time_of_a_whole_batch(work: str) -> None:
    log: list[str] = []
    now = 0.0
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: log.append("end"), timer=lambda: now)

    io_batch.write_later(Client(log, "a"))
    now = 2 * IO_BATCH_SECONDS
    arguments = (4,) if work == "take_input" else ()
    getattr(io_batch, work)(*arguments)
    await turns(1)
    assert log == ["flush a"], "the sockets are polled again"
    await turns(5)

    assert log == ["flush a", "end"]


async def test_clients_that_never_pause_do_not_put_the_end_off_for_ever() -> None:
    ends: list[int] = []
    looks = 0
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: ends.append(looks), timer=lambda: 0.0)

    while len(ends) < 3:
        io_batch.schedule()
        await turns(1)
        looks += 1
        assert looks < 100

    assert ends[0] == MAX_LOOKS


async def test_an_end_that_is_asked_for_comes_at_once() -> None:
    log: list[str] = []
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: log.append("end"), timer=lambda: 0.0)

    io_batch.write_later(Client(log, "a"))
    io_batch.end()

    assert log == ["end", "flush a"]


async def test_a_bug_met_while_one_client_is_answered_does_not_hold_back_the_others() -> None:
    log: list[str] = []
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, nothing)

    io_batch.write_later(Client(log, "unlucky", broken=True))
    io_batch.write_later(Client(log, "other"))
    await asyncio.sleep(0)

    assert log == ["abort unlucky", "flush other"]


async def test_the_clock_is_read_once_a_look() -> None:
    times = iter(range(100, 200))
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: next(times), nothing)

    assert [io_batch.now_ms(), io_batch.now_ms()] == [100, 100]
    await turns(1)

    assert [io_batch.now_ms(), io_batch.now_ms()] == [101, 101]


async def test_a_wake_up_ends_when_its_time_is_over_although_clients_never_pause() -> None:
    ends: list[int] = []
    looks = 0
    io_batch = IoBatch(
        asyncio.get_running_loop(), lambda: 0, lambda: ends.append(looks), timer=lambda: looks * IO_BATCH_SECONDS / 3
    )

    while len(ends) < 3:
        io_batch.schedule()
        await turns(1)
        looks += 1
        assert looks < 100

    assert ends == [3, 7, 11]
    assert ends[0] < MAX_LOOKS


class Tired:
    """A connection that rests after a large read."""

    def __init__(self, account: str, log: list[str]) -> None:
        self.account = account
        self.credit = 0
        self.has_turn = False
        self._log = log

    def take_turn(self) -> int:
        raise AssertionError("its input is taken up")

    def end_rest(self) -> int:
        self._log.append(self.account)
        return 256_000


async def test_a_connection_rests_until_the_end() -> None:
    log: list[str] = []
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: log.append("end"), timer=lambda: 0.0)

    io_batch.schedule()
    io_batch.rests.add(Tired("a", log))
    await turns(6)

    assert log == ["end", "a"]


async def test_few_connections_are_read_from_again_in_a_wake_up_and_accounts_in_turns() -> None:
    log: list[str] = []
    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, lambda: log.append("end"), timer=lambda: 0.0)

    io_batch.schedule()
    for account in ("crowd",) * (2 * READS_PER_IO_BATCH) + ("alone",):
        io_batch.rests.add(Tired(account, log))
    await turns(20)

    first_end, second_end, third_end = (position for position, entry in enumerate(log) if entry == "end")
    assert second_end - first_end - 1 == third_end - second_end - 1 == READS_PER_IO_BATCH
    assert "alone" in log[first_end:second_end]
    assert log.count("crowd") == 2 * READS_PER_IO_BATCH


async def test_the_timer_is_asked_every_few_small_reads_and_from_the_end_of_the_time_on_at_each() -> None:
    now = 0.0
    asked = 0

    def timer() -> float:
        nonlocal asked
        asked += 1
        return now

    io_batch = IoBatch(asyncio.get_running_loop(), lambda: 0, nothing, timer=timer)
    io_batch.schedule()

    assert all(io_batch.take_input(4) for _ in range(800))
    assert 1 + 800 / 16 <= asked <= 1 + 800 / 4
    asked = 0
    assert io_batch.take_input(CLOCK_BYTES)
    assert asked == 1

    now = IO_BATCH_SECONDS
    assert io_batch.take_input(CLOCK_BYTES), "it came with the last poll"
    now += LATE_INPUT_SECONDS
    taken = [io_batch.take_input(4) for _ in range(20)]
    assert sum(taken) < 8
    assert not any(taken[8:])
