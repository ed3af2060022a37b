"""Deletion of unused queues, beside dead letters, redrives and rewinds; see :mod:`model.machine`."""

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model.judge import has_queues, profile, which
from model.moves import MovesMachine
from model.rewinding import RewindMachine

after = st.sampled_from([0, 60_000, 60_000, 60_000, 120_000, 3_600_000])


class AutoDeleteMachine(MovesMachine, RewindMachine):
    first_queues: ClassVar[list[dict[str, Any]]] = [
        {"retention_ms": 3_600_000},
        {"retention_ms": 120_000, "max_delayed": 3, "auto_delete_after_ms": 60_000, "auto_delete_only_empty": False},
        {"retention_ms": 120_000, "rewind_ms": 60_000, "auto_delete_after_ms": 60_000},
    ]

    @precondition(has_queues)
    @rule(number=which, after_ms=after, only_empty=st.booleans())
    def set_auto_delete(self, number: int, after_ms: int, only_empty: bool) -> None:
        changes = {"auto_delete_after_ms": after_ms, "auto_delete_only_empty": only_empty}
        self.set_attributes(self.pick(number), changes)

    @rule(number=which, after_ms=after, only_empty=st.booleans(), rewind_ms=st.sampled_from([0, 60_000]))
    def create_auto_deleted(self, number: int, after_ms: int, only_empty: bool, rewind_ms: int) -> None:
        self.create(
            number,
            {"auto_delete_after_ms": after_ms, "auto_delete_only_empty": only_empty, "rewind_ms": rewind_ms},
        )


TestAutoDelete = AutoDeleteMachine.TestCase
TestAutoDelete.settings = profile(300)
