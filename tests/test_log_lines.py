"""Log lines of broker and gateway that callers can cause: each kind has a limit, and the lines left out are counted."""

import ast
import contextlib
import io
import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
import structlog

from cmqd.server import broker_logger as broker_lines
from cmqd_logs import lines
from cmqd_logs.limit import (
    LINES_OF_CALLER,
    LINES_OF_CALLER_PER_SECOND,
    LINES_OF_KIND,
    LINES_OF_KIND_PER_SECOND,
    MAX_CALLERS,
    MAX_CHARACTERS,
    TRACEBACK_LINES,
    LineLimit,
    caller_of,
)

ROOT = Path(__file__).parents[1]
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
OWN_NAMES = {"write", "self._name"}
"""Names of lines that are variables: of a line of libraries, and of ``SparseWarning``, whose names are constants."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def output() -> Generator[io.StringIO]:
    """Standard error of the process from its configuration on."""
    with contextlib.redirect_stderr(io.StringIO()) as output:
        yield output
    structlog.reset_defaults()


@pytest.fixture
def limit(clock: Clock, output: io.StringIO) -> LineLimit:
    """The limit of lines that are written to ``output`` as a broker writes its lines."""
    del output
    limit = LineLimit(clock)
    lines.configure_logs(as_json=True, level="debug", unlimited=broker_lines.UNLIMITED, limit=limit)
    return limit


def written(output: io.StringIO) -> list[dict[str, object]]:
    """Return the lines since the call before."""
    text = output.getvalue()
    output.seek(0)
    output.truncate()
    return [json.loads(line) for line in text.splitlines()]


def calls_of(path: Path) -> Generator[ast.Call]:
    """Yield the calls that write a line, by the name of the logger in every module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and ast.unparse(node.func.value) in ("_log", "get_logger()")
        ):
            yield node


def kinds_of(call: ast.Call) -> list[str]:
    """Return the names of the line that a call writes: constants, so that the number of kinds is bounded."""
    (name,) = call.args
    choices = [name.body, name.orelse] if isinstance(name, ast.IfExp) else [name]
    if ast.unparse(name) in OWN_NAMES:
        return []
    assert all(isinstance(choice, ast.Constant) for choice in choices), ast.unparse(call)
    return [str(choice.value) for choice in choices if isinstance(choice, ast.Constant)]


