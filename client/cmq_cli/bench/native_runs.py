"""A run of the generator in C, a program of a checkout, for rates beyond the generator in Python."""

import asyncio
import socket
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from cmq_cli.bench.crews import AHEAD, CONNECT_SECONDS, OPEN_DEPTH
from cmq_cli.bench.objects import Objects, Target
from cmq_cli.bench.plans import Plan, Work
from cmq_cli.bench.results import Measured, Second, second_of
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmqd_client.address import Address
from cmqd_load.connect import authenticate_blocking
from cmqd_load.failures import LoadError
from cmqd_load.native_job import MIN_NATIVE_BODY, Job, Line, Outcome, body_of, run
from cmqd_load.native_requests import PROTOCOL, delete_start, receive_request, send_request
from cmqd_load.tally import Tally

COMPILER = "cmqd_bench.peers.compiler"
"""The module of the harness that compiles the program. An import statement would fail in an installation."""
LOADS = ("send", "cycle", "rate")


class NativeRun:
    """A run. ``on_second`` gets each second, and True: the generator reports no second of its warm-up."""

    def __init__(self, plan: Plan, work: Work, on_second: Callable[[Second, bool], object]) -> None:
        self._plan = plan
        self._work = work
        self._on_second = on_second
        self._process: subprocess.Popen[bytes] | None = None
        self._before = Tally()
        """Counts up to the last second."""
        self.measured = Measured()
        """The measurements; a cancelled run has them up to its cancellation."""

    @staticmethod
    def check(plan: Plan, work: Work, address: Address) -> None:
        """Check that the generator can do the work.

        Raises:
            CommandFailed: the generator cannot do the work, or is not installed.
        """
        reason = ""
        if work.load not in LOADS:
            reason = f"does {', '.join(LOADS)}, not {work.load}"
        elif address.tls or address.others:
            reason = "speaks to a single host, without TLS"
        elif plan.size < MIN_NATIVE_BODY:
            reason = f"sends bodies of {MIN_NATIVE_BODY} bytes at least, not {plan.size}"
        elif work.producers < work.queues:
            reason = f"needs a connection for each queue, and --connections is {work.producers}"
        elif plan.messages is not None and plan.warm_up:
            reason = "counts the --messages of the warm-up, too, and needs --warm-up 0 with them"
        if reason:
            raise CommandFailed(f"--generator native {reason}", ExitCode.USAGE)
        _program()

    async def run(self, objects: Objects) -> Measured:
        """Run the load and return the measurements, with the error that ended the run."""
        loop = asyncio.get_running_loop()

        def work() -> Outcome:
            job = self._job(objects)
            try:
                return run(
                    _program(),
                    job,
                    on_second=lambda so_far: loop.call_soon_threadsafe(self._take, so_far),
                    on_process=self._keep,
                )
            finally:
                for connection in job.sockets():
                    connection.close()

        try:
            self._finish(await loop.run_in_executor(None, work))
        except asyncio.CancelledError:
            # The thread ends with the program.
            if self._process is not None:
                self._process.kill()
            raise
        except (LoadError, OSError) as error:
            self.measured.failure = error
        return self.measured

    def _keep(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def _job(self, objects: Objects) -> Job:
        plan, work = self._plan, self._work
        body, batch = body_of(plan.size), plan.batch
        queues = [objects.queues[number % len(objects.queues)] for number in range(max(work.producers, work.consumers))]
        consumers = [
            Line(_connect(target), receive_request(target.name, batch), delete_start(target.name, batch))
            for target in queues[: work.consumers]
        ]
        producers = [
            Line(_connect(target), send_request(target.name, [body] * batch)) for target in queues[: work.producers]
        ]
        return Job(
            protocol=PROTOCOL,
            queue=objects.queues[0].name,
            producers=producers,
            consumers=consumers,
            outstanding=work.depth if work.rate is None else OPEN_DEPTH,
            warm_up=plan.warm_up,
            seconds=plan.duration,
            rate=(work.rate or 0.0) / batch,
            limit=plan.messages or 0,
            ahead=AHEAD * work.consumers * batch if work.rate is None else 0,
            records="stamps" if work.consumers else "sends",
            reports_seconds=True,
        )

    def _take(self, so_far: Outcome) -> None:
        """Take the figures of the generator at the end of a second."""
        tally = _tally(so_far)
        elapsed = so_far.seconds - self.measured.seconds
        before, self._before = self._before, tally
        second = Tally()
        second.sent, second.received = tally.sent - before.sent, tally.received - before.received
        second.deleted = tally.deleted - before.deleted
        second.latency = tally.latency.since(before.latency)
        self.measured.seconds = so_far.seconds
        self.measured.total = tally
        self.measured.by_second.append(second_of(second, so_far.seconds, max(elapsed, 1e-9)))
        self._on_second(self.measured.by_second[-1], True)

    def _finish(self, outcome: Outcome) -> None:
        self.measured.seconds = outcome.seconds
        self.measured.total = _tally(outcome)
        self.measured.cores = outcome.cpu_seconds / max(outcome.seconds, 1e-9)
        if self._work.rate is not None:
            self.measured.late = outcome.lateness()
        if not self.measured.by_second:
            second = second_of(self.measured.total, outcome.seconds, max(outcome.seconds, 1e-9))
            self.measured.by_second.append(second)


def _tally(outcome: Outcome) -> Tally:
    tally = Tally()
    tally.sent, tally.received, tally.deleted = outcome.sent, outcome.received, outcome.deleted
    tally.latency = outcome.latencies()
    return tally


def _program() -> Path:
    """Return the compiled generator.

    Raises:
        CommandFailed: this is no checkout, or the machine has no compiler.
    """
    try:
        compiler = import_module(COMPILER)
    except ModuleNotFoundError as error:
        raise CommandFailed(
            "--generator native: the generator in C is part of a checkout of cmqd, and this is an installation",
            ExitCode.USAGE,
        ) from error
    try:
        return compiler.load_program()
    except Exception as error:
        raise CommandFailed(f"--generator native: {error}") from error


def _connect(target: Target) -> socket.socket:
    address = target.addresses[0]
    opened = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    authenticate_blocking(address, opened)
    return opened
