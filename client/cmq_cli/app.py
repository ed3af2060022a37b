"""The command tree, the options that all commands share, and how a run ends."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter

from cmq_cli.commands import (
    account,
    completion,
    context,
    deadletter,
    message,
    publish,
    queue,
    reconcile,
    replay,
    rewind,
    segment,
    server,
    subscription,
    tail,
    topic,
    transaction,
)
from cmq_cli.exitcodes import HELP, CommandFailed, ExitCode, exit_code
from cmq_cli.options import Seconds
from cmq_cli.output import Output, OutputForm
from cmq_cli.session import Session
from cmqd_client import CmqError
from cmqd_client.contexts import ContextError

_SHARED = Group("Options of all commands", sort_key=99)

app = App(
    name="cmq",
    help="Talk to a cmqd message broker: queues, topics, messages, accounts.",
    help_epilogue=HELP,
    help_format="restructuredtext",
    version=version("cmqd"),
    version_flags=["--version"],
)
_COMMANDS: dict[str, Sequence[Callable[..., Any] | App]] = {
    "Messages": (message.send, message.receive, message.delete, message.release, message.visibility),
    "Inspection": (message.peek, tail.tail, server.status),
    "Queues": (queue.app, rewind.rewind, deadletter.app, deadletter.redrive, transaction.app),
    "Topics": (topic.app, subscription.app, publish.publish),
    "Log": (segment.app, replay.replay, reconcile.reconcile),
    "Access": (account.app, context.app),
    "Shell": (completion.completion_of(app),),
}
for _number, (_heading, _commands) in enumerate(_COMMANDS.items()):
    _group = Group(_heading, sort_key=_number)
    for _command in _commands:
        if isinstance(_command, App):
            _command.group = _group
            app.command(_command)
        else:
            app.command(_command, group=_group)
app.meta.group_parameters = _SHARED
for _flag in ("--help", "--version"):
    app[_flag].group = _SHARED


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    url: str | None = None,
    context: str | None = None,
    context_file: Path | None = None,
    output: OutputForm = OutputForm.TABLE,
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"], negative=())] = False,
    timeout: Seconds = 3.0,
) -> ExitCode:
    """Read the shared options, run the command.

    Parameters
    ----------
    url
        The server: cmq://ID:KEY@host:port. Other users of this machine can see it; prefer a context or CMQ_URL.
    context
        Name of the context to use, instead of the current one.
    context_file
        File with contexts, instead of the user's own; such as admin.context.toml in a server's data folder.
    output
        Tables, or JSON: results on standard output, errors and warnings on standard error.
    verbose
        Show the numbers of request and connection with an error, as they stand in the server's log.
    timeout
        Time limit of a request, beyond the wait of a receive; a request is repeated twice before it fails.
    """
    command, bound, hidden = app.parse_args(tokens, exit_on_error=False, print_error=False)
    session = Session(
        output=Output(output, verbose=verbose), url=url, context=context, context_file=context_file, timeout=timeout
    )
    if "session" in hidden:
        bound.arguments["session"] = session
    return _run(command, bound.args, bound.kwargs, session)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run ``cmq``; the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        ended: Any = app.meta(
            words,
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except CycloptsError as wrong:
        # The options could not be read, so the form of the output is looked up in the words themselves.
        form = OutputForm.JSON if _asks_for_json(words) else OutputForm.TABLE
        Output(form).error(f"{wrong}\ntry: cmq --help", ExitCode.USAGE.error_name)
        return ExitCode.USAGE
    except BrokenPipeError:
        # The reader of the output has closed it.
        _leave_output()
        return ExitCode.OK
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ended if isinstance(ended, int) else ExitCode.OK


def _run(command: Any, args: Any, kwargs: Any, session: Session) -> ExitCode:
    """Run a command, and make of every expected failure a sentence and an exit code."""
    try:
        result = command(*args, **kwargs)
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
    except CmqError as error:
        session.output.client_error(error)
        return exit_code(error)
    except CommandFailed as failed:
        return _failed(session, failed, failed.code)
    except ContextError as problem:
        return _failed(session, problem, ExitCode.NOT_FOUND if problem.missing else ExitCode.USAGE)
    except ValueError as problem:
        # An argument that the client refuses without asking the server: a URL, a duration.
        return _failed(session, problem, ExitCode.USAGE)
    except BrokenPipeError:
        raise
    except OSError as problem:
        # Of the output, or of a file that has a name.
        if problem.filename is None:
            _leave_output()
        where = "" if problem.filename is None else f"{problem.filename}: "
        session.output.error(f"{where}{problem.strerror or problem}", ExitCode.FAILED.error_name)
        return ExitCode.FAILED
    return result if isinstance(result, ExitCode) else ExitCode.OK


def _leave_output() -> None:
    """Discard the rest of the output, because Python would try at exit to write it to the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(session: Session, error: Exception, code: ExitCode) -> ExitCode:
    session.output.error(str(error), code.error_name)
    return code


def _asks_for_json(words: Sequence[str]) -> bool:
    return "--output=json" in words or ("--output", "json") in pairwise(words)
