"""The end of a wake-up: each thing once, in order, whatever one client's replies do."""

import asyncio

from cmqd.server.wakeup import WakeUp


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


async def test_what_is_common_comes_once_and_before_the_replies() -> None:
    log: list[str] = []
    wakeup = WakeUp(asyncio.get_running_loop(), lambda: 0, lambda: log.append("log"), lambda: log.append("timer"))

    wakeup.schedule()
    wakeup.write_later(Client(log, "a"))
    wakeup.schedule()
    wakeup.write_later(Client(log, "b"))
    assert log == []
    await asyncio.sleep(0)

    assert log == ["log", "timer", "flush a", "flush b"]
    await asyncio.sleep(0)
    assert len(log) == 4


async def test_what_comes_up_during_the_end_is_for_the_next_one() -> None:
    log: list[str] = []
    wakeup = WakeUp(asyncio.get_running_loop(), lambda: 0, lambda: log.append("log"))

    class Asking(Client):
        def flush(self) -> None:
            super().flush()
            wakeup.write_later(Client(log, "later"))

    wakeup.write_later(Asking(log, "first"))
    await asyncio.sleep(0)
    assert log == ["log", "flush first"]
    await asyncio.sleep(0)

    assert log == ["log", "flush first", "log", "flush later"]


async def test_a_bug_met_while_one_client_is_answered_does_not_hold_back_the_others() -> None:
    log: list[str] = []
    wakeup = WakeUp(asyncio.get_running_loop(), lambda: 0)

    wakeup.write_later(Client(log, "unlucky", broken=True))
    wakeup.write_later(Client(log, "other"))
    await asyncio.sleep(0)

    assert log == ["abort unlucky", "flush other"]


async def test_the_clock_is_read_once_a_wake_up() -> None:
    times = iter(range(100, 200))
    wakeup = WakeUp(asyncio.get_running_loop(), lambda: next(times))

    assert [wakeup.now_ms(), wakeup.now_ms()] == [100, 100]
    await asyncio.sleep(0)

    assert [wakeup.now_ms(), wakeup.now_ms()] == [101, 101]
