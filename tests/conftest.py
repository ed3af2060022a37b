"""Order of the test files, skips, signals and the clean-up of failed tests, for all tests."""

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from xdist.remote import Producer  # pyright: ignore[reportMissingTypeStubs]
from xdist.scheduler import LoadFileScheduling  # pyright: ignore[reportMissingTypeStubs]

from support.cases import EXAMPLES
from support.spark.class_archive import java_options

LONGEST = (
    "spark/reading/test_killed_driver.py",
    "spark/test_documents.py",
    "engine/test_mixed_faults.py",
    "system/power/test_only_fsynced_survives.py",
    "system/kills/test_kill_nine.py",
    "model",
    "spark",
    "system",
    "bench",
    "engine",
    "log_readers",
    "storage",
    "typing",
    "test_docs.py",
)
"""Files and rooms, the longest first. ``make test`` runs five files at a time, in this order; a long file begun last
would keep a core idle for minutes."""

SPARK_SESSIONS = (
    (
        "spark/reading/test_killed_driver.py",
        "spark/test_documents.py",
        "spark/reading/test_live.py",
        "spark/test_session.py",
    ),
    (
        "spark/replay/test_replay.py",
        "spark/replay/test_reconcile.py",
        "spark/reading/test_batch.py",
        "spark/reading/test_receives.py",
        "spark/streams/test_selection.py",
        "spark/streams/test_stream.py",
        "spark/reading/test_tables.py",
        "spark/sink/test_sink.py",
    ),
)
"""Files with the fixture ``spark``. Each tuple runs on one worker, because a further worker would start a Java of its
own, which compiles Spark anew (decision 0214)."""

ONLY_BY_NAME = ("console", "test_site.py")
"""Tests that run only where the command names them. The console needs a browser, and is a part of ``make test-all``;
``make lint`` builds the site by its test."""

CLEAN_UP_SECONDS = 300
"""Time limit of the clean-up of a failed test: far more than a slow machine needs."""

STANDARD_ERROR = pytest.StashKey[int]()
"""A copy of the file descriptor. During a test pytest captures the original, and its content ends with the process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a test that is skipped fails, as make test-all wants it")


# Some machines and containers switch off the files of compiled modules. Each run would then rewrite the asserts of 450
# files anew in each worker, and each of the hundreds of processes that the tests start would compile the whole product.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["SPARK_SUBMIT_OPTS"] = java_options()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STANDARD_ERROR] = os.dup(2)
    # Hypothesis limits the time of an example and of its making; a busy machine exceeds both.
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "any machine",
        settings(),
        deadline=None,
        suppress_health_check=slow,
        max_examples=int(os.environ.get(EXAMPLES, 25)),
    )
    settings.load_profile("any machine")
    # One number of twenty that Hypothesis draws is a literal from the source of any module that is loaded. The examples
    # of a derandomized test would depend on the other tests of the run: a model failed in make test, and passed alone.
    # Hypothesis has no setting for this (decision 0217). Its plugin also reads the source of all modules at each start.
    no_constants = Constants()
    setattr(providers, "_get_local_constants", lambda: no_constants)  # noqa: B010
    # A shell starts background processes with SIGINT ignored, and nohup any process with SIGHUP ignored. The processes
    # of the tests would inherit this, and some tests send these signals to them.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_named = collection_path.parent == Path(__file__).parent and collection_path.name in ONLY_BY_NAME
    return True if is_named and not any(collection_path.name in argument for argument in config.args) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Nothing of the collection becomes garbage before the end: the collector would look for it in vain, for a tenth of
    # the time, and again in every full collection of the tests.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # The default of 700 new objects is for small programs: collections took a twelfth of the time of the tests.
        gc.set_threshold(5_000, 10, 60)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent

    @cache  # of some 20 nodes of a file
    def rank(file: Path) -> int:
        path = file.relative_to(tests)
        names = {path.as_posix(), path.parts[0]}
        return next((number for number, name in enumerate(LONGEST) if name in names), len(LONGEST))

    items.sort(key=lambda item: rank(item.path))
    shared = {name for files in SPARK_SESSIONS for name in files}
    users = {item.path.relative_to(tests).as_posix() for item in items if "spark" in getattr(item, "fixturenames", ())}
    if users - shared:
        raise pytest.UsageError(f"name {', '.join(sorted(users - shared))} in SPARK_SESSIONS of tests/conftest.py")


class FewSparkSessions(LoadFileScheduling):
    """Gives a worker a file at a time, and the files of a session of Spark together."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        name = file.removeprefix("tests/")
        return next((files[0] for files in SPARK_SESSIONS if name in files), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return FewSparkSessions(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    # A worker would send six messages about a test that passes. Nothing shows the begin, and the reports of set-up and
    # tear-down: with the keywords of the reports they were a sixth of the processor time of a small test.
    if "PYTEST_XDIST_WORKER" not in os.environ or item.config.getoption("durations") is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def ignore_unraisable(_: object) -> None:
    pass


def pytest_runtest_logfinish() -> None:
    # A failed test closes nothing behind its failure, and the interpreter keeps its frames for a debugger until the
    # next test begins. The warnings of open sockets in them would fail that test, or one far behind it.
    if hasattr(sys, "last_value"):
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            if hasattr(sys, name):
                delattr(sys, name)
        reports = sys.unraisablehook
        sys.unraisablehook = ignore_unraisable
        gc.collect()
        sys.unraisablehook = reports


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    # At a failure pytest-timeout and faulthandler cancel their timers, as for a debugger, so the clean-up of a failed
    # test would have no time limit. A thread without the interpreter ends the process, also out of reach of signals;
    # xdist then names the test. faulthandler cancels this timer too, at the end of the test.
    if isinstance(node, pytest.Item):
        faulthandler.dump_traceback_later(CLEAN_UP_SECONDS, exit=True, file=node.config.stash[STANDARD_ERROR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.config.getoption("no_skips"):
        report.outcome, report.longrepr = "failed", f"skipped: {report.longreprtext}"
    if report.passed:
        # Names of folders and marks, which nothing reads, and which were half of the bytes of a report.
        report.keywords = {}
    return report
