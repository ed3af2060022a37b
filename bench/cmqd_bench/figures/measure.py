"""One round of a scenario: its costs, its results, and the watch for failures."""

import asyncio
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.processes import cpu_seconds, machine_busy_seconds
from cmqd_load.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The figures of one round. CPU covers the measured time only, from the end of the warm-up."""

    messages: int
    """Completed messages: answered sends, or with consumers deleted messages."""
    seconds: float
    server_cpu_seconds: float
    client_cpu_seconds: float
    latency_ms: Mapping[str, float]
    server_rss_mib: float
    """Resident memory of all server processes at the end of the measured time."""
    loop_busy: float
    """Share of a core used by the server's loop process."""
    other_cores: float = 0.0
    """Cores used meanwhile by foreign programs and by saturating processes. Above 0.1 every figure, CPU per message
    included, is worse than on a quiet machine.
    """
    others: int = 0
    """Messages completed meanwhile by saturating processes: the server's CPU is divided by these messages, too."""
    refused: int = 0
    """Requests that the server refused as busy, and that were repeated."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Figures specific to the scenario."""

    def with_extra(self, extra: Mapping[str, Any]) -> "Round":
        """Return the round with further figures."""
        return replace(self, extra={**self.extra, **extra})

    def as_json(self) -> dict[str, Any]:
        """Return all figures under their names in the report."""
        count = max(self.messages, 1)
        everybody = max(self.messages + self.others, 1)
        return {
            "messages": self.messages,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.messages / self.seconds, 1) if self.seconds else 0.0,
            "server_cpu_us_per_message": round(self.server_cpu_seconds / everybody * 1e6, 3),
            "client_cpu_us_per_message": round(self.client_cpu_seconds / count * 1e6, 3),
            "latency_ms": {name: round(value, 3) for name, value in self.latency_ms.items()},
            "server_rss_mib": round(self.server_rss_mib, 1),
            **({"messages_of_others": self.others} if self.others else {}),
            "loop_busy": round(self.loop_busy, 3),
            "other_cores": round(self.other_cores, 2),
            "refused": self.refused,
            **self.extra,
        }


def own_cpu_seconds() -> float:
    """Return user and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Meter:
    """Reads the clocks of server and client at both ends of the measured time.

    ``helpers``: further processes of the harness, which count as the client.
    """

    def __init__(self, broker: Broker, tally: Tally, helpers: Sequence[int] = ()) -> None:
        self._broker = broker
        self._tally = tally
        self._helpers = helpers
        self._wall = self._server = self._client = self._loop = self._machine = 0.0

    def start(self) -> None:
        """Reset all counts at the end of the warm-up."""
        self._tally.clear()
        self._server = self._broker.cpu_seconds()
        self._loop = cpu_seconds(self._broker.pids[:1])
        self._client = own_cpu_seconds() + cpu_seconds(self._helpers)
        self._machine = machine_busy_seconds()
        self._wall = time.monotonic()

    def finish(
        self, messages: Callable[[Tally], int], extra: Mapping[str, Any] | None = None, *, others: int = 0
    ) -> Round:
        """Return the round at the end of the measured time; ``messages`` selects the count of completed messages."""
        seconds = time.monotonic() - self._wall
        machine = machine_busy_seconds() - self._machine
        client = own_cpu_seconds() + cpu_seconds(self._helpers) - self._client
        server = self._broker.cpu_seconds() - self._server
        loop = cpu_seconds(self._broker.pids[:1]) - self._loop
        return Round(
            messages=messages(self._tally),
            seconds=seconds,
            client_cpu_seconds=client,
            server_cpu_seconds=server,
            loop_busy=loop / seconds,
            other_cores=max(0.0, machine - client - server) / seconds,
            latency_ms=self._tally.latency.milliseconds(),
            server_rss_mib=self._broker.rss_mib(),
            others=others,
            refused=self._tally.refused,
            extra=extra or {},
        )


class PeakMemory:
    """The largest memory of the server, sampled five times a second."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.mib = broker.rss_mib()
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            self.mib = max(self.mib, self._broker.rss_mib())

    def stop(self) -> float:
        """Stop sampling, and return the peak in MiB."""
        self._task.cancel()
        return self.mib


class Guard:
    """Turns any failure of the load or the server into the failure of the run, at the next wait.

    Callbacks have no caller to raise to; the loop's exception handler passes their errors to this class.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(self._on_exception)

    def fail(self, error: BaseException) -> None:
        """End the run with ``error``; only the first error counts."""
        if self._failure is None:
            self._failure = error
            self._failed.set()

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.fail(context.get("exception") or RuntimeError(str(context.get("message"))))

    def check(self) -> None:
        """Raise the error that ended the run, if any."""
        self._broker.check_alive()
        if self._failure is not None:
            raise self._failure

    async def sleep(self, seconds: float) -> None:
        """Let the load run. Raises the first failure at once."""
        try:
            await asyncio.wait_for(self._failed.wait(), seconds)
        except TimeoutError:
            pass
        self.check()

    async def wait(self, event: asyncio.Event, seconds: float, what: str) -> None:
        """Wait for ``event``.

        Raises:
            TimeoutError: the event is not set after ``seconds``; the text names the awaited state.
            Exception: the first failure of the load or the server.
        """
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._failed.wait())]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self.check()
        if not event.is_set():
            raise TimeoutError(f"{what} was not done within {seconds:.0f} s")


def summary(rounds: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine rounds: best CPU with the rates of the same round, median latencies, largest memory."""
    each = list(rounds)
    best = min(each, key=lambda figures: figures["server_cpu_us_per_message"])
    merged = dict(best)
    merged["latency_ms"] = {
        name: round(median(figures["latency_ms"][name] for figures in each), 3) for name in best["latency_ms"]
    }
    for name in ("server_rss_mib", "rss_growth_mib", "rss_kib_per_connection", "restart_seconds"):
        if name in best:
            merged[name] = max(figures[name] for figures in each)
    return merged
