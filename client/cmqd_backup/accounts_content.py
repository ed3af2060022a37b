"""The accounts of a log: an accounts file, and its keys without their secrets for the report of a restore."""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from cmqd_backup.holds import Held
from cmqd_backup.moments import shown_time
from cmqd_backup.refusals import Refused

ACCOUNTS_FILE: Final = "accounts.json"
"""Name of the file below the data folder."""


class _Key(msgspec.Struct):
    secret_id: str
    account: str
    created_ms: int
    enabled: bool = True


class _Document(msgspec.Struct):
    keys: list[_Key]


class _Sealed(msgspec.Struct):
    """The file of version 2 and later: the checksum is of the bytes of ``content``."""

    sha256: str
    content: msgspec.Raw


def accounts_of(held: Held, config: Path | None) -> bytes:
    """Return the accounts of this moment, in the form of an accounts file. Raises Refused, OSError."""
    is_cache = held.manifest.cache_of is not None
    content = _of_engine(config) if is_cache and config is not None else _of_folder(held.folder)
    # Content that a restore would refuse is refused now.
    keys_in(content)
    return content


def _of_folder(folder: Path) -> bytes:
    try:
        return (folder / ACCOUNTS_FILE).read_bytes()
    except FileNotFoundError:
        raise Refused(f"{folder} has no {ACCOUNTS_FILE}; --without-secrets leaves the file out") from None


def _of_engine(config: Path) -> bytes:
    """Ask the server's own command for the accounts in the engine: this program knows no engine."""
    # As this program was started: without -P a module of the working directory would come before the library's.
    python = [sys.executable, "-P"] if sys.flags.safe_path else [sys.executable]
    with tempfile.TemporaryDirectory(prefix="cmqd-backup-") as folder:
        file = Path(folder) / ACCOUNTS_FILE
        command = [*python, "-m", "cmqd", "ha", "accounts", str(file), "--config", str(config)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise Refused(f"the accounts in the engine cannot be read: {(ended.stdout + ended.stderr).strip()}")
        return file.read_bytes()


def keys_in(content: bytes) -> list[str]:
    """Return a line for each key. Raises Refused: the content is no accounts file, or is damaged."""
    try:
        sealed = msgspec.json.decode(content, type=_Sealed)
        document = msgspec.json.decode(sealed.content, type=_Document)
    except msgspec.MsgspecError:
        # Neither the error nor its cause may be shown: both quote the file, which has secrets.
        raise Refused("the accounts file cannot be read, or has no checksum: a start of its broker adds one") from None
    if hashlib.sha256(sealed.content).hexdigest() != sealed.sha256:
        raise Refused("the accounts file does not match its checksum: it was edited, or is damaged")
    return [
        f"{key.secret_id} of {key.account}, made {shown_time(key.created_ms)}{'' if key.enabled else ', disabled'}"
        for key in document.keys
    ]
