"""Figures of a comparison: counts that agree, rows, and the table."""

from collections.abc import Sequence

import msgspec
import pytest

from cmqd_bench.figures.results import Gap, Row
from cmqd_bench.peers.cmqd_peer import CmqdPeer
from cmqd_bench.peers.harness import (
    Measured,
    Sampler,
    check_counts,
    row_of,
    steadiest,
)
from cmqd_bench.peers.table import to_text
from cmqd_bench.peers.works import WORKS
from cmqd_load.failures import LoadError
from support.bench.native_generator import OUTCOME
from support.bench.results_files import results_of


class FakePeer(CmqdPeer):
    """A peer that reports a number of messages of the test's choice."""

    def __init__(self, left: Sequence[int]) -> None:
        super().__init__()
        self._left = list(left)

    def messages_left(self, queue: str) -> int:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


def test_counts_of_generator_and_peer_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd_bench.peers.harness.COUNT_SECONDS", 0.0)
    check_counts(FakePeer([1_250]), "q", 50, OUTCOME)
    with pytest.raises(LoadError, match="cmqd has 1249 messages; by the load's count 1250 were sent and 0 deleted"):
        check_counts(FakePeer([1_249]), "q", 50, OUTCOME)


def test_a_peer_may_take_back_messages_of_closed_connections_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd_bench.peers.harness.COUNT_PAUSE", 0.0)
    check_counts(FakePeer([1_192, 1_199, 1_200]), "q", 0, OUTCOME)


def test_deletes_inside_receives_without_a_reply_may_be_done_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd_bench.peers.harness.COUNT_SECONDS", 0.0)
    outcome = msgspec.structs.replace(OUTCOME, total_deleted=200, unanswered=3)
    for left in (997, 1_000):
        check_counts(FakePeer([left]), "q", 0, outcome)
    for left in (996, 1_001):
        with pytest.raises(LoadError):
            check_counts(FakePeer([left]), "q", 0, outcome)


def test_a_row_divides_the_cpu_of_the_peer_by_its_messages() -> None:
    sampler = Sampler(CmqdPeer(), cpu=0.5, busy=1.31)
    row = row_of("send-1x1", CmqdPeer(), 2, 1_000, OUTCOME, sampler)
    assert (row.scenario, row.peer, row.turn, row.rate) == ("send-1x1", "cmqd", 2, 500.0)
    assert (row.cpu_us, row.load_us) == (500.0, 10.0)
    assert (row.p50_ms, row.p999_ms) == (0.1, 0.2)
    assert (row.other_cores, row.is_disturbed) == (0.4, True)


def test_the_table_divides_by_the_reference_of_the_same_turn() -> None:
    def row(peer: str, turn: int, cpu_us: float) -> Row:
        build = "pure" if peer == "cmqd" else "-"
        return Row(scenario="send-1x1", peer=peer, build=build, turn=turn, rate=1_000, cpu_us=cpu_us, p50_ms=1.0)

    measured = results_of(
        [
            *(row("cmqd", turn, cpu) for turn, cpu in enumerate((200.0, 300.0, 420.0), 1)),
            *(row("redis-always", turn, cpu) for turn, cpu in enumerate((100.0, 100.0, 140.0), 1)),
        ],
        peers=[],
        scenarios=[WORKS[0].scenario(), WORKS[1].scenario()],
    )
    text = to_text(measured)
    assert "| cmqd | 1,000 | 300 (200-420) | 3.00x (2.00-3.00) |" in text
    assert "redis-always varies by 1.40x, by more than 1.3: repeat this row" in text
    assert "send-64x1" not in text


def test_a_row_is_measured_again_while_the_reference_varies() -> None:
    def rows(*costs: float, peer: str = "redis-always", failures: int = 0) -> Measured:
        gaps = [Gap(scenario="s", peer=peer, reason="silent", is_failure=True)] * failures
        return Measured([Row(scenario="s", peer=peer, build="-", rate=1, cpu_us=cost) for cost in costs], gaps)

    def measured(*attempts: Measured, repeats: int) -> tuple[Measured, int]:
        left = list(attempts)
        return steadiest(lambda: left.pop(0), repeats), len(attempts) - len(left)

    steady, wild, wilder = rows(10, 12), rows(10, 14), rows(10, 20)
    assert measured(steady, wild, repeats=2) == (steady, 1)
    assert measured(wilder, wild, steady, repeats=5) == (steady, 3)
    assert measured(wild, wilder, repeats=1) == (wild, 2)
    assert measured(wild, repeats=0) == (wild, 1)
    # A row with all its figures is worth more than a steadier row without.
    assert measured(wild, rows(10, failures=1), repeats=1) == (wild, 2)
    # The limit was reached before the repetition.
    assert measured(wild, rows(), repeats=1) == (wild, 2)
    alone = rows(1, 9, peer="cmqd")
    assert measured(alone, repeats=3) == (alone, 1)
