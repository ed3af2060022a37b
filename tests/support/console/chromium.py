"""The Chromium that drives the tests of the console: the system's, or the one that ``make setup-all`` has unpacked."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
UNPACKED = ROOT / ".venv" / "parts" / "chromium"
"""Folder with ``chromium`` and ``lib``, made by ``tests/parts.py`` on a machine without a Chromium."""
AXE_FILE = ROOT / ".venv" / "parts" / "axe.min.js"
"""The script of axe-core, as ``tests/parts.py`` downloads it."""
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Chromium(NamedTuple):
    """A browser."""

    executable: str
    environment: dict[str, str]
    arguments: tuple[str, ...]


def find_chromium() -> Chromium | None:
    """Return the browser of this machine, None if there is none."""
    # As root Chromium does not start inside its sandbox. The pages are the project's own.
    arguments = ("--no-sandbox", "--disable-dev-shm-usage")
    for name in _NAMES:
        path = shutil.which(name)
        if path is not None:
            return Chromium(path, dict(os.environ), arguments)
    executable = UNPACKED / "chromium"
    if executable.exists():
        libraries = str(UNPACKED / "lib")
        return Chromium(str(executable), {**os.environ, "LD_LIBRARY_PATH": libraries}, arguments)
    return None
