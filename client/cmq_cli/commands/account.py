"""``cmq account``: accounts and their queues."""

from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from cmq_cli.commands.key import show_new_key
from cmq_cli.nouns import as_document, table_of
from cmq_cli.options import CurrentSession
from cmqd_client.accounts import AccountQueue

app = App(name="account", help="Accounts. The account admin manages accounts; cmq key manages keys.")

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
