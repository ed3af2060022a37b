"""``cmq reconcile``: the messages of each queue by hour of production and by state, from the data folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.options import CurrentSession, DataPath, IncludeActive, Moment, Repeated
from cmq_cli.output import Output
from cmq_cli.spark import as_typed, connector_errors, show_range, show_unsealed
from cmq_cli.values import show_count, show_time

if TYPE_CHECKING:
    from cmqd_log.reconcile import Line, Reconciled

ALWAYS = ("sent", "consumed", "dead", "waiting", "expired")
"""Columns that a table always has; other columns appear only with messages."""
UNNAMED = "(unknown)"


def reconcile(
    *,
    path: DataPath,
    queue: Repeated = None,
    account: str = "",
    from_: Annotated[Moment | None, Parameter(name="--from")] = None,
    to: Moment | None = None,
    include_active: IncludeActive = False,
    parquet: Path | None = None,
    session: CurrentSession,
) -> ExitCode:
    """Count messages by queue, hour of production and state: sent, consumed, dead-lettered, waiting, expired.

    All counts are as of a row of the log and must add up; exit code 1 if they do not. Only messages with rows in the
    log are counted; the setting keep_history_ms of the server keeps the rows of consumed messages. Needs the extra
    cmqd[log].

    Parameters
    ----------
    queue
        Only this queue; can be repeated.
    account
        Only queues of this account.
    from_
        Only messages sent at or after a time, local unless it names a zone (2026-01-31T12:00, ...Z, ...+02:00), or an
        age (10m, 2h, 1d).
    to
        Only messages sent before a time or an age.
    parquet
        Also write all columns to this Parquet file.
    """
    output = session.output
    with connector_errors():
        from cmqd_log.errors import UnknownNameError
        from cmqd_log.reconcile import ask, write_parquet
        from cmqd_log.reconcile import reconcile as count

        try:
            options = ask(
                path, queues=queue or (), account=account, since=from_, until=to, include_active=include_active
            )
        except UnknownNameError as error:
            raise CommandFailed(as_typed(str(error)), ExitCode.NOT_FOUND) from error
        if times := show_range(options.starting_ms, options.ending_ms):
            output.remark(times)
        with output.progress() as progress:
            task = progress.add_task("reconcile", total=None, rate="")
            result = count(options, lambda done, total: progress.update(task, completed=done, total=total))
        if parquet is not None:
            write_parquet(result, parquet)
    _show(output, result)
    return ExitCode.OK if result.holds else ExitCode.FAILED


def _show(output: Output, result: "Reconciled") -> None:
    from cmqd_log.data_folder.plan import describe

    document = {
        "lsn": result.lsn,
        "missing_rows": result.missing,
        "unsealed_rows": result.unsealed,
        "balanced": result.holds,
        "lines": [_document(line) for line in result.lines],
    }
    output.listing(document, *_table(result))
    for missing in result.missing:
        output.warning(
            f"the broker reclaimed {describe([missing])}, and the counts lack their messages; "
            "the setting keep_history_ms of the server keeps rows longer"
        )
    for line in result.lines:
        if line.difference:
            output.error(
                f"queue {line.queue or UNNAMED!r} of account {line.account or UNNAMED!r}, hour "
                f"{show_time(line.hour)}: {line.total:,} messages arrived, and "
                f"{line.total - line.difference:,} are accounted for"
            )
    if result.unsealed is not None:
        output.remark(show_unsealed(*result.unsealed))
    if result.holds:
        output.remark(
            f"balanced as of row {result.lsn}: each of {result.total.total:,} messages is accounted for exactly once"
        )


def _table(result: "Reconciled") -> tuple[list[str], list[list[str]]]:
    from cmqd_log.reconcile import IN, OUT, WAITING

    total = result.total
    names = dict.fromkeys([*IN, "consumed", "dead", "waiting", *(state for state in OUT if state not in WAITING)])
    counted = [name for name in names if name in ALWAYS or total.count(name)]
    # Most logs have a single account; then the column would be the same in each line.
    has_accounts = len({line.account for line in result.lines}) > 1
    columns = ["account", "queue", "hour"][0 if has_accounts else 1 :]
    rows = [
        [line.account or UNNAMED, line.queue or UNNAMED, show_time(line.hour)[:-3]][0 if has_accounts else 1 :]
        for line in result.lines
    ]
    lines = [*result.lines]
    if len(lines) > 1:
        rows.append(["all", *("" for _ in columns[1:])])
        lines.append(total)
    for row, line in zip(rows, lines, strict=True):
        row += [show_count(line.count(name)) for name in counted]
    return [*columns, *(f"{name.replace('_', ' ')}#" for name in counted)], rows


def _document(line: "Line") -> dict[str, Any]:
    from cmqd_log.reconcile import IN, OUT

    counts = {name: line.count(name) for name in (*IN, *OUT)}
    names = {"account": line.account, "queue": line.queue, "hour": line.hour}
    return {**names, **counts, "difference": line.difference}
