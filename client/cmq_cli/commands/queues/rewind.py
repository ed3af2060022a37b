"""``cmq rewind``: make deleted messages active again."""

from datetime import UTC, datetime

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.nouns import as_document
from cmq_cli.options import CurrentSession, Flag, QueueName
from cmq_cli.output import Output
from cmq_cli.values import parse_age, parse_moment, show_time
from cmqd_client import RewindPreview
from cmqd_types.sentences import counted

_WHOLE_WINDOW = "all"


async def rewind(
    queue: QueueName, time: str, /, *, strict: Flag = False, preview: Flag = False, session: CurrentSession
) -> ExitCode:
    """Make deleted messages of a queue active again, for all its consumers.

    The queue needs a rewind window: cmq queue set QUEUE --rewind 1d. Messages that were deleted before the window was
    set stay deleted.

    Parameters
    ----------
    time
        Make messages active that were sent at or after this time: a time, local unless it names a zone
        (2026-01-31T12:00, ...Z, ...+02:00), an age by the clock of the server (10m, 2h, 1d), or "all": the whole
        rewind window.
    strict
        Refuse a time before the rewind window, instead of using the beginning of the window.
    preview
        Only show how many messages would become active, and the range of possible times; change nothing.
    """
    is_whole_window = time == _WHOLE_WINDOW
    if is_whole_window and strict:
        raise CommandFailed('--strict needs a time; "all" never lies before the rewind window', ExitCode.USAGE)
    if preview and strict:
        raise CommandFailed("--preview shows the possible times; leave out --strict", ExitCode.USAGE)
    age = parse_age(time)
    moment = None if age is not None else datetime.fromtimestamp(0, UTC) if is_whole_window else parse_moment(time, 0)
    output = session.output
    requested = f"{time} ago" if moment is None else show_time(moment)
    async with session.client() as client:
        # The server evaluates an age, because messages have broker time, not the time of this machine.
        if preview:
            begin = None if is_whole_window else moment
            _show(output, queue, requested, await client.queue(queue).preview_rewind(begin, ago=age))
            return ExitCode.OK
        rewound = await client.queue(queue).rewind(moment, ago=age, strict=strict)
    if rewound.clamped and not is_whole_window and not output.json:
        output.warning(f"{requested} lies before the rewind window; the nearest time was used")
    output.result(
        {"messages": rewound.messages, "time": rewound.time, "clamped": rewound.clamped},
        f"{counted(rewound.messages, 'message')} of {queue!r} sent since {show_time(rewound.time)} made active again",
    )
    return ExitCode.OK


def _show(output: Output, queue: str, requested: str, preview: RewindPreview) -> None:
    if preview.clamped and not output.json:
        output.warning(f"{requested} lies before the rewind window; the nearest time would be used")
    since = show_time(preview.time)
    output.result(
        as_document(preview),
        f"{counted(preview.messages, 'message')} of {queue!r} sent since {since} would become active again;"
        f" possible times: {show_time(preview.earliest)} to {show_time(preview.latest)}",
    )
