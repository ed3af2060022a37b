"""``cmq account``: accounts and their keys."""

from typing import Annotated, Any

from cyclopts import App, Parameter

from cmq_cli.output import show_time
from cmq_cli.session import Session
from cmqd_client.accounts import AccessKey, AccountQueue

app = App(name="account", help="Accounts and their keys. Accounts are managed by the account admin.")
key = App(name="key", help="Keys of your own account or, as admin, of another.")
app.command(key)

_Session = Annotated[Session, Parameter(parse=False)]


@app.command
async def create(name: str, /, *, session: _Session) -> None:
    """Create an account; its first key is shown once."""
    async with session.client() as client:
        _show_new(session, await client.accounts.create(name))


@app.command(name="list")
async def list_accounts(*, session: _Session) -> None:
    """List the accounts."""
    async with session.client() as client:
        names = await client.accounts.list()
    if session.output.json:
        session.output.document([{"name": name} for name in names])
    else:
        session.output.table(("name",), [(name,) for name in names])


@app.command(name="delete")
async def delete_account(name: str, /, *, session: _Session) -> None:
    """Delete an account that has no queues and no topics, with all its keys."""
    async with session.client() as client:
        await client.accounts.delete(name)
    if session.output.json:
        session.output.document({"deleted": name})
    session.output.remark(f"account {name} deleted")


@app.command
async def queues(search: str = "", /, *, session: _Session) -> None:
    """List the queues of all accounts.

    Parameters
    ----------
    search
        Only names that contain this text.
    """
    found: list[AccountQueue] = []
    async with session.client() as client:
        page = await client.accounts.queues(search=search, limit=1000)
        found += page.queues
        while page.next is not None:
            page = await client.accounts.queues(search=search, after=page.next, limit=1000)
            found += page.queues
    if session.output.json:
        session.output.document([{"account": entry.account, "queue": entry.queue} for entry in found])
    else:
        session.output.table(("account", "queue"), [(entry.account, entry.queue) for entry in found])


@key.command(name="create")
async def create_key(*, account: str | None = None, session: _Session) -> None:
    """Create a key; its secret is shown once.

    Parameters
    ----------
    account
        Owner of the key; your own account by default.
    """
    async with session.client() as client:
        _show_new(session, await client.accounts.create_key(account=account))


@key.command(name="list")
async def list_keys(*, account: str | None = None, session: _Session) -> None:
    """List keys, without their secrets.

    Parameters
    ----------
    account
        Owner of the key; your own account by default.
    """
    async with session.client() as client:
        keys = await client.accounts.keys(account=account)
    if session.output.json:
        session.output.document([_document(one) for one in keys])
    else:
        rows = [
            (one.secret_id, one.account, "yes" if one.enabled else "no", show_time(one.create_time)) for one in keys
        ]
        session.output.table(("secret id", "account", "enabled", "created"), rows)


@key.command
async def disable(secret_id: str, /, *, account: str | None = None, session: _Session) -> None:
    """Disable a key: no client can connect with it until it is enabled.

    Parameters
    ----------
    secret_id
        The key.
    account
        Owner of the key; your own account by default.
    """
    await _set_enabled(session, secret_id, account, False)


@key.command
async def enable(secret_id: str, /, *, account: str | None = None, session: _Session) -> None:
    """Enable a key.

    Parameters
    ----------
    secret_id
        The key.
    account
        Owner of the key; your own account by default.
    """
    await _set_enabled(session, secret_id, account, True)


@key.command
async def delete(secret_id: str, /, *, account: str | None = None, session: _Session) -> None:
    """Delete a key for ever.

    Parameters
    ----------
    secret_id
        The key.
    account
        Owner of the key; your own account by default.
    """
    async with session.client() as client:
        await client.accounts.delete_key(secret_id, account=account)
    if session.output.json:
        session.output.document({"deleted": secret_id})
    session.output.remark(f"key {secret_id} deleted")


async def _set_enabled(session: Session, secret_id: str, account: str | None, enabled: bool) -> None:
    async with session.client() as client:
        await client.accounts.set_key_enabled(secret_id, enabled, account=account)
    if session.output.json:
        session.output.document({"secret_id": secret_id, "enabled": enabled})
    session.output.remark(f"key {secret_id} {'enabled' if enabled else 'disabled'}")


def _show_new(session: Session, created: AccessKey) -> None:
    if session.output.json:
        session.output.document(_document(created) | {"secret_key": created.secret_key})
        return
    session.output.pairs(
        {"account": created.account, "secret id": created.secret_id, "secret key": created.secret_key or ""}
    )
    session.output.remark("the secret key is shown only now; keep it")


def _document(one: AccessKey) -> dict[str, Any]:
    return {
        "secret_id": one.secret_id,
        "account": one.account,
        "enabled": one.enabled,
        "create_time": one.create_time,
    }
