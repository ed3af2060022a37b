"""Write a folder of the format that this code writes, and the answers of this code to the questions about it.

cd tests && python -m support.formats.make 1 formats/
"""

import asyncio
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import msgspec

from cmqd_segment.manifest import MANIFEST_FORMAT
from support.formats.broker import open_folder
from support.formats.content import BEGIN_MS, fill
from support.formats.questions import interrogate
from support.formats.spark_states import spark_rows


async def make(number: int, target: Path) -> None:
    """See the module."""
    if number != MANIFEST_FORMAT:
        raise SystemExit(f"this code writes format {MANIFEST_FORMAT}, not {number}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        folder.mkdir()
        kept = await fill(await open_folder(folder, BEGIN_MS))
        copies = [Path(place) / name for name in ("asked", "read")]
        for copy in copies:
            shutil.copytree(folder, copy)
        facts = {
            "kept": msgspec.to_builtins(kept),
            "spark": spark_rows(copies[1]),
            "answers": await interrogate(copies[0], kept),
        }
        expected = Path(place) / "expected.json"
        expected.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1))
        with tarfile.open(target / f"format-{number}.tar.xz", "w:xz") as tar:
            tar.add(folder, "data")
            tar.add(expected, "expected.json")


if __name__ == "__main__":
    asyncio.run(make(int(sys.argv[1]), Path(sys.argv[2])))
