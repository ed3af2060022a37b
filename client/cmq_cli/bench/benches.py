"""Runs of ``cmq bench`` in turn: objects, load, report."""

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cmq_cli.bench.native_runs import NativeRun
from cmq_cli.bench.objects import made_objects
from cmq_cli.bench.page import page
from cmq_cli.bench.plans import Generator, Plan, Work
from cmq_cli.bench.results import Measured, Result, Second, result_of
from cmq_cli.bench.runs import Run
from cmq_cli.exitcodes import CommandFailed, ExitCode, exit_code
from cmq_cli.output import Output
from cmq_cli.session import Session
from cmqd_client import Client, CmqError
from cmqd_client.errors import server_error
from cmqd_load.failures import RequestFailed
from cmqd_load.hgrm import hgrm
from cmqd_load.histogram import Histogram


def run_benches(plans: Mapping[str, Plan], session: Session, html: Path | None = None) -> ExitCode:
    """Run loads in turn, by the name of the run, up to the first failure. ``html``: file for a page of all runs.

    Raises:
        CommandFailed: options cannot be used; no run has begun.
    """
    works = {name: plan.check() for name, plan in plans.items()}
    for file in (html, *(file for plan in plans.values() for file in (plan.hgrm, plan.html))):
        if file is not None and not file.absolute().parent.is_dir():
            raise CommandFailed(f"{file}: there is no such folder", ExitCode.USAGE)
        if file is not None and file.is_dir():
            raise CommandFailed(f"{file}: this is a folder", ExitCode.USAGE)
    for plan, work in zip(plans.values(), works.values(), strict=True):
        if plan.generator is Generator.NATIVE:
            NativeRun.check(plan, work, session.address())
    with suppress(ImportError):  # Windows has no limit of descriptors
        from cmqd_sockets.listening import raise_descriptor_limit

        raise_descriptor_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_run_all(plans, works, session, html))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loops if uvloop is installed (with the server): the generator needs less CPU on uvloop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run_all(
    plans: Mapping[str, Plan], works: Mapping[str, Work], session: Session, html: Path | None
) -> ExitCode:
    # Ctrl-C cancels this task (``asyncio.Runner``), and a cancelled run removes its objects. SIGTERM of a supervisor
    # and SIGHUP of a lost terminal cancel the task as well, by handlers: processes in the background of a shell ignore
    # Ctrl-C.
    runs_task = asyncio.current_task()
    if sys.platform != "win32" and runs_task is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            # A run under nohup ignores the loss of the terminal.
            if signal.getsignal(number) is signal.SIG_DFL:
                asyncio.get_running_loop().add_signal_handler(number, runs_task.cancel)
    runs: list[tuple[Result, Histogram]] = []
    async with session.client() as client:
        server = await _server(client)
        for name, plan in plans.items():
            bench = _Bench(name, plan, works[name], session, server)
            try:
                code = await bench.run(client)
            finally:
                runs += bench.finished
                if html is not None and runs:
                    _write(html, page(runs))
            if code is not ExitCode.OK:
                return code
    return ExitCode.OK


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from error


async def _server(client: Client) -> dict[str, Any]:
    """Return version and durability of the server, as far as the key may see them."""
    try:
        status = await client.status()
    except CmqError:
        return {}
    return {name: status[name] for name in ("version", "durability") if name in status}


class _Bench:
    """A run and its report."""

    def __init__(self, name: str, plan: Plan, work: Work, session: Session, server: Mapping[str, Any]) -> None:
        self._name = name
        self._plan = plan
        self._work = work
        self._session = session
        self._output: Output = session.output
        self._server = server
        self.finished: list[tuple[Result, Histogram]] = []
        """The result with its latencies, after the run."""

    async def run(self, client: Client) -> ExitCode:
        """Run the load and report; return the exit code."""
        address, started = self._session.address(), datetime.now(UTC).isoformat(timespec="seconds")
        kind = NativeRun if self._plan.generator is Generator.NATIVE else Run
        run = kind(self._plan, self._work, self._show)
        async with made_objects(client, address, self._plan, self._work, self._output) as objects:
            try:
                measured = await run.run(objects)
            except asyncio.CancelledError:
                self._output.warning("interrupted; the queues of the run are being removed")
                run.measured.is_interrupted = True
                self._report(run.measured, started)
                raise
        self._report(measured, started)
        return self._fail(measured.failure)

    def _show(self, second: Second, is_measured: bool) -> None:
        self._output.remark(second.line(self._name if is_measured else "warm-up"))

    def _report(self, measured: Measured, started: str) -> None:
        if not measured.by_second:
            return
        latency = measured.total.latency
        result = result_of(self._plan, self._work, measured, name=self._name, server=self._server, started=started)
        self.finished.append((result, latency))
        self._output.facts(result, result.pairs())
        for warning in result.warnings():
            self._output.warning(warning)
        if self._plan.hgrm is not None:
            _write(self._plan.hgrm, hgrm(latency))
        if self._plan.html is not None:
            _write(self._plan.html, page(self.finished))

    def _fail(self, failure: Exception | None) -> ExitCode:
        """Print the error that ended the run; return the exit code."""
        if failure is None:
            return ExitCode.OK
        if isinstance(failure, RequestFailed) and failure.error is not None:
            error = server_error(failure.error)
            self._output.client_error(error)
            return exit_code(error)
        code = ExitCode.UNREACHABLE if isinstance(failure, OSError) else ExitCode.FAILED
        self._output.error(str(failure) or type(failure).__name__, code.error_name)
        return code
