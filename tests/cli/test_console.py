"""``cmq console``: the link, the address of the gateway, and refusals in words."""

import asyncio
import json
import socket
import time
import webbrowser
from collections.abc import Iterator
from typing import Any

import pytest

from cmq_cli.commands import console
from cmqd_client import Client
from cmqd_client.address import parse_address
from cmqd_client.administration.inspection import Setting
from cmqd_client.errors import PermissionDenied
from cmqd_gateway.console.signed_texts import Purpose, read
from support.client.cmq_runs import Cmq, ThreadedServer


@pytest.fixture
def listener() -> Iterator[str]:
    """``host:port`` of a listener that stands for a gateway."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def settings_of(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """Make the broker answer with these settings."""

    async def settings(_: Client) -> list[Setting]:
        return [Setting(name, "", value, None, "flag", "", "", "") for name, value in values.items()]

    monkeypatch.setattr(Client, "settings", settings)


def test_the_link_proves_the_key_without_its_secret(cmq_at: Cmq, server: ThreadedServer, listener: str):
    before = int(time.time())
    ran = cmq_at("console", "--gateway", f"http://{listener}/console/")

    own = parse_address(server.local.url)
    base, _, token = ran.out.strip().partition("#token=")
    assert (ran.code, base) == (0, f"http://{listener}/console/")
    text = read(token)
    assert text is not None
    assert text.is_signed(Purpose.SIGN_IN, own.secret_key)
    assert (text.secret_id, text.ends - text.began) == (own.secret_id, 60)
    assert before <= text.began <= time.time()
    assert own.secret_key not in ran.out + ran.err
    assert "works once" in ran.err


def test_programs_get_a_document(cmq_at: Cmq, listener: str):
    ran = cmq_at("console", "--gateway", f"http://{listener}", "--output", "json")

    document = json.loads(ran.out)
    assert document["url"].startswith(f"http://{listener}/console/#token=")
    assert document["valid_seconds"] == 60


def test_the_address_comes_from_the_settings_of_the_broker(cmq_at: Cmq, listener: str, monkeypatch: pytest.MonkeyPatch):
    port = listener.rpartition(":")[2]
    for http in (listener, f"0.0.0.0:{port}", f":{port}"):
        settings_of(monkeypatch, http=http, tls_certificate=None)
        assert cmq_at("console").out.startswith(f"http://{listener}/console/#token=")
    settings_of(monkeypatch, http=listener, tls_certificate="server.pem")
    assert cmq_at("console").out.startswith(f"https://{listener}/console/#token=")


def test_without_the_right_to_read_settings_the_usual_port_is_tried(
    cmq_at: Cmq, listener: str, monkeypatch: pytest.MonkeyPatch
):
    async def settings(_: Client) -> list[Setting]:
        raise PermissionDenied("no")

    monkeypatch.setattr(Client, "settings", settings)
    monkeypatch.setattr(console, "HTTP_PORT", int(listener.rpartition(":")[2]))

    assert cmq_at("console").out.startswith(f"http://{listener}/console/#token=")


def test_a_broker_without_a_gateway_is_said_in_words(cmq_at: Cmq, monkeypatch: pytest.MonkeyPatch):
    settings_of(monkeypatch, http="", tls_certificate=None)
    ran = cmq_at("console")

    assert (ran.code, ran.out) == (1, "")
    assert "cmqd serve --http" in ran.err

    settings_of(monkeypatch, http="127.0.0.1:0", tls_certificate=None)
    ran = cmq_at("console")
    assert (ran.code, "--gateway" in ran.err) == (2, True)


def test_a_gateway_that_does_not_listen_is_said_in_words(cmq_at: Cmq):
    with socket.socket() as unused:
        # Bound without listening: no other program gets the port, and connections are refused.
        unused.bind(("127.0.0.1", 0))
        ran = cmq_at("console", "--gateway", f"http://127.0.0.1:{unused.getsockname()[1]}", "--timeout", "300ms")

    assert (ran.code, ran.out) == (5, "")
    assert "no HTTP gateway answers" in ran.err


def test_a_gateway_that_starts_after_its_broker_is_waited_for(cmq_at: Cmq, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as gateway:
        gateway.bind(("127.0.0.1", 0))
        sleep, pauses = asyncio.sleep, list[float]()

        async def start_after_a_pause(seconds: float) -> None:
            if seconds == console.PAUSE_SECONDS:
                pauses.append(seconds)
                gateway.listen()
            await sleep(0)

        monkeypatch.setattr(console.asyncio, "sleep", start_after_a_pause)
        ran = cmq_at("console", "--gateway", f"http://127.0.0.1:{gateway.getsockname()[1]}", "--timeout", "10m")

    assert (ran.code, len(pauses)) == (0, 1)
    assert "#token=" in ran.out


@pytest.mark.parametrize("url", ["x", "ftp://a", "http://", "http://a/b", "http://a:x", "http://u:p@a", "http://a?b"])
def test_a_malformed_gateway_is_refused(url: str, cmq_at: Cmq):
    ran = cmq_at("console", "--gateway", url)

    assert (ran.code, ran.out) == (2, "")


def test_the_link_is_opened_and_not_printed(cmq_at: Cmq, listener: str, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []

    def open_it(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", open_it)

    ran = cmq_at("console", "--open", "--gateway", f"http://{listener}")

    assert (ran.code, len(opened)) == (0, 1)
    assert "#token=" in opened[0]
    assert "token" not in ran.out + ran.err


def test_without_a_browser_the_link_is_printed(cmq_at: Cmq, listener: str, monkeypatch: pytest.MonkeyPatch):
    def open_nothing(url: str) -> bool:
        return False

    monkeypatch.setattr(webbrowser, "open", open_nothing)

    ran = cmq_at("console", "--open", "--gateway", f"http://{listener}")

    assert "#token=" in ran.out
    assert "no browser" in ran.err
