"""The cost of questions to the log: scans beside Parquet, ``cmq log query``, memory, and plans of many segments by URL.

``python -m cmqd_bench.queries`` writes a log of 50 queues with the real storage, and the same rows as Parquet (zstd).
The scan of all columns and pyarrow's reader of Parquet take turns in one process, and their tables must be equal.
Statements run in the same process, and as whole commands. Scans for memory, and plans by URL, are processes of their
own, whose peak is printed. ``--messages 39000000`` makes a log of 10 GB.
"""

# duckdb and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import structs

import cmqd_log
from cmqd_bench.machine.conditions import conditions, scratch_root, version_of
from cmqd_bench.spark.log import sealed, write_log
from cmqd_log import sql
from cmqd_segment.manifest import SideEntry, read_manifest, write_manifest
from cmqd_segment.side import decode_side, encode_side

BODY = 256
STATEMENTS = {
    "count": "SELECT count(*) FROM log",
    "group by": "SELECT queue, count(*) FROM log GROUP BY queue",
    "one id": "SELECT queue, lsn FROM log WHERE msg_id = '{id}'",
    "states": "SELECT queue, state, count(*) FROM messages GROUP BY ALL",
}
_PEAK = "; print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
_SCAN = "import sys, cmqd_log; n = sum(len(b) for b in cmqd_log.scan(sys.argv[1]))" + _PEAK
_PLAN = "import sys, cmqd_log; n = len(cmqd_log.plan(sys.argv[1], ['lsn', 'queue'], queue='queue-07'))" + _PEAK


