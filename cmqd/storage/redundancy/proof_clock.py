"""The clock for the date of a proof of the lead, and for the proof's age.

``time.monotonic`` and ``time.perf_counter`` stand still on Linux while the machine is suspended. A broker that goes on
after an hour would take its last proof for a young proof, and answer from an index that is an hour old. A virtual
machine that its host pauses has no clock that goes on; there, and only there, a proof can look younger than it is.
"""

import time
from functools import partial
from typing import Final

proof_clock_s: Final = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Seconds, suspended or not. The monotonic clock of macOS counts a suspension, that of Linux does not."""
