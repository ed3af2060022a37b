"""``cmq account``: accounts and their keys."""

from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from cmq_cli.nouns import as_document, table_of
from cmq_cli.options import CurrentSession
from cmq_cli.output import Output
from cmqd_client.accounts import AccessKey, AccountQueue

app = App(name="account", help="Accounts and their keys. The account admin manages accounts.")
key = App(name="key", help="Keys of your own account or, as admin, of another account.")
app.command(key)

_AccountName: TypeAlias = Annotated[str, Parameter(help="Name of the account.")]
_Owner: TypeAlias = Annotated[str | None, Parameter(help="Owner of the key; your own account by default.")]
_KeyId: TypeAlias = Annotated[str, Parameter(help="Id of the key.")]


@app.command
async def create(name: _AccountName, /, *, session: CurrentSession) -> None:
    """Create an account and its first key. Only this command shows the secret of the key."""
    async with session.client() as client:
        _show_new(session.output, await client.accounts.create(name))


@app.command(name="list")
async def list_accounts(*, session: CurrentSession) -> None:
    """List the accounts."""
    async with session.client() as client:
        names = await client.accounts.list()
    session.output.listing([{"name": name} for name in names], ["name"], [[name] for name in names])


@app.command(name="delete")
async def delete_account(name: _AccountName, /, *, session: CurrentSession) -> None:
    """Delete an account that has no queues and no topics, with all its keys."""
    async with session.client() as client:
        await client.accounts.delete(name)
    session.output.result({"deleted": name}, f"account {name} deleted")


@app.command
async def queues(
    search: Annotated[str, Parameter(help="Only names that contain this text.")] = "", /, *, session: CurrentSession
) -> None:
    """List the queues of all accounts."""
    queues: list[AccountQueue] = []
    async with session.client() as client:
        page = await client.accounts.queues(search=search, limit=1000)
        queues += page.queues
        while page.next is not None:
            page = await client.accounts.queues(search=search, after=page.next, limit=1000)
            queues += page.queues
    session.output.listing([as_document(queue) for queue in queues], *table_of(queues, ("account", "queue")))


@key.command(name="create")
async def create_key(*, account: _Owner = None, session: CurrentSession) -> None:
    """Create a key. Only this command shows its secret."""
    async with session.client() as client:
        _show_new(session.output, await client.accounts.create_key(account=account))


@key.command(name="list")
async def list_keys(*, account: _Owner = None, session: CurrentSession) -> None:
    """List keys, without their secrets."""
    async with session.client() as client:
        keys = await client.accounts.keys(account=account)
    table = table_of(keys, ("secret_id", "account", "enabled", "create_time"))
    session.output.listing([as_document(each) for each in keys], *table)


@key.command
async def disable(secret_id: _KeyId, /, *, account: _Owner = None, session: CurrentSession) -> None:
    """Disable a key: no client can connect with the key until it is enabled."""
    async with session.client() as client:
        await client.accounts.set_key_enabled(secret_id, False, account=account)
    session.output.result({"secret_id": secret_id, "enabled": False}, f"key {secret_id} disabled")


@key.command
async def enable(secret_id: _KeyId, /, *, account: _Owner = None, session: CurrentSession) -> None:
    """Enable a key."""
    async with session.client() as client:
        await client.accounts.set_key_enabled(secret_id, True, account=account)
    session.output.result({"secret_id": secret_id, "enabled": True}, f"key {secret_id} enabled")


@key.command
async def delete(secret_id: _KeyId, /, *, account: _Owner = None, session: CurrentSession) -> None:
    """Delete a key permanently."""
    async with session.client() as client:
        await client.accounts.delete_key(secret_id, account=account)
    session.output.result({"deleted": secret_id}, f"key {secret_id} deleted")


def _show_new(output: Output, created: AccessKey) -> None:
    secret = created.secret_key or ""
    pairs = {"account": created.account, "secret id": created.secret_id, "secret key": secret}
    output.facts(as_document(created) | {"secret_key": created.secret_key}, pairs)
    output.remark("the secret key is shown only now; keep it")
