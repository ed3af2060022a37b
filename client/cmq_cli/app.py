"""The command tree, the options that all commands share, and how a run ends."""

import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter

from cmq_cli.commands import (
    account,
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
    topic,
    transaction,
)
from cmq_cli.durations import Seconds
from cmq_cli.exitcodes import HELP, CommandFailed, ExitCode, exit_code
from cmq_cli.output import Output, OutputForm
from cmq_cli.session import Session
from cmqd_client import CmqError
from cmqd_client.contexts import ContextError

_SHARED = Group("Options of all commands", sort_key=99)

app = App(
    name="cmq",
    help="Talk to a cmqd message broker: queues, topics, messages, accounts.",
    help_epilogue=HELP,
    help_format="plaintext",
    version=version("cmqd"),
    version_flags=["--version"],
)
app.command(queue.app)
app.command(message.send)
app.command(message.receive)
app.command(message.tail)
app.command(message.peek)
app.command(message.delete)
app.command(message.release)
app.command(rewind.rewind)
app.command(topic.app)
app.command(subscription.app)
app.command(publish.publish)
app.command(deadletter.app)
app.command(deadletter.redrive)
app.command(transaction.app)
app.command(segment.app)
app.command(replay.replay)
app.command(reconcile.reconcile)
app.command(account.app)
app.command(context.app)
app.command(server.status)
app.meta.group_parameters = _SHARED


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    url: str | None = None,
    context: str | None = None,
    context_file: Path | None = None,
    output: OutputForm = OutputForm.TABLE,
    timeout: Seconds = 3.0,
) -> ExitCode:
    """Read the shared options, run the command.

    Parameters
    ----------
    url
        The server: cmq://ID:KEY@host:port. Others on this machine can see it; prefer a context or CMQ_URL.
    context
        Name of the context to use, instead of the current one.
    context_file
        File with contexts, instead of the user's own; such as admin.context.toml in a server's data folder.
    output
        Tables for people, or JSON and nothing else on standard output.
    timeout
        How long a request may take, beyond the wait of a receive; repeated twice before it fails.
    """
    command, bound, hidden = app.parse_args(tokens, exit_on_error=False, print_error=False)
    session = Session(output=Output(output), url=url, context=context, context_file=context_file, timeout=timeout)
    if "session" in hidden:
        bound.arguments["session"] = session
    return _run(command, bound.args, bound.kwargs, session)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run ``cmq``; the exit code."""
    plain = Output(OutputForm.TABLE)
    try:
        ended: Any = app.meta(
            sys.argv[1:] if arguments is None else list(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except CycloptsError as wrong:
        plain.error(f"{wrong}\ntry: cmq --help")
        return ExitCode.USAGE
    except BrokenPipeError:
        # Whoever read the output has seen enough. What is left in the buffer must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
        session.output.error(str(error))
        return exit_code(error)
    except CommandFailed as failed:
        session.output.error(str(failed))
        return failed.code
    except ContextError as problem:
        session.output.error(str(problem))
        return ExitCode.NOT_FOUND if problem.missing else ExitCode.USAGE
    except ValueError as problem:
        # What the client refuses without asking: a URL, a duration.
        session.output.error(str(problem))
        return ExitCode.USAGE
    return result if isinstance(result, ExitCode) else ExitCode.OK
