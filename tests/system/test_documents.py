"""The commands and programs in README and docs/, run as printed, against a real broker."""

import ast
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from cmqd_client import ConsumedMessage, connect
from support.documents.pages import PAGES, ROOT, blocks_to_run
from support.processes.environment import plain_environment
from support.processes.forked_program import write_command
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

URL = "cmq://AKID...:SECRET@127.0.0.1:5680"
"""The address in the pages; a test puts the broker's in its place."""


def commands(page: Path) -> list[str]:
    """The shell blocks of a page, without calls of make; test_docs.py checks their targets."""
    return [text for text in blocks_to_run(page, "sh") if not text.startswith("make ")]


ELSEWHERE = {
    "backup.md": "tests/backup/test_documents.py, with a broker over the restored folder",
    "json-api.md": "tests/gateway/rest/test_docs.py, with a gateway",
    "log.md": "tests/log_readers/test_documents.py, with DuckDB",
    "replay.md": "tests/spark/test_documents.py, with Spark",
    "testing.md": "tests/testing/test_pages.py, with a backup of an incident",
}
"""Pages with commands that other tests run."""
NEW_INTERPRETERS = "command-line.md"
"""The page whose commands are new interpreters, as in a shell of a user; on all others ``cmq`` is forked."""
SHELL_PAGES = [page for page in PAGES if commands(page) and page.name not in ELSEWHERE]


@pytest.mark.parametrize("page", SHELL_PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    forks = ()
    if page.name != NEW_INTERPRETERS:
        (tmp_path / "bin").mkdir()
        forks = (write_command("cmq", "cmq_cli", tmp_path / "bin"),)
    event = {"body": "order 2 was paid", "tags": ["paid"]}
    (tmp_path / "events.ndjson").write_text(json.dumps(event) + "\n")
    with RunningBroker(tmp_path, "--durability", "os", "--push-allow-loopback") as broker:
        environment = plain_environment() | {
            "CMQ_CONTEXT_FILE": str(broker.context_file),
            "PATH": os.pathsep.join(map(str, (tmp_path / "bin", programs, os.environ["PATH"]))),
        }
        for text in commands(page):
            ran = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text.replace("https://partner.example", "http://127.0.0.1:9")],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                pass_fds=forks,
            )
            assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"


def test_the_worker_of_the_readme_receives_and_deletes(tmp_path: Path) -> None:
    (program,) = blocks_to_run(ROOT / "README.md", "python")

    async def prepare(url: str) -> None:
        async with connect(url) as client:
            await (await client.create_queue("orders")).send_batch([b"first", b"second"])

    async def left(url: str) -> int:
        async with connect(url) as client:
            attributes = await client.queue("orders").attributes()
            return attributes.active + attributes.in_flight

    with RunningBroker(tmp_path, "--durability", "os") as broker:
        asyncio.run(prepare(broker.url))
        command = [sys.executable, "-u", "-c", program.replace(URL, broker.url)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=plain_environment(), text=True) as worker:
            assert worker.stdout is not None
            try:
                assert [worker.stdout.readline() for _ in range(2)] == ["b'first' 1\n", "b'second' 1\n"]
                worker.terminate()
                assert worker.wait() == 0
            finally:
                worker.kill()
        assert asyncio.run(left(broker.url)) == 0


