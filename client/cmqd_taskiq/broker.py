"""The broker class of taskiq."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from taskiq import AsyncBroker
from taskiq.abc.middleware import TaskiqMiddleware
from taskiq.acks import AckableMessage
from taskiq.exceptions import TaskRejectedError
from taskiq.message import BrokerMessage, TaskiqMessage
from taskiq.result import TaskiqResult

from cmqd_client import Client, ConsumedMessage, QueueAttributes, Reject, Retry, connect
from cmqd_client.connection import TlsOption
from cmqd_client.consumers.consumer import MessageStream
from cmqd_client.durations import Duration
from cmqd_client.errors import QueueNotFound
from cmqd_client.foreign_names import usable_queue_name
from cmqd_taskiq.listening import Listener, rejection
from cmqd_taskiq.sending import delay_of, headers_of, queue_of, time_of

QUEUE = "taskiq"
"""Name of the queue, unless another is chosen."""
LEASE = 30.0
"""Default lease in seconds: how late the tasks of a killed worker are delivered again."""

send_time: ContextVar[datetime | None] = ContextVar("send_time", default=None)
"""Time at which a task that is sent in this context becomes active, in place of its labels; None = by its labels."""


class CmqBroker(AsyncBroker):
    """Sends tasks to a queue, and lets a worker listen to it; see :mod:`cmqd_taskiq`.

    The broker connects in ``startup``, and can be started again after ``shutdown``. ``taskiq worker`` and ``taskiq
    scheduler`` call both.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str = QUEUE,
        queue_attributes: QueueAttributes | None = None,
        create_queues: bool = True,
        lease: Duration = LEASE,
        tls: TlsOption = None,
        task_id_generator: Callable[[], str] | None = None,
    ) -> None:
        """Make a broker.

        Args:
            url: ``cmq://ID:KEY@host``; None = the server that ``cmq`` would use, see :func:`cmqd_client.connect`.
            queue: the queue of tasks without a label ``queue_name``, to which workers of this broker listen. A name
                that the server does not allow stands for a legal name, see :mod:`cmqd_client.foreign_names`.
            queue_attributes: attributes of that queue, with which it is created, and with which it must agree if it
                exists. A queue takes tasks of up to 64 KiB unless ``max_message_bytes`` says otherwise (up to 1 MiB).
            create_queues: create queues that do not exist, the dead-letter queue of ``queue_attributes`` included, at
                the start or at the first task; False = refuse.
            lease: how late the tasks of a killed worker are delivered again, 1 s - 12 h. A task that blocks the event
                loop of its worker for that long loses the leases of all tasks of the worker.
            tls: see :func:`cmqd_client.connect`.
            task_id_generator: makes the ids of tasks.

        Raises:
            ValueError: the lease is out of range, or attributes of the queue are given and no queue may be created.
        """
        super().__init__()
        if task_id_generator is not None:
            self.id_generator = task_id_generator
        if queue_attributes and not create_queues:
            raise ValueError("queue_attributes are for queues that the broker creates; create_queues is False")
        self.queue_name: str = usable_queue_name(queue)
        """Name of the queue of the server."""
        self._url = url
        self._tls = tls
        self._queue_attributes = queue_attributes or QueueAttributes()
        self._create_queues = create_queues
        self._lease = lease
        self._resources = AsyncExitStack()
        self._client: Client | None = None
        self._listeners: list[Listener] = []
        self.add_middlewares(_Rejections())

    @property
    def client(self) -> Client:
        """The open client, for tasks that use queues and topics themselves.

        Raises:
            RuntimeError: the broker is not started.
        """
        if self._client is None:
            raise RuntimeError("the broker is not started; call startup() first")
        return self._client

    # ------------------------------------------------------------------ startup and shutdown

    async def startup(self) -> None:
        """Connect, create the queue if it is missing, and run taskiq's handlers of the start.

        Raises:
            CmqError: the server is not reached (a worker waits for it instead) or refuses the key; or the queue differs
                from its given attributes.
        """
        if self._client is None:
            client = connect(self._url, tls=self._tls, product="cmqd-taskiq")
            if self.is_worker_process:
                # A worker that starts before its server waits, as it does in any later outage.
                await client.open(patience=None)
            else:
                await client.open()
            self._resources.push_async_callback(client.close)
            self._client = client
            try:
                if self._create_queues:
                    await self._create_queue(self.queue_name)
            except BaseException:
                await self._disconnect()
                raise
        await super().startup()

    async def shutdown(self) -> None:
        """Run taskiq's handlers of the end, and disconnect.

        Tasks that still run keep running. Their messages are delivered again when their leases end.
        """
        try:
            await super().shutdown()
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.close()
        # First the streams, last the client.
        resources, self._resources = self._resources, AsyncExitStack()
        await resources.aclose()
        self._client = None

    # ------------------------------------------------------------------ send

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; when this returns, the server has fsynced the message.

        A send that is repeated after a lost answer is stored once.

        Raises:
            CmqError: as for :meth:`cmqd_client.Queue.send`; taskiq's ``kiq`` raises ``SendTaskError`` from it.
            ValueError: the label ``delay`` or ``at`` is malformed.
        """
        client = self.client
        time, delay = send_time.get(), None
        if time is None:
            delay = delay_of(message.labels)
            # A retry that sets a delay sends the labels of the first attempt too, with a time that has passed.
            time = time_of(message.labels) if delay is None else None
        name = queue_of(message.labels, self.queue_name)
        headers = headers_of(message.task_id, message.task_name, message.labels)
        queue = client.queue(name)
        try:
            await queue.send(message.message, delay=delay, at=time, headers=headers)
        except QueueNotFound:
            if not self._create_queues:
                raise
            await self._create_queue(name)
            await queue.send(message.message, delay=delay, at=time, headers=headers)

    async def _create_queue(self, name: str) -> None:
        if name != self.queue_name:
            await self.client.ensure_queue(name)
            return
        dead_letter_queue = self._queue_attributes.get("dead_letter_queue")
        if dead_letter_queue:
            await self.client.ensure_queue(dead_letter_queue)
        await self.client.ensure_queue(name, **self._queue_attributes)

    # ------------------------------------------------------------------ listen

    def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield messages as taskiq asks for them, through outages of any length.

        Messages are received ahead only while taskiq takes them at once, as many as it takes within 0.2 s. An unknown
        task is tried again later, because another worker may know it; a message that is no task becomes a dead letter.

        Raises:
            RuntimeError: the broker is not started.
            CmqError: (from the iteration) the queue is gone, or the key is refused.
        """
        queue, resources = self.client.queue(self.queue_name), self._resources

        async def open_stream() -> MessageStream[ConsumedMessage[bytes]]:
            return await resources.enter_async_context(queue.consume(concurrency=None, lease=self._lease))

        listener = Listener(open_stream, self._problem_of)
        self._listeners.append(listener)
        return listener.messages()

    def _problem_of(self, message: ConsumedMessage[bytes]) -> Reject | Retry | None:
        """Return the reason for which taskiq would drop a message; None = taskiq can run the message.

        The body is decoded here and again by taskiq, which acknowledges, and so deletes, a message that it cannot
        decode. The headers do not say whether this worker's formatter can.
        """
        try:
            task = self.formatter.loads(message.raw_body)
            task.parse_labels()
        except Exception as error:
            return Reject(f"no task of taskiq: {type(error).__name__}: {error}")
        if self.find_task(task.task_name) is None:
            return Retry(reason=f"this worker has no task {task.task_name!r}")
        return None


class _Rejections(TaskiqMiddleware):
    """Notes that a task rejects its message, for the acknowledgement that follows in the same asyncio task."""

    def on_error(self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException) -> None:
        if isinstance(exception, TaskRejectedError):
            rejection.set(f"rejected by the task {message.task_name}")
