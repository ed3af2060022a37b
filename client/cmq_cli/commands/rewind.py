"""``cmq rewind``: bring deleted messages back."""

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter

from cmq_cli.durations import parse_ago, parse_moment
from cmq_cli.exitcodes import CommandFailed, ExitCode, exit_code
from cmq_cli.output import show_time
from cmq_cli.session import Session
from cmqd_client.errors import TimeNotRewindable

_EVERYTHING = "all"


async def rewind(
    queue: str,
    time: str,
    /,
    *,
    strict: Annotated[bool, Parameter(negative=())] = False,
    session: Annotated[Session, Parameter(parse=False)],
) -> ExitCode:
    """Make deleted messages of a queue active again, for all its consumers.

    The queue needs a rewind window: cmq queue set QUEUE --rewind 1d. Messages that were deleted before the window was
    set stay deleted.

    Parameters
    ----------
    queue
        Name of the queue.
    time
        Messages sent from this time on become active: 2026-01-31T12:00 (local time, or with a zone: ...Z, ...+02:00),
        how long ago (10m, 2h, 1d) by the server's clock, or "all", as far as the window goes.
    strict
        Refuse a time before the window, instead of using the beginning of the window.
    """
    everything = time == _EVERYTHING
    if everything and strict:
        raise CommandFailed('give a time to be strict about, instead of "all"', ExitCode.USAGE)
    ago = None if everything else parse_ago(time)
    moment = None if ago is not None else datetime.fromtimestamp(0, UTC) if everything else parse_moment(time, 0)
    output = session.output
    async with session.client() as client:
        try:
            # The server evaluates a duration, because its messages have broker time, not the time of this machine.
            rewound = await client.queue(queue).rewind(moment, ago=ago, strict=strict)
        except TimeNotRewindable as refused:
            output.client_error(refused)
            nearest = refused.nearest
            if nearest is not None:
                # The text of the server has the time as a number.
                output.remark(f"the nearest time is {show_time(nearest)} ({nearest.isoformat()})")
            return exit_code(refused)
    if output.json:
        output.document({"messages": rewound.messages, "time": rewound.time, "clamped": rewound.clamped})
        return ExitCode.OK
    if rewound.clamped and not everything:
        asked = f"{time} ago" if moment is None else show_time(moment)
        output.warning(f"{asked} lies before the rewind window; the nearest time was taken")
    output.remark(f"{rewound.messages:,} messages of {queue!r} sent since {show_time(rewound.time)} are active again")
    return ExitCode.OK
