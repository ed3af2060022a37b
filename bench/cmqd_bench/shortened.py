"""``cmqd`` with a lowered limit: dead letters by age after a second instead of five minutes.

``python -m cmqd_bench.shortened serve ...``: for the scenario ``deadletter``, so that a run does not wait
until ten million messages are five minutes old. The rest of the server is unchanged.
"""

import sys

import cmqd.core.limits
from cmqd.__main__ import main

SHORTEST_MS = 1000

if __name__ == "__main__":
    cmqd.core.limits.MIN_DEAD_LETTER_AFTER_MS = SHORTEST_MS
    sys.exit(main())
