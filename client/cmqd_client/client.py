"""The client: connect to a server, find and make queues and topics."""

from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, Unpack

import msgspec

from cmqd_client.accounts import Accounts
from cmqd_client.address import Address, parse_address
from cmqd_client.attributes import QueueAttributes, QueueInfo, from_wire, to_wire
from cmqd_client.channel import Channel, Opener
from cmqd_client.connection import CONNECT_TIMEOUT, REQUEST_TIMEOUT, Connection, TlsOption
from cmqd_client.durations import Duration, to_seconds
from cmqd_client.errors import ClientClosed
from cmqd_client.queue import Queue
from cmqd_client.results import QueuePage
from cmqd_client.retry import Repeat, RetryPolicy
from cmqd_client.topic import FilterType, Topic, TopicInfo, TopicPage, topic_attributes, topic_info
from cmqd_client.transactions import CHECK_TIMEOUT, CHECKS_AT_ONCE, Checker, TransactionProducer
from cmqd_protocol import messages as wire
from cmqd_protocol.limits import DEFAULT_HEARTBEAT_MS


def connect(
    url: str | Address,
    *,
    tls: TlsOption = None,
    region: str | None = None,
    connections: int = 1,
    retries: int = 2,
    request_timeout: Duration = REQUEST_TIMEOUT,
    connect_timeout: Duration = CONNECT_TIMEOUT,
    heartbeat: Duration = DEFAULT_HEARTBEAT_MS / 1000,
    product: str = "cmqd-client",
) -> "Client":
    """A client for the server at ``url``; it connects when it is entered::

        async with connect("cmq://ID:KEY@localhost") as client:
            await client.queue("orders").send(b"one espresso")

    It stays connected: a lost connection is made anew in the background, with growing, randomized pauses, until the
    client is closed. Meanwhile calls wait, each within its time limits.

    Args:
        url: ``cmq://ID:KEY@host[:5680][?region=..&tls=1]``.
        tls: True = TLS, verified against the system's authorities, or those of the file that the environment variable
            SSL_CERT_FILE names; an ``ssl.SSLContext`` = TLS as it says; False = none; None = what the URL says.
        region: refuse a server of another region; None = what the URL says, else take any.
        connections: how many to use in turn. One carries any number of requests at once, and a waiting receive does not
            block it; more help only where a single one's bandwidth does not suffice.
        retries: how often a call that failed is repeated, if it is safe to repeat. 0 = never.
        request_timeout: how long one attempt of a call may take, beyond the wait of a receive. It includes waiting for
            a connection. So a call takes at most about ``(retries + 1) * request_timeout`` and the pauses between.
        connect_timeout: how long one attempt to connect may take.
        heartbeat: how often the connection shows signs of life at least; twice that in silence ends it. The server may
            want it shorter. 0 = only if the server wants it.
        product: what the server's log calls this client.

    Raises:
        ValueError: the URL is malformed, or a number is out of range.
    """
    address = parse_address(url) if isinstance(url, str) else url
    if region is not None:
        address = msgspec.structs.replace(address, region=region)
    if not 1 <= connections <= 64:
        raise ValueError(f"connections is {connections}; it must be 1 to 64")
    if retries < 0:
        raise ValueError(f"retries is {retries}; it must not be negative")
    seconds = to_seconds(request_timeout, "request_timeout")
    opening = to_seconds(connect_timeout, "connect_timeout")
    if seconds <= 0 or opening <= 0:
        raise ValueError("request_timeout and connect_timeout must be more than 0")
    open_connection = partial(
        Connection.open,
        address,
        tls=tls,
        timeout=opening,
        heartbeat=to_seconds(heartbeat, "heartbeat"),
        product=product,
    )
    return Client(address, open_connection, RetryPolicy(retries=retries), connections, seconds)


