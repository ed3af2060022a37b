"""SIGTERM with the effect of Ctrl-C, so that servers are killed and folders removed on the way out."""

import signal
from types import FrameType


def treat_sigterm_like_ctrl_c() -> None:
    """Have SIGTERM end this process as SIGINT does; to be called before an event loop runs.

    An exception raised by the handler itself would be lost in an event loop: uvloop reports an exception from
    ``data_received`` and closes the connection, whatever the exception is. A runner of asyncio has a handler of its own
    for SIGINT, which cancels the main task instead.
    """
    # A shell starts background processes with SIGINT ignored; SIGTERM would then be ignored, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)
