"""``cmq key``: keys of an account, with roles and names."""

from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.key_file import read_key
from cmq_cli.nouns import as_document, table_of
from cmq_cli.options import CurrentSession, Repeated
from cmq_cli.output import Output
from cmqd_client.accounts import AccessKey

app = App(name="key", help="Keys of your own account or, as admin, of another account.")

Owner: TypeAlias = Annotated[str | None, Parameter(help="Owner of the key; your own account by default.")]
KeyId: TypeAlias = Annotated[str, Parameter(help="Id of the key.")]
_Roles: TypeAlias = Annotated[
    Repeated,
    Parameter(
        name="--role",
        help="admin, manage, send, consume, read or gateway; can be repeated. Without: all but gateway. A holder of a"
        " gateway key can read every secret.",
    ),
]
_Names: TypeAlias = Annotated[
    Repeated,
    Parameter(
        name=["--names", "--queues"],
        help="Pattern of the names of queues, topics and schedules that the key may use, * for any characters; can be"
        " repeated. Without: every name.",
    ),
]


@app.command
async def create(*, roles: _Roles = None, names: _Names = None, account: Owner = None, session: CurrentSession) -> None:
    """Create a key. Only this command shows its secret.

    Example: cmq key create --role consume --queues 'orders-*'
    """
    async with session.client() as client:
        show_new_key(session.output, await client.accounts.create_key(account=account, roles=roles, names=names))


@app.command(name="list")
async def list_keys(*, account: Owner = None, session: CurrentSession) -> None:
    """List keys with their roles and names, without their secrets."""
    async with session.client() as client:
        keys = await client.accounts.keys(account=account)
    (secret_id, *columns), rows = table_of(keys, ("secret_id", "account", "enabled", "roles", "names", "create_time"))
    # Whole: ids are copied.
    session.output.listing([as_document(key) for key in keys], [f"{secret_id}!", *columns], rows)


@app.command
async def show(*, session: CurrentSession) -> None:
    """Show your own key: account, roles and names, without its secret."""
    async with session.client() as client:
        key = await client.accounts.own_key()
    pairs = {"secret id": key.secret_id, "account": key.account, "roles": ", ".join(key.roles)}
    pairs |= {"names": ", ".join(key.names), "region": key.region}
    session.output.facts(as_document(key), pairs)


@app.command(name="set")
async def set_roles(
    secret_id: KeyId,
    /,
    *,
    roles: _Roles = None,
    names: _Names = None,
    account: Owner = None,
    session: CurrentSession,
) -> None:
    """Replace roles and names of a key, for its open connections too. Omitted options keep their values."""
    if roles is None and names is None:
        raise CommandFailed("nothing to change; give --role, --names or both", ExitCode.USAGE)
    async with session.client() as client:
        if roles is None or names is None:
            present = await client.accounts.keys(account=account)
            key_info = next((key for key in present if key.secret_id == secret_id), None)
            if key_info is None:
                raise CommandFailed(f"there is no key {secret_id!r}", ExitCode.NOT_FOUND)
            roles = [*key_info.roles] if roles is None else roles
            names = [*key_info.names] if names is None else names
        await client.accounts.set_key_roles(secret_id, roles=roles, names=names, account=account)
    text = f"key {secret_id}: roles {', '.join(roles)}; names {', '.join(names)}"
    session.output.result({"secret_id": secret_id, "roles": roles, "names": names}, text)


@app.command(name="import")
async def import_key(
    key_file: Annotated[
        Path,
        Parameter(
            help="File with a line SECRET_ID:SECRET_KEY, readable by its owner alone; - = standard input.",
            allow_leading_hyphen=True,
        ),
    ],
    /,
    *,
    roles: _Roles = None,
    names: _Names = None,
    account: Owner = None,
    session: CurrentSession,
) -> None:
    """Add a key pair that programs use already, for a move without changes of these programs."""
    secret_id, secret_key = read_key(key_file)
    async with session.client() as client:
        key = await client.accounts.import_key(secret_id, secret_key, account=account, roles=roles, names=names)
    session.output.result(as_document(key), f"key {secret_id} imported")


@app.command
async def disable(secret_id: KeyId, /, *, account: Owner = None, session: CurrentSession) -> None:
    """Disable a key: no client can connect with the key until it is enabled."""
    async with session.client() as client:
        await client.accounts.set_key_enabled(secret_id, False, account=account)
    session.output.result({"secret_id": secret_id, "enabled": False}, f"key {secret_id} disabled")


@app.command
async def enable(secret_id: KeyId, /, *, account: Owner = None, session: CurrentSession) -> None:
    """Enable a key."""
    async with session.client() as client:
        await client.accounts.set_key_enabled(secret_id, True, account=account)
    session.output.result({"secret_id": secret_id, "enabled": True}, f"key {secret_id} enabled")


@app.command
async def delete(secret_id: KeyId, /, *, account: Owner = None, session: CurrentSession) -> None:
    """Delete a key permanently."""
    async with session.client() as client:
        await client.accounts.delete_key(secret_id, account=account)
    session.output.result({"deleted": secret_id}, f"key {secret_id} deleted")


def show_new_key(output: Output, created: AccessKey) -> None:
    """Show a new key with its secret."""
    secret = created.secret_key or ""
    pairs = {"account": created.account, "secret id": created.secret_id, "secret key": secret}
    pairs |= {"roles": ", ".join(created.roles), "names": ", ".join(created.names)}
    output.facts(as_document(created) | {"secret_key": created.secret_key}, pairs)
    output.remark("the secret key is shown only now; keep it")
