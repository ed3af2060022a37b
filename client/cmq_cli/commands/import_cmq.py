"""``cmq import-cmq``: copy definitions, and move messages, from an endpoint of CMQ's API 2.0."""

from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.imports.copying import DIFFERS, FAILED, Copied, Selection, Source, copy_definitions
from cmq_cli.imports.draining import Drained, drain_queue
from cmq_cli.imports.endpoint import CmqEndpoint, EndpointError
from cmq_cli.key_file import read_key
from cmq_cli.options import CurrentSession, Flag, Repeated
from cmq_cli.output import Output
from cmq_cli.values import show_count
from cmqd_client import Client
from cmqd_types.sentences import counted


async def import_cmq(
    endpoint: str,
    /,
    *,
    key_file: Path,
    topic_endpoint: str | None = None,
    queues: Repeated = None,
    topics: Repeated = None,
    drain: Flag = False,
    drain_wait: Annotated[int, Parameter(validator=Number(gte=0, lte=30))] = 3,
    parallel: Annotated[int, Parameter(validator=Number(gte=1, lte=64))] = 8,
    dry_run: Flag = False,
    session: CurrentSession,
) -> ExitCode:
    """Copy queues, topics and subscriptions from an endpoint of CMQ's API 2.0, and move messages.

    Queues, topics and subscriptions of this server are not changed: a queue with other attributes is reported and not
    drained, so the command can be run again. A drained message is deleted at the source after its copy is on disk.
    Before the drain, stop the producers and consumers of the source.

    Parameters
    ----------
    endpoint
        The source: https://cmq-queue-gz.api.qcloud.com, http://host:5681 ...
    key_file
        File with the key of the source, a line SECRET_ID:SECRET_KEY, readable by its owner alone; - = standard
        input.
    topic_endpoint
        The endpoint of topics, if the source has an endpoint of its own for topics.
    queues
        Only queues with a matching name: a pattern with * and ?. Can be repeated. Without --topics, no topics.
    topics
        Only topics with a matching name, and their subscriptions. Can be repeated. Without --queues, no queues.
    drain
        Move the messages of the copied queues too, until no active message is left at the source.
    drain_wait
        Seconds without a message after which a queue counts as drained: 0 to 30.
    parallel
        Requests to the source at once: 1 to 64.
    dry_run
        Read the definitions, and change nothing.
    """
    if drain and dry_run:
        raise CommandFailed("--dry-run moves no messages; leave out --drain", ExitCode.USAGE)
    if drain and topics and not queues:
        raise CommandFailed(
            "--topics alone copies no queues, so there is nothing to drain; add --queues", ExitCode.USAGE
        )
    secret_id, secret_key = read_key(key_file)
    output = session.output
    copied: list[Copied] = []
    drained: list[Drained] = []
    async with (
        CmqEndpoint(endpoint, secret_id, secret_key, connections=parallel) as queue_source,
        CmqEndpoint(topic_endpoint or endpoint, secret_id, secret_key, connections=parallel) as topic_source,
        session.client() as client,
    ):
        try:
            names = await copy_definitions(
                Source(queue_source, topic_source),
                client,
                Selection(queues or (), topics or ()),
                is_trial=dry_run,
                on_copied=copied.append,
            )
        except EndpointError as error:
            _show_copied(output, copied)
            raise CommandFailed(str(error)) from error
        if not output.json:
            _show_copied(output, copied)
        if drain:
            drained = await _drain_all(queue_source, client, names, drain_wait, parallel, output)
    if output.json:
        output.document({"definitions": copied, "drained": drained})
    return _exit_code(copied, drained)


async def _drain_all(
    source: CmqEndpoint, client: Client, names: list[str], wait: int, workers: int, output: Output
) -> list[Drained]:
    """Drain the queues in turn; the first queue that cannot be drained ends the run."""
    results: list[Drained] = []
    for name in names:
        with output.progress() as progress:
            task = progress.add_task(f"draining {name}", total=None, rate="")
            on_moved = partial(progress.advance, task)
            results.append(await drain_queue(source, client, name, wait=wait, workers=workers, on_moved=on_moved))
        if results[-1].error:
            break
    _show_drained(output, results)
    return results


def _show_copied(output: Output, copied: list[Copied]) -> None:
    rows = [[entry.kind, entry.name, entry.result, "; ".join(entry.notes)] for entry in copied]
    output.listing([msgspec.structs.asdict(entry) for entry in copied], ["kind", "name", "result", "notes"], rows)
    for entry in copied:
        if entry.secret is not None:
            output.remark(f"secret of {entry.name}, shown only now: {entry.secret}")


def _show_drained(output: Output, drained: list[Drained]) -> None:
    for entry in drained:
        if output.json:
            continue
        output.remark(f"{counted(entry.moved, 'message')} of {entry.queue!r} moved")
        if entry.not_deleted:
            output.warning(
                f"{counted(entry.not_deleted, 'message')} of {entry.queue!r} copied and not deleted at the source, and"
                " visible there again after a time"
            )
        if entry.remaining:
            output.warning(
                f"{show_count(entry.remaining)} of {entry.queue!r} still at the source (in flight, delayed or new);"
                " drain again later"
            )
        if entry.error:
            output.error(f"drain of {entry.queue!r} ended early: {entry.error}")


def _exit_code(copied: list[Copied], drained: list[Drained]) -> ExitCode:
    incomplete = any(entry.result in (DIFFERS, FAILED) for entry in copied) or any(
        entry.error or entry.not_deleted or entry.remaining for entry in drained
    )
    return ExitCode.PARTIAL if incomplete else ExitCode.OK
