"""The commands ``cmqd accounts``: examine, repair and extend the accounts file of a stopped broker.

``check`` only reads, and may run beside a broker. The other commands hold the lock of the folder, so that no broker
writes the file meanwhile.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from cmqd.exit_codes import ExitCode
from cmqd.log.log_errors import LogError
from cmqd.server.access.accounts import MAX_KEYS
from cmqd.server.access.accounts_file import (
    ADMIN,
    AccountsFile,
    AccountsFileError,
    Decoded,
    Document,
    new_document,
    new_key,
)
from cmqd.server.access.private_files import read_private
from cmqd.server.loop.clock import wall_ms
from cmqd_segment.manifest import ManifestError, read_manifest
from cmqd_segment.newer import NewerFormatError

Print = Callable[[str], None]
Lock = Callable[[Path], AbstractContextManager[None]]
"""Holds the lock of a data folder; LogError if a broker works on it."""


class _Refused(Exception):
    """The command changes no file; the text gives the reason."""


def check(folder: Path, out: Print) -> int:
    """Print the contents of the file and its copy, and their differences; 0 if a server would start with the file."""
    try:
        _require_own_accounts(folder)
        return _check(AccountsFile(folder), out)
    except (_Refused, OSError) as failure:
        out(str(failure))
        return ExitCode.CANNOT_OPEN


def _check(file: AccountsFile, out: Print) -> int:
    decoded = _describe(file.path, out)
    copy = _describe(file.copy, out)
    if decoded is not None:
        for fault in decoded.document.faults():
            out(f"  {fault}")
        if copy is not None and copy.is_sealed:
            for difference in _differences(decoded.document, copy.document):
                out(f"  beside the copy: {difference}")
    try:
        document = file.read()
    except AccountsFileError as fault:
        out(str(fault))
        return ExitCode.CANNOT_OPEN
    if document is None:
        out("a server starts without the file only if the log holds no queue and no topic")
    return ExitCode.OK if document is not None else ExitCode.CANNOT_OPEN


def repair(folder: Path, out: Print, lock: Lock, *, from_copy: bool) -> int:
    """Give a file that was edited by hand its checksum again, or put the copy in its place."""
    return _with_lock(folder, out, lock, lambda: _repair(AccountsFile(folder), out, from_copy=from_copy))


def make_key(folder: Path, out: Print, lock: Lock, account: str) -> int:
    """Add a key to an account and show it; for an admin without a key."""
    return _with_lock(folder, out, lock, lambda: _make_key(AccountsFile(folder), out, account))


def _repair(file: AccountsFile, out: Print, *, from_copy: bool) -> None:
    source = file.copy if from_copy else file.path
    content = read_private(source)
    if content is None:
        raise _Refused(f"{source} is missing" + ("" if from_copy else "; --from-copy puts the copy in its place"))
    try:
        decoded = file.decode(content)
    except AccountsFileError as fault:
        raise _Refused(
            f"{source} {fault}" + ("" if from_copy else "; --from-copy puts the copy in its place")
        ) from None
    if from_copy and not decoded.is_sealed:
        raise _Refused(f"{source} does not match its checksum either")
    if faults := decoded.document.faults():
        raise _Refused("\n".join([f"{source} cannot be used as it is:", *(f"  {fault}" for fault in faults)]))
    for path in (file.path, file.copy):
        if read_private(path) not in (None, content):
            out(f"kept the other content as {file.put_aside(path)}")
    file.write(decoded.document)
    out(f"wrote {file.path} with {_sizes(decoded.document)}, and its copy {file.copy}")


def _make_key(file: AccountsFile, out: Print, account: str) -> None:
    now_ms = wall_ms()
    document = _read_for_new_key(file, out)
    if document is None:
        if account != ADMIN:
            raise _Refused(f"{file.path} is missing; create it with 'cmqd accounts new-key {ADMIN}'")
        document = new_document(now_ms)
        (key,) = document.keys
        out(f"{file.path} was missing: the receipt handles of messages in flight are void, and accounts other than")
        out(f"{ADMIN!r} have to be created again, by the same names, to reach their queues")
    else:
        if account not in document.accounts:
            raise _Refused(
                f"account {account!r} does not exist; the accounts are {', '.join(sorted(document.accounts))}"
            )
        if sum(key.account == account for key in document.keys) >= MAX_KEYS:
            raise _Refused(f"account {account!r} has reached its limit of {MAX_KEYS} keys")
        key = new_key(account, now_ms)
        document = msgspec.structs.replace(document, keys=[*document.keys, key])
    file.write(document)
    out(f"new key of account {account!r}, shown once:")
    out(f"  SecretId   {key.secret_id}")
    out(f"  SecretKey  {key.secret_key}")


def _read_for_new_key(file: AccountsFile, out: Print) -> Document | None:
    """Return the content to add a key to; an account without a usable key is the reason for this command."""
    content = read_private(file.path)
    if content is None:
        if file.copy_version():
            raise _Refused(f"{file.path} is missing, its copy {file.copy} is not: 'cmqd accounts repair --from-copy'")
        if file.copy.exists():
            out(f"kept the copy, which cannot be used, as {file.put_aside(file.copy)}")
        return None
    decoded = file.decode(content)
    if not decoded.is_sealed:
        raise _Refused(f"{file.path} does not match its checksum: 'cmqd accounts repair' first")
    return decoded.document


def _with_lock(folder: Path, out: Print, lock: Lock, work: Callable[[], None]) -> int:
    try:
        if not folder.is_dir():
            raise _Refused(f"{folder} is not a data folder")
        with lock(folder):
            # Under the lock: an import could mark the folder in between.
            _require_own_accounts(folder)
            work()
    except LogError as refusal:
        out(f"{refusal}; stop the broker first")
        return ExitCode.CANNOT_OPEN
    except AccountsFileError as fault:
        out(f"{folder}: accounts.json {fault}")
        return ExitCode.CANNOT_OPEN
    except (_Refused, OSError) as refusal:
        out(str(refusal))
        return ExitCode.CANNOT_OPEN
    return ExitCode.OK


def _require_own_accounts(folder: Path) -> None:
    """Refuse a cache: its broker reads the accounts of the engine."""
    try:
        cache_of = read_manifest(folder).cache_of
    except (FileNotFoundError, ManifestError, NewerFormatError):
        # A lost manifest is no reason to leave an admin without a key.
        return
    if cache_of is not None:
        raise _Refused(
            f"{folder} is a cache of {cache_of}: the engine has the accounts, accounts.json is not used. Nothing was"
            " changed. Change keys at the leader with 'cmq key'. If no admin key is left, stop all brokers, and"
            " use 'cmqd ha export', then 'cmqd accounts new-key', then 'cmqd ha import' into an empty engine"
        )


def _describe(path: Path, out: Print) -> Decoded | None:
    content = read_private(path)
    if content is None:
        out(f"{path}: missing")
        return None
    try:
        decoded = AccountsFile.decode(content)
    except AccountsFileError as fault:
        out(f"{path}: {fault}")
        return None
    seal = "no checksum" if decoded.version == 1 else "checksum correct" if decoded.is_sealed else "checksum WRONG"
    out(f"{path}: version {decoded.version}, {seal}, {_sizes(decoded.document)}")
    return decoded


def _sizes(document: Document) -> str:
    return (
        f"{len(document.accounts)} accounts, {len(document.keys)} keys,"
        f" {len(document.subscription_secrets)} secrets of subscriptions"
    )


def _differences(document: Document, copy: Document) -> list[str]:
    """Say how a file differs from its copy, without showing a secret."""
    differences: list[str] = []
    if document.handle_key != copy.handle_key:
        differences.append("another handle_key: receipt handles that were given out before would be refused")
    differences += [
        f"account {account!r} is {'new' if account in document.accounts else 'missing'}"
        for account in sorted(document.accounts.keys() ^ copy.accounts.keys())
    ]
    keys = {key.secret_id: key for key in document.keys}
    copied = {key.secret_id: key for key in copy.keys}
    for secret_id in sorted(keys.keys() | copied.keys()):
        if secret_id not in copied or secret_id not in keys:
            differences.append(f"key {secret_id} is {'new' if secret_id in keys else 'missing'}")
        elif keys[secret_id] != copied[secret_id]:
            differences.append(f"key {secret_id} was changed")
    if document.subscription_secrets != copy.subscription_secrets:
        differences.append("secrets of subscriptions were changed")
    return differences
