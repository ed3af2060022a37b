"""The audit trail of the server: administrative operations, and the key that made each."""

from datetime import datetime

import msgspec

from cmqd_client.durations import to_moment_ms
from cmqd_client.links.channel import Channel
from cmqd_client.replies.conversions import converted
from cmqd_protocol import operations


class AuditEntry(msgspec.Struct, frozen=True):
    """An administrative operation that succeeded."""

    entry_id: int
    """Ascending over all accounts; an account sees gaps."""
    time: datetime
    """Broker time of the operation."""
    account: str
    """Account of the changed object."""
    by_account: str
    """Account of the key: ``account``, or ``admin``."""
    secret_id: str
    """Id of the key."""
    peer: str
    """Address and port of the connection; behind a gateway, of the gateway."""
    operation: str
    """Name of the operation in the protocol, such as ``delete_queue``."""
    name: str
    """The queue, the topic, ``topic/subscription``, the schedule, the account or the id of the key."""
    product: str
    """Software of the connection, as it named itself: ``cmq``, ``cmqd-gateway`` ..."""
    changes: str
    """Words of the request for people, such as ``delay_ms=5000``; never a secret."""


class AuditPage(msgspec.Struct, frozen=True):
    """Entries of the audit trail, newest first."""

    entries: list[AuditEntry]
    next: int | None
    """``before`` of the next page; None at the end."""
    request_id: int


async def ask_audit(
    channel: Channel,
    account: str | None,
    before: int | None,
    after: int,
    since: datetime | float | None,
    until: datetime | float | None,
    search: str,
    operation: str,
    limit: int,
) -> AuditPage:
    """Ask for a page of the audit trail; see ``Client.audit_entries``."""
    since_ms = 0 if since is None else to_moment_ms(since, "since", "datetime.now(UTC) - duration")
    until_ms = None if until is None else to_moment_ms(until, "until", "datetime.now(UTC) - duration")
    reply = await channel.ask(
        operations.LIST_AUDIT_ENTRIES,
        *(account, before or 0, after, since_ms, until_ms, search, operation, limit),
    )
    return converted(AuditPage, reply, next=reply.next_before or None)
