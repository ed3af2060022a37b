"""Requests about the server itself: its status, its segments, its place among the servers of a region."""

from collections.abc import Callable, Coroutine
from typing import Any

from cmqd.core.broker import Broker
from cmqd.log.interface import Log, Segments
from cmqd.log.log_errors import LogFailed
from cmqd.server.access.accounts import Accounts
from cmqd.server.clients.client import Client
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.requests.handler import handles
from cmqd.server.requests.operations import Location
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.keys import Role


@part
class ServerRequests:
    """Operations on the server."""

    log: Log
    accounts: Accounts
    status_of: Callable[[str], dict[str, Any]]
    """Returns the status as an account may see it."""
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    broker: Broker
    answering: Answering
    location: Location
    shard: int
    epoch: int

    @handles(wire.Locate)
    def locate(self, client: Client, request: wire.Locate) -> None:
        """Answer with the address of this server, which has every queue and topic that it knows."""
        find = self.broker.topic_info if request.is_topic else self.broker.queue_info
        find(client.account, request.name)
        reply = wire.Located(request.request_id, [self.location["address"]], self.shard, self.epoch)
        self.answering.answer_lookup(client, reply)

    @handles(wire.GetServerStatus)
    def get_status(self, client: Client, request: wire.GetServerStatus) -> None:
        """Answer with the status, at once: the status must be readable while the storage hangs. A key without the role
        ``read`` gets the part for every account.
        """
        permissions = client.permissions
        may_read = permissions is None or Role.READ in permissions.roles
        client.answer(wire.ServerStatus(request.request_id, self.status_of(client.account if may_read else "")))

    @handles(wire.SealSegments)
    def seal_segments(self, client: Client, request: wire.SealSegments) -> None:
        """Close and seal the active segment, for ``admin``."""
        self.accounts.must_be_admin(client.account, "seal segments")
        log = self.log
        if not isinstance(log, Segments):
            text = "the log of this broker has no segment files"
            client.answer(error(request.request_id, ErrorCode.UNKNOWN_OPERATION, text))
            return

        async def run() -> None:
            last_lsn = log.last_lsn
            try:
                await log.seal_now()
            except LogFailed as failure:
                client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, str(failure)))
            else:
                client.answer(wire.SegmentsSealed(request.request_id, last_lsn))

        self.spawn(run())
