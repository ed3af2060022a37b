"""Client side of a connection without I/O: bytes in, events out; requests in, bytes out. ``endpoint`` has the usage."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct, structs

from cmqd_protocol.endpoint import Endpoint
from cmqd_protocol.events import ConnectionEnded, Opened
from cmqd_protocol.features import (
    FIELD_FEATURES,
    ServerFacts,
    check_unused,
    fields_not_named,
)
from cmqd_protocol.frames import Payload, encode_preamble, header
from cmqd_protocol.handshake import (
    client_proof,
    same,
    server_proof,
    transcript,
    tune_heartbeat_ms,
    tune_max_frame_bytes,
)
from cmqd_protocol.limits import (
    AUTHENTICATION_TIMEOUT_MS,
    DEFAULT_HEARTBEAT_MS,
    DEFAULT_MAX_FRAME_BYTES,
    MAX_REQUEST_ID,
    NONCE_BYTES,
    OLDEST_VERSION,
    VERSION,
)
from cmqd_protocol.messages import (
    PUSH_TYPES,
    AnyReply,
    Cancel,
    ClientHello,
    Error,
    Push,
    Request,
    ServerHello,
    Welcome,
    encoder,
    error,
    reply_decoder,
    server_hello_decoder,
    welcome_decoder,
)
from cmqd_protocol.protocol_errors import ErrorCode, LocalProtocolError
from cmqd_protocol.refusal import DECODE_ERRORS
from cmqd_protocol.states import Role, State, Step

ClientEvent: TypeAlias = Opened | AnyReply | Push | ConnectionEnded

_OPEN: Final = State.OPEN
_encode = encoder.encode
_decode_reply = reply_decoder.decode


class ClientConnection(Endpoint[Opened | AnyReply | Push]):
    """Client side of a connection.

    ``data_to_send()`` has the preamble from the start. Events: ``Opened``, then replies, then at most one
    ``ConnectionEnded``. Every request that was sent gets exactly one reply, cancelled or not, unless the connection
    ends first: the outcome of the request is then unknown.
    """

    __slots__ = (
        "_client_preamble",
        "_hello",
        "_last_id",
        "_not_named",
        "_said",
        "_secret_key",
        "_server",
        "_server_preamble",
    )
    role = Role.CLIENT

    def __init__(
        self,
        *,
        secret_id: str,
        secret_key: str,
        nonce: bytes,
        now_ms: int,
        region: str | None = None,
        product: str = "",
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        heartbeat_ms: int = DEFAULT_HEARTBEAT_MS,
        handshake_timeout_ms: int = AUTHENTICATION_TIMEOUT_MS,
        features: Iterable[str] = (),
        name: str = "",
    ) -> None:
        """Start the handshake of a new connection.

        Args:
            nonce: 32 random bytes that were never used before.
            region: expected region; a server of a different region refuses the client. None = any region.
            features: words of ``features.ClientFeature`` that the shell acts on.
            name: name of this client, for the history of messages; at most 128 printable characters.
        """
        if len(nonce) != NONCE_BYTES:
            raise LocalProtocolError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        super().__init__(
            max_frame_bytes=max_frame_bytes, heartbeat_ms=heartbeat_ms, timeout_ms=handshake_timeout_ms, now_ms=now_ms
        )
        self._secret_key = secret_key
        self._hello = ClientHello(
            secret_id=secret_id,
            nonce=nonce,
            proof=b"",
            max_frame_bytes=max_frame_bytes,
            heartbeat_ms=heartbeat_ms,
            region=region,
            product=product,
            features=tuple(features),
            name=name,
        )
        self._server: ServerHello | None = None
        self._not_named: Mapping[type[Struct], Mapping[str, str]] = {}
        """Fields of requests that this server would ignore; empty until the welcome."""
        self._said = b""
        self._last_id = 0
        self._client_preamble = encode_preamble(VERSION, OLDEST_VERSION)
        self._server_preamble = b""
        self._out.append(self._client_preamble)

    def receive_data(self, data: bytes, now_ms: int) -> None:
        """Process the bytes of a read. Take ``events()`` and write ``data_to_send()`` afterwards."""
        if self._state is not _OPEN:
            self._receive_handshake(data, now_ms)
            return
        self._last_read_ms = now_ms
        reader = self._reader
        self._receive_replies(reader.read(data))
        if reader.refused_length and self._state is _OPEN:
            self._check_length()

    def next_request_id(self) -> int:
        """Return a number that no outstanding request has."""
        request_id = self._last_id
        while True:
            request_id = request_id % MAX_REQUEST_ID + 1
            if request_id not in self._outstanding:
                self._last_id = request_id
                return request_id

    def send(self, message: Request | Cancel) -> None:
        """Queue a request, or the ``Cancel`` of an outstanding request. A ``Cancel`` without its request is dropped.

        A request that raises is not queued.

        Raises:
            LocalProtocolError: the connection is not open, the number is out of range or in use, or the request is
                larger than a frame.
            FeatureNotNamed: the request uses a field that this server would ignore.
        """
        if self._state is not _OPEN:
            raise LocalProtocolError(f"nothing can be sent in state {self._state.name}")
        request_id = message.request_id
        if type(message) is Cancel:
            if request_id in self._outstanding:
                self._queue(message)
            return
        if not 0 < request_id <= MAX_REQUEST_ID or request_id in self._outstanding:
            raise LocalProtocolError(f"request number {request_id} is out of range or in use")
        if self._not_named:
            fields = self._not_named.get(type(message))
            if fields is not None:
                check_unused(message, fields)
        payload = _encode(message)
        size = len(payload)
        if size > self._max_frame_bytes:
            raise LocalProtocolError(f"the request has {size} bytes; a frame may have {self._max_frame_bytes}")
        self._outstanding.add(request_id)
        out = self._out
        out.append(header(size))
        out.append(payload)

    def _receive_replies(self, payloads: Sequence[Payload]) -> None:
        remove = self._outstanding.remove
        append = self._events.append
        for payload in payloads:
            try:
                message = _decode_reply(payload)
            except DECODE_ERRORS as problem:
                self._malformed(problem)
                return
            if type(message) in PUSH_TYPES:
                append(message)
                continue
            # A look-up of the type does not narrow types for a type checker; ``isinstance`` of a Struct costs ten times
            # as much.
            reply: Any = message
            try:
                remove(reply.request_id)
            except KeyError:
                self._receive_unasked(reply)
                return
            append(reply)

    def _receive_unasked(self, message: AnyReply) -> None:
        if type(message) is Error and message.request_id == 0:
            self._ended_by_peer(message)
        else:
            text = f"a reply came to request {message.request_id}, which does not wait for a reply"
            self._end(ErrorCode.MALFORMED_FRAME, text)

    def _ended_by_peer(self, message: Error) -> None:
        self._step(Step.ENDED)
        self._ended(message, by_peer=True)

    # -------------------------------------------------------------- handshake

    def _receive_handshake(self, data: bytes, now_ms: int) -> None:
        if self.is_ending:
            return
        self._last_read_ms = now_ms
        self._reader.feed(data)
        if self._state is State.PREAMBLE:
            self._accept_preamble()
        while self._state in (State.HELLO, State.PROOF):
            payload = self._reader.next_frame()
            if payload is None:
                self._check_length()
                return
            self._accept_frame(payload)
        if self._state is State.OPEN:
            self.receive_data(b"", now_ms)

    def _accept_preamble(self) -> None:
        answer = self._read_preamble()
        if answer is None:
            return
        version, highest = answer
        if not OLDEST_VERSION <= version <= VERSION:
            text = f"this client speaks versions {OLDEST_VERSION} to {VERSION}; the server chose {version}"
            text += f" and speaks up to {highest}" if highest else ""
            self._step(Step.ENDED)
            self._ended(error(0, ErrorCode.UNSUPPORTED_VERSION, text), by_peer=True)
            return
        self._server_preamble = encode_preamble(version, highest)
        self._step(Step.PREAMBLE_ACCEPTED)

    def _accept_frame(self, payload: bytes) -> None:
        decoder = server_hello_decoder if self._state is State.HELLO else welcome_decoder
        try:
            message = decoder.decode(payload)
        except DECODE_ERRORS as problem:
            self._malformed(problem)
            return
        if isinstance(message, Error):
            self._ended_by_peer(message)
        elif isinstance(message, ServerHello):
            self._answer_hello(message)
        else:
            self._accept_welcome(message)

    def _answer_hello(self, server: ServerHello) -> None:
        ours = self._hello
        if server.nonce == ours.nonce:
            self._end(ErrorCode.AUTHENTICATION_FAILED, "the server repeated this client's nonce")
            return
        self._server = server
        self._said = transcript(self._client_preamble, self._server_preamble, server, ours)
        proof = client_proof(self._secret_key, self._said)
        self._step(Step.HELLO_ANSWERED)
        self._queue(structs.replace(ours, proof=proof))

    def _accept_welcome(self, welcome: Welcome) -> None:
        server = self._server
        assert server is not None  # the server's hello leads to state PROOF
        if not same(welcome.proof, server_proof(self._secret_key, self._said, welcome)):
            self._end(ErrorCode.AUTHENTICATION_FAILED, "the server did not prove that it knows the secret key")
            return
        max_frame_bytes = tune_max_frame_bytes(server.max_frame_bytes, self._max_frame_bytes)
        heartbeat_ms = tune_heartbeat_ms(server.heartbeat_ms, self._heartbeat_ms)
        if (welcome.max_frame_bytes, welcome.heartbeat_ms) != (max_frame_bytes, heartbeat_ms):
            # Different values on the two sides would end the connection later, with a timeout or a frame that is
            # too large, and the cause would be hard to find.
            text = f"the server chose {welcome.max_frame_bytes} bytes and {welcome.heartbeat_ms} ms"
            self._end(ErrorCode.MALFORMED_FRAME, f"{text}; the proposals give {max_frame_bytes} and {heartbeat_ms}")
            return
        self._open(max_frame_bytes, heartbeat_ms)
        facts = ServerFacts.from_wire(welcome.facts)
        self._not_named = fields_not_named(FIELD_FEATURES, facts.features)
        self._events.append(
            Opened(
                account=welcome.account,
                connection_id=welcome.connection_id,
                region=server.region,
                product=server.product,
                max_frame_bytes=max_frame_bytes,
                heartbeat_ms=heartbeat_ms,
                facts=facts,
            )
        )
