"""Commands that find no leader among the servers of their context: they wait for a takeover, and say so."""

from collections.abc import Iterator

import pytest

from cmq_cli import session
from cmq_cli.exitcodes import ExitCode
from cmq_cli.output import Output
from cmqd_protocol import messages as wire
from support.client.cmq_runs import Cmq, ThreadedServer
from support.processes.silent_port import reserve_port


@pytest.fixture
def silent_port() -> Iterator[int]:
    with reserve_port() as reserved:
        yield reserved.getsockname()[1]


@pytest.fixture
def pair_url(server: ThreadedServer, silent_port: int) -> str:
    """A broker that is gone, and its standby."""
    key, _, address = server.local.url.rpartition("@")
    return f"{key}@127.0.0.1:{silent_port},{address}"


def test_a_command_waits_for_the_standby_and_says_so(
    cmq: Cmq, server: ThreadedServer, pair_url: str, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.do(server.local.link.stop)
    told: list[str] = []

    def lead(_: Output, text: str) -> None:
        told.append(text)
        server.do(server.local.link.start)

    monkeypatch.setattr(Output, "warning", lead)

    ran = cmq("--url", pair_url, "send", "orders", "first")

    assert told[0].startswith("no server leads; waiting up to 30 s for a takeover (127.0.0.1:"), told
    assert str(silent_port) in told[0]
    assert (ran.code, ran.err) == (ExitCode.OK, f"127.0.0.1:{server.local.link.port} leads\n"), ran
    assert server.do(server.local.info, "orders").active == 1


def test_a_leader_that_is_lost_in_a_request_is_waited_for(
    cmq: Cmq, server: ThreadedServer, pair_url: str, silent_port: int
) -> None:
    server.local.link.lose_answer(wire.SendMessages)

    ran = cmq("--url", pair_url, "send", "orders", "first")

    assert ran.code == ExitCode.OK
    assert "warning: no server leads; waiting up to 30 s for a takeover (" in ran.err
    assert server.do(server.local.info, "orders").active == 1


def test_the_wait_ends(cmq: Cmq, silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TAKEOVER_SECONDS", 0.2)
    url = f"cmq://id:key@127.0.0.1:{silent_port},127.0.0.1:{silent_port}"

    ran = cmq("--url", url, "--output", "json", "--timeout", "1ms", "status")

    assert ran.code == ExitCode.UNREACHABLE
    warning, error = ran.err.splitlines()
    assert "no server leads; waiting up to 0.2 s" in warning
    assert "no connection within" in error


def test_a_wrong_key_is_refused_at_once(cmq: Cmq, server: ThreadedServer) -> None:
    address = server.local.url.rpartition("@")[2]

    ran = cmq("--url", f"cmq://id:key@{address},{address}", "status")

    assert ran.code == ExitCode.REFUSED
    assert "waiting" not in ran.err
