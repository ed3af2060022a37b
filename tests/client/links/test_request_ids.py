"""Request ids in results, and request and connection in errors: the numbers that the server's log has too."""

import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cmqd_client import Client, ConsumedMessage, Message, Queue, Subscription, Topic, TransactionStatus, connect
from cmqd_client.accounts import Accounts
from cmqd_client.connection import Connection
from cmqd_client.errors import (
    CmqError,
    PartialFailure,
    QueueNotFound,
    ReceiptHandleInvalid,
    TransactionNotFound,
)
from cmqd_client.pins import Pins
from cmqd_client.results import Listing, ServerStatus
from cmqd_client.schedules import Schedules
from cmqd_protocol import messages as wire
from support.client.local_server import LocalServer
from support.eventually import eventually

UNUSED = 12345


def last_number(server: LocalServer, kind: type[Any]) -> int:
    """Return the number of the last request of this kind that went over the link."""
    return server.link.of(kind)[-1].request_id


# ---------------------------------------------------------------------- results


async def test_a_created_queue_has_the_number_of_its_request(client: Client, server: LocalServer) -> None:
    created = await client.create_queue("pastry")
    assert created.request_id == last_number(server, wire.CreateQueue)
    ensured = await client.ensure_queue("pastry")
    assert ensured.request_id == last_number(server, wire.EnsureQueue)
    assert created.request_id != ensured.request_id
    assert client.queue("pastry").request_id is None


async def test_a_created_topic_and_subscription_have_the_numbers_of_their_requests(
    client: Client, server: LocalServer
) -> None:
    created = await client.create_topic("shop")
    assert created.request_id == last_number(server, wire.CreateTopic)
    assert (await client.ensure_topic("shop")).request_id == last_number(server, wire.EnsureTopic)
    assert client.topic("shop").request_id is None
    subscribed = await created.subscribe("kitchen", queue="orders")
    assert subscribed.request_id == last_number(server, wire.Subscribe)
    ensured = await created.subscribe("kitchen", queue="orders", ensure=True)
    assert ensured.request_id == last_number(server, wire.EnsureSubscription)
    assert created.subscription("kitchen").request_id is None


async def test_lists_have_the_numbers_of_their_requests(client: Client, server: LocalServer) -> None:
    account = await client.accounts.create("kitchen")
    assert account.request_id == last_number(server, wire.CreateAccount)
    key = await client.accounts.create_key(account="kitchen")
    assert key.request_id == last_number(server, wire.CreateKey)

    accounts = await client.accounts.list()
    assert accounts == ["admin", "kitchen"]
    assert accounts.request_id == last_number(server, wire.ListAccounts)
    keys = await client.accounts.keys(account="kitchen")
    assert {listed.secret_id for listed in keys} == {account.secret_id, key.secret_id}
    assert keys.request_id == last_number(server, wire.ListKeys)
    assert await client.accounts.keys(account="kitchen") == keys, "the number of a request is no part of a key"

    dead = await client.create_queue("dead")
    await client.queue("orders").set_attributes(dead_letter_queue="dead", dead_letter_max_receives=3)
    sources = await dead.dead_letter_sources()
    assert sources == ["orders"]
    assert sources.request_id == last_number(server, wire.ListDeadLetterSources)


async def test_the_status_has_the_number_of_its_request(client: Client, server: LocalServer) -> None:
    status = await client.status()

    assert status.request_id == last_number(server, wire.GetServerStatus)
    assert status["region"] == dict(status)["region"]
    assert json.loads(json.dumps(dict(status))) == status


async def test_a_reply_has_the_number_of_its_receive(client: Client, server: LocalServer) -> None:
    asked = asyncio.create_task(client.request("orders", b"hello"))
    (message,) = await server.admin.queue("orders").receive(wait=30)
    await message.reply(b"re: hello")
    reply = await asked

    assert reply.request_id in {request.request_id for request in server.link.of(wire.ReceiveMessages)}


NO_RESULT = {("Client", "open"), ("Client", "close"), ("Client", "run")}
"""Calls that stand for no request of their own."""

OF_MESSAGES = {("Queue", "receive"), ("Topic", "publish_batch")}
"""Calls that return a plain list, with a number in every entry."""


@pytest.mark.parametrize(
    "kind", [Client, Queue, Message, ConsumedMessage, Topic, Subscription, Accounts, Schedules, Pins]
)
def test_each_call_returns_a_request_id(kind: type[Any]) -> None:
    """A new method with a result without a number fails here."""
    missing: list[str] = []
    name = kind.__name__
    for method, function in inspect.getmembers(kind, inspect.iscoroutinefunction):
        if method.startswith("_") or (name, method) in NO_RESULT | OF_MESSAGES:
            continue
        result = inspect.signature(function, eval_str=True, globals=vars(sys.modules[function.__module__]))
        result = result.return_annotation
        fields = {*dir(result), *getattr(result, "__annotations__", {}), *getattr(result, "__slots__", ())}
        if "request_id" not in fields:
            missing.append(f"{name}.{method}: {result}")
    assert missing == []


