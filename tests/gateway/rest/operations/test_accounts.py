"""The operations of the JSON API with the tag accounts: each succeeds, and has its own errors."""

from support.gateway.operation_checks import check_tag, checks
from support.gateway.rest_calls import RestCalls


@checks("list_accounts")
async def check_list_accounts(rest: RestCalls) -> None:
    await rest.ok("create_account", account="first")
    assert set((await rest.ok("list_accounts")).names) == {"admin", "first"}


@checks("create_account")
async def check_create_account(rest: RestCalls) -> None:
    made = await rest.ok("create_account", account="shop")
    assert (made.key.account, bool(made.secret_key)) == ("shop", True)
    again = await rest.refused("create_account", account="shop")
    assert (again.status, again.name) == (409, "account_exists")


@checks("delete_account")
async def check_delete_account(rest: RestCalls) -> None:
    await rest.ok("create_account", account="empty")
    await rest.ok("delete_account", account="empty")
    assert (await rest.refused("list_keys", query={"account": "empty"})).name == "account_not_found"
    await rest.in_account("full")
    full = await rest.refused("delete_account", account="full")
    assert (full.status, full.name) == (409, "account_not_empty")


@checks("list_all_queues")
async def check_list_all_queues(rest: RestCalls) -> None:
    await rest.ok("create_queue", queue="payments")
    first = await rest.ok("list_all_queues", query={"limit": 1})
    assert (first.queues[0].account, first.queues[0].queue, first.next.queue) == ("admin", "orders", "orders")
    after = {"after_account": first.next.account, "after_queue": first.next.queue}
    assert (await rest.ok("list_all_queues", query=after)).queues[0].queue == "payments"


async def test_each_operation_succeeds_and_has_its_own_errors(rest: RestCalls):
    await check_tag("accounts", rest)
