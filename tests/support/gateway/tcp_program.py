"""A program that speaks CMQ's TCP protocol to a gateway.

async with TcpProgram(rig) as program:
    await program.log_in()
    reply = await program.ask(commands.SEND, queueName="orders", msgBody=b"x")

Answers come in any order, so ``ask`` waits for the answer with its number; ``send`` and ``next`` do the same in parts.
"""

import asyncio
import base64
import hashlib
import hmac
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import COMMANDS, HEADER
from cmqd_gateway.cmq.tcp.frames import FrameReader, to_frame
from cmqd_gateway.cmq.tcp.proto2 import Values, encode_bytes

_BODIES = {
    commands.RECEIVED_BODY: ("received", commands.RECEIVED),
    commands.BATCH_RECEIVED_BODY: ("batch", commands.BATCH_RECEIVED),
    commands.NOT_DELETED_BODY: ("failed", commands.NOT_DELETED),
    commands.DECIDE_BODY: ("decided", commands.DECIDE_REPLY),
    commands.CHECK_BODY: ("check", commands.CHECK_PUSH),
}


class Reply(NamedTuple):
    """A reply or push."""

    seqno: int
    cmd: int
    result: int
    error: str
    ids: list[int]
    bodies: list[tuple[str, Values]]
    """Kind and fields of each body."""

    @property
    def messages(self) -> list[Values]:
        """The messages of a receive."""
        found: list[Values] = []
        for kind, values in self.bodies:
            found += values.get("msgInfo", []) if kind == "batch" else [values] if kind == "received" else []
        return found

    def body(self, kind: str) -> Values:
        """Return the only body of a kind."""
        (values,) = [values for found, values in self.bodies if found == kind]
        return values


def read_reply(payload: bytes) -> Reply:
    header: Values = {}
    others: list[tuple[int, bytes]] = []
    HEADER.decode_into(header, payload, others)
    bodies = [(_BODIES[number][0], _BODIES[number][1].decode(data)) for number, data in others]
    return Reply(
        header["seqno"],
        header["cmd"],
        header.get("result", 0),
        header.get("error", ""),
        header.get("msgId", []),
        bodies,
    )


def signature_of(client_id: str, key: KeySecret, algorithm: str = "sha1") -> str:
    """Return the signature of a log-in, as CMQ's SDK makes it."""
    text = (client_id + key.secret_id).encode()
    return base64.b64encode(hmac.digest(key.secret_key.encode(), text, getattr(hashlib, algorithm))).decode()


class Listener(Protocol):
    """A gateway in the process of the test, or in a process of its own."""

    @property
    def tcp_address(self) -> tuple[str, int]:
        """Host and port of CMQ's TCP protocol."""
        ...

    @property
    def own_key(self) -> KeySecret:
        """The admin's key."""
        ...


class TcpProgram:
    """See the module."""

    def __init__(self, rig: Listener) -> None:
        self._rig = rig
        self._frames = FrameReader(1 << 30)
        self.kept: list[Reply] = []
        """Replies that no call has returned."""
        self._next_seqno = 0
        self._reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self._reader, self.writer = await asyncio.open_connection(*self._rig.tcp_address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    def send(self, cmd: int, *, request_id: int = 0, seqno: int | None = None, **body: Any) -> int:
        """Write a request, and return its number."""
        if seqno is None:
            self._next_seqno += 1
            seqno = self._next_seqno
        header = {"seqno": seqno, "cmd": cmd, "requestId": request_id or None}
        command = COMMANDS[cmd]
        content = encode_bytes(command.request.encode(body), command.body) if command.body else b""
        self.write(to_frame(HEADER.encode(header) + content))
        return seqno

    def write(self, data: bytes) -> None:
        """Write any bytes."""
        self.writer.write(data)

    async def next(self) -> Reply:
        """Return the next reply or push.

        Raises:
            EOFError: the gateway has ended the connection.
        """
        while (payload := self._frames.next_payload()) is None:
            try:
                data = await self._reader.read(65_536)
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError
            self._frames.feed(data)
        return read_reply(payload)

    async def answer(self, seqno: int) -> Reply:
        """Return the answer with this number; other replies are kept."""
        for reply in self.kept:
            if reply.seqno == seqno:
                self.kept.remove(reply)
                return reply
        while True:
            reply = await self.next()
            if reply.seqno == seqno and not (reply.cmd == commands.CHECK and reply.bodies):
                return reply
            self.kept.append(reply)

    async def ask(self, cmd: int, **request: Any) -> Reply:
        """Make a request and return its answer."""
        return await self.answer(self.send(cmd, **request))

    async def ok(self, cmd: int, **request: Any) -> Reply:
        """Make a request that succeeds."""
        reply = await self.ask(cmd, **request)
        assert (reply.result, reply.error) == (0, ""), reply
        assert reply.cmd == cmd
        return reply

    async def log_in(
        self,
        key: KeySecret | None = None,
        client_id: str = "10.0.0.7@DEFAULT",
        method: str = "HmacSHA1",
        **changed: Any,
    ) -> Reply:
        """Log in, by default with the admin's key, and return the reply."""
        used = key or self._rig.own_key
        body = {
            "secretId": used.secret_id,
            "signature": signature_of(client_id, used, "sha256" if method == "HmacSHA256" else "sha1"),
            "clientId": client_id,
            "signatureMethod": method,
        }
        return await self.ask(commands.LOG_IN, **(body | changed))

    async def ended(self) -> None:
        """Wait until the gateway ends the connection; a further reply fails the test."""
        try:
            reply = await self.next()
        except EOFError:
            return
        raise AssertionError(reply)
