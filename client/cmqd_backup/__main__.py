"""The programs behind ``cmqd backup`` and ``cmqd restore``: ``python -m cmqd_backup backup|restore ...``."""

import sys

from cmqd_backup.command import main

if __name__ == "__main__":
    sys.exit(main())
