"""``cmqd`` with a lowered limit: dead letters by age after a second instead of five minutes.

``python -m cmqd_bench.machine.shortened serve ...``: for the scenario ``deadletter``, so that a run does not wait
until ten million messages are five minutes old. The rest of the server is unchanged.
"""

import sys

from msgspec.structs import replace

from cmqd.__main__ import main
from cmqd_types.attributes import QUEUE

SHORTEST_MS = 1000

if __name__ == "__main__":
    QUEUE["dead_letter_after_ms"] = replace(QUEUE["dead_letter_after_ms"], least=SHORTEST_MS)
    sys.exit(main())
