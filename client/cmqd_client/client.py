"""The client: connect to a server, find and make queues, topics and schedules."""

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

import msgspec

from cmqd_client.accounts import Accounts
from cmqd_client.address import Address, parse_address
from cmqd_client.administration.audit import AuditPage, ask_audit
from cmqd_client.administration.inspection import (
    ConnectionPage,
    ConsumerPage,
    Setting,
    WaitingReceivePage,
    ask_connections,
    ask_consumers,
    ask_settings,
    ask_waiting_receives,
)
from cmqd_client.administration.metrics import (
    Metrics,
    QueueMetricsPage,
    TopicMetricsPage,
    TopMetrics,
    ask_metrics,
    ask_queues,
    ask_top,
    ask_topics,
)
from cmqd_client.administration.queue_summaries import QueueSummaryPage, ask_summaries
from cmqd_client.administration.segments import SegmentPage, ask_segments
from cmqd_client.attributes import QueueAttributes, QueueInfo, queue_attributes, queue_info
from cmqd_client.client_names import checked_name, default_name
from cmqd_client.connection import CONNECT_TIMEOUT, REQUEST_TIMEOUT, Connection, TlsOption
from cmqd_client.consumers.consumer import Consumer
from cmqd_client.consumers.running import STOP_SIGNALS, run_consumers
from cmqd_client.contexts import find_address
from cmqd_client.durations import Duration, to_patience, to_seconds
from cmqd_client.errors import ClientClosed
from cmqd_client.events import ClientState, ClientStatistics, OnEvent
from cmqd_client.links.channel import NOT_OPEN, Channel
from cmqd_client.links.hosts_in_turn import Follow, HostsInTurn, Opener
from cmqd_client.links.retry import RetryPolicy
from cmqd_client.messages.histories import MessageHistory, message_history
from cmqd_client.messages.message_ids import id_number
from cmqd_client.messages.request_reply import REPLY_TIMEOUT, Reply, Requester
from cmqd_client.messages.searches import FoundMessages, ask_messages
from cmqd_client.messages.tracing import Tracing, tracing_if_set_up
from cmqd_client.messages.typed_bodies import BodyCodec, BodyFormat, PoisonPolicy
from cmqd_client.pins import Pins
from cmqd_client.queue import Queue
from cmqd_client.results import Done, Listing, QueuePage, SegmentsSealed, ServerStatus
from cmqd_client.schedules import Schedules
from cmqd_client.topic import Topic, TopicAttributes, TopicInfo, TopicPage, topic_attributes, topic_info
from cmqd_client.transactions.check_answers import CHECK_TIMEOUT, CHECKS_AT_ONCE
from cmqd_client.transactions.half_messages import Checker
from cmqd_client.transactions.producer import TransactionProducer
from cmqd_protocol import operations
from cmqd_protocol.limits import DEFAULT_HEARTBEAT_MS
from cmqd_types.actors import StatedClient
from cmqd_types.inspection import ConnectionSort
from cmqd_types.queues import QueueSelection, QueueSort

T = TypeVar("T")

SAME_PATIENCE: Duration = float("nan")
"""Stands for the client's own patience, where None means unlimited."""

PATIENCE = 9.0
"""Seconds for a call with all its attempts: a restart of the server takes a few seconds, and three attempts fit."""


HEARTBEAT_WITH_STANDBY = 2.0
"""Heartbeat in seconds with several hosts: a standby leads within 6 s of the leader's silence, and the client should
leave the silent server by then. Four small packets a second for an idle connection."""


