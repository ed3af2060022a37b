"""Runs of a replay: count only, begin, resume. The journal is kept, and slice after slice is sent."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.replays.counting import count_log
from cmq_cli.replays.order import Order
from cmq_cli.replays.results import count_document, show_counts, show_end
from cmq_cli.replays.targets import check_fits, check_same_target, create_target, find_target
from cmq_cli.session import Session
from cmq_cli.spark import as_typed

if TYPE_CHECKING:
    from cmqd_log.copy.counting import Count
    from cmqd_log.copy.journal import Journal, Slice

EARLIER_DEFAULT_MASTER = "local[2]"
"""Master in the journals of earlier versions, which sent with Spark alone. These runs go on without Spark."""
SETTINGS = {"spark.python.task.killTimeout": "100ms"}
"""A cancelled task sends no more; by default it would send for 2 seconds."""


def only_count(session: Session, order: Order) -> ExitCode:
    """Show the messages to send, and check that the target accepts them.

    Raises:
        CommandFailed: the target would refuse a message.
        CmqError: the server refuses or cannot be reached.
        CmqdSourceError: the log cannot be read.
    """
    has_target = order.into is not None or order.into_topic is not None
    target = asyncio.run(find_target(session, order)) if has_target else None
    options, count = count_log(session, order)
    if target is not None:
        check_fits(order, count, target)
    show_counts(session.output, options, count)
    session.output.result({"state": "dry run", **count_document(count)}, "nothing was sent")
    return ExitCode.OK


def begin_run(session: Session, order: Order) -> ExitCode:
    """Count the messages, write the journal, and send. Raises the errors of :func:`only_count`."""
    from cmqd_log.copy import journal as journals
    from cmqd_log.message_states.states_at import write_states

    output = session.output
    address = session.address()
    target = asyncio.run(find_target(session, order))
    if order.master:
        _check_spark()
    options, count = count_log(session, order)
    check_fits(order, count, target)
    show_counts(output, options, count)
    if target.subscriptions == 0:
        output.warning(f"{order.into_topic!r} has no subscriptions: messages published there are discarded")
    run = journals.new_run()
    file = journals.journal_file(run, journals.journal_folder(os.environ))
    if order.state is not None:
        file = order.state.absolute()
        if file.exists():
            raise CommandFailed(
                f"{file} exists; resume its run with --resume {file}, or name another file", ExitCode.USAGE
            )
    if not count.slices:
        document = count_document(count) | {"state": "done", "messages_sent": 0, "perhaps_twice": ()}
        output.result(document, "there is nothing to replay")
        return ExitCode.OK
    if not target.id:
        target = asyncio.run(create_target(session, order.into or "", count))
    parallel = order.parallel or 1
    journal = journals.Journal(
        run=run,
        source=order.source(),
        starting_ms=options.starting_ms,
        ending_ms=options.ending_ms,
        position=count.position,
        log_id=count.log_id,
        start=count.start,
        events=sorted({name for _, name in count.tallies}),
        queue=order.into or "",
        topic=order.into_topic or "",
        routing=target.routing,
        target_id=target.id,
        server=str(address),
        mark=order.mark,
        allow_data_loss=order.allow_data_loss,
        rate=order.rate,
        parallel=min(parallel, order.rate or parallel),
        master=order.master or "",
        slices=count.slices,
    )
    with journals.locked(file):
        if count.states:
            # Before the journal: a run that has a journal can be resumed, and could not without the states.
            write_states(journals.states_file(file), count.states)
        journals.write_journal(journal, file)
        output.remark(f"run {run}, journal {file}")
        code = _run(session, journal, file, count)
        journals.clear_up(journal, file)
        return code


def resume_run(session: Session, resume: str, order: Order) -> ExitCode:
    """Resume a run at its next slice, with the rate, tasks and master of the order if they are given.

    Args:
        session: the session of the command.
        resume: the name of the run, or its journal.
        order: the other options.

    Raises:
        CommandFailed: the target is another queue or topic.
        CmqError: the server refuses or cannot be reached.
        CmqdSourceError: the journal or the log cannot be used.
    """
    from cmqd_log.copy import journal as journals
    from cmqd_log.copy.slices import check_log

    output = session.output
    file = journals.journal_file(resume, journals.journal_folder(os.environ))
    # Before the lock, which makes a file beside the journal: a wrong path is left as it is.
    journals.read_journal(file)
    with journals.locked(file):
        journal = journals.read_journal(file)
        if not journal.is_done:
            asyncio.run(check_same_target(session, journal))
            check_log(journal)
        journal.rate = order.rate or journal.rate
        journal.parallel = order.parallel or journal.parallel
        journal.parallel = min(journal.parallel, journal.rate or journal.parallel)
        journal.master = order.master or ("" if journal.master == EARLIER_DEFAULT_MASTER else journal.master)
        if journal.master and not journal.is_done:
            _check_spark()
        remaining = sum(part.messages for part in journal.slices[journal.done :])
        output.remark(
            f"run {journal.run}: {journal.done:,} of {len(journal.slices):,} slices are done, "
            f"{remaining:,} of {journal.messages:,} messages are left"
        )
        if journal.attempts:
            age = time.time() - journal.begun
            repeat = f"the interrupted slice ({journal.next_slice}) is sent again from its start"
            if 0 <= age <= journals.REMEMBERED_S:
                output.remark(
                    f"{repeat}; the server recognizes the messages that it has stored, and does not store them again"
                )
            else:
                output.warning(
                    f"{repeat}; the server no longer remembers its dedup ids, and may store messages of the slice twice"
                )
        code = _run(session, journal, file, None)
        journals.clear_up(journal, file)
        return code


def _run(session: Session, journal: "Journal", file: Path, count: "Count | None") -> ExitCode:
    """Send the remaining slices, show the result, and return the exit code."""
    from cmqd_log.errors import CmqdSourceError

    output = session.output
    before = journal.done, journal.seconds
    hint = f"resume with: cmq replay --resume {_resume_name(journal, file)}"
    try:
        is_complete = journal.is_done or _send_slices(session, journal, file)
    except CmqdSourceError as error:
        show_end(output, journal, file, count, "failed", before)
        raise CommandFailed(f"{as_typed(str(error))}\n{hint}") from error
    except KeyboardInterrupt:
        is_complete = False
    show_end(output, journal, file, count, "done" if is_complete else "stopped", before)
    if not is_complete:
        output.remark(hint)
        return ExitCode.INTERRUPTED
    if journal.sent != journal.messages:
        output.warning(f"{journal.messages - journal.sent:,} messages were reclaimed before they were replayed")
        return ExitCode.PARTIAL
    return ExitCode.OK


def _send_slices(session: Session, journal: "Journal", file: Path) -> bool:
    """Send the remaining slices, with Spark if the run has a master.

    Returns:
        True if all are sent, False after a signal.
    """
    if not journal.master:
        from cmqd_log.copy.replay import replay

        with _kept_signals() as received:
            return _send_with(partial(replay, journal, file), session, journal, received)
    from pyspark_cmqd.replay import replay as replay_with_spark
    from pyspark_cmqd.session import spark_session

    session.output.remark(f"starting Spark ({journal.master})")
    with (
        _kept_signals() as received,
        spark_session(journal.master, f"cmq replay {journal.run}", settings=SETTINGS) as spark,
    ):
        return _send_with(partial(replay_with_spark, spark, journal, file), session, journal, received)


def _send_with(send: "Callable[..., bool]", session: Session, journal: "Journal", received: list[int]) -> bool:
    """Send the remaining slices and show their progress; a signal stops the run at a point where it can be resumed."""
    from cmqd_log.copy.journal import Meter

    # After the start of Spark, which sets its own handlers. These handlers only note the signal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: received.append(number))
    with session.output.progress() as progress:
        meter = Meter(journal.messages, sum(part.messages for part in journal.slices[: journal.done]))
        task = progress.add_task("", total=meter.total, completed=meter.done, rate="")

        def show_progress(sent: "Slice | None", _: object) -> None:
            if sent is not None:
                meter.advance(sent.messages)
            number = min(journal.done + 1, len(journal.slices))
            state = "stopping" if received else f"slice {number} of {len(journal.slices)}"
            progress.update(task, description=state, completed=meter.done, rate=str(meter))

        return send(session.address().url(), stopped=lambda: bool(received), tell=show_progress)


def _check_spark() -> None:
    """Check that Spark and Java are there, before the first message is sent.

    Raises:
        CmqdSourceError: a package is missing.
        JavaError: no Java can be used.
    """
    from pyspark_cmqd.java import use_java
    from pyspark_cmqd.session import check_installed

    check_installed()
    use_java()


@contextmanager
def _kept_signals() -> Generator[list[int]]:
    """Yield a list for the signals that arrive, and restore the handlers of SIGINT and SIGTERM at the end."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield []
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _resume_name(journal: "Journal", file: Path) -> str:
    """Return the run as ``--resume`` accepts it."""
    from cmqd_log.copy.journal import journal_file, journal_folder

    return journal.run if journal_file(journal.run, journal_folder(os.environ)) == file else str(file)
