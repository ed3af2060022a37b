"""Server side of a connection without I/O: bytes in, events out; replies in, bytes out. ``endpoint`` has the usage."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import structs

from cmqd_protocol import large_frames
from cmqd_protocol.endpoint import Endpoint
from cmqd_protocol.events import Authenticated, ConnectionEnded, RequestRefused
from cmqd_protocol.features import (
    ADDRESSES_FACT,
    EPOCH_FACT,
    FEATURES_FACT,
    MAX_WAITING_REQUESTS_FACT,
    SHARD_FACT,
)
from cmqd_protocol.frames import Payload, encode_preamble, header, length_at
from cmqd_protocol.handshake import (
    NO_KEY,
    AccessKey,
    choose_version,
    client_proof,
    same,
    server_proof,
    transcript,
    tune_heartbeat_ms,
    tune_max_frame_bytes,
)
from cmqd_protocol.large_replies import encode_pieces
from cmqd_protocol.limits import (
    AUTHENTICATION_TIMEOUT_MS,
    DEFAULT_HEARTBEAT_MS,
    DEFAULT_MAX_FRAME_BYTES,
    DEFAULT_MAX_WAITING_REQUESTS,
    HANDSHAKE_BYTES,
    HEADER_BYTES,
    LARGE_PAYLOAD_BYTES,
    NONCE_BYTES,
    OLDEST_VERSION,
    VERSION,
)
from cmqd_protocol.messages import (
    AnyReply,
    Cancel,
    ClientHello,
    Error,
    MessagesReceived,
    Push,
    Request,
    ServerHello,
    Welcome,
    client_hello_decoder,
    encoder,
    error,
    request_decoder,
)
from cmqd_protocol.protocol_errors import ErrorCode, LocalProtocolError
from cmqd_protocol.refusal import DECODE_ERRORS, hello_refusal, refuse
from cmqd_protocol.states import Role, State, Step

ServerEvent: TypeAlias = Authenticated | Request | Cancel | RequestRefused | ConnectionEnded

CONNECTION_RETRY_MS: Final = 1_000
"""Pause suggested to a client that was refused or disconnected for lack of connections or memory."""

# Captured because the lookup of an enum member costs more than decoding a small message.
_OPEN: Final = State.OPEN
_encode = encoder.encode
_decode_request: Callable[[Payload], Request | Cancel] = request_decoder.decode


def _decode_any_request(payload: Payload) -> Request | Cancel:
    return _decode_request(payload) if len(payload) <= LARGE_PAYLOAD_BYTES else large_frames.decode(payload)


def _not_outstanding(request_id: int) -> LocalProtocolError:
    return LocalProtocolError(f"request {request_id} does not wait for a reply")


class _Handshake:
    """What a server connection knows only until it is open: an idle connection would keep 700 bytes of no use."""

    __slots__ = (
        "bytes_left",
        "client_preamble",
        "count_refusal",
        "facts",
        "find_key",
        "hello",
        "offered_secret_id",
        "server_preamble",
    )

    def __init__(
        self,
        hello: ServerHello,
        facts: dict[str, Any],
        find_key: Callable[[str], AccessKey | None],
        count_refusal: Callable[[str], str | None],
    ) -> None:
        self.hello = hello
        self.facts = facts
        """Facts of the welcome."""
        self.find_key = find_key
        self.count_refusal = count_refusal
        self.bytes_left = HANDSHAKE_BYTES
        """Bytes of the client that are still examined before the proof."""
        self.client_preamble = b""
        self.server_preamble = b""
        self.offered_secret_id = ""


class ServerConnection(Endpoint[Authenticated | Request | Cancel | RequestRefused]):
    """Server side of a connection.

    Events: ``Authenticated``, then requests and ``Cancel``s, then at most one ``ConnectionEnded``. The shell sends
    exactly one reply to every request through ``send``, in any order. A ``Cancel`` is an event only while its request
    is outstanding; the reply is then ``cancelled``, or the usual reply if the shell has already made the reply. The
    connection itself answers requests that are malformed, reuse the number of an outstanding request or exceed
    ``max_outstanding``, and reports them as ``RequestRefused``.
    """

    __slots__ = (
        "_connection_id",
        "_handshake",
        "_max_outstanding",
        "lone_id",
    )
    role = Role.SERVER

    def __init__(
        self,
        *,
        nonce: bytes,
        find_key: Callable[[str], AccessKey | None],
        region: str,
        connection_id: int,
        now_ms: int,
        product: str = "cmqd",
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        heartbeat_ms: int = DEFAULT_HEARTBEAT_MS,
        authentication_timeout_ms: int = AUTHENTICATION_TIMEOUT_MS,
        count_refusal: Callable[[str], str | None] = lambda _account: None,
        max_outstanding: int = DEFAULT_MAX_WAITING_REQUESTS,
        features: Iterable[str] = (),
        shard: int = 0,
        epoch: int = 0,
        addresses: Sequence[str] = (),
    ) -> None:
        """Start the handshake of an accepted connection.

        Args:
            nonce: 32 random bytes that were never used before.
            find_key: return the enabled access key of a secret id, or None. The call should take the same time in
                both cases, so that its duration does not reveal which ids exist.
            count_refusal: return the reason to refuse an account a further connection, sent in place of the welcome;
                None = accept the connection.
            connection_id: number that a client can quote in a report; unique among the server's connections.
            max_outstanding: limit of requests without a reply; requests above the limit are refused. The welcome
                announces the limit.
            features: words of ``features.Feature`` that the shell acts on. The welcome names the words.
            shard: shard of the server's log, for the welcome.
            epoch: epoch of the server's leadership, for the welcome; 0 = the server is alone.
            addresses: addresses of the servers of the log, for the welcome.
        """
        if len(nonce) != NONCE_BYTES:
            raise LocalProtocolError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        super().__init__(
            max_frame_bytes=max_frame_bytes,
            heartbeat_ms=heartbeat_ms,
            timeout_ms=authentication_timeout_ms,
            now_ms=now_ms,
        )
        self._connection_id = connection_id
        self._max_outstanding = max_outstanding
        self.lone_id = 0
        """Id of a request that came while no other request waited for its reply, until a further request comes; 0 =
        there is none. The reply to it is the only reply that the peer waits for."""
        facts: dict[str, Any] = {MAX_WAITING_REQUESTS_FACT: max_outstanding, FEATURES_FACT: list(features)}
        if shard or epoch:
            # The welcome of a server that is alone has no byte more than before these facts.
            facts |= {SHARD_FACT: shard, EPOCH_FACT: epoch}
        if addresses:
            facts[ADDRESSES_FACT] = list(addresses)
        self._handshake: _Handshake | None = _Handshake(
            ServerHello(product, region, nonce, max_frame_bytes, heartbeat_ms),
            facts,
            find_key,
            count_refusal,
        )
        """None once the connection has opened."""

    @property
    def connection_id(self) -> int:
        """Number of the connection, as in the welcome."""
        return self._connection_id

    @property
    def offered_secret_id(self) -> str:
        """Secret id in the hello of a client that has not proven it, for logs; else empty."""
        return "" if self._handshake is None else self._handshake.offered_secret_id

    def receive_data(self, data: bytes, now_ms: int) -> None:
        """Process the bytes of a read. Take ``events()`` and write ``data_to_send()`` afterwards."""
        if self._state is not _OPEN:
            self._receive_handshake(data, now_ms)
            return
        self._last_read_ms = now_ms
        reader = self._reader
        is_small = len(data) <= LARGE_PAYLOAD_BYTES and reader.is_empty
        self._receive_requests(reader.read(data), _decode_request if is_small else _decode_any_request)
        if reader.refused_length and self._state is _OPEN:
            self._check_length()

    def receive(self, data: bytes, now_ms: int) -> list[ServerEvent]:
        """Process the bytes of a read and return the events: ``receive_data`` and ``events`` in a single call."""
        self.receive_data(data, now_ms)
        return self.events()

    def receive_filled(self) -> list[ServerEvent]:
        """Process the large frame that was written into ``space``, if it is complete, and return the events."""
        large = self._reader.take_filled()
        if large is not None:
            self._receive_requests((large.whole(),), _decode_any_request)
            # The decoded bodies are copies.
            large.reuse()
        return self.events()

    def lone_request(self, data: bytes, now_ms: int) -> Request | None:
        """Return the request if ``data`` is exactly the frame of a request that is passed on, and no event is due.

        Otherwise return None and change nothing; ``data`` still has to be received. Most reads hold exactly a single
        request, from a peer that waits for the reply before the next request. For such a read this single call does
        the work of ``receive_data`` and ``events``.
        """
        if self._state is not _OPEN or self._events or not self._reader.is_empty:
            return None
        size = len(data) - HEADER_BYTES
        if not 0 < size <= LARGE_PAYLOAD_BYTES or length_at(data)[0] != size:
            return None
        # ``Any``, because a comparison of the type excludes no class for the type checker.
        message: Any
        try:
            message = _decode_request(data[HEADER_BYTES:])
        except DECODE_ERRORS:
            return None  # receive_data finds the fault and refuses the request
        if type(message) is Cancel:
            return None
        outstanding = self._outstanding
        request_id = message.request_id
        if not outstanding:
            self.lone_id = request_id
        elif request_id in outstanding or len(outstanding) >= self._max_outstanding:
            return None
        else:
            self.lone_id = 0
        outstanding.add(request_id)
        self._last_read_ms = now_ms
        return message

    def reply_to_send(self, reply: AnyReply, now_ms: int) -> bytes:
        """Return the bytes of a single reply: ``send`` and ``data_to_send`` in a single call.

        Raises:
            LocalProtocolError: as ``send``.
        """
        if self._out or self._state is not _OPEN:
            self.send(reply)
            return b"".join(self.data_to_send(now_ms))
        payload = _encode(reply)
        size = len(payload)
        if size > self._max_frame_bytes:
            payload = self._too_large(reply.request_id, size)
            size = len(payload)
        try:
            self._outstanding.remove(reply.request_id)
        except KeyError:
            raise _not_outstanding(reply.request_id) from None
        self._last_write_ms = now_ms
        return header(size) + payload

    def large_reply_to_send(self, reply: MessagesReceived, now_ms: int) -> list[bytes]:
        """Return the bytes of a reply with large bodies as pieces: ``reply_to_send`` without a copy of the bodies.

        Raises:
            LocalProtocolError: as ``send``.
        """
        pieces = encode_pieces(reply)
        size = sum(map(len, pieces))
        if self._out or self._state is not _OPEN or size > self._max_frame_bytes:
            return [self.reply_to_send(reply, now_ms)]
        try:
            self._outstanding.remove(reply.request_id)
        except KeyError:
            raise _not_outstanding(reply.request_id) from None
        self._last_write_ms = now_ms
        pieces[0] = header(size) + pieces[0]
        return pieces

    def replies_to_send(self, replies: Iterable[AnyReply], now_ms: int) -> list[bytes]:
        """Return the bytes of replies: ``send`` for each and ``data_to_send`` in a single call.

        Raises:
            LocalProtocolError: as ``send``; the replies before are queued.
        """
        if self._state is not _OPEN:
            raise LocalProtocolError(f"no reply can be sent in state {self._state.name}")
        most = self._max_frame_bytes
        finish = self._outstanding.remove
        append = self._out.append
        for reply in replies:
            payload = _encode(reply)
            size = len(payload)
            if size > most:
                payload = self._too_large(reply.request_id, size)
                size = len(payload)
            try:
                finish(reply.request_id)
            except KeyError:
                raise _not_outstanding(reply.request_id) from None
            append(header(size))
            append(payload)
        return self.data_to_send(now_ms)

    def send(self, reply: AnyReply) -> None:
        """Queue the reply to an outstanding request. A reply larger than a frame becomes ``REPLY_TOO_LARGE``.

        Raises:
            LocalProtocolError: the connection is not open, or no request with this number is outstanding.
        """
        if self._state is not _OPEN:
            raise LocalProtocolError(f"no reply can be sent in state {self._state.name}")
        payload = _encode(reply)
        size = len(payload)
        if size > self._max_frame_bytes:
            payload = self._too_large(reply.request_id, size)
            size = len(payload)
        try:
            self._outstanding.remove(reply.request_id)
        except KeyError:
            raise _not_outstanding(reply.request_id) from None
        out = self._out
        out.append(header(size))
        out.append(payload)

    def push(self, message: Push) -> None:
        """Queue a message that is not the reply to a request.

        Raises:
            LocalProtocolError: the connection is not open, or the message is larger than a frame.
        """
        if self._state is not _OPEN:
            raise LocalProtocolError(f"nothing can be pushed in state {self._state.name}")
        payload = _encode(message)
        size = len(payload)
        if size > self._max_frame_bytes:
            raise LocalProtocolError(f"the message has {size} bytes; a frame may have {self._max_frame_bytes}")
        self._out.append(header(size))
        self._out.append(payload)

    def _too_large(self, request_id: int, size: int) -> bytes:
        """Encode the error that replaces a reply larger than a frame."""
        text = f"the reply has {size} bytes; a frame may have {self._max_frame_bytes}"
        details = {"value": size, "limit": self._max_frame_bytes}
        return _encode(error(request_id, ErrorCode.REPLY_TOO_LARGE, text, details=details))

    def end(
        self,
        code: ErrorCode,
        text: str,
        *,
        retry_after_ms: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """End the connection with an Error frame behind the queued output. No effect on a connection that is ending."""
        if not self.is_ending:
            self._end(code, text, retry_after_ms=retry_after_ms, details=details)

    # -------------------------------------------------------------- requests

    def _receive_requests(
        self, payloads: Sequence[bytes | memoryview], decode: Callable[[Payload], Request | Cancel]
    ) -> None:
        """Decode the requests, check their numbers and add them to the events. Hot path."""
        outstanding = self._outstanding
        add = outstanding.add
        self.lone_id = 0
        count, most = len(outstanding), self._max_outstanding
        append = self._events.append
        for payload in payloads:
            try:
                message = decode(payload)
            except DECODE_ERRORS as problem:
                if not self._refuse(payload, problem):
                    return
                continue
            if type(message) is Cancel:
                # A cancel has no reply. Without an outstanding request the reply was already sent: ignore the cancel.
                if message.request_id in outstanding:
                    append(message)
                continue
            add(message.request_id)
            if count < len(outstanding) <= most:
                count += 1
                append(message)
            else:
                self._refuse_number(message.request_id, is_new=len(outstanding) > count)

    def _refuse(self, payload: Payload, problem: Exception) -> bool:
        """Refuse a payload that cannot be decoded. Without a request number, end the connection and return False."""
        reply = refuse(payload, problem)
        if reply is None:
            self._malformed(problem)
            return False
        if reply.request_id in self._outstanding:
            self._refuse_number(reply.request_id, is_new=False)
        else:
            self._answer(reply)
        return True

    def _refuse_number(self, request_id: int, *, is_new: bool) -> None:
        if is_new:
            self._outstanding.remove(request_id)
            most = self._max_outstanding
            text = f"the connection has reached its limit of {most} requests in progress"
            self._answer(error(request_id, ErrorCode.TOO_MANY_REQUESTS, text, details={"limit": most}))
        else:
            text = f"request {request_id} is still in progress; the second request with its number was ignored"
            self._answer(error(request_id, ErrorCode.DUPLICATE_REQUEST_ID, text))

    def _answer(self, reply: Error) -> None:
        self._queue(reply)
        self._events.append(RequestRefused(reply))

    # -------------------------------------------------------------- handshake

    def _receive_handshake(self, data: bytes, now_ms: int) -> None:
        handshake = self._handshake
        if self.is_ending or handshake is None:
            return
        self._last_read_ms = now_ms
        # The bound covers the bytes examined before the proof; bytes behind the hello are examined only after it.
        allowed = handshake.bytes_left
        handshake.bytes_left = max(0, allowed - len(data))
        self._reader.feed(data[:allowed])
        if self._state is State.PREAMBLE:
            self._answer_preamble(handshake)
        if self._state is State.HELLO:
            payload = self._reader.next_frame()
            if payload is not None:
                self._answer_hello(handshake, payload)
            elif self._check_length() and not handshake.bytes_left:
                self._end(
                    ErrorCode.FRAME_TOO_LARGE,
                    f"the hello is longer than {HANDSHAKE_BYTES} bytes, the limit",
                    details={"limit": HANDSHAKE_BYTES},
                )
        if self._state is State.OPEN:
            # A client may send its first requests directly behind its hello, without waiting for the welcome.
            self.receive_data(data[allowed:], now_ms)

    def _answer_preamble(self, handshake: _Handshake) -> None:
        offered = self._read_preamble()
        if offered is None:
            return
        highest, lowest = offered
        version = choose_version(highest, lowest)
        if not version:
            text = f"the client speaks versions {lowest} to {highest}, this server {OLDEST_VERSION} to {VERSION}"
            self._end(ErrorCode.UNSUPPORTED_VERSION, text)
            return
        handshake.client_preamble = encode_preamble(highest, lowest)
        handshake.server_preamble = encode_preamble(version, 0)
        self._out.append(handshake.server_preamble)
        self._step(Step.PREAMBLE_ACCEPTED)
        self._queue(handshake.hello)

    def _answer_hello(self, handshake: _Handshake, payload: bytes) -> None:
        try:
            hello = client_hello_decoder.decode(payload)
        except DECODE_ERRORS as problem:
            refusal = hello_refusal(payload, problem)
            if refusal is None:
                self._malformed(problem)
            else:
                self._end(ErrorCode.MALFORMED_FRAME, refusal)
            return
        handshake.offered_secret_id = hello.secret_id
        key = handshake.find_key(hello.secret_id)
        said = transcript(handshake.client_preamble, handshake.server_preamble, handshake.hello, hello)
        # An unknown id costs the same time and gets the same error as a known id: ids cannot be probed.
        proven = same(hello.proof, client_proof((key or NO_KEY).secret_key, said))
        if key is None or not proven or hello.nonce == handshake.hello.nonce:
            self._end(ErrorCode.AUTHENTICATION_FAILED, "unknown access key or wrong proof")
            return
        if hello.region is not None and hello.region != handshake.hello.region:
            text = f"this server serves region {handshake.hello.region!r}, not {hello.region!r}"
            self._end(ErrorCode.WRONG_REGION, text)
            return
        refusal = handshake.count_refusal(key.account)
        if refusal is not None:
            # Refused before the welcome, because a welcomed client could send requests and not learn their outcome.
            self._end(ErrorCode.TOO_MANY_CONNECTIONS, refusal, retry_after_ms=CONNECTION_RETRY_MS)
            return
        self._welcome(handshake, key, hello, said)

    def _welcome(self, handshake: _Handshake, key: AccessKey, hello: ClientHello, said: bytes) -> None:
        max_frame_bytes = tune_max_frame_bytes(self._max_frame_bytes, hello.max_frame_bytes)
        heartbeat_ms = tune_heartbeat_ms(self._heartbeat_ms, hello.heartbeat_ms)
        unproven = Welcome(b"", key.account, max_frame_bytes, heartbeat_ms, self._connection_id)
        proof = server_proof(key.secret_key, said, unproven)
        self._open(max_frame_bytes, heartbeat_ms)
        self._handshake = None
        self._queue(structs.replace(unproven, proof=proof, facts=handshake.facts))
        self._events.append(Authenticated(key.account, hello.secret_id, hello.product, hello.features, hello.name))

    def _queue_last(self, reply: Error) -> None:
        if self._state is State.PREAMBLE:
            # A peer that does not speak the protocol could not read an Error frame; the preamble refuses the peer.
            refused = reply.code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.MALFORMED_FRAME)
            self._out.append(encode_preamble(0, VERSION) if refused else encode_preamble(VERSION, 0))
            if refused:
                return
        self._queue(reply)
