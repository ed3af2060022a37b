"""A check of all files of a data folder."""

import contextlib
from pathlib import Path

from cmqd_segment.manifest import read_manifest
from cmqd_segment.scan import readable_segments, verify_each


def verify_folder(folder: Path) -> list[str]:
    """Read every file in the manifest and return the faults."""
    files = verify_each(lambda: read_manifest(folder), lambda _: contextlib.nullcontext(folder), readable_segments)
    return [fault for file in files for fault in (*file.problems, *file.warnings)]
