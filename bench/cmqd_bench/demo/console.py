"""A lively broker for a visitor of the console: a small shop that works until Ctrl-C.

    orders      sent in waves, some delayed; a worker deletes most, and the broken orders fill orders-dead
    payments    half messages: most are committed, some rolled back, some wait for a check
    mails       copies of paid orders by tag, with a worker that is slower than the waves
    invoices    copies of every event, and no consumer: it grows
    shop        a topic with tags; its subscriptions are queues, a URL that answers, and a URL that refuses
    prices      a topic with routing keys
    reports     a schedule sends a message each minute

All numbers come from a generator with a fixed seed. A visitor may delete and change everything: an actor that is
refused pauses and tries again.
"""

import asyncio
import importlib.util
import itertools
import json
import math
import random
import shlex
import socket
import sys
import time
import webbrowser
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from rich.console import Console

from cmqd_bench.http.receiver import Endpoint, EndpointConnection
from cmqd_bench.machine.broker import Broker, broker_folder
from cmqd_bench.machine.conditions import scratch_root
from cmqd_bench.machine.servers import ServerFailed, accepts, free_port
from cmqd_client import Client, CmqError, HalfMessage, TransactionCheck, TransactionStatus, connect
from cmqd_client.address import parse_address
from cmqd_gateway.console.signed_texts import SIGN_IN_SECONDS, sign_in_token

HTTP_PORT = 5681
BROKEN_EVERY = 40
"""Every so many orders one is broken."""
WAVE_SECONDS = 120.0
PAUSE_SECONDS = 1.0
REFUSED_SECONDS = 2.0
"""Pause of an actor after a refusal."""
CITIES = ("Berlin", "Lisbon", "Osaka", "Quito", "Shenzhen", "Tunis")
GOODS = ("espresso", "flat white", "filter", "cortado", "mocha")
SHOP = "shop"
PRICES = "prices"


