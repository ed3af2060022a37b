"""The beginning of a command line that starts a Python child of the broker: interpreter and flags."""

import os
import sys


def child_python() -> list[str]:
    """Return the interpreter and the flags with which a child finds the modules that this process finds.

    Without ``-P`` a child started by ``-m`` would import a module of the working directory in place of the library's,
    ``re.py`` for example. A checkout that is not installed is found in the working directory alone, by the parent too.
    """
    return [sys.executable] if os.getcwd() in sys.path or "" in sys.path else [sys.executable, "-P"]
