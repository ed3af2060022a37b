"""Write a folder of a format that this code writes, and the answers of this code to the questions about it.

``cd tests && python -m support.formats.make N formats/``, where N is the format of a log of its own or of a cache.
"""

import asyncio
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import msgspec

from cmqd_segment.manifest import CACHE_FORMAT, MANIFEST_FORMAT
from support.engine.replicas import Replicas
from support.formats.broker import open_folder
from support.formats.caches import OpenLog, become_cache, log_over
from support.formats.content import BEGIN_MS, fill
from support.formats.questions import interrogate
from support.formats.spark_states import spark_rows


async def make(number: int, target: Path) -> None:
    """See the module."""
    if number not in (MANIFEST_FORMAT, CACHE_FORMAT):
        raise SystemExit(f"this code writes formats {MANIFEST_FORMAT} and {CACHE_FORMAT}, not {number}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        folder.mkdir()
        kept = await fill(await open_folder(folder, BEGIN_MS))
        opened: dict[str, OpenLog] = {}
        if number == CACHE_FORMAT:
            replicas = Replicas(Path(place))
            await asyncio.to_thread(become_cache, folder, replicas)
            opened = {"open_log": log_over(replicas)}
        copies = [Path(place) / name for name in ("asked", "read")]
        for copy in copies:
            shutil.copytree(folder, copy)
        facts = {
            "kept": msgspec.to_builtins(kept),
            "spark": spark_rows(copies[1]),
            "answers": await interrogate(copies[0], kept, **opened),
        }
        expected = Path(place) / "expected.json"
        expected.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1))
        with tarfile.open(target / f"format-{number}.tar.xz", "w:xz") as tar:
            tar.add(folder, "data")
            tar.add(expected, "expected.json")


if __name__ == "__main__":
    asyncio.run(make(int(sys.argv[1]), Path(sys.argv[2])))
