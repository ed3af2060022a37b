"""The standing pin of a backup: by its name the broker keeps the rows between two runs.

The name is that of the place of the backup, for each spelling of it. Runs of earlier versions named the place as it was
typed: that pin ends when the new one holds the rows.
"""

import msgspec

from cmqd_backup.backing_up import Copied
from cmqd_backup.live import standing_name
from cmqd_backup.refusals import Refused
from cmqd_backup.stores import Store
from cmqd_client import Client
from cmqd_client.pins import LogPin, StandingPin
from cmqd_types.pins import StandingPinInfo


class Ended(Refused):
    """The standing pin was deleted while runs were made at an interval."""


class Standing:
    """The standing pin of a backup."""

    def __init__(self, store: Store) -> None:
        self.name = standing_name(store.identity)
        self._typed = standing_name(store.place)
        self._is_told = False
        """This process told the broker a row: a pin that is missing since was deleted."""

    async def tell(self, client: Client, pin: LogPin, copied: Copied, every_ms: int) -> StandingPin:
        """Tell the broker the row of a run. Raises Ended, CmqError."""
        names = await _names(client)
        if self._is_told and self.name not in names:
            raise Ended(f"the standing pin {self.name} was deleted")
        standing = await client.pins.set_standing(
            self.name,
            log_id=pin.log_id,
            lsn=pin.lsn,
            start=pin.start,
            time=pin.time,
            every=every_ms / 1000,
            after=copied.after_lsn,
        )
        self._is_told = True
        if self._typed != self.name and self._typed in names:
            await client.pins.delete_standing(self._typed)
        return standing

    async def end(self, client: Client) -> None:
        """Delete the pin. Raises CmqError: there is none."""
        names = await _names(client)
        for name in {self._typed, self.name} & names or {self.name}:
            await client.pins.delete_standing(name)


async def _names(client: Client) -> set[str]:
    status = await client.status()
    return {pin.name for pin in msgspec.convert(status.get("standing_pins", []), list[StandingPinInfo])}
