"""The command ``cmq``."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        from cmq_cli.app import run
    except ModuleNotFoundError as missing:
        print(f"cmq: {missing.name} is not installed; the command line needs: pip install 'cmqd[cli]'", file=sys.stderr)
        return 1
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
