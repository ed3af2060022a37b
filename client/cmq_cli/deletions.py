"""Deletion of several queues, topics or subscriptions by name. A failure is reported, and the next name is tried."""

from collections.abc import Awaitable, Callable, Sequence

from cmq_cli.exitcodes import CommandFailed, ExitCode, exit_code
from cmq_cli.session import Session
from cmqd_client import Client, CmqError


async def delete_each(
    session: Session,
    noun: str,
    names: Sequence[str],
    delete: Callable[[Client, str], Awaitable[None]],
    *,
    ask: Callable[[Client], Awaitable[str]] | None,
) -> ExitCode:
    """Delete every name and return the exit code.

    Args:
        session: the run.
        noun: the kind of the names, for messages: ``queue``.
        names: the names to delete.
        delete: deletes a name.
        ask: returns the question that must be answered with yes before the first deletion; None = no question.

    Raises:
        CommandFailed: no name is given, or there is a question and no terminal.
    """
    if not names:
        raise CommandFailed(f"name at least one {noun}", ExitCode.USAGE)
    deleted: list[str] = []
    failed: dict[str, CmqError] = {}
    async with session.client() as client:
        if ask is not None and not await session.output.confirm(await ask(client)):
            return ExitCode.FAILED
        for name in names:
            try:
                await delete(client, name)
                deleted.append(name)
            except CmqError as error:
                failed[name] = error
                session.output.client_error(error, name)
    if session.output.json:
        session.output.document({"deleted": deleted, "failed": {name: error.name for name, error in failed.items()}})
    for name in deleted:
        session.output.remark(f"{noun} {name!r} deleted")
    if not failed:
        return ExitCode.OK
    return ExitCode.PARTIAL if deleted else exit_code(next(iter(failed.values())))
