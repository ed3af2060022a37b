"""TLS: verified unless the caller's own context says otherwise."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cmqd_client import connect
from cmqd_client.errors import ProtocolViolation, ServerUnreachable
from support.fake_server import FakeServer

CERTIFICATE = Path(__file__).parents[1] / "support" / "tls" / "certificate.pem"


@pytest.fixture
async def tls_server() -> AsyncIterator[FakeServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
    async with FakeServer(tls=context) as server:
        server.queue("orders")
        yield server


async def test_a_context_of_the_callers_own_is_used(tls_server: FakeServer) -> None:
    context = ssl.create_default_context(cafile=CERTIFICATE)
    async with connect(tls_server.url, tls=context) as client:
        await client.queue("orders").send(b"x" * 50_000)
        assert len((await client.queue("orders").receive())[0].body) == 50_000


async def test_the_url_turns_it_on_and_the_environment_names_authorities(
    tls_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    async with connect(f"{tls_server.url}/?tls=1") as client:
        await client.status()


async def test_a_certificate_that_nobody_vouches_for_is_refused(tls_server: FakeServer) -> None:
    with pytest.raises(ServerUnreachable, match="TLS: self-signed certificate"):
        async with connect(tls_server.url, tls=True, request_timeout=2):
            pass


async def test_a_tls_port_is_told_from_a_plain_one(tls_server: FakeServer) -> None:
    with pytest.raises((ProtocolViolation, ServerUnreachable)):
        async with connect(tls_server.url, request_timeout=1):
            pass
