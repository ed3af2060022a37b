"""A worker process that gets SIGTERM while its handlers run."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from cmqd_client import connect
from support.processes.environment import plain_environment
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

WORKER = """
import asyncio
import sys

from cmqd_client import ConsumedMessage, connect

client = connect(sys.argv[1])


@client.queue("orders").consumer(concurrency=2, prefetch=4)
async def handle(message: ConsumedMessage) -> None:
    print("begun", message.body.decode(), flush=True)
    await asyncio.to_thread(sys.stdin.readline)  # until the test lets the handler go
    print("done", message.body.decode(), flush=True)


asyncio.run(client.run(handle))
print("stopped", flush=True)
"""


async def test_sigterm_lets_handlers_finish_and_gives_back_the_other_messages_uncounted(tmp_path: Path) -> None:
    with RunningBroker(tmp_path) as broker:
        async with connect(broker.url) as client:
            queue = await client.create_queue("orders")
            await queue.send_batch([b"%d" % number for number in range(6)])
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-c", WORKER, broker.url, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=plain_environment()
            )
            assert worker.stdout is not None
            try:
                begun = {(await worker.stdout.readline()).decode() for _ in range(2)}
                while (await queue.attributes()).in_flight < 6:  # noqa: ASYNC110 - a different process
                    await asyncio.sleep(0.02)

                worker.send_signal(signal.SIGTERM)
                while (await queue.attributes()).active < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                assert (await queue.attributes()).in_flight == 2
                assert worker.returncode is None
                out, err = await worker.communicate(b"\n\n")
            finally:
                if worker.returncode is None:
                    worker.kill()

            assert begun == {"begun 0\n", "begun 1\n"}
            assert sorted(out.decode().splitlines()) == ["done 0", "done 1", "stopped"]
            assert (worker.returncode, err) == (0, b"")
            left = await queue.receive(6)
            assert [(message.body, message.receive_count) for message in left] == [
                (b"%d" % number, 1) for number in range(2, 6)
            ]
            assert (await queue.attributes()).in_flight == 4
