"""The rigs and tests of several gateway processes."""

import os
from typing import Final

import pytest

VARIABLE: Final = "CMQD_GATEWAY_PROCESSES"
"""With the value 2 the gateways of all rigs are further processes of two."""
IS_FURTHER: Final = os.environ.get(VARIABLE) == "2"

process_test = pytest.mark.skipif(not IS_FURTHER, reason="starts many processes: make test-all")
"""Marks a test that the part ``gateway-processes`` of ``make test-all`` runs."""
