"""Accounts and keys: operations that wait for the accounts file while the loop goes on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from cmqd.core import domain_errors as domain
from cmqd.core.broker import Broker
from cmqd.log.log_errors import LogFailed
from cmqd.server.access.accounts import AccountNotEmpty, Accounts
from cmqd.server.access.accounts_file import ADMIN
from cmqd.server.access.audit_entries import AuditEntries, action_of
from cmqd.server.access.permissions import Permissions
from cmqd.server.access.restricted_lookups import ComparedNames, RestrictedLookups
from cmqd.server.broker_logger import get_logger
from cmqd.server.clients.client import Client
from cmqd.server.monitoring.counters import Counters
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.requests.handler import Handler, handlers_of, handles
from cmqd.server.requests.operations import ACCOUNT_CHANGES, ACCOUNT_LOOKUPS, Location, call_of, reply_of
from cmqd.server.requests.refusals import error_reply
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.operations import Operation
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.keys import EVERY_NAME, EVERY_ROLE, Role

_log = get_logger()

Work: TypeAlias = Callable[[], Coroutine[Any, Any, wire.AnyReply]]
"""Work that waits for the accounts file, and returns the reply."""


@part
class AccountOperations:
    """Operations on accounts and keys."""

    broker: Broker
    answering: Answering
    audit_entries: AuditEntries
    restricted: RestrictedLookups
    accounts: Accounts
    revoke: Callable[[str], None]
    """Closes the connections that authenticated by a key."""
    use_permissions: Callable[[str, Callable[[str], Permissions | None]], Coroutine[Any, Any, None]]
    """Gives the connections that authenticated by a key its changed permissions."""
    key_changed: Callable[[str, str], None]
    """Tells the gateways of a change of a key, after the change is on disk."""
    region: str
    location: Location
    counters: Counters
    now_ms: Callable[[], int]
    schedule: Callable[[], None]
    spawn: Callable[[Coroutine[Any, Any, None]], None]

    def handlers(self) -> dict[type[wire.Request], Handler]:
        """Return a handler for each operation of the tables of accounts, and those of the operations that do more."""
        changes = {operation.request: self._change(operation) for operation in ACCOUNT_CHANGES}
        lookups = {operation.request: self._lookup(operation) for operation in ACCOUNT_LOOKUPS}
        return changes | lookups | handlers_of(self)

    @handles(wire.SetKeyEnabled)
    def set_key_enabled(self, client: Client, request: wire.SetKeyEnabled) -> None:
        """Switch a key on or off; a key that is off closes its connections."""

        async def change() -> wire.AnyReply:
            await self.accounts.set_key_enabled(
                client.account, request.account, request.secret_id, request.enabled, with_key=client.secret_id
            )
            if not request.enabled:
                self.revoke(request.secret_id)
            self.key_changed(request.secret_id, "enabled" if request.enabled else "disabled")
            return wire.Done(request.request_id)

        self._when_written(client, request, change)

    @handles(wire.SetKeyRoles)
    def set_key_roles(self, client: Client, request: wire.SetKeyRoles) -> None:
        """Replace the roles and names of a key; its open connections have the new permissions at once."""

        async def change() -> wire.AnyReply:
            key = await self.accounts.set_key_roles(
                *(client.account, request.account, request.secret_id, request.roles, request.names),
                with_key=client.secret_id,
            )
            await self.use_permissions(key.secret_id, self.accounts.permissions_of)
            self.key_changed(key.secret_id, "roles_changed")
            return wire.Done(request.request_id)

        self._when_written(client, request, change)

    @handles(wire.DeleteKey)
    def delete_key(self, client: Client, request: wire.DeleteKey) -> None:
        """Delete a key and close its connections."""

        async def change() -> wire.AnyReply:
            await self.accounts.delete_key(
                client.account, request.account, request.secret_id, with_key=client.secret_id
            )
            self.revoke_deleted(request.secret_id)
            return wire.Done(request.request_id)

        self._when_written(client, request, change)

    @handles(wire.DeleteAccount)
    def delete_account(self, client: Client, request: wire.DeleteAccount) -> None:
        """Delete an account without queues, topics and schedules."""
        account = request.account

        def refuse_held() -> None:
            queues, _ = self.broker.list_queues(account, "", 0, 1)
            topics, _ = self.broker.list_topics(account, "", 0, 1)
            schedules, _ = self.broker.list_schedules(account, "", 0, 1)
            if queues or topics or schedules:
                raise AccountNotEmpty(account, queues, topics, schedules)

        async def wait_until_durable() -> None:
            marker = _DurableMarker()
            self.answering.answer_lookup(marker, wire.Done(request.request_id))
            self.schedule()
            reply = await marker.answered
            if isinstance(reply, wire.Error):
                raise LogFailed(reply.text)

        async def change() -> wire.AnyReply:
            revoked: list[str] = []

            def revoke(secret_id: str) -> None:
                revoked.append(secret_id)
                self.revoke_deleted(secret_id)

            try:
                await self.accounts.delete_account(
                    client.account, account, refuse_held, revoke, wait_until_durable, with_key=client.secret_id
                )
            except (domain.DomainError, OSError):
                # The account stays, and its keys are valid again.
                for secret_id in revoked:
                    self.key_changed(secret_id, "enabled")
                raise
            except LogFailed as failure:
                return error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, str(failure))
            return wire.Done(request.request_id)

        self._when_written(client, request, change)

    @handles(wire.GetOwnKey)
    def get_own_key(self, client: Client, request: wire.GetOwnKey) -> None:
        """Answer with the key of the connection and the permissions that its requests are checked by, at once: a
        client that shows only the allowed operations needs the reply also while the storage hangs.
        """
        permissions = client.permissions
        roles, names = (EVERY_ROLE, EVERY_NAME) if permissions is None else (permissions.roles, permissions.names)
        client.answer(
            wire.OwnKey(
                request.request_id,
                client.secret_id,
                client.account,
                tuple(str(role) for role in Role if role in roles),
                names,
                client.account == ADMIN,
                self.region,
                client.connection_id,
            )
        )

    @handles(wire.ListAllQueues)
    def list_all_queues(self, client: Client, request: wire.ListAllQueues) -> None:
        """List the queues of all accounts, for ``admin``."""
        self.accounts.must_be_admin(client.account, "list the queues of all accounts")
        after = (request.after_account, request.after_queue)
        permissions = client.permissions

        def read(names: ComparedNames | None) -> wire.AnyReply:
            selects = None if names is None else names.allow_names
            queues, next_after = self.broker.list_all_queues(request.search, after, request.limit, selects=selects)
            return wire.AllQueues(request.request_id, queues, next_after)

        if permissions is None or permissions.covers_every_name:
            self.answering.answer_lookup(client, read(None))
        else:
            self.restricted.answer(client, request, permissions, read)

    def _change(self, operation: Operation[..., Any]) -> Handler:
        call, make_reply = call_of(operation, self.accounts), reply_of(operation)

        def handle(client: Client, request: Any) -> None:
            async def change() -> wire.AnyReply:
                result = await call(client.account, request, self.now_ms(), with_key=client.secret_id)
                # Gateways remember unknown ids too.
                self.key_changed(result.secret_id, "created")
                return make_reply(request.request_id, result, self.location)

            self._when_written(client, request, change)

        return handle

    def _lookup(self, operation: Operation[..., Any]) -> Handler:
        call, make_reply = call_of(operation, self.accounts), reply_of(operation)

        def handle(client: Client, request: Any) -> None:
            async def look_up() -> wire.AnyReply:
                await self.accounts.settled()
                result = call(client.account, request, self.now_ms())
                return make_reply(request.request_id, result, self.location)

            self._when_written(client, request, look_up)

        return handle

    def revoke_deleted(self, secret_id: str) -> None:
        """Close the connections of a deleted key, and tell the gateways."""
        self.revoke(secret_id)
        self.key_changed(secret_id, "deleted")

    def _when_written(self, client: Client, request: wire.Request, work: Work) -> None:
        """Answer when the accounts file is written, and the entry of a change is durable."""

        action = action_of(client, request)

        async def run() -> None:
            reply = await reply_when_written(request.request_id, work, self.counters)
            self.audit_entries.answer(client, action, request.request_id, reply)

        self.spawn(run())


async def reply_when_written(request_id: int, work: Work, counters: Counters) -> wire.AnyReply:
    """Do work that waits for the accounts file; return its reply, or an error."""
    try:
        return await work()
    except domain.DomainError as refusal:
        counters.refusals += 1
        return error_reply(request_id, refusal)
    except OSError as failure:
        _log.exception("accounts_not_written")
        text = f"the accounts file could not be written ({failure.strerror}); nothing was changed"
        return error(request_id, ErrorCode.INTERNAL_ERROR, text)


class _DurableMarker:
    """Waits at the gate like a client, until the rows before it are durable."""

    def __init__(self) -> None:
        self.account = ""
        self.answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def answer(self, reply: object, queue: str | None = None) -> None:
        """Wake the waiting task. An error instead of ``Done`` says that the rows will never be durable."""
        if not self.answered.done():
            self.answered.set_result(reply)
