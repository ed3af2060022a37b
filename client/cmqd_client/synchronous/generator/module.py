"""The text of ``cmqd_client/sync.py``, formatted by ruff."""

import subprocess
import sys
from pathlib import Path

from cmqd_client.synchronous.generator.sources import CLIENT, sources
from cmqd_client.synchronous.generator.twins import Facade

FACADE = CLIENT / "sync.py"


def facade() -> str:
    """Return the text of ``sync.py``.

    Raises:
        CannotTurnError: there is no rule for a definition of the client.
    """
    ruff = str(Path(sys.executable).parent / "ruff")
    text = Facade(sources()).text()
    name = ["--stdin-filename", str(FACADE), "-"]
    for command in ([ruff, "check", "--quiet", "--fix-only", "--select", "I,F401", *name], [ruff, "format", *name]):
        text = subprocess.run(command, cwd=CLIENT, input=text, capture_output=True, text=True, check=True).stdout
    return text
