"""The handlers of accounts and keys, and of the server itself: its status, its segments."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cmqd.core import errors as domain
from cmqd.log.errors import LogFailed
from cmqd.log.interface import Segments
from cmqd.server.accounts import AccountNotEmpty
from cmqd.server.accounts_file import Key
from cmqd.server.handlers.outcomes import Client, Outcomes, translate
from cmqd.server.log_lines import get_logger
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error

_log = get_logger()


class AccountHandlers(Outcomes):
    """Accounts, keys and the server; see the module."""

    def _create_account(self, client: Client, request: wire.CreateAccount) -> None:
        async def change() -> wire.AnyReply:
            key = await self._accounts.create_account(
                client.account, request.account, self._now_ms(), with_key=client.secret_id
            )
            return wire.KeyList(request.request_id, [_key_info(key, shown=True)])

        self._in_turn(client, request, change)

    def _list_accounts(self, client: Client, request: wire.ListAccounts) -> None:
        async def look() -> wire.AnyReply:
            await self._accounts.settled()
            return wire.AccountList(request.request_id, self._accounts.list_accounts(client.account))

        self._in_turn(client, request, look)

    def _create_key(self, client: Client, request: wire.CreateKey) -> None:
        async def change() -> wire.AnyReply:
            key = await self._accounts.create_key(
                client.account, request.account, self._now_ms(), with_key=client.secret_id
            )
            return wire.KeyList(request.request_id, [_key_info(key, shown=True)])

        self._in_turn(client, request, change)

    def _list_keys(self, client: Client, request: wire.ListKeys) -> None:
        async def look() -> wire.AnyReply:
            await self._accounts.settled()
            keys = self._accounts.list_keys(client.account, request.account)
            return wire.KeyList(request.request_id, [_key_info(key, shown=False) for key in keys])

        self._in_turn(client, request, look)

    def _set_key_enabled(self, client: Client, request: wire.SetKeyEnabled) -> None:
        async def change() -> wire.AnyReply:
            await self._accounts.set_key_enabled(
                client.account, request.account, request.secret_id, request.enabled, with_key=client.secret_id
            )
            return wire.Done(request.request_id)

        self._in_turn(client, request, change)

    def _delete_key(self, client: Client, request: wire.DeleteKey) -> None:
        async def change() -> wire.AnyReply:
            await self._accounts.delete_key(
                client.account, request.account, request.secret_id, with_key=client.secret_id
            )
            return wire.Done(request.request_id)

        self._in_turn(client, request, change)

    def _delete_account(self, client: Client, request: wire.DeleteAccount) -> None:
        account = request.account

        def refuse_held() -> None:
            queues, _ = self._broker.list_queues(account, "", 0, 1)
            topics, _ = self._broker.list_topics(account, "", 0, 1)
            if queues or topics:
                raise AccountNotEmpty(account, queues, topics)

        async def settle() -> None:
            marker = _DurableMarker()
            self._gate.hold(self._log.last_lsn, marker, wire.Done(request.request_id))
            self._schedule()
            reply = await marker.answered
            if isinstance(reply, wire.Error):
                raise LogFailed(reply.text)

        async def change() -> wire.AnyReply:
            try:
                await self._accounts.delete_account(
                    client.account, account, refuse_held, settle, with_key=client.secret_id
                )
            except LogFailed as failure:
                return error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, str(failure))
            return wire.Done(request.request_id)

        self._in_turn(client, request, change)

    def _list_all_queues(self, client: Client, request: wire.ListAllQueues) -> None:
        self._accounts.must_be_admin(client.account, "list the queues of all accounts")
        after = (request.after_account, request.after_queue)
        queues, following = self._broker.list_all_queues(request.search, after, request.limit)
        self._gate.hold(self._log.last_lsn, client, wire.AllQueues(request.request_id, queues, following))

    def _in_turn(
        self, client: Client, request: wire.Request, work: Callable[[], Coroutine[Any, Any, wire.AnyReply]]
    ) -> None:
        """Answer when the accounts file is written; the loop goes on meanwhile. What is asked later comes later."""

        async def run() -> None:
            try:
                reply = await work()
            except domain.DomainError as refusal:
                self._counters.refusals += 1
                reply = translate(request.request_id, refusal)
            except OSError as failure:
                _log.exception("accounts_not_written")
                text = f"the accounts file could not be written ({failure.strerror}); nothing was changed"
                reply = error(request.request_id, ErrorCode.INTERNAL_ERROR, text)
            client.answer(reply)

        self._spawn(run())

    def _get_server_status(self, client: Client, request: wire.GetServerStatus) -> None:
        client.answer(wire.ServerStatus(request.request_id, self._status(client.account)))

    def _seal_segments(self, client: Client, request: wire.SealSegments) -> None:
        self._accounts.must_be_admin(client.account, "seal segments")
        log = self._log
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

        self._spawn(run())


class _DurableMarker:
    """Waits at the gate like a client, until the rows before it are durable."""

    def __init__(self) -> None:
        self.account = ""
        self.answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def answer(self, reply: object, queue: str | None = None) -> None:
        """The gate opened, or an Error: it never will."""
        if not self.answered.done():
            self.answered.set_result(reply)


def _key_info(key: Key, *, shown: bool) -> wire.KeyInfo:
    return wire.KeyInfo(key.secret_id, key.account, key.enabled, key.created_ms, key.secret_key if shown else None)
