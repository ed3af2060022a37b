"""The name of a client, by which the server's lists and the history of messages show it."""

import os
import re
import socket
import sys
from typing import Final

from cmqd_types.actors import MAX_CLIENT_NAME, NAME_PATTERN

_NAME: Final = re.compile(NAME_PATTERN)
_WITHOUT_MODULE: Final = ("", "-c", "-m")
"""``sys.argv[0]`` of a program that is no file."""
_PACKAGE: Final = "__main__.py"


def default_name(program: str | None = None) -> str:
    """Return the program and the host, such as ``worker@web-3``; without a process id, so that a restart keeps it.

    Args:
        program: name of the program; None = the file or package that Python runs.
    """
    if program is None:
        path = sys.argv[0] if sys.argv else ""
        if os.path.basename(path) == _PACKAGE:
            path = os.path.dirname(path)
        program = "python" if path in _WITHOUT_MODULE else os.path.basename(path).removesuffix(".py")
    return fitting_name(f"{program}@{socket.gethostname()}")


def fitting_name(text: str) -> str:
    """Return a text as the name of a client: cut, and with ``?`` for each character that a name cannot have."""
    text = text[:MAX_CLIENT_NAME]
    if _NAME.search(text):
        return text
    return "".join(character if _NAME.search(character) else "?" for character in text)


def checked_name(name: str) -> str:
    """Return the name of a client that a program chose.

    Raises:
        ValueError: the name is too long, or has a character that a name cannot have.
    """
    if len(name) > MAX_CLIENT_NAME:
        raise ValueError(f"the client's name has {len(name)} characters; it may have {MAX_CLIENT_NAME}")
    if not _NAME.search(name):
        raise ValueError(f"the client's name {name!r} has a control character; it must be printable text")
    return name