class Client:
    """A connection to a server that mends itself, and the account's queues and topics; get it from :func:`connect`.

    Use it as an async context manager, in one event loop, from any number of tasks.
    """

    __slots__ = ("_channel", "_make_channel", "address")

    def __init__(
        self,
        address: Address,
        open_connection: Opener,
        policy: RetryPolicy,
        connections: int,
        request_timeout: float,
    ) -> None:
        self.address: Address = address
        """Address of the server, with the key."""
        self._make_channel = partial(Channel, open_connection, policy, connections, request_timeout)
        self._channel: Channel | None = None

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        """Connect; what ``async with`` does on entering. Safe to cancel.

        Raises:
            ServerUnreachable: not within ``request_timeout``, however often it was tried.
            AuthenticationFailed: the key does not exist, is disabled, or its secret is another one.
            ConnectionRefused: the server said why else it does not want this client.
            ProtocolViolation: there is no cmqd server at this address.
        """
        if self._channel is not None:
            raise ClientClosed("a client is opened once")
        channel = self._channel = self._make_channel()
        try:
            await channel.open()
        except BaseException:
            await channel.close()
            raise

    async def close(self) -> None:
        """Close all connections; what leaving ``async with`` does. Harmless when repeated.

        Waiting receives end with ``ClientClosed``, and messages on their way to them are handed back. Other calls have
        a second to finish; then they end with ``OutcomeUnknown`` or ``ConnectionLost``.
        """
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ queues

    def queue(self, name: str) -> Queue:
        """The handle of a queue. Asks nothing of the server: that the queue is missing shows when it is used."""
        return Queue(self._require(), name)

    async def create_queue(self, name: str, **attributes: Unpack[QueueAttributes]) -> Queue:
        """Create a queue. Not repeated after a lost answer: :meth:`ensure_queue` is.

        Args:
            name: 1-64 ASCII letters, digits, ``-``, ``_``; not differing only in case from another queue's.
            **attributes: see :class:`QueueAttributes`; those not named have their defaults.

        Raises:
            QueueExists: there is one of this name; it was not changed.
            InvalidArgument: the name or a value is out of range.
            TooManyQueues: the account has as many as it may.
            OutcomeUnknown: it may exist now.
        """
        channel = self._require()
        request = wire.CreateQueue(channel.next_request_id(), name, to_wire(attributes))
        await channel.call(request, wire.QueueInfo, Repeat.ONCE)
        return Queue(channel, name)

    async def ensure_queue(self, name: str, **attributes: Unpack[QueueAttributes]) -> Queue:
        """Create a queue unless it exists already; then the attributes named must agree. Repeated after a lost answer.

        Args:
            name: as for :meth:`create_queue`.
            **attributes: see :class:`QueueAttributes`. What an existing queue has besides is not looked at.

        Raises:
            QueueDiffers: it exists with other attributes; ``difference`` shows them. Nothing was changed.
            CmqError: as for :meth:`create_queue`.
        """
        await self.ensure_queue_info(name, **attributes)
        return Queue(self._require(), name)

    async def ensure_queue_info(self, name: str, **attributes: Unpack[QueueAttributes]) -> QueueInfo:
        """Like :meth:`ensure_queue`; what there is now, and whether this call created it."""
        channel = self._require()
        request = wire.EnsureQueue(channel.next_request_id(), name, to_wire(attributes))
        return from_wire(await channel.call(request, wire.QueueInfo, Repeat.SAFE))

    async def queues(self, *, search: str = "", offset: int = 0, limit: int = 100) -> QueuePage:
        """List queues of the account, by name. Safe to cancel.

        Args:
            search: only those whose name contains this word.
            offset: how many to skip.
            limit: how many at most, 1-1,000.
        """
        channel = self._require()
        request = wire.ListQueues(channel.next_request_id(), search, offset, limit)
        reply = await channel.call(request, wire.QueueList, Repeat.READ)
        return QueuePage([name for _, name in reply.queues], reply.total, reply.request_id)

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with all its messages. Not repeated after a lost answer.

        Raises:
            DeadLetterQueueInUse: other queues send their dead letters there; unbind it there first.
            QueueNotFound: there is no such queue.
            OutcomeUnknown: it may be deleted.
        """
        channel = self._require()
        await channel.call(wire.DeleteQueue(channel.next_request_id(), name), wire.Done, Repeat.ONCE)

    def transaction_producer(
        self,
        queue: str,
        checker: Checker | None = None,
        *,
        check_timeout: Duration = CHECK_TIMEOUT,
        checks_at_once: int = CHECKS_AT_ONCE,
        first_check: Duration | None = None,
    ) -> TransactionProducer:
        """A producer of messages that depend on a local transaction; see :class:`TransactionProducer`.

        Args:
            queue: name of a transactional queue.
            checker: answers the server's questions about undecided messages; None = this producer answers none.
            check_timeout: how long an async checker may take.
            checks_at_once: how many checks are answered at the same time.
            first_check: from the send of a half message to its first check; None = the queue's own.

        Raises:
            ValueError: a number is out of range.
        """
        return TransactionProducer(
            self.queue(queue),
            checker,
            check_timeout=check_timeout,
            checks_at_once=checks_at_once,
            first_check=first_check,
        )

    # ------------------------------------------------------------------ topics

    def topic(self, name: str) -> Topic:
        """The handle of a topic. Asks nothing of the server: that the topic is missing shows when it is used."""
        return Topic(self._require(), name)

    async def create_topic(
        self,
        name: str,
        *,
        filter_type: FilterType | Literal["tag", "routing"] | None = None,
        max_message_bytes: int | None = None,
    ) -> Topic:
        """Create a topic. Not repeated after a lost answer: :meth:`ensure_topic` is.

        Args:
            name: 3-64 ASCII letters, digits, ``-``, ``_``; not differing only in case from another topic's. The server
                cuts a longer name to 64 bytes; ``name`` of the result is the one that it used.
            filter_type: see :class:`FilterType`; it cannot be changed later. None = ``TAG``.
            max_message_bytes: longest body; 1,024-1,048,576, None = 65,536.

        Raises:
            TopicExists: there is one of this name; it was not changed.
            InvalidArgument: the name or a value is out of range.
            TooManyTopics: the account has as many as it may.
            OutcomeUnknown: it may exist now.
        """
        channel = self._require()
        attributes = topic_attributes(filter_type, max_message_bytes)
        request = wire.CreateTopic(channel.next_request_id(), name, attributes)
        reply = await channel.call(request, wire.TopicInfo, Repeat.ONCE)
        return Topic(channel, reply.topic)

    async def ensure_topic(
        self,
        name: str,
        *,
        filter_type: FilterType | Literal["tag", "routing"] | None = None,
        max_message_bytes: int | None = None,
    ) -> Topic:
        """Create a topic unless it exists already; then what is named must agree. Repeated after a lost answer.

        Args:
            name: as for :meth:`create_topic`.
            filter_type: likewise; None = that of an existing topic is not looked at.
            max_message_bytes: likewise.

        Raises:
            TopicDiffers: it exists with other attributes; ``difference`` shows them. Nothing was changed.
            CmqError: as for :meth:`create_topic`.
        """
        await self.ensure_topic_info(name, filter_type=filter_type, max_message_bytes=max_message_bytes)
        return Topic(self._require(), name)

    async def ensure_topic_info(
        self,
        name: str,
        *,
        filter_type: FilterType | Literal["tag", "routing"] | None = None,
        max_message_bytes: int | None = None,
    ) -> TopicInfo:
        """Like :meth:`ensure_topic`; what there is now, and whether this call created it."""
        channel = self._require()
        attributes = topic_attributes(filter_type, max_message_bytes)
        request = wire.EnsureTopic(channel.next_request_id(), name, attributes)
        return topic_info(await channel.call(request, wire.TopicInfo, Repeat.SAFE))

    async def topics(self, *, search: str = "", offset: int = 0, limit: int = 100) -> TopicPage:
        """List topics of the account, by name. Safe to cancel.

        Args:
            search: only those whose name contains this word.
            offset: how many to skip.
            limit: how many at most, 1-1,000.
        """
        channel = self._require()
        request = wire.ListTopics(channel.next_request_id(), search, offset, limit)
        reply = await channel.call(request, wire.TopicList, Repeat.READ)
        return TopicPage([name for _, name in reply.topics], reply.total, reply.request_id)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic that has no subscriptions. Not repeated after a lost answer.

        Raises:
            TopicInUse: it has some; unsubscribe them first.
            TopicNotFound: there is no such topic.
            OutcomeUnknown: it may be deleted.
        """
        channel = self._require()
        await channel.call(wire.DeleteTopic(channel.next_request_id(), name), wire.Done, Repeat.ONCE)

    # ------------------------------------------------------------------ the rest

    @property
    def accounts(self) -> Accounts:
        """Administration of accounts and keys."""
        return Accounts(self._require())

    async def status(self) -> dict[str, Any]:
        """Return the status of the server: version, durability, uptime, counts, storage. Safe to cancel."""
        channel = self._require()
        request = wire.GetServerStatus(channel.next_request_id())
        return (await channel.call(request, wire.ServerStatus, Repeat.READ)).status

    async def seal_segments(self) -> int:
        """Have the server seal the segment of the log that it is writing, so that readers of the log find all that was
        answered before in sealed segments; the number of the last row in them. Safe to cancel; it goes on then.

        A reader from outside can hold up the sealing for as long as it looks at an old state of the segment.

        Raises:
            PermissionDenied: the account is not ``admin``.
            RequestTimeout: it takes longer, and goes on.
        """
        channel = self._require()
        request = wire.SealSegments(channel.next_request_id())
        return (await channel.call(request, wire.SegmentsSealed, Repeat.READ)).last_lsn

    def _require(self) -> Channel:
        if self._channel is None:
            raise ClientClosed("the client is not open; use it in `async with`, or await client.open()")
        return self._channel

    def __repr__(self) -> str:
        return f"<Client {self.address}>"
