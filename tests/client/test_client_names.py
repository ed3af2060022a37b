"""The name of a client: its default, its choice, and requests for other clients."""

import asyncio
import socket
import sys
from typing import Any

import pytest

from cmqd_client import Client, connect
from cmqd_client.address import parse_address
from cmqd_client.client_names import default_name, fitting_name
from cmqd_protocol import messages as wire
from cmqd_types.actors import StatedClient
from support.client.local_server import LocalServer
from support.eventually import eventually

TILL = StatedClient("till 3", "192.0.2.7")


@pytest.mark.parametrize(
    ("argument", "program"),
    [
        ("/srv/shop/worker.py", "worker"),
        ("/usr/bin/celery", "celery"),
        ("/site/shop/__main__.py", "shop"),
        ("-c", "python"),
        ("", "python"),
    ],
)
def test_the_default_name_is_program_and_host(monkeypatch: pytest.MonkeyPatch, argument: str, program: str) -> None:
    monkeypatch.setattr(sys, "argv", [argument])
    monkeypatch.setattr(socket, "gethostname", lambda: "web-3")

    assert default_name() == f"{program}@web-3"
    assert default_name("spark") == "spark@web-3"


def test_a_text_becomes_a_name() -> None:
    assert fitting_name("a\nb\u202ec") == "a?b?c"
    # Invisible characters: a soft hyphen, a joiner, a space without width, a filler, a variant, a tag.
    for character in "\u00ad\u200d\u200b\ufeff\u3164\ufe0f\U000e0041":
        assert fitting_name(f"worker{character}") == "worker?"
        with pytest.raises(ValueError, match="printable"):
            connect("cmq://a:b@h", name=f"worker{character}")
    assert fitting_name("größe 東京 ☕") == "größe 東京 ☕"
    assert fitting_name("ü" * 200) == "ü" * 128


@pytest.mark.parametrize(("name", "why"), [("n" * 129, "has 129 characters; it may have 128"), ("a\tb", "printable")])
def test_another_name_is_refused_before_a_connection(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        connect("cmq://a:b@h", name=name)


def test_a_url_has_a_name() -> None:
    address = parse_address("cmq://a:b@h:5680/?name=checkout+3.2")

    assert (address.name, address.url()) == ("checkout 3.2", "cmq://a:b@h:5680/?name=checkout+3.2")
    with pytest.raises(ValueError, match="control character"):
        parse_address("cmq://a:b@h/?name=a%0Ab")


@pytest.mark.parametrize(
    ("option", "named", "expected"),
    [
        ("", {}, None),
        ("?name=by-url", {}, "by-url"),
        ("?name=by-url", {"name": "by-program"}, "by-program"),
        ("", {"name": ""}, ""),
    ],
)
async def test_the_program_names_a_client_before_its_url(
    server: LocalServer, option: str, named: dict[str, Any], expected: str | None
) -> None:
    async with connect(f"{server.direct_url}/{option}", product="named", **named) as client:
        (info,) = await client.connections(search="named")

    assert info.name == (default_name() if expected is None else expected)


async def test_a_receive_for_another_client_waits_under_its_name(server: LocalServer, client: Client) -> None:
    receiving = asyncio.create_task(client.on_behalf_of(TILL).queue("orders").receive(wait=25))
    while not (page := await client.waiting_receives()).receives:
        assert not receiving.done()

    (receive,) = page
    assert receive.name == "till 3"
    assert (await client.waiting_receives(search="TILL")).total == 1
    assert (await client.waiting_receives(search="no such name")).total == 0
    await server.put("orders", b"x")
    assert len(await receiving) == 1


async def test_changes_of_messages_are_made_for_the_other_client_and_repeats_too(
    server: LocalServer, client: Client
) -> None:
    queue = client.on_behalf_of(TILL).queue("orders")
    server.link.lose_answer(wire.SendMessages)

    await queue.send(b"x")
    (message,) = await queue.receive()
    await message.change_visibility(60)
    await message.delete()
    await queue.attributes()
    await client.queue("orders").send(b"y")

    stated = [getattr(request, "on_behalf_of", "none") for request in server.link.handled]
    assert stated == [TILL, TILL, TILL, TILL, TILL, "none", None]


async def test_a_cancelled_receive_returns_its_messages_for_the_other_client(
    server: LocalServer, client: Client
) -> None:
    server.link.hold()
    receiving = asyncio.create_task(client.on_behalf_of(TILL).queue("orders").receive(wait=25))
    await server.link.wait_handled(wire.ReceiveMessages)
    await server.put("orders", b"x")
    await eventually(lambda: server.link.held)
    receiving.cancel()
    await asyncio.wait([receiving])
    server.link.let_go()

    await server.link.wait_handled(wire.ReleaseMessages)

    (release,) = [request for request in server.link.handled if isinstance(request, wire.ReleaseMessages)]
    assert release.on_behalf_of == TILL


async def test_an_older_server_gets_the_requests_without_the_other_client(server: LocalServer) -> None:
    server.link.features = []
    async with connect(server.url) as client:
        queue = client.on_behalf_of(TILL).queue("orders")
        await queue.send(b"x")
        (message,) = await queue.receive()
        await message.delete()

    changes = [request for request in server.link.handled if hasattr(request, "on_behalf_of")]
    assert [getattr(request, "on_behalf_of", None) for request in changes] == [None, None, None]
