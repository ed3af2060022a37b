"""The operations of the JSON API with the tag keys: each succeeds, and has its own errors."""

from cmqd_gateway.callers.key_secrets import KeySecret
from support.gateway.operation_checks import check_tag, checks
from support.gateway.rest_calls import RestCalls


@checks("get_own_key")
async def check_get_own_key(rest: RestCalls) -> None:
    own = await rest.ok("get_own_key")
    assert own.secret_id == rest.key.secret_id
    assert own.account.startswith("account")
    assert own.roles == ["admin", "manage", "send", "consume", "read"]
    assert (own.names, own.is_admin) == (["*"], False)
    limited = await rest.ok("create_key", body={"roles": ["send"], "names": ["ord*"]})
    sender = rest.rig.table.keys[limited.key.secret_id] = KeySecret(limited.key.secret_id, limited.secret_key)
    shown = await rest.ok("get_own_key", key=sender)
    assert (shown.secret_id, shown.roles, shown.names) == (sender.secret_id, ["send"], ["ord*"])
    assert sender.secret_key.encode() not in (await rest.answer("get_own_key", key=sender)).body


@checks("list_keys")
async def check_list_keys(rest: RestCalls) -> None:
    keys = (await rest.ok("list_keys")).keys
    assert [key.secret_id for key in keys] == [rest.key.secret_id]
    assert (keys[0].account.startswith("account"), keys[0].enabled) == (True, True)
    raw = await rest.answer("list_keys")
    assert rest.key.secret_key.encode() not in raw.body


@checks("create_key")
async def check_create_key(rest: RestCalls) -> None:
    made = await rest.ok("create_key")
    assert made.secret_key
    assert made.secret_key not in repr(made)
    assert made.key in (await rest.ok("list_keys")).keys
    assert (set(made.key.roles), made.key.names) == ({"admin", "manage", "send", "consume", "read"}, ["*"])
    limited = await rest.ok("create_key", body={"roles": ["send"], "names": ["ord*"]})
    assert (limited.key.roles, limited.key.names) == (["send"], ["ord*"])
    sender = KeySecret(limited.key.secret_id, limited.secret_key)
    rest.rig.table.keys[sender.secret_id] = sender
    await rest.ok("send_message", queue="orders", body={"body": "x"}, key=sender)
    for refusal in (
        await rest.refused("receive_messages", queue="orders", key=sender),
        await rest.refused("list_keys", key=sender),
    ):
        assert (refusal.status, refusal.name) == (403, "permission_denied")
    denied = await rest.refused("create_key", query={"account": "admin"})
    assert (denied.status, denied.name) == (403, "permission_denied")
    wrong = await rest.refused("create_key", body={"roles": ["boss"]})
    assert (wrong.status, wrong.field) == (400, "roles[0]")
    other = await RestCalls(rest.rig).ok("create_key", query={"account": made.key.account})
    assert other.key.account == made.key.account


@checks("import_key")
async def check_import_key(rest: RestCalls) -> None:
    body = {"secret_key": "a-secret-of-a-test", "roles": ["consume"], "names": ["orders"]}
    imported = await rest.ok("import_key", secret_id="AKIDold", body=body)
    assert (imported.secret_id, imported.roles, imported.names) == ("AKIDold", ["consume"], ["orders"])
    assert await rest.ok("import_key", secret_id="AKIDold", body=body) == imported
    other = await rest.refused(
        "import_key", secret_id="AKIDold", body=body | {"secret_key": "another-secret-of-a-test"}
    )
    assert (other.status, other.name) == (409, "key_exists")
    for secret in (12345678901234567890, "short", "x" * 129):
        raw = await rest.answer("import_key", secret_id="AKIDnew", body={"secret_key": secret})
        assert raw.problem().status == 400
        assert str(secret).encode() not in raw.body


@checks("set_key_roles")
async def check_set_key_roles(rest: RestCalls) -> None:
    made = await rest.ok("create_key")
    await rest.ok("set_key_roles", secret_id=made.key.secret_id, body={"roles": ["read"], "names": None})
    roles = {key.secret_id: key.roles for key in (await rest.ok("list_keys")).keys}
    assert roles[made.key.secret_id] == ["read"]
    last = await rest.refused("set_key_roles", secret_id=rest.key.secret_id, body={"roles": ["read"], "names": None})
    assert (last.status, last.name) == (409, "last_key")


@checks("set_key")
async def check_set_key(rest: RestCalls) -> None:
    made = await rest.ok("create_key")
    await rest.ok("set_key", secret_id=made.key.secret_id, body={"enabled": False})
    enabled = {key.secret_id: key.enabled for key in (await rest.ok("list_keys")).keys}
    assert enabled[made.key.secret_id] is False
    last = await rest.refused("set_key", secret_id=rest.key.secret_id, body={"enabled": False})
    assert (last.status, last.name) == (409, "last_key")


@checks("delete_key")
async def check_delete_key(rest: RestCalls) -> None:
    made = await rest.ok("create_key")
    await rest.ok("delete_key", secret_id=made.key.secret_id)
    last = await rest.refused("delete_key", secret_id=rest.key.secret_id)
    assert (last.status, last.name) == (409, "last_key")


async def test_each_operation_succeeds_and_has_its_own_errors(rest: RestCalls):
    await check_tag("keys", rest)