def connect(
    url: str | Address | None = None,
    *,
    context: str | None = None,
    tls: TlsOption = None,
    region: str | None = None,
    connections: int = 1,
    patience: Duration | None = PATIENCE,
    retries: int | None = None,
    request_timeout: Duration = REQUEST_TIMEOUT,
    connect_timeout: Duration = CONNECT_TIMEOUT,
    heartbeat: Duration | None = None,
    product: str = "cmqd-client",
    name: str | None = None,
    on_event: OnEvent | None = None,
    tracing: bool = True,
    follow: Follow | None = None,
) -> "Client":
    """Make a client for the server at ``url``; entering the client connects::

        async with connect("cmq://ID:KEY@localhost") as client:
            await client.queue("orders").send(b"one espresso")

    After a lost connection the client reconnects in the background, with growing, randomized pauses, until it is
    closed. Meanwhile calls wait, as long as their patience lasts.

    Args:
        url: ``cmq://ID:KEY@host[:5680][?region=..&tls=1&name=..]``. Several hosts of a service, ``cmq://ID:KEY@a:5680,b:5680``,
            are tried in turn, the last connected host first; addresses that a standby names come in addition. None =
            the server that ``cmq`` would use: the named context, else the URL in the environment variable CMQ_URL,
            else the current context.
        context: name of a context of ``cmq``, in place of ``url``.
        tls: True = TLS, verified against the system's authorities, or the authorities in the file of the environment
            variable SSL_CERT_FILE; an ``ssl.SSLContext`` = TLS with that context; False = no TLS; None = as in the URL.
        region: refuse a server of another region; None = the URL's region, else any region.
        connections: number of connections, used in turn. A connection carries any number of requests at once, and a
            waiting receive does not block them; more connections help only if the bandwidth of a single connection
            does not suffice.
        patience: time limit for a call, beyond the wait of a receive: all its attempts, the pauses between them and the
            wait for a connection. The error of a call that fails for lack of time says how long the client waited.
            None = unlimited: the call goes on until the server answers.
        retries: most repeats of a failed call, if a repeat is safe. None = as many as the patience allows; 0 = never.
        request_timeout: time limit for the answer to an attempt, beyond the wait of a receive. A repeat follows, so a
            shorter limit finds a lost answer earlier.
        connect_timeout: time limit for an attempt to connect to a host.
        heartbeat: interval of heartbeats; silence of twice that closes the connection. The server may propose a
            shorter interval. 0 = only if the server proposes heartbeats. None = 30 s; with several hosts in the URL 2
            s, so that a machine without power is left for its standby after 4 s.
        product: the software of this client, in the server's log and lists.
        name: the name of this client, in the server's lists and in the history of messages; at most 128 printable
            characters. Clients with equal names are shown as one. None = the URL's name, else the program and the host,
            such as ``worker@web-3``.
        on_event: called with each event: connected, lost, reconnecting ...; see :mod:`cmqd_client.events`.
        tracing: make OpenTelemetry spans, and send their context in headers, if an OpenTelemetry SDK is set up when the
            client is opened; see :mod:`cmqd_client.messages.tracing`.
        follow: called with each address that a server names for itself or its standby, with the key, region and TLS of
            the URL; returns the address to connect to, None = none. By default the address as it is.

    Raises:
        TypeError: there are both a URL and a context.
        ValueError: the URL is malformed, or a number is out of range.
        ContextError: there is no URL, and no server is chosen in another way, or its context is missing or malformed.
    """
    if url is not None and context is not None:
        raise TypeError("connect takes either url or context")
    if url is None:
        address = find_address(context)
    else:
        address = parse_address(url) if isinstance(url, str) else url
    if region is not None:
        address = msgspec.structs.replace(address, region=region)
    if not 1 <= connections <= 64:
        raise ValueError(f"connections is {connections}; it must be 1 to 64")
    if retries is not None and retries < 0:
        raise ValueError(f"retries is {retries}; it must not be negative")
    seconds = to_seconds(request_timeout, "request_timeout")
    opening = to_seconds(connect_timeout, "connect_timeout")
    if seconds <= 0 or opening <= 0:
        raise ValueError("request_timeout and connect_timeout must be more than 0")
    if heartbeat is None:
        heartbeat = HEARTBEAT_WITH_STANDBY if address.others else DEFAULT_HEARTBEAT_MS / 1000
    open_connection = partial(
        Connection.open,
        tls=tls,
        heartbeat=to_seconds(heartbeat, "heartbeat"),
        product=product,
        name=checked_name(name if name is not None else default_name() if address.name is None else address.name),
    )
    make_tracing = partial(tracing_if_set_up, address.host, address.port) if tracing else None
    opener = HostsInTurn(open_connection, address.each(), opening, follow)
    return Client(
        address,
        opener,
        RetryPolicy(retries=retries),
        connections,
        seconds,
        to_patience(patience),
        on_event,
        make_tracing,
    )


