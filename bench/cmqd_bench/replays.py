"""The speed of ``cmq replay``, its memory, and its order over kills.

``python -m cmqd_bench.replays`` fills 12 queues of a broker with durability ``os``, and replays them in the order of
the log into a queue. The command runs as a process of its own: its wall time has the start and the count. With
``--master`` the start of a session of Spark is measured in another process, and subtracted in a figure of its own. With
``--kills N`` the process is killed N times with SIGKILL and resumed. The bodies of the queue, CRC by CRC, must be the
bodies of the log in the order of the log.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

from cmqd.testing import BrokerProcess
from cmqd_bench.machine.conditions import conditions, scratch_root
from cmqd_client import connect
from cmqd_log.options import parse_options
from cmqd_log.reading.planning import plan_batch
from cmqd_log.reading.tasks import read_stretches

QUEUES = 12
BATCH = 256
BODY = 256


async def _fill(url: str, messages: int) -> None:
    async with connect(url) as client:
        queues = [await client.create_queue(f"orders-{number}") for number in range(QUEUES)]
        room = asyncio.Semaphore(16)

        async def send(number: int) -> None:
            content = random.Random(number).randbytes(BATCH * BODY)
            async with room:
                await queues[number % QUEUES].send_batch(
                    [content[place : place + BODY] for place in range(0, len(content), BODY)]
                )

        await asyncio.gather(*(send(number) for number in range(messages // BATCH)))
        await client.seal_segments()


async def _seal(url: str) -> None:
    async with connect(url) as client:
        await client.seal_segments()


def _checksums(data: Path, *queues: str) -> list[int]:
    """Return the CRC-32 of the bodies of queues in the order of the log."""
    options = parse_options({"path": str(data), "queue": ",".join(queues)})
    found: list[int] = []
    for task in plan_batch(options, ("body", "queue")):
        for _, run, start, stop, bodies in read_stretches(task, bodies=True):
            place = run.offset + sum(run.sizes[:start])
            for size in run.sizes[start:stop]:
                found.append(zlib.crc32(bodies[place : place + size]))
                place += size
    return found


def _run(command: list[str], kill_after: float | None, url: str) -> tuple[float, float, float, dict[str, object]]:
    """Run a command; return wall seconds, its CPU seconds, its peak memory in MB, and its result."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as out:
        quiet = None if kill_after is None else subprocess.DEVNULL
        process = subprocess.Popen(command, env={**os.environ, "CMQ_URL": url}, stdout=out, stderr=quiet)
        peak = 0.0
        while True:
            # Not ru_maxrss, which begins with the memory of this process.
            peak = max(peak, _peak_mb(process.pid))
            time.sleep(0.02)
            if kill_after is not None and time.monotonic() - begun > kill_after:
                os.kill(process.pid, signal.SIGKILL)
            pid, _, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
        seconds = time.monotonic() - begun
        process.returncode = 0
        out.seek(0)
        told = out.read()
    return seconds, used.ru_utime + used.ru_stime, peak, json.loads(told) if told else {}


START_OF_SPARK = """
import sys, time
from pyspark_cmqd.session import spark_session
begun = time.monotonic()
with spark_session(sys.argv[1], "start"):
    print(time.monotonic() - begun)
"""


def _start_seconds(master: str) -> float:
    """Return the seconds in which a session of Spark starts in a new process."""
    command = [sys.executable, "-c", START_OF_SPARK, master]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def main() -> int:
    """Fill, replay, compare, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=721_920)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--kills", type=int, default=0, help="kill a run so often")
    parser.add_argument("--rate", default="40000", help="messages a second of a run that is killed")
    parser.add_argument("--master", help="send with Spark")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=scratch_root(None)))
    failed = False
    try:
        with BrokerProcess(folder, "--durability", "os") as broker:
            asyncio.run(_fill(broker.url, given.messages))
            data = folder / "data"
            sources = [f"orders-{number}" for number in range(QUEUES)]
            wanted = _checksums(data, *sources)
            for turn in range(given.turns):
                journal = folder / f"run-{turn}.json"
                replay = [sys.executable, "-m", "cmq_cli", "replay"]
                master = ["--master", given.master] if given.master else []
                command = [*replay, "--path", str(data), "--queue", ",".join(sources), "--into", f"replay-{turn}"]
                command += ["--create", "--state", str(journal), "--output", "json", *master]
                slow = ["--rate", given.rate]
                chances = random.Random(turn)
                kills = 0
                start = _start_seconds(given.master) if given.master else 0.0
                while kills < given.kills:
                    _run([*command, *slow], start + chances.uniform(0.8, 2.5), broker.url)
                    if journal.exists():
                        kills += 1
                        command = [*replay, "--resume", str(journal), "--output", "json", *master]
                        if json.loads(journal.read_text())["done"] == len(json.loads(journal.read_text())["slices"]):
                            break
                if kills:
                    command += ["--rate", "1000000"]
                seconds, cpu, memory, told = _run(command, None, broker.url)
                asyncio.run(_seal(broker.url))
                of_spark = {}
                if given.master and not kills:
                    rate = round(given.messages / (seconds - start))
                    of_spark = {"start of Spark": round(start, 2), "messages a second without it": rate}
                is_equal = _checksums(data, f"replay-{turn}") == wanted
                failed |= not is_equal
                figures = {
                    "seconds": round(seconds, 2),
                    "messages a second": round(given.messages / seconds),
                    **of_spark,
                    "cpu us a message": round(cpu / given.messages * 1e6, 2),
                    "peak MB": round(memory),
                    "sending seconds": told.get("seconds"),
                    "kills": kills,
                    "perhaps twice": told.get("perhaps_twice"),
                    "same sequence": is_equal,
                    "conditions": conditions(folder),
                }
                print(json.dumps(figures, default=str), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
