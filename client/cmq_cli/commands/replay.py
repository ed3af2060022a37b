"""``cmq replay``: send a part of the log again, with Spark."""

import asyncio
import os
import signal
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Group, Parameter

from cmq_cli.durations import parse_moment
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.output import show_size, show_time
from cmq_cli.session import Session
from cmqd_client import Client, FilterType, QueueNotFound
from cmqd_protocol.limits import MAX_HEADERS

if TYPE_CHECKING:
    from pyspark_cmqd.counting import Count
    from pyspark_cmqd.options import Options
    from pyspark_cmqd.replaying import Journal, Slice

_Flag = Annotated[bool, Parameter(negative=())]
_Names = Annotated[list[str] | None, Parameter(negative=())]

_WHAT = Group("What is replayed", sort_key=1)
_WHERE = Group("Where it goes", sort_key=2)
_HOW = Group("How", sort_key=3)

DEFAULT_MASTER = "local[2]"
DEFAULT_MAX_MESSAGE_BYTES = 65_536
MAX_MESSAGE_BYTES = 1 << 20
MAX_HEADER_BYTES = 16 * 1024
MARK_BYTES = 160
"""Of the mark's header, at most: its name, a queue's name, an id and a time."""
SETTINGS = {"spark.python.task.killTimeout": "100ms"}
"""A task that is cancelled sends no more; by default it would for 2 seconds."""
MAX_RATE = 1_000_000
MAX_PARALLEL = 64


