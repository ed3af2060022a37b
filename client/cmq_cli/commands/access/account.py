"""``cmq account``: accounts and their queues."""

from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from cmq_cli.commands.access import key
from cmq_cli.commands.access.key import show_new_key
from cmq_cli.nouns import as_document, table_of
from cmq_cli.options import CurrentSession
from cmq_cli.session import Session
from cmqd_client.accounts import AccountQueue

app = App(name="account", help="Accounts. The account admin manages accounts; cmq key manages keys.")

former_key = App(name="key", show=False, help="Former words for cmq key; removed in the next release.")
"""``cmq account key``, for scripts of 0.1.0; removed in version 0.3."""
app.command(former_key)

_AccountName: TypeAlias = Annotated[str, Parameter(help="Name of the account.")]


@app.command
async def create(name: _AccountName, /, *, session: CurrentSession) -> None:
    """Create an account and its first key. Only this command shows the secret of the key."""
    async with session.client() as client:
        show_new_key(session.output, await client.accounts.create(name))


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


# ---------------------------------------------------------------------- former words


@former_key.command(name="create")
async def create_key(*, account: key.Owner = None, session: CurrentSession) -> None:
    """Create a key."""
    _warn("create", session)
    await key.create(account=account, session=session)


@former_key.command(name="list")
async def list_keys(*, account: key.Owner = None, session: CurrentSession) -> None:
    """List keys."""
    _warn("list", session)
    await key.list_keys(account=account, session=session)


@former_key.command(name="disable")
async def disable_key(secret_id: key.KeyId, /, *, account: key.Owner = None, session: CurrentSession) -> None:
    """Disable a key."""
    _warn("disable", session)
    await key.disable(secret_id, account=account, session=session)


@former_key.command(name="enable")
async def enable_key(secret_id: key.KeyId, /, *, account: key.Owner = None, session: CurrentSession) -> None:
    """Enable a key."""
    _warn("enable", session)
    await key.enable(secret_id, account=account, session=session)


@former_key.command(name="delete")
async def delete_key(secret_id: key.KeyId, /, *, account: key.Owner = None, session: CurrentSession) -> None:
    """Delete a key permanently."""
    _warn("delete", session)
    await key.delete(secret_id, account=account, session=session)


def _warn(word: str, session: Session) -> None:
    # A warning of its own in either form: a script that reads the result as JSON must see it unchanged.
    session.output.warning(f"cmq account key {word} is cmq key {word} now; the former words end with version 0.3")
