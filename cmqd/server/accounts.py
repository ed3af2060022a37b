"""Accounts and their key pairs, the key of the receipt-handle permutation, and the secrets of subscriptions: all that
is secret.

They live outside the log, in a file of their own that only the server's user can read (``accounts_file``), because
segments of the log are handed to analysts and object stores. The account ``admin`` manages all accounts; any other
manages its own keys.

Rules:

- A change is on disk before it is answered and before it has effect; a change that failed to be written did not
  happen. Changes are written one after the other, off the loop.
- An account always keeps one enabled root key: neither disabling nor deleting takes the last one.
- A change must not be cancelled half way (the file would have it, the memory not): run it in a task of its own.
- A key that is disabled or deleted authenticates nobody from then on; whoever is connected with it is disconnected by
  the caller.
- A secret of a subscription signs what is posted to its URL (Standard Webhooks). It is there before the first post, and
  stays until the subscription ends; one that was replaced signs beside the new one until its time is over.
"""

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cmqd.core.errors import DomainError, InvalidArgument, shown
from cmqd.server.accounts_file import (
    ACCOUNT_NAME,
    ADMIN,
    AccountsFile,
    Document,
    Key,
    SubscriptionSecret,
    new_document,
    new_key,
)
from cmqd.server.private_files import read_private, write_private

CONTEXT_FILE_NAME = "admin.context.toml"

MAX_KEYS = 100
"""Keys of one account: rotation needs two; a bound keeps the file, which is written whole, small."""
_MAX_ACCOUNTS = 10_000


class AccountExists(DomainError):
    """An account of that name, or one that differs only in case, is there already."""

    def __init__(self, account: str) -> None:
        super().__init__(f"account {account!r} already exists", account=account)


class AccountNotFound(DomainError):
    """There is no account of that name."""

    def __init__(self, account: str) -> None:
        super().__init__(f"account {account!r} does not exist", account=account)


class KeyNotFound(DomainError):
    """The account has no key of that id."""

    def __init__(self, account: str, secret_id: str) -> None:
        super().__init__(f"account {account!r} has no key {secret_id!r}", account=account, secret_id=secret_id)


class LastKey(DomainError):
    """An account keeps at least one enabled root key."""

    def __init__(self, account: str, secret_id: str) -> None:
        super().__init__(
            f"{secret_id!r} is the last enabled key of account {account!r}; create another one first",
            account=account,
            secret_id=secret_id,
        )


class AccountNotEmpty(DomainError):
    """The account has queues or topics."""

    def __init__(self, account: str, queues: int, topics: int) -> None:
        super().__init__(
            f"account {account!r} has {queues} queues and {topics} topics; delete them first",
            account=account,
            queues=queues,
            topics=topics,
        )


class PermissionDenied(DomainError):
    """The account may not do this."""


class PushUnavailable(DomainError):
    """This server has nothing to post with."""

    def __init__(self) -> None:
        super().__init__("this server cannot post to URLs: install it with the extra cmqd[http]", extra="http")


