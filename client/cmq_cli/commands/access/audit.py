"""``cmq audit``: the administrative operations of the last 90 days."""

from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from cmq_cli.nouns import as_document, table_of
from cmq_cli.options import CurrentSession, Moment
from cmqd_client.administration.audit import AuditEntry

app = App(name="audit", help="Administrative operations: time, key, address and object of each.")

_PAGE = 1000


@app.command(name="list")
async def list_entries(
    search: Annotated[str, Parameter(help="Only entries with this text: a name, key, address or attribute.")] = "",
    /,
    *,
    account: Annotated[
        str | None, Parameter(help="Account of the objects; as admin, every account by default.")
    ] = None,
    operation: Annotated[str, Parameter(help="Only this operation, such as delete_queue.")] = "",
    since: Annotated[
        Moment | None, Parameter(help="Only entries from this time on: a time, or an age such as 2h.")
    ] = None,
    until: Annotated[Moment | None, Parameter(help="Only entries before this time.")] = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1), help="Maximum number of entries.")] = 100,
    session: CurrentSession,
) -> None:
    """List administrative operations, newest first.

    Example: cmq audit list orders --since 1d
    """
    entries: list[AuditEntry] = []
    before: int | None = None
    async with session.client() as client:
        while True:
            page = await client.audit_entries(
                account=account,
                before=before,
                since=since,
                until=until,
                search=search,
                operation=operation,
                limit=min(_PAGE, limit - len(entries)),
            )
            entries += page.entries
            before = page.next
            if before is None or len(entries) >= limit:
                break
    columns = ("time", "operation", "name", "changes", "account", "secret_id", "peer")
    session.output.listing([as_document(entry) for entry in entries], *table_of(entries, columns))
    if before is not None:
        session.output.remark(f"there are older entries; --limit {limit * 10} shows more")
