"""Rewinding, dead letters, redrives and transactions, all at once."""

from typing import Any, ClassVar

from model.judge import profile
from model.moves import MovesMachine
from model.rewinding import RewindMachine
from model.transactions import TransactionsMachine


class EverythingMachine(MovesMachine, RewindMachine, TransactionsMachine):
    first_queues: ClassVar[list[dict[str, Any]]] = [
        {"retention_ms": 3_600_000, "rewind_ms": 60_000},
        {
            "retention_ms": 1_200_000,
            "rewind_ms": 60_000,
            "dead_letter_queue": "dead",
            "dead_letter_max_receives": 1,
            "max_delayed": 3,
            "transactional": True,
            "first_check_ms": 1000,
            "max_checks": 3,
        },
    ]


TestEverything = EverythingMachine.TestCase
TestEverything.settings = profile(300)
