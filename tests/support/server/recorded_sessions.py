"""Sessions of a client and a server of one release, recorded byte for byte: ``protocol/vectors/sessions.json``.

Nonces, keys and the producer's session are fixed and the clock stands still, so the same conversation gives the same
bytes, except for the port. Tests play the server's half to today's client, and
the client's half to today's server. To record a session of a release, run this file in a checkout of that release:

    PYTHONPATH=tests python .../tests/support/server/recorded_sessions.py NAME vector.json
"""

import asyncio
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cmqd_client import Client, CmqError, TransactionStatus, connect
from support.server.fake_clock import EPOCH_MS
from support.server.server_rig import ServerRig

SECRET_ID: Final = "AKIDexample"
SECRET_KEY: Final = "correct-horse-battery-staple-0123456789"
SERVER_NONCE: Final = bytes(range(32))
CLIENT_NONCE: Final = bytes(range(32, 64))
PRODUCER_SESSION: Final = 0x1234_5678_9ABC_DEF0
ACCOUNTS_FILE: Final = {
    "version": 1,
    "handle_key": [1, 2, 3, 4],
    "accounts": {"admin": EPOCH_MS},
    "keys": [{"secret_id": SECRET_ID, "secret_key": SECRET_KEY, "account": "admin", "created_ms": EPOCH_MS}],
}


async def converse(client: Client) -> list[Any]:
    """Use every theme of the first release, call by call; return the results as plain values.

    A later release must hold the same conversation, so no call may be removed or reordered.
    """
    results: list[Any] = []
    commit, roll_back = TransactionStatus.COMMIT, TransactionStatus.ROLLBACK

    async def refused(call: Awaitable[object]) -> None:
        try:
            await call
        except CmqError as error:
            results.append(error.name)
        else:
            results.append("not refused")

    # Queues.
    dead = await client.create_queue("dead")
    queue = await client.create_queue("orders", rewind=3600, dead_letter_queue="dead", dead_letter_max_receives=2)
    await client.ensure_queue("orders", rewind=3600)
    await refused(client.create_queue("ORDERS"))
    await refused(client.ensure_queue("orders", rewind=60))
    results.append((await client.queues(search="o")).names)
    results.append((await queue.set_attributes(visibility_timeout=60)).visibility_timeout)
    results.append(await dead.dead_letter_sources())

    # Messages.
    results.append((await queue.send(b"first", headers={"kind": "test"}, dedup_id="one")).id)
    results.append((await queue.send(b"again", dedup_id="one")).id)
    results.append([str(one) for one in (await queue.send_batch([b"second", b"third", b"fourth"])).ids])
    results.append((await queue.send(b"later", delay=60)).id)
    first, second, third = await queue.receive(3, wait=0)
    results.append([[one.body.hex(), one.headers, one.receive_count, one.receipt_handle] for one in (first, second)])
    results.append([first.enqueue_time.timestamp(), first.next_visible_time.timestamp()])
    await queue.delete(first)
    changed = await queue.change_visibility(second, 90)
    results.append(None if changed.next_visible_time is None else changed.next_visible_time.timestamp())
    await queue.release(third, count_receive=False)
    batch = await queue.delete_batch([second, 12345], check=False)
    results.append([batch.done, [failure.receipt_handle for failure in batch.failures]])
    results.append([[one.id, one.state, one.body.hex()] for one in await queue.peek(10)])
    results.append([one.state for one in await queue.peek(10, states=["rewindable"])])
    rewound = await queue.rewind(datetime.fromtimestamp(EPOCH_MS / 1000 - 10, UTC), strict=False)
    results.append([rewound.messages, rewound.clamped])
    await refused(queue.rewind(datetime.fromtimestamp(EPOCH_MS / 1000 - 7200, UTC), strict=True))
    for message in await queue.receive(16, wait=0):
        # Not counted: a dead letter would be moved in the background, sooner in one run than in another.
        await queue.release(message, count_receive=False)
    info = await queue.attributes()
    results.append([info.active, info.in_flight, info.delayed, info.rewindable])
    results.append((await dead.attributes()).active)
    await refused(dead.redrive(max_per_second=0))
    await refused(client.queue("missing").receive(1, wait=0))
    await queue.clear()
    await refused(client.delete_queue("dead"))
    await client.delete_queue("orders")

    # Topics.
    topic = await client.create_topic("news", filter_type="tag")
    await client.ensure_queue("readers")
    await topic.subscribe("readers", queue="readers", filter_tags=["sport"])
    results.append((await topic.publish(b"goal", tags=["sport", "live"])).matched)
    results.append([one.matched for one in await topic.publish_batch([b"rain", b"sun"], tags=["weather"])])
    (copy,) = await client.queue("readers").receive(1, wait=0)
    results.append([copy.body.hex(), None if copy.copy_of is None else copy.copy_of.tags])
    results.append([one.name for one in (await topic.subscriptions()).subscriptions])
    subscription = topic.subscription("readers")
    await subscription.pause()
    results.append((await subscription.info()).paused)
    results.append((await topic.attributes()).subscriptions)
    await refused(client.delete_topic("news"))
    await subscription.unsubscribe()
    results.append((await client.topics()).names)
    await client.delete_topic("news")

    # Transactions.
    payments = await client.create_queue("payments", transactional=True)
    halves = (await payments.send_half_batch([b"pay", b"refund", b"wait"])).ids
    decided = await payments.end_transactions(halves[:2], [commit, roll_back])
    results.append([str(one) for one in decided.done])
    refusals = await payments.end_transactions(halves[:1], roll_back, check=False)
    results.append([one.error.name for one in refusals.failures])
    results.append([str(one.id) for one in await payments.half_messages()])
    results.append([one.body.hex() for one in await payments.receive(16, wait=0)])

    # Accounts.
    results.append([key.secret_id for key in await client.accounts.keys()])
    await refused(client.accounts.create_key(account="nobody"))
    return results


