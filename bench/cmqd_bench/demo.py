"""The demo: ``python -m cmqd_bench.demo [--input FILE] [--messages N]``.

Streams real input through a queue and a topic of a broker in a temporary folder, kills the broker with SIGKILL half
way, restarts the broker, and proves by its books that no answered message was lost, and that every subscription got the
messages that match its binding keys. Exit code 0 if the books hold, 1 if a message was lost, changed or undone, 2 for
unusable input.
"""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from cmqd_bench.audience import Share
from cmqd_bench.broker import BrokerFailed, broker_folder
from cmqd_bench.journey import VISIBILITY_SECONDS, DemoFailed, Journey
from cmqd_bench.ledger import Balance
from cmqd_bench.machine import ConditionsError, file_system, scratch_root
from cmqd_bench.options import whole
from cmqd_bench.source import Source, SourceError, json_lines, repository_source
from cmqd_client import CmqError

HELD, BROKEN, INTERRUPTED = 0, 1, 130
MESSAGES = 20_000
REFRESH_SECONDS = 0.1
FEWEST = 100
"""Fewest messages: a smaller load would end before the kill."""


def bars(console: Console) -> Progress:
    """Return live progress; every bar has a field ``rate``."""
    return Progress(
        TextColumn("{task.description:<18}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:>9}"),
        TimeElapsedColumn(),
        console=console,
    )


async def _watch(journey: Journey, progress: Progress) -> None:
    """Move the bars until cancelled."""
    ledger, audience = journey.ledger, journey.broadcast.audience
    figures: list[tuple[TaskID, Callable[[], int]]] = [
        (progress.add_task(name, total=journey.messages, rate=""), figure)
        for name, figure in (
            ("sends answered", lambda: ledger.acknowledged),
            ("received", lambda: ledger.received),
            ("deletes answered", lambda: ledger.deleted),
            ("published", lambda: audience.published),
        )
    ]
    copies = audience.copies_of(range(journey.messages))
    figures.append((progress.add_task("copies of them", total=copies, rate=""), lambda: min(audience.copies, copies)))
    before = [0] * len(figures)
    while True:
        for index, (task, figure) in enumerate(figures):
            now = figure()
            progress.update(task, completed=now, rate=f"{(now - before[index]) / REFRESH_SECONDS:,.0f}/s")
            before[index] = now
        try:
            await asyncio.sleep(REFRESH_SECONDS)
        except asyncio.CancelledError:
            for task, figure in figures:
                progress.update(task, completed=figure(), rate="")
            raise


async def _run(journey: Journey, console: Console) -> float:
    """Run with bars; return the duration in seconds."""
    started = time.monotonic()
    with bars(console) as progress:
        watcher = asyncio.create_task(_watch(journey, progress))
        try:
            await journey.run()
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
    return time.monotonic() - started


def closing_table(journey: Journey, balance: Balance, seconds: float) -> Table:
    """The results of the proof."""
    kill, audience = journey.kill, journey.broadcast.audience
    holds = balance.holds and audience.holds
    table = Table(title="Nothing lost" if holds else "BROKEN PROMISES", title_justify="left")
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("meaning")
    rows = [
        ("sends answered", balance.acknowledged, "each one fsynced before its answer"),
        ("of them received", balance.acknowledged - balance.lost, "with exactly the body that was sent"),
        ("deletes answered", balance.deleted, "the queue is empty at the end"),
        ("LOST", balance.lost, "answered, and never received"),
        ("FOREIGN", balance.foreign, "received, but nobody sent it so"),
        ("UNDONE", balance.undone, "received again after its delete was answered"),
        (
            "received again",
            balance.redelivered,
            f"the answer went down with the broker, so the lease ran out ({VISIBILITY_SECONDS:.0f} s)",
        ),
        ("stored twice", balance.stored_twice, "the answer was lost for good and the producer sent it anew"),
        ("stored, unanswered", balance.unanswered, "stored by the kill's last commit, answer never seen"),
        ("calls made anew", kill.errors, "failed during the outage although the client repeated them"),
    ]
    for name, count, meaning in rows:
        bad = name.isupper() and count
        table.add_row(name, f"{count:,}", meaning, style="bold red" if bad else None)
    table.add_section()
    table.add_row(
        "published", f"{audience.published:,}", "to a routing topic as well; who got what, and our own count:"
    )
    for share in audience.shares():
        table.add_row(*_share_row(share), style="bold red" if share.lost or share.foreign else None)
    if audience.miscounted:
        table.add_row(
            "MISCOUNTED", f"{audience.miscounted:,}", "answers named another number of subscribers", style="bold red"
        )
    table.add_section()
    table.add_row("killed after", f"{kill.at_acknowledged:,}", "answered sends, with SIGKILL to all processes")
    table.add_row("start after kill", f"{kill.restart_seconds:.2f} s", "from exec to ready, recovery included")
    table.add_row("sends stood still", f"{kill.first_answer_seconds:.2f} s", "from the kill to the next answered send")
    table.add_row(
        "all in all", f"{seconds:.1f} s", f"{balance.acknowledged / seconds:,.0f} messages/s, outage included"
    )
    return table


