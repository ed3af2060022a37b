"""The writing of a run: its parts, read back, and then its document."""

import hashlib

import msgspec
from msgspec import structs

from cmqd_backup.copying import Pace, check
from cmqd_backup.parts import divide
from cmqd_backup.runs import PARTS, Part, Rest, Run, Runs, StoredFile, document_of, stored_document
from cmqd_backup.stores import Store


def write_run(store: Store, run: Run, runs: Runs | None = None, before: Run | None = None) -> None:
    """Write a run, after all its files.

    Args:
        store: the place of the backup.
        run: with the whole manifest.
        runs: the runs of which ``before`` was read.
        before: the run with the shared parts. Never older than the newest run: ``--keep`` takes a part that a run
            lacks for a part that no later run has.

    Raises:
        Refused: a part does not have its checksum after it was written.
        OSError: a file cannot be read or written.
    """
    manifest = run.manifest
    sizes = store.sizes(PARTS)
    shared: list[Part] = []
    rest = None
    if runs is not None and before is not None:
        shared = [part for part in before.parts if sizes.get(part.file.name) == part.file.bytes]
        rest = before.rest
    known = [runs.entries(part) for part in shared] if runs is not None else []
    division = divide(manifest.segments, known)
    parts = [structs.replace(shared[each.place], gone=each.gone(known[each.place])) for each in division.kept]
    parts += [Part(_write(store, msgspec.json.encode(entries), run.number)) for entries in division.new]
    content = msgspec.json.encode(Rest.of(manifest))
    if rest is None or rest.sha256 != hashlib.sha256(content).hexdigest() or sizes.get(rest.name) != rest.bytes:
        rest = _write(store, content, run.number)
    document = structs.replace(
        run,
        parts=parts,
        rest=rest,
        manifest=Rest().within(structs.replace(manifest, segments=division.own, dropped=[])),
    )
    with store.writing(run.name.path) as file:
        file.write(document_of(document))


def _write(store: Store, content: bytes, number: int) -> StoredFile:
    file = stored_document(PARTS, content, number)
    with store.writing(file.name) as writing:
        writing.write(content)
    check(store, file, Pace())
    return file
