"""Entry of the storage process, started by ``process_log.start_process``."""

import ctypes
import gc
import signal
import sys

from cmqd.allocator import LargeBlocks
from cmqd.storage.service import main

PR_SET_PDEATHSIG = 1
SWITCH_SECONDS = 0.0001
"""The loop lets the commit thread have the interpreter after this time, of which a commit may need several in turn.
Beside a thread that always decodes, a commit takes 1.3 ms with a millisecond, 0.4 ms with a fifth of it, and the
decoding is no slower (decision 0181)."""


def prepare_process() -> None:
    """Let the process die with its parent, and of no other signal.

    Ctrl-C and a service manager signal the whole group, but the loop process needs storage until it has drained. The
    process then ends with its sockets.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        # A second way to notice the parent's death, because a leaked descriptor could keep the sockets open. No other
        # code uses SIGUSR1.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    # No cycles worth collecting are made per commit, and a full collection would stop commits.
    gc.disable()
    gc.freeze()
    sys.setswitchinterval(SWITCH_SECONDS)
    # A commit of large bodies would fault its pages in anew, in the buffers of the sockets and of SQLite. Few bytes are
    # held at a time: a batch, a page, a part of a checkpoint.
    LargeBlocks()


if __name__ == "__main__":
    prepare_process()
    sys.exit(main(sys.argv[1:]))
