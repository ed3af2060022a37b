"""The audit trail: an entry for each administrative operation, shared by core, log, wire and client."""

import msgspec


class AuditEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An administrative operation that succeeded, and the key that made it."""

    entry_id: int
    """Ascending from 1 over all accounts; an account sees its own entries, so their ids have gaps."""
    time_ms: int
    """Broker time of the operation."""
    account: str
    """Account of the changed object."""
    by_account: str
    """Account of the key: ``account``, or ``admin`` where ``admin`` changed another account."""
    secret_id: str
    """Id of the key."""
    peer: str
    """Address of the connection."""
    operation: str
    """Name of the operation, as in SPEC.md."""
    name: str
    """Name of the object: a queue, a topic, ``topic/subscription``, a schedule, an account or the id of a key; empty
    for an operation on the server."""
    changes: str = ""
    """Words of the request as ``name=value``, separated by spaces; never a secret, a body or a URL."""
    product: str = ""
    """Software of the connection, as it named itself: ``cmq``, ``cmqd-gateway`` ..."""


class AuditQuery(msgspec.Struct, frozen=True):
    """The entries that a reader asks for."""

    before: int = 0
    """Only entries with a lower id; 0 = from the newest entry on."""
    after: int = 0
    """Only entries with a higher id."""
    since_ms: int = 0
    """Only entries of this time or later."""
    until_ms: int | None = None
    """Only entries before this time; None = without an end."""
    search: str = ""
    """Only entries with this text in the key, peer, operation, name or changes; upper and lower case are equal."""
    operation: str = ""
    """Only entries of this operation; empty = of every operation."""
