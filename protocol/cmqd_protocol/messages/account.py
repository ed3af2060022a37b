"""Accounts and their keys."""

import msgspec

from cmqd_protocol.messages.base import Reply, Request


class CreateAccount(Request, frozen=True, tag=128):
    """Make an account and its first key; only account ``admin`` may. Answered ``KeyList``."""

    account: str


class ListAccounts(Request, frozen=True, tag=129):
    """Only account ``admin`` may. Answered ``AccountList``."""


class CreateKey(Request, frozen=True, tag=130):
    """Make an access key. Answered ``KeyList``, the only time that the secret key is shown."""

    account: str | None = None
    """None = the caller's own; another's only from account ``admin``. The same in the requests below."""


class ListKeys(Request, frozen=True, tag=131):
    """The keys of an account, without secrets. Answered ``KeyList``."""

    account: str | None = None


class SetKeyEnabled(Request, frozen=True, tag=132):
    """Allow or refuse new connections with a key. Answered ``Done``."""

    secret_id: str
    enabled: bool
    account: str | None = None


class DeleteKey(Request, frozen=True, tag=133):
    """Forget a key. Answered ``Done``."""

    secret_id: str
    account: str | None = None


class DeleteAccount(Request, frozen=True, tag=134):
    """Delete an account without queues and topics, with its keys. Answered ``Done``."""

    account: str


class ListAllQueues(Request, frozen=True, tag=135):
    """Queues of all accounts whose names contain ``search``, by account and name. Answered ``AllQueues``."""

    search: str = ""
    after_account: str = ""
    """Begin behind this account and queue: ``next`` of the reply before."""
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
    """Only in the reply that creates the key."""


class KeyList(Reply, frozen=True, tag=200):
    """Access keys of an account."""

    keys: list[KeyInfo]


class AllQueues(Reply, frozen=True, tag=215):
    """A page of queues as (account, queue id, name)."""

    queues: list[tuple[str, int, str]]
    next: tuple[str, str] | None = None
    """Account and queue to go on behind; None = the end."""
