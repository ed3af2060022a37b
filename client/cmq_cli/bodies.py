"""The parts of a message, from the options of the command line."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from cmq_cli.exitcodes import CommandFailed, ExitCode


def parse_headers(pairs: Iterable[str] | None) -> dict[str, str] | None:
    """Headers given as ``name=value``; None if there are none.

    Raises:
        CommandFailed: one is not of this form.
    """
    headers: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CommandFailed(f"--header is {pair!r}; it must be name=value", ExitCode.USAGE)
        headers[name] = value
    return headers or None


def read_body(body: str | None, file: Path | None) -> bytes:
    """The body: given, or in a file (``-`` is standard input).

    Raises:
        CommandFailed: the file cannot be read.
    """
    if file is None:
        # Exactly the bytes that the shell gave, valid UTF-8 or not.
        return os.fsencode(body or "")
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as problem:
        raise CommandFailed(f"{file} cannot be read: {problem.strerror}") from problem
