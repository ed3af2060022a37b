"""The connection that kombu's ``Connection`` holds: a client of the broker, and the way of deliveries to the program.

Deliveries come from the event loop's thread in batches. A program without an event loop of its own takes a batch per
``drain_events``, which blocks on a queue. kombu's hub (Celery's prefork worker) watches a socket instead: the session
writes a byte into it with every batch, and the hub then takes all batches.
"""

import asyncio
import queue
import socket
import threading
from typing import TYPE_CHECKING, Any

from cmqd_client import Client, connect
from cmqd_client.address import Address
from cmqd_client.errors import ServerUnreachable
from cmqd_kombu import loop_thread
from cmqd_kombu.consuming import Consuming, Delivery
from cmqd_kombu.options import Options
from cmqd_kombu.routing import Routing
from cmqd_kombu.worker_names import worker_name

if TYPE_CHECKING:
    from cmqd_kombu.channel import Channel


class Session:
    """A connection to the broker with its channels.

    Attributes:
        client: kombu's ``Connection``, as channels and ``maybe_declare`` look for it.
    """

    def __init__(self, client: Any, address: Address, tls: Any, options: Options, connect_timeout: float) -> None:
        """Connect.

        Raises:
            OSError: nothing listens at the address.
            CmqError: the server did not accept the client in time, or refused it.
        """
        self.client: Any = client
        self.options = options
        self.channels: dict[int, Channel] = {}
        self.closed = False
        self._arrived: queue.SimpleQueue[list[Delivery] | Exception] = queue.SimpleQueue()
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._hub: Any = None
        self._lock = threading.Lock()
        self._channel_ids = 0
        # The client waits for a server to appear; kombu has its own retries and wants to know at once.
        _find_server(address, connect_timeout)
        self.thread = loop_thread.acquire()
        try:
            self._broker, self.routing = self.thread.call(_open(address, tls, options, connect_timeout))
        except BaseException:
            loop_thread.release(self.thread)
            raise

    @property
    def usable(self) -> bool:
        """False after ``close``, and in a process that was forked after the session was opened."""
        return not self.closed and self.thread.usable

    # ------------------------------------------------------------------ channels

    def add_channel(self, channel: "Channel") -> int:
        """Register a channel and return its number."""
        with self._lock:
            self._channel_ids += 1
            self.channels[self._channel_ids] = channel
            return self._channel_ids

    def consuming(self) -> Consuming:
        """Make the receiving half of a channel."""
        return Consuming(self._broker, self.routing, self.options, self._put, self._put)

    # ------------------------------------------------------------------ deliveries

    def _put(self, arrived: list[Delivery] | Exception) -> None:
        """Queue a batch or a failure, and wake the hub. Called in the event loop's thread."""
        self._arrived.put(arrived)
        self._rouse()

    def _rouse(self) -> None:
        wake = self._wake
        if wake is not None:
            try:
                wake[1].send(b"\0")
            except OSError:
                pass  # full: the hub is awake already; or closed

    def drain_events(self, timeout: float | None = None) -> None:
        """Hand a batch of messages to their callbacks; wait at most ``timeout`` seconds for a batch (None = no limit).

        Raises:
            TimeoutError: (as ``socket.timeout``) no message came in time.
            CmqError, ChannelError: a consumer failed for good.
        """
        while True:
            try:
                arrived = self._arrived.get(timeout=timeout) if timeout != 0 else self._arrived.get_nowait()
            except queue.Empty:
                raise TimeoutError("no message came in time") from None
            if self._hand_over(arrived):
                return

    def _hand_over(self, arrived: list[Delivery] | Exception) -> bool:
        """Call the callbacks; return False if all messages had been withdrawn meanwhile."""
        if isinstance(arrived, Exception):
            raise arrived
        called = False
        for position, delivery in enumerate(arrived):
            channel = self._channel_of(delivery)
            if channel is None:
                continue
            try:
                called = channel.hand_over(delivery) or called
            except BaseException:
                # The rest of the batch is still buffered: the next call hands it over.
                if arrived[position + 1 :]:
                    self._put(arrived[position + 1 :])
                raise
        return called

    def _channel_of(self, delivery: Delivery) -> "Channel | None":
        consumer = delivery.consumer
        if consumer is None:
            return None
        for channel in list(self.channels.values()):
            if channel.has_consumer(consumer):
                return channel
        return None

    # ------------------------------------------------------------------ kombu's hub

    def watch(self, loop: Any) -> None:
        """Hand messages over in the callbacks of a hub."""
        if self._wake is None:
            reading, writing = socket.socketpair()
            reading.setblocking(False)
            writing.setblocking(False)
            self._wake = reading, writing
        loop.add_reader(self._wake[0].fileno(), self._readable)
        self._hub = loop
        self._wake[1].send(b"\0")  # for what arrived before

    def unwatch(self, loop: Any) -> None:
        """Undo :meth:`watch`."""
        self._hub = None
        if self._wake is not None:
            loop.remove_reader(self._wake[0].fileno())

    def _readable(self) -> None:
        if self._wake is None:
            return
        try:
            while self._wake[0].recv(4096):
                pass
        except OSError:
            pass  # empty
        while True:
            try:
                arrived = self._arrived.get_nowait()
            except queue.Empty:
                return
            try:
                self._hand_over(arrived)
            except BaseException:
                if not self._arrived.empty():
                    self._rouse()
                raise

    # ------------------------------------------------------------------ close

    def close(self) -> None:
        """Close the channels and the connection; in a forked process forget them. Can be repeated."""
        if self.closed:
            return
        usable = self.usable
        for channel in list(self.channels.values()):
            channel.close()
        self.closed = True
        if usable:
            self.thread.call(self._broker.close())
            loop_thread.release(self.thread)
            wake, hub = self._wake, self._hub
            self._wake = None
            if wake is not None:
                if hub is not None:
                    hub.remove_reader(wake[0].fileno())
                for end in wake:
                    end.close()


def _find_server(address: Address, timeout: float) -> None:
    """Return if something listens at one of the addresses.

    Raises:
        OSError: nothing listens at any address; the error of the last.
    """
    *others, last = address.each()
    for each in others:
        try:
            socket.create_connection((each.host, each.port), timeout / len(others)).close()
        except OSError:
            continue
        return
    socket.create_connection((last.host, last.port), timeout).close()


async def _open(address: Address, tls: Any, options: Options, connect_timeout: float) -> tuple[Client, Routing]:
    client = connect(
        address,
        tls=tls,
        connections=options.connections,
        connect_timeout=connect_timeout,
        product="cmqd-kombu",
        name=worker_name() if address.name is None else None,
    )
    try:
        async with asyncio.timeout(connect_timeout):
            await client.open()
    except TimeoutError:
        await client.close()
        raise ServerUnreachable(f"{address} did not accept the connection within {connect_timeout} s") from None
    except BaseException:
        await client.close()
        raise
    return client, Routing(client, options)
