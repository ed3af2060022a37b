"""The parts of the documents: gains and losses in words, and tables."""

import re
from pathlib import Path

import msgspec
import pytest

from cmqd_bench.curves.cliffs import judgement
from cmqd_bench.documents import parts, stored
from cmqd_bench.documents.findings import Standing, compared, standing, summary
from cmqd_bench.documents.tables import bytes_text, extent, number, overview_table
from cmqd_bench.figures.results import REFERENCE_PEER, Gap, Results, ResultsUnreadable, Row, Scenario, Spread, write
from support.bench.results_files import CMQD_PEER, CONDITIONS, SEND, results_of, turns_of

QUEUES = Scenario(name="queues", title="over N queues", x="queues", is_curve=True, is_log_x=True)
BODY = Scenario(name="body", title="with N bytes", x="bytes per body", is_curve=True, is_log_x=True)


def peers_file() -> Results:
    """cmqd needs more than the reference in one work, and less in the other."""
    rows = [
        *turns_of("send", REFERENCE_PEER, [10, 10.2, 10.1]),
        *turns_of("send", "cmqd", [25, 26, 25.5]),
        *turns_of("batch", "cmqd", [2, 2.1, 2.05]),
        *turns_of("batch", REFERENCE_PEER, [4, 4.1, 4.2]),
    ]
    return results_of(rows)


def curves_file() -> Results:
    rows = [
        row for x, cost in ((1, 50.0), (100, 51.0), (10_000, 150.0)) for row in turns_of("queues", "cmqd", [cost], x=x)
    ]
    rows += [row for x, cost in ((16, 50.0), (1 << 20, 7000.0)) for row in turns_of("body", "cmqd", [cost, cost], x=x)]
    return results_of(rows, kind="curves", peers=[CMQD_PEER], scenarios=[QUEUES, BODY])


def with_rows(file: Results, rows: list[Row], scenarios: list[Scenario] | None = None) -> Results:
    return msgspec.structs.replace(file, rows=rows, scenarios=scenarios or file.scenarios)


def test_a_loss_is_called_more_and_a_gain_less():
    (sentence,) = summary(peers_file())

    assert sentence == (
        "CPU per message beside Redis Streams, always, in 2 works: "
        "cmqd needs more in 1 (2.5 times), less in 1 (0.5 times)."
    )


def test_each_build_of_cmqd_has_a_sentence_of_its_own():
    file = peers_file()
    file = with_rows(file, [*file.rows, *turns_of("send", "cmqd", [12, 12.5, 12], build="native")])

    assert [sentence.partition(": ")[2].partition(" needs")[0] for sentence in summary(file)] == [
        "cmqd",
        "cmqd (native)",
    ]


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        (Spread(2.0, 1.9, 2.1, 3), Standing.BEHIND),
        (Spread(0.5, 0.4, 0.6, 3), Standing.AHEAD),
        (Spread(1.02, 1.01, 1.03, 3), Standing.EVEN),
        # The turns disagree about the direction.
        (Spread(1.2, 0.9, 1.3, 3), Standing.EVEN),
    ],
)
def test_a_comparison_needs_a_difference_and_agreement(spread: Spread, expected: Standing):
    assert standing(spread) is expected


def test_cmqd_comes_first_and_the_reference_has_no_ratio():
    first, second = compared(peers_file(), SEND)

    assert (first.name, second.name) == ("cmqd", REFERENCE_PEER)
    assert first.cpu_ratio is not None
    assert first.cpu_ratio.median == pytest.approx(2.525, abs=0.03)
    assert second.cpu_ratio is None


def test_a_rate_that_was_not_reached_is_marked_as_overload():
    scenario = Scenario(name="rate-2000", title="2,000/s")
    rows = [
        msgspec.structs.replace(row, rate=rate)
        for peer, rate in (("cmqd", 1_200.0), (REFERENCE_PEER, 1_990.0))
        for row in turns_of(scenario.name, peer, [20])
    ]
    file = with_rows(peers_file(), rows, [scenario])

    assert "| 2,000/s (overload) |" in parts.peers_text(file)


def test_other_uses_of_cmqd_stand_beside_cmqd():
    file = peers_file()
    file = with_rows(file, [*file.rows, *turns_of("send", "cmqd-inside", [15])])

    assert [each.name for each in compared(file, SEND)] == ["cmqd", "cmqd-inside", REFERENCE_PEER]
    # The sentence at the top is about cmqd as it is used by default.
    assert len(summary(file)) == 1


def test_a_work_without_the_reference_has_no_ratios():
    file = with_rows(peers_file(), turns_of("send", "cmqd", [20]))

    assert [each.cpu_ratio for each in compared(file, SEND)] == [None]
    assert summary(file) == []


def test_figures_are_short():
    assert [bytes_text(value) for value in (16, 4_096, 1 << 20)] == ["16 B", "4 KiB", "1 MiB"]
    assert [number(value) for value in (0, 0.1234, 12.34, 12_345.6)] == ["0", "0.123", "12.3", "12,346"]
    assert extent(Spread(10.0, 9.0, 12.0, 3)) == "10 (9-12)"
    assert extent(Spread(10.0, 10.0, 10.0, 1)) == "10"


