"""The command line is run in this process, against a server that has a loop and a thread of its own."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from cmq_cli.app import run
from support.client.cmq_runs import Cmq, Ran, ThreadedServer


@pytest.fixture
def server() -> Iterator[ThreadedServer]:
    # The output of this process is that of the command.
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    server = ThreadedServer()
    yield server
    server.close()
    structlog.reset_defaults()


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No context and no URL in reach; the folder of the user's settings."""
    for name in ("CMQ_URL", "CMQ_CONTEXT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TZ", "UTC")
    return tmp_path / "config"


@pytest.fixture
def cmq(no_server: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cmq:
    """Runs ``cmq`` with arguments and, perhaps, something on standard input."""

    def run_cmq(*arguments: str, stdin: bytes = b"") -> Ran:
        capfdbinary.readouterr()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run(arguments)
        captured = capfdbinary.readouterr()
        return Ran(int(code), captured.out.decode(errors="replace"), captured.err.decode(), captured.out)

    return run_cmq


@pytest.fixture
def cmq_at(cmq: Cmq, server: ThreadedServer, monkeypatch: pytest.MonkeyPatch) -> Cmq:
    """The same with ``server`` as the server."""
    monkeypatch.setenv("CMQ_URL", server.local.url)
    return cmq
