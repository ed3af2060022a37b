"""Accounts, keys and the server itself."""

import msgspec

from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from support.fake_server.listener import Listener
from support.fake_server.peer import Peer
from support.fake_server.state import now_ms


class AccountRequests(Listener):
    """What an administrator asks for."""

    def _new_key(self, request_id: int, account: str) -> wire.AnyReply:
        number = self._number()
        info = wire.KeyInfo(f"AKIDnumber{number:026d}", account, True, now_ms())
        secret = f"secret-of-key-{number:026d}"
        self.keys[info.secret_id] = (info, secret)
        return wire.KeyList(request_id, [msgspec.structs.replace(info, secret_key=secret)])

    def _CreateAccount(self, peer: Peer, request: wire.CreateAccount) -> wire.AnyReply:
        if request.account in self.accounts:
            text = f"account {request.account!r} already exists"
            return wire.error(request.request_id, ErrorCode.ACCOUNT_EXISTS, text)
        self.accounts.append(request.account)
        return self._new_key(request.request_id, request.account)

    def _ListAccounts(self, peer: Peer, request: wire.ListAccounts) -> wire.AnyReply:
        return wire.AccountList(request.request_id, sorted(self.accounts))

    def _CreateKey(self, peer: Peer, request: wire.CreateKey) -> wire.AnyReply:
        return self._new_key(request.request_id, request.account or "admin")

    def _ListKeys(self, peer: Peer, request: wire.ListKeys) -> wire.AnyReply:
        account = request.account or "admin"
        if account not in self.accounts:
            text = f"account {account!r} does not exist"
            return wire.error(request.request_id, ErrorCode.ACCOUNT_NOT_FOUND, text)
        return wire.KeyList(request.request_id, [key for key, _ in self.keys.values() if key.account == account])

    def _SetKeyEnabled(self, peer: Peer, request: wire.SetKeyEnabled) -> wire.AnyReply:
        if request.secret_id not in self.keys:
            return wire.error(request.request_id, ErrorCode.KEY_NOT_FOUND, f"no key {request.secret_id!r}")
        key, secret = self.keys[request.secret_id]
        self.keys[request.secret_id] = (msgspec.structs.replace(key, enabled=request.enabled), secret)
        return wire.Done(request.request_id)

    def _DeleteKey(self, peer: Peer, request: wire.DeleteKey) -> wire.AnyReply:
        if self.keys.pop(request.secret_id, None) is None:
            return wire.error(request.request_id, ErrorCode.KEY_NOT_FOUND, f"no key {request.secret_id!r}")
        return wire.Done(request.request_id)

    def _DeleteAccount(self, peer: Peer, request: wire.DeleteAccount) -> wire.AnyReply:
        if request.account not in self.accounts:
            text = f"account {request.account!r} does not exist"
            return wire.error(request.request_id, ErrorCode.ACCOUNT_NOT_FOUND, text)
        self.accounts.remove(request.account)
        return wire.Done(request.request_id)

    def _ListAllQueues(self, peer: Peer, request: wire.ListAllQueues) -> wire.AnyReply:
        behind = (request.after_account, request.after_queue)
        found = [("admin", 1, name) for name in sorted(self.queues) if request.search in name]
        rest = [entry for entry in found if (entry[0], entry[2]) > behind]
        page = rest[: request.limit]
        return wire.AllQueues(request.request_id, page, (page[-1][0], page[-1][2]) if len(rest) > len(page) else None)

    def _GetServerStatus(self, peer: Peer, request: wire.GetServerStatus) -> wire.AnyReply:
        return wire.ServerStatus(
            request.request_id, {"version": "fake", "durability": "none", "queues": len(self.queues)} | self.status
        )

    def _SealSegments(self, peer: Peer, request: wire.SealSegments) -> wire.AnyReply:
        return wire.SegmentsSealed(request.request_id, 7)
