"""Messages in the hands of FastStream's handlers."""

from faststream.message import StreamMessage

from cmqd_client.durations import Duration
from cmqd_faststream.delivery import Delivery, End, EndKind


class CmqMessage(StreamMessage[Delivery]):
    """A message of a queue; :mod:`cmqd_faststream.delivery` tells when an end takes effect."""

    __slots__ = ()

    async def ack(self) -> None:
        """Delete the message."""
        await self.raw_message.decide(End(EndKind.ACK))
        await super().ack()

    async def nack(self, delay: Duration | None = None) -> None:
        """Deliver the message again.

        Args:
            delay: time until then, up to 12 h; None = a pause that grows with each receive.
        """
        await self.raw_message.decide(End(EndKind.NACK, delay))
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Move the message to the dead-letter queue of its queue.

        If there is none, or it takes no message now, the error is logged and the message is delivered again.

        Args:
            reason: kept with the dead letter; cut to 256 bytes of UTF-8.
        """
        await self.raw_message.decide(End(EndKind.REJECT, reason=reason))
        await super().reject()


class CmqBatchMessage(StreamMessage[list[Delivery]]):
    """The messages of a batch, which end together."""

    __slots__ = ()

    async def ack(self) -> None:
        """Delete the messages."""
        await self._decide(End(EndKind.ACK))
        await super().ack()

    async def nack(self, delay: Duration | None = None) -> None:
        """Deliver the messages again; see :meth:`CmqMessage.nack`."""
        await self._decide(End(EndKind.NACK, delay))
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Move the messages to the dead-letter queue; see :meth:`CmqMessage.reject`."""
        await self._decide(End(EndKind.REJECT, reason=reason))
        await super().reject()

    async def _decide(self, end: End) -> None:
        for delivery in self.raw_message:
            await delivery.decide(end)
