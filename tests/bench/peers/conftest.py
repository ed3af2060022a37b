"""The compiled load generator, for the tests of a comparison with peers."""

from pathlib import Path

import pytest

from cmqd_bench.peers.compiler import load_program


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return load_program(tmp_path_factory.mktemp("program"))
