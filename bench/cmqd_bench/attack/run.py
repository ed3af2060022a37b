"""The healthy client beside each attack: a fresh server per attack, sends at a fixed rate, and memory before and after.

A send without a reply at the end counts with its waiting time. Syncs of a second file on the same disk run beside
the attack, because a stall of the disk delays every durable reply, independent of the server.
"""

import asyncio
import contextlib
import json
import sys
import time
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
import uvloop

from cmqd_bench.attack.attacker import (
    ATTACKS,
    BULK_QUEUE,
    LISTED_QUEUES,
    LISTED_SUBSCRIPTIONS,
    LISTED_TOPIC,
    OTHER_ACCOUNT,
    WIDE_FILTERS,
    WIDE_QUEUES,
    WIDE_TAGS,
    WIDE_TOPIC,
)
from cmqd_bench.commands.plans import Attack
from cmqd_bench.figures.measure import PeakMemory
from cmqd_bench.load.session import Session, request, request_all, running
from cmqd_bench.machine.broker import Broker, broker_folder
from cmqd_bench.machine.conditions import conditions, raise_file_limit, scratch_root
from cmqd_bench.machine.floor import longest_sync_ms
from cmqd_load.connect import open_connection
from cmqd_load.histogram import Histogram
from cmqd_load.wire import ERROR, LoadConnection, decode_sent, frame
from cmqd_protocol.messages import CreateAccount, CreateQueue, CreateTopic, KeyList, SendMessages, Subscribe

HEALTHY_QUEUE: Final = "healthy"
FILES: Final = 4_096
WARM_UP_SECONDS: Final = 1.0
CALM_SECONDS: Final = 3.0
"""Seconds measured without an attack, for comparison."""
RAMP_SECONDS: Final = 1.0
"""Seconds from the beginning of an attack to the measurement: the attacker opens its connections."""
LAST_REPLY_SECONDS: Final = 20.0
MIB: Final = 1024 * 1024


class HealthyClient:
    """A client that sends small messages at a fixed rate without waiting for replies."""

    def __init__(self, connection: LoadConnection) -> None:
        self._connection = connection
        self._waiting: dict[int, float] = {}
        self._last_id = 0
        self._all_answered = asyncio.Event()
        self.refused = 0
        self.latencies = Histogram()
        connection.on_reply = self._reply

    async def send_for(self, seconds: float, rate: float) -> dict[str, float]:
        """Send for ``seconds``, wait for the replies and return the latencies in milliseconds."""
        self.latencies = Histogram()
        self.refused = 0
        begin = time.perf_counter()
        for number in range(int(seconds * rate)):
            intended = begin + number / rate
            if (delay := intended - time.perf_counter()) > 0:
                await asyncio.sleep(delay)
            self._last_id += 1
            self._waiting[self._last_id] = intended
            self._connection.write(frame(SendMessages(self._last_id, HEALTHY_QUEUE, [b"healthy"])))
        if self._waiting:
            self._all_answered.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_answered.wait(), LAST_REPLY_SECONDS)
        for intended in self._waiting.values():
            self.latencies.record(int((time.perf_counter() - intended) * 1e6))
        unanswered = len(self._waiting)
        self._waiting.clear()
        figures = {
            "p50_ms": self.latencies.percentile(50) / 1000,
            "p99_ms": self.latencies.percentile(99) / 1000,
            "longest_ms": self.latencies.maximum / 1000,
            "refused": self.refused,
            "unanswered": unanswered,
        }
        return {name: round(value, 1) for name, value in figures.items()}

    def _reply(self, payload: bytes, opcode: int) -> None:
        # [array, 0xcc, opcode, request id, ...]; an error has the same beginning.
        if opcode == ERROR:
            self.refused += 1
            return
        intended = self._waiting.pop(decode_sent(payload).request_id, None)
        if intended is not None:
            self.latencies.record(int((time.perf_counter() - intended) * 1e6))
        if not self._waiting:
            self._all_answered.set()


async def _attack(plan: Attack, kind: str, connections: int, broker: Broker) -> dict[str, Any]:
    """Run one attack on a fresh server."""
    async with running(broker) as session:
        client = await _healthy_client(session, kind)
        await client.send_for(WARM_UP_SECONDS, plan.rate)
        calm = await client.send_for(CALM_SECONDS, plan.rate)
        url = await _other_account(session, kind) if ATTACKS[kind].is_of_other_account else broker.ready.url
        before = broker.rss_mib()
        command = [sys.executable, "-m", "cmqd_bench.attack.attacker", kind, url, str(connections)]
        attacker = await asyncio.create_subprocess_exec(
            *command, str(plan.seconds + RAMP_SECONDS), stdout=asyncio.subprocess.PIPE
        )
        memory = PeakMemory(broker)
        try:
            await asyncio.sleep(RAMP_SECONDS)
            syncing = asyncio.create_task(
                asyncio.to_thread(longest_sync_ms, broker.folder, plan.seconds - RAMP_SECONDS)
            )
            attacked = await client.send_for(plan.seconds - RAMP_SECONDS, plan.rate)
            longest_sync = await syncing
            output, _ = await asyncio.wait_for(attacker.communicate(), plan.seconds + 60)
        finally:
            peak = memory.stop()
            if attacker.returncode is None:
                attacker.kill()
        # The healthy client continues, because some memory is only released at the next request.
        settled = await client.send_for(plan.settle, 10) if plan.settle else {}
        after = broker.rss_mib()
    return {
        "attack": kind,
        "connections": connections,
        "calm": calm,
        "attacked": attacked,
        "settled": settled,
        "longest_sync_ms": round(longest_sync, 1),
        "rss_mib": {"before": round(before), "peak": round(peak), "after": round(after)},
        "attacker": output.decode().strip(),
    }


