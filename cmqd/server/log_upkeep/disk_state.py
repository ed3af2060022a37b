"""The state of the disk, as the storage reports it: sends are refused while space is short."""

from cmqd.core.broker import Broker
from cmqd.log.values import LogState
from cmqd.server.admission.request_admission import Admission
from cmqd.server.broker_logger import get_logger
from cmqd.server.log_upkeep.reclaim import Reclaim
from cmqd.server.part import part

_log = get_logger()


@part
class DiskState:
    """Keeps the newest report of the storage; see the module."""

    broker: Broker
    admission: Admission
    reclaim: Reclaim

    def __post_init__(self) -> None:
        self.state = LogState(False, "", 0, 0, 0)

    def reported(self, state: LogState) -> None:
        """Refuse or accept sends as the free space of the disk asks, and keep the figures for the status."""
        if state.sends_refused != self.state.sends_refused:
            if state.sends_refused:
                _log.warning("sends_refused", reason=state.reason, free_bytes=state.free_bytes)
            else:
                _log.info("sends_accepted_again", free_bytes=state.free_bytes)
        self.state = state
        self.admission.sends_refused = state.reason if state.sends_refused else None
        # Moves from queue to queue write bodies too.
        self.broker.gates.moves_held_up = "disk nearly full" if state.sends_refused else ""
        self.reclaim.room_is(short=state.is_short)

    def reason_of_refusals(self) -> str:
        """Return the reason for which sends are refused, "" if the disk takes them."""
        return self.state.reason if self.state.sends_refused else ""
