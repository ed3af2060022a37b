"""``cmq segment``: the segments of the log, asked of the server (``list``, ``seal``) or read from a data folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.nouns import as_document
from cmq_cli.options import CurrentSession, DataPath, Repeated
from cmq_cli.output import Output
from cmq_cli.spark import connector_errors, show_unsealed
from cmq_cli.values import from_ms, show_count, show_size, show_time
from cmqd_client.administration.segments import Segment, SegmentPage
from cmqd_log.data_folder.folder import Folder
from cmqd_log.errors import CmqdSourceError, FolderError, OptionError, masked
from cmqd_segment.manifest import Manifest, SegmentEntry
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.scan import readable_segments, sealed_segments
from cmqd_types.segments import KeptFor
from cmqd_types.sentences import counted

if TYPE_CHECKING:
    from cmqd_log.export import Exported

app = App(name="segment", help="The segments of the log: list, verify, seal and export the files of a data folder.")


@app.command(name="list")
async def list_segments(
    *, path: DataPath | None = None, after: int = 0, limit: int = 1000, session: CurrentSession
) -> None:
    """List segments of the log: of the server, with what keeps each on disk, or of a data folder.

    Only the account admin can list the segments of the server. Unsealed segments of a folder have no figures.

    Parameters
    ----------
    after
        Of the server, only segments behind this number.
    limit
        Of the server, maximum number of segments: 1 to 1000.
    """
    if path is None:
        async with session.client() as client:
            _show_page(session.output, await client.segments(after=after, limit=limit))
    else:
        _list_folder(session.output, path)


def _show_page(output: Output, page: SegmentPage) -> None:
    columns = ("segment#", "state", "messages#", "size#", "from", "to", "kept for", "needed by")
    rows = [
        (
            str(segment.number),
            segment.state,
            show_count(segment.messages),
            show_size(segment.bytes),
            show_time(segment.first_time),
            show_time(segment.last_time),
            ", ".join(_reason(segment, word) for word in segment.kept_for) or "nothing: about to be reclaimed",
            _holders(segment),
        )
        for segment in page.segments
    ]
    output.listing(as_document(page), columns, rows)
    if page.sends_refused_reason is not None:
        output.warning(f"sends are refused: {page.sends_refused_reason}")
    if page.next is not None:
        output.remark(f"{len(page.segments):,} of {page.total:,} segments; --after {page.next} shows the next ones")


def _reason(segment: Segment, word: str) -> str:
    match word:
        case KeptFor.ROWS:
            return "new rows"
        case KeptFor.MESSAGES:
            return counted(segment.live, "message")
        case KeptFor.REWIND:
            return f"{segment.rewindable:,} rewindable"
        case KeptFor.DELIVERIES:
            return f"{segment.undelivered:,} to deliver"
        case _:
            # Also a word that a newer server has added.
            return word


def _holders(segment: Segment) -> str:
    shown = [
        f"{holder.account}/{holder.name}{' (topic)' if holder.is_topic else ''} {holder.live + holder.rewindable:,}"
        for holder in segment.holders
    ]
    more = segment.holder_count - len(shown)
    return ", ".join([*shown, f"{more:,} more"] if more else shown)


def _list_folder(output: Output, path: str) -> None:
    _, manifest = _open(path)
    entries = readable_segments(manifest)
    document = {
        "clean": manifest.clean,
        "durability": manifest.durability,
        "segments": [_files(entry) | msgspec.structs.asdict(entry) for entry in entries],
        "dropped": manifest.dropped,
        "losses": manifest.losses,
    }
    columns = ("segment#", "state", "first row#", "last row#", "messages#", "size#", "from", "to")
    output.listing(document, columns, map(_row, entries))
    if not output.json:
        for loss in manifest.losses:
            output.warning(f"rows {loss.first_lsn} to {loss.last_lsn} are lost: {loss.reason}")


def _files(entry: SegmentEntry) -> dict[str, str]:
    return {"file": entry.file} if entry.side is None else {"file": entry.file, "side_file": entry.side_file}


@app.command
def verify(*, path: DataPath, session: CurrentSession) -> ExitCode:
    """Read a whole data folder and verify all checksums. Exit code 1 if a file is damaged.

    From a URL one file at a time is fetched. A copy has no unsealed segments, so none is verified. A missing or damaged
    side file is a warning: no data is lost, and the next start of the broker makes the file anew.
    """
    folder, manifest = _open(path)
    segments = sealed_segments(manifest) if folder.is_remote else readable_segments(manifest)
    sides = [entry for entry in segments if entry.side is not None]
    problems_by_file: dict[str, list[str]] = {}
    warnings_by_file: dict[str, list[str]] = {}
    checked = 0
    with session.output.progress() as progress:
        task = progress.add_task("verify", total=len(segments) + len(sides) + len(manifest.checkpoints), rate="")
        try:
            for file, problems, warnings in folder.verify_files():
                checked += 1
                if problems:
                    problems_by_file[file] = problems
                if warnings:
                    warnings_by_file[file] = warnings
                progress.update(task, advance=1, description=file)
        except (NewerFormatError, FolderError) as error:
            raise CommandFailed(masked(f"{path}: {error}")) from error
    if session.output.json:
        session.output.document({"checked": checked, "wrong": problems_by_file, "warnings": warnings_by_file})
    for problems in problems_by_file.values():
        for problem in problems:
            session.output.error(problem)
    for warnings in warnings_by_file.values():
        for warning in warnings:
            session.output.warning(warning)
    if problems_by_file:
        session.output.remark(f"{len(problems_by_file):,} of {checked:,} files are damaged")
        return ExitCode.FAILED
    if warnings_by_file:
        session.output.remark(f"{len(warnings_by_file):,} of {checked:,} files are side files to be made anew")
    else:
        session.output.remark(f"{checked:,} files are sound")
    return ExitCode.OK


@app.command
async def seal(*, session: CurrentSession) -> None:
    """Seal the active segment on the server, so that readers find all messages in sealed segments.

    Only the account admin can seal.
    """
    async with session.client() as client:
        last_lsn = (await client.seal_segments()).last_lsn
    session.output.result({"last_lsn": last_lsn}, f"sealed up to row {last_lsn}")


@app.command
def export(
    *,
    path: DataPath,
    to: Path,
    queue: Repeated = None,
    account: str = "",
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    session: CurrentSession,
) -> None:
    """Write segments as Parquet files, one file per segment; existing files are left unchanged.

    Needs the extra cmqd[log] (pyarrow).

    Parameters
    ----------
    to
        The folder for the files; created if missing.
    queue
        Only the messages of this queue; can be repeated.
    account
        Only the messages of queues and topics of this account.
    all_
        Include unsealed segments.
    """
    files: list[Exported] = []
    with connector_errors("log"):
        from cmqd_log.export import export as export_segments
        from cmqd_log.export import plan_export, unsealed

        try:
            with session.output.progress() as progress:
                tasks = plan_export(path, queues=queue or (), account=account, include_active=all_)
                task = progress.add_task("export", total=len(tasks), rate="")
                for exported in export_segments(tasks, to, queues=queue or (), account=account):
                    files.append(exported)
                    progress.update(task, advance=1, description=exported.file.name)
            unsealed_rows = None if all_ else unsealed(path)
        except OptionError:
            raise
        except (CmqdSourceError, OSError) as error:
            raise CommandFailed(f"{error} ({len(files)} segments were exported)") from error
    if unsealed_rows is not None:
        session.output.remark(show_unsealed(*unsealed_rows, "--all"))
    rows = [
        (
            str(exported.segment),
            show_count(exported.messages),
            show_size(exported.bytes),
            str(exported.file),
            "" if exported.is_new else "unchanged",
        )
        for exported in files
    ]
    documents = [
        {
            "segment": exported.segment,
            "file": str(exported.file),
            "messages": exported.messages,
            "bytes": exported.bytes,
            "new": exported.is_new,
        }
        for exported in files
    ]
    session.output.listing(documents, ("segment#", "messages#", "size#", "file", ""), rows)
    session.output.remark(f"{sum(exported.messages for exported in files):,} messages in {len(files):,} files")


def _open(path: str) -> tuple[Folder, Manifest]:
    try:
        folder = Folder(path)
        return folder, folder.manifest()
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
        show_time(from_ms(entry.first_ms)),
        show_time(from_ms(entry.last_ms)),
    )
