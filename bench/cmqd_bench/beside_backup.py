"""The latency of clients beside a backup, in turns: ``python -m cmqd_bench.beside_backup``.

A broker gets a log of some GB, and an open loop of single messages at a fixed rate. A single backup with ``--rate``
copies the log to the same disk. In every turn the backup works for one window and is stopped (SIGSTOP) for another
one; odd turns begin with the stopped backup. So both kinds of windows have the same broker, log and pin, and the
backup reads rows of every age. Printed are p50, p99 and p99.9 from the intended time of a send to the receipt, and the
median of the ratios of the turns.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from cmqd_bench.commands.options import Options
from cmqd_bench.failures import BenchFailed
from cmqd_bench.load.session import Session, running
from cmqd_bench.machine.broker import broker_folder
from cmqd_bench.machine.conditions import conditions, scratch_root
from cmqd_load.pacer import Pacer

SETTLE_S: Final = 2.0
"""Time after a change before a window begins."""
FILL_S: Final = 3600.0


class Latency(NamedTuple):
    """Milliseconds of a window."""

    p50: float
    p99: float
    p999: float


async def window(session: Session, seconds: float) -> Latency:
    """Measure the open loop that runs."""
    await session.guard.sleep(SETTLE_S)
    session.tally.clear()
    await session.guard.sleep(seconds)
    latency = session.tally.latency
    return Latency(*(latency.percentile(percent) / 1000 for percent in (50, 99, 99.9)))


class Backup:
    """A backup of the log, which can pause."""

    def __init__(self, data: Path, place: Path, rate: str) -> None:
        command = [sys.executable, "-m", "cmqd", "backup", str(data), "--to", str(place), "--rate", rate]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def pause(self) -> None:
        """Stop the work for a while."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on. Raises BenchFailed: the backup has ended."""
        self.check()
        self._process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raises BenchFailed: the backup has ended."""
        if self._process.poll() is not None:
            raise BenchFailed(f"the backup ended within the turns: {self._process.communicate()[0]}")

    def end(self) -> None:
        """End the process, paused or not."""
        self._process.kill()
        self._process.wait()


async def measure(arguments: argparse.Namespace) -> None:
    """Measure in turns, and print the figures."""
    scratch = scratch_root(arguments.scratch)
    print(json.dumps(conditions(scratch)), flush=True)
    options = Options(
        scenario="latency", rate=arguments.load, body=arguments.load_body, connections=arguments.connections
    )
    turns: list[tuple[Latency, Latency]] = []
    with broker_folder(scratch) as broker:
        async with running(broker) as session:
            await session.fill(
                await session.create_queue("log"), arguments.bytes // arguments.body, arguments.body, FILL_S
            )
            print(
                f"log: {sum(path.stat().st_size for path in (broker.data / 'segments').iterdir()):,} bytes", flush=True
            )
            with Pacer(options.rate, await session.open_loop(options, "load")):
                backup = Backup(broker.data, broker.folder / "backup", arguments.rate)
                try:
                    # A pause before the pin was answered would be a lost request to the backup.
                    while not any((broker.folder / "backup").glob("segments/*")):
                        backup.check()
                        await session.guard.sleep(SETTLE_S)
                    for turn in range(arguments.turns):
                        found: dict[bool, Latency] = {}
                        for is_beside in (turn % 2 == 1, turn % 2 == 0):
                            if is_beside:
                                backup.resume()
                            else:
                                backup.pause()
                            found[is_beside] = await window(session, arguments.seconds)
                            backup.check()
                        turns.append((found[False], found[True]))
                        print(f"turn {turn}: alone {_shown(found[False])}; beside {_shown(found[True])}", flush=True)
                    copied = sum(
                        path.stat().st_size for path in (broker.folder / "backup").rglob("*") if path.is_file()
                    )
                    print(f"copied: {copied:,} bytes")
                finally:
                    backup.end()
    for place, name in enumerate(Latency._fields):
        alone, beside = ([pair[kind][place] for pair in turns] for kind in (0, 1))
        ratios = sorted(after / before for before, after in zip(alone, beside, strict=True))
        print(
            f"{name}: {median(alone):.2f} ms alone, {median(beside):.2f} ms beside the backup;"
            f" ratio {median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        )


def _shown(latency: Latency) -> str:
    return " ".join(f"{name} {value:.2f}" for name, value in latency._asdict().items()) + " ms"


def main() -> None:
    """Read the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=10_000_000_000, help="size of the log")
    parser.add_argument("--body", type=int, default=16_384, help="bytes of a message of the log")
    parser.add_argument("--rate", default="50MB", help="--rate of the backup")
    parser.add_argument("--load", type=float, default=1_000.0, help="messages a second of the clients")
    parser.add_argument("--load-body", type=int, default=256, help="bytes of their messages")
    parser.add_argument("--connections", type=int, default=16, help="producers, and as many consumers")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0, help="time of a window")
    parser.add_argument("--scratch", type=Path, help="folder on the disk of log and backup")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