async def make_server(folder: Path) -> ServerRig:
    """A server with the fixed keys; its nonces are fixed if the caller has patched ``os.urandom``."""
    (folder / "accounts.json").write_text(json.dumps(ACCOUNTS_FILE))
    return await ServerRig.make(folder, listen="127.0.0.1:0")


def url(port: int) -> str:
    """The URL of the client of a session."""
    return f"cmq://{SECRET_ID}:{SECRET_KEY}@127.0.0.1:{port}"


def fixed_bytes(fixed: bytes, real: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """A source of random bytes with ``fixed`` nonces."""
    return lambda count: fixed if count == len(fixed) else real(count)


class Relay:
    """Carries bytes between a client and a server, and keeps the steps of a vector."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self.steps: list[tuple[str, bytearray]] = []
        self.ended = asyncio.Event()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """asyncio: the client has connected."""
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        await asyncio.gather(
            self._carry("client", reader, to_server), self._carry("server", from_server, writer), return_exceptions=True
        )
        self.ended.set()

    async def _carry(self, side: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            if not self.steps or self.steps[-1][0] != side:
                self.steps.append((side, bytearray()))
            self.steps[-1][1].extend(data)
            writer.write(data)
        writer.close()


async def record(name: str) -> dict[str, Any]:
    """Hold the conversation with a server of this checkout; return the vector."""
    os.urandom, secrets.token_bytes = fixed_bytes(SERVER_NONCE, os.urandom), fixed_bytes(CLIENT_NONCE, os.urandom)
    secrets.randbits = lambda k: PRODUCER_SESSION
    with tempfile.TemporaryDirectory() as folder:
        rig = await make_server(Path(folder))
        _, port = await rig.server.start()
        relay = Relay(port)
        proxy = await asyncio.start_server(relay.connected, "127.0.0.1", 0)
        async with connect(url(proxy.sockets[0].getsockname()[1]), retries=0) as client:
            results = await converse(client)
        await relay.ended.wait()
        proxy.close()
        rig.close()
    steps = [{"from": side, "bytes": data.hex()} for side, data in relay.steps]
    return {"name": name, "results": results, "steps": steps}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(asyncio.run(record(sys.argv[1]))))
