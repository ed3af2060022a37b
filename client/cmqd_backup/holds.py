"""The data folder of a backup, kept from changing under the copy.

The files of a stopped broker are kept by the lock of the folder, which a start waits for; those of a live broker by a
pin (``live``).
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cmqd_backup.refusals import Refused
from cmqd_segment.manifest import Manifest, ManifestError, SegmentState, read_manifest
from cmqd_segment.newer import NewerFormatError


class Held(NamedTuple):
    """A folder, and the last row that a backup of it has."""

    folder: Path
    manifest: Manifest
    last_lsn: int
    renew: "Callable[[Held], Held | None] | None" = None
    """Of a standby's folder: returns the files anew if the standby dropped one of them, else None."""


def stopped_folder(folder: Path) -> Held:
    """Return the folder of a stopped broker; the caller has its lock. Raises Refused, OSError."""
    manifest = manifest_of(folder)
    if manifest.cache_of is not None:
        raise Refused(
            f"{folder} is a cache of {manifest.cache_of}, and the engine may have newer rows: start its broker, and"
            " make the backup while it leads or stands by. If the engine is lost, 'cmqd clone' takes the messages that"
            " wait in the folder"
        )
    if not manifest.clean:
        raise Refused(
            f"the newest rows of {folder} are in files that are not sealed: its broker was killed, or had to stop"
            " before it had sealed them. Start the broker, and repeat the command while it runs"
        )
    return Held(folder, manifest, _last_lsn(manifest))


def manifest_of(folder: Path) -> Manifest:
    """Return the manifest of a folder. Raises Refused, OSError."""
    try:
        manifest = read_manifest(folder)
    except FileNotFoundError:
        raise Refused(f"{folder} is not a data folder: it has no manifest") from None
    except (ManifestError, NewerFormatError) as error:
        raise Refused(f"{folder} cannot be read: {error}") from error
    if not manifest.log_id:
        raise Refused(f"{folder} has a log without an id: start its broker once with this version")
    return manifest


def _last_lsn(manifest: Manifest) -> int:
    """Return the last row of a stopped folder; 0 for a log without a row."""
    lasts = [entry.last_lsn for entry in manifest.segments if entry.state is not SegmentState.PREPARING and entry.rows]
    lasts += [last for _, last in manifest.dropped]
    lasts += [entry.end_lsn for entry in manifest.checkpoints]
    return max(lasts, default=0)
