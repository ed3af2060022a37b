"""Accounts and their keys, administered by the account ``admin``.

An account manages its own keys; the account ``admin`` creates accounts and manages the keys of all. A key with roles
may do some operations, on the names that match its patterns; a key without roles may do everything in its account. The
rules of :mod:`cmqd_client.queue` about durability, time limits and repeats apply here too.
"""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from cmqd_client.links.channel import Channel
from cmqd_client.links.key_changes import KeyWatch, OnKeyChange
from cmqd_client.replies.conversions import converted
from cmqd_client.results import Done, Listing
from cmqd_protocol import messages as wire
from cmqd_protocol import operations
from cmqd_types.keys import EVERY_NAME, EVERY_ROLE


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
    roles: tuple[str, ...] = EVERY_ROLE
    """Some of ``admin``, ``manage``, ``send``, ``consume``, ``read`` and ``gateway``."""
    names: tuple[str, ...] = EVERY_NAME
    """Patterns of the names of queues, topics and schedules that the key may use."""

    def __repr__(self) -> str:
        shown = "" if self.secret_key is None else ", secret_key=..."
        return (
            f"AccessKey({self.secret_id!r}, account={self.account!r}, enabled={self.enabled}, roles={self.roles}, "
            f"names={self.names}{shown})"
        )


class KeySecret(msgspec.Struct, frozen=True):
    """The secret of a key, as a gateway reads it."""

    secret_id: str
    secret_key: str
    account: str
    request_id: int
    enabled: bool = True
    """False: the broker refuses every client with this key."""

    def __repr__(self) -> str:
        return f"KeySecret({self.secret_id!r}, account={self.account!r}, enabled={self.enabled}, secret_key=...)"


