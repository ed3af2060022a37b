"""The accounts of a broker with a log in an engine, and the address of the leader beside the accounts.

The engine keeps accounts and addresses as a single versioned value: the content of the accounts file
(``accounts_file``), and the addresses of the leader. A change names the version of the replaced value, so that no
change of a different broker is lost. A standby reads the value to name the leader to its clients.
"""

import asyncio
from typing import Protocol

import msgspec

from cmqd.engine.interface import StoredAccounts
from cmqd.server.access.accounts_file import AccountsFile, AccountsFileError, Document, encode


class _Content(msgspec.Struct, frozen=True):
    addresses: list[str]
    accounts: bytes
    """The bytes of an accounts file, with its checksum."""


class AccountsStore(Protocol):
    """The log's calls for accounts; see ``StorageProcessLog``."""

    async def load_accounts(self) -> StoredAccounts | None:
        """Read the accounts."""
        ...

    async def store_accounts(self, data: bytes, *, expected_version: int) -> int:
        """Replace the accounts; return their version."""
        ...


class EngineAccounts:
    """Reads and writes the accounts of the leader; see the module. Made once this broker leads."""

    def __init__(self, store: AccountsStore, address: str) -> None:
        """Take the log, and the address of this broker, for the refusals of standbys."""
        self._store = store
        self._addresses = [address]
        self._lock = asyncio.Lock()
        self._version = 0
        self._content = _Content([], b"")

    async def load(self) -> Document | None:
        """Read the accounts; None if the engine has none.

        Raises:
            AccountsFileError: the accounts are damaged, or written by a newer version.
            LogFailed: the log has failed.
        """
        stored = await self._store.load_accounts()
        if stored is None:
            return None
        self._version, self._content = stored.version, _decode(stored)
        return decode_accounts(stored)

    async def write(self, document: Document) -> None:
        """Replace the accounts; on return the new accounts are durable. Raises AccountsConflict, LogFailed."""
        async with self._lock:
            await self._replace(_Content(self._addresses, encode(document)))

    async def publish(self) -> None:
        """Write the address of this broker beside the accounts. Raises as ``write``."""
        async with self._lock:
            if self._content.addresses != self._addresses:
                await self._replace(_Content(self._addresses, self._content.accounts))

    async def _replace(self, content: _Content) -> None:
        data = msgspec.msgpack.encode(content)
        self._version = await self._store.store_accounts(data, expected_version=self._version)
        self._content = content


def encode_accounts(document: Document) -> bytes:
    """Return the value for the engine: the accounts of a log without a leader."""
    return msgspec.msgpack.encode(_Content([], encode(document)))


def decode_accounts(stored: StoredAccounts) -> Document:
    """Return the accounts that the engine keeps. Raises AccountsFileError."""
    content = _decode(stored)
    try:
        decoded = AccountsFile.decode(content.accounts)
        if not decoded.is_sealed:
            raise AccountsFileError("do not match their checksum")
    except AccountsFileError as fault:
        raise AccountsFileError(f"the accounts in the engine {fault}") from None
    return decoded.document


def addresses_in(stored: StoredAccounts | None) -> list[str]:
    """Return the known addresses of the leader."""
    return [] if stored is None else _decode(stored).addresses


def _decode(stored: StoredAccounts) -> _Content:
    try:
        return msgspec.msgpack.decode(stored.data, type=_Content)
    except msgspec.MsgspecError as error:
        # Without the cause: the text of the cause may hold secrets.
        raise AccountsFileError(f"the accounts in the engine cannot be read ({error})") from None
