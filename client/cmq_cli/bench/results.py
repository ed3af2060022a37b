"""The result of a run: figures by the second and of the whole measured time, for people, JSON and pages."""

from collections.abc import Mapping
from typing import Any

import msgspec

from cmq_cli.bench.plans import Plan, Work
from cmq_cli.values import show_count, show_size
from cmqd_load.hgrm import moments
from cmqd_load.histogram import Histogram
from cmqd_load.tally import Tally
from cmqd_types.sentences import counted

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "p99.99": 99.99}
BUSY_CORES = 0.9
"""Share of a core beyond which the generator, which has a single thread, may be the limit."""
LATE_MS = 5.0
"""Lateness of the generator that is worth a warning."""


class Second(msgspec.Struct, frozen=True):
    """The figures of a second."""

    at: float
    """Seconds since the start of the measured time; the end of the second."""
    sent: float
    """Messages a second, as the next two."""
    received: float
    deleted: float
    p50_ms: float | None
    """None = no message was complete, as the next two."""
    p99_ms: float | None
    max_ms: float | None
    errors: int

    def line(self, phase: str) -> str:
        """Return the line that is shown while the run goes on."""
        parts = [f"{phase} {self.at:4.0f} s", f"sent {self.sent:,.0f}/s"]
        if self.received or self.deleted:
            parts.append(f"received {self.received:,.0f}/s")
        if self.p50_ms is not None:
            parts.append(f"p50 {self.p50_ms:.2f} p99 {self.p99_ms:.2f} max {self.max_ms:.2f} ms")
        if self.errors:
            parts.append(counted(self.errors, "error"))
        return "  ".join(parts)


def second_of(tally: Tally, at: float, elapsed: float) -> Second:
    """Return the figures of a tally that was cleared ``elapsed`` seconds ago."""
    latency = tally.latency
    p50, p99, highest = (
        each / 1000 if latency.count else None
        for each in (latency.percentile(50), latency.percentile(99), latency.maximum)
    )
    return Second(
        round(at, 3),
        round(tally.sent / elapsed, 1),
        round(tally.received / elapsed, 1),
        round(tally.deleted / elapsed, 1),
        p50,
        p99,
        highest,
        tally.refused,
    )


class Measured(msgspec.Struct, kw_only=True):
    """The measurements of a generator."""

    seconds: float = 0.0
    total: Tally = msgspec.field(default_factory=Tally)
    by_second: list[Second] = []
    late: Histogram | None = None
    """Delays of the generator of an open loop, in microseconds."""
    unanswered: int | None = None
    """Of an open loop: messages that were due, and not complete at the end."""
    cores: float = 0.0
    """CPU of the generator, in cores."""
    failure: Exception | None = None
    """The error that ended the run."""
    is_interrupted: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run, as JSON has it."""

    load: str
    name: str
    """Of the run in a scenario; else the load."""
    options: Mapping[str, Any]
    server: Mapping[str, Any]
    """Version and durability."""
    started: str
    seconds: float
    messages: int
    """Messages that are complete: deleted, if the load has consumers, else sent."""
    messages_per_second: float
    mib_per_second: float
    """Bodies of the complete messages."""
    sent: int
    received: int
    deleted: int
    latency_of: str
    latency_ms: Mapping[str, float]
    errors: Mapping[str, int]
    unanswered: int | None
    generator: Mapping[str, Any]
    interrupted: bool
    error: str | None
    by_second: list[Second]

    def pairs(self) -> dict[str, str]:
        """Return the lines of the report."""
        durability = f", durability {self.server['durability']}" if self.server.get("durability") else ""
        pairs = {
            "load": self.name if self.name == self.load else f"{self.name} ({self.load})",
            "server": f"cmqd {self.server.get('version', 'of unknown version')}{durability}",
            "messages": f"{show_count(self.messages)} in {self.seconds:.1f} s",
            **({"sent": show_count(self.sent)} if self.sent != self.messages else {}),
            "rate": f"{self.messages_per_second:,.0f} messages/s, {self.mib_per_second:,.2f} MiB/s",
            "latency": self.latency_of,
        }
        for name, value in self.latency_ms.items():
            pairs[f"  {name}"] = f"{value:,.3f} ms"
        pairs["errors"] = ", ".join(f"{name} {count:,}" for name, count in self.errors.items()) or "none"
        if self.unanswered:
            pairs["unanswered"] = f"{counted(self.unanswered, 'message')}, with the time waited as latency"
        cores = f"{self.generator['cores']:.2f} cores"
        late = self.generator.get("late_p99_ms")
        pairs["generator"] = cores if late is None else f"{cores}, late by {late:.3f} ms (p99)"
        return pairs

    def warnings(self) -> list[str]:
        """Return the reasons for which the figures may say less about the server than they seem to."""
        warnings: list[str] = []
        if self.generator["cores"] >= BUSY_CORES:
            warnings.append(
                f"the generator used {self.generator['cores']:.2f} cores and has one thread: it, not the server, may "
                "be the limit; use larger batches, a second cmq bench at the same time, or --generator native"
            )
        if (self.generator.get("late_p99_ms") or 0) >= LATE_MS:
            warnings.append(
                f"the generator was late by {self.generator['late_p99_ms']:.1f} ms (p99), and the latencies count "
                "that: this machine is too busy for the rate"
            )
        if self.unanswered:
            warnings.append(
                f"{counted(self.unanswered, 'message')} of the open loop had no answer at the end: the server did not "
                "keep up, or lost connections; the percentiles count the time waited, and are too low"
            )
        return warnings


def result_of(
    plan: Plan, work: Work, measured: Measured, *, name: str, server: Mapping[str, Any], started: str
) -> Result:
    """Return the result of a run."""
    total = measured.total
    messages = total.deleted if work.consumers else total.sent
    seconds = max(measured.seconds, 1e-9)
    generator: dict[str, Any] = {"kind": plan.generator.value, "cores": round(measured.cores, 3)}
    if measured.late is not None and measured.late.count:
        generator["late_p99_ms"] = measured.late.percentile(99) / 1000
    return Result(
        load=work.load,
        name=name,
        options=plan.as_document(),
        server=server,
        started=started,
        seconds=round(measured.seconds, 3),
        messages=messages,
        messages_per_second=round(messages / seconds, 1),
        mib_per_second=round(messages * plan.size / seconds / 1024**2, 3),
        sent=total.sent,
        received=total.received,
        deleted=total.deleted,
        latency_of=work.latency,
        latency_ms=latencies(total.latency),
        errors=total.errors,
        unanswered=measured.unanswered,
        generator=generator,
        interrupted=measured.is_interrupted,
        error=None if measured.failure is None else str(measured.failure),
        by_second=measured.by_second,
    )


def latencies(histogram: Histogram) -> dict[str, float]:
    """Return the latencies of a report, in milliseconds. A percentile without a value beyond itself is left out."""
    if not histogram.count:
        return {}
    shown = {"mean": round(moments(histogram)[0] / 1000, 3), "min": histogram.minimum / 1000}
    for name, percent in PERCENTILES.items():
        if round(histogram.count * (100 - percent), 6) >= 100:
            shown[name] = histogram.percentile(percent) / 1000
    return {**shown, "max": histogram.maximum / 1000}


def shown_options(options: Mapping[str, Any]) -> str:
    """Return the options of a run on a line."""
    return ", ".join(
        f"{name.replace('_', ' ')} {show_size(value) if name == 'size' else value}" for name, value in options.items()
    )
