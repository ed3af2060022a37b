"""``cmq log queues``: the queues that a log names, with their ids."""

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.options import CurrentSession, DataPath, IncludeActive
from cmq_cli.spark import connector_errors
from cmq_cli.values import from_ms, show_count, show_time
from cmqd_log.errors import FolderError


def queues(*, path: DataPath, include_active: IncludeActive = False, session: CurrentSession) -> None:
    """List the queues that a log names: id, account, name, times of creation and delete, and messages in the log.

    A queue that is created again under its name has a new id, and a line of its own. Every row of the folder is read.
    """
    with connector_errors("log"):
        from cmqd_log.data_folder.folder import open_folder
        from cmqd_log.options import parse_options
        from cmqd_log.queues import queues_of

        folder = open_folder(parse_options({"path": path, "includeActive": str(include_active)}))
        try:
            found = queues_of(folder, folder.view(include_active=include_active))
        except FolderError as error:
            is_missing = isinstance(error.__cause__, FileNotFoundError)
            raise CommandFailed(str(error), ExitCode.NOT_FOUND if is_missing else ExitCode.FAILED) from error
    rows = [
        (
            str(queue.id),
            queue.account,
            queue.name,
            _time(queue.created_ms),
            "-" if queue.exists else _time(queue.deleted_ms),
            show_count(queue.messages),
        )
        for queue in found
    ]
    session.output.listing(
        [
            {
                "id": queue.id,
                "account": queue.account,
                "name": queue.name,
                "created": None if queue.created_ms is None else from_ms(queue.created_ms),
                "deleted": None if queue.deleted_ms is None else from_ms(queue.deleted_ms),
                "exists": queue.exists,
                "messages": queue.messages,
            }
            for queue in found
        ],
        ("id#", "account", "queue", "created", "deleted", "messages#"),
        rows,
    )


def _time(milliseconds: int | None) -> str:
    return "unknown" if milliseconds is None else show_time(from_ms(milliseconds))
