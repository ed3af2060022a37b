"""The file of results: every turn survives writing and reading, and ratios compare turns that ran together."""

from pathlib import Path

import msgspec
import pytest

from cmqd_bench.figures.results import (
    FORMAT,
    Gap,
    ResultsUnreadable,
    points,
    ratio,
    read,
    spread,
    to_json,
    write,
)
from support.bench.results_files import results_of, row


def test_what_is_written_is_read(tmp_path: Path):
    written = results_of(
        [row(24.5, turn=1, p50_ms=0.5), row(25.5, turn=2, is_disturbed=True, remark="a remark")],
        gaps=[Gap(peer="nats", build="-", reason="not installed"), Gap(peer="cmqd", turn=3, reason="silent")],
    )

    write(tmp_path / "new/results.json", written)

    assert read(tmp_path / "new/results.json") == written


def test_a_row_is_a_line_of_the_file():
    lines = to_json(results_of([row(24.5, turn=1), row(25.5, turn=2)])).splitlines()

    assert sum(b'"cpu_us"' in line for line in lines) == 2


def test_a_file_without_rows_is_read(tmp_path: Path):
    write(tmp_path / "results.json", results_of([]))

    assert read(tmp_path / "results.json").rows == []


def test_a_newer_format_is_refused(tmp_path: Path):
    write(tmp_path / "results.json", msgspec.structs.replace(results_of([]), format=FORMAT + 1))

    with pytest.raises(ResultsUnreadable, match=f"format {FORMAT + 1}"):
        read(tmp_path / "results.json")


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"rows": 1}'])
def test_another_file_is_refused_by_name(tmp_path: Path, content: bytes | None):
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ResultsUnreadable, match=r"other\.json"):
        read(path)


def test_turns_of_a_measurement_are_one_point():
    rows = [row(20, turn=1), row(40, turn=1, x=2), row(22, turn=2), row(21, turn=3), row(5, peer="redis-always")]

    first, other_x, redis = points(rows)

    assert (first.x, other_x.x, redis.peer) == (0, 2, "redis-always")
    cpu = first.spread(lambda each: each.cpu_us)
    assert cpu is not None
    assert (cpu.median, cpu.low, cpu.high, cpu.turns) == (21, 20, 22, 3)
    assert first.spread(lambda each: each.p50_ms) is None


def test_a_point_is_disturbed_from_half_of_the_turns():
    def point(*disturbed: bool) -> bool:
        (each,) = points(row(20, turn=turn, is_disturbed=value) for turn, value in enumerate(disturbed))
        return each.is_disturbed

    assert not point(True, False, False)
    assert point(True, False)
    assert point(True)


def test_a_ratio_compares_turns_of_the_same_number():
    # The machine was slow in turn 2 for both: medians of each peer alone would give 2.5.
    mine = [row(20, turn=1), row(60, turn=2), row(50, turn=3)]
    redis = [row(10, turn=1, peer="redis-always"), row(30, turn=2, peer="redis-always")]
    cmqd, reference = points([*mine, *redis])

    compared = ratio(cmqd, reference, lambda each: each.cpu_us)

    assert compared == spread([2.0, 2.0])


def test_a_ratio_needs_the_figure_on_both_sides():
    cmqd, reference = points([row(20, p50_ms=1.0), row(10, peer="redis-always")])

    assert ratio(cmqd, reference, lambda each: each.p50_ms) is None
