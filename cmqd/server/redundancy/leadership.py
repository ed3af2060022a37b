"""The lead of this broker over its log: the process hands it to the server, and a server without redundancy gets none.

The lead brings the gate that asks for proofs, the end of stalled receives, the addresses of the pair, and the figures
of replication.
"""

import asyncio
from typing import Final

from cmqd.log.interface import Led, Log
from cmqd.server.assembly import Assembly
from cmqd.server.monitoring.status import ReplicationStatus
from cmqd.server.part import part
from cmqd.server.process.advertised_address import addresses_of_pair
from cmqd.server.redundancy.leader_gate import PROOF_S, LeaderGate
from cmqd.server.redundancy.stalled_receives import StalledReceives
from cmqd.server.replies.reply_gate import ReplyGate

PROVE_EVERY_S: Final = PROOF_S / 3
"""Age of the last proof at which an idle leader asks for another, well before replies would be held for it."""


@part
class Leadership:
    """The lead, and the parts that a server needs for it."""

    lead: Led
    shard: int

    @property
    def epoch(self) -> int:
        """Epoch of this broker's lead."""
        return self.lead.epoch

    def gate(self, replies: ReplyGate) -> LeaderGate:
        """Return the gate before the replies."""
        lead = self.lead
        return LeaderGate(replies, clock_s=lead.clock_s, proved_s=lambda: lead.proved_s, ask=lead.prove)

    def stalled_receives(self, assembly: Assembly, **given: object) -> StalledReceives:
        """Make the part that ends receives while the log does not answer."""
        return assembly.make(StalledReceives, lead=self.lead, **given)

    def addresses(self, own: str) -> list[str]:
        """Return the known addresses of the brokers of the log, this broker's own first."""
        return addresses_of_pair([own], own, self.lead.engine_status.view, self.shard)

    async def keep_proved(self) -> None:
        """Ask for proofs of an idle leader: its next answer needs no wait, and a fenced leader ends unasked."""
        lead = self.lead
        while True:
            await asyncio.sleep(PROVE_EVERY_S)
            if lead.clock_s() - lead.proved_s >= PROVE_EVERY_S:
                lead.prove()

    def status(self) -> ReplicationStatus:
        """Return the figures of the lead and of the second copy."""
        lead = self.lead
        proof_age_ms = int((lead.clock_s() - lead.proved_s) * 1000)
        return ReplicationStatus(self.shard, lead.epoch, proof_age_ms, lead.engine_status)


def leadership_of(log: Log, shard: int) -> Leadership | None:
    """Return the lead over a log that has leaders; None for a log of this broker alone."""
    return Leadership(lead=log, shard=shard) if isinstance(log, Led) and log.epoch else None
