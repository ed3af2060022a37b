"""A broker of taskiq over :mod:`cmqd_client`.

    from cmqd_taskiq import CmqBroker

    broker = CmqBroker("cmq://ID:KEY@localhost")

    @broker.task
    async def charge(order: int) -> None: ...

How the things of taskiq map to the broker's:

* A task that is sent is a message of the queue ``taskiq``, or of the queue in its label ``queue_name``. Its id, name
  and labels are headers too, so that ``cmq`` and Spark show them.
* The labels ``delay`` (seconds) and ``at`` (a time) let the message wait in the broker.
* A worker receives as many messages as taskiq asks for. ``--max-async-tasks`` and ``--max-prefetch`` limit them.
* A message that is not acknowledged is in flight under a lease, which is extended as long as the worker lives. The
  tasks of a killed worker come back within :data:`~cmqd_taskiq.broker.LEASE` seconds.
* ``context.reject()`` moves the message to the dead-letter queue of its queue, if there is one.

Delivery is at least once. There is no result backend: results go to a backend of taskiq for a database, such as
``taskiq-redis``.
"""

from cmqd_types.sentences import missing_extra

try:
    from cmqd_taskiq.broker import CmqBroker
    from cmqd_taskiq.schedule_source import CmqScheduleSource
except ModuleNotFoundError as _missing:
    raise missing_extra("cmqd_taskiq", "taskiq", _missing) from None

__all__ = ["CmqBroker", "CmqScheduleSource"]
