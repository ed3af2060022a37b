"""TLS: verified unless the caller's own context says otherwise."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cmqd_client import connect
from cmqd_client.errors import MalformedFrame, ServerUnreachable
from support.client.local_server import LocalServer

CERTIFICATE = Path(__file__).parents[2] / "support" / "tls" / "certificate.pem"


@pytest.fixture
async def tls_server() -> AsyncIterator[LocalServer]:
    async with LocalServer(tls_certificate=CERTIFICATE, tls_key=CERTIFICATE.with_name("key.pem")) as server:
        yield server


async def test_a_context_of_the_callers_own_is_used(tls_server: LocalServer) -> None:
    context = ssl.create_default_context(cafile=CERTIFICATE)
    async with connect(tls_server.direct_url, tls=context) as client:
        await client.queue("orders").send(b"x" * 50_000)
        assert len((await client.queue("orders").receive())[0].body) == 50_000


async def test_the_url_turns_it_on_and_the_environment_names_authorities(
    tls_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    async with connect(f"{tls_server.direct_url}/?tls=1") as client:
        await client.status()


async def test_a_self_signed_certificate_is_refused(tls_server: LocalServer) -> None:
    with pytest.raises(ServerUnreachable, match="TLS: self-signed certificate"):
        async with connect(tls_server.direct_url, tls=True, patience=2):
            pass


async def test_a_tls_port_is_told_from_a_plain_one(tls_server: LocalServer) -> None:
    with pytest.raises(MalformedFrame, match="TLS connections only"):
        async with connect(tls_server.direct_url, patience=30):
            pass
