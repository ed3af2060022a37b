"""Requests to the fork server, with few imports: a forked command makes one at each start."""

import json
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

STATUS = struct.Struct("i")
"""Answers to a request: the process id, and later the exit code."""


def request_text(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    numbers: Sequence[int],
    *,
    searches_folder: bool = True,
    leads: bool = False,
) -> bytes:
    """Return a request for the folder and the mask of this process.

    Args:
        module: the program, with its arguments and its environment.
        arguments: see ``module``.
        environment: see ``module``.
        numbers: the descriptors in the child, standard streams included.
        searches_folder: the working directory is searched for modules, as without ``-P``.
        leads: the child has a session of its own.
    """
    mask = os.umask(0o022)
    os.umask(mask)
    wanted: dict[str, Any] = {
        "module": module,
        "arguments": arguments,
        "environment": dict(environment),
        "folder": os.getcwd(),
        "mask": mask,
        "numbers": numbers,
        "searches_folder": searches_folder,
        "leads": leads,
    }
    return json.dumps(wanted).encode()
