"""Accounts and their key pairs, the key of the receipt-handle permutation, and the secrets of subscriptions.

All secrets live outside the log, in a separate file that only the server's user can read (``accounts_file``), because
segments of the log are handed to analysts and object stores. The account ``admin`` manages all accounts; any other
account manages its own keys.

Rules:

- A change is on disk before it is answered and before it has effect; a change that could not be written did not
  happen. Changes are written in sequence, off the loop.
- An account always keeps an enabled key with role ``admin``: no change disables, deletes or restricts the last one.
- No secret can be read here but the secret of a new key and, for a gateway, the secret of a key by its id.
- A change must not be cancelled half way (the file would have it, the memory not): run it in a task of its own.
- A key that is disabled or deleted authenticates no further connection; the caller closes the connections that
  authenticated by it. After a change of roles or names the caller gives the connections their new permissions.
- The HTTP gateways of a pair of brokers share a key, which the accounts keep beside the keys of people: every broker of
  the log knows it, so a gateway can follow the leader. The gateway of a broker that is alone has a lent key.
- The secret of a subscription signs the posts to its URL (Standard Webhooks). It exists before the first post and stays
  until the subscription ends; a replaced secret signs beside the new secret until its overlap ends.
"""

import asyncio
import base64
import contextlib
import hmac
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cmqd.core.domain_errors import DomainError, InvalidArgument, shown
from cmqd.server.access.accounts_file import (
    ACCOUNT_NAME,
    ADMIN,
    AccountsFile,
    Document,
    Key,
    SubscriptionSecret,
    new_document,
    new_key,
)
from cmqd.server.access.permissions import Permissions, checked_names, checked_roles, permissions_of
from cmqd_protocol.limits import MAX_SECRET_ID_BYTES
from cmqd_types.keys import EVERY_NAME, EVERY_ROLE, Role

MAX_KEYS = 100
"""Limit of keys per account: rotation needs two, and a limit keeps the file small, which is written whole."""
_MAX_ACCOUNTS = 10_000

_IMPORTED_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_SECRET_ID_BYTES}}}", re.ASCII)
_IMPORTED_ID_LIMIT = f"1 to {MAX_SECRET_ID_BYTES} ASCII letters, digits, '-' or '_'"
_IMPORTED_SECRET = re.compile(r"[!-~]{16,128}", re.ASCII)
_IMPORTED_SECRET_LIMIT = "16 to 128 printable ASCII characters without spaces"
"""A shorter secret could be guessed from a recorded handshake or signature."""


class AccountExists(DomainError):
    """An account with this name, or with a name that differs only in case, exists already."""

    def __init__(self, account: str) -> None:
        super().__init__(f"account {shown(account)} already exists", account=account)


class AccountNotFound(DomainError):
    """There is no account with this name."""

    def __init__(self, account: str) -> None:
        super().__init__(f"account {shown(account)} does not exist", account=account)


class KeyNotFound(DomainError):
    """The account has no key of that id; without an account, no account has a key of that id."""

    def __init__(self, account: str | None, secret_id: str) -> None:
        if account is None:
            super().__init__(f"there is no key {shown(secret_id)}", secret_id=secret_id[:MAX_SECRET_ID_BYTES])
        else:
            super().__init__(
                f"account {shown(account)} has no key {shown(secret_id)}", account=account, secret_id=secret_id
            )


class TooManySecretsRead(DomainError):
    """A gateway's key reads secrets faster than gateways need."""

    retry_after_ms = 1_000

    def __init__(self, per_second: int, what: str, retry_after_ms: int) -> None:
        super().__init__(f"the key is over its limit of {per_second} {what} a second", limit=per_second)
        self.retry_after_ms = retry_after_ms


class KeyExists(DomainError):
    """A key with this id exists already, in this account or in another one."""

    def __init__(self, secret_id: str) -> None:
        super().__init__(f"a key with the id {shown(secret_id)} exists already", secret_id=secret_id)


class LastKey(DomainError):
    """The change would take the last enabled key with role ``admin`` of an account."""

    def __init__(self, account: str, secret_id: str) -> None:
        super().__init__(
            f"{secret_id!r} is the last enabled key with role {Role.ADMIN} of account {account!r};"
            f" create another such key first",
            account=account,
            secret_id=secret_id,
        )


