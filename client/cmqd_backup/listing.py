"""``cmqd backup list``: what a backup can restore."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from cmqd_backup.copying import Pace, check
from cmqd_backup.moments import shown_time
from cmqd_backup.refusals import Refused
from cmqd_backup.runs import Run, Runs
from cmqd_backup.stores import Store
from cmqd_backup.timeline import Stretch, gaps, stretches

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def list_backup(store: Store, *, as_json: bool, reads_all: bool = False, out: Callable[[str], object]) -> bool:
    """Show runs, times and size of a backup; return False if a file of a run is missing or was cut.

    Args:
        store: the place of the backup.
        as_json: print a document.
        reads_all: read every file, and compare its checksum.
        out: gets the lines.

    Raises:
        Refused: there is no run.
        OSError: the backup cannot be read.
    """
    listed = Runs(store)
    runs = listed.all()
    if not runs:
        raise Refused(f"{store.place} has no backup" + "".join(f"; {fault}" for fault in listed.faults))
    faults = [*listed.faults, *_file_faults(store, runs, reads_all=reads_all)]
    parts = stretches(runs)
    if as_json:
        out(json.dumps(_document(runs, parts, faults), indent=1))
    else:
        _show(store, runs, parts, faults, out)
    return not faults


def _file_faults(store: Store, runs: Sequence[Run], *, reads_all: bool) -> list[str]:
    """Return a sentence for each file that is missing, has another size or, if all are read, another checksum."""
    files = {file.name: file for run in runs for file in run.files}
    sizes: dict[str, int] = {}
    for folder in {name.partition("/")[0] for name in files}:
        sizes |= store.sizes(folder)
    faults: list[str] = []
    for name, file in sorted(files.items()):
        size = sizes.get(name)
        if size is None:
            faults.append(f"{name} is missing")
        elif size != file.bytes:
            faults.append(f"{name} has {size} bytes instead of {file.bytes}: it was cut, or changed")
        elif reads_all:
            try:
                check(store, file, Pace())
            except (Refused, FileNotFoundError) as fault:
                faults.append(str(fault))
    return faults


def _size(runs: Sequence[Run]) -> int:
    return sum({file.name: file.bytes for run in runs for file in run.files}.values())


def _spans(parts: Sequence[Stretch]) -> list[tuple[int, int]]:
    """Return the first and last time of each span without a gap."""
    spans: list[tuple[int, int]] = []
    first_ms: int | None = None
    for part in parts:
        first_ms = part.run.wall_ms if first_ms is None else first_ms
        if not part.is_followed:
            spans.append((first_ms, part.until_ms))
            first_ms = None
    return spans


def _document(runs: Sequence[Run], parts: Sequence[Stretch], faults: list[str]) -> dict[str, Any]:
    return {
        "log_id": runs[-1].manifest.log_id,
        "bytes": _size(runs),
        "segments": len({file.name for run in runs for file in run.files if file.name.startswith("segments/")}),
        "has_secrets": runs[-1].accounts is not None,
        "spans": [{"first_ms": first, "last_ms": last} for first, last in _spans(parts)],
        "gaps": [
            {
                "after_ms": gap.after_ms,
                "until_ms": gap.until_ms,
                "first_lsn": gap.first_lsn,
                "last_lsn": gap.last_lsn,
            }
            for gap in gaps(parts)
        ],
        "runs": [
            {
                "number": run.number,
                "began_ms": run.began_ms,
                "ended_ms": run.ended_ms,
                "last_lsn": run.last_lsn,
                "last_ms": run.wall_ms,
            }
            for run in runs
        ],
        "faults": faults,
    }


def _show(
    store: Store, runs: Sequence[Run], parts: Sequence[Stretch], faults: Sequence[str], out: Callable[[str], object]
) -> None:
    newest = runs[-1]
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    out(f"backup of log {newest.manifest.log_id} in {store.place}: {count}, {shown_size(_size(runs))}")
    if newest.accounts is None:
        out("accounts and secrets: not in the newest run (--without-secrets)")
    out("can be restored:")
    for first_ms, last_ms in _spans(parts):
        out(f"  {shown_time(first_ms)}" + (f" to {shown_time(last_ms)}" if last_ms != first_ms else ""))
    found = gaps(parts)
    if found:
        out("gaps, in which rows are missing:")
    for gap in found:
        out(f"  {shown_time(gap.after_ms)} to {shown_time(gap.until_ms)}: rows {gap.first_lsn} to {gap.last_lsn}")
    out(f"newest run: {newest.number}, ended {shown_time(newest.ended_ms)}, last row {newest.last_lsn}")
    for fault in faults:
        out(fault)


def shown_size(size: int) -> str:
    """Return a number of bytes in the largest unit that fits."""
    for unit, factor in _UNITS:
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size} bytes"
