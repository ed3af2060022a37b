"""``cmq history``: the life of a message, from the broker, a data folder or the URL of a copy."""

from typing import Annotated, Any

from cyclopts import Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.histories import show_history
from cmq_cli.options import CurrentSession, DataPath, Moment
from cmq_cli.otlp import export_waits
from cmq_cli.spark import as_typed
from cmq_cli.values import show_time
from cmqd_client.messages.message_ids import id_number
from cmqd_client.messages.searches import FoundMessages
from cmqd_log.errors import CmqdSourceError
from cmqd_types.histories import MessageHistory

MAX_FOUND = 20
"""Messages that a search by dedup id or header finds; the search ends there."""
MAX_RANGES = 3
"""Ranges of missing rows that a warning lists."""


async def history(
    message: str = "",
    /,
    *,
    path: DataPath = "",
    dedup_id: str = "",
    header: str = "",
    queue: str = "",
    account: str = "",
    from_: Annotated[Moment | None, Parameter(name="--from")] = None,
    to: Moment | None = None,
    otlp: str = "",
    session: CurrentSession,
) -> None:
    """Show what happened to a message: sent, received, deleted, dead-lettered, redriven, expired and so on.

    The broker reads its log; with --path the files are read without the broker, which may be running. The message is
    followed over queues, from a publish to its copies, and from a half message to its commit. Rows that were reclaimed
    are named where they are missing; the setting keep_history_ms of the server keeps the rows of consumed messages.

    Example: cmq history --header order=4711 --queue orders

    Parameters
    ----------
    message
        The id of the message, or a receipt handle under which it was received.
    dedup_id
        In place of an id: the dedup id that the producer gave.
    header
        In place of an id: a header of the message, name=value; needs --queue.
    queue
        The queue or topic to which the message was sent, for a search by dedup id or header.
    account
        The account of the queue, for a search with --path.
    from_
        For a search: only messages sent at or after this time. Default: the broker searches the last 24 hours, and
        --path all rows.
    to
        For a search: only messages sent before this time.
    otlp
        Also write the waits of the message as spans in OTLP's JSON, to this file, or to an endpoint such as
        http://127.0.0.1:4318/v1/traces. With a header traceparent the spans belong to the trace of the producer.
    """
    if sum(map(bool, (message, dedup_id, header))) != 1:
        raise CommandFailed("give a message id, a receipt handle, --dedup-id or --header", ExitCode.USAGE)
    name, is_pair, value = header.partition("=")
    if header and not (name and is_pair and queue):
        raise CommandFailed("--header needs a name and a value, as order=4711, and --queue", ExitCode.USAGE)
    if account and not path:
        raise CommandFailed("--account needs --path; the broker searches the account of the key", ExitCode.USAGE)
    is_cut = False
    if path:
        histories, is_cut = _read(
            path,
            message,
            dedup_id=dedup_id or None,
            header=(name, value) if header else None,
            queue=queue,
            account=account,
            from_ms=None if from_ is None else round(from_.timestamp() * 1000),
            to_ms=None if to is None else round(to.timestamp() * 1000),
        )
    elif message:
        handle = int(message) if message.isdecimal() else None
        async with session.client() as client:
            history_of = await client.message_history("" if handle is not None else message, receipt_handle=handle)
        histories = [history_of.life]
    else:
        async with session.client() as client:
            found = await client.find_messages(
                queue or None,
                dedup_id=dedup_id or None,
                header=(name, value) if header else None,
                since=from_,
                until=to,
                limit=MAX_FOUND,
            )
            if found.missing:
                session.output.warning(_missing(found))
            if not found.messages:
                raise CommandFailed(_no_message(found, dedup_id, header), ExitCode.NOT_FOUND)
            histories = [(await client.message_history(each.id)).life for each in found]
        is_cut = found.is_cut
    show_history(session.output, histories)
    if otlp:
        session.output.remark(f"{export_waits(histories, otlp)} spans were written to {otlp}")
    if is_cut:
        session.output.warning(f"the search ended with {len(histories)} messages; --from and --to make it narrower")


def _missing(found: FoundMessages) -> str:
    rows = ", ".join(
        f"{each.first_lsn}" if each.first_lsn == each.last_lsn else f"{each.first_lsn} to {each.last_lsn}"
        for each in found.missing[:MAX_RANGES]
    )
    more = f" and {len(found.missing) - MAX_RANGES} more ranges" if len(found.missing) > MAX_RANGES else ""
    return f"rows {rows}{more} of the log are reclaimed or lost; messages in them are not found"


def _no_message(found: FoundMessages, dedup_id: str, header: str) -> str:
    asked = f"the header {header}" if header else f"the dedup id {dedup_id!r}"
    return f"no message sent since {show_time(found.from_time)} has {asked}; --from searches older messages"


def _read(path: str, message: str, **search: Any) -> tuple[list[MessageHistory], bool]:
    """Read histories from files: of a message, else of those that a search finds. True = there may be more."""
    # The side files of segments need pyroaring, which other commands start without.
    from cmqd_log.data_folder.histories import HistoryReader, NoMessageError

    try:
        reader = HistoryReader(path)
        if message:
            ids = [reader.id_of_handle(int(message)) if message.isdecimal() else id_number(message)]
        else:
            ids = reader.search(**search, limit=MAX_FOUND)
        return [reader.history(each) for each in ids], len(ids) == MAX_FOUND
    except NoMessageError as error:
        raise CommandFailed(str(error), ExitCode.NOT_FOUND) from error
    except CmqdSourceError as error:
        raise CommandFailed(as_typed(str(error))) from error
