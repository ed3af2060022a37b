"""The command ``cmqd-gateway``."""

import sys
from collections.abc import Sequence

from cmqd_logs.quick_start import import_structlog


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        import_structlog()
        from cmqd_gateway.process.command import run
    except ModuleNotFoundError as missing:
        text = f"{missing.name} is not installed; the gateway needs: pip install 'cmqd[gateway]'"
        print(f"cmqd-gateway: {text}", file=sys.stderr)
        return 2
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
