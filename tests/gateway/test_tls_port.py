"""The HTTPS port before HTTP begins: the number and the time of handshakes, plain clients, a new certificate."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cmqd_client.address import parse_address
from cmqd_gateway.broker.peers import Peers
from cmqd_gateway.process.gateway_reload import Reload
from support.eventually import eventually
from support.gateway.cmq_requests import PATH
from support.gateway.gateway_rig import GatewayRig
from support.tls.certificates import make_certificate, shown_certificate, trusting_context


def https(folder: Path, **settings: Any) -> GatewayRig:
    """Return a gateway with HTTP and HTTPS; the certificate is made in ``folder``."""
    make_certificate(folder, "first")
    files = {"tls_certificate": folder / "certificate.pem", "tls_key": folder / "key.pem"}
    return GatewayRig(listen_https="127.0.0.1:0", **files, **settings)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[GatewayRig]:
    async with https(tmp_path) as rig:
        yield rig


def address_of(rig: GatewayRig) -> tuple[str, int]:
    return rig.http_server.addresses[1]


def request(*, keep: bool) -> bytes:
    connection = b"" if keep else b"Connection: close\r\n"
    return b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n" % (PATH.encode(), connection)


async def open_https(rig: GatewayRig) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
    return await asyncio.open_connection(*address_of(rig), ssl=trusting_context())


async def is_served(rig: GatewayRig) -> bool:
    reader, writer = await open_https(rig)
    writer.write(request(keep=False))
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200 ")


async def test_sockets_in_the_handshake_count_among_the_connections(tmp_path: Path):
    async with https(tmp_path, max_connections=3) as rig:
        guards = rig.gateway.guards
        silent = [socket.create_connection(address_of(rig)) for _ in range(2)]
        silent.append(socket.create_connection(address_of(rig)))
        silent[-1].sendall(b"\x16\x03")
        await eventually(lambda: guards.arriving == 3)

        for address in rig.http_server.addresses:
            refused = socket.create_connection(address)
            refused.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(refused, 1) == b""
            refused.close()
        assert guards.refused == 2

        silent.pop(0).close()
        await eventually(lambda: guards.arriving == 2)
        assert await is_served(rig)
        await eventually(lambda: len(guards) == 0)
        for late in silent:
            late.close()
        await eventually(lambda: guards.arriving == 0)


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"])
async def test_a_handshake_that_does_not_go_on_ends_in_the_time_of_a_slow_client(tmp_path: Path, sent: bytes):
    async with https(tmp_path, slow_client_seconds=0.3) as rig:
        reader, writer = await asyncio.open_connection(*address_of(rig))
        writer.write(sent)

        ended = await reader.read()

        writer.close()
        await eventually(lambda: rig.gateway.guards.arriving == 0)
        assert not ended.startswith(b"HTTP")


async def test_a_client_without_tls_is_told(rig: GatewayRig):
    reader, writer = await asyncio.open_connection(*address_of(rig))
    writer.write(request(keep=True))

    answer = await reader.read()

    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"This port takes HTTPS only: begin the URL with https://\n")
    await eventually(lambda: rig.gateway.guards.arriving == 0)
    assert await is_served(rig)


async def test_a_handshake_that_fails_gives_its_seat_back(rig: GatewayRig):
    for sent in (b"\x16" + b"\xff" * 100, b"\x16\x03\x01\x00\x05abcde"):
        reader, writer = await asyncio.open_connection(*address_of(rig))
        writer.write(sent)
        await reader.read()
        writer.close()

    await eventually(lambda: rig.gateway.guards.arriving == 0)
    assert await is_served(rig)


async def test_a_new_certificate_holds_for_new_connections_and_old_connections_stay(rig: GatewayRig, tmp_path: Path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    reader, writer = await open_https(rig)
    second = make_certificate(tmp_path, "second")

    assert await asyncio.to_thread(shown_certificate, *address_of(rig)) != second
    assert await rig.http_server.reload_tls(certificate, key)
    assert await asyncio.to_thread(shown_certificate, *address_of(rig)) == second

    (tmp_path / "third").mkdir()
    make_certificate(tmp_path / "third", "third")
    assert not await rig.http_server.reload_tls(tmp_path / "third" / "certificate.pem", key)
    assert await asyncio.to_thread(shown_certificate, *address_of(rig)) == second, "a wrong pair changes nothing"
    assert not await rig.http_server.reload_tls(tmp_path / "absent", key)
    assert await asyncio.to_thread(shown_certificate, *address_of(rig)) == second

    writer.write(request(keep=False))
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_the_end_of_the_gateway_closes_sockets_in_the_handshake(rig: GatewayRig):
    reader, writer = await asyncio.open_connection(*address_of(rig))
    await eventually(lambda: rig.gateway.guards.arriving == 1)

    await rig.http_server.close()

    assert await reader.read() == b""
    assert rig.gateway.guards.arriving == 0
    writer.close()


async def test_a_reload_of_the_broker_without_tls_reads_the_files_of_the_gateway_again(rig: GatewayRig, tmp_path: Path):
    """The HTTPS of a child with the files named in its own settings."""
    reload = Reload(rig.http_server, rig.settings, Peers(parse_address(rig.server.url)))
    second = make_certificate(tmp_path, "second")
    reload.begin(b'{"log_level": "info"}')
    await eventually_shown(rig, second)

    (tmp_path / "other").mkdir()
    third = make_certificate(tmp_path / "other", "third")
    files = {"tls_certificate": f"{tmp_path}/other/certificate.pem", "tls_key": f"{tmp_path}/other/key.pem"}
    reload.begin(json.dumps({"log_level": "info", **files}).encode())
    await eventually_shown(rig, third)

    # SIGHUP: the files of the last line, and not those of the start.
    fourth = make_certificate(tmp_path / "other", "fourth")
    reload.begin()
    await eventually_shown(rig, fourth)


async def eventually_shown(rig: GatewayRig, certificate: bytes) -> None:
    while await asyncio.to_thread(shown_certificate, *address_of(rig)) != certificate:
        pass


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{", b'{"log_level": "loud"}', b'{"tls_key": 5}', b'{"tls_key": "\xff"}', b"\xff"]
)
async def test_a_line_of_the_broker_that_cannot_be_read_changes_nothing(
    rig: GatewayRig, line: bytes, caplog: pytest.LogCaptureFixture
):
    reload = Reload(rig.http_server, rig.settings, Peers(parse_address(rig.server.url)))

    reload.begin(line)

    assert [record.levelname for record in caplog.records if "reload_line_not_read" in record.getMessage()] == ["ERROR"]
