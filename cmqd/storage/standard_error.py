"""Lines of the storage process for the operator, on standard error.

A terminal that is gone, or a log file on a full disk, must not end the storage process: a full disk is the very thing
that many lines are about.
"""

import contextlib
import sys
import traceback


def complain(text: str) -> None:
    """Write a line; drop it if standard error is closed or full."""
    with contextlib.suppress(OSError, ValueError):
        print(f"cmqd storage: {text}", file=sys.stderr, flush=True)


def complain_of_exception() -> None:
    """Write the traceback of the exception that is being handled; drop it if standard error is closed or full."""
    with contextlib.suppress(OSError, ValueError):
        traceback.print_exc()
        sys.stderr.flush()
