"""CPU time of a piece of work, for tests of how a cost grows."""

import gc
import time
from collections.abc import Callable


def cpu_seconds_of(work: Callable[[], object]) -> float:
    """Return the CPU time of a call in this thread.

    Without garbage collections: a collection looks at the objects of all tests of the process before this one.
    """
    gc.collect()
    gc.disable()
    try:
        began = time.thread_time()
        work()
        return time.thread_time() - began
    finally:
        gc.enable()
