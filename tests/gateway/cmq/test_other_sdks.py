"""SDKs of CMQ in other languages, unchanged, against a real broker and a real gateway: every call.

The tests need the SDKs, which this project does not contain, and are skipped without them:

- PHP: ``php`` with curl (or CMQ_PHP, the command), and CMQ_PHP_SDK, a checkout of ``tencentyun/cmq-php-sdk``;
- Node: ``node``, and CMQ_NODE_SDK, the folder ``node_modules/cmq-sdk`` of ``npm install cmq-sdk@2.1.0``;
- compiled languages (Java, Go, C++): CMQ_SDK_PROGRAMS, a folder with programs of these SDKs, built elsewhere, such as
  the tests of an SDK. Each executable file is a test: the program finds endpoint and key in CMQ_ENDPOINT, CMQ_ID and
  CMQ_KEY, and ends with code 0 if its SDK works. The endpoint is the name server of SDKs of CMQ's TCP protocol as well.
  The program finds the queues and topics of ``staged``, whose names stand in programs of the SDKs.
  ``make test-all PARTS=sdk-programs`` runs these tests alone.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmqd_client import sync
from support.processes.running_gateway import RunningGateway
from support.processes.running_server import RunningServer

pytestmark = pytest.mark.system

PROGRAMS = Path(__file__).parent / "other_sdks"
PHP = os.environ.get("CMQ_PHP", "php")
NODE = "node"


def needs(command: str, sdk: str) -> pytest.MarkDecorator:
    """Skip a test without an interpreter, or without the folder of an SDK."""
    is_there = shutil.which(command) is not None and bool(os.environ.get(sdk))
    return pytest.mark.skipif(not is_there, reason=f"needs {command}, and the folder of the SDK in {sdk}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    # The gateway listens before the broker has answered; the first request waits for that, on a slow machine too.
    flags = ("--broker-patience-seconds", "60", "--listen-cmq-tcp", "127.0.0.1:0")
    with RunningGateway(tmp_path_factory.mktemp("gateway"), server, *flags) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def staged(server: RunningServer, gateway: RunningGateway) -> RunningGateway:
    """A gateway with the queues and topics that programs of the SDKs expect: CMQ has a console to create them."""
    with sync.connect(server.url) as client:
        for queue in ("queue0", "queue1"):
            client.create_queue(queue)
        client.create_queue("test_transaction", transactional=True)
        client.create_topic("addddd")
        client.create_topic("topic0").subscribe("s", queue="queue1")
    return gateway


def results_of(gateway: RunningGateway, command: str, program: str, **more: str) -> dict[str, Any]:
    """Run a program of this room with an SDK, and return its results."""
    return json.loads(output_of(gateway, command, str(PROGRAMS / program), **more))


def output_of(gateway: RunningGateway, *command: str, **more: str) -> str:
    """Run a program with an SDK, and return its output."""
    key = {"CMQ_ENDPOINT": gateway.url, "CMQ_ID": gateway.secret_id, "CMQ_KEY": gateway.secret_key}
    ran = subprocess.run(command, env={**os.environ, **key, **more}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n{gateway.log}"
    return ran.stdout


@needs(PHP, "CMQ_PHP_SDK")
def test_every_call_of_the_php_sdk(gateway: RunningGateway) -> None:
    results = results_of(gateway, PHP, "calls.php")

    assert [entry["queueName"] for entry in results.pop("list_queue")["queueList"]] == ["php"]
    assert [entry["topicName"] for entry in results.pop("list_topic")["topicList"]] == ["php-news"]
    assert results == {
        "queue": [3, 30, 2048, 600],
        "create_again": 4460,
        "messages": [[True, True, 1]] * 3,
        "encoded": True,
        "batch": ["a", "b"],
        "delete_again": 6020,
        "empty": 7000,
        "delayed": [True, 1],
        "rewound": True,
        "topic": 4096,
        "nobody": 6030,
        "subscription": ["php-target", "queue", "BACKOFF_RETRY", "SIMPLIFIED", ["red", "big"]],
        "list_subscription": 1,
        "unmatched": 6030,
        "cleared": [],
        "delivered": ["tagged", "first", "second"],
        "topic_in_use": 4000,
        "routed": ["routed"],
        "deleted": 4440,
    }


@needs(NODE, "CMQ_NODE_SDK")
@pytest.mark.parametrize("algorithm", ["HmacSHA1", "HmacSHA256"])
def test_every_call_of_the_node_sdk(algorithm: str, gateway: RunningGateway) -> None:
    results = results_of(gateway, NODE, "calls.js", CMQ_SIGNATURE=algorithm)

    assert results == {
        "created": 0,
        "queue": [0, 3600, 60],
        "set": 0,
        "listed": ["node"],
        "messages": [[True, True, 0]] * 3,
        "batchSent": 16,
        "batch": True,
        "batchDeleted": 0,
        "empty": 7000,
        "rewound": 0,
        "topics": [[0, 4096, 1], [0, 4096, 2]],
        "listedTopics": 2,
        "subscribed": [0, 0],
        "subscription": [0, "node-target", ["red", "big"]],
        "listedSubscriptions": 1,
        "published": [0, 0, 0, 6030],
        "delivered": ["a", "b", "c", "d"],
        "changed": 0,
        "cleared": 0,
        "inUse": 4000,
        "deleted": 4440,
    }


def built_programs() -> list[str]:
    """Return the executable files of the folder CMQ_SDK_PROGRAMS."""
    folder = os.environ.get("CMQ_SDK_PROGRAMS")
    files = sorted(Path(folder).resolve().iterdir()) if folder else []
    return [str(file) for file in files if file.is_file() and os.access(file, os.X_OK)]


@pytest.mark.timeout(3600)  # the tests of an SDK take minutes
@pytest.mark.parametrize("program", built_programs(), ids=lambda program: Path(program).name)
def test_a_built_program_of_an_sdk_succeeds(program: str, staged: RunningGateway) -> None:
    output_of(staged, program)
