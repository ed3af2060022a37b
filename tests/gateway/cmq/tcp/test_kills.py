"""Gateway and broker killed between half messages, their checks and decisions: each message is decided once, none lost.

The program decides by a table that it keeps, as a producer does with its database. Some decisions are answered before
the kill, some are on their way, and of some messages nothing was said so far, or a check was not answered.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from cmqd_client import Client, TransactionStatus, connect
from cmqd_client.address import parse_address
from cmqd_client.errors import AlreadyCommitted, AlreadyRolledBack
from cmqd_client.messages.message_ids import printed_id
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp import commands
from support.gateway.tcp_producer import TcpProducer
from support.processes.running_gateway import RunningGateway
from support.processes.running_server import RunningServer
from support.processes.silent_port import reserve_port

pytestmark = pytest.mark.system

COMMIT, ROLL_BACK = commands.COMMIT, commands.ROLL_BACK
PAUSE_SECONDS = 0.02


class Machines:
    """A broker and a gateway in processes of their own, which a test kills and starts again at the same addresses."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        ports = [stack.enter_context(reserve_port()).getsockname()[1] for _ in range(2)]
        self._folder = folder
        self._stack = stack
        self._starts = 0
        self.tcp_address = "127.0.0.1", ports[0]
        self.server = stack.enter_context(RunningServer(folder, "--listen", f"127.0.0.1:{ports[1]}"))
        own = parse_address(self.server.url)
        self.own_key = KeySecret(own.secret_id, own.secret_key)
        self._gateway: RunningGateway
        self.start_gateway()

    def start_gateway(self) -> None:
        # A folder for each start: files and log of the one before would look like a start.
        self._starts += 1
        folder = self._folder / f"gateway-{self._starts}"
        folder.mkdir()
        host, port = self.tcp_address
        self._gateway = RunningGateway(folder, self.server, "--listen-cmq-tcp", f"{host}:{port}").__enter__()
        self._stack.callback(self.kill_gateway, self._gateway)

    def kill_gateway(self, gateway: RunningGateway | None = None) -> None:
        process = (gateway or self._gateway).process
        process.kill()
        process.wait()

    def kill(self, which: str) -> None:
        if which == "gateway":
            self.kill_gateway()
            self.start_gateway()
        else:
            self.server.kill()
            self.server.start()


class Shop:
    """A program with transactions: half messages, their outcomes in a table, and answers from this table."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.outcomes: dict[int, tuple[int, bytes]] = {}
        """State and body by message."""
        self.producer: TcpProducer
        self._draw = random.Random(38)

    async def connect(self) -> None:
        """Log in, as soon as gateway and broker are there."""
        while True:
            with suppress(ConnectionError, EOFError):
                self.producer = await TcpProducer(self._machines).__aenter__()
                if (await self.producer.log_in()).result == 0:
                    return
                await self.close()
            await asyncio.sleep(PAUSE_SECONDS)

    async def close(self) -> None:
        """End the connection."""
        self.producer.writer.close()
        with suppress(ConnectionError):
            await self.producer.writer.wait_closed()

    async def send(self, count: int) -> list[int]:
        """Send half messages, and note their outcomes before any decision."""
        first = len(self.outcomes)
        bodies = [f"{first + place}".encode() for place in range(count)]
        numbers = await self.producer.half(*bodies, interval=1_000)
        self.outcomes |= {
            number: (self._draw.choice([COMMIT, ROLL_BACK]), body) for number, body in zip(numbers, bodies, strict=True)
        }
        return numbers

    def decide(self, numbers: list[int]) -> None:
        """Write decisions, without a wait for the answers."""
        for number in numbers:
            item = {"msgId": number, "state": self.outcomes[number][0]}
            self.producer.send(commands.DECIDE, queueName="tx", item=[item])

    async def answers_until_the_end(self) -> None:
        """Read until the connection ends, and answer nothing."""
        with suppress(EOFError):
            while True:
                await self.producer.next()
        await self.close()

    async def answer_checks(self) -> None:
        """Answer checks until the connection ends."""
        with suppress(EOFError):
            while True:
                reply = await self.producer.next()
                if reply.cmd == commands.CHECK:
                    self.decide([reply.body("check")["msgId"]])


async def run_round(machines: Machines, shop: Shop, admin: Client, which: str) -> None:
    decided, on_their_way, open_ones = [await shop.send(10) for _ in range(3)]
    for number in decided:
        assert (await shop.producer.decide(shop.outcomes[number][0], number)).result == 0
    assert await shop.producer.check() in {*on_their_way, *open_ones}
    shop.decide(on_their_way)
    await shop.producer.writer.drain()

    await asyncio.to_thread(machines.kill, which)

    if which == "gateway":
        await shop.answers_until_the_end()
        await shop.connect()
        # The gateway remembers nothing. A half message makes the program a checker again.
        await shop.send(1)
    answering = asyncio.create_task(shop.answer_checks())
    while (await admin.queue("tx").attributes()).half:
        pass
    answering.cancel()
    await asyncio.wait([answering])


async def run(machines: Machines) -> None:
    async with connect(machines.server.url, patience=300) as admin:
        await admin.create_queue("tx", transactional=True)
        shop = Shop(machines)
        await shop.connect()
        for which in ("gateway", "broker"):
            await run_round(machines, shop, admin, which)
        await shop.close()

        queue = admin.queue("tx")
        committed = [body for state, body in shop.outcomes.values() if state == COMMIT]
        received: list[bytes] = []
        while messages := await queue.receive(max_messages=256):
            received += [message.body for message in messages]
        assert sorted(received) == sorted(committed)
        opposites = {COMMIT: TransactionStatus.ROLLBACK, ROLL_BACK: TransactionStatus.COMMIT}
        result = await queue.end_transactions(
            [printed_id(number) for number in shop.outcomes],
            [opposites[state] for state, _ in shop.outcomes.values()],
            check=False,
        )
        refusals = {COMMIT: AlreadyCommitted, ROLL_BACK: AlreadyRolledBack}
        assert {failed.id: type(failed.error) for failed in result.failures} == {
            printed_id(number): refusals[state] for number, (state, _) in shop.outcomes.items()
        }


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(tmp_path, stack)


def test_no_committed_message_is_lost_and_none_decided_twice(machines: Machines) -> None:
    asyncio.run(run(machines))
