"""A run: only counted, begun, or gone on with; its journal is kept, and Spark sends slice after slice."""

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.replays.counting import count_log
from cmq_cli.replays.order import Order
from cmq_cli.replays.problems import as_typed, check_java
from cmq_cli.replays.results import count_document, show_count, show_end
from cmq_cli.replays.stopping import stoppable
from cmq_cli.replays.targets import check_fits, check_same_target, create_target, find_target
from cmq_cli.session import Session

if TYPE_CHECKING:
    from pyspark_cmqd.replay_count import Count
    from pyspark_cmqd.replay_journal import Journal, Slice

SETTINGS = {"spark.python.task.killTimeout": "100ms"}
"""A task that is cancelled sends no more; by default it would for 2 seconds."""


def only_count(session: Session, order: Order) -> ExitCode:
    """Show the messages to send, and check that the target accepts them.

    Raises CommandFailed, CmqError, CmqdSourceError.
    """
    target = None
    if order.into or order.into_topic:
        target = asyncio.run(find_target(session, order))
    options, count = count_log(session, order)
    if target is not None:
        check_fits(order, count, target)
    show_count(session, options, count)
    if session.output.json:
        session.output.document({"state": "dry run", **count_document(count)})
    session.output.remark("nothing was sent")
    return ExitCode.OK


def begin_run(session: Session, order: Order) -> ExitCode:
    """Count, write the journal, and send. Raises CommandFailed, CmqError, CmqdSourceError."""
    from pyspark_cmqd import replay_journal
    from pyspark_cmqd.states_at import write_states

    output = session.output
    address = session.address()
    target = asyncio.run(find_target(session, order))
    check_java()
    options, count = count_log(session, order)
    check_fits(order, count, target)
    show_count(session, options, count)
    if target.subscriptions == 0:
        output.warning(f"{order.into_topic!r} has no subscriptions: messages published there are discarded")
    run = replay_journal.new_run()
    file = replay_journal.journal_file(run, replay_journal.journal_folder(os.environ))
    if order.state is not None:
        file = order.state.absolute()
    if order.state is not None and file.exists():
        raise CommandFailed(f"{file} exists; go on with that run by --resume {file}, or name another", ExitCode.USAGE)
    if not count.slices:
        if output.json:
            output.document({**count_document(count), "state": "done", "messages_sent": 0, "perhaps_twice": []})
        output.remark("there is nothing to replay")
        return ExitCode.OK
    if not target.id:
        target = asyncio.run(create_target(session, order, count))
    journal = replay_journal.Journal(
        run=run,
        source=order.source,
        starting_ms=options.starting_ms,
        ending_ms=options.ending_ms,
        position=count.position,
        log_id=count.log_id,
        start=count.start,
        events=sorted({name for _, name in count.tallies}),
        queue=order.into,
        topic=order.into_topic,
        routing=target.routing,
        target_id=target.id,
        server=str(address),
        mark=order.mark,
        allow_data_loss=order.allow_data_loss,
        rate=order.rate,
        parallel=min(order.parallel, order.rate or order.parallel),
        master=order.master,
        slices=count.slices,
    )
    with replay_journal.locked(file):
        if count.states:
            # First: a journal that is there can be gone on with.
            write_states(replay_journal.states_file(file), count.states)
        replay_journal.write_journal(journal, file)
        output.remark(f"run {run}, journal {file}")
        code = _run(session, journal, file, count)
        replay_journal.clear_up(journal, file)
        return code


def resume_run(session: Session, resume: str, rate: int | None, parallel: int | None, master: str | None) -> ExitCode:
    """Resume a run at its slice, if requested at another rate, with other tasks or on another master.

    ``resume``: its name, or its journal. Raises CommandFailed, CmqError, CmqdSourceError.
    """
    from pyspark_cmqd import replay_journal
    from pyspark_cmqd.replay import check_log

    file = replay_journal.journal_file(resume, replay_journal.journal_folder(os.environ))
    with replay_journal.locked(file):
        journal = replay_journal.read_journal(file)
        if not journal.is_done:
            asyncio.run(check_same_target(session, journal))
            check_java()
            check_log(journal)
        journal.rate = rate or journal.rate
        journal.parallel = parallel or journal.parallel
        journal.parallel = min(journal.parallel, journal.rate or journal.parallel)
        journal.master = master or journal.master
        left = journal.messages - sum(one.messages for one in journal.slices[: journal.done])
        session.output.remark(
            f"run {journal.run}: {journal.done:,} of {len(journal.slices):,} slices are done, "
            f"{left:,} of {journal.messages:,} messages are left"
        )
        if journal.attempts:
            ago = time.time() - journal.begun
            first = f"the slice that was under way ({journal.next_slice}) is sent again from its start"
            if 0 <= ago <= replay_journal.REMEMBERED_S:
                session.output.remark(f"{first}; what is there of it is not stored again")
            else:
                session.output.warning(f"{first}; the server remembers no more what is there of it")
        code = _run(session, journal, file, None)
        replay_journal.clear_up(journal, file)
        return code


def _run(session: Session, journal: "Journal", file: Path, count: "Count | None") -> ExitCode:
    from pyspark_cmqd.errors import CmqdSourceError
    from pyspark_cmqd.replay import replay as replay_slices
    from pyspark_cmqd.replay_journal import Meter
    from pyspark_cmqd.session import spark_session

    output = session.output
    url = session.address().url()
    before = journal.done, journal.seconds
    is_complete = journal.is_done
    if not is_complete:
        output.remark(f"starting Spark ({journal.master})")
        try:
            with (
                stoppable() as stop,
                spark_session(journal.master, f"cmq replay {journal.run}", settings=SETTINGS) as spark,
            ):
                stop.take_over()
                with output.progress() as progress:
                    meter = Meter(journal.messages, sum(one.messages for one in journal.slices[: journal.done]))
                    task = progress.add_task("", total=meter.total, completed=meter.done, rate="")

                    def tell(one: "Slice | None", _: object) -> None:
                        if one is not None:
                            meter.advance(one.messages)
                        number = min(journal.done + 1, len(journal.slices))
                        what = "stopping" if stop.wanted else f"slice {number} of {len(journal.slices)}"
                        progress.update(task, description=what, completed=meter.done, rate=str(meter))

                    is_complete = replay_slices(spark, journal, file, url, stopped=lambda: stop.wanted, tell=tell)
        except CmqdSourceError as error:
            show_end(session, journal, file, count, "failed", before)
            raise CommandFailed(
                f"{as_typed(str(error))}\ngo on with: cmq replay --resume {_name(journal, file)}"
            ) from error
        except KeyboardInterrupt:
            is_complete = False
    state = "done" if is_complete else "stopped"
    show_end(session, journal, file, count, state, before)
    if not is_complete:
        output.remark(f"go on with: cmq replay --resume {_name(journal, file)}")
        return ExitCode.INTERRUPTED
    if journal.sent != journal.messages:
        output.warning(f"{journal.messages - journal.sent:,} messages were reclaimed before they were replayed")
        return ExitCode.PARTIAL
    return ExitCode.OK


def _name(journal: "Journal", file: Path) -> str:
    """As ``--resume`` takes it."""
    from pyspark_cmqd.replay_journal import journal_file, journal_folder

    return journal.run if journal_file(journal.run, journal_folder(os.environ)) == file else str(file)