def test_the_programs_of_the_frameworks_page_are_declared() -> None:
    """Blocks that declare a broker and tasks; the example programs run with the same declarations."""
    programs = blocks_to_run(ROOT / "docs/frameworks.md", "python")

    for program in programs:
        exec(compile(program, "frameworks.md", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert len(programs) == 3


async def run_block(text: str, names: dict[str, Any]) -> None:
    """Run a block that may await at its top level, as in an asynchronous console."""
    code = compile(text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    pending = eval(code, names)
    if asyncio.iscoroutine(pending):
        await pending


async def test_the_programs_of_the_client_page_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, request, replier, consumer, riding, stream, imports, typed, gauges = blocks_to_run(
        ROOT / "docs/client.md", "python"
    )
    exec(compile(imports, "client.md", "exec"), {})
    with RunningBroker(tmp_path, "--durability", "os") as broker:
        command = [sys.executable, "-c", program.replace(URL, broker.url)]
        ran = await asyncio.to_thread(
            subprocess.run, command, env=plain_environment(), capture_output=True, text=True, check=False
        )
        assert ran.stdout == "b'42 apples' 1\n", ran.stderr

        async with connect(broker.url) as client:
            names: dict[str, Any] = {"client": client, "ConsumedMessage": ConsumedMessage}
            await client.create_queue("prices")
            await asyncio.gather(run_block(request, names), run_block(replier, names))
            assert capsys.readouterr().out == "b'1.08'\n"

            orders = client.queue("orders")
            for text in (consumer, stream):
                await orders.send(b"43 apples")
                async with asyncio.TaskGroup() as group:
                    running = group.create_task(run_block(text, names))
                    while (attributes := await orders.attributes()).active + attributes.in_flight:
                        pass
                    running.cancel()
            assert capsys.readouterr().out == "b'43 apples'\n"

            await orders.send(b"44 apples")
            await run_block(riding.replace("wait=20", "wait=0"), {"queue": orders})
            assert capsys.readouterr().out == "b'44 apples'\n"
            attributes = await orders.attributes()
            assert attributes.active + attributes.in_flight == 0

            exec(compile(typed, "client.md", "exec"), names)
            await names["work"](client)
            assert capsys.readouterr().out == "espresso\n"
            exec(compile(gauges, "client.md", "exec"), names)
            assert names["gauges"](client)["messages_sent"] == 6


async def test_the_programs_of_the_topics_page_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publishing, matching, looking, verifying = blocks_to_run(ROOT / "docs/topics.md", "python")
    with RunningBroker(tmp_path, "--durability", "os") as broker:
        async with connect(broker.url) as client:
            await client.create_queue("orders")
            await run_block(publishing, {"client": client})
            copies = await client.queue("orders").receive(16)
            published = capsys.readouterr().out.split()
            await run_block(matching, {"client": client})
            matched_subscriptions = capsys.readouterr().out.splitlines()
            partner = await client.topic("shop").subscribe("partner", queue="orders")
            await partner.pause()
            sent = await client.topic("shop").publish(b"order 9 was paid", tags=["paid"])
            await run_block(looking, {"client": client})
            waiting, *deliveries = capsys.readouterr().out.splitlines()
    names: dict[str, Any] = {}
    await run_block(verifying, names)

    assert waiting.split() == [sent.id, "waiting", "0", "None", "None"]
    (copy,) = (delivery.split() for delivery in deliveries if delivery.startswith("billing"))
    assert (copy[1], copy[2][:4], copy[3]) == ("delivered", "Msg-", "None")
    assert "partner waiting None None" in deliveries
    assert [line.split()[0] for line in matched_subscriptions] == ["partner"]
    message_id, matched, secret = published
    assert (message_id[:4], matched, secret[:6]) == ("Msg-", "1", "whsec_")
    assert [copy.body for copy in copies] == [b"order 1 was paid"]
    # tests/server/push/test_webhooks.py verifies real signatures; here: a request without a valid one.
    headers = {"webhook-id": "1", "webhook-timestamp": "0", "webhook-signature": "v1,AAAA"}
    assert not cast(bool, names["is_genuine"](secret, headers, b""))


async def test_the_program_of_the_security_page_runs(tmp_path: Path) -> None:
    (program,) = blocks_to_run(ROOT / "docs/security.md", "python")
    with RunningBroker(tmp_path, "--durability", "os") as broker:
        async with connect(broker.url) as client:
            await run_block(program, {"client": client})
            keys = list(await client.accounts.keys())

    assert [(list(key.roles), list(key.names)) for key in keys[1:]] == [(["consume", "read"], ["orders-*"])]


async def test_the_program_of_the_schedules_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = blocks_to_run(ROOT / "docs/schedules.md", "python")
    with RunningBroker(tmp_path, "--durability", "os") as broker:
        async with connect(broker.url) as client:
            await run_block(program, {"client": client})

    made, listed = capsys.readouterr().out.splitlines()
    assert listed == f"daily {made} 0 None"


async def test_the_program_of_the_transactions_page_runs(tmp_path: Path) -> None:
    (program,) = blocks_to_run(ROOT / "docs/transactions.md", "python")
    charged: list[str] = []

    class Database:
        async def charge(self, order: str) -> None:
            charged.append(order)

        async def has(self, body: bytes) -> bool:
            return bool(charged)

    with RunningBroker(tmp_path, "--durability", "os") as broker:
        async with connect(broker.url) as client:
            orders = await client.create_queue("orders", transactional=True)
            await run_block(program, {"orders": orders, "order": "42", "database": Database()})
            received = await orders.receive(16)

    assert charged == ["42"]
    assert [message.body for message in received] == [b"42 apples"]