def _share_row(share: Share) -> tuple[str, str, str]:
    """The copies of a subscriber of the topic."""
    meaning = f"{' or '.join(share.binding_keys)}: {share.expected:,} expected"
    if share.again:
        meaning += f", {share.again:,} of them came again"
    if share.lost:
        meaning += f", {share.lost:,} LOST"
    if share.foreign:
        meaning += f", {share.foreign:,} FOREIGN"
    return f"  {share.name}", f"{share.received:,}", meaning


def run_demo(source: Source, messages: int, console: Console, scratch: Path | None) -> bool:
    """Run the whole demo; return True if the books hold."""
    root = scratch_root(scratch)
    announce("cmqd demo", source, messages, root, console)
    with broker_folder(root) as broker:

        async def run() -> tuple[Journey, float]:
            journey = Journey(broker, source, messages, console.print)
            return journey, await _run(journey, console)

        journey, seconds = uvloop.run(run())
    balance = journey.ledger.balance()
    console.print(closing_table(journey, balance, seconds))
    return balance.holds and journey.broadcast.audience.holds


def announce(title: str, source: Source, messages: int, root: Path, console: Console) -> None:
    """Print the source and the number of messages."""
    console.print(f"[bold]{title}[/bold]: {messages:,} messages from {source.description}")
    if len(source.bodies) < messages:
        console.print(f"{len(source.bodies):,} different ones, gone round until there are {messages:,}")
    console.print(f"temporary folder on {file_system(root)[0]}, every answer after an fsync")


Demo: TypeAlias = Callable[[Source, int, Console, Path | None], bool]
"""Streams a number of messages of a source, in a temporary folder; returns True if the proof holds."""


def demo_main(name: str, description: str, demo: Demo, *, fewest: int, failures: tuple[type[Exception], ...]) -> int:
    """Run a demo as a program: command line, end by a signal, exit code.

    Args:
        name: name of the module.
        description: one-line summary for the help.
        demo: function that runs the demo.
        fewest: smallest number of messages.
        failures: errors of the demo that are printed in one line, like the errors of broker and client.
    """
    parser = argparse.ArgumentParser(prog=f"cmqd_bench.{name}", description=description)
    parser.add_argument("--input", type=Path, metavar="FILE", help="NDJSON: objects with a body, or any JSON lines")
    parser.add_argument("--messages", type=whole(fewest, 10_000_000), default=MESSAGES, help="how many (%(default)s)")
    parser.add_argument("--scratch", type=Path, help="where to put the temporary folder; on a disk")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        source = json_lines(arguments.input) if arguments.input else repository_source()
        holds = demo(source, arguments.messages, console, arguments.scratch)
    except SourceError as error:
        parser.error(str(error))
    except (BrokerFailed, ConditionsError, CmqError, TimeoutError, *failures) as error:
        console.print(f"the demo failed: {str(error) or type(error).__name__}", style="bold red", markup=False)
        return BROKEN
    except ExceptionGroup as group:
        for error in group.exceptions:
            console.print(f"the demo failed: {error!r}", style="bold red", markup=False)
        return BROKEN
    except KeyboardInterrupt:
        return INTERRUPTED
    return HELD if holds else BROKEN


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Treat SIGTERM like Ctrl-C, so that child processes end, too."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the program and return the exit code; see the module."""
    what = "Kill a broker under load; lose nothing."
    return demo_main("demo", what, run_demo, fewest=FEWEST, failures=(DemoFailed,))


if __name__ == "__main__":
    sys.exit(main())
