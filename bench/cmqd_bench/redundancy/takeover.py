"""Times of takeover, as clients see them: senders with default settings, and senders with 60 s of patience.

A round's figure is its longest call, of the callers with default settings. A fault is answered at once, see
bench/README.md.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from cmqd_bench.commands.plans import Takeover
from cmqd_bench.redundancy.callers import Callers
from cmqd_bench.redundancy.pair import Pair, print_measured

PATIENCE_SECONDS = 60.0
OUTAGES = (5.0, 20.0)
_WARM_SECONDS = 1.0
"""Pause before a fault: the callers are back in their rhythm, and the standby has the last rows."""


@dataclass(slots=True)
class Scene:
    """The figures of a fault, a value per round; seconds."""

    name: str
    longest_calls: list[float] = field(default_factory=list[float])
    first_answers: list[float] = field(default_factory=list[float])
    """From the fault to the next answer that a caller got."""
    used_after: list[float] = field(default_factory=list[float])
    """From the end of the promotion to the next answer."""
    errors: int = 0
    """Errors of callers with default settings."""
    errors_with_patience: int = 0


class Bench:
    """The pair and its callers."""

    def __init__(self, pair: Pair, default: Callers, patient: Callers) -> None:
        self._pair = pair
        self._default = default
        self._patient = patient

    async def round(self, scene: Scene, fault: Callable[[], Awaitable[float | None]]) -> None:
        """Make a fault, wait for the end of its effect, and note the figures. The fault returns the time of the
        promotion that it made.
        """
        await asyncio.sleep(_WARM_SECONDS)
        began = time.monotonic()
        promoted = await fault()
        recovered = time.monotonic()
        for callers in (self._default, self._patient):
            await callers.wait_for_calls_after(recovered)
            await callers.wait_for_calls_after(began)
        scene.longest_calls.append(self._default.longest_since(began))
        scene.first_answers.append(self._default.first_answer_since(began + 0.001))
        if promoted is not None:
            scene.used_after.append(self._default.first_answer_since(promoted))
        scene.errors += self._default.errors_since(began)
        scene.errors_with_patience += self._patient.errors_since(began)

    async def kill_leader(self) -> None:
        """SIGKILL to the leader."""
        await asyncio.to_thread(self._pair.leader.kill)
        await self._pair.wait_for_takeover()

    async def kill_primary(self) -> float:
        """SIGKILL to the primary, and promote its standby."""
        await asyncio.to_thread(self._pair.roles.primary.kill)
        return await self._promote()

    async def freeze_primary(self) -> float:
        """SIGSTOP to the primary, and promote its standby."""
        await asyncio.to_thread(self._pair.roles.primary.freeze)
        return await self._promote()

    async def _promote(self) -> float:
        await asyncio.to_thread(self._pair.roles.fail_over)
        return self._pair.roles.promoted_at

    async def lose_primary_for(self, seconds: float) -> None:
        """SIGKILL to the primary, and start it again some seconds later."""
        primary = self._pair.roles.primary
        await asyncio.to_thread(primary.kill)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(primary.start)


async def measure(pair: Pair, rounds: int) -> list[Scene]:
    """Measure all scenes."""
    await pair.start(with_standby=True)
    roles = pair.roles
    killed, lost, hung = Scene("broker killed"), Scene("primary killed"), Scene("primary hangs")
    outages = [Scene(f"no database for {seconds:.0f} s") for seconds in OUTAGES]
    async with Callers(pair.url) as default, Callers(pair.url, PATIENCE_SECONDS) as patient:
        bench = Bench(pair, default, patient)
        for _ in range(rounds):
            await bench.round(killed, bench.kill_leader)
            await pair.start_standby()
        for _ in range(max(rounds // 2, 1)):
            for scene, fault in ((lost, bench.kill_primary), (hung, bench.freeze_primary)):
                await bench.round(scene, fault)
                if scene is hung:
                    await asyncio.to_thread(roles.spare.kill)
                await asyncio.to_thread(roles.restore)
                await asyncio.to_thread(roles.wait_until_whole)
        for scene, seconds in zip(outages, OUTAGES, strict=True):
            await bench.round(scene, lambda seconds=seconds: bench.lose_primary_for(seconds))
    return [killed, lost, hung, *outages]


def print_takeover(plan: Takeover) -> None:
    """Measure and print the times of takeover."""

    def show(scenes: list[Scene]) -> None:
        print(f"two brokers and three PostgreSQL servers on this machine; {2 * Callers.COUNT} senders; seconds")
        heads = f"{'longest call':>24}{'first answer':>20}{'after promotion':>18}"
        print(f"{'':22}{'rounds':>7}{heads}{'errors':>8}{'patient':>9}")
        print(f"{'':29}{'p50':>12}{'largest':>12}{'p50':>10}{'largest':>10}{'p50':>9}{'largest':>9}")
        for scene in scenes:
            figures = "".join(
                _pair_of(values, width)
                for values, width in ((scene.longest_calls, 12), (scene.first_answers, 10), (scene.used_after, 9))
            )
            print(f"{scene.name:22}{len(scene.longest_calls):7}{figures}{scene.errors:8}{scene.errors_with_patience:9}")

    print_measured(plan, lambda pair, _folder: measure(pair, plan.rounds), "scenes", show)


def _pair_of(values: list[float], width: int) -> str:
    if not values:
        return f"{'-':>{width}}{'-':>{width}}"
    return f"{statistics.median(values):{width}.2f}{max(values):{width}.2f}"
