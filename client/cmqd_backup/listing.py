"""``cmqd backup list``: times, gaps and size of a backup."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from cmqd_backup.copying import Pace, check
from cmqd_backup.moments import shown_time
from cmqd_backup.refusals import Refused
from cmqd_backup.runs import SEGMENTS, Run, Runs, StoredFile
from cmqd_backup.stores import Store
from cmqd_backup.timeline import Gap, Stretch, gaps, stretches
from cmqd_types.sentences import counted

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
    runs = Runs(store)
    survey = _Survey(runs)
    if survey.newest is None:
        raise Refused(f"{store.place} has no backup" + "".join(f"; {fault}" for fault in runs.faults))
    faults = [*runs.faults, *_file_faults(store, survey.files, reads_all=reads_all)]
    if as_json:
        out(json.dumps(_document(survey, survey.newest, faults), indent=1))
    else:
        _show(store, survey, survey.newest, faults, out)
    return not faults


class _Row(NamedTuple):
    """A run in the document."""

    number: int
    began_ms: int
    ended_ms: int
    last_lsn: int
    last_ms: int


class _Survey:
    """Facts of all runs. Documents are read in sequence, because all together would not fit in memory."""

    def __init__(self, runs: Runs) -> None:
        """Read all runs. Raises Refused, OSError."""
        self.rows: list[_Row] = []
        self.files: dict[str, StoredFile] = {}
        self.spans: list[tuple[int, int]] = []
        """First and last time of each span without a gap."""
        self.gaps: list[Gap] = []
        self.newest: Run | None = None
        self._span_ms: int | None = None
        """First time of the span that has not ended."""
        for run in runs.each():
            if self.newest is not None:
                self._add(stretches([self.newest, run])[0])
            self.newest = run
            self.rows.append(_Row(run.number, run.began_ms, run.ended_ms, run.last_lsn, run.wall_ms))
            for file in run.files:
                self.files.setdefault(file.name, file)
        if self.newest is not None:
            self._add(stretches([self.newest])[0])

    def _add(self, part: Stretch) -> None:
        first_ms = part.run.wall_ms if self._span_ms is None else self._span_ms
        self._span_ms = first_ms if part.is_followed else None
        if not part.is_followed:
            self.spans.append((first_ms, part.until_ms))
        self.gaps += gaps([part])

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


def _file_faults(store: Store, files: dict[str, StoredFile], *, reads_all: bool) -> list[str]:
    """Return a sentence for each file that is missing, has another size or, if all are read, a wrong checksum."""
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


def _document(survey: _Survey, newest: Run, faults: list[str]) -> dict[str, Any]:
    return {
        "log_id": newest.manifest.log_id,
        "bytes": survey.bytes,
        "segments": sum(name.startswith(f"{SEGMENTS}/") for name in survey.files),
        "has_secrets": newest.accounts is not None,
        "spans": [{"first_ms": first, "last_ms": last} for first, last in survey.spans],
        "gaps": [gap._asdict() for gap in survey.gaps],
        "runs": [row._asdict() for row in survey.rows],
        "faults": faults,
    }


def _show(store: Store, survey: _Survey, newest: Run, faults: list[str], out: Callable[[str], object]) -> None:
    count = counted(len(survey.rows), "run")
    out(f"backup of log {newest.manifest.log_id} in {store.place}: {count}, {shown_size(survey.bytes)}")
    if newest.accounts is None:
        out("accounts and secrets: not in the newest run (--without-secrets)")
    out("can be restored:")
    for first_ms, last_ms in survey.spans:
        out(f"  {shown_time(first_ms)}" + (f" to {shown_time(last_ms)}" if last_ms != first_ms else ""))
    if survey.gaps:
        out("gaps, in which rows are missing:")
    for gap in survey.gaps:
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