def replay(
    *,
    path: Annotated[str | None, Parameter(group=_WHAT)] = None,
    queue: Annotated[_Names, Parameter(group=_WHAT)] = None,
    topic: Annotated[_Names, Parameter(group=_WHAT)] = None,
    from_: Annotated[str | None, Parameter(name="--from", group=_WHAT)] = None,
    to: Annotated[str | None, Parameter(group=_WHAT)] = None,
    from_lsn: Annotated[int | None, Parameter(group=_WHAT)] = None,
    to_lsn: Annotated[int | None, Parameter(group=_WHAT)] = None,
    mode: Annotated[Literal["events", "all", "consumed", "backlog", "dead"], Parameter(group=_WHAT)] = "events",
    event: Annotated[_Names, Parameter(group=_WHAT)] = None,
    tags: Annotated[_Names, Parameter(group=_WHAT)] = None,
    routing_key: Annotated[str | None, Parameter(group=_WHAT)] = None,
    account: Annotated[str | None, Parameter(group=_WHAT)] = None,
    include_active: Annotated[_Flag, Parameter(group=_WHAT)] = False,
    allow_data_loss: Annotated[_Flag, Parameter(group=_WHAT)] = False,
    into: Annotated[str | None, Parameter(group=_WHERE)] = None,
    into_topic: Annotated[str | None, Parameter(group=_WHERE)] = None,
    create: Annotated[_Flag, Parameter(group=_WHERE)] = False,
    allow_same_queue: Annotated[_Flag, Parameter(group=_WHERE)] = False,
    mark: Annotated[_Flag, Parameter(group=_WHERE)] = False,
    dry_run: Annotated[_Flag, Parameter(group=_HOW)] = False,
    rate: Annotated[int | None, Parameter(group=_HOW)] = None,
    parallel: Annotated[int | None, Parameter(group=_HOW)] = None,
    slice_: Annotated[int | None, Parameter(name="--slice", group=_HOW)] = None,
    master: Annotated[str | None, Parameter(group=_HOW)] = None,
    state: Annotated[Path | None, Parameter(group=_HOW)] = None,
    resume: Annotated[str | None, Parameter(group=_HOW)] = None,
    session: Annotated[Session, Parameter(parse=False)],
) -> ExitCode:
    """Send messages of the log again: to a queue, or published to a topic.

    First it counts what there is, at one row of the log; nothing that is written later is replayed. Then it sends slice
    after slice, in the order of the log, and keeps a journal. Stopped (Ctrl-C) or killed, it goes on with --resume.

    A replayed message has its body, its headers and, in a topic, its tags or routing key; a new id and time, and no
    delay. Needs the extra cmqd[spark]; --dry-run needs no Java.

    Parameters
    ----------
    path
        The data folder, or a URL of a copy; its broker may be running.
    queue
        Replay the messages of this queue; may be given several times.
    topic
        Replay what was published to this topic; may be given several times.
    from_
        Sent at or after: 2026-01-31T12:00 (local time, or with a zone: ...Z, ...+02:00), or how long ago (10m, 2h, 1d).
    to
        Sent before; written likewise.
    from_lsn
        From this row of the log on, instead of --from.
    to_lsn
        Up to this row, included, instead of --to.
    mode
        "events": everything that was put there. Others look at what became of it: "all" that the log still holds once,
        what was "consumed", the "backlog", or what stands there as a "dead" letter.
    event
        Only these events: sent, committed, copied, moved, published; or in another mode, states such as expired. May be
        given several times. Without it all but half messages, and those that were rolled back.
    tags
        Only what was published with one of these; several, or separated by commas.
    routing_key
        Only what was published with a routing key that this binding key matches: eu.*.paid, eu.#.
    account
        The account whose queue or topic it is, if several have one of that name.
    include_active
        Also what is not sealed yet; needs the broker's own folder.
    allow_data_loss
        Replay what is left, if a part of the range was reclaimed or lost.
    into
        Send to this queue.
    into_topic
        Publish to this topic.
    create
        Make the queue if there is none.
    allow_same_queue
        Allow a queue to be replayed into itself: each of its messages is in it once more then.
    mark
        Give each message the header cmqd-replayed-from: queue/message id/time.
    dry_run
        Only count.
    rate
        Messages a second at most, evenly; as fast as it goes by default.
    parallel
        So many tasks send at once, as far as the master has cores, and order is lost; 1 by default.
    slice_
        Most messages of a slice: what is sent again after a stop. 50000 by default, or 10 seconds' worth of the rate.
    master
        Of Spark: local[2] by default, or the URL of a cluster that can read the folder.
    state
        File for the journal, instead of one in the user's folder.
    resume
        Go on with this run (its name, or its journal). Only --rate, --parallel and --master can be given with it.
    """
    given = {name: value for name, value in locals().items() if name != "session" and value not in (None, False)}
    _check_numbers(rate, parallel, slice_)
    _check_installed()
    if resume is not None:
        others = sorted(given.keys() - {"resume", "rate", "parallel", "master", "mode"})
        if others or mode != "events":
            name = others[0].strip("_").replace("_", "-") if others else "mode"
            raise CommandFailed(
                f"--resume goes on with the options of the run; --{name} cannot be given", ExitCode.USAGE
            )
        return _failing(lambda: _resume(session, resume, rate, parallel, master))
    if path is None:
        raise CommandFailed("give the data folder: --path", ExitCode.USAGE)
    if not queue and not topic:
        raise CommandFailed("say what is to be replayed: --queue, or --topic", ExitCode.USAGE)
    if (into is None) == (into_topic is None) and not (dry_run and into is None):
        raise CommandFailed("say where it goes: --into a queue, or --into-topic", ExitCode.USAGE)
    if create and into is None:
        raise CommandFailed("--create is for a queue (--into); make a topic with: cmq topic create", ExitCode.USAGE)
    for name, sources, target in (("queue", queue, into), ("topic", topic, into_topic)):
        if target in _split(sources) and not allow_same_queue:
            raise CommandFailed(
                f"{target!r} would be replayed into itself: all that is replayed would be there once more. "
                f"If that is meant: --allow-same-queue. To bring deleted messages back: cmq rewind"
                if name == "queue"
                else f"{target!r} would be published to itself again. If that is meant: --allow-same-queue",
                ExitCode.USAGE,
            )
    for one, other, names in ((from_, from_lsn, "--from and --from-lsn"), (to, to_lsn, "--to and --to-lsn")):
        if one is not None and other is not None:
            raise CommandFailed(f"{names}: one of them at most", ExitCode.USAGE)
    now = time.time()
    starting_ms, ending_ms = _milliseconds(from_, now), _milliseconds(to, now)
    if starting_ms is not None and ending_ms is not None and starting_ms > ending_ms:
        raise CommandFailed(f"--from is {from_}, and --to is {to}, which is before", ExitCode.USAGE)
    source = {
        "path": path if "://" in path else str(Path(path).absolute()),
        "queue": ",".join(_split(queue)),
        "topic": ",".join(_split(topic)),
        "tags": ",".join(_split(tags)),
        "routingKey": routing_key,
        "account": account,
        "mode": None if mode == "events" else mode,
        "includeActive": "true" if include_active else None,
    }
    edges = {
        "startingTimestamp": starting_ms,
        "endingTimestamp": ending_ms,
        "startingLsn": from_lsn,
        "endingLsn": to_lsn,
        "failOnDataLoss": "false" if allow_data_loss else None,
    }
    order = _Order(
        {name: str(value) for name, value in source.items() if value},
        {name: str(value) for name, value in edges.items() if value is not None},
        _split(event),
        into or "",
        into_topic or "",
        create,
        mark,
        allow_data_loss,
        rate,
        parallel or 1,
        slice_,
        master or DEFAULT_MASTER,
        state,
    )
    return _failing(lambda: _dry_run(session, order) if dry_run else _begin(session, order))