class Accounts:
    """Who may connect; see the module.

    Invariants: every key belongs to an account that exists; every account has an enabled key.
    """

    def __init__(self, document: Document, write: Callable[[Document], Awaitable[None]]) -> None:
        """``write`` puts a changed document on disk before it returns."""
        self._write = write
        self._lock = asyncio.Lock()
        self._leaving: str | None = None
        """The account that is being deleted: it opens no connection."""
        self._install(document)

    @property
    def document(self) -> Document:
        """All of it, as it is on disk."""
        return self._document

    @property
    def handle_key(self) -> tuple[int, int, int, int]:
        """The key of the receipt-handle permutation."""
        return self._document.handle_key

    def find_key(self, secret_id: str) -> Key | None:
        """The enabled key of that id."""
        key = self._keys.get(secret_id)
        return key if key is not None and key.enabled and key.account != self._leaving else None

    def account_of(self, secret_id: str) -> str | None:
        """The account of a key's id, enabled or not."""
        key = self._keys.get(secret_id)
        return None if key is None else key.account

    def first_key(self, account: str) -> Key:
        """The oldest enabled key of an account."""
        return next(key for key in self._document.keys if key.account == account and key.enabled)

    def list_accounts(self, caller: str) -> list[str]:
        """All accounts, by name; ``admin`` only.

        Raises:
            PermissionDenied: the caller is not ``admin``.
        """
        self.must_be_admin(caller, "list accounts")
        return sorted(self._document.accounts)

    def list_keys(self, caller: str, account: str | None) -> list[Key]:
        """The keys of the caller's own or, for ``admin``, another account.

        Raises:
            PermissionDenied, AccountNotFound: nothing to show.
        """
        account = self._own_or_managed(caller, account)
        return [key for key in self._document.keys if key.account == account]

    async def save_new(self) -> None:
        """Write accounts that ``open_accounts`` made.

        Raises:
            OSError: they could not be written.
        """
        async with self._lock:
            await self._write(self._document)

    async def settled(self) -> None:
        """Wait for the changes that were asked for before, so that what is listed next has them."""
        async with self._lock:
            pass

    def check_exists(self, account: str) -> None:
        """Check that an account is there and not being deleted: what is made for it would outlive it.

        Raises:
            AccountNotFound: it is not.
        """
        if account not in self._document.accounts or account == self._leaving:
            raise AccountNotFound(account)

    def _check_key(self, caller: str, secret_id: str | None) -> None:
        """Check that the key of a request is still valid, now that the changes asked for before are done. Else a change
        that was asked for with a stolen key, just before the key was disabled, would enable the key again.

        Raises:
            PermissionDenied: it is not.
        """
        if secret_id is not None and self.find_key(secret_id) is None:
            raise PermissionDenied(f"key {secret_id!r} was disabled or deleted", account=caller)

    async def create_account(self, caller: str, account: str, now_ms: int, *, with_key: str | None = None) -> Key:
        """Make an account with its first key. ``with_key``, here and below: the key of the request, see ``_check_key``.

        Raises:
            PermissionDenied, InvalidArgument, AccountExists: nothing was changed.
        """
        self.must_be_admin(caller, "create accounts")
        if ACCOUNT_NAME.fullmatch(account) is None:
            raise InvalidArgument(
                f"an account name has 1 to 64 ASCII letters, digits, '-' or '_'; {shown(account)} does not",
                field="account",
                value=account,
                limit="1 to 64 ASCII letters, digits, '-' or '_'",
            )
        async with self._lock:
            self._check_key(caller, with_key)
            document = self._document
            if account.lower() in {name.lower() for name in document.accounts}:
                raise AccountExists(account)
            if len(document.accounts) >= _MAX_ACCOUNTS:
                raise InvalidArgument(
                    f"account {account!r} cannot be created: the server has {_MAX_ACCOUNTS} accounts, its limit",
                    field="account",
                    value=account,
                    limit=f"at most {_MAX_ACCOUNTS} accounts",
                )
            key = new_key(account, now_ms)
            await self._change(document, accounts={**document.accounts, account: now_ms}, keys=[*document.keys, key])
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

        Its clients are disconnected before the file is written, so that none makes a queue meanwhile. The deletes that
        emptied the account must be on disk before the account is gone from the file: else a crash in between would
        bring back queues of an account that is not there.

        Args:
            caller: the account that asks.
            account: the account to delete.
            refuse_held: raises AccountNotEmpty if the account has queues or topics.
            revoke: closes the connections that authenticated by a key, given its id.
            wait_until_durable: waits until all earlier decisions are durable.

        Raises:
            PermissionDenied, AccountNotFound, InvalidArgument, AccountNotEmpty: nothing was changed.
        """
        self.must_be_admin(caller, "delete accounts")
        async with self._lock:
            self._check_key(caller, with_key)
            document = self._document
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
                    document,
                    accounts={name: made_ms for name, made_ms in document.accounts.items() if name != account},
                    keys=[key for key in document.keys if key.account != account],
                )
            finally:
                self._leaving = None

    async def create_key(self, caller: str, account: str | None, now_ms: int, *, with_key: str | None = None) -> Key:
        """One more key for an account.

        Raises:
            PermissionDenied, AccountNotFound, InvalidArgument: nothing was changed.
        """
        async with self._lock:
            self._check_key(caller, with_key)
            account = self._own_or_managed(caller, account)
            document = self._document
            if sum(key.account == account for key in document.keys) >= MAX_KEYS:
                raise InvalidArgument(
                    f"account {account!r} has {MAX_KEYS} keys, its limit; delete a key first",
                    field="account",
                    value=account,
                    limit=f"at most {MAX_KEYS} keys",
                )
            key = new_key(account, now_ms)
            await self._change(document, keys=[*document.keys, key])
            return key

    async def set_key_enabled(
        self, caller: str, account: str | None, secret_id: str, enabled: bool, *, with_key: str | None = None
    ) -> None:
        """Switch a key on or off; a key that already is as wanted stays so.

        Raises:
            PermissionDenied, AccountNotFound, KeyNotFound, LastKey: nothing was changed.
        """
        async with self._lock:
            self._check_key(caller, with_key)
            account = self._own_or_managed(caller, account)
            key = self._key_of(account, secret_id)
            if not enabled:
                self._keep_one_other(key)
            document = self._document
            changed = msgspec.structs.replace(key, enabled=enabled)
            await self._change(document, keys=[changed if each is key else each for each in document.keys])

    async def delete_key(
        self, caller: str, account: str | None, secret_id: str, *, with_key: str | None = None
    ) -> None:
        """Forget a key for ever.

        Raises:
            PermissionDenied, AccountNotFound, KeyNotFound, LastKey: nothing was changed.
        """
        async with self._lock:
            self._check_key(caller, with_key)
            account = self._own_or_managed(caller, account)
            key = self._key_of(account, secret_id)
            self._keep_one_other(key)
            document = self._document
            await self._change(document, keys=[each for each in document.keys if each is not key])

    # ------------------------------------------------------------------ subscriptions

    def has_secret(self, subscription_id: int) -> bool:
        """Whether what is posted for this subscription can be signed."""
        return subscription_id in self._document.subscription_secrets

    def secrets_of(self, subscription_id: int, now_ms: int) -> list[str]:
        """What signs the posts of a subscription at this time, the newest first; none if it has no secret."""
        found = self._document.subscription_secrets.get(subscription_id)
        if found is None:
            return []
        if found.previous is None or now_ms >= found.previous_until_ms:
            return [found.secret]
        return [found.secret, found.previous]

    async def make_secret(self, subscription_id: int) -> str:
        """The secret of a new subscription.

        Raises:
            OSError: it could not be written; there is none.
        """
        async with self._lock:
            made = SubscriptionSecret(secret=_new_secret())
            await self._change_secrets({**self._document.subscription_secrets, subscription_id: made})
            return made.secret

    async def rotate_secret(self, subscription_id: int, overlap_until_ms: int) -> str:
        """A new secret for a subscription; the one that it has now stays valid until ``overlap_until_ms``, and the one
        before that no longer.

        Raises:
            OSError: it could not be written; nothing was changed.
        """
        async with self._lock:
            known = self._document.subscription_secrets
            replaced = known.get(subscription_id)
            made = SubscriptionSecret(
                secret=_new_secret(),
                previous=None if replaced is None else replaced.secret,
                previous_until_ms=0 if replaced is None else overlap_until_ms,
            )
            await self._change_secrets({**known, subscription_id: made})
            return made.secret

    async def forget_secret(self, subscription_id: int) -> None:
        """A subscription has ended.

        Raises:
            OSError: it could not be written; the secret stays.
        """
        async with self._lock:
            known = self._document.subscription_secrets
            if subscription_id in known:
                await self._change_secrets({id_: known[id_] for id_ in known if id_ != subscription_id})

    async def match_secrets(self, subscription_ids: Collection[int]) -> tuple[list[int], list[int]]:
        """At the start: a secret for each of these subscriptions, and for no others. Returns which had none, because a
        crash or a loss came between, and which were forgotten.

        Raises:
            OSError: it could not be written; nothing was changed.
        """
        async with self._lock:
            known = self._document.subscription_secrets
            missing = [id_ for id_ in subscription_ids if id_ not in known]
            wanted = set(subscription_ids)
            unknown = [id_ for id_ in known if id_ not in wanted]
            if missing or unknown:
                kept = {id_: secret for id_, secret in known.items() if id_ in wanted}
                made = {id_: SubscriptionSecret(secret=_new_secret()) for id_ in missing}
                await self._change_secrets(kept | made)
            return missing, unknown

    async def _change_secrets(self, secrets_by_id: dict[int, SubscriptionSecret]) -> None:
        await self._change(self._document, subscription_secrets=secrets_by_id)

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert not self._document.faults()
        assert len(self._keys) == len(self._document.keys)

    def must_be_admin(self, caller: str, what: str) -> None:
        """Let nobody else do something.

        Raises:
            PermissionDenied: the caller is not ``admin``.
        """
        if caller != ADMIN:
            raise PermissionDenied(f"only account {ADMIN!r} may {what}; this is {caller!r}", account=caller)

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
        others = (key for key in self._document.keys if key.account == leaving.account and key is not leaving)
        if not any(key.enabled for key in others):
            raise LastKey(leaving.account, leaving.secret_id)

    async def _change(self, document: Document, **changes: Any) -> None:
        changed = msgspec.structs.replace(document, **changes)
        await self._write(changed)
        self._install(changed)

    def _install(self, document: Document) -> None:
        self._document = document
        self._keys: Mapping[str, Key] = {key.secret_id: key for key in document.keys}


def open_accounts(folder: Path, now_ms: int) -> tuple[Accounts, bool]:
    """Read the accounts of a data folder; without a file, make the account ``admin`` with its first key.

    Returns whether they are new. New accounts are in memory only, until ``save_new``: the folder may hold messages of
    accounts whose file is gone, and that is known only when the log has been read.

    Raises:
        AccountsFileError: the file is damaged, was edited by hand, or is of a newer version.
        OSError: it cannot be read.
    """
    file = AccountsFile(folder)
    document = file.read()
    file.remove_leftovers()

    async def write(changed: Document) -> None:
        await asyncio.to_thread(file.write, changed)

    if document is None:
        return Accounts(new_document(now_ms), write), True
    file.renew(document)
    return Accounts(document, write), False


def write_context(folder: Path, key: Key, host: str, port: int, *, tls: bool) -> Path:
    """Write the file by which the command line finds this broker and may administer it; returns its path."""
    path = folder / CONTEXT_FILE_NAME
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    address = f"[{reachable}]" if ":" in reachable else reachable
    url = f"cmq://{key.secret_id}:{key.secret_key}@{address}:{port}{'?tls=1' if tls else ''}"
    text = f'current = "{key.account}"\n\n[contexts.{key.account}]\nurl = "{url}"\n'
    if read_private(path) != text.encode():
        write_private(path, text.encode())
    return path


def _new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