async def _healthy_client(session: Session, kind: str) -> HealthyClient:
    (connection,) = await session.connect(1)
    for queue in (HEALTHY_QUEUE, BULK_QUEUE):
        await request(connection, CreateQueue(1, queue, {"max_message_bytes": MIB}))
    if kind == "publishes":
        await request(connection, CreateTopic(1, WIDE_TOPIC, {"filter_type": "tag"}))
        for number in range(WIDE_QUEUES):
            name = f"wide-{number}"
            tags = [f"f{(number * 3 + step * step) % WIDE_TAGS}" for step in range(WIDE_FILTERS)]
            await request(connection, CreateQueue(1, name, {}))
            await request(connection, Subscribe(1, WIDE_TOPIC, name, {"endpoint": name, "filter_tags": tags}))
    return HealthyClient(connection)


async def _other_account(session: Session, kind: str) -> str:
    """Create an account with the attacker's queues and topics; return its URL."""
    (connection,) = await session.connect(1)
    made = await request(connection, CreateAccount(1, OTHER_ACCOUNT))
    (key,) = msgspec.msgpack.decode(made, type=KeyList).keys
    parts = urlsplit(session.broker.ready.url)
    url = urlunsplit(parts._replace(netloc=f"{key.secret_id}:{key.secret_key}@{parts.hostname}:{parts.port}"))
    attacker = await open_connection(url)
    await request(attacker, CreateQueue(1, BULK_QUEUE, {}))
    if ATTACKS[kind].has_lists:
        await request(attacker, CreateTopic(1, LISTED_TOPIC, {}))
        queues = [f"queue-{number}" for number in range(LISTED_QUEUES)]
        await request_all(attacker, [CreateQueue(number, name, {}) for number, name in enumerate(queues, 1)])
        subscribed = enumerate(queues[:LISTED_SUBSCRIPTIONS], 1)
        await request_all(
            attacker, [Subscribe(number, LISTED_TOPIC, name, {"endpoint": name}) for number, name in subscribed]
        )
    attacker.close()
    session.close(connection)
    return url


def run_attacks(plan: Attack) -> dict[str, Any]:
    """Run all attacks and return the report."""
    raise_file_limit(FILES)
    root = scratch_root(plan.scratch)
    report: dict[str, Any] = {"conditions": conditions(root), "server": plan.python or sys.executable, "attacks": []}
    for kind, connections in plan.cases:
        with broker_folder(root) as broker:
            broker.python = plan.python
            broker.durability = plan.durability

            async def one(broker: Broker = broker, kind: str = kind, connections: int = connections) -> dict[str, Any]:
                return await _attack(plan, kind, connections, broker)

            figures = uvloop.run(one())
        report["attacks"].append(figures)
        print(_line(figures), file=sys.stderr, flush=True)
    return report


def _line(figures: dict[str, Any]) -> str:
    calm, attacked, rss = figures["calm"], figures["attacked"], figures["rss_mib"]
    latencies = "  ".join(f"{name} {calm[name + '_ms']:.1f} -> {attacked[name + '_ms']:.1f} ms" for name in NAMES)
    memory = f"server RSS {rss['before']} MiB before, {rss['peak']} peak, {rss['after']} after"
    disk = f"longest sync of the disk {figures['longest_sync_ms']} ms"
    return (
        f"{figures['attack']} x{figures['connections']}:  {latencies}  refused {attacked['refused']}; {disk}; {memory}"
    )


NAMES: Final = ("p50", "p99", "longest")


def print_attacks(plan: Attack) -> None:
    """Run all attacks and print the results; with ``json`` standard output gets only a JSON object."""
    report = run_attacks(plan)
    if plan.json:
        print(json.dumps(report, indent=1))
        return
    print("conditions: " + ", ".join(f"{name} {value}" for name, value in report["conditions"].items()))
    print(
        f"server: {report['server']}; {plan.seconds:g} s each, {plan.rate:g} healthy sends a second, {plan.durability}"
    )
    for figures in report["attacks"]:
        print(_line(figures))
        print(f"  attacker: {figures['attacker']}")