class _Order(msgspec.Struct, frozen=True):
    """What a new run is to do."""

    source: dict[str, str]
    edges: dict[str, str]
    events: list[str]
    into: str
    into_topic: str
    create: bool
    mark: bool
    allow_data_loss: bool
    rate: int | None
    parallel: int
    slice: int | None
    master: str
    state: Path | None


class _Target(msgspec.Struct, frozen=True):
    """The queue or topic as it is."""

    id: int
    """0 = it is to be made."""
    max_message_bytes: int
    routing: bool = False
    subscriptions: int | None = None
    """None = a queue."""


# ---------------------------------------------------------------------- a new run


def _dry_run(session: Session, order: _Order) -> ExitCode:
    target = None
    if order.into or order.into_topic:
        target = asyncio.run(_find_target(session, order))
    options, count = _count(session, order)
    if target is not None:
        _check_fits(order, count, target)
    _show_count(session, options, count)
    if session.output.json:
        session.output.document({"state": "dry run", **_count_document(count)})
    session.output.remark("nothing was sent")
    return ExitCode.OK


def _begin(session: Session, order: _Order) -> ExitCode:
    from pyspark_cmqd import replaying
    from pyspark_cmqd.folding import write_states

    output = session.output
    address = session.address()
    target = asyncio.run(_find_target(session, order))
    _check_java(session)
    options, count = _count(session, order)
    _check_fits(order, count, target)
    _show_count(session, options, count)
    if target.subscriptions == 0:
        output.warning(f"nobody subscribes to {order.into_topic!r}: what is published there is discarded")
    run = replaying.new_run()
    file = replaying.journal_file(run, replaying.journal_folder(os.environ))
    if order.state is not None:
        file = order.state.absolute()
    if order.state is not None and file.exists():
        raise CommandFailed(f"{file} exists; go on with that run by --resume {file}, or name another", ExitCode.USAGE)
    if not count.slices:
        if output.json:
            output.document({**_count_document(count), "state": "done", "messages_sent": 0, "perhaps_twice": []})
        output.remark("there is nothing to replay")
        return ExitCode.OK
    if not target.id:
        target = asyncio.run(_create(session, order, count))
    journal = replaying.Journal(
        run=run,
        source=order.source,
        starting_ms=options.starting_ms,
        ending_ms=options.ending_ms,
        position=count.position,
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
    with replaying.locked(file):
        if count.states:
            # First: a journal that is there can be gone on with.
            write_states(replaying.states_file(file), count.states)
        replaying.write_journal(journal, file)
        output.remark(f"run {run}, journal {file}")
        code = _run(session, journal, file, count)
        replaying.clear_up(journal, file)
        return code


def _count(session: Session, order: _Order) -> "tuple[Options, Count]":
    """Look through the log. Raises CmqdSourceError."""
    from pyspark_cmqd.counting import count, plan_count
    from pyspark_cmqd.options import parse_options
    from pyspark_cmqd.replaying import LEFT_OUT, slice_messages

    options = parse_options({**order.source, **order.edges})
    wanted = frozenset(order.events)
    with session.output.progress() as progress:
        task = progress.add_task("looking for segments", total=None, rate="")
        counting = plan_count(options)
        progress.update(task, description="counting", total=len(counting.tasks))

        def tell(segments: int, messages: int) -> None:
            progress.update(task, completed=segments, rate=f"{messages:,} messages")

        found = count(
            counting,
            (lambda name: name in wanted) if wanted else (lambda name: name not in LEFT_OUT),
            slice_messages(order.rate, order.slice),
            tell=tell,
        )
    return options, found


async def _find_target(session: Session, order: _Order) -> _Target:
    async with session.client() as client:
        if order.into_topic:
            topic = await client.topic(order.into_topic).attributes()
            routing = topic.filter_type is FilterType.ROUTING
            return _Target(topic.id, topic.max_message_bytes, routing, topic.subscriptions)
        try:
            return await _queue_target(client, order.into)
        except QueueNotFound:
            if not order.create:
                raise
            return _Target(0, MAX_MESSAGE_BYTES)


async def _create(session: Session, order: _Order, count: "Count") -> _Target:
    async with session.client() as client:
        largest = max(count.largest, DEFAULT_MAX_MESSAGE_BYTES)
        await client.create_queue(order.into, max_message_bytes=largest)
        session.output.remark(f"made the queue {order.into!r}")
        return await _queue_target(client, order.into)


async def _queue_target(client: Client, name: str) -> _Target:
    queue = await client.queue(name).attributes()
    return _Target(queue.id, queue.max_message_bytes)


def _check_fits(order: _Order, count: "Count", target: _Target) -> None:
    """Raises CommandFailed for what the server would refuse in the middle."""
    name = order.into or order.into_topic
    if count.largest > target.max_message_bytes:
        raise CommandFailed(
            f"{name!r} takes messages of at most {target.max_message_bytes} bytes, and one to be replayed has "
            f"{count.largest}; set it higher first"
        )
    if target.routing and count.without_key:
        raise CommandFailed(
            f"{count.without_key:,} of the messages have no routing key, and {name!r} is a routing topic; "
            f"--routing-key '#' leaves them out"
        )
    if order.mark and (count.most_headers >= MAX_HEADERS or count.most_header_bytes > MAX_HEADER_BYTES - MARK_BYTES):
        raise CommandFailed(
            f"some messages have no room for the header of --mark: {count.most_headers} headers, or "
            f"{count.most_header_bytes} bytes of them ({MAX_HEADERS} and {MAX_HEADER_BYTES} are allowed)"
        )


# ---------------------------------------------------------------------- a run that was begun


def _resume(session: Session, resume: str, rate: int | None, parallel: int | None, master: str | None) -> ExitCode:
    from pyspark_cmqd import replaying
    from pyspark_cmqd.replay import check_log

    file = replaying.journal_file(resume, replaying.journal_folder(os.environ))
    with replaying.locked(file):
        journal = replaying.read_journal(file)
        if not journal.is_done:
            asyncio.run(_check_same_target(session, journal))
            _check_java(session)
            check_log(journal)
        journal.rate = rate or journal.rate
        journal.parallel = parallel or journal.parallel
        journal.parallel = min(journal.parallel, journal.rate or journal.parallel)
        journal.master = master or journal.master
        left = journal.messages - sum(one.messages for one in journal.slices[: journal.done])
        session.output.remark(
            f"run {journal.run}: {journal.done} of {len(journal.slices)} slices are done, "
            f"{left:,} of {journal.messages:,} messages are left"
        )
        if journal.attempts:
            ago = time.time() - journal.begun
            first = f"the slice that was under way ({journal.next_slice}) is sent again from its start"
            if 0 <= ago <= replaying.REMEMBERED_S:
                session.output.remark(f"{first}; what is there of it is not stored again")
            else:
                session.output.warning(f"{first}; the server remembers no more what is there of it")
        code = _run(session, journal, file, None)
        replaying.clear_up(journal, file)
        return code


async def _check_same_target(session: Session, journal: "Journal") -> None:
    async with session.client() as client:
        if journal.queue:
            found = (await client.queue(journal.queue).attributes()).id
        else:
            found = (await client.topic(journal.topic).attributes()).id
    if found != journal.target_id:
        raise CommandFailed(
            f"{journal.target} is another one than when the run began: it was made anew, or this is another server "
            f"({session.address().host}; the run began with {journal.server})"
        )


# ---------------------------------------------------------------------- running


def _run(session: Session, journal: "Journal", file: Path, count: "Count | None") -> ExitCode:
    from pyspark_cmqd.errors import CmqdSourceError
    from pyspark_cmqd.replay import replay as replay_slices
    from pyspark_cmqd.replaying import Meter
    from pyspark_cmqd.session import spark_session

    output = session.output
    url = session.address().url()
    before = journal.done, journal.seconds
    is_complete = journal.is_done
    if not is_complete:
        output.remark(f"starting Spark ({journal.master})")
        try:
            with (
                _stoppable() as stop,
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
            _show_end(session, journal, file, count, "failed", before)
            raise CommandFailed(
                f"{_as_typed(str(error))}\ngo on with: cmq replay --resume {_name(journal, file)}"
            ) from error
        except KeyboardInterrupt:
            is_complete = False
    state = "done" if is_complete else "stopped"
    _show_end(session, journal, file, count, state, before)
    if not is_complete:
        output.remark(f"go on with: cmq replay --resume {_name(journal, file)}")
        return ExitCode.INTERRUPTED
    if journal.sent != journal.messages:
        output.warning(f"{journal.messages - journal.sent:,} messages were reclaimed before they were replayed")
        return ExitCode.PARTIAL
    return ExitCode.OK


class _Stop:
    """Whether a signal asked for an end."""

    def __init__(self) -> None:
        self.wanted = False
        self._kept: dict[signal.Signals, Any] = {}

    def take_over(self) -> None:
        """From now on signals are only noted. Spark has a way of its own with them, which it sets up when it starts."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._kept.setdefault(number, signal.signal(number, self._note))

    def give_back(self) -> None:
        for number, handler in self._kept.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True


@contextmanager
def _stoppable() -> Generator[_Stop]:
    stop = _Stop()
    try:
        yield stop
    finally:
        stop.give_back()


def _name(journal: "Journal", file: Path) -> str:
    """As ``--resume`` takes it."""
    from pyspark_cmqd.replaying import journal_file, journal_folder

    return journal.run if journal_file(journal.run, journal_folder(os.environ)) == file else str(file)


# ---------------------------------------------------------------------- what is shown


def _show_count(session: Session, options: "Options", count: "Count") -> None:
    output = session.output
    if not output.json:
        rows = [
            (
                source,
                event,
                f"{tally.rows:,}",
                f"{tally.messages:,}",
                show_size(tally.bytes),
                show_time(_moment(tally.first_ms)),
                show_time(_moment(tally.last_ms)),
            )
            for (source, event), tally in sorted(count.tallies.items())
        ]
        if rows:
            name = "topic" if options.topics else "queue"
            output.table(
                (
                    name,
                    "state" if options.mode != "events" else "event",
                    "rows#",
                    "messages#",
                    "bodies#",
                    "first sent",
                    "last sent",
                ),
                rows,
            )
        output.remark(
            f"{count.messages:,} messages, {show_size(count.bytes)}, in {count.rows:,} rows of the log "
            f"(up to row {count.position}), {len(count.slices):,} slice{'' if len(count.slices) == 1 else 's'}"
        )
    for (source, event), messages in sorted(count.left_out.items()):
        output.remark(f"left out: {messages:,} of {source}, {event}")
    if count.unsealed is not None:
        output.remark(
            f"rows {count.unsealed[0]} to {count.unsealed[1]} are not sealed yet, and not looked at; "
            f"cmq segment seal makes them visible, and so does --include-active"
        )


def _count_document(count: "Count") -> dict[str, Any]:
    return {
        "position": count.position,
        "rows": count.rows,
        "messages": count.messages,
        "bytes": count.bytes,
        "slices": len(count.slices),
        "counts": [
            {
                "source": source,
                "event": event,
                "rows": tally.rows,
                "messages": tally.messages,
                "bytes": tally.bytes,
                "first_sent": _moment(tally.first_ms),
                "last_sent": _moment(tally.last_ms),
            }
            for (source, event), tally in sorted(count.tallies.items())
        ],
        "left_out": [
            {"source": source, "event": event, "messages": messages}
            for (source, event), messages in sorted(count.left_out.items())
        ],
        "unsealed_rows": count.unsealed,
    }


def _show_end(
    session: Session,
    journal: "Journal",
    file: Path,
    count: "Count | None",
    state: str,
    before: tuple[int, float],
) -> None:
    output = session.output
    under_way = journal.next_slice if journal.attempts and not journal.is_done else None
    seconds = journal.seconds - before[1]
    rate = sum(one.messages for one in journal.slices[before[0] : journal.done]) / seconds if seconds else 0.0
    if output.json:
        document = {
            "state": state,
            "run": journal.run,
            "journal": str(file),
            "queue": journal.queue or None,
            "topic": journal.topic or None,
            "slices": len(journal.slices),
            "slices_done": journal.done,
            "messages": journal.messages,
            "messages_sent": journal.sent,
            "bytes_sent": journal.sent_bytes,
            "seconds": round(journal.seconds, 3),
            "under_way": under_way,
            "perhaps_twice": journal.doubts,
        }
        output.document(document if count is None else {**_count_document(count), **document})
    else:
        pairs = {
            "run": journal.run,
            "state": state,
            "into": journal.target,
            "slices": f"{journal.done:,} of {len(journal.slices):,}",
            "messages": f"{journal.sent:,} of {journal.messages:,}",
            "bodies": show_size(journal.sent_bytes),
            "rate": f"{rate:,.0f}/s",
            "journal": str(file),
        }
        if under_way is not None:
            pairs["sent in part"] = str(under_way)
        pairs["perhaps stored twice"] = "; ".join(map(str, journal.doubts)) or "none"
        output.pairs(pairs)
    if under_way is not None:
        output.remark("resumed within 5 minutes of that slice's begin, nothing of it is stored twice")
    for doubt in journal.doubts:
        output.warning(f"{doubt} may have been stored twice: sent again after {doubt.seconds:.0f} s")


# ---------------------------------------------------------------------- options


def _check_numbers(rate: int | None, parallel: int | None, slice_: int | None) -> None:
    for name, value, most in (
        ("rate", rate, MAX_RATE),
        ("parallel", parallel, MAX_PARALLEL),
        ("slice", slice_, MAX_RATE),
    ):
        if value is not None and not 1 <= value <= most:
            raise CommandFailed(f"--{name} is {value}; it must be 1 to {most}", ExitCode.USAGE)


def _check_installed() -> None:
    from pyspark_cmqd.session import SparkError, check_installed

    try:
        check_installed()
    except SparkError as error:
        raise CommandFailed(str(error)) from error


def _check_java(session: Session) -> None:
    from pyspark_cmqd.java import JavaError, use_java

    try:
        use_java()
    except JavaError as error:
        raise CommandFailed(str(error)) from error


def _failing(work: Any) -> ExitCode:
    """Make of what the connector says a sentence and an exit code."""
    from pyspark_cmqd.errors import CmqdSourceError, OptionError

    try:
        return work()
    except OptionError as error:
        raise CommandFailed(_as_typed(str(error)), ExitCode.USAGE) from error
    except (CmqdSourceError, OSError) as error:
        raise CommandFailed(_as_typed(str(error))) from error


_TYPED = {
    "startingTimestamp": "--from",
    "endingTimestamp": "--to",
    "startingLsn": "--from-lsn",
    "endingLsn": "--to-lsn",
    "routingKey": "--routing-key",
    "includeActive=true": "--include-active",
    "includeActive": "--include-active",
    "failOnDataLoss=false": "--allow-data-loss",
    **{name: f"--{name}" for name in ("path", "queue", "topic", "tags", "mode", "account")},
}


def _as_typed(text: str) -> str:
    """What the source says of its options, with those of the command."""
    for name, option in _TYPED.items():
        text = text.replace(f"option '{name}'", option).replace(f"'{name}' is given", f"{option} is given")
        if "=" in name or name in ("startingLsn", "startingTimestamp"):
            text = text.replace(name, option)
    return text


def _split(names: Sequence[str] | None) -> list[str]:
    return [name.strip() for some in names or () for name in some.split(",")]


def _milliseconds(text: str | None, now: float) -> int | None:
    return None if text is None else round(parse_moment(text, now).timestamp() * 1000)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
