"""The command tree, the options that all commands share, and how a run ends."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from typing import Annotated, Any, TypeAlias

from cyclopts import App, CycloptsError, Group, Parameter

from cmq_cli.commands import (
    bench,
    completion,
    connection,
    console,
    consumer,
    import_cmq,
    message,
    schedule,
    server,
    tail,
)
from cmq_cli.commands.access import account, audit, context, key
from cmq_cli.commands.log import history, pin, query, reconcile, replay, segment
from cmq_cli.commands.queues import deadletter, queue, rewind, transaction
from cmq_cli.commands.topics import publish, subscription, topic
from cmq_cli.exitcodes import HELP, CommandFailed, ExitCode, exit_code
from cmq_cli.output import Output, OutputForm
from cmq_cli.session import Session
from cmqd_client import CmqError
from cmqd_client.contexts import ContextError

_SHARED = Group("Options of all commands", sort_key=99)
_SharedOptions: TypeAlias = Annotated[Session | None, Parameter(name="*", group=_SHARED)]

_HELP = """\
Talk to a cmqd message broker: queues, topics, schedules, messages, accounts.

Example: cmq queue create orders; cmq send orders 'first'; cmq receive orders --delete"""

app = App(
    name="cmq",
    help=_HELP,
    help_epilogue=HELP,
    help_format="restructuredtext",
    version=version("cmqd"),
    version_flags=["--version"],
)
_COMMANDS: dict[str, Sequence[Callable[..., Any] | App]] = {
    "Messages": (message.send, message.receive, message.delete, message.release, message.visibility, message.reject),
    "Inspection": (message.peek, tail.tail, server.status, connection.app, consumer.app, console.console),
    "Queues": (queue.app, rewind.rewind, deadletter.app, deadletter.redrive, transaction.app),
    "Topics": (topic.app, subscription.app, publish.publish),
    "Schedules": (schedule.app,),
    "Log": (history.history, query.app, segment.app, pin.app, replay.replay, reconcile.reconcile),
    "Load": (bench.app,),
    "Migration": (import_cmq.import_cmq,),
    "Access": (account.app, key.app, audit.app, context.app),
    "Shell": (completion.completion_of(app),),
}


def _add_commands() -> None:
    for number, (heading, commands) in enumerate(_COMMANDS.items()):
        group = Group(heading, sort_key=number)
        for command in commands:
            if isinstance(command, App):
                command.group = group
                app.command(command)
            else:
                app.command(command, group=group)
    _keep_order(app)
    for flag in ("--help", "--version"):
        app[flag].group = _SHARED


def _keep_order(parent: App) -> None:
    """Make help list commands in the order of their declaration, not by name."""
    for position, name in enumerate(name for name in parent if not name.startswith("-")):
        parent[name].sort_key = position
        _keep_order(parent[name])


_add_commands()


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)], session: _SharedOptions = None
) -> ExitCode:
    """Read the shared options, run the command."""
    session = session or Session()
    session.output.options = cache(lambda: _options_of(tokens))
    command, bound, hidden = app.parse_args(tokens, exit_on_error=False, print_error=False)
    if session.form in (OutputForm.CSV, OutputForm.PARQUET) and command is not query.query:
        text = f"--output {session.form.value} is of cmq log query alone; give table or json"
        session.output.error(text, ExitCode.USAGE.error_name)
        return ExitCode.USAGE
    if "session" in hidden:
        bound.arguments["session"] = session
    return _run(command, bound.args, bound.kwargs, session)


def _options_of(tokens: Sequence[str]) -> dict[str, str]:
    """Return the options of the command in a command line, by the name of the argument."""
    command = app.parse_commands(tokens)[1][-1]
    return {
        argument.field_info.name: argument.name
        for argument in command.assemble_argument_collection()
        if argument.name.startswith("--")
    }


def run(arguments: Sequence[str] | None = None) -> int:
    """Run ``cmq`` and return the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        result: Any = app.meta(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        # The options could not be parsed, so the form of the output is taken from the words themselves.
        is_json = "--output=json" in words or ("--output", "json") in pairwise(words)
        command = " ".join(["cmq", *(error.command_chain or ())])
        output = Output(OutputForm.JSON if is_json else OutputForm.TABLE)
        output.error(f"{error}\ntry: {command} --help", ExitCode.USAGE.error_name)
        return ExitCode.USAGE
    except BrokenPipeError:
        # The program at the other end of the pipe closed it (``| head``).
        _discard_output()
        return ExitCode.OK
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return result if isinstance(result, int) else ExitCode.OK


def _run(command: Any, args: Any, kwargs: Any, session: Session) -> ExitCode:
    """Run a command, and turn every expected failure into a sentence and an exit code."""
    try:
        result = command(*args, **kwargs)
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
        return result if isinstance(result, ExitCode) else ExitCode.OK
    except CmqError as error:
        session.output.client_error(error)
        return exit_code(error)
    except CommandFailed as error:
        text, code = str(error), error.code
    except ContextError as error:
        text, code = str(error), ExitCode.NOT_FOUND if error.missing else ExitCode.USAGE
    except ValueError as error:
        # An argument that the client refuses without a request: a URL, a duration.
        text, code = str(error), ExitCode.USAGE
    except BrokenPipeError:
        raise
    except OSError as error:
        # Only an error of the output has no file name.
        if error.filename is None:
            _discard_output()
        place = "" if error.filename is None else f"{error.filename}: "
        text, code = f"{place}{error.strerror or error}", ExitCode.FAILED
    session.output.error(text, code.error_name)
    return code


def _discard_output() -> None:
    """Discard the rest of the output, because Python would try at exit to write the rest to the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
