"""Files with a key pair: a secret in an argument would be in the list of processes and in the history of the shell."""

import os
import stat
import sys
from pathlib import Path

from cmq_cli.exitcodes import CommandFailed, ExitCode

_STANDARD_INPUT = Path("-")


def read_key(key_file: Path) -> tuple[str, str]:
    """Return id and secret of a key.

    Raises:
        CommandFailed: the file can be read by other users, or has no key.
        OSError: the file cannot be read.
    """
    if key_file == _STANDARD_INPUT:
        text = sys.stdin.readline()
    else:
        if os.name == "posix" and stat.S_IMODE(key_file.stat().st_mode) & 0o077:
            raise CommandFailed(f"{key_file} can be read by other users; run: chmod 600 {key_file}", ExitCode.REFUSED)
        text = key_file.read_text()
    secret_id, colon, secret_key = text.strip().partition(":")
    if not colon or not secret_id or not secret_key:
        # The text is not shown: it may be the secret alone.
        raise CommandFailed("the key file has no line SECRET_ID:SECRET_KEY", ExitCode.USAGE)
    return secret_id, secret_key
