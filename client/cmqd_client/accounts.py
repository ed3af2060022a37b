"""Accounts and their keys, administered by the account ``admin``.

An account manages its own keys; the account ``admin`` creates accounts and manages the keys of all. The rules of
:mod:`cmqd_client.queue` about durability, time limits and repeats apply here too.
"""

from datetime import datetime

import msgspec

from cmqd_client.channel import Channel
from cmqd_client.durations import to_datetime
from cmqd_client.results import Done, Listing
from cmqd_client.retry import Repeat
from cmqd_protocol import messages as wire


class AccessKey(msgspec.Struct, frozen=True):
    """A key pair. The server returns the secret part only when it creates the key."""

    secret_id: str
    account: str
    enabled: bool
    create_time: datetime
    secret_key: str | None = None
    """The secret part. Only :meth:`Accounts.create_key` and :meth:`Accounts.create` return it, so keep it."""
    request_id: int | None = None
    """Number of the request that created the key; None in a listing, which has a number itself."""

    def __repr__(self) -> str:
        shown = "" if self.secret_key is None else ", secret_key=..."
        return f"AccessKey({self.secret_id!r}, account={self.account!r}, enabled={self.enabled}{shown})"


class AccountQueue(msgspec.Struct, frozen=True):
    """A queue and its account."""

    account: str
    queue: str


class AccountQueuePage(msgspec.Struct, frozen=True):
    """Queues of all accounts."""

    queues: list[AccountQueue]
    next: AccountQueue | None
    """The last queue of this page, as ``after`` for the next page; None at the end."""
    request_id: int


class Accounts:
    """Administration of accounts and keys; get it as ``client.accounts``.

    In all methods ``account`` names the account of the key; None = the caller's own. Only ``admin`` can name other
    accounts: for other callers the methods raise ``PermissionDenied``, and ``AccountNotFound`` if the account does not
    exist.
    """

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def create(self, account: str) -> AccessKey:
        """Create an account with its first key. Only for ``admin``. Not repeated after a lost reply.

        Returns:
            The key, with its secret, which the server never shows again.

        Raises:
            AccountExists: an account of this name exists; no account was changed.
            OutcomeUnknown: the account may exist now. If so, create another key for the account.
        """
        return _new_key(await self._channel.ask(wire.CreateAccount, wire.KeyList, Repeat.ONCE, account))

    async def delete(self, account: str) -> Done:
        """Delete an account that has no queue, topic and schedule, with all its keys. Only for ``admin``. Not repeated
        after a lost reply.

        Raises:
            AccountNotEmpty: the account has queues, topics or schedules; ``details`` has their numbers.
            InvalidArgument: the account is ``admin``.
        """
        reply = await self._channel.ask(wire.DeleteAccount, wire.Done, Repeat.ONCE, account)
        return Done(reply.request_id)

    async def queues(
        self, *, search: str = "", after: "AccountQueue | None" = None, limit: int = 100
    ) -> "AccountQueuePage":
        """List the queues of all accounts, by account and name. Only for ``admin``.

        Args:
            search: only queues with this word in the name.
            after: start behind this queue: ``next`` of the previous page.
            limit: most queues of a page, 1-1,000. A page may have fewer, even none, before the end.
        """
        behind = after or AccountQueue("", "")
        reply = await self._channel.ask(
            wire.ListAllQueues, wire.AllQueues, Repeat.READ, search, behind.account, behind.queue, limit
        )
        return AccountQueuePage(
            [AccountQueue(account, name) for account, _, name in reply.queues],
            None if reply.next is None else AccountQueue(*reply.next),
            reply.request_id,
        )

    async def list(self) -> Listing[str]:
        """List the names of all accounts. Only for ``admin``."""
        reply = await self._channel.ask(wire.ListAccounts, wire.AccountList, Repeat.READ)
        return Listing(reply.accounts, reply.request_id)

    async def create_key(self, *, account: str | None = None) -> AccessKey:
        """Create a key pair. Not repeated after a lost reply.

        Returns:
            The key, with its secret, which the server never shows again.

        Raises:
            OutcomeUnknown: the account may have another key; ``keys`` lists the key, so the caller can delete it.
        """
        return _new_key(await self._channel.ask(wire.CreateKey, wire.KeyList, Repeat.ONCE, account))

    async def keys(self, *, account: str | None = None) -> Listing[AccessKey]:
        """List all keys of an account, without their secrets."""
        reply = await self._channel.ask(wire.ListKeys, wire.KeyList, Repeat.READ, account)
        return Listing(_keys(reply), reply.request_id)

    async def set_key_enabled(self, secret_id: str, enabled: bool, *, account: str | None = None) -> Done:
        """Enable or disable a key. Repeated after a lost reply.

        Raises:
            KeyNotFound: the account has no key of this id.
            LastKey: the key is the account's last enabled key.
        """
        reply = await self._channel.ask(wire.SetKeyEnabled, wire.Done, Repeat.SAFE, secret_id, enabled, account)
        return Done(reply.request_id)

    async def delete_key(self, secret_id: str, *, account: str | None = None) -> Done:
        """Delete a key. Not repeated after a lost reply.

        Raises:
            KeyNotFound: the account has no key of this id.
            LastKey: the key is the account's last enabled key.
        """
        reply = await self._channel.ask(wire.DeleteKey, wire.Done, Repeat.ONCE, secret_id, account)
        return Done(reply.request_id)


def _new_key(reply: wire.KeyList) -> AccessKey:
    return msgspec.structs.replace(_keys(reply)[0], request_id=reply.request_id)


def _keys(reply: wire.KeyList) -> "list[AccessKey]":
    return [
        AccessKey(key.secret_id, key.account, key.enabled, to_datetime(key.created_ms), key.secret_key)
        for key in reply.keys
    ]
