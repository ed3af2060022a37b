"""``cmq bench``: put load on a server and measure it."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from cyclopts import App, CycloptsError, Parameter

from cmq_cli.bench.plans import CyclePlan, FanoutPlan, Plan, PollPlan, RatePlan, SendPlan
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.options import CurrentSession
from cmq_cli.session import Session

_HELP = """\
Load tests: put load on a server, and measure rates and latencies.

Each run makes its own queues, and removes the queues at its end, also after Ctrl-C. A line shows each second; the \
report follows. The load slows down all other work on the server: run no load test beside work that matters.

Example: cmq bench rate --rate 2000 --duration 30s --html rate.html"""

app = App(name="bench", help=_HELP, help_format="restructuredtext")

_SEND, _CYCLE, _RATE, _FANOUT, _POLL = SendPlan(), CyclePlan(), RatePlan(), FanoutPlan(), PollPlan()
_DEFAULTS: Mapping[str, Plan] = {plan.load: plan for plan in (_SEND, _CYCLE, _RATE, _FANOUT, _POLL)}


def _run(plans: Mapping[str, Plan], session: Session, html: Path | None = None) -> ExitCode:
    # Imported here, because other commands of ``cmq`` need no load generator.
    from cmq_cli.bench.benches import run_benches

    return run_benches(plans, session, html)


@app.command
def send(*, plan: SendPlan = _SEND, session: CurrentSession) -> ExitCode:
    """Send messages without receiving: the rate and latency of durable sends.

    The messages stay in the queues until the end of the run, which removes the queues.
    """
    return _run({plan.load: plan}, session)


@app.command
def cycle(*, plan: CyclePlan = _CYCLE, session: CurrentSession) -> ExitCode:
    """Send, receive and delete as fast as the server allows: the highest rate without a growing backlog.

    Producers wait when they are too far ahead of consumers. For the latency at a rate of your choice, use cmq bench
    rate.
    """
    return _run({plan.load: plan}, session)


@app.command
def rate(*, plan: RatePlan = _RATE, session: CurrentSession) -> ExitCode:
    """Send, receive and delete at a fixed rate: the latency from the time at which a message was due to its receipt.

    A message is due at its time even if the server is behind, and its latency counts from this time.
    """
    return _run({plan.load: plan}, session)


@app.command
def fanout(*, plan: FanoutPlan = _FANOUT, session: CurrentSession) -> ExitCode:
    """Publish to a topic with subscribed queues, and receive and delete the copies."""
    return _run({plan.load: plan}, session)


@app.command
def poll(*, plan: PollPlan = _POLL, session: CurrentSession) -> ExitCode:
    """Keep many connections waiting in long polls, and wake random connections at a fixed rate."""
    return _run({plan.load: plan}, session)


@app.command(name="run")
def run_scenario(
    file: Annotated[Path, Parameter(help="The scenario, a TOML file.")],
    /,
    *,
    html: Annotated[Path | None, Parameter(help="File for a page with all runs.")] = None,
    session: CurrentSession,
) -> ExitCode:
    """Run the loads of a scenario in turn; the first failure ends the scenario.

    A table [[run]] has the key load (send, cycle, rate, fanout, poll), perhaps a name, and options of the command
    without the leading dashes: duration = "30s". The table [defaults] has options for all runs.
    """
    return _run(read_scenario(file), session, html)


def read_scenario(file: Path) -> dict[str, Plan]:
    """Return the runs of a scenario by name.

    Raises:
        CommandFailed: the file is no scenario; the text names the run and the key.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _unusable(file, str(error)) from error
    defaults, tables = document.pop("defaults", {}), document.pop("run", None)
    if document:
        raise _unusable(file, f"{min(document)!r} is unknown; a scenario has [defaults] and [[run]]")
    if not isinstance(defaults, dict) or not isinstance(tables, list) or not tables:
        raise _unusable(file, "a scenario has at least one table [[run]], and perhaps a table [defaults]")
    plans: dict[str, Plan] = {}
    for number, table in enumerate(cast("Sequence[Any]", tables), 1):
        if not isinstance(table, dict):
            raise _unusable(file, f"run {number} is no table")
        options: dict[str, Any] = {**defaults, **table}
        load = options.pop("load", None)
        name = str(options.pop("name", load))
        if not isinstance(load, str) or load not in _DEFAULTS:
            raise _unusable(file, f"run {number}: load is {load!r}; it must be one of {', '.join(_DEFAULTS)}")
        if name in plans:
            raise _unusable(file, f"run {number}: the name {name!r} is taken; give each run a name")
        for option in ("help", "version"):
            # The parser of the command would print a text in place of a run.
            if option in options:
                raise _unusable(file, f"run {name!r}: {option!r} is no option of a load")
        try:
            _, bound, _ = app.parse_args([load, *_tokens(options)], exit_on_error=False, print_error=False)
        except CycloptsError as error:
            raise _unusable(file, f"run {name!r}: {error}") from error
        plans[name] = bound.arguments.get("plan", _DEFAULTS[load])
    return plans


def _tokens(options: Mapping[str, Any]) -> list[str]:
    """Return options of a table in the form of a command line."""
    tokens: list[str] = []
    for name, value in options.items():
        name = name.replace("_", "-")
        if isinstance(value, bool):
            tokens.append(f"--{name}" if value else f"--no-{name}")
        else:
            tokens.append(f"--{name}={value}")
    return tokens


def _unusable(file: Path, text: str) -> CommandFailed:
    return CommandFailed(f"{file}: {text}", ExitCode.USAGE)