class Client:
    """A self-repairing connection to a server, and the account's queues and topics; get the client from
    :func:`connect`.

    Use a client as an async context manager, in one event loop, from any number of tasks.
    """

    __slots__ = ("_channel", "_is_opened", "_policy", "_requester", "address")

    def __init__(
        self,
        address: Address,
        open_connection: Opener,
        policy: RetryPolicy,
        connections: int,
        request_timeout: float,
        patience: float,
        on_event: OnEvent | None = None,
        make_tracing: Callable[[], Tracing | None] | None = None,
    ) -> None:
        self.address: Address = address
        """Address of the server, with the key."""
        self._channel = Channel(open_connection, policy, connections, request_timeout, patience, on_event, make_tracing)
        self._is_opened = False
        self._policy = policy
        self._requester: Requester | None = None

    # ------------------------------------------------------------------ opening and closing

    async def open(self, *, patience: Duration | None = SAME_PATIENCE) -> None:
        """Connect; ``async with`` calls this on entering. Safe to cancel.

        Args:
            patience: how long to wait for a connection; by default the client's patience, None = unlimited, with a
                warning in the log if the first attempt fails.

        Raises:
            ServerUnreachable: no connection in that time, regardless of the number of attempts.
            AuthenticationFailed: the key does not exist, is disabled, or its secret is wrong.
            ConnectionRefused: the server refuses this client for another reason, given in the error.
            ProtocolViolation: there is no cmqd server at this address.
        """
        if self._is_opened:
            raise ClientClosed("the client was opened before; make a new client")
        self._is_opened = True
        try:
            await self._channel.open(None if patience is SAME_PATIENCE else to_patience(patience))
        except BaseException:
            await self._channel.close()
            raise

    async def close(self) -> None:
        """Close all connections; ``async with`` calls this on leaving. Harmless when repeated.

        Waiting receives and requests without a reply end with ``ClientClosed``, and messages on their way to receives
        are released. The reply queue is deleted, if the server answers within a second. Other calls have
        a second to finish; then they end with ``OutcomeUnknown`` or ``ConnectionLost``.
        """
        if self._requester is not None:
            await self._requester.close()
        if self._is_opened:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def state(self) -> ClientState:
        """The state: connected, connecting, refused, closed, or not opened yet."""
        return self._channel.state if self._is_opened else ClientState.NEW

    @property
    def account(self) -> str | None:
        """Name of the account of the key, as told by the server; None = not connected."""
        return self._channel.account

    def learn_addresses(self, addresses: Sequence[str]) -> None:
        """Note addresses (``host:port``) of the service beside those of the URL, as the server names them itself.

        The client looks there for the leader when its server does not answer. Malformed addresses are left out.
        """
        self._channel.learn_addresses(addresses)

    @property
    def max_waiting_requests(self) -> int | None:
        """Requests of a connection that may wait for their replies, waiting receives included, as told by the server;
        the server refuses further requests as ``TooManyRequests``. None = not connected, or the server did not tell.
        """
        return self._channel.max_waiting_requests

    def on_behalf_of(self, client: StatedClient) -> "Client":
        """Return this open client, making its requests for another client: for a gateway, whose callers share it.

        Sends, receives and other changes of messages are shown as those of ``client``. A server without the feature
        shows them as those of this client.
        """
        view = copy(self)
        view._channel = self._channel.on_behalf_of(client)
        return view

    def statistics(self) -> ClientStatistics:
        """Return a snapshot of the counters of this client.

        Raises:
            ClientClosed: the client was never opened.
        """
        return self._require().statistics()

    # ------------------------------------------------------------------ queues

    @overload
    def queue(self, name: str, *, patience: Duration | None = SAME_PATIENCE) -> Queue: ...

    @overload
    def queue(
        self,
        name: str,
        body_type: type[T],
        *,
        body_format: BodyFormat = "json",
        poison: PoisonPolicy = PoisonPolicy.REJECT,
        patience: Duration | None = SAME_PATIENCE,
    ) -> Queue[T]: ...

    def queue(
        self,
        name: str,
        body_type: type[Any] = bytes,
        *,
        body_format: BodyFormat = "json",
        poison: PoisonPolicy = PoisonPolicy.REJECT,
        patience: Duration | None = SAME_PATIENCE,
    ) -> Queue[Any]:
        """Return the handle of a queue. Sends no request: a missing queue shows at the first use, and the client may be
        opened later.

        Args:
            name: the name of the queue.
            body_type: type of the bodies: a msgspec Struct, dataclass, TypedDict, pydantic model, or another type that
                msgspec decodes; see :mod:`cmqd_client.messages.typed_bodies`. By default bodies are bytes.
            body_format: encoding of the bodies that this handle sends; both formats are read.
            poison: what a consumer of this handle does with a body that does not decode.
            patience: time limit for the calls of this handle, as for :func:`connect`; by default the client's.

        Raises:
            TypeError: neither msgspec nor pydantic knows the type.
        """
        channel = self._channel if patience is SAME_PATIENCE else self._patient(patience)
        if body_type is bytes:
            return Queue(channel, name)
        return Queue(channel, name, BodyCodec(body_type, body_format, PoisonPolicy(poison)))

    async def create_queue(self, name: str, **attributes: Unpack[QueueAttributes]) -> Queue:
        """Create a queue. Not repeated after a lost reply: :meth:`ensure_queue` is.

        Args:
            name: 1-64 ASCII letters, digits, ``-``, ``_``; not differing only in case from another queue's.
            **attributes: see :class:`QueueAttributes`; attributes not given have their defaults.

        Raises:
            QueueExists: a queue of this name exists; it was not changed.
            InvalidArgument: the name or a value is out of range.
            TooManyQueues: the account is at its limit of queues.
        """
        info = await self.create_queue_info(name, **attributes)
        return Queue(self._require(), name, request_id=info.request_id)

    async def create_queue_info(self, name: str, **attributes: Unpack[QueueAttributes]) -> QueueInfo:
        """Like :meth:`create_queue`; return the attributes and the id."""
        return queue_info(await self._require().ask(operations.CREATE_QUEUE, name, queue_attributes(attributes)))

    async def ensure_queue(self, name: str, **attributes: Unpack[QueueAttributes]) -> Queue:
        """Create a queue, or check that the existing queue has the given attributes. Repeated after a lost reply.

        Args:
            name: as for :meth:`create_queue`.
            **attributes: see :class:`QueueAttributes`. Other attributes of an existing queue are not compared.

        Raises:
            QueueDiffers: the queue exists with other attributes; ``difference`` shows them. The queue was not changed.
            CmqError: as for :meth:`create_queue`.
        """
        info = await self.ensure_queue_info(name, **attributes)
        return Queue(self._channel, name, request_id=info.request_id)

    async def ensure_queue_info(self, name: str, **attributes: Unpack[QueueAttributes]) -> QueueInfo:
        """Like :meth:`ensure_queue`; return the current attributes and ``created``."""
        return queue_info(await self._require().ask(operations.ENSURE_QUEUE, name, queue_attributes(attributes)))

    async def queues(self, *, search: str = "", offset: int = 0, limit: int = 100) -> QueuePage:
        """List queues of the account, by name. Safe to cancel.

        Args:
            search: only queues with this word in the name.
            offset: number of queues to skip.
            limit: most queues of a page, 1-1,000.
        """
        reply = await self._require().ask(operations.LIST_QUEUES, search, offset, limit)
        ids, names = [number for number, _ in reply.queues], [name for _, name in reply.queues]
        return QueuePage(names, reply.total, reply.request_id, ids)

    async def queue_summaries(
        self,
        *,
        search: str = "",
        sort: QueueSort = "name",
        descending: bool = False,
        selection: QueueSelection = "all",
        offset: int = 0,
        limit: int = 100,
    ) -> QueueSummaryPage:
        """List queues of the account with their messages by state, age and traffic, in any order. Safe to cancel.

        Each queue is shown as of its own moment, and a figure may change between two pages: a queue can be on both
        pages, or on neither.

        Args:
            search: only queues with this word in the name.
            sort: a figure. ``age`` is the age of the oldest message that consumers can receive or hold.
            descending: the largest figures first; queues with equal figures are always in order of name.
            selection: the kind of queues; ``with_messages`` = in any state but rewindable.
            offset: number of queues to skip.
            limit: most queues of a page, 1-1,000.

        Raises:
            UnknownOperation: the server is older than this operation.
        """
        return await ask_summaries(self._require(), search, sort, descending, selection, offset, limit)

    async def delete_queue(self, name: str) -> Done:
        """Delete a queue with all its messages. Not repeated after a lost reply.

        Raises:
            DeadLetterQueueInUse: the queue is the dead-letter queue of other queues; unbind it there first.
            QueueNotFound: the queue does not exist.
        """
        return Done((await self._require().ask(operations.DELETE_QUEUE, name)).request_id)

    @overload
    async def request(
        self,
        queue: str,
        body: bytes,
        *,
        timeout: Duration = REPLY_TIMEOUT,
        headers: Mapping[str, str] | None = None,
    ) -> Reply: ...

    @overload
    async def request(
        self,
        queue: Queue[T],
        body: T,
        *,
        timeout: Duration = REPLY_TIMEOUT,
        headers: Mapping[str, str] | None = None,
    ) -> Reply: ...

    async def request(
        self,
        queue: str | Queue[Any],
        body: Any,
        *,
        timeout: Duration = REPLY_TIMEOUT,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a message and wait for its reply, which a consumer gives with :meth:`Message.reply`.

        The request is stored as by :meth:`Queue.send` and delivered at least once, so a consumer may process it more
        than once; the first reply is returned. Replies come through a queue of this client, which is made at the first
        request and deleted when the client closes, or by the server ten minutes after the last sign of the client.
        Any number of requests can wait at once. A request that is cancelled or times out is not taken back, and its
        reply is dropped. A restart of the server loses neither requests nor replies.

        Args:
            queue: the queue of the request, by name or handle.
            body: 1 byte up to the queue's ``max_message_bytes``; for a handle with a type, a value of the type. The
                body of the reply is bytes in any case.
            timeout: limit for the send and the reply together; more than 0.
            headers: further headers; ``reply-to`` and ``correlation-id`` are set by the client.

        Raises:
            NoReply: the time is over; the request may have been processed, or may still be.
            ClientClosed: the client was closed meanwhile; likewise.
            InvalidArgument: the server is too old for reply queues; the request was not sent.
            TooManyQueues: the account is at its limit of queues; the request was not sent.
            ValueError: the timeout is not positive, or a header is set by the client.
            CmqError: as for :meth:`Queue.send`.
        """
        requester = self._requester
        if requester is None:
            requester = self._requester = Requester(self.queue, self._ensure_raw, self.delete_queue, self._policy)
        target = self.queue(queue) if isinstance(queue, str) else queue
        return await requester.request(target, body, timeout, headers)

    async def _ensure_raw(self, name: str, attributes: Mapping[str, Any]) -> None:
        await self._require().ask(operations.ENSURE_QUEUE, name, dict(attributes))

    @overload
    def transaction_producer(
        self,
        queue: str,
        checker: Checker | None = None,
        *,
        check_timeout: Duration = CHECK_TIMEOUT,
        checks_at_once: int = CHECKS_AT_ONCE,
        first_check: Duration | None = None,
    ) -> TransactionProducer: ...

    @overload
    def transaction_producer(
        self,
        queue: Queue[T],
        checker: Checker[T] | None = None,
        *,
        check_timeout: Duration = CHECK_TIMEOUT,
        checks_at_once: int = CHECKS_AT_ONCE,
        first_check: Duration | None = None,
    ) -> TransactionProducer[T]: ...

    def transaction_producer(
        self,
        queue: str | Queue[Any],
        checker: Checker[Any] | None = None,
        *,
        check_timeout: Duration = CHECK_TIMEOUT,
        checks_at_once: int = CHECKS_AT_ONCE,
        first_check: Duration | None = None,
    ) -> TransactionProducer[Any]:
        """Make a producer of messages that depend on a local transaction; see :class:`TransactionProducer`.

        Args:
            queue: a transactional queue, by name or handle; bodies are of the type of the handle.
            checker: answers the server's checks of undecided messages, of all producers of the queue. None = this
                producer answers no checks; then another producer must, or an operator.
            check_timeout: limit for an async checker; after that the checker is cancelled, and the answer is UNKNOWN.
            checks_at_once: concurrency limit for checks; further checks wait in the order of arrival.
            first_check: time from the send of a half message to its first check; None = the queue's own. Longer than
                local transactions usually take, so that the server does not ask about running transactions.

        Raises:
            ValueError: a number is out of range.
        """
        return TransactionProducer(
            self.queue(queue) if isinstance(queue, str) else queue,
            checker,
            check_timeout=check_timeout,
            checks_at_once=checks_at_once,
            first_check=first_check,
        )

    # ------------------------------------------------------------------ consumers

    async def run(
        self,
        *consumers: Consumer[Any],
        stop_signals: Iterable[signal.Signals] = STOP_SIGNALS,
        grace: Duration | None = None,
    ) -> None:
        """Run consumers until a signal arrives (or a consumer cannot go on), then stop without losing a message.

        Opens the client for that time, if the client is not open, so a worker is a module with this last line::

            asyncio.run(client.run(handle))

        Stopping receives no more, gives back uncounted the messages that no handler has begun, waits for the handlers
        in progress, and settles their messages. A second signal, or the end of ``grace``, cancels the handlers; their
        messages are delivered again at once. Cancelling this call does the same.

        Args:
            *consumers: from :meth:`Queue.consumer`; at least one.
            stop_signals: SIGTERM and SIGINT (Ctrl-C); they have their former effect again when this call returns.
                A handler that the program (for instance its web server) installed before this call is called too.
                Outside the main thread, signals cannot be handled and are left alone.
            grace: time for the handlers in progress; None = as long as they take.

        Raises:
            ValueError: there is no consumer, or a number is out of range.
            CmqError: a consumer cannot go on, see :meth:`Consumer.run`; the others were stopped in the same way. If
                several cannot go on, an ``ExceptionGroup`` of their errors. Or the client cannot be opened, see
                :meth:`open`.
        """
        seconds = None if grace is None else to_seconds(grace, "grace")
        if self._is_opened:
            await run_consumers(consumers, stop_signals, seconds)
            return
        # Without a limit: a worker that starts before its server waits, as it does in any later outage.
        await self.open(patience=None)
        try:
            await run_consumers(consumers, stop_signals, seconds)
        finally:
            await self.close()

    # ------------------------------------------------------------------ topics

    @overload
    def topic(self, name: str, *, patience: Duration | None = SAME_PATIENCE) -> Topic: ...

    @overload
    def topic(
        self,
        name: str,
        body_type: type[T],
        *,
        body_format: BodyFormat = "json",
        patience: Duration | None = SAME_PATIENCE,
    ) -> Topic[T]: ...

    def topic(
        self,
        name: str,
        body_type: type[Any] = bytes,
        *,
        body_format: BodyFormat = "json",
        patience: Duration | None = SAME_PATIENCE,
    ) -> Topic[Any]:
        """Return the handle of a topic. Sends no request: a missing topic shows at the first use.

        Args:
            name: the name of the topic.
            body_type: type of the bodies, as for :meth:`queue`. By default bodies are bytes.
            body_format: encoding of the bodies that this handle publishes.
            patience: time limit for the calls of this handle, as for :func:`connect`; by default the client's.

        Raises:
            TypeError: neither msgspec nor pydantic knows the type.
        """
        codec = None if body_type is bytes else BodyCodec(body_type, body_format)
        return Topic(self._patient(patience), name, codec)

    async def create_topic(self, name: str, **attributes: Unpack[TopicAttributes]) -> Topic:
        """Create a topic. Not repeated after a lost reply: :meth:`ensure_topic` is.

        Args:
            name: 3-64 ASCII letters, digits, ``-``, ``_``; not differing only in case from another topic's. The server
                cuts a longer name to 64 bytes; ``name`` of the result is the resulting name.
            **attributes: see :class:`TopicAttributes`.

        Raises:
            TopicExists: a topic of this name exists; it was not changed.
            InvalidArgument: the name or a value is out of range.
            TooManyTopics: the account is at its limit of topics.
        """
        info = await self.create_topic_info(name, **attributes)
        return Topic(self._require(), info.name, request_id=info.request_id)

    async def create_topic_info(self, name: str, **attributes: Unpack[TopicAttributes]) -> TopicInfo:
        """Like :meth:`create_topic`; return the attributes, the resulting name and the id."""
        given = topic_attributes(attributes)
        return topic_info(await self._require().ask(operations.CREATE_TOPIC, name, given))

    async def ensure_topic(self, name: str, **attributes: Unpack[TopicAttributes]) -> Topic:
        """Create a topic, or check that the existing topic has the given attributes. Repeated after a lost reply.

        Args:
            name: as for :meth:`create_topic`.
            **attributes: see :class:`TopicAttributes`. Other attributes of an existing topic are not compared.

        Raises:
            TopicDiffers: the topic exists with other attributes; ``difference`` shows them. The topic was not changed.
            CmqError: as for :meth:`create_topic`.
        """
        info = await self.ensure_topic_info(name, **attributes)
        return Topic(self._channel, name, request_id=info.request_id)

    async def ensure_topic_info(self, name: str, **attributes: Unpack[TopicAttributes]) -> TopicInfo:
        """Like :meth:`ensure_topic`; return the current attributes and ``created``."""
        given = topic_attributes(attributes)
        return topic_info(await self._require().ask(operations.ENSURE_TOPIC, name, given))

    async def topics(self, *, search: str = "", offset: int = 0, limit: int = 100) -> TopicPage:
        """List topics of the account, by name; arguments as for :meth:`queues`. Safe to cancel."""
        reply = await self._require().ask(operations.LIST_TOPICS, search, offset, limit)
        ids, names = [number for number, _ in reply.topics], [name for _, name in reply.topics]
        return TopicPage(names, reply.total, reply.request_id, ids)

    async def delete_topic(self, name: str) -> Done:
        """Delete a topic that has no subscriptions. Not repeated after a lost reply.

        Raises:
            TopicInUse: the topic has subscriptions; unsubscribe them first.
            TopicNotFound: the topic does not exist.
        """
        return Done((await self._require().ask(operations.DELETE_TOPIC, name)).request_id)

    # ------------------------------------------------------------------ the rest

    @property
    def schedules(self) -> Schedules:
        """Schedules: messages that the server sends at the times of a cron expression."""
        return Schedules(self._require())

    @property
    def accounts(self) -> Accounts:
        """Administration of accounts and keys."""
        return Accounts(self._require())

    @property
    def pins(self) -> Pins:
        """Holds on the log of the server, for programs that copy its files."""
        return Pins(self._require())

    async def status(self) -> ServerStatus:
        """Return the status of the server: version, durability, uptime, counts, storage. Safe to cancel."""
        reply = await self._require().ask(operations.GET_SERVER_STATUS)
        return ServerStatus(reply.status, reply.request_id)

    async def metrics(self) -> Metrics:
        """Return running totals of the account; for ``admin``, of all accounts, and figures of the server. Safe to
        cancel.

        Raises:
            UnknownOperation: the server is older than this operation.
        """
        return await ask_metrics(self._require())

    async def queue_metrics(
        self, *, all_accounts: bool = False, after: tuple[str, str] | None = None, limit: int = 1000
    ) -> QueueMetricsPage:
        """Return a page of the metrics of queues, by account and name. Safe to cancel.

        Args:
            all_accounts: queues of all accounts; only for ``admin``.
            after: begin behind this account and queue: ``next`` of the previous page.
            limit: most queues of a page, 1-1,000. A page may have fewer before the end.

        Raises:
            PermissionDenied: all accounts were asked for, and the account is not ``admin``.
        """
        return await ask_queues(self._require(), all_accounts, after, limit)

    async def topic_metrics(
        self, *, all_accounts: bool = False, after: tuple[str, str] | None = None, limit: int = 1000
    ) -> TopicMetricsPage:
        """Return a page of the metrics of topics, each with its subscriptions; as :meth:`queue_metrics`."""
        return await ask_topics(self._require(), all_accounts, after, limit)

    async def top_metrics(self, limit: int = 100) -> TopMetrics:
        """Return sums over all queues, topics and subscriptions of the account (for ``admin``, of all accounts), and
        the metrics of the queues, topics and subscriptions with the most messages, then with the most traffic. Safe to
        cancel.

        Args:
            limit: most queues, most topics and most subscriptions, 0-1,000.

        Raises:
            UnknownOperation: the server is older than this operation.
        """
        return await ask_top(self._require(), limit)

    async def message_history(self, message_id: str = "", *, receipt_handle: int | None = None) -> MessageHistory:
        """Read the life of a message from the server's log: sent, received, deleted, dead-lettered and so on.

        A key sees the queues and topics of its account; names outside its patterns are hidden. Rows that were reclaimed
        are named where they are missing; the setting ``keep_history_ms`` of the server keeps them.

        Args:
            message_id: any id that the message had, ``Msg-...``.
            receipt_handle: in place of an id: a handle under which the message was received, valid or not.

        Raises:
            MessageNotFound: no readable row of the log tells of the message, or it is of another account.
            InvalidArgument: the id is of another shard; or both an id and a handle were given, or neither.
            UnknownOperation: the server is older.
            ValueError: the string is not a message id.
        """
        number = id_number(message_id) if message_id else None
        reply = await self._channel.ask(operations.GET_MESSAGE_HISTORY, number, receipt_handle)
        return message_history(reply)

    async def find_messages(
        self,
        source: str | None = None,
        *,
        dedup_id: str | None = None,
        header: tuple[str, str] | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        limit: int = 20,
    ) -> FoundMessages:
        """Search the server's log for messages by dedup id or header, oldest first. Safe to cancel.

        A message is found under the id of its send or publish; :meth:`message_history` has its later ids. The server
        reads the rows of the range of time, some of them a request, and this call makes requests until the end.

        Args:
            source: name of the queue, or of the topic, to which the messages were sent; None = any of the account,
                also deleted ones.
            dedup_id: the id that the producer gave.
            header: name and value of a header, in place of a dedup id.
            since: only messages sent at this time or later: a ``datetime`` with a zone, or seconds since 1970. None =
                of the last 24 hours.
            until: only messages sent before this time.
            limit: the search ends with this number of messages.

        Raises:
            QueueNotFound: neither a queue nor a topic has the name.
            PermissionDenied: the key has not the role ``read`` for the name; or no name was given, and the key has not
                all names.
            InvalidArgument: both a dedup id and a header were given, or neither; or the range of time is empty.
            UnknownOperation: the server is older.
        """
        return await ask_messages(self._channel, source, dedup_id, header, since, until, limit)

    async def segments(self, *, after: int = 0, limit: int = 100) -> SegmentPage:
        """Return segments of the server's log by number: rows, times, size, and what keeps each on disk. Safe to
        cancel.

        The server counts in steps, so each segment shows its own moment.

        Args:
            after: begin behind this number: ``next`` of the previous page.
            limit: most segments of a page, 1-1,000. A page may have fewer before the end.

        Raises:
            PermissionDenied: the account is not ``admin``.
            UnknownOperation: the server is older than this operation.
        """
        return await ask_segments(self._require(), after, limit)

    async def connections(
        self,
        *,
        search: str = "",
        sort: ConnectionSort = "since",
        descending: bool = False,
        offset: int = 0,
        limit: int = 100,
    ) -> ConnectionPage:
        """List the connections of the account that have authenticated; for ``admin``, of all accounts. Safe to cancel.

        Args:
            search: only connections with this text in account, key id, address or product, in upper or lower case.
            sort: the order; equal connections are listed in the order of their numbers.
            descending: largest or latest first.
            offset: number of connections to skip.
            limit: most connections of the page, 1-1,000.

        Raises:
            PermissionDenied: the key has not the role ``manage``.
            UnknownOperation: the server is older than this operation.
        """
        return await ask_connections(self._require(), search, sort, descending, offset, limit)

    async def waiting_receives(
        self, *, search: str = "", connection_id: int | None = None, offset: int = 0, limit: int = 100
    ) -> WaitingReceivePage:
        """List the receives of the account that wait for messages, in order of arrival; for ``admin``, of all accounts.
        Safe to cancel.

        Args:
            search: only receives with this text in queue, account or key id, in upper or lower case.
            connection_id: only receives of this connection; None = of all connections.
            offset: number of receives to skip.
            limit: most receives of the page, 1-1,000.

        Raises:
            PermissionDenied: the key has not the role ``manage``.
            UnknownOperation: the server is older than this operation.
        """
        return await ask_waiting_receives(self._require(), search, connection_id, offset, limit)

    async def consumers(self, *, queue: str = "", search: str = "", offset: int = 0, limit: int = 100) -> ConsumerPage:
        """List the consumers of queues of the account, in order of queue and name; for ``admin``, of all accounts. Safe
        to cancel.

        A consumer is a client that asked a queue for messages within the last hour, or that holds messages of it.

        Args:
            queue: only consumers of the queue with this name; empty = of all queues.
            search: only consumers with this text in queue, account, key id, name or host, in upper or lower case.
            offset: number of consumers to skip.
            limit: most consumers of the page, 1-1,000.

        Raises:
            PermissionDenied: the key has not the role ``manage``.
            UnknownOperation: the server is older than this operation.
        """
        return await ask_consumers(self._require(), queue, search, offset, limit)

    async def settings(self) -> Listing[Setting]:
        """Return the settings of the server that are in force, each with default, origin and meaning. Safe to cancel.

        Raises:
            PermissionDenied: the account is not ``admin``, or the key has not the role ``manage``.
            UnknownOperation: the server is older than this operation.
        """
        return await ask_settings(self._require())

    async def audit_entries(
        self,
        *,
        account: str | None = None,
        before: int | None = None,
        after: int = 0,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        search: str = "",
        operation: str = "",
        limit: int = 100,
    ) -> AuditPage:
        """Return entries of the audit trail, newest first: the administrative operations of the last 90 days. Safe to
        cancel.

        Args:
            account: account of the changed objects; None = the caller's own, for ``admin`` every account.
            before: only entries with a lower id: ``next`` of the previous page.
            after: only entries with a higher id, for a program that has the older entries.
            since: only entries of this time or later.
            until: only entries before this time.
            search: only entries with this text, in any case: in the account, key, peer, operation, name or changes.
            operation: only entries of this operation, such as ``delete_queue``.
            limit: most entries of a page, 1-1,000.

        Raises:
            PermissionDenied: the key has not the role ``manage`` for every name, or the account is another account and
                the caller is not ``admin``.
            UnknownOperation: the server is older than this operation.
        """
        return await ask_audit(self._require(), account, before, after, since, until, search, operation, limit)

    async def seal_segments(self) -> SegmentsSealed:
        """Have the server seal the current segment of the log, so that readers of the log find all earlier changes in
        sealed segments. Safe to cancel; the sealing continues then.

        A reader outside the server can delay the sealing while its read transaction on the segment is open.

        Raises:
            PermissionDenied: the account is not ``admin``.
            RequestTimeout: the sealing takes longer, and continues.
        """
        reply = await self._require().ask(operations.SEAL_SEGMENTS)
        return SegmentsSealed(reply.last_lsn, reply.request_id)

    def _patient(self, patience: Duration | None) -> Channel:
        channel = self._channel
        return channel if patience is SAME_PATIENCE else channel.with_patience(to_patience(patience))

    def _require(self) -> Channel:
        if not self._is_opened:
            raise ClientClosed(NOT_OPEN)
        return self._channel

    def __repr__(self) -> str:
        return f"<Client {self.address}>"
