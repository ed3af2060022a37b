"""The file of results: every turn survives writing and reading, and ratios compare turns that ran together."""

from pathlib import Path

import msgspec
import pytest

from cmqd_bench.results import (
    FORMAT,
    Conditions,
    Peer,
    Results,
    ResultsUnreadable,
    Row,
    Scenario,
    points,
    ratio,
    read,
    spread,
    to_json,
    write,
)

CONDITIONS = Conditions(
    commit="0123456789",
    started="2026-01-02T03:04:05Z",
    cpu="a CPU",
    cores=2,
    kernel="6.1",
    python="3.11.7",
    sqlite="3.40.1",
    file_system="ext4",
    device="/dev/vda",
    load_average=0.1,
    load="C generator",
    seconds=4.0,
    turns=3,
)


def row(cpu_us: float, **changes: object) -> Row:
    fields: dict[str, object] = {"scenario": "send", "peer": "cmqd", "rate": 1e6 / cpu_us, "cpu_us": cpu_us}
    return msgspec.convert({**fields, **changes}, Row)


def results(*rows: Row) -> Results:
    return Results(
        kind="peers",
        conditions=CONDITIONS,
        peers=[Peer(name="cmqd", title="cmqd", version="0.1.0", durability="fsync before the answer")],
        scenarios=[Scenario(name="send", title="send, one at a time")],
        rows=list(rows),
    )


def test_what_is_written_is_read(tmp_path: Path):
    written = results(row(24.5, turn=1, p50_ms=0.5), row(25.5, turn=2, is_disturbed=True, remark="a remark"))

    write(tmp_path / "new/results.json", written)

    assert read(tmp_path / "new/results.json") == written


def test_a_row_is_a_line_of_the_file():
    lines = to_json(results(row(24.5, turn=1), row(25.5, turn=2))).splitlines()

    assert sum(b'"cpu_us"' in line for line in lines) == 2


def test_a_file_without_rows_is_read(tmp_path: Path):
    write(tmp_path / "results.json", results())

    assert read(tmp_path / "results.json").rows == []


def test_a_newer_format_is_refused(tmp_path: Path):
    write(tmp_path / "results.json", msgspec.structs.replace(results(), format=FORMAT + 1))

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
