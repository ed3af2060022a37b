"""Live progress of a demo on the terminal."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cmqd_bench.demo.input import Source
from cmqd_bench.machine.conditions import file_system

REFRESH_SECONDS = 0.1


def announce(title: str, source: Source, messages: int, root: Path, console: Console) -> None:
    """Print the source and the number of messages."""
    console.print(f"[bold]{title}[/bold]: {messages:,} messages from {source.description}")
    if len(source.bodies) < messages:
        console.print(f"{len(source.bodies):,} different ones, gone round until there are {messages:,}")
    console.print(f"temporary folder on {file_system(root)[0]}, every answer after an fsync")


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


@asynccontextmanager
async def watching(progress: Progress, figures: Sequence[tuple[str, int, Callable[[], int]]]) -> AsyncGenerator[None]:
    """Move a bar per figure (name, total, current value) while the block runs."""
    tasks = [(progress.add_task(name, total=total or None, rate=""), figure) for name, total, figure in figures]

    async def watch() -> None:
        before = [0] * len(tasks)
        while True:
            for index, (task, figure) in enumerate(tasks):
                now = figure()
                progress.update(task, completed=now, rate=f"{(now - before[index]) / REFRESH_SECONDS:,.0f}/s")
                before[index] = now
            await asyncio.sleep(REFRESH_SECONDS)

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        for task, figure in tasks:
            progress.update(task, completed=figure(), rate="")
