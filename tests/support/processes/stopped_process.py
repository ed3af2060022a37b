"""A process that stands still: it answers nothing, and its connections stay open."""

import os
import signal
import time
from pathlib import Path


def stop(process_id: int) -> None:
    """Send SIGSTOP, and return once all threads of the process stand still.

    ``kill`` returns before that: a thread of the process runs on until its main thread has taken the signal, which
    takes a while on a busy machine. Without ``/proc`` the state is unknown, and the call returns at once.
    """
    os.kill(process_id, signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while not all(_stands_still(thread) for thread in Path(f"/proc/{process_id}/task").glob("*/stat")):
        assert time.monotonic() < deadline, f"process {process_id} runs on"
        time.sleep(0.001)


def _stands_still(stat: Path) -> bool:
    try:
        text = stat.read_text()
    except FileNotFoundError:
        # The thread ended meanwhile.
        return True
    # The name of the thread, in parentheses, may hold any character.
    return text.rpartition(") ")[2][0] in "TtZX"
