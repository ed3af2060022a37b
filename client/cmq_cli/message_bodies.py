"""Bodies, headers and lines of messages to send, from the options of a command."""

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cmq_cli.exitcodes import CommandFailed, ExitCode


def parse_headers(pairs: Iterable[str] | None) -> dict[str, str] | None:
    """Parse headers of the form ``name=value``; None = no headers.

    Raises:
        CommandFailed: a header has another form.
    """
    headers: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CommandFailed(f"--header is {pair!r}; write name=value", ExitCode.USAGE)
        headers[name] = value
    return headers or None


def read_body(body: str | None, file: Path | None) -> bytes:
    """Return the body: the argument, or the content of the file.

    Raises:
        CommandFailed: the file cannot be read.
    """
    if file is None:
        # Exactly the bytes from the shell, valid UTF-8 or not.
        return os.fsencode(body or "")
    with opened(file) as stream:
        return stream.read()


@contextmanager
def opened(file: Path | None) -> Generator[BinaryIO]:
    """Open a file; None and ``-`` are standard input.

    Raises:
        CommandFailed: the file cannot be read.
    """
    if file is None or str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}") from error
    with stream:
        yield stream
