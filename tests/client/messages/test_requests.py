"""Requests and replies through queues (``Client.request``)."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from cmqd_client import Client, Message, connect
from cmqd_client.errors import ClientClosed, NoReply, QueueNotFound
from cmqd_client.messages.outgoing import CORRELATION_ID, REPLY_TO
from cmqd_protocol import messages as wire
from support.client.local_server import LocalServer
from support.eventually import eventually


async def respond(server: LocalServer, answer: Callable[[Message], Awaitable[object]], count: int = 1) -> None:
    """Answer a number of requests of the queue ``orders``, past the link."""
    queue = server.admin.queue("orders")
    while count:
        for message in await queue.receive(16, wait=30):
            await answer(message)
            await message.delete()
            count -= 1


async def echo(message: Message) -> None:
    await message.reply(b"re: " + message.body, headers={"by": "echo"})


async def reply_queues(server: LocalServer) -> list[str]:
    return [name for name in (await server.admin.queues()).names if name.startswith("reply-")]


class TurnedTimeouts:
    """The time limits of requests, which a test ends."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._limits: list[asyncio.Timeout] = []

    def begin(self, seconds: float) -> asyncio.Timeout:
        """Begin a limit, in place of ``asyncio.timeout``."""
        self.seconds.append(seconds)
        self._limits.append(asyncio.timeout(None))
        return self._limits[-1]

    def end(self) -> None:
        """End the limit of the last request."""
        self._limits[-1].reschedule(asyncio.get_running_loop().time())


@pytest.fixture
def timeouts(monkeypatch: pytest.MonkeyPatch) -> TurnedTimeouts:
    """The time limits of the test's requests."""
    limits = TurnedTimeouts()
    replaced = SimpleNamespace(**(vars(asyncio) | {"timeout": limits.begin}))
    monkeypatch.setattr("cmqd_client.messages.request_reply.asyncio", replaced)
    return limits


async def test_a_request_gets_its_reply(client: Client, server: LocalServer) -> None:
    responder = asyncio.create_task(respond(server, echo))

    reply = await client.request("orders", b"hello", headers={"k": "v"})

    assert (reply.body, reply.headers) == (b"re: hello", {"by": "echo"})
    await responder
    (queue,) = await reply_queues(server)
    assert queue.startswith("reply-")


async def test_the_request_has_a_return_address(client: Client, server: LocalServer) -> None:
    seen: list[Message] = []

    async def look(message: Message) -> None:
        seen.append(message)
        await message.reply(b"x")

    responder = asyncio.create_task(respond(server, look))
    await client.request(client.queue("orders"), b"hello", headers={"k": "v"})
    await responder

    (message,) = seen
    assert message.wants_reply
    assert dict(message.headers) == {
        "k": "v",
        REPLY_TO: (await reply_queues(server))[0],
        CORRELATION_ID: message.headers[CORRELATION_ID],
    }


async def test_replies_find_their_requests_in_any_order(client: Client, server: LocalServer) -> None:
    held: list[Message] = []

    async def collect(message: Message) -> None:
        held.append(message)

    collector = asyncio.create_task(respond(server, collect, count=20))
    asked = [asyncio.create_task(client.request("orders", b"%d" % number)) for number in range(20)]
    await collector
    for message in reversed(held):
        await echo(message)

    assert [reply.body for reply in await asyncio.gather(*asked)] == [b"re: %d" % number for number in range(20)]
    assert len(await reply_queues(server)) == 1


async def sent(client: Client, counted: int) -> None:
    """Wait until the client's calls have sent so many messages."""
    await eventually(lambda: client.statistics().messages_sent == counted)


async def test_without_a_reply_in_time_it_is_said_what_is_known(
    client: Client, server: LocalServer, timeouts: TurnedTimeouts
) -> None:
    asking = asyncio.create_task(client.request("orders", b"hello", timeout=0.2))
    await sent(client, 1)
    timeouts.end()
    with pytest.raises(
        NoReply, match=r"'orders' gave no reply within 200 ms; the request was sent, and may be"
    ) as caught:
        await asking

    assert timeouts.seconds == [0.2]
    assert caught.value.request_id == server.link.of(wire.SendMessages)[-1].request_id
    assert await server.bodies("orders") == [b"hello"]


async def test_without_an_answer_to_its_send_a_request_may_have_been_sent(
    client: Client, server: LocalServer, timeouts: TurnedTimeouts
) -> None:
    server.link.ignore(wire.SendMessages)
    asking = asyncio.create_task(client.request("orders", b"hello"))
    await server.link.wait_handled(wire.SendMessages)
    timeouts.end()
    with pytest.raises(NoReply, match="the request may have been sent or not") as caught:
        await asking

    assert caught.value.request_id is None


