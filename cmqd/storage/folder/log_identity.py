"""The identity of a log: an id made with the folder, and a number for each start of the broker.

Readers with a position (streams, replays) compare both before they go on. A copy keeps the id, so a reader can go on
with a restored backup. Rows that copy and original write after the copy was made have different start numbers, so a
position among the rows of the copy is refused by the original, and the other way round. A clone that is to live beside
its original needs a new id: :func:`give_new_log_id`.
"""

import secrets
from pathlib import Path

from msgspec import structs

from cmqd.storage.folder.data_folder import locked_folder
from cmqd.storage.storage_errors import DamagedError, FolderFormatError, WrongFolder
from cmqd_segment.manifest import MANIFEST_FORMAT, Manifest, ManifestError, read_manifest, write_manifest
from cmqd_segment.newer import NewerFormatError


def new_log_id() -> str:
    """Make an id for a log."""
    return secrets.token_hex(16)


def new_start_number() -> str:
    """Make a number for a start of the broker."""
    return secrets.token_hex(8)


def give_new_log_id(path: Path) -> Manifest:
    """Give the log of a folder a new id; return its manifest. The broker must be stopped.

    Raises:
        FileNotFoundError: the folder has no manifest.
        FolderLocked: a broker works on the folder.
        DamagedError: the manifest cannot be read.
        FolderFormatError: a newer version wrote the manifest.
        WrongFolder: the folder is a cache of a log in an engine, and the id is the engine's.
        OSError: the manifest cannot be written; the old id stays.
    """
    try:
        read_manifest(path)
        with locked_folder(path):
            manifest = read_manifest(path)
            if manifest.cache_of is not None:
                raise WrongFolder(f"{path} is a cache of {manifest.cache_of}, and its id is that of the engine")
            former = [*manifest.former_log_ids, manifest.log_id] if manifest.log_id else manifest.former_log_ids
            # Without standing pins: the backups are of the old log, and the broker would refuse their rows.
            changed = structs.replace(
                manifest,
                format=MANIFEST_FORMAT,
                log_id=new_log_id(),
                former_log_ids=former,
                starts=[],
                standing_pins=[],
            )
            write_manifest(path, changed)
            return changed
    except ManifestError as error:
        raise DamagedError(str(error)) from error
    except NewerFormatError as error:
        raise FolderFormatError(str(error)) from error
