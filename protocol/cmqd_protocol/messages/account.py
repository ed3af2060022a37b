"""Accounts and their keys."""

import msgspec

from cmqd_protocol.messages.base import Reply, Request


class CreateAccount(Request, frozen=True, tag=128):
    """Create an account and its first key. Only for account ``admin``. Answered ``KeyList``."""

    account: str


class ListAccounts(Request, frozen=True, tag=129):
    """List all accounts. Only for account ``admin``. Answered ``AccountList``."""


class CreateKey(Request, frozen=True, tag=130):
    """Create an access key. Answered ``KeyList``, the only reply with the secret key."""

    account: str | None = None
    """None = the account of the caller. Other accounts only for ``admin``. Also valid for the requests below."""


class ListKeys(Request, frozen=True, tag=131):
    """List the keys of an account, without secret keys. Answered ``KeyList``."""

    account: str | None = None


class SetKeyEnabled(Request, frozen=True, tag=132):
    """Allow or refuse new connections with a key. Answered ``Done``."""

    secret_id: str
    enabled: bool
    account: str | None = None


class DeleteKey(Request, frozen=True, tag=133):
    """Delete a key. Answered ``Done``."""

    secret_id: str
    account: str | None = None


class DeleteAccount(Request, frozen=True, tag=134):
    """Delete an account without queues and topics, with its keys. Answered ``Done``."""

    account: str


class ListAllQueues(Request, frozen=True, tag=135):
    """List queues of all accounts with ``search`` in the name, by account and name. Answered ``AllQueues``."""

    search: str = ""
    after_account: str = ""
    """Start behind this account and queue: ``next`` of the previous reply."""
    after_queue: str = ""
    limit: int = 100


class AccountList(Reply, frozen=True, tag=199):
    """The names of all accounts."""

    accounts: list[str]


class KeyInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One access key."""

    secret_id: str
    account: str
    enabled: bool
    created_ms: int
    secret_key: str | None = None
    """Only in the reply to ``CreateKey`` or ``CreateAccount``."""


class KeyList(Reply, frozen=True, tag=200):
    """Access keys of an account."""

    keys: list[KeyInfo]


class AllQueues(Reply, frozen=True, tag=215):
    """A page of queues as (account, queue id, name)."""

    queues: list[tuple[str, int, str]]
    next: tuple[str, str] | None = None
    """Account and queue behind which the next page starts; None = the end."""
