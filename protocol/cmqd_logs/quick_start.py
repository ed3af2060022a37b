"""A shorter start of our own processes: structlog without rich.

structlog imports rich, where rich is installed, for tracebacks in colour. No line of ours has one (see ``lines``), and
the import is a fifth of the processor time of a broker's start.
"""

import importlib
import sys
from typing import cast


def import_structlog() -> None:
    """Import structlog as on a machine without rich; rich stays importable for other code.

    For the commands of our processes alone: in a program of a user, structlog keeps its colours.
    """
    modules = cast("dict[str, object]", sys.modules)
    if "rich" in modules:
        return
    # The import system raises ModuleNotFoundError for a module that is None.
    modules["rich"] = None
    try:
        importlib.import_module("structlog")
    finally:
        del modules["rich"]