class OwnKey(msgspec.Struct, frozen=True):
    """The key that a client connects with, without its secret."""

    secret_id: str
    account: str
    roles: tuple[str, ...]
    """Roles that hold for the next request; see :meth:`Accounts.create_key`."""
    names: tuple[str, ...]
    """Patterns of the names of queues, topics and schedules that the key may use."""
    is_admin: bool
    """True for account ``admin``, whose keys can see the objects of all accounts."""
    region: str
    connection_id: int
    """Number of the connection that answered; a client may have several connections."""
    request_id: int


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
        return _new_key(await self._channel.ask(operations.CREATE_ACCOUNT, account))

    async def delete(self, account: str) -> Done:
        """Delete an account that has no queue, topic and schedule, with all its keys. Only for ``admin``. Not repeated
        after a lost reply.

        Raises:
            AccountNotEmpty: the account has queues, topics or schedules; ``details`` has their numbers.
            InvalidArgument: the account is ``admin``.
        """
        reply = await self._channel.ask(operations.DELETE_ACCOUNT, account)
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
        reply = await self._channel.ask(operations.LIST_ALL_QUEUES, search, behind.account, behind.queue, limit)
        return AccountQueuePage(
            [AccountQueue(account, name) for account, _, name in reply.queues],
            None if reply.next is None else AccountQueue(*reply.next),
            reply.request_id,
        )

    async def list(self) -> Listing[str]:
        """List the names of all accounts. Only for ``admin``."""
        reply = await self._channel.ask(operations.LIST_ACCOUNTS)
        return Listing(reply.accounts, reply.request_id)

    async def create_key(
        self,
        *,
        account: str | None = None,
        roles: Iterable[str] | None = None,
        names: Iterable[str] | None = None,
    ) -> AccessKey:
        """Create a key pair. Not repeated after a lost reply.

        Args:
            account: the owner.
            roles: ``admin``, ``manage``, ``send``, ``consume``, ``read``; no role implies another. None = all of these.
                ``gateway`` is only for keys of account ``admin``: its holder can read the secret of every key.
            names: 1 to 50 patterns of the names of queues, topics and schedules that the key may use; ``*`` stands for
                any characters. None = every name.

        Returns:
            The key, with its secret, which the server never shows again.

        Raises:
            InvalidArgument: a role or a pattern is malformed.
            UnknownOperation: the server knows no roles; no key was created.
            OutcomeUnknown: the account may have another key; ``keys`` lists the key, so the caller can delete it.
        """
        if roles is None and names is None:
            reply = await self._channel.ask(operations.CREATE_KEY, account)
        else:
            chosen = _texts(roles, EVERY_ROLE), _texts(names, EVERY_NAME)
            reply = await self._channel.ask(operations.CREATE_ROLE_KEY, *chosen, account)
        return _new_key(reply)

    async def import_key(
        self,
        secret_id: str,
        secret_key: str,
        *,
        account: str | None = None,
        roles: Iterable[str] | None = None,
        names: Iterable[str] | None = None,
    ) -> AccessKey:
        """Add a key pair that programs use already. Repeated after a lost reply: importing the same pair with the same
        account, roles and names again changes nothing. Without TLS the secret crosses the network in the clear.

        Args:
            secret_id: 1 to 128 ASCII letters, digits, ``-`` or ``_``.
            secret_key: 16 to 128 printable ASCII characters without spaces.
            account: the owner.
            roles: see :meth:`create_key`.
            names: see :meth:`create_key`.

        Returns:
            The key, without its secret.

        Raises:
            KeyExists: another key has this id.
            InvalidArgument: the pair, a role or a pattern is malformed.
        """
        chosen = _texts(roles, EVERY_ROLE), _texts(names, EVERY_NAME)
        reply = await self._channel.ask(operations.IMPORT_KEY, secret_id, secret_key, *chosen, account)
        return _new_key(reply)

    async def set_key_roles(
        self,
        secret_id: str,
        *,
        roles: Iterable[str] | None = None,
        names: Iterable[str] | None = None,
        account: str | None = None,
    ) -> Done:
        """Replace the roles and name patterns of a key; None = every role but ``gateway``, and every name. Open
        connections have the new permissions from their next request on, and waiting receives that the key may not make
        any more end. Repeated after a lost reply.

        Raises:
            KeyNotFound: the account has no key of this id.
            LastKey: the key is the account's last enabled key with role ``admin``, and would lose the role.
            InvalidArgument: a role or a pattern is malformed.
        """
        chosen = _texts(roles, EVERY_ROLE), _texts(names, EVERY_NAME)
        reply = await self._channel.ask(operations.SET_KEY_ROLES, secret_id, *chosen, account)
        return Done(reply.request_id)

    async def key_secret(self, secret_id: str) -> KeySecret:
        """Read the secret of a key of any account, to check signatures. Only for keys with role ``gateway``,
        over TLS, loopback or a Unix socket; the server limits the rate and logs the read.

        Keep a secret for a second at most, and forget the secret when :meth:`watch_keys` names its key.

        Raises:
            KeyNotFound: there is no key of this id.
            PermissionDenied: the key has not the role, or other machines could read the connection.
            TooManyRequests: over the limit; the call was repeated until its patience ended.
        """
        reply = await self._channel.ask(operations.GET_KEY_SECRET, secret_id)
        return KeySecret(secret_id, reply.secret_key, reply.account, reply.request_id, reply.enabled)

    async def watch_keys(self, on_change: OnKeyChange) -> KeyWatch:
        """Have a function called with each change of a key of any account, until the watch is closed. Only for keys
        with role ``gateway``.

        A change without a ``secret_id`` says that changes may have been missed, because a connection ended or was
        opened again: then forget everything about keys. Until a connection is up again, calls fail.

        Args:
            on_change: called in the event loop, within the wake-up in which a change arrives; must neither block nor
                raise.

        Returns:
            The watch, after the server has confirmed it.

        Raises:
            PermissionDenied: the key has not the role, or other machines could read the connection.
        """
        reply = await self._channel.ask(operations.WATCH_KEYS)
        return self._channel.key_changes.add(on_change, self._channel.connections(), reply.request_id)

    async def own_key(self) -> OwnKey:
        """Read the key of this client: its account, and the roles and name patterns that the server checks now. For
        every key. Safe to cancel.

        Raises:
            UnknownOperation: the server is older than this operation.
        """
        reply = await self._channel.ask(operations.GET_OWN_KEY)
        return converted(OwnKey, reply)

    async def keys(self, *, account: str | None = None) -> Listing[AccessKey]:
        """List all keys of an account, without their secrets."""
        reply = await self._channel.ask(operations.LIST_KEYS, account)
        return Listing(_keys(reply), reply.request_id)

    async def set_key_enabled(self, secret_id: str, enabled: bool, *, account: str | None = None) -> Done:
        """Enable or disable a key. Repeated after a lost reply.

        Raises:
            KeyNotFound: the account has no key of this id.
            LastKey: the key is the account's last enabled key with role ``admin``.
        """
        reply = await self._channel.ask(operations.SET_KEY_ENABLED, secret_id, enabled, account)
        return Done(reply.request_id)

    async def delete_key(self, secret_id: str, *, account: str | None = None) -> Done:
        """Delete a key. Not repeated after a lost reply.

        Raises:
            KeyNotFound: the account has no key of this id.
            LastKey: the key is the account's last enabled key with role ``admin``.
        """
        reply = await self._channel.ask(operations.DELETE_KEY, secret_id, account)
        return Done(reply.request_id)


def _new_key(reply: wire.KeyList) -> AccessKey:
    return msgspec.structs.replace(_keys(reply)[0], request_id=reply.request_id)


def _keys(reply: wire.KeyList) -> "list[AccessKey]":
    return [converted(AccessKey, key) for key in reply.keys]


def _texts(chosen: Iterable[str] | None, default: tuple[str, ...]) -> list[str]:
    """Return roles or patterns as a list; a single text becomes a list with this text, not a list of its characters."""
    if chosen is None:
        return [*default]
    return [chosen] if isinstance(chosen, str) else [str(each) for each in chosen]
