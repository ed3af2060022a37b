"""``cmq connection``: the clients that are connected, and the receives that wait."""

from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from cmq_cli.nouns import table_of
from cmq_cli.options import FIRST_PAGE, CurrentSession, Flag, Paging
from cmqd_types.inspection import ConnectionSort

app = App(name="connection", help="Connections of your account or, as admin, of all accounts.")

_COLUMNS = (
    *("connection_id", "account", "secret_id", "peer", "product", "name", "since", "last_request", "requests"),
    *("bytes_in", "bytes_out", "waiting", "unread_bytes"),
)
_WAITING_COLUMNS = ("queue", "account", "connection_id", "secret_id", "name", "peer", "max_messages", "since", "until")


@app.command(name="list")
async def list_connections(
    *,
    sort: Annotated[ConnectionSort, Parameter(help="Order of the list.")] = "since",
    descending: Annotated[Flag, Parameter(help="Largest or latest first.")] = False,
    paging: Paging = FIRST_PAGE,
    session: CurrentSession,
) -> None:
    """List connections, with their requests and bytes since they were opened.

    --search compares account, key, address, product and name. Requests over HTTP use the connections of the gateway,
    whose product is cmqd-gateway.

    Example: cmq connection list --sort bytes_in --descending --limit 10
    """
    async with session.client() as client:
        page = await client.connections(**vars(paging), sort=sort, descending=descending)
    document = {
        "total": page.total,
        "time": page.time,
        "connections": [msgspec.structs.asdict(connection) for connection in page],
    }
    session.output.listing(document, *table_of(page, _COLUMNS))
    session.output.remark_rest(paging.offset, len(page), page.total)


@app.command
async def waiting(
    *,
    connection: Annotated[int | None, Parameter(help="Only receives of the connection with this id.")] = None,
    paging: Paging = FIRST_PAGE,
    session: CurrentSession,
) -> None:
    """List the receives that wait for messages, in order of arrival.

    --search compares queue, account, key and name.
    """
    async with session.client() as client:
        page = await client.waiting_receives(**vars(paging), connection_id=connection)
    document = {
        "total": page.total,
        "time": page.time,
        "receives": [msgspec.structs.asdict(receive) for receive in page],
    }
    session.output.listing(document, *table_of(page, _WAITING_COLUMNS))
    session.output.remark_rest(paging.offset, len(page), page.total)
