"""The durable LSN between the commit thread and the loop."""

import asyncio
from threading import Thread

import pytest

from cmqd.storage.durable_lsn import DurableLsn


@pytest.fixture
async def durable() -> DurableLsn:
    return DurableLsn(10)


async def test_an_lsn_that_is_durable_is_not_waited_for(durable: DurableLsn) -> None:
    calls: list[int] = []

    durable.call_at(10, lambda: calls.append(10))
    await durable.reached(9)

    assert calls == [10]


async def test_calls_come_in_the_order_of_their_lsns_and_none_too_early(durable: DurableLsn) -> None:
    calls: list[int] = []
    for lsn in (13, 12, 15, 12):
        durable.call_at(lsn, lambda lsn=lsn: calls.append(lsn))

    durable.raise_to(11)
    durable.tell()
    await asyncio.sleep(0)
    assert calls == []
    durable.raise_to(14)
    durable.tell()
    await durable.reached(13)

    await asyncio.sleep(0)
    assert calls == [12, 12, 13]
    durable.raise_to(15)
    durable.tell()
    await asyncio.sleep(0)
    assert calls == [12, 12, 13, 15]


async def test_only_a_commit_that_is_waited_for_wakes_the_loop(
    durable: DurableLsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes = 0
    loop = asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe

    def counted(*arguments: object) -> object:
        nonlocal wakes
        wakes += 1
        return wake(*arguments)  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    durable.call_at(13, lambda: None)
    for lsn in range(11, 20):
        durable.raise_to(lsn)
        durable.tell()

    assert wakes == 1


async def test_a_waiter_that_was_cancelled_does_no_harm(durable: DurableLsn) -> None:
    waiter = asyncio.create_task(durable.reached(11))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)

    durable.raise_to(11)
    durable.tell()

    await durable.reached(11)


async def test_a_waiter_misses_no_commit_of_another_thread(durable: DurableLsn) -> None:
    """The LSN may rise between the look at the LSN and the wait."""
    until = 3_000

    def commit() -> None:
        for lsn in range(11, until + 1):
            durable.raise_to(lsn)
            durable.tell()

    thread = Thread(target=commit)
    thread.start()
    for lsn in range(11, until + 1):
        await durable.reached(lsn)
    thread.join()
