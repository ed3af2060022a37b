"""The accounts file: its content, its versions, its checksum and its copy.

    accounts.json      the accounts, their keys, and every other secret of the broker
    accounts.json.1    a copy of the same content, written after each change and at each start
    admin.context.toml see ``context_file``

A file of version 2 is a JSON object with ``version``, ``sha256`` and ``content``. The checksum covers the bytes of the
value of ``content`` exactly as they stand in the file, so that a damaged byte is found whether or not the JSON around
it still makes sense. A file of version 1 is the content itself, with ``version`` among its keys and no checksum. It is
read once: the next start or change writes a file with a checksum. A file of version 1 beside a copy with a checksum was
written before that, or lost its checksum, and is refused.

Version 3 has the form of version 2, and at least one of its keys is restricted to roles or names. A server that knows
no roles would take a restricted key for a root key, so such a file has a version that such a server refuses (decision
0151). Without a restricted key the file has version 2, and older servers still open the folder.

The file is written before its copy. A crash in between leaves a copy that is one change behind; the other order would
leave a change in the copy that was never answered, and restoring the copy would make that change.
"""

import contextlib
import hashlib
import re
import secrets
import string
from pathlib import Path
from typing import Final

import msgspec

from cmqd.core.domain_errors import InvalidArgument
from cmqd.server.access.permissions import checked_names, checked_roles, is_unrestricted
from cmqd.server.access.private_files import read_private, write_private
from cmqd.server.broker_logger import get_logger
from cmqd_types.keys import EVERY_NAME, EVERY_ROLE, Role

_log = get_logger()

ADMIN: Final = "admin"
FILE_NAME: Final = "accounts.json"
COPY_NAME: Final = "accounts.json.1"
FORMAT_VERSION: Final = 3
"""The newest version that this server reads; see ``version_of`` for the version that it writes."""
SEALED_VERSION: Final = 2
"""The first version with a checksum."""
ACCOUNT_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

_ID_ALPHABET = string.ascii_letters + string.digits


class AccountsFileError(Exception):
    """The accounts file is unusable as it is; the server does not start rather than forget its keys."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key pair."""

    secret_id: str
    secret_key: str
    account: str
    created_ms: int
    enabled: bool = True
    roles: tuple[Role, ...] = EVERY_ROLE
    names: tuple[str, ...] = EVERY_NAME
    """Patterns of the names of queues, topics and schedules that the key may use; see ``permissions``."""

    @property
    def is_unrestricted(self) -> bool:
        """True if the key has every role in its account, and every name."""
        return is_unrestricted(self.roles, self.names)

    @property
    def manages_keys(self) -> bool:
        """True if the key is enabled and may change the keys of its account."""
        return self.enabled and Role.ADMIN in self.roles

    def __repr__(self) -> str:
        """Without the secret, which must not reach a log by accident."""
        return f"<Key {self.secret_id} of {self.account}{'' if self.enabled else ', disabled'}>"


