"""Ctrl-C ends a command at once: a stream says how many messages are stored, a question changes nothing."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cmq_cli.exitcodes import ExitCode
from cmqd_protocol import messages as wire
from support.client.cmq_runs import ThreadedServer

pytestmark = pytest.mark.system


def _interrupt(
    server: ThreadedServer, folder: Path, arguments: list[str], lines: bytes, is_time: Callable[[], bool]
) -> tuple[int, str, str]:
    """Run ``cmq`` with standard input that stays open; press Ctrl-C at a moment. Returns code, output, errors."""
    running = subprocess.Popen(
        [sys.executable, "-m", "cmq_cli", *arguments],
        env=os.environ | {"CMQ_URL": server.local.url, "XDG_CONFIG_HOME": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdin is not None
    running.stdin.write(lines)
    running.stdin.flush()
    while not is_time():
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    # The writing end is still open: the command must not wait for a further line.
    code = running.wait()
    out, err = running.communicate()
    return code, out.decode(), err.decode()


def test_an_interrupted_stream_of_sends_says_how_many_are_stored(server: ThreadedServer, tmp_path: Path) -> None:
    code, _, err = _interrupt(
        server,
        tmp_path,
        ["send", "orders", "--stdin"],
        b"a\nb\nc\n",
        lambda: server.do(server.local.info, "orders").active == 3,
    )

    assert code == ExitCode.INTERRUPTED
    # The answer to the batch may cross the signal; then the command does not know yet that the batch is stored.
    assert "interrupted: 3 messages are stored" in err or "and the next 3 may be" in err
    assert "Traceback" not in err


def test_a_batch_without_an_answer_is_reported_as_such(server: ThreadedServer, tmp_path: Path) -> None:
    server.do(server.local.link.ignore, wire.SendMessages, 3)

    code, out, err = _interrupt(
        server,
        tmp_path,
        ["send", "orders", "--stdin", "--output", "json"],
        b"a\nb\n",
        lambda: bool(server.local.link.of(wire.SendMessages)),
    )

    assert code == ExitCode.INTERRUPTED
    document = json.loads(out)
    assert (document["sent"], document["unanswered"], document["error"]) == (0, 2, "interrupted")
    error = json.loads(err)
    assert error == {
        "error": "interrupted",
        "text": "interrupted: 0 messages are stored, and the next 2 may be",
    }


def test_an_interrupted_stream_of_publishes_says_how_many_are_stored(server: ThreadedServer, tmp_path: Path) -> None:
    server.do(server.local.admin.create_topic, "shop")
    server.do(server.local.subscribe, "shop", "all", "orders")

    code, _, err = _interrupt(
        server,
        tmp_path,
        ["publish", "shop", "--ndjson", "--body-field", "b"],
        b'{"b": "x"}\n{"b": "y"}\n',
        lambda: server.do(server.local.info, "orders").active == 2,
    )

    assert code == ExitCode.INTERRUPTED
    assert "interrupted: 2 messages are stored" in err or "and the next 2 may be" in err


def test_ctrl_c_at_a_question_ends_the_command_and_changes_nothing(server: ThreadedServer, tmp_path: Path) -> None:
    server.do(server.local.put, "orders", b"a")
    terminal, end = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "cmq_cli", "queue", "clear", "orders"],
        env=os.environ | {"CMQ_URL": server.local.url, "XDG_CONFIG_HOME": str(tmp_path)},
        stdin=end,
        stdout=end,
        stderr=end,
    )
    os.close(end)
    shown = b""
    try:
        while b"[y/N]" not in shown:
            shown += os.read(terminal, 1024)
        running.send_signal(signal.SIGINT)
        code = running.wait()
    finally:
        running.kill()
        running.wait()
        os.close(terminal)

    assert code == ExitCode.INTERRUPTED
    assert server.do(server.local.info, "orders").active == 1
