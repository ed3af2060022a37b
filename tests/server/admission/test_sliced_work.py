"""Work in slices: a slice in a turn of the loop, accounts in turns, requests of an account in order."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

from cmqd.server.admission.sliced_work import MAX_TURNS_LEFT_OUT, SlicedWork


class Rig:
    def __init__(self, pause_seconds: float = 0) -> None:
        self.done: list[str] = []
        self.bugs: list[tuple[str, str]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.is_urgent = False
        self.work = SlicedWork(
            self.spawn,
            lambda bug, name: self.bugs.append((str(bug), name)),
            lambda: self.is_urgent,
            pause_seconds=pause_seconds,
        )

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    def slices(self, name: str, count: int) -> Generator[None]:
        for number in range(count):
            self.done.append(f"{name}{number}")
            if number < count - 1:
                yield

    def broken(self) -> Generator[None]:
        yield
        raise ValueError("a bug")

    async def finish(self) -> None:
        while self.tasks:
            await self.tasks.pop()


async def test_a_turn_of_the_loop_has_one_slice_over_all_accounts_and_requests() -> None:
    rig = Rig()
    for account in ("shop", "bank"):
        for number in range(5):
            rig.work.add(account, rig.slices(f"{account}{number}-", 3))
    assert rig.done == []

    for turn in range(30):
        await asyncio.sleep(0)
        assert len(rig.done) == turn + 1

    await rig.finish()
    assert len(rig.done) == 30
    assert len(rig.work) == 0


async def test_a_pause_behind_each_slice_leaves_the_loop_to_other_work() -> None:
    rig = Rig(pause_seconds=3600)
    rig.work.add("shop", rig.slices("a", 3))

    for _ in range(100):
        await asyncio.sleep(0)

    assert rig.done == ["a0"]
    (task,) = rig.tasks
    task.cancel()
    await asyncio.wait([task])


async def test_accounts_take_turns_and_an_account_has_its_work_done_in_order() -> None:
    rig = Rig()
    rig.work.add("flood", rig.slices("a", 2))
    rig.work.add("flood", rig.slices("b", 2))
    rig.work.add("flood", rig.slices("c", 2))
    rig.work.add("quiet", rig.slices("q", 2))

    await rig.finish()

    assert rig.done == ["a0", "q0", "a1", "q1", "b0", "b1", "c0", "c1"]


async def test_a_bug_in_a_slice_is_reported_and_ends_its_own_work_alone() -> None:
    rig = Rig()
    rig.work.add("shop", rig.broken())
    rig.work.add("shop", rig.slices("a", 2))

    await rig.finish()

    assert rig.bugs == [("a bug", "a slice")]
    assert rig.done == ["a0", "a1"]


async def test_work_that_comes_after_a_pause_is_done_too() -> None:
    rig = Rig()
    for name in ("a", "b"):
        rig.work.add("shop", rig.slices(name, 1))
        await rig.finish()

    assert rig.done == ["a0", "b0"]


async def test_other_work_of_the_loop_comes_first_but_not_for_ever() -> None:
    rig = Rig()
    rig.work.add("shop", rig.slices("a", 3))
    await asyncio.sleep(0)
    assert rig.done == ["a0"]

    rig.is_urgent = True
    for _ in range(MAX_TURNS_LEFT_OUT):
        await asyncio.sleep(0)
    assert rig.done == ["a0"]
    await asyncio.sleep(0)
    assert rig.done == ["a0", "a1"], "a server that is never idle"

    rig.is_urgent = False
    await rig.finish()
    assert rig.done == ["a0", "a1", "a2"]
