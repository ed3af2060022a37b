"""``cmq consumer``: the clients that receive from queues."""

from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from cmq_cli.nouns import table_of
from cmq_cli.options import FIRST_PAGE, CurrentSession, Paging

app = App(name="consumer", help="Clients that receive from the queues of your account or, as admin, of all accounts.")

_COLUMNS = (
    *("queue", "name", "secret_id", "host", "in_flight", "waiting", "last_receive", "received", "failed", "asked"),
    *("stated_by", "account"),
)


@app.command(name="list")
async def list_consumers(
    *,
    queue: Annotated[str, Parameter(help="Only consumers of this queue.")] = "",
    paging: Paging = FIRST_PAGE,
    session: CurrentSession,
) -> None:
    """List consumers by queue and name, with their messages in flight, last receive and failures.

    A consumer asked the queue for messages within the last hour, or holds messages of the queue. Failures are messages
    that were given back, rejected, or not settled in time, since the start of the broker. --search compares queue,
    account, key, name and host.

    Example: cmq consumer list --queue orders
    """
    async with session.client() as client:
        page = await client.consumers(queue=queue, **vars(paging))
    document = {
        "total": page.total,
        "time": page.time,
        "consumers": [msgspec.structs.asdict(consumer) for consumer in page],
    }
    session.output.listing(document, *table_of(page, _COLUMNS))
    session.output.remark_rest(paging.offset, len(page), page.total)