class Shop:
    """The shop: its queues and topics, and the actors that use them."""

    def __init__(self, client: Client, good_url: str, bad_url: str) -> None:
        self._client = client
        self._good_url = good_url
        self._bad_url = bad_url
        # The numbers protect no secret.
        self._random = random.Random(1)
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        """Create queues, topics, subscriptions and a schedule."""
        client = self._client
        await client.create_queue("orders-dead")
        await client.create_queue(
            "orders",
            visibility_timeout=30,
            rewind=3_600,
            dead_letter_queue="orders-dead",
            dead_letter_max_receives=3,
        )
        await client.create_queue("payments", transactional=True, first_check=10)
        for name in ("mails", "invoices", "reports", "quotes"):
            await client.create_queue(name)
        shop = await client.create_topic(SHOP)
        await shop.subscribe("mails", queue="mails", filter_tags=["paid"])
        await shop.subscribe("invoices", queue="invoices")
        await shop.subscribe("warehouse", url=self._good_url, filter_tags=["paid", "returned"])
        await shop.subscribe("old-partner", url=self._bad_url, filter_tags=["returned"])
        prices = await client.create_topic(PRICES, filter_type="routing")
        await prices.subscribe("espresso", queue="quotes", binding_keys=["price.espresso.*"])
        await prices.subscribe("alerts", queue="reports", binding_keys=["price.*.error", "stock.#"])
        await client.schedules.create("each-minute", "reports", "* * * * *", b'{"report": "sales"}')

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as actors:
            for actor in (self._sell, self._pack, self._write_mails, self._pay, self._quote, self._read_reports):
                actors.create_task(self._keep(actor))

    async def _keep(self, actor: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await actor()
            except CmqError:
                # The visitor deleted or changed a queue, for example; the other actors go on.
                await asyncio.sleep(REFUSED_SECONDS)

    async def _sell(self) -> None:
        """Send the orders of a second, more and fewer in waves, and publish an event for each."""
        orders, shop = self._client.queue("orders"), self._client.topic(SHOP)
        while True:
            wave = 1 + math.sin(time.monotonic() * 2 * math.pi / WAVE_SECONDS)
            for number in itertools.islice(self._numbers, 1 + round(8 * wave)):
                body = self._order(number)
                await orders.send(body, delay=60 if number % 15 == 0 else 0, headers={"shop": "web"})
                tag = "returned" if number % 12 == 0 else "paid" if number % 3 else "reserved"
                await shop.publish(body, tags=[tag])
            await asyncio.sleep(PAUSE_SECONDS)

    async def _pack(self) -> None:
        """Delete orders; a broken order goes to the dead-letter queue with a reason."""
        async for message in self._client.queue("orders").consume():
            order = json.loads(message.body)
            # The worker takes time, so that the visitor sees messages in flight.
            await asyncio.sleep(0.05)
            if order["total"] < 0:
                await message.reject("the total is negative")
            else:
                await message.delete()

    async def _write_mails(self) -> None:
        """Delete mails more slowly than the wave brings them, and faster than its low."""
        async for message in self._client.queue("mails").consume():
            await asyncio.sleep(0.18)
            await message.delete()

    async def _pay(self) -> None:
        """Send half messages, whose local transactions commit, roll back, or do not answer."""

        def decide(_message: HalfMessage[bytes], _argument: None) -> TransactionStatus:
            choice = self._random.random()
            if choice < 0.8:
                return TransactionStatus.COMMIT
            return TransactionStatus.ROLLBACK if choice < 0.9 else TransactionStatus.UNKNOWN

        def check(_check: TransactionCheck[bytes]) -> TransactionStatus:
            return TransactionStatus.COMMIT if self._random.random() < 0.3 else TransactionStatus.UNKNOWN

        async with self._client.transaction_producer("payments", checker=check) as producer:
            while True:
                await producer.send(self._order(next(self._numbers)), decide, None)
                for message in await self._client.queue("payments").receive(16, wait=0):
                    await message.delete()
                await asyncio.sleep(PAUSE_SECONDS)

    async def _quote(self) -> None:
        """Publish prices under routing keys; a worker reads the quotes."""
        prices, quotes = self._client.topic(PRICES), self._client.queue("quotes")
        while True:
            goods, city = self._random.choice(GOODS).replace(" ", "-"), self._random.choice(CITIES).lower()
            kind = "error" if self._random.random() < 0.02 else city
            await prices.publish(b'{"price": %d}' % self._random.randint(200, 500), routing_key=f"price.{goods}.{kind}")
            for message in await quotes.receive(16, wait=0.2):
                await message.delete()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _read_reports(self) -> None:
        """Wait for the messages of the schedule: a waiting receive for most of each minute."""
        async for message in self._client.queue("reports").consume():
            await message.delete()

    def _order(self, number: int) -> bytes:
        total = self._random.randint(200, 4_000)
        order = {
            "order": number,
            "city": self._random.choice(CITIES),
            "goods": self._random.sample(GOODS, 2),
            "total": -total if number % BROKEN_EVERY == 0 else total,
        }
        return json.dumps(order).encode()


def run_demo(console: Console, scratch: Path | None, *, open_browser: bool = True) -> None:
    """Run the shop until Ctrl-C.

    Raises:
        ServerFailed: the broker did not start, or ended.
        KeyboardInterrupt: the end.
    """
    root = scratch_root(scratch)
    with broker_folder(root) as broker:
        uvloop.run(_run(broker, console, open_browser=open_browser))


async def _run(broker: Broker, console: Console, *, open_browser: bool) -> None:
    if importlib.util.find_spec("aiohttp") is None:
        raise ServerFailed("the console needs the HTTP gateway; run: pip install 'cmqd[gateway,http]'")
    port = free_port() if accepts(HTTP_PORT) else HTTP_PORT
    broker.flags += ["--push-allow-loopback", "--http", f"127.0.0.1:{port}"]
    ready = await broker.start()
    base = f"http://127.0.0.1:{port}/console/"
    loop = asyncio.get_running_loop()
    hook = await loop.create_server(lambda: EndpointConnection(Endpoint(None)), "127.0.0.1", 0)
    with socket.socket() as refusing:
        # A bound port without a listener: connections are refused, and no other program gets the port.
        refusing.bind(("127.0.0.1", 0))
        good, bad = (f"http://127.0.0.1:{name[1]}/hook" for name in (_name(hook), refusing.getsockname()))
        async with connect(ready.url) as client, hook:
            shop = Shop(client, good, bad)
            await shop.open()
            # The gateway starts after its broker.
            while not accepts(port):  # noqa: ASYNC110 - a port tells when asked
                await asyncio.sleep(0.05)
            _greet(broker, ready.url, base, console, open_browser=open_browser)
            await shop.run()


def _greet(broker: Broker, url: str, base: str, console: Console, *, open_browser: bool) -> None:
    """Print the sign-in link, or open the link in a browser if the machine has a browser."""
    own = parse_address(url)
    link = f"{base}#token={sign_in_token(own.secret_id, own.secret_key, time.time())}"
    context = shlex.quote(str(broker.data / "admin.context.toml"))
    command = shlex.quote(str(Path(sys.executable).with_name("cmq")))
    is_open = open_browser and webbrowser.open(link)
    console.print("[bold]A shop works on this broker until Ctrl-C.[/bold]")
    if is_open:
        console.print(f"The console is open in your browser: {base}", soft_wrap=True)
    else:
        console.print(f"The console, for the next {SIGN_IN_SECONDS} s and once:", soft_wrap=True)
        console.print(f"  {link}", soft_wrap=True, markup=False)
    console.print("Another link, at any time:")
    console.print(f"  {command} console --context-file {context}", soft_wrap=True, markup=False)


def _name(server: asyncio.Server) -> tuple[str, int]:
    return server.sockets[0].getsockname()
