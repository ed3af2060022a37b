"""The options of ``cmq replay``: the messages to replay, their target, and the pace."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.options import DataPath, Flag, IncludeActive, Repeated
from cmq_cli.values import parse_moment

_MESSAGES = Parameter(group=Group("Messages", sort_key=1))
_TARGET = Parameter(group=Group("Target", sort_key=2))
_PACE = Parameter(group=Group("Run", sort_key=3))

_MAX_RATE = 1_000_000
_MAX_PARALLEL = 64
_RESUME_OPTIONS = frozenset({"resume", "rate", "parallel", "master"})
"""Options that can change when a run is resumed."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Order:
    """The options of a replay.

    Parameters
    ----------
    mode
        "events": every stored message. The other modes select by state: "all" messages that the log still holds, each
        once; "consumed"; the "backlog"; "dead": dead letters.
    event
        Only these events: sent, committed, copied, moved, published; in another mode, states such as expired. Can be
        repeated. By default all except half messages and messages that were rolled back.
    slice_
        Maximum number of messages in a slice, the part of a run that is sent again after a stop. By default 50000, or
        a second at the given rate.
    """

    path: Annotated[DataPath | None, _MESSAGES] = None
    queue: Annotated[Repeated, _MESSAGES] = None
    "Replay the messages of this queue; can be repeated."
    topic: Annotated[Repeated, _MESSAGES] = None
    "Replay messages that were published to this topic; can be repeated."
    from_: Annotated[str | None, Parameter(name="--from"), _MESSAGES] = None
    "Sent at or after a time (2026-01-31T12:00, ...Z, ...+02:00; local by default) or an age (10m, 2h, 1d)."
    to: Annotated[str | None, _MESSAGES] = None
    "Sent before a time or an age."
    from_lsn: Annotated[int | None, _MESSAGES] = None
    "First row of the log, instead of --from."
    to_lsn: Annotated[int | None, _MESSAGES] = None
    "Last row of the log, instead of --to."
    mode: Annotated[Literal["events", "all", "consumed", "backlog", "dead"], _MESSAGES] = "events"
    event: Annotated[Repeated, _MESSAGES] = None
    tags: Annotated[Repeated, _MESSAGES] = None
    "Only messages published with at least one of these tags; repeated, or separated by commas."
    routing_key: Annotated[str | None, _MESSAGES] = None
    "Only messages published with a routing key that this binding key matches: eu.*.paid, eu.#."
    account: Annotated[str | None, _MESSAGES] = None
    "Account of the queue or topic, if the name exists in several accounts."
    include_active: Annotated[IncludeActive, _MESSAGES] = False
    allow_data_loss: Annotated[Flag, _MESSAGES] = False
    "Replay the rest if part of the range was reclaimed or lost."

    into: Annotated[str | None, _TARGET] = None
    "Send to this queue."
    into_topic: Annotated[str | None, _TARGET] = None
    "Publish to this topic."
    create: Annotated[Flag, _TARGET] = False
    "Create the queue if it does not exist."
    allow_same_queue: Annotated[Flag, _TARGET] = False
    "Allow a replay of a queue into itself, which stores each of its messages a second time."
    mark: Annotated[Flag, _TARGET] = False
    "Give each message the header cmqd-replayed-from: queue/message id/time."

    dry_run: Annotated[Flag, _PACE] = False
    "Only count the messages."
    rate: Annotated[int | None, _PACE] = None
    "Maximum number of messages per second, sent evenly; unlimited by default."
    parallel: Annotated[int | None, _PACE] = None
    "Send as many times as many requests at once, without an order; 1 (the default) keeps the order."
    slice_: Annotated[int | None, Parameter(name="--slice"), _PACE] = None
    master: Annotated[str | None, _PACE] = None
    "Send with Spark: local[2], or the URL of a cluster that can read the folder."
    state: Annotated[Path | None, _PACE] = None
    "File for the journal, instead of a file in the folder of the user."
    resume: Annotated[str | None, _PACE] = None
    "Resume this run (its name, or its journal). Only --rate, --parallel and --master can be given with it."

    def check(self) -> None:
        """Check the options that contradict each other or are missing.

        Raises:
            CommandFailed: the options cannot be used.
        """
        for name, number, limit in (
            ("rate", self.rate, _MAX_RATE),
            ("parallel", self.parallel, _MAX_PARALLEL),
            ("slice", self.slice_, _MAX_RATE),
        ):
            if number is not None and not 1 <= number <= limit:
                raise _usage(f"--{name} is {number}; it must be 1 to {limit}")
        if self.resume is not None:
            self._check_resume()
            return
        if self.path is None:
            raise _usage("give the data folder: --path")
        if not self.queue and not self.topic:
            raise _usage("give the source of the messages: --queue or --topic")
        if (self.into is None) == (self.into_topic is None) and not (self.dry_run and self.into is None):
            raise _usage("give the target of the messages: --into (a queue) or --into-topic")
        if self.create and self.into is None:
            raise _usage("--create creates a queue (--into); create a topic with: cmq topic create")
        if self.into in split(self.queue) and not self.allow_same_queue:
            raise _usage(
                f"queue {self.into!r} is the source and the target, so each message would be stored a second time; "
                f"--allow-same-queue allows it. cmq rewind makes deleted messages active again without new copies"
            )
        if self.into_topic in split(self.topic) and not self.allow_same_queue:
            raise _usage(
                f"topic {self.into_topic!r} is the source and the target, so each message would be published a second "
                f"time; --allow-same-queue allows it"
            )
        if self.from_ is not None and self.from_lsn is not None:
            raise _usage("give --from or --from-lsn, not both")
        if self.to is not None and self.to_lsn is not None:
            raise _usage("give --to or --to-lsn, not both")

    def _check_resume(self) -> None:
        for option in sorted(dataclasses.fields(self), key=lambda option: option.name):
            if option.name not in _RESUME_OPTIONS and getattr(self, option.name) != option.default:
                name = option.name.strip("_").replace("_", "-")
                raise _usage(f"--resume continues with the options of the run; leave --{name} out")

    def source(self) -> dict[str, str]:
        """Return the options of the source that select messages. The journal keeps them."""
        path = self.path or ""
        options = {
            "path": path if "://" in path else str(Path(path).absolute()),
            "queue": ",".join(split(self.queue)),
            "topic": ",".join(split(self.topic)),
            "tags": ",".join(split(self.tags)),
            "routingKey": self.routing_key,
            "account": self.account,
            "mode": "" if self.mode == "events" else self.mode,
            "includeActive": "true" if self.include_active else "",
        }
        return {name: value for name, value in options.items() if value}

    def bounds(self) -> dict[str, str]:
        """Return the options of the source for the range.

        Raises:
            CommandFailed: the end lies before the start.
            ValueError: a time cannot be read.
        """
        now = time.time()
        starting_ms, ending_ms = _milliseconds(self.from_, now), _milliseconds(self.to, now)
        if starting_ms is not None and ending_ms is not None and starting_ms > ending_ms:
            raise _usage(f"--to is {self.to}, which is before --from, {self.from_}")
        options = {
            "startingTimestamp": starting_ms,
            "endingTimestamp": ending_ms,
            "startingLsn": self.from_lsn,
            "endingLsn": self.to_lsn,
            "failOnDataLoss": "false" if self.allow_data_loss else None,
        }
        return {name: str(value) for name, value in options.items() if value is not None}


def split(names: Sequence[str] | None) -> list[str]:
    """Return names that may be separated by commas."""
    return [name.strip() for group in names or () for name in group.split(",")]


def _usage(text: str) -> CommandFailed:
    return CommandFailed(text, ExitCode.USAGE)


def _milliseconds(text: str | None, now: float) -> int | None:
    return None if text is None else round(parse_moment(text, now).timestamp() * 1000)
