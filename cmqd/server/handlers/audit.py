"""Pages of the audit trail."""

from collections.abc import Callable, Generator
from typing import Final

from cmqd.core.broker import Broker
from cmqd.log.interface import Log
from cmqd.server.access.accounts import Accounts
from cmqd.server.access.accounts_file import ADMIN
from cmqd.server.admission.sliced_work import SlicedWork
from cmqd.server.clients.client import Client
from cmqd.server.handlers.messages import NOT_TO_GIVE_BACK
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.reply_gate import Gate
from cmqd.server.requests.handler import handles
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.audit import AuditQuery

HALTED: Final = "the broker stopped while the audit trail was read"


@part
class AuditRequests:
    """Answers requests for entries, in steps: a search compares up to 100,000 entries."""

    broker: Broker
    log: Log
    answering: Answering
    gate: Gate
    accounts: Accounts
    now_ms: Callable[[], int]
    schedule: Callable[[], None]
    work: SlicedWork
    max_unread_receives: int

    @handles(wire.ListAuditEntries)
    def list_entries(self, client: Client, request: wire.ListAuditEntries) -> None:
        """Answer with a page of entries.

        Raises:
            InvalidArgument: the limit is out of range.
            PermissionDenied: the request is for another account, and the account of the caller is not ``admin``.
        """
        self.broker.check_audit_limit(request.limit)
        account = self._account(client, request.account)
        query = AuditQuery(
            before=request.before,
            after=request.after,
            since_ms=max(request.since_ms, self._since_ms(client.account)),
            until_ms=request.until_ms,
            search=request.search,
            operation=request.operation,
        )

        def read() -> Generator[None]:
            if client.is_slow or client.unread_receives >= self.max_unread_receives:
                # A page has up to 300 KB, and pages that wait for the disk or for their reader take memory.
                client.park(request)
                return
            steps = self.broker.audit_entries(account, query, request.limit, self.now_ms())
            while not client.is_gone:
                if self.answering.is_halted:
                    client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, HALTED))
                    return
                try:
                    next(steps)
                except StopIteration as end:
                    client.unread_receives += 1
                    reply = wire.AuditEntries(request.request_id, *end.value)
                    # The newest entries may not be durable yet, so the reply waits for the newest row.
                    self.gate.hold(self.log.last_lsn, client, reply, NOT_TO_GIVE_BACK)
                    self.schedule()
                    return
                yield

        self.work.add(client.account, read())

    def _account(self, client: Client, account: str | None) -> str | None:
        """Return the account of the entries, None for every account."""
        if account is None:
            return None if client.account == ADMIN else client.account
        if account != client.account:
            # Without a look at the accounts: the entries of an account that was deleted stay.
            self.accounts.must_be_admin(client.account, "read the audit trail of other accounts")
        return account

    def _since_ms(self, account: str) -> int:
        """Return the time from which on an account may see its entries.

        Entries outlive their account, and an account of the same name may be made for other people. ``admin`` sees all.
        """
        created_ms = 0 if account == ADMIN else self.accounts.created_ms(account)
        # An account from the future is older than a correction of the clock; all its entries have earlier times.
        return created_ms if created_ms <= self.now_ms() else 0
