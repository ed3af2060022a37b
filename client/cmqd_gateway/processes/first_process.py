"""The ways of a further gateway process to the first: remembered deletes, requests of the console, and figures."""

import os
from typing import Final

from cmqd_gateway.gateway import Gateway
from cmqd_gateway.monitoring.own_metrics import counters_of, gauges_of
from cmqd_gateway.process.gateway_settings import Settings
from cmqd_gateway.processes.channel import Channel, CountedFigures, Message
from cmqd_gateway.processes.forwarding import Forwarding
from cmqd_gateway.processes.share import Share
from cmqd_gateway.processes.shared_deletes import AskingDeletes

_REQUESTS: Final = 4


def delete_seconds(settings: Settings) -> float:
    """Return the time limit of a delete of a different process: two attempts to open a client, and two requests."""
    return _REQUESTS * settings.broker_patience_seconds


class FirstProcess:
    """The ways to the first process; see the module."""

    def __init__(self, gateway: Gateway, share: Share) -> None:
        """Take the ways of a share, for the gateway of a further process."""
        self._gateway = gateway
        (end,) = share.channels
        self._channel = Channel(end, self._take)
        self._deletes = AskingDeletes(self._channel, delete_seconds(gateway.settings))
        gateway.deletes = self._deletes
        self.forwarding = Forwarding(share.forwarded_to)

    def tell_figures(self) -> None:
        """Tell the figures of this process; to be called about once a second."""
        counters = [(*kind, value) for kind, value in counters_of(self._gateway).items()]
        self._channel.send(CountedFigures(os.getpid(), gauges_of(self._gateway), counters))

    async def close(self) -> None:
        """End the ways."""
        self._channel.close()
        await self.forwarding.close()

    def _take(self, channel: Channel, message: Message) -> None:
        self._deletes.take(message)
