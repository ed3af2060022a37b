"""The context file of the administrator: address and key, as ``cmq`` and the clients read them.

A broker of its own writes the file when it listens. Of a pair, every broker writes the file, a standby too, with the
addresses of both: a command then reaches the leader before, during and after a takeover. Each broker writes into its
data folder, or, with the setting ``context_file``, to a path that brokers of a machine may share; then there is a
single file, whichever broker leads.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from cmqd.engine.interface import StoredAccounts
from cmqd.log.values import EngineStatus
from cmqd.server.access.accounts import Accounts, first_key_of
from cmqd.server.access.accounts_file import ADMIN, Key
from cmqd.server.access.private_files import read_private, write_private
from cmqd.server.broker_logger import get_logger
from cmqd.server.part import part
from cmqd.server.process.advertised_address import MAX_ADDRESSES, addresses_of_pair
from cmqd.server.redundancy.engine_accounts import addresses_in as leader_addresses
from cmqd.server.redundancy.engine_accounts import decode_accounts
from cmqd.settings import Settings

_log = get_logger()

CONTEXT_FILE_NAME: Final = "admin.context.toml"
LOOK_SECONDS: Final = 1.0


def context_path(settings: Settings) -> Path:
    """Return the path of the context file."""
    return settings.context_file or settings.data / CONTEXT_FILE_NAME


def reachable_address(host: str, port: int) -> str:
    """Return the address at which a client on this machine reaches a listening socket."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"


def write_context(path: Path, key: Key, addresses: Sequence[str], *, tls: bool) -> Path:
    """Write the file, unless it has this content already; returns its path. Raises OSError."""
    # An imported secret may have characters that end a part of a URL.
    pair = f"{key.secret_id}:{quote(key.secret_key, safe='')}"
    url = f"cmq://{pair}@{','.join(addresses)}{'?tls=1' if tls else ''}"
    text = f'current = "{key.account}"\n\n[contexts.{key.account}]\nurl = "{url}"\n'
    if read_private(path) != text.encode():
        write_private(path, text.encode())
    return path


def addresses_in(path: Path, key: Key) -> list[str]:
    """Return the addresses of a context file with this key; empty for another key, another content and no file."""
    text = b""
    with contextlib.suppress(OSError):
        text = read_private(path) or b""
    found = re.search(rf'"cmq://{re.escape(key.secret_id)}:[^@"]*@([^"?/]+)', text.decode(errors="replace"))
    return [] if found is None else found[1].split(",")


class LogOfPair(Protocol):
    """The log, as far as the context needs it; see ``StorageProcessLog``."""

    accounts: StoredAccounts | None
    engine_status: EngineStatus


@part
class PairContext:
    """Keeps the context file of a broker of a pair up to date; see the module."""

    path: Path
    tls: bool
    shard: int
    own_address: str
    log: LogOfPair
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        self._accounts: Accounts | None = None
        self._stored: StoredAccounts | None = None
        self._content: tuple[Key, list[str]] | None = None
        """Key and addresses in the file; None before this broker has written the file."""
        self._key: Key | None = None
        """Key of the administrator in ``_stored``."""

    def lead(self, accounts: Accounts) -> Path:
        """Write the file of a leader; returns its path. A takeover does not fail for the file."""
        self._accounts = accounts
        content = self._known()
        assert content is not None
        self._write(content)
        return self.path

    async def run(self) -> None:
        """Look every second, until the task is cancelled. The file is written beside the loop: a disk may hang."""
        while True:
            content = self._known()
            if content is not None and content != self._content:
                await asyncio.to_thread(self._write, content)
            await self.sleep(LOOK_SECONDS)

    def _known(self) -> tuple[Key, list[str]] | None:
        """Return key and addresses as known now; None while this broker knows no accounts."""
        if self._accounts is not None:
            leader, key = [self.own_address], self._accounts.first_key(ADMIN)
        elif (stored := self.log.accounts) is not None:
            if stored is not self._stored:
                self._stored, self._key = stored, first_key_of(decode_accounts(stored), ADMIN)
            leader, key = leader_addresses(stored), self._key
        else:
            return None
        assert key is not None
        return key, addresses_of_pair(leader, self.own_address, self.log.engine_status.view, self.shard)

    def _write(self, content: tuple[Key, list[str]]) -> None:
        key, known = content
        # Addresses of the file stay behind the known ones: a broker that is away now may lead tomorrow.
        merged = list(dict.fromkeys([*known, *addresses_in(self.path, key)]))[:MAX_ADDRESSES]
        # Also after a failure, which is then told once.
        self._content = content
        try:
            write_context(self.path, key, merged, tls=self.tls)
        except OSError as failure:
            _log.warning("context_not_written", path=str(self.path), reason=str(failure))