def lines_of_the_project() -> dict[str, set[str]]:
    """Return the kinds of lines of broker and gateway, with the fields of each."""
    found: dict[str, set[str]] = {}
    for folder in ("cmqd", "client/cmqd_gateway"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            # No module has another way to write a line.
            assert "logging.getLogger(" not in text, path
            assert "structlog.get_logger(" not in text, path
            if "_log." not in text and "get_logger()." not in text:
                continue  # the parser would take most of the time of this module
            for call in calls_of(path):
                fields = {keyword.arg for keyword in call.keywords if keyword.arg}
                if isinstance(call.func, ast.Attribute) and call.func.attr == "exception":
                    fields.add("exc_info")
                for kind in kinds_of(call):
                    found.setdefault(kind, set()).update(fields)
    return found


LINES = lines_of_the_project()


def test_the_lines_of_callers_are_found() -> None:
    assert {"login_failed", "administration", "request_failed", "connection_ended", "push_failed"} <= LINES.keys()
    assert LINES.keys() >= broker_lines.UNLIMITED
    assert all(caller_of(dict.fromkeys(LINES[kind], "x")) for kind in ("login_failed", "request_failed"))


@pytest.mark.parametrize("kind", sorted(LINES.keys() - broker_lines.UNLIMITED))
def test_every_line_is_limited_by_kind_and_caller_and_the_number_left_out_is_logged(
    kind: str, limit: LineLimit, clock: Clock, output: io.StringIO
) -> None:
    log = broker_lines.get_logger()
    fields = dict.fromkeys(LINES[kind] - {"exc_info", "event"}, "10.0.0.1:1")
    failure = ValueError("bug") if "exc_info" in LINES[kind] else None
    cost = TRACEBACK_LINES if failure else 1
    has_caller = bool(caller_of(fields))
    most = (LINES_OF_CALLER if has_caller else LINES_OF_KIND) // cost
    sent = 0

    for _ in range(most + 7):
        log.error(kind, **fields, exc_info=failure)
        sent += 1
    assert [line["event"] for line in written(output)] == [kind] * most
    if has_caller:
        # Callers with other names have lines of their own, until the lines of the kind are used up.
        for number in range(2, LINES_OF_KIND + 50):
            log.error(kind, **dict.fromkeys(fields, f"10.0.0.{number}:1"), exc_info=failure)
            sent += 1
        assert len(written(output)) == LINES_OF_KIND // cost - most
    lines.report_left_out()
    (report,) = written(output)
    assert (report["event"], report["kind"]) == ("lines_left_out", kind)
    assert report["count"] == sent - LINES_OF_KIND // cost
    lines.report_left_out()
    assert written(output) == []

    # A minute of attempts, 20 a second.
    attempts = 20 * 60
    for _ in range(attempts):
        clock.now_s += 0.05
        limit.admits({"event": kind, **fields, "exc_info": failure})
    rate = LINES_OF_CALLER_PER_SECOND if has_caller else LINES_OF_KIND_PER_SECOND
    assert limit.take_left_out()[0].lines >= attempts - 60 * rate / cost - 1


@pytest.mark.parametrize("kind", sorted(broker_lines.UNLIMITED))
def test_lines_with_a_bound_of_their_own_are_all_written(kind: str, limit: LineLimit, output: io.StringIO) -> None:
    for _ in range(LINES_OF_KIND + 10):
        broker_lines.get_logger().info(kind, peer="10.0.0.1:1", by_key="AKIDgateway")
    assert len(written(output)) == LINES_OF_KIND + 10
    assert len(limit) == 0


def test_a_flood_of_a_kind_hides_no_line_of_another_kind(clock: Clock) -> None:
    limit = LineLimit(clock)
    admitted = Counter(limit.admits({"event": "login_failed", "peer": f"10.0.{i % 7}.{i}:1"}) for i in range(5_000))

    assert admitted[True] == LINES_OF_KIND
    assert len(limit) == MAX_CALLERS
    assert limit.admits({"event": "administration", "by_key": "AKID1", "peer": "10.0.0.1:1"})


def test_the_caller_is_the_key_or_the_address_and_no_text_of_a_stranger() -> None:
    assert caller_of({"peer": "10.0.0.1:5", "by_key": "AKID1", "secret_id": "x"}) == "AKID1"
    assert caller_of({"peer": "10.0.0.1:5", "secret_id": "any text"}) == "10.0.0.1"
    assert caller_of({"peer": "[2001:db8::1]:5"}) == "[2001:db8::1]"
    assert caller_of({"remote": "2001:db8::1"}) == "2001:db8::1"
    assert caller_of({"secret_id": "any text", "free_bytes": 5}) == ""


def test_the_report_names_the_busiest_caller(clock: Clock) -> None:
    limit = LineLimit(clock)
    for peer, count in (("a:1", 30), ("b:1", 50), ("c:1", 5)):
        for _ in range(count):
            limit.admits({"event": "login_failed", "peer": peer})

    assert limit.take_left_out() == [("login_failed", 40, "b")]
    assert limit.take_left_out() == []


@pytest.mark.usefixtures("limit")
def test_a_long_value_of_a_caller_is_cut(output: io.StringIO) -> None:
    try:
        raise ValueError("x" * 4_000_000)
    except ValueError:
        broker_lines.get_logger().exception("request_failed", names=["y" * 60] * 10_000)
    (line,) = written(output)
    assert "characters left out" in str(line["exception"])
    assert all(len(str(value)) <= MAX_CHARACTERS for value in line.values())


@pytest.fixture
def text(output: io.StringIO) -> io.StringIO:
    """Output of a process that writes lines in text."""
    lines.configure_logs(as_json=False, level="debug")
    return output


def test_values_of_callers_do_not_command_the_terminal_of_a_log_in_text(text: io.StringIO) -> None:
    name = "\x1b[2Jred\0\u2028\u202e\x9b\ud800\rcaf\u00e9"
    try:
        raise ValueError(name)
    except ValueError:
        broker_lines.get_logger().exception("login_failed", secret_id=name, names=[name], queue="a\nb", attempts=3)

    shown = text.getvalue()
    assert shown.splitlines()[-1].endswith("\\x1b[2Jred\\x00\\u2028\\u202e\\x9b\\ud800\\rcaf\u00e9")
    assert " attempts=3 " in shown
    assert " queue='a\\nb' " in shown
    assert "Traceback" in shown
    assert all(line.isprintable() for line in shown.split("\n"))


@pytest.mark.usefixtures("limit")
def test_lines_of_libraries_are_limited_too(output: io.StringIO) -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    lines.take_lines_of_libraries()
    try:
        for _ in range(LINES_OF_KIND + 100):
            logging.getLogger("asyncio").warning("socket.send() raised exception.")
    finally:
        for handler in root.handlers[:]:
            if handler not in before:
                root.removeHandler(handler)
    shown = written(output)
    assert len(shown) == LINES_OF_KIND
    assert (shown[0]["event"], shown[0]["logger"]) == ("library", "asyncio")


@pytest.mark.usefixtures("limit")
def test_reports_come_regularly(output: io.StringIO) -> None:
    later: list[tuple[float, object]] = []
    for _ in range(LINES_OF_CALLER + 1):
        broker_lines.get_logger().warning("login_failed", peer="10.0.0.1:1")

    lines.report_regularly(lambda delay, callback, *arguments: later.append((delay, callback)))

    assert [line["event"] for line in written(output)][-1] == "lines_left_out"
    assert later == [(lines.REPORT_SECONDS, lines.report_regularly)]


def test_broker_and_gateway_load_no_rich_and_it_stays_importable() -> None:
    program = """
import sys
from cmqd_logs.quick_start import import_structlog
import_structlog()
import cmqd.__main__, cmqd.server.process.daemon, cmqd_gateway.process.command
loaded = {name.partition(".")[0] for name in sys.modules}
import rich
print(*({"rich", "structlog"} & loaded))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["structlog"]
