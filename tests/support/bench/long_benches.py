"""The mark of tests that run a load tool for about a minute: a part of ``make test-all``.

A variable named CMQD_... would be an unknown setting of the servers that the tools start.
"""

import os

import pytest

long_bench = pytest.mark.skipif("TEST_LONG_BENCHES" not in os.environ, reason="takes a minute: make test-all")