class SubscriptionSecret(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The secret that signs the posts of a subscription: ``whsec_`` and base64, as subscribers get it."""

    secret: str
    previous: str | None = None
    """The secret before this one, valid until ``previous_until_ms``."""
    previous_until_ms: int = 0

    def __repr__(self) -> str:
        """Without the secrets."""
        return f"<SubscriptionSecret{'' if self.previous is None else f', another until {self.previous_until_ms}'}>"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    handle_key: tuple[int, int, int, int]
    """Key of the receipt-handle permutation."""
    accounts: dict[str, int]
    """Creation time in ms by name."""
    keys: list[Key]
    subscription_secrets: dict[int, SubscriptionSecret] = {}
    """By id of the subscription."""
    gateway_key: Key | msgspec.UnsetType = msgspec.UNSET
    """Key of the HTTP gateways that the brokers of a log with redundancy start; see ``Accounts.gateway_key``. Beside
    ``keys``: no list, limit or change of keys knows it."""

    def __repr__(self) -> str:
        """Without the secrets."""
        return f"<Document accounts={len(self.accounts)} keys={len(self.keys)}>"

    def faults(self) -> list[str]:
        """Return the rules that the content breaks, a sentence per rule; a server writes content without faults."""
        faults: list[str] = []
        if ADMIN not in self.accounts:
            faults.append(f"account {ADMIN!r} is missing")
        names: dict[str, str] = {}
        for account in self.accounts:
            if ACCOUNT_NAME.fullmatch(account) is None:
                faults.append(f"account name {account!r} is not 1 to 64 ASCII letters, digits, '-' or '_'")
            if (other := names.setdefault(account.lower(), account)) != account:
                faults.append(f"accounts {other!r} and {account!r} differ only in case")
        managed = {key.account for key in self.keys if key.manages_keys}
        faults += [
            f"account {account!r} has no enabled key with role {Role.ADMIN}"
            for account in self.accounts
            if account not in managed
        ]
        ids: set[str] = set()
        for key in self.keys:
            if key.account not in self.accounts:
                faults.append(f"key {key.secret_id!r} belongs to account {key.account!r}, which is missing")
            if key.secret_id in ids:
                faults.append(f"two keys have the id {key.secret_id!r}")
            ids.add(key.secret_id)
            if not key.secret_id or not key.secret_key:
                faults.append(f"key {key.secret_id!r} has an empty id or secret")
            try:
                checked_roles(key.roles)
                checked_names(key.names)
            except InvalidArgument as fault:
                faults.append(f"key {key.secret_id!r}: {fault.text}")
            if Role.GATEWAY in key.roles and key.account != ADMIN:
                faults.append(f"key {key.secret_id!r} of account {key.account!r} has role {Role.GATEWAY}")
        if not all(0 <= word < 1 << 64 for word in self.handle_key):
            faults.append("handle_key is not four whole numbers of 64 bits")
        return faults


class Decoded(msgspec.Struct, frozen=True):
    """A file that was read."""

    document: Document
    version: int
    is_sealed: bool
    """The checksum is right, or the version has none."""


class _Version(msgspec.Struct):
    version: int


class _Sealed(msgspec.Struct):
    version: int
    sha256: str
    content: msgspec.Raw


class AccountsFile:
    """The file of a data folder; only the holder of the folder's lock may write it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self.copy = folder / COPY_NAME

    def read(self) -> Document | None:
        """Return the content, or None if there is no file.

        Raises:
            AccountsFileError: the file is damaged, was edited by hand, or is of a newer version.
            OSError: the file cannot be read.
        """
        content = read_private(self.path)
        if content is None:
            return None
        try:
            decoded = self.decode(content)
            if not decoded.is_sealed:
                raise AccountsFileError("does not match its checksum: it was edited by hand, or is damaged")
            if decoded.version < SEALED_VERSION <= self.copy_version():
                raise AccountsFileError(
                    f"has version {decoded.version}, which has no checksum, although it had one before"
                )
        except AccountsFileError as fault:
            raise AccountsFileError(f"{self.path} {fault}. {self._way_out()}") from None
        if not any(key.account == ADMIN and key.manages_keys for key in decoded.document.keys):
            raise AccountsFileError(
                f"{self.path}: account {ADMIN!r} has no enabled key with role {Role.ADMIN}; make one with"
                f" 'cmqd accounts new-key {ADMIN} --data {self.path.parent}'"
            )
        return decoded.document

    def write(self, document: Document) -> None:
        """Replace the file; when this returns, the new content is on disk. The copy follows.

        A copy that cannot be written is logged and does not undo the change, which is on disk already; the next change
        or start writes the copy again.

        Raises:
            OSError: the file was not replaced.
        """
        content = encode(document)
        write_private(self.path, content)
        self._write_copy(content)

    def renew(self, document: Document) -> None:
        """After a start: raise the file to this version, and bring the copy up to date. A disk without room for
        either is logged, because a full disk must not keep a broker from starting.
        """
        content = read_private(self.path)
        if content is None or self.decode(content).version < SEALED_VERSION:
            _log.info("accounts_file_raised", version=version_of(document), text="it has a checksum from now on")
            try:
                self.write(document)
            except OSError as failure:
                _log.warning("accounts_file_not_raised", reason=str(failure))
        elif read_private(self.copy) != content:
            self._write_copy(content)

    def put_aside(self, path: Path) -> Path:
        """Keep a file or a copy under a name that no change overwrites; returns its new path."""
        number = 0
        while (target := self.path.with_name(f"{FILE_NAME}.old.{number}")).exists():
            number += 1
        path.rename(target)
        return target

    def remove_leftovers(self) -> None:
        """Remove the temporary files of a crash in the middle of a write: they hold secrets."""
        for path in self.path.parent.glob(f".{FILE_NAME}.*"):
            with contextlib.suppress(OSError):
                path.unlink()

    @staticmethod
    def decode(content: bytes) -> Decoded:
        """Read the bytes of a file of any known version, with a right or a wrong checksum.

        Raises:
            AccountsFileError: the bytes are unreadable; the text gives the reason and continues the file's name.
        """
        try:
            version = msgspec.json.decode(content, type=_Version).version
            if version > FORMAT_VERSION:
                raise AccountsFileError(
                    f"has version {version} and this cmqd knows up to {FORMAT_VERSION}: use a newer cmqd"
                )
            if version == 1:
                return Decoded(msgspec.json.decode(content, type=Document), 1, is_sealed=True)
            sealed = msgspec.json.decode(content, type=_Sealed)
            is_sealed = hashlib.sha256(bytes(sealed.content)).hexdigest() == sealed.sha256
            document = msgspec.json.decode(sealed.content, type=Document)
            # The checksum does not cover the version. A changed version would show restricted keys to a server that
            # does not know roles.
            return Decoded(document, version, is_sealed and version == version_of(document))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # Neither the error's cause nor its object may reach a log: both hold the file's bytes.
            raise AccountsFileError(f"is damaged ({error})") from None

    def copy_version(self) -> int:
        """Return the version of the copy, 0 without a sound one."""
        content = read_private(self.copy)
        try:
            decoded = None if content is None else self.decode(content)
        except AccountsFileError:
            return 0
        return decoded.version if decoded is not None and decoded.is_sealed else 0

    def _way_out(self) -> str:
        """Say how to go on after a refusal."""
        command = f"--data {self.path.parent}"
        if self.copy_version():
            return (
                f"{self.copy} is the last good copy: 'cmqd accounts check {command}' compares the two,"
                f" 'cmqd accounts repair --from-copy {command}' puts the copy back, and"
                f" 'cmqd accounts repair {command}' keeps what was edited by hand"
            )
        return (
            f"No copy can be used ({self.copy}); 'cmqd accounts check {command}' shows the readable parts. If no"
            f" account can be recovered, move {self.path.name} away; 'cmqd accounts new-key {ADMIN} {command}' then"
            f" creates a new file"
        )

    def _write_copy(self, content: bytes) -> None:
        try:
            write_private(self.copy, content)
        except OSError as failure:
            _log.warning("accounts_copy_not_written", path=str(self.copy), reason=str(failure))


def version_of(document: Document) -> int:
    """Return the version of the file with this content: the oldest that no reader of that version misreads."""
    return SEALED_VERSION if all(key.is_unrestricted for key in document.keys) else FORMAT_VERSION


def encode(document: Document) -> bytes:
    """Return the bytes of the file with this content."""
    content = msgspec.json.format(msgspec.json.encode(document), indent=2)
    digest = hashlib.sha256(content).hexdigest()
    return b'{"version": %d,\n "sha256": "%s",\n "content": %s}\n' % (version_of(document), digest.encode(), content)


def new_document(now_ms: int) -> Document:
    """Make the content of a new folder: the account ``admin`` with its first key, and a new handle key."""
    return Document(
        handle_key=(secrets.randbits(64), secrets.randbits(64), secrets.randbits(64), secrets.randbits(64)),
        accounts={ADMIN: now_ms},
        keys=[new_key(ADMIN, now_ms)],
    )


def new_key(
    account: str, now_ms: int, roles: tuple[Role, ...] = EVERY_ROLE, names: tuple[str, ...] = EVERY_NAME
) -> Key:
    """Make a key pair, unrestricted by default."""
    return Key(
        secret_id="AKID" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(32)),
        secret_key=secrets.token_urlsafe(32),
        account=account,
        created_ms=now_ms,
        roles=roles,
        names=names,
    )
