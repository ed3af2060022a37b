"""The floor of the disk: a measurement without leftovers."""

from pathlib import Path

from cmqd_bench.machine.floor import sync_floor_ms


def test_the_floor_has_ordered_percentiles_and_leaves_nothing_behind(tmp_path: Path) -> None:
    floor = sync_floor_ms(tmp_path, syncs=20)

    assert list(floor) == ["p50", "p99", "p999"]
    assert 0 < floor["p50"] <= floor["p99"] <= floor["p999"]
    assert not list(tmp_path.iterdir())
