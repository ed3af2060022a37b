"""A broker of FastStream over :mod:`cmqd_client`.

    from faststream import FastStream
    from cmqd_faststream import CmqBroker

    broker = CmqBroker("cmq://ID:KEY@localhost")
    app = FastStream(broker)

    @broker.subscriber("orders", max_workers=8)
    @broker.publisher(topic="shop", routing_key="orders.paid")
    async def charge(order: Order) -> Receipt: ...

How the things of FastStream map to the broker's:

* A subscriber is a consumer of a queue. The start creates a missing queue; ``topic=`` subscribes the queue to a topic.
* Ack deletes a message. Nack delivers the message again after a pause, which the handler may choose. Reject moves the
  message to the dead-letter queue. The messages of a killed process come back when their leases end.
* A publish goes to a queue, or to a topic and all queues that are subscribed to it.
* ``request`` waits for the reply of the subscriber, through a reply queue of the client.

:class:`TestCmqBroker` runs handlers without a server. Delivery is at least once.
"""

from cmqd_types.sentences import missing_extra

try:
    from cmqd_faststream.broker import CmqBroker
    from cmqd_faststream.delivery import Delivery
    from cmqd_faststream.message import CmqBatchMessage, CmqMessage
    from cmqd_faststream.response import CmqPublishCommand, CmqResponse
    from cmqd_faststream.router import CmqPublisher, CmqRoute, CmqRouter
    from cmqd_faststream.testing import TestCmqBroker
except ModuleNotFoundError as _missing:
    raise missing_extra("cmqd_faststream", "faststream", _missing) from None

__all__ = [
    "CmqBatchMessage",
    "CmqBroker",
    "CmqMessage",
    "CmqPublishCommand",
    "CmqPublisher",
    "CmqResponse",
    "CmqRoute",
    "CmqRouter",
    "Delivery",
    "TestCmqBroker",
]
