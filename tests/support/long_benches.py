"""The mark of tests that run a load tool for about a minute: a part of ``make test-all``."""

import os

import pytest

long_bench = pytest.mark.skipif("CMQD_LONG_BENCHES" not in os.environ, reason="takes a minute: make test-all")
