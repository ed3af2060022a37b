"""A log in memory with a leader: the test decides when proofs arrive."""

from typing import Any

from cmqd.log.values import EngineStatus
from cmqd.memory_log import MemoryLog


class LedLog(MemoryLog):
    """A log in memory that says what a log with leaders says; the test decides when proofs arrive."""

    epoch = 1
    engine_status = EngineStatus()
    proved_s = 0.0
    now_s = 1e6
    """Time by the clock of proofs, which goes on while the machine is suspended."""

    unanswered_s: float | None = None
    """Time of the oldest commit or proof without an answer, as the test decides."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.asked = 0

    def clock_s(self) -> float:
        return self.now_s

    def prove(self) -> None:
        self.asked += 1

    def proof_arrives(self) -> None:
        """The answer to a commit that was handed over just now."""
        self.proved_s = self.now_s
        self.on_durable(self.durable_lsn)
