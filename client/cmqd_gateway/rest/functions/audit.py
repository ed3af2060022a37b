"""The audit trail."""

from cmqd_gateway.rest.operation import Call
from cmqd_gateway.rest.replies import AuditEntries
from cmqd_gateway.rest.types import AuditQuery, Nothing


async def list_audit_entries(call: Call[AuditQuery, Nothing]) -> AuditEntries:
    """List the administrative operations of the last 90 days, newest first: time, key, address and object of each. For
    keys with role `manage` and the pattern `*`.

    The broker keeps at most 100,000 entries; over that, the account with the most entries loses its oldest.
    """
    query = call.query
    page = await call.client.audit_entries(
        account=query.account,
        before=int(query.before),
        after=int(query.after),
        since=query.since,
        until=query.until,
        search=query.search,
        operation=query.operation,
        limit=query.limit,
    )
    return AuditEntries.of(page)
