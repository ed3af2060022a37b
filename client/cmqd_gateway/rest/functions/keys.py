"""Keys and accounts."""

from cmqd_client.accounts import AccessKey
from cmqd_client.accounts import AccountQueue as ClientAccountQueue
from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.replies import AccountList, AllQueues, Key, KeyList, NewKey, OwnKey
from cmqd_gateway.rest.types import AccountQuery, AllQueuesQuery, ImportKey, NewKeyRequest, Nothing, SetKey, SetKeyRoles


async def get_own_key(call: Call[Nothing, Nothing]) -> OwnKey:
    """Show the key of this request: its account, and the roles and name patterns that hold now. For every key."""
    return OwnKey.of(await call.client.accounts.own_key())


async def list_keys(call: Call[AccountQuery, Nothing]) -> KeyList:
    """List the keys of an account, without their secrets."""
    return KeyList(keys=[Key.of(key) for key in await call.client.accounts.keys(account=call.query.account)])


async def create_key(call: Call[AccountQuery, NewKeyRequest]) -> NewKey:
    """Create a key pair. The reply shows the secret, and no other reply does.

    `send`: send, publish, half messages and their decisions. `consume`: receive, delete, visibility, release,
    dead-letter. `read`: attributes, lists, peeks. `manage`: queues, topics, subscriptions and schedules. `admin`: keys.
    A holder of a key with role `gateway` can read every secret.
    """
    body = call.body
    accounts = call.client.accounts
    return _new_key(await accounts.create_key(account=call.query.account, roles=body.roles, names=body.names))


async def import_key(call: Call[AccountQuery, ImportKey]) -> Key:
    """Add a key pair that programs use already. Safe to repeat with the same pair and permissions."""
    body = call.body
    imported = await call.client.accounts.import_key(
        call.names["secret_id"], body.secret_key, account=call.query.account, roles=body.roles, names=body.names
    )
    return Key.of(imported)


async def set_key_roles(call: Call[AccountQuery, SetKeyRoles]) -> None:
    """Replace the roles and the name patterns of a key. They hold from the next request of the key on."""
    body = call.body
    await call.client.accounts.set_key_roles(
        call.names["secret_id"], roles=body.roles, names=body.names, account=call.query.account
    )


async def set_key(call: Call[AccountQuery, SetKey]) -> None:
    """Enable or disable a key. The last enabled key of an account cannot be disabled."""
    secret_id = call.names["secret_id"]
    await call.client.accounts.set_key_enabled(secret_id, call.body.enabled, account=call.query.account)


async def delete_key(call: Call[AccountQuery, Nothing]) -> None:
    """Delete a key. The last enabled key of an account cannot be deleted."""
    await call.client.accounts.delete_key(call.names["secret_id"], account=call.query.account)


async def list_accounts(call: Call[Nothing, Nothing]) -> AccountList:
    """List the names of all accounts. Only for the account `admin`."""
    return AccountList(names=list(await call.client.accounts.list()))


async def create_account(call: Call[Nothing, Nothing]) -> NewKey:
    """Create an account with its first key. The reply shows the secret, and no other reply does. Only for `admin`."""
    return _new_key(await call.client.accounts.create(call.names["account"]))


async def delete_account(call: Call[Nothing, Nothing]) -> None:
    """Delete an account that has no queue, topic and schedule, with all its keys. Only for the account `admin`."""
    await call.client.accounts.delete(call.names["account"])


async def list_all_queues(call: Call[AllQueuesQuery, Nothing]) -> AllQueues:
    """List the queues of all accounts, by account and name. Only for the account `admin`."""
    query = call.query
    has_start = bool(query.after_account or query.after_queue)
    after = ClientAccountQueue(query.after_account, query.after_queue) if has_start else None
    page = await call.client.accounts.queues(search=query.search, after=after, limit=query.limit)
    return AllQueues.of(page)


def _new_key(key: AccessKey) -> NewKey:
    return NewKey(secret_key=key.secret_key or "", key=Key.of(key))