def test_the_parts_of_the_documents_have_conditions_and_losses():
    text = parts.peers_text(peers_file())

    assert "| send, one at a time | 39,216 | 25.5 | 10.1 | 2.52x (2.50-2.55) |" in text
    assert "commit `0123456789`" in text
    assert "more in 1" in text
    assert "cliff on the curve queues".capitalize() in parts.curves_text(curves_file())


def test_the_newest_stored_results_are_taken(tmp_path: Path):
    for name, started in (("ffff", "2026-01-01"), ("0000", "2026-02-01")):
        conditions = msgspec.structs.replace(CONDITIONS, started=started)
        write(tmp_path / f"{name}-peers.json", msgspec.structs.replace(peers_file(), conditions=conditions))

    newest = stored.newest("peers", tmp_path)

    assert newest is not None
    assert newest.conditions.started == "2026-02-01"
    assert stored.newest("curves", tmp_path) is None


def test_a_stored_kind_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored, "RESULTS", tmp_path)

    with pytest.raises(ResultsUnreadable, match=r"\*-peers\.json"):
        stored.stored("peers")


def test_a_work_without_a_ratio_is_counted_and_a_missing_figure_is_no_gain():
    file = peers_file()
    failed = Gap(scenario="send", peer="cmqd", turn=1, reason="silent for 30 s", is_failure=True)
    rows = [each for each in file.rows if (each.scenario, each.peer) != ("send", "cmqd")]
    rows += turns_of("batch", "beanstalkd", [9])
    unable = Gap(scenario="send", peer="beanstalkd", build="-", reason="a reserve takes a single job")
    file = msgspec.structs.replace(with_rows(file, rows), gaps=[failed, unable])

    assert summary(file) == [
        "CPU per message beside Redis Streams, always, in 2 works: cmqd needs less in 1 (0.5 times), no ratio in 1."
    ]
    heads, (send, batch) = overview_table(file)
    assert dict(zip(heads, send, strict=True)) == {
        "work": "send, one at a time",
        "cmqd / Redis": "-",
        "cmqd": "failed",
        "Redis Streams, always": "10.1",
        "beanstalkd": "-",
    }
    assert "failed" not in batch
    text = parts.all_peers_text(file)
    assert "cmqd: failed: silent for 30 s (send, one at a time, turn 1)" in text
    assert "beanstalkd: a reserve takes a single job (send, one at a time)" in text


@pytest.mark.parametrize(
    ("own_turns", "reference_turns", "failing", "ratio"),
    [(1, 3, "cmqd", None), (3, 1, REFERENCE_PEER, None), (3, 3, "nats", 0.5)],
)
def test_a_turn_between_failures_makes_no_gain(own_turns: int, reference_turns: int, failing: str, ratio: float | None):
    rows = [
        *turns_of("send", "cmqd", [50.0] * own_turns),
        *turns_of("send", REFERENCE_PEER, [100.0] * reference_turns),
    ]
    build = "pure" if failing == "cmqd" else "-"
    gaps = [
        Gap(scenario="send", peer=failing, build=build, turn=turn, reason="counts differ", is_failure=True)
        for turn in (2, 3)
    ]

    own = compared(results_of(rows, gaps=gaps), SEND)[0]

    assert (own.cpu_ratio.median if own.cpu_ratio else None) == ratio


def test_disturbed_curves_do_not_prove_that_there_is_no_cliff():
    flat = turns_of("queues", "cmqd", [50], x=1) + turns_of("queues", "cmqd", [51], x=10)
    quiet = with_rows(curves_file(), flat)
    half = with_rows(curves_file(), [flat[0], msgspec.structs.replace(flat[1], is_disturbed=True)])
    busy = with_rows(curves_file(), [msgspec.structs.replace(each, is_disturbed=True) for each in flat])

    assert judgement(quiet) == ["No cliff was found."]
    (partly,) = judgement(half)
    assert partly.startswith("No cliff was found, but 1 of 2 steps cannot be judged")
    (sentence,) = judgement(busy)
    assert sentence.startswith("No step can be judged")
    assert sentence in parts.curves_text(busy)
    lacking = msgspec.structs.replace(quiet, gaps=[Gap(scenario="queues", peer="cmqd", turn=1, x=100, reason="limit")])
    assert judgement(lacking) == ["No cliff was found.", "1 steps were not measured."]


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
@pytest.mark.parametrize("kind", ["peers", "curves"])
def test_a_picture_shows_the_commit_of_its_tables(page: str, kind: str):
    # No program makes the pictures: newer results need a new picture, or none.
    captions = re.findall(rf"!\[(.*)\]\(.*{kind}\.svg\)", (stored.RESULTS.parents[1] / page).read_text())

    commit = stored.stored(kind).conditions.commit
    assert [caption.rpartition(" ")[2] for caption in captions] in ([], [commit])