# ---------------------------------------------------------------------- lists and status as values


def test_a_listing_is_a_sequence_that_does_not_change() -> None:
    listing = Listing(["a", "b", "c"], 7)

    assert (listing[0], listing[-1], listing[1:], len(listing)) == ("a", "c", ("b", "c"), 3)
    assert list(listing) == ["a", "b", "c"]
    assert "b" in listing
    assert listing.index("c") == 2
    assert listing == ["a", "b", "c"]
    assert listing == ("a", "b", "c")
    assert listing == Listing(["a", "b", "c"], 8)
    assert hash(listing) == hash(("a", "b", "c"))
    assert listing != ["a"]
    assert listing != "abc"
    assert not Listing([], 7)
    assert repr(listing) == "Listing(['a', 'b', 'c'], request_id=7)"
    with pytest.raises(AttributeError):
        listing.request_id = 8  # type: ignore[misc]
    with pytest.raises(TypeError):
        listing[0] = "z"  # type: ignore[index]


def test_a_listing_does_not_follow_the_list_it_was_made_of() -> None:
    names = ["a"]
    listing = Listing(names, 7)
    names.append("b")

    assert listing == ["a"]


def test_a_status_is_a_mapping_that_does_not_change() -> None:
    facts = {"version": "1", "counters": {"sends": 3}}
    status = ServerStatus(facts, 7)
    facts["version"] = "2"

    assert status == {"version": "1", "counters": {"sends": 3}}
    assert (status["version"], status.get("none"), "version" in status, len(status)) == ("1", None, True, 2)
    assert repr(status) == "ServerStatus({'version': '1', 'counters': {'sends': 3}}, request_id=7)"
    with pytest.raises(TypeError):
        status["version"] = "3"  # type: ignore[index]


# ---------------------------------------------------------------------- errors


def note_connections(client: Client, monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], int]:
    """Note from now on the connection of every request; the result looks a request up."""
    carriers: dict[int, int] = {}
    plain = Connection.request

    def request(self: Connection, message: wire.Request, timeout: float = 3.0) -> Any:
        carriers[message.request_id] = self.connection_id
        return plain(self, message, timeout)

    monkeypatch.setattr(Connection, "request", request)

    def carrier(request_id: int | None) -> int:
        assert request_id is not None
        return carriers[request_id]

    return carrier


async def _delete(client: Client) -> CmqError:
    with pytest.raises(ReceiptHandleInvalid) as caught:
        await client.queue("orders").delete(UNUSED)
    return caught.value


async def _release(client: Client) -> CmqError:
    with pytest.raises(ReceiptHandleInvalid) as caught:
        await client.queue("orders").release(UNUSED)
    return caught.value


async def _delete_batch(client: Client) -> CmqError:
    with pytest.raises(PartialFailure) as caught:
        await client.queue("orders").delete_batch([UNUSED])
    error = caught.value.exceptions[0]
    assert isinstance(error, ReceiptHandleInvalid)
    return error


async def _decide(client: Client) -> CmqError:
    with pytest.raises(PartialFailure) as caught:
        await client.queue("tx").end_transactions(["Msg-00000000000000ff"], TransactionStatus.COMMIT)
    error = caught.value.exceptions[0]
    assert isinstance(error, TransactionNotFound)
    return error


async def _missing_queue(client: Client) -> CmqError:
    with pytest.raises(QueueNotFound) as caught:
        await client.queue("missing").send(b"x")
    return caught.value


@pytest.mark.parametrize("fail", [_delete, _release, _delete_batch, _decide, _missing_queue])
async def test_an_error_names_the_connection_of_its_request(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, fail: Callable[[Client], Any]
) -> None:
    await server.admin.create_queue("tx", transactional=True)
    async with connect(server.url, connections=3, patience=300, request_timeout=300) as client:
        channel = client._channel  # pyright: ignore[reportPrivateUsage]
        await eventually(lambda: len(channel.connections()) == 3)
        carrier = note_connections(client, monkeypatch)
        errors = [await fail(client) for _ in range(6)]

    assert [error.connection_id for error in errors] == [carrier(error.request_id) for error in errors]
    assert len({error.connection_id for error in errors}) == 3, "the requests took all connections in turn"


async def test_an_error_after_a_repeat_names_the_connection_of_the_answer(
    client: Client, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier = note_connections(client, monkeypatch)
    server.link.lose_answer(wire.ChangeVisibility)

    with pytest.raises(ReceiptHandleInvalid) as caught:
        await client.queue("orders").change_visibility(UNUSED, 60)

    first, second = server.link.of(wire.ChangeVisibility)
    assert caught.value.request_id == second.request_id
    assert caught.value.connection_id == carrier(second.request_id) != carrier(first.request_id)
