"""``cmq replay``: send a part of the log again, with Spark."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.replays.order import Order
from cmq_cli.replays.problems import check_installed, in_words
from cmq_cli.replays.runs import begin_run, only_count, resume_run
from cmq_cli.session import Session
from cmq_cli.values import parse_moment

_Flag = Annotated[bool, Parameter(negative=())]
_Names = Annotated[list[str] | None, Parameter(negative=())]

_WHAT = Group("What is replayed", sort_key=1)
_WHERE = Group("Where it goes", sort_key=2)
_HOW = Group("How", sort_key=3)

DEFAULT_MASTER = "local[2]"
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

    First the messages are counted, as of one row of the log; later messages are not replayed. Then slice after slice is
    sent, in the order of the log, with a journal. A run that was stopped (Ctrl-C) or killed continues with --resume.

    A replayed message has its body, its headers and, in a topic, its tags or routing key; a new id and time, and no
    delay. Needs the extra cmqd[spark]; --dry-run needs no Java.

    Parameters
    ----------
    path
        The data folder, or a URL of a copy; its broker may be running.
    queue
        Replay the messages of this queue; may be given several times.
    topic
        Replay messages that were published to this topic; may be given several times.
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
        Account of the queue or topic, if several accounts have one of that name.
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
    check_installed()
    if resume is not None:
        others = sorted(given.keys() - {"resume", "rate", "parallel", "master", "mode"})
        if others or mode != "events":
            name = others[0].strip("_").replace("_", "-") if others else "mode"
            raise CommandFailed(
                f"--resume goes on with the options of the run; --{name} cannot be given", ExitCode.USAGE
            )
        with in_words():
            return resume_run(session, resume, rate, parallel, master)
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
    order = Order(
        source={name: str(value) for name, value in source.items() if value},
        edges={name: str(value) for name, value in edges.items() if value is not None},
        events=_split(event),
        into=into or "",
        into_topic=into_topic or "",
        create=create,
        mark=mark,
        allow_data_loss=allow_data_loss,
        rate=rate,
        parallel=parallel or 1,
        slice=slice_,
        master=master or DEFAULT_MASTER,
        state=state,
    )
    with in_words():
        return only_count(session, order) if dry_run else begin_run(session, order)


def _check_numbers(rate: int | None, parallel: int | None, slice_: int | None) -> None:
    for name, value, most in (
        ("rate", rate, MAX_RATE),
        ("parallel", parallel, MAX_PARALLEL),
        ("slice", slice_, MAX_RATE),
    ):
        if value is not None and not 1 <= value <= most:
            raise CommandFailed(f"--{name} is {value}; it must be 1 to {most}", ExitCode.USAGE)


def _split(names: Sequence[str] | None) -> list[str]:
    return [name.strip() for some in names or () for name in some.split(",")]


def _milliseconds(text: str | None, now: float) -> int | None:
    return None if text is None else round(parse_moment(text, now).timestamp() * 1000)
