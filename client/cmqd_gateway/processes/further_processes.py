"""The ways of the further gateway processes to the first: deletes, and figures for ``/metrics``."""

from collections import Counter

from cmqd_gateway.gateway import Gateway
from cmqd_gateway.processes.channel import Channel, CountedFigures, Message
from cmqd_gateway.processes.first_process import delete_seconds
from cmqd_gateway.processes.share import Share
from cmqd_gateway.processes.shared_deletes import AnsweringDeletes


class FurtherProcesses:
    """The ways from the further processes; see the module."""

    def __init__(self, gateway: Gateway, share: Share) -> None:
        """Take the ways of a share, for the gateway of the first process."""
        self._deletes = AnsweringDeletes(gateway.deletes, delete_seconds(gateway.settings))
        self._told: dict[Channel, CountedFigures] = {}
        """The last figures of every process."""
        self._ended: Counter[tuple[str, tuple[str, ...]]] = Counter()
        """Counters of processes that have ended, so that a counter never falls."""
        self._channels = [Channel(end, self._take) for end in share.channels]

    @property
    def gauges(self) -> Counter[str]:
        """Sums of the gauges."""
        sums: Counter[str] = Counter()
        for figures in self._told.values():
            sums.update(figures.gauges)
        return sums

    @property
    def counters(self) -> Counter[tuple[str, tuple[str, ...]]]:
        """Sums of the counters, by name and labels."""
        sums = self._ended.copy()
        for figures in self._told.values():
            sums.update(_counters(figures))
        return sums

    def close(self) -> None:
        """End the ways."""
        for channel in self._channels:
            channel.close()

    def _take(self, channel: Channel, message: Message) -> None:
        if isinstance(message, CountedFigures):
            before = self._told.get(channel)
            if before is not None and before.pid != message.pid:
                self._ended.update(_counters(before))
            self._told[channel] = message
        else:
            self._deletes.take(channel, message)


def _counters(figures: CountedFigures) -> dict[tuple[str, tuple[str, ...]], int]:
    return {(name, labels): value for name, labels, value in figures.counters}