class AccountNotEmpty(DomainError):
    """The account has queues, topics or schedules."""

    def __init__(self, account: str, queues: int, topics: int, schedules: int) -> None:
        super().__init__(
            f"account {account!r} has {queues} queues, {topics} topics and {schedules} schedules; delete them first",
            account=account,
            queues=queues,
            topics=topics,
            schedules=schedules,
        )


class PermissionDenied(DomainError):
    """The account or the key may not do this."""


class PushUnavailable(DomainError):
    """This server has no HTTP client to post with."""

    def __init__(self) -> None:
        super().__init__("this server cannot post to URLs: install it with the extra cmqd[http]", extra="http")


class Accounts:
    """Accounts, keys and secrets; see the module.

    Invariants: every key belongs to an account that exists; every account has an enabled key with role ``admin``.
    """

    def __init__(self, document: Document, write: Callable[[Document], Awaitable[None]]) -> None:
        """``write`` puts a changed document on disk before it returns."""
        self._write = write
        self._lock = asyncio.Lock()
        self._lent: dict[str, Key] = {}
        """Keys of processes that the server started, by id. They are in no file and in no list."""
        self._leaving: str | None = None
        """The account that is being deleted: no connection may authenticate for it."""
        self._install(document)

    @property
    def document(self) -> Document:
        """Return the whole state as it is on disk."""
        return self._document

    @property
    def handle_key(self) -> tuple[int, int, int, int]:
        """The key of the receipt-handle permutation."""
        return self._document.handle_key

    def find_key(self, secret_id: str) -> Key | None:
        """Return the enabled key of an id, None if there is none."""
        key = self.find_secret(secret_id)
        return key if key is not None and key.enabled else self._own_keys.get(secret_id)

    def find_secret(self, secret_id: str) -> Key | None:
        """Return the key of an id that stands in the file, enabled or not; None if there is none."""
        key = self._keys.get(secret_id)
        return key if key is not None and key.account != self._leaving else None

    def lend_key(self, roles: tuple[Role, ...], now_ms: int) -> Key:
        """Make a key of account ``admin`` that is in memory only, and so ends with the server at the latest."""
        key = new_key(ADMIN, now_ms, roles)
        self._lent[key.secret_id] = key
        return key

    async def gateway_key(self, roles: tuple[Role, ...], now_ms: int) -> Key:
        """Return the key of account ``admin`` for the gateways of this log, which is made once.

        Raises:
            OSError, LogFailed: the new key could not be written, and does not exist.
        """
        async with self._lock:
            key = self._document.gateway_key
            if isinstance(key, msgspec.UnsetType):
                key = new_key(ADMIN, now_ms, roles)
                await self._change(gateway_key=key)
            return key

    @property
    def _own_keys(self) -> Mapping[str, Key]:
        """Keys of processes that the server started, lent or of the log, by id."""
        key = self._document.gateway_key
        return self._lent if isinstance(key, msgspec.UnsetType) else {**self._lent, key.secret_id: key}

    def take_back_key(self, secret_id: str) -> None:
        """End a lent key; the caller closes the connections that authenticated by it."""
        self._lent.pop(secret_id, None)

    def permissions_of(self, secret_id: str) -> Permissions | None:
        """Return the permissions of an enabled key; None = the key is unrestricted."""
        key = self.find_key(secret_id)
        # No key has no role, and so no operation: a key that vanished between its proof and this call.
        return Permissions((), EVERY_NAME) if key is None else permissions_of(key.roles, key.names)

    def account_of(self, secret_id: str) -> str | None:
        """Return the account of a key, enabled or not."""
        key = self._keys.get(secret_id) or self._own_keys.get(secret_id)
        return None if key is None else key.account

    def first_key(self, account: str) -> Key:
        """Return the first key of an account; see ``first_key_of``."""
        return first_key_of(self._document, account)

    def list_accounts(self, caller: str) -> list[str]:
        """All accounts, by name; ``admin`` only.

        Raises:
            PermissionDenied: the caller is not ``admin``.
        """
        self.must_be_admin(caller, "list accounts")
        return sorted(self._document.accounts)

    def list_keys(self, caller: str, account: str | None) -> list[Key]:
        """Return the keys of the caller's own account or, for ``admin``, of another account.

        Raises:
            PermissionDenied, AccountNotFound: no key may be listed.
        """
        account = self._own_or_managed(caller, account)
        return [key for key in self._document.keys if key.account == account]

    async def save_new(self) -> None:
        """Write accounts that ``open_accounts`` made.

        Raises:
            OSError: the accounts could not be written.
        """
        async with self._lock:
            await self._write(self._document)

    async def settled(self) -> None:
        """Wait for the changes requested earlier, so that a following list contains them."""
        async with self._lock:
            pass

    def created_ms(self, account: str) -> int:
        """Return the broker time at which an account was made; 0 for an absent account."""
        return self._document.accounts.get(account, 0)

    def check_exists(self, account: str) -> None:
        """Check that an account exists and is not being deleted: a queue made for it now would outlive it.

        Raises:
            AccountNotFound: the account is absent or being deleted.
        """
        if account not in self._document.accounts or account == self._leaving:
            raise AccountNotFound(account)

    @contextlib.asynccontextmanager
    async def _changing(self, caller: str, with_key: str | None) -> AsyncGenerator[Document, None]:
        """Hold the lock, and check that the key of a request may still change keys after all earlier changes.
        Otherwise a change requested with a stolen key, just before the key was disabled or lost its role, would undo
        that change.

        Raises:
            PermissionDenied: the key is no longer valid, or has no role ``admin`` any more.
        """
        async with self._lock:
            if with_key is not None:
                key = self.find_key(with_key)
                if key is None:
                    raise PermissionDenied(f"key {with_key!r} was disabled or deleted", account=caller)
                if not key.manages_keys:
                    raise PermissionDenied(f"key {with_key!r} has lost the role {Role.ADMIN}", account=caller)
            yield self._document

    async def create_account(self, caller: str, account: str, now_ms: int, *, with_key: str | None = None) -> Key:
        """Make an account with its first key. ``with_key``, here and below: the key of the request, see ``_changing``.

        Raises:
            PermissionDenied, InvalidArgument, AccountExists: the account was not created.
        """
        self.must_be_admin(caller, "create accounts")
        if ACCOUNT_NAME.fullmatch(account) is None:
            raise InvalidArgument(
                f"an account name has 1 to 64 ASCII letters, digits, '-' or '_'; {shown(account)} does not",
                field="account",
                value=account,
                limit="1 to 64 ASCII letters, digits, '-' or '_'",
            )
        async with self._changing(caller, with_key) as document:
            if account.lower() in {name.lower() for name in document.accounts}:
                raise AccountExists(account)
            if len(document.accounts) >= _MAX_ACCOUNTS:
                raise InvalidArgument(
                    f"account {account!r} cannot be created: the limit of {_MAX_ACCOUNTS} accounts is reached",
                    field="account",
                    value=account,
                    limit=f"at most {_MAX_ACCOUNTS} accounts",
                )
            key = new_key(account, now_ms)
            await self._change(accounts={**document.accounts, account: now_ms}, keys=[*document.keys, key])
            return key

    async def delete_account(
        self,
        caller: str,
        account: str,
        refuse_held: Callable[[], None],
        revoke: Callable[[str], None],
        wait_until_durable: Callable[[], Awaitable[None]],
        *,
        with_key: str | None = None,
    ) -> None:
        """Delete an account with its keys.

        Its clients are disconnected before the file is written, so that they make no queue meanwhile. The deletes that
        emptied the account must be on disk before the account is gone from the file: otherwise a crash in between would
        bring back queues of an absent account.

        Args:
            caller: the account that asks.
            account: the account to delete.
            refuse_held: raises AccountNotEmpty if the account has queues or topics.
            revoke: closes the connections that authenticated by a key, given its id.
            wait_until_durable: waits until all earlier decisions are durable.

        Raises:
            PermissionDenied, AccountNotFound, InvalidArgument, AccountNotEmpty: the account was not deleted.
        """
        self.must_be_admin(caller, "delete accounts")
        async with self._changing(caller, with_key) as document:
            if account not in document.accounts:
                raise AccountNotFound(account)
            if account == ADMIN:
                raise InvalidArgument(
                    f"account {ADMIN!r} cannot be deleted: it manages all other accounts",
                    field="account",
                    value=account,
                    limit=f"an account other than {ADMIN!r}",
                )
            refuse_held()
            self._leaving = account
            try:
                for key in document.keys:
                    if key.account == account:
                        revoke(key.secret_id)
                await wait_until_durable()
                # A request that was under way when its connection ended may have made a queue.
                refuse_held()
                await self._change(
                    accounts={name: made_ms for name, made_ms in document.accounts.items() if name != account},
                    keys=[key for key in document.keys if key.account != account],
                )
            finally:
                self._leaving = None

    async def create_key(self, caller: str, account: str | None, now_ms: int, *, with_key: str | None = None) -> Key:
        """Add an unrestricted key to an account.

        Raises:
            PermissionDenied, AccountNotFound, InvalidArgument: no key was created.
        """
        return await self.create_role_key(caller, account, EVERY_ROLE, EVERY_NAME, now_ms, with_key=with_key)

    async def create_role_key(
        self,
        caller: str,
        account: str | None,
        roles: Sequence[str],
        names: Sequence[str],
        now_ms: int,
        *,
        with_key: str | None = None,
    ) -> Key:
        """Add a key with roles and name patterns to an account.

        Raises:
            PermissionDenied, AccountNotFound, InvalidArgument: no key was created.
        """
        chosen_roles, chosen_names = checked_roles(roles), checked_names(names)
        async with self._changing(caller, with_key) as document:
            account = self._own_or_managed(caller, account)
            self._check_gateway(account, chosen_roles)
            self._check_number_of_keys(account)
            key = new_key(account, now_ms, chosen_roles, chosen_names)
            await self._change(keys=[*document.keys, key])
            return key

    async def import_key(
        self,
        caller: str,
        account: str | None,
        secret_id: str,
        secret_key: str,
        roles: Sequence[str],
        names: Sequence[str],
        now_ms: int,
        *,
        with_key: str | None = None,
    ) -> Key:
        """Add an existing key pair to an account, for programs that use the pair already. Importing the same pair for
        the same account, roles and names again changes nothing.

        Raises:
            PermissionDenied, AccountNotFound, InvalidArgument: the key was not imported.
            KeyExists: a key has this id; it was not changed.
        """
        chosen_roles, chosen_names = checked_roles(roles), checked_names(names)
        _check_pair(secret_id, secret_key)
        async with self._changing(caller, with_key) as document:
            account = self._own_or_managed(caller, account)
            self._check_gateway(account, chosen_roles)
            if secret_id in self._own_keys:
                raise KeyExists(secret_id)
            present = self._keys.get(secret_id)
            if present is not None:
                is_same = (
                    hmac.compare_digest(present.secret_key.encode(), secret_key.encode())
                    and (present.account, present.roles, present.names) == (account, chosen_roles, chosen_names)
                    and present.enabled
                )
                if not is_same:
                    raise KeyExists(secret_id)
                return present
            self._check_number_of_keys(account)
            key = Key(
                secret_id=secret_id,
                secret_key=secret_key,
                account=account,
                created_ms=now_ms,
                roles=chosen_roles,
                names=chosen_names,
            )
            await self._change(keys=[*document.keys, key])
            return key

    async def set_key_roles(
        self,
        caller: str,
        account: str | None,
        secret_id: str,
        roles: Sequence[str],
        names: Sequence[str],
        *,
        with_key: str | None = None,
    ) -> Key:
        """Replace the roles and name patterns of a key; return the changed key.

        Raises:
            PermissionDenied, AccountNotFound, KeyNotFound, LastKey, InvalidArgument: the key was not changed.
        """
        chosen_roles, chosen_names = checked_roles(roles), checked_names(names)
        async with self._changing(caller, with_key) as document:
            account = self._own_or_managed(caller, account)
            key = self._key_of(account, secret_id)
            self._check_gateway(account, chosen_roles)
            if Role.ADMIN not in chosen_roles:
                self._keep_one_other(key)
            changed = msgspec.structs.replace(key, roles=chosen_roles, names=chosen_names)
            await self._change(keys=[changed if other is key else other for other in document.keys])
            return changed

    async def set_key_enabled(
        self, caller: str, account: str | None, secret_id: str, enabled: bool, *, with_key: str | None = None
    ) -> None:
        """Enable or disable a key; no change if the key is in that state already.

        Raises:
            PermissionDenied, AccountNotFound, KeyNotFound, LastKey: the key was not changed.
        """
        async with self._changing(caller, with_key) as document:
            account = self._own_or_managed(caller, account)
            key = self._key_of(account, secret_id)
            if not enabled:
                self._keep_one_other(key)
            changed = msgspec.structs.replace(key, enabled=enabled)
            await self._change(keys=[changed if other is key else other for other in document.keys])

    async def delete_key(
        self, caller: str, account: str | None, secret_id: str, *, with_key: str | None = None
    ) -> None:
        """Delete a key permanently.

        Raises:
            PermissionDenied, AccountNotFound, KeyNotFound, LastKey: the key was not deleted.
        """
        async with self._changing(caller, with_key) as document:
            account = self._own_or_managed(caller, account)
            key = self._key_of(account, secret_id)
            self._keep_one_other(key)
            await self._change(keys=[other for other in document.keys if other is not key])

    # ------------------------------------------------------------------ subscriptions

    def has_secret(self, subscription_id: int) -> bool:
        """Return True if the posts of this subscription can be signed."""
        return subscription_id in self._document.subscription_secrets

    def secrets_of(self, subscription_id: int, now_ms: int) -> list[str]:
        """Return the secrets that sign the posts of a subscription at this time, newest first; possibly empty."""
        entry = self._document.subscription_secrets.get(subscription_id)
        if entry is None:
            return []
        if entry.previous is None or now_ms >= entry.previous_until_ms:
            return [entry.secret]
        return [entry.secret, entry.previous]

    async def make_secret(self, subscription_id: int) -> str:
        """Create the secret of a new subscription.

        Raises:
            OSError: the secret could not be written and does not exist.
        """
        async with self._lock:
            entry = SubscriptionSecret(secret=_new_secret())
            await self._change(subscription_secrets={**self._document.subscription_secrets, subscription_id: entry})
            return entry.secret

    async def rotate_secret(self, subscription_id: int, overlap_until_ms: int) -> str:
        """Create a new secret for a subscription. The present secret stays valid until ``overlap_until_ms``; the secret
        before it becomes invalid.

        Raises:
            OSError: the secret could not be written; the old secrets stay.
        """
        async with self._lock:
            entries = self._document.subscription_secrets
            replaced = entries.get(subscription_id)
            entry = SubscriptionSecret(
                secret=_new_secret(),
                previous=None if replaced is None else replaced.secret,
                previous_until_ms=0 if replaced is None else overlap_until_ms,
            )
            await self._change(subscription_secrets={**entries, subscription_id: entry})
            return entry.secret

    async def forget_secret(self, subscription_id: int) -> None:
        """Delete the secrets of a subscription that has ended.

        Raises:
            OSError: the file could not be written; the secret stays.
        """
        async with self._lock:
            entries = self._document.subscription_secrets
            if subscription_id in entries:
                left = {id_: entries[id_] for id_ in entries if id_ != subscription_id}
                await self._change(subscription_secrets=left)

    async def match_secrets(self, subscription_ids: Collection[int]) -> tuple[list[int], list[int]]:
        """At the start: create missing secrets of these subscriptions and delete all other secrets. Return the
        subscriptions that had no secret, because of a crash or a loss, and the subscriptions of the deleted secrets.

        Raises:
            OSError: the file could not be written; the secrets are unchanged.
        """
        async with self._lock:
            entries = self._document.subscription_secrets
            missing = [id_ for id_ in subscription_ids if id_ not in entries]
            valid = set(subscription_ids)
            unknown = [id_ for id_ in entries if id_ not in valid]
            if missing or unknown:
                kept = {id_: secret for id_, secret in entries.items() if id_ in valid}
                created = {id_: SubscriptionSecret(secret=_new_secret()) for id_ in missing}
                await self._change(subscription_secrets=kept | created)
            return missing, unknown

    def must_be_admin(self, caller: str, what: str) -> None:
        """Refuse an operation to every account but ``admin``.

        Raises:
            PermissionDenied: the caller is not ``admin``.
        """
        if caller != ADMIN:
            raise PermissionDenied(
                f"only account {ADMIN!r} may {what}; the connection belongs to {caller!r}", account=caller
            )

    def _own_or_managed(self, caller: str, account: str | None) -> str:
        if account is None or account == caller:
            self.check_exists(caller)
            return caller
        self.must_be_admin(caller, "manage the keys of other accounts")
        if account not in self._document.accounts:
            raise AccountNotFound(account)
        return account

    def _key_of(self, account: str, secret_id: str) -> Key:
        key = self._keys.get(secret_id)
        if key is None or key.account != account:
            raise KeyNotFound(account, secret_id)
        return key

    def _keep_one_other(self, leaving: Key) -> None:
        if not leaving.manages_keys:
            return
        others = (key for key in self._document.keys if key.account == leaving.account and key is not leaving)
        if not any(key.manages_keys for key in others):
            raise LastKey(leaving.account, leaving.secret_id)

    def _check_number_of_keys(self, account: str) -> None:
        if sum(key.account == account for key in self._document.keys) >= MAX_KEYS:
            raise InvalidArgument(
                f"account {account!r} has reached its limit of {MAX_KEYS} keys; delete a key first",
                field="account",
                value=account,
                limit=f"at most {MAX_KEYS} keys",
            )

    @staticmethod
    def _check_gateway(account: str, roles: Sequence[Role]) -> None:
        # The role reads the secrets of every account, so the keys of an account must not be able to give it.
        if Role.GATEWAY in roles and account != ADMIN:
            raise InvalidArgument(
                f"a key of account {account!r} cannot have the role {Role.GATEWAY}: its holder can read the secrets of"
                f" every account, so only keys of account {ADMIN!r} can have it",
                field="roles",
                value=str(Role.GATEWAY),
                limit=f"a key of account {ADMIN!r}",
            )

    async def _change(self, **changes: Any) -> None:
        changed = msgspec.structs.replace(self._document, **changes)
        await self._write(changed)
        self._install(changed)

    def _install(self, document: Document) -> None:
        self._document = document
        self._keys: Mapping[str, Key] = {key.secret_id: key for key in document.keys}


