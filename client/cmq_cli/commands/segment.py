"""``cmq segment``: the files of the log, read from the data folder itself; only ``seal`` asks the server."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.session import Session
from cmq_cli.values import show_count, show_size, show_time, show_unsealed
from cmqd_segment.manifest import Manifest, SegmentEntry
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.scan import readable_segments, sealed_segments
from pyspark_cmqd.errors import FolderError, masked
from pyspark_cmqd.folder import Folder

if TYPE_CHECKING:
    from pyspark_cmqd.export import Exported

app = App(name="segment", help="The segments of the log: what a data folder holds, whether it is sound.")

_Session = Annotated[Session, Parameter(parse=False)]


@app.command(name="list")
def list_segments(*, path: str, session: _Session) -> None:
    """List the segments of a data folder, as its manifest has them. Unsealed segments have no figures.

    Parameters
    ----------
    path
        The data folder, or a URL of a copy; its broker may be running.
    """
    manifest = _manifest(_folder(path))
    entries = readable_segments(manifest)
    if session.output.json:
        session.output.document(
            {
                "clean": manifest.clean,
                "durability": manifest.durability,
                "segments": [_document(entry) for entry in entries],
                "dropped": manifest.dropped,
                "losses": manifest.losses,
            }
        )
        return
    columns = ("segment#", "state", "first row#", "last row#", "messages#", "size#", "from", "to")
    session.output.table(columns, [_row(entry) for entry in entries])
    for loss in manifest.losses:
        session.output.warning(f"rows {loss.first_lsn} to {loss.last_lsn} are lost: {loss.reason}")


@app.command
def verify(*, path: str, session: _Session) -> ExitCode:
    """Read a whole data folder and verify all checksums. Exit code 1 if a file is damaged.

    From a URL one file at a time is fetched. Unsealed segments are no part of a copy, and not verified there.

    Parameters
    ----------
    path
        The data folder, or a URL of a copy; its broker may be running.
    """
    folder = _folder(path)
    manifest = _manifest(folder)
    there = sealed_segments(manifest) if folder.is_remote else readable_segments(manifest)
    total = len(there) + len(manifest.checkpoints)
    wrong: dict[str, list[str]] = {}
    checked = 0
    with session.output.progress() as progress:
        task = progress.add_task("verify", total=total, rate="")
        try:
            for file, problems in folder.verify_files():
                checked += 1
                if problems:
                    wrong[file] = problems
                progress.update(task, advance=1, description=file)
        except (NewerFormatError, FolderError) as error:
            raise CommandFailed(masked(f"{path}: {error}")) from error
    if session.output.json:
        session.output.document({"checked": checked, "wrong": wrong})
    for problem in (text for problems in wrong.values() for text in problems):
        session.output.error(problem)
    if wrong:
        session.output.remark(f"{len(wrong):,} of {checked:,} files are damaged")
        return ExitCode.FAILED
    session.output.remark(f"{checked:,} files are sound")
    return ExitCode.OK


@app.command
async def seal(*, session: _Session) -> None:
    """Have the server seal the active segment, so that readers find all messages in sealed segments.

    For the account admin.
    """
    async with session.client() as client:
        last_lsn = await client.seal_segments()
    if session.output.json:
        session.output.document({"last_lsn": last_lsn})
    session.output.remark(f"sealed up to row {last_lsn}")


@app.command
def export(
    *,
    path: str,
    to: Path,
    queue: Annotated[list[str] | None, Parameter(negative=())] = None,
    account: str = "",
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    session: _Session,
) -> None:
    """Write segments as Parquet files, one file per segment; existing files are left unchanged.

    Needs the extra cmqd[spark] (pyarrow), and no Java.

    Parameters
    ----------
    path
        The data folder, or a URL of a copy; its broker may be running.
    to
        The folder for the files; made if missing.
    queue
        Only the messages of this queue; may be given several times.
    account
        Only the messages of this account's queues and topics.
    all_
        Include unsealed segments.
    """
    try:
        from pyspark_cmqd.errors import CmqdSourceError, OptionError
        from pyspark_cmqd.export import export as export_segments
        from pyspark_cmqd.export import plan_export, unsealed
    except ImportError as error:
        raise CommandFailed(f"this needs the extra cmqd[spark]: {error}") from error
    done: list[Exported] = []
    try:
        with session.output.progress() as progress:
            tasks = plan_export(path, queues=queue or (), account=account, include_active=all_)
            task = progress.add_task("export", total=len(tasks), rate="")
            for exported in export_segments(tasks, to, queues=queue or (), account=account):
                done.append(exported)
                progress.update(task, advance=1, description=exported.file.name)
        left = None if all_ else unsealed(path)
    except OptionError as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from error
    except (CmqdSourceError, OSError) as error:
        raise CommandFailed(f"{error} ({len(done)} segments were exported)") from error
    if left is not None:
        session.output.remark(show_unsealed(*left, "--all"))
    if session.output.json:
        session.output.document([_exported(one) for one in done])
        return
    rows = [
        (
            str(one.segment),
            show_count(one.messages),
            show_size(one.bytes),
            str(one.file),
            "" if one.is_new else "was there",
        )
        for one in done
    ]
    session.output.table(("segment#", "messages#", "size#", "file", ""), rows)
    session.output.remark(f"{sum(one.messages for one in done):,} messages in {len(done):,} files")


def _exported(one: "Exported") -> dict[str, Any]:
    return {
        "segment": one.segment,
        "file": str(one.file),
        "messages": one.messages,
        "bytes": one.bytes,
        "new": one.is_new,
    }


def _folder(path: str) -> Folder:
    try:
        return Folder(path)
    except FolderError as error:
        raise CommandFailed(str(error)) from error


def _manifest(folder: Folder) -> Manifest:
    try:
        return folder.manifest()
    except FolderError as error:
        is_missing = isinstance(error.__cause__, FileNotFoundError)
        raise CommandFailed(str(error), ExitCode.NOT_FOUND if is_missing else ExitCode.FAILED) from error


def _row(entry: SegmentEntry) -> tuple[str, ...]:
    if not entry.rows:
        return (str(entry.number), entry.state, "-", "-", "-", "-", "-", "-")
    return (
        str(entry.number),
        entry.state,
        str(entry.first_lsn),
        str(entry.last_lsn),
        show_count(entry.messages),
        show_size(entry.bytes),
        show_time(_moment(entry.first_ms)),
        show_time(_moment(entry.last_ms)),
    )


def _document(entry: SegmentEntry) -> dict[str, Any]:
    return {"file": entry.file} | msgspec.structs.asdict(entry)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