async def test_a_reply_that_comes_too_late_is_dropped(
    client: Client, server: LocalServer, timeouts: TurnedTimeouts
) -> None:
    early = asyncio.create_task(client.request("orders", b"early"))
    await sent(client, 1)
    timeouts.end()
    with pytest.raises(NoReply):
        await early

    responder = asyncio.create_task(respond(server, echo, count=2))
    reply = await client.request("orders", b"second")

    assert reply.body == b"re: second"
    await responder


async def test_a_request_replied_to_twice_stores_one_reply(client: Client, server: LocalServer) -> None:
    ids: list[str] = []

    async def twice(message: Message) -> None:
        ids.append((await message.reply(b"first")).id)
        ids.append((await message.reply(b"second")).id)

    responder = asyncio.create_task(respond(server, twice))
    reply = await client.request("orders", b"hello")
    await responder

    assert reply.body == b"first"
    assert ids[0] == ids[1]


async def test_a_reply_queue_that_was_deleted_is_made_again(client: Client, server: LocalServer) -> None:
    responder = asyncio.create_task(respond(server, echo, count=2))
    await client.request("orders", b"one")
    (queue,) = await reply_queues(server)

    await server.admin.delete_queue(queue)
    await server.link.wait_handled(wire.EnsureQueue, 2)

    assert (await client.request("orders", b"two")).body == b"re: two"
    await responder
    assert await reply_queues(server) == [queue]


async def test_closing_ends_requests_and_deletes_the_queue(server: LocalServer) -> None:
    client = connect(server.url, request_timeout=300, connect_timeout=300)
    await client.open()
    asked = asyncio.create_task(client.request("orders", b"hello"))
    assert await server.admin.queue("orders").receive(wait=30)
    assert len(await reply_queues(server)) == 1

    await client.close()

    with pytest.raises(ClientClosed):
        await asked
    assert await reply_queues(server) == []
    with pytest.raises(ClientClosed):
        await client.request("orders", b"again")


async def test_a_request_that_is_refused_says_so_and_leaves_nothing_behind(client: Client) -> None:
    with pytest.raises(QueueNotFound, match="nowhere"):
        await client.request("nowhere", b"hello")


async def test_a_cancelled_request_leaves_the_others_alone(client: Client, server: LocalServer) -> None:
    first = asyncio.create_task(client.request("orders", b"one"))
    second = asyncio.create_task(client.request("orders", b"two"))
    queue = server.admin.queue("orders")
    messages: list[Message] = []
    while len(messages) < 2:
        messages += await queue.receive(2, wait=30)

    first.cancel()
    for message in messages:
        await echo(message)

    assert (await second).body == b"re: two"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_lost_connection_loses_no_reply(client: Client, server: LocalServer) -> None:
    asked = asyncio.create_task(client.request("orders", b"hello"))
    (message,) = await server.admin.queue("orders").receive(wait=30)

    server.link.connection.drop()
    await echo(message)

    assert (await asked).body == b"re: hello"


async def test_a_reply_that_is_lost_with_its_connection_comes_again_after_a_second(
    client: Client, server: LocalServer
) -> None:
    server.link.lose_answer(wire.ReceiveMessages)
    asked = asyncio.create_task(client.request("orders", b"hello"))
    (message,) = await server.admin.queue("orders").receive(wait=30)
    await echo(message)
    await server.link.wait_handled(wire.ReceiveMessages, 2)
    (name,) = await reply_queues(server)
    assert (await server.info(name)).in_flight == 1
    assert not asked.done()

    server.advance(1)

    assert (await asked).body == b"re: hello"


@pytest.mark.parametrize("timeout", [0, -1])
async def test_a_timeout_must_be_positive(client: Client, server: LocalServer, timeout: float) -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        await client.request("orders", b"hello", timeout=timeout)
    assert not server.link.handled


@pytest.mark.parametrize("name", [REPLY_TO, CORRELATION_ID])
async def test_the_headers_of_the_return_address_are_the_clients_own(
    client: Client, server: LocalServer, name: str
) -> None:
    with pytest.raises(ValueError, match=f"{name!r} is set by the client"):
        await client.request("orders", b"hello", headers={name: "x"})
    assert not server.link.handled


async def test_a_message_that_is_no_request_cannot_be_replied_to(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"plain")
    (message,) = await client.queue("orders").receive()

    assert not message.wants_reply
    with pytest.raises(ValueError, match="is not a request"):
        await message.reply(b"x")
