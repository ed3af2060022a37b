"""Starting a command under the tracer, from a test."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.processes.environment import plain_environment

_TESTS = Path(__file__).parents[3]


def start_traced(
    command: Sequence[str],
    *,
    folder: Path,
    trace_file: Path,
    hold_ms: float = 0.0,
    seed: int = 0,
    stdout: int | None = None,
    stderr: int | None = None,
) -> "subprocess.Popen[bytes]":
    """Run a command with all its children under the tracer; ``folder`` must exist.

    The returned process is the tracer. The tracer ends when all traced processes have ended, and terminating the tracer
    (SIGTERM) kills the traced processes. Then the trace is complete and can be read.
    """
    inherited = plain_environment()
    inherited["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_TESTS), inherited.get("PYTHONPATH")]))
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "support.crash.traces.tracer"),
            *("--folder", str(folder), "--output", str(trace_file)),
            *("--hold-ms", str(hold_ms), "--seed", str(seed)),
            "--",
            *command,
        ],
        env=inherited,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )
