"""The examples of a derandomized test depend on the test alone."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def draw_examples() -> list[int]:
    drawn: list[int] = []

    @settings(derandomize=True, database=None, max_examples=200)
    @given(number=st.integers(0, 1 << 16))
    def draw(number: int) -> None:
        drawn.append(number)

    draw()
    return drawn


def test_a_loaded_module_changes_no_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = draw_examples()
    source = tmp_path / "literals.py"
    source.write_text(f"NUMBERS = {list(range(1000, 60_000, 70))}\n")
    spec = spec_from_file_location("literals", source)
    assert spec is not None
    monkeypatch.setitem(sys.modules, "literals", module_from_spec(spec))

    assert draw_examples() == before