class Counted:
    """CPU and wall seconds of the turns of an action."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def run(self, action: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def figures(self) -> dict[str, float]:
        return {"cpu s": round(median(self.cpu), 3), "wall s": round(median(self.wall), 3)}


def _answer(folder: Path, statement: str) -> "pa.Table":
    with sql.query(folder, statement) as answer:
        return answer.reader.read_all()


def _scanned(folder: Path) -> None:
    for _ in cmqd_log.scan(folder):
        pass


def _read(file: Path) -> None:
    for _ in pq.ParquetFile(file).iter_batches(8192):
        pass


def _digest(batches: Any) -> str:
    """Return the SHA-256 of the rows in order, whatever batches they come in."""
    digest = hashlib.sha256()
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            digest.update(repr(row).encode())
    return digest.hexdigest()


def _commands(folder: Path, statements: dict[str, str], rounds: int) -> dict[str, dict[str, float]]:
    counted = {name: Counted() for name in statements}
    for _ in range(rounds):
        for name, statement in statements.items():
            command = [sys.executable, "-m", "cmq_cli", "log", "query", statement, "--path", str(folder)]
            begun = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
                _, status, used = os.wait4(running.pid, 0)
                running.returncode = os.waitstatus_to_exitcode(status)
            assert running.returncode == 0, statement
            counted[name].wall.append(time.perf_counter() - begun)
            counted[name].cpu.append(used.ru_utime + used.ru_stime)
    return {name: each.figures() for name, each in counted.items()}


def _peak_mb(program: str, argument: str) -> int:
    told = subprocess.run([sys.executable, "-c", program, argument], capture_output=True, text=True, check=True)
    return round(int(told.stdout) / 1024)


def _many_segments(folder: Path, place: Path, count: int) -> None:
    """Write a manifest and side files as of a log with many segments; no segment is there."""
    manifest = read_manifest(folder)
    first = next(entry for entry in manifest.segments if entry.side and entry.messages)
    plan, history = decode_side((folder / first.side_file).read_bytes())
    (place / "segments").mkdir(parents=True)
    rows = first.last_lsn - first.first_lsn + 1
    entries: list[Any] = []
    for number in range(1, count + 1):
        sha256 = hashlib.sha256(str(number).encode()).hexdigest()
        side = encode_side(structs.replace(plan, segment=number, sha256=sha256), history)
        low = (number - 1) * rows + 1
        entry = structs.replace(
            first,
            number=number,
            first_lsn=low,
            last_lsn=low + rows - 1,
            sha256=sha256,
            sources=[],  # as of a log with more queues than the manifest lists
            side=SideEntry(len(side), hashlib.sha256(side).hexdigest()),
        )
        (place / entry.side_file).write_bytes(side)
        entries.append(entry)
    write_manifest(
        place, structs.replace(manifest, segments=entries, next_number=count + 1, checkpoints=[], dropped=[])
    )


def _planned_by_url(place: Path, count: int) -> dict[str, object]:
    sent: list[int] = []

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content = (place / self.path.lstrip("/")).read_bytes()
            wanted = self.headers.get("Range", "")
            if wanted:
                low, high = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
                content = content[low : high + 1]
            sent.append(len(content))
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        begun = time.perf_counter()
        peak = _peak_mb(_PLAN, f"http://127.0.0.1:{server.server_address[1]}")
        seconds = time.perf_counter() - begun
        server.shutdown()
    return {
        "segments": count,
        "driver peak MB": peak,
        "fetched bytes a segment": round(sum(sent) / count),
        "requests": len(sent),
        "wall s": round(seconds, 2),
    }


def main() -> int:
    """Write the log, measure in turns, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--segments", type=int, default=200, help="of the plan by URL; 0 = no plan")
    parser.add_argument("--memory-only", action="store_true", help="write the log, and measure the memory of a scan")
    parser.add_argument("--path", type=Path, help="a data folder, in place of a log that is written")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="cmqd-queries-", dir=scratch_root(None)))
    try:
        folder = given.path or scratch / "data"
        if given.path is None:
            asyncio.run(write_log(folder, given.messages, BODY))
        figures: dict[str, object] = {
            "log bytes": sum(entry.bytes for entry in sealed(folder)),
            "segments": len(sealed(folder)),
            "scan peak MB": _peak_mb(_SCAN, str(folder)),
        }
        is_equal = True
        if not given.memory_only:
            file = scratch / "rows.parquet"
            reader = cmqd_log.scan(folder)
            with pq.ParquetWriter(file, reader.schema, compression="zstd") as writer:
                for batch in reader:
                    writer.write_batch(batch)
            digest = _digest(cmqd_log.scan(folder))
            is_equal = digest == _digest(pq.ParquetFile(file).iter_batches())
            (row,) = _answer(folder, "SELECT msg_id FROM log LIMIT 1 OFFSET 1000").to_pylist()
            statements = {name: text.replace("{id}", row["msg_id"]) for name, text in STATEMENTS.items()}
            actions: dict[str, Callable[[], object]] = {
                "scan of all columns": lambda: _scanned(folder),
                "Parquet, all columns": lambda: _read(file),
                **{name: lambda text=text: _answer(folder, text) for name, text in statements.items()},
            }
            counted = {name: Counted() for name in actions}
            for action in actions.values():
                action()  # the imports and caches of the first call
            for _ in range(given.rounds):
                for name, action in actions.items():
                    counted[name].run(action)
            figures |= {name: each.figures() for name, each in counted.items()}
            ratio = median(counted["Parquet, all columns"].cpu) / median(counted["scan of all columns"].cpu)
            figures |= {"speed of the scan by CPU beside Parquet": round(ratio, 2), "same rows": is_equal}
            figures["whole commands"] = _commands(folder, statements, given.rounds)
        if given.segments:
            _many_segments(folder, scratch / "many", given.segments)
            figures["plan by URL"] = _planned_by_url(scratch / "many", given.segments)
        described: dict[str, Any] = conditions(scratch)
        described["versions"] |= {each: version_of(each) for each in ("pyarrow", "duckdb")}
        print(json.dumps({**figures, "messages": given.messages, "conditions": described}, default=str, indent=1))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
