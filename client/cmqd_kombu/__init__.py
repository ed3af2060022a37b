"""A kombu transport over :mod:`cmqd_client`: Celery, and every program on kombu, with cmqd as its broker.

Importing the package registers the URL scheme ``cmq``::

    import cmqd_kombu  # registers cmq://
    from celery import Celery

    app = Celery("shop", broker="cmq://ID:KEY@localhost")

AMQP terms in the broker:

* A queue is a queue. Names outside of the broker's alphabet are mapped, see :mod:`cmqd_client.foreign_names`.
* An exchange is a topic, a binding is a subscription of the queue. So bindings are durable and shared by all processes,
  and a publish to an exchange stores all its copies in one step. The default exchange sends to the queue directly.
* An unacknowledged message is in flight under a lease. The transport extends the leases of all messages that the
  process holds, as long as the process lives: a task may run for hours with ``acks_late``, and the tasks of a killed
  worker come back within :data:`~cmqd_kombu.options.LEASE` seconds.
* A task with an ETA waits in the broker, not in the memory of a worker.
* A consumer waits in long polls of 30 s.

Delivery is at least once. A publish that kombu retries is stored once, also over a new connection (within the 5 minutes
in which the broker remembers its dedup id).

The transport runs asyncio in a thread of its own, one per process. It is made for processes and threads (Celery's pools
prefork, solo and threads), not for gevent and eventlet.
"""

from cmqd_types.sentences import missing_extra

try:
    from kombu.transport import TRANSPORT_ALIASES

    # Now, because Celery tells the name of a worker before the worker makes a transport.
    import cmqd_kombu.worker_names as _worker_names  # pyright: ignore[reportUnusedImport]  # noqa: F401
    from cmqd_kombu.options import SCHEME
except ModuleNotFoundError as _missing:
    raise missing_extra("cmqd_kombu", "celery", _missing) from None

__all__ = ["SCHEME"]

TRANSPORT_ALIASES[SCHEME] = "cmqd_kombu.transport:Transport"