def open_accounts(folder: Path, now_ms: int) -> tuple[Accounts, bool]:
    """Read the accounts of a data folder; without a file, make the account ``admin`` with its first key.

    Also returns True if the accounts are new. New accounts are in memory only, until ``save_new``: the folder may hold
    messages of accounts from a lost file, which is known only when the log has been read.

    Raises:
        AccountsFileError: the file is damaged, was edited by hand, or is of a newer version.
        OSError: the file cannot be read.
    """
    file = AccountsFile(folder)
    document = file.read()
    file.remove_leftovers()

    async def write(changed: Document) -> None:
        await asyncio.to_thread(file.write, changed)

    if document is None:
        return Accounts(new_document(now_ms), write), True
    # Of a folder that came out of an engine: no gateway outlives a broker that is alone.
    document = msgspec.structs.replace(document, gateway_key=msgspec.UNSET)
    file.renew(document)
    return Accounts(document, write), False


def first_key_of(document: Document, account: str) -> Key:
    """Return the oldest enabled unrestricted key of an account; without an unrestricted key, the oldest key that may
    change keys.
    """
    keys = [key for key in document.keys if key.account == account and key.manages_keys]
    return next((key for key in keys if key.is_unrestricted), keys[0])


def _check_pair(secret_id: str, secret_key: str) -> None:
    """Check the form of a key pair that is imported. The errors do not show the secret.

    Raises:
        InvalidArgument: the id or the secret has another form.
    """
    if _IMPORTED_ID.fullmatch(secret_id) is None:
        raise InvalidArgument(
            f"{shown(secret_id)} is not the id of a key: an id has {_IMPORTED_ID_LIMIT}",
            field="secret_id",
            value=secret_id,
            limit=_IMPORTED_ID_LIMIT,
        )
    if _IMPORTED_SECRET.fullmatch(secret_key) is None:
        raise InvalidArgument(
            f"the secret of key {secret_id!r} cannot be imported: a secret has {_IMPORTED_SECRET_LIMIT}",
            field="secret_key",
            value=f"{len(secret_key)} characters",
            limit=_IMPORTED_SECRET_LIMIT,
        )


def _new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
