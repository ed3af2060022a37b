"""``cmq schedule``: create, list, show, change, pause and delete schedules."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.message_bodies import parse_headers, read_body
from cmq_cli.nouns import as_document, created_remark, delete_each, differences_shown, label, table_of
from cmq_cli.options import FIRST_PAGE, CurrentSession, Ensure, Flag, Header, Paging, QueueName, ScheduleName, Yes
from cmq_cli.output import Output, encode_body
from cmq_cli.values import printable, show_time, show_value
from cmqd_client import Client
from cmqd_client.schedules import ScheduleInfo
from cmqd_types.attributes import SCHEDULE
from cmqd_types.sentences import counted

app = App(name="schedule", help="Schedules: send a message again and again, at the times of a cron expression.")

_COLUMNS = ("name", "queue", "cron", "zone", "next_time", "paused", "missed", "last_error")
_FIELDS = (
    *("name", "queue", "cron", "zone", "paused", "body", "headers", "next_time", "fired", "last_fired_time"),
    *("last_message_id", "missed", "last_error", "last_error_time", "create_time", "modify_time", "id"),
)
_SHOWN_CHARACTERS = 200
"""Characters of a body in the lines of ``info``; JSON has the whole body."""

_Cron = Annotated[str, Parameter(help=f"{SCHEDULE['cron'].help}: '*/15 * * * *', '0 9 * * mon-fri'.")]
_Zone = Annotated[
    str | None,
    Parameter(
        help=f"{SCHEDULE['zone'].help}: Europe/Berlin; {SCHEDULE['zone'].default} by default.", show_default=False
    ),
]
_File = Annotated[
    Path | None,
    Parameter(allow_leading_hyphen=True, help="Send the content of this file; - is standard input."),
]


@app.command
async def create(
    name: Annotated[str, Parameter(help="Name of the schedule: 1-64 ASCII letters, digits, - and _.")],
    queue: QueueName,
    cron: _Cron,
    body: Annotated[str | None, Parameter(help="The message.")] = None,
    /,
    *,
    file: _File = None,
    zone: _Zone = None,
    header: Header = None,
    paused: Annotated[Flag, Parameter(help=f"{SCHEDULE['paused'].help}.")] = False,
    ensure: Ensure = False,
    session: CurrentSession,
) -> None:
    """Create a schedule: the server sends the message at each time of the expression, from now on.

    After an outage of the server the message is sent once for all passed times. A time at which the queue is missing or
    full is missed.
    """
    if (body is None) == (file is None):
        raise CommandFailed("give one of: a body, --file", ExitCode.USAGE)
    if ensure and paused:
        raise CommandFailed("give --ensure or --paused, not both", ExitCode.USAGE)
    content, headers = read_body(body, file), parse_headers(header)
    output = session.output
    async with session.client() as client:
        if ensure:
            with differences_shown(output, name):
                info = await client.schedules.ensure(name, queue, cron, content, zone=zone or None, headers=headers)
        else:
            info = await client.schedules.create(
                name, queue, cron, content, zone=zone or None, headers=headers, paused=paused
            )
    following = "" if info.next_time is None else f"; the next message is sent at {show_time(info.next_time)}"
    output.result(_document(info), created_remark("schedule", name, info.created) + following)


@app.command(name="list")
async def list_schedules(*, paging: Paging = FIRST_PAGE, session: CurrentSession) -> None:
    """List schedules by name, with their next times and errors."""
    async with session.client() as client:
        page = await client.schedules.list(**vars(paging))
    document = {"total": page.total, "schedules": [msgspec.structs.asdict(each) for each in page]}
    session.output.listing(document, *table_of(page, _COLUMNS))
    session.output.remark_rest(paging.offset, len(page), page.total)


@app.command
async def info(name: ScheduleName, /, *, session: CurrentSession) -> None:
    """Show the message, times, counts and last error of a schedule."""
    async with session.client() as client:
        _show(session.output, await client.schedules.info(name))


@app.command(name="set")
async def set_attributes(
    name: ScheduleName,
    /,
    *,
    queue: Annotated[str | None, Parameter(help="Send to this queue.")] = None,
    cron: _Cron | None = None,
    zone: Annotated[str | None, Parameter(help=f"{SCHEDULE['zone'].help}.")] = None,
    body: Annotated[str | None, Parameter(help="The message.")] = None,
    file: _File = None,
    header: Header = None,
    no_headers: Annotated[Flag, Parameter(help="Remove the headers.")] = False,
    session: CurrentSession,
) -> None:
    """Change a schedule; the other attributes stay. A new expression or zone counts from now on."""
    if body is not None and file is not None:
        raise CommandFailed("give --body or --file, not both", ExitCode.USAGE)
    if header and no_headers:
        raise CommandFailed("give --header or --no-headers, not both", ExitCode.USAGE)
    if not (queue or cron or zone or header or no_headers) and body is None and file is None:
        raise CommandFailed("name at least one attribute to change; see: cmq schedule set --help", ExitCode.USAGE)
    content = None if body is None and file is None else read_body(body, file)
    headers = {} if no_headers else parse_headers(header)
    async with session.client() as client:
        changed = await client.schedules.set(name, queue=queue, cron=cron, zone=zone, body=content, headers=headers)
    _show(session.output, changed)


@app.command
async def pause(name: ScheduleName, /, *, session: CurrentSession) -> None:
    """Pause a schedule: times that pass are left out."""
    async with session.client() as client:
        await client.schedules.pause(name)
    session.output.result({"name": name, "paused": True}, f"schedule {name!r} is paused")


@app.command
async def resume(name: ScheduleName, /, *, session: CurrentSession) -> None:
    """Resume a schedule, with the next time from now on."""
    async with session.client() as client:
        resumed = await client.schedules.resume(name)
    following = "" if resumed.next_time is None else f"; the next message is sent at {show_time(resumed.next_time)}"
    document = {"name": name, "paused": False, "next_time": resumed.next_time}
    session.output.result(document, f"schedule {name!r} resumed{following}")


@app.command
async def delete(
    *names: Annotated[str, Parameter(help="Names of the schedules.")], yes: Yes = False, session: CurrentSession
) -> ExitCode:
    """Delete schedules; messages that they sent stay."""

    async def delete_schedule(client: Client, name: str) -> None:
        await client.schedules.delete(name)

    async def question(_: Client) -> str:
        return f"Delete {counted(len(names), 'schedule')}, {', '.join(names)}?"

    return await delete_each(session, "schedule", names, delete_schedule, None if yes else question)


def _document(info: ScheduleInfo) -> dict[str, Any]:
    """Return a schedule for JSON; the body is text, or base64."""
    body, encoding = encode_body(info.body)
    return as_document(info) | {"body": body, "body_encoding": encoding}


def _show(output: Output, info: ScheduleInfo) -> None:
    body, encoding = encode_body(info.body)
    cut = body if len(body) <= _SHOWN_CHARACTERS else f"{body[:_SHOWN_CHARACTERS]}... ({len(info.body):,} bytes)"
    shown = {
        "body": f"(base64) {cut}" if encoding == "base64" else printable(cut).replace("\n", "\\n"),
        "headers": printable(", ".join(f"{name}={value}" for name, value in info.headers.items())) or "-",
    }
    output.facts(
        _document(info),
        {label(field): shown.get(field) or show_value(field, getattr(info, field)) for field in _FIELDS},
    )
