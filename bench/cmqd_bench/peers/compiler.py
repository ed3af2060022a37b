"""Compiles the load generator on its first use.

The program stays in a cache folder, under a name made of a hash of the source, so a changed source is compiled anew and
two checkouts do not disturb each other.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from cmqd_bench.peers.errors import CompilationFailed, CompilerMissing

SOURCE = Path(__file__).with_name("load.c")
FLAGS = ("-O2", "-Wall", "-Wextra")
COMPILE_SECONDS = 120.0


def compiler() -> str | None:
    """Return the C compiler: of the variable ``CC``, else ``cc``; None if there is none."""
    return shutil.which(os.environ.get("CC") or "cc")


def cache_folder() -> Path:
    """Return the folder of compiled programs: below ``XDG_CACHE_HOME``, else below the home folder's ``.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cmqd_bench"


def load_program(folder: Path | None = None) -> Path:
    """Return the compiled load generator, compiling the source if the cache does not have the program.

    Raises:
        CompilerMissing: there is no C compiler, and the cache does not have the program.
        CompilationFailed: the compiler refused the source.
    """
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    program = (folder or cache_folder()) / f"load-{digest}"
    if program.exists():
        return program
    command = compiler()
    if command is None:
        raise CompilerMissing("the load generator needs a C compiler: install cc (gcc or clang), or set CC")
    program.parent.mkdir(parents=True, exist_ok=True)
    # A new name, then a rename: two runs that compile at once do not meet in one file.
    made = program.with_name(f"{program.name}-{os.getpid()}")
    try:
        done = subprocess.run(
            [command, *FLAGS, "-o", str(made), str(SOURCE)],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
            check=False,
        )
        if done.returncode:
            raise CompilationFailed(f"{command} refused {SOURCE.name}:\n{done.stderr.strip()}")
        made.replace(program)
    finally:
        made.unlink(missing_ok=True)
    return program
