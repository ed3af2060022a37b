"""CMQ's own Python SDK, unchanged, against a real broker and a real gateway: every call.

The SDK is ``qcloud-cmq-sdk-py3`` (package ``cmq``), which Python 3.13 cannot import.
"""

import importlib
import inspect
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes.running_gateway import RunningGateway
from support.processes.running_server import RunningServer

pytestmark = [
    pytest.mark.system,
    # Of the SDK: an import that Python deprecates, and connections that it closes when they are collected.
    pytest.mark.filterwarnings("ignore:The mailcap module is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("sdk")
    # The gateway listens before the broker has answered; the first request waits for that, on a slow machine too.
    patience = ("--broker-patience-seconds", "60")
    with RunningServer(folder) as server, RunningGateway(folder, server, *patience) as gateway:
        yield gateway


def module(name: str) -> Any:
    """Return a module of the SDK, which has no types."""
    try:
        return importlib.import_module(f"cmq.{name}")
    except ImportError as missing:
        pytest.skip(f"CMQ's Python SDK, which needs Python 3.11 or 3.12 (make setup-sdk): {missing}")


@pytest.fixture
def account(gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An account of the SDK; its log file is in a folder of the test, and queues and topics are deleted afterwards."""
    monkeypatch.chdir(tmp_path)
    account = module("account").Account(gateway.url, gateway.secret_id, gateway.secret_key)
    yield account
    for entry in account.list_topic(limit=50)[1]:
        topic = account.get_topic(entry["topicName"])
        for subscription in topic.list_subscription(limit=100)[1]:
            account.get_subscription(entry["topicName"], subscription["subscriptionName"]).delete()
        topic.delete()
    for entry in account.list_queue(limit=50)[1]:
        account.get_queue(entry["queueName"]).delete()
    account.get_client().close_connection()
    for handler in list(account.logger.handlers):
        account.logger.removeHandler(handler)
        handler.close()


@pytest.fixture
def queue(account: Any) -> Any:
    """A new queue."""
    queue = account.get_queue("orders")
    queue.create(module("queue").QueueMeta())
    return queue


def message(body: str = "body", tags: list[str] | None = None) -> Any:
    return module("queue").Message(body, tags or [])


def refused(code: int) -> Any:
    """Expect the SDK's exception for an answer with a code."""
    return pytest.raises(module("cmq_exception").CMQServerException, match=rf"\b{code}\b")


# ---------------------------------------------------------------------- queues


def test_a_queue_is_created_read_changed_listed_and_deleted(account: Any) -> None:
    meta = module("queue").QueueMeta()
    meta.maxMsgHeapNum, meta.pollingWaitSeconds, meta.visibilityTimeout = 2_000_000, 3, 60
    meta.maxMsgSize, meta.msgRetentionSeconds, meta.rewindSeconds = 1024, 3600, 600
    queue = account.get_queue("jobs")

    queue.create(meta)
    read = queue.get_attributes()
    meta.visibilityTimeout = 90
    queue.set_attributes(meta)
    changed = queue.get_attributes()
    total, queues, next_offset = account.list_queue(searchWord="job", limit=1, offset=0)
    queue.delete()

    assert (read.maxMsgHeapNum, read.pollingWaitSeconds, read.visibilityTimeout) == (2_000_000, 3, 60)
    assert (read.maxMsgSize, read.msgRetentionSeconds, read.rewindSeconds) == (1024, 3600, 600)
    assert (read.activeMsgNum, read.inactiveMsgNum, read.delayMsgNum, read.rewindmsgNum) == (0, 0, 0, 0)
    assert abs(read.createTime - time.time()) < 3600
    assert "jobs" in str(read)
    assert changed.visibilityTimeout == 90
    assert (total, [entry["queueName"] for entry in queues], next_offset) == (1, ["jobs"], "")
    assert account.list_queue() == (0, [], "")


def test_errors_have_cmqs_codes(account: Any, queue: Any) -> None:
    with refused(4460):
        queue.create(module("queue").QueueMeta())
    with refused(4440):
        account.get_queue("missing").get_attributes()
    with refused(7000):
        queue.receive_message(0)
    with refused(4430):
        queue.delete_message("1")
    with refused(4000):
        queue.delete_message("x")


# ---------------------------------------------------------------------- messages


@pytest.mark.parametrize("body", ["one espresso", "@body", "ein Käffchen ☕ + 100 % = & ?", " ", "a" * 65_536])
def test_a_message_is_sent_received_and_deleted(body: str, queue: Any) -> None:
    sent = queue.send_message(message(body))
    received = queue.receive_message(30)
    queue.delete_message(received.receiptHandle)

    assert received.msgBody == body
    assert received.msgId == sent.msgId
    assert received.dequeueCount == 1
    assert received.nextVisibleTime - received.firstDequeueTime == 30
    assert received.enqueueTime <= received.firstDequeueTime
    assert queue.get_attributes().inactiveMsgNum == 0


def test_messages_are_sent_received_and_deleted_in_batches(queue: Any) -> None:
    sent = queue.batch_send_message([message(f"body {number}") for number in range(16)])
    received = queue.batch_receive_message(16)
    queue.batch_delete_message([entry.receiptHandle for entry in received])

    assert [entry.msgId for entry in received] == [entry.msgId for entry in sent]
    assert [entry.msgBody for entry in received] == [f"body {number}" for number in range(16)]
    with refused(6020):
        queue.batch_delete_message([entry.receiptHandle for entry in received])
    with refused(7000):
        queue.batch_receive_message(16, 0)


def test_a_batch_of_deletes_can_fail_in_part(queue: Any) -> None:
    queue.batch_send_message([message("a"), message("b")])
    first, second = queue.batch_receive_message(16, 0)
    queue.delete_message(first.receiptHandle)

    with refused(6010) as failed:
        queue.batch_delete_message([first.receiptHandle, second.receiptHandle])

    (error,) = failed.value.data["errorList"]
    assert (error["code"], error["receiptHandle"]) == (4430, first.receiptHandle)


def test_messages_are_delayed(queue: Any) -> None:
    queue.send_message(message("later"), 3600)
    queue.batch_send_message([message("later"), message("later")], 3600)

    assert queue.get_attributes().delayMsgNum == 3
    with refused(7000):
        queue.receive_message(0)
    with refused(4000):
        queue.send_message(message("never"), 3601)


def test_a_receive_without_a_wait_has_the_wait_of_the_queue(queue: Any) -> None:
    with refused(7000):
        queue.receive_message()
    with refused(7000):
        queue.batch_receive_message(5)


def test_deleted_messages_come_back_by_a_rewind(account: Any) -> None:
    meta = module("queue").QueueMeta()
    meta.rewindSeconds = 3600
    queue = account.get_queue("jobs")
    queue.create(meta)
    queue.send_message(message("again"))
    first = queue.receive_message(0)
    queue.delete_message(first.receiptHandle)
    assert queue.get_attributes().rewindmsgNum == 1

    queue.rewindQueue(first.enqueueTime)

    assert queue.receive_message(0).msgId == first.msgId
    with refused(4000):
        queue.rewindQueue(first.enqueueTime + 86_400)


# ---------------------------------------------------------------------- topics


def test_a_topic_is_created_read_changed_listed_and_deleted(account: Any) -> None:
    meta = module("topic").TopicMeta()
    meta.maxMsgSize = 2048
    topic = account.get_topic("news")

    topic.create(meta)
    read = topic.get_attributes()
    meta.maxMsgSize = 4096
    topic.set_attributes(meta)
    changed = topic.get_attributes()
    total, topics, next_offset = account.list_topic(searchWord="new", limit=1, offset=0)
    topic.delete()

    assert (read.maxMsgSize, read.filterType, read.msgRetentionSeconds, read.msgCount) == (2048, 1, 86_400, 0)
    assert abs(read.createTime - time.time()) < 3600
    assert "news" in str(read)
    assert changed.maxMsgSize == 4096
    assert (total, [entry["topicName"] for entry in topics], next_offset) == (1, ["news"], "")
    assert account.list_topic() == (0, [], "")


def subscribe(account: Any, name: str, **fields: Any) -> Any:
    """Subscribe the queue ``orders`` to the topic ``news``."""
    meta = module("subscription").SubscriptionMeta()
    meta.Endpoint, meta.Protocal = "orders", "queue"
    for field, value in fields.items():
        setattr(meta, field, value)
    subscription = account.get_subscription("news", name)
    subscription.create(meta)
    return subscription


def test_a_subscription_is_created_read_changed_listed_and_deleted(account: Any, queue: Any) -> None:
    topic = account.get_topic("news")
    topic.create(module("topic").TopicMeta())

    subscription = subscribe(account, "sub", FilterTag=["red", "big"])
    read = subscription.get_attributes()
    meta = module("subscription").SubscriptionMeta()
    meta.NotifyStrategy, meta.NotifyContentFormat, meta.FilterTag = "BACKOFF_RETRY", "SIMPLIFIED", ["small"]
    subscription.set_attributes(meta)
    changed = subscription.get_attributes()
    subscription.clearFilterTags()
    cleared = subscription.get_attributes()
    total, subscriptions, next_offset = topic.list_subscription(searchWord="sub", limit=1, offset=0)
    with refused(4000):
        topic.delete()
    subscription.delete()

    assert (read.Protocal, read.TopicOwner, read.FilterTag) == ("queue", "admin", ["red", "big"])
    assert (read.NotifyStrategy, read.NotifyContentFormat) == ("EXPONENTIAL_DECAY_RETRY", "JSON")
    assert "queue" in str(read)
    assert (changed.NotifyStrategy, changed.NotifyContentFormat) == ("BACKOFF_RETRY", "SIMPLIFIED")
    assert (changed.FilterTag, cleared.FilterTag) == (["small"], [])
    assert (total, [entry["subscriptionName"] for entry in subscriptions], next_offset) == (1, ["sub"], "")
    assert topic.list_subscription() == (0, [], "")


def test_messages_are_published_with_tags(account: Any, queue: Any) -> None:
    topic = account.get_topic("news")
    topic.create(module("topic").TopicMeta())
    with refused(6030):
        topic.publish_message(message("nobody listens"))
    subscribe(account, "red", FilterTag=["red"])

    single = topic.publish_message(message("a", ["red", "big"]))
    batch = topic.batch_publish_message([message("b"), message("c")], ["red"])
    with refused(6030):
        topic.publish_message(message("d", ["big"]))

    received = queue.batch_receive_message(16, 0)
    assert [entry.msgBody for entry in received] == ["a", "b", "c"]
    assert len({single.msgId, *(entry.msgId for entry in batch)}) == 3


def test_messages_are_published_with_routing_keys(account: Any, queue: Any) -> None:
    meta = module("topic").TopicMeta()
    meta.filterType = 2
    topic = account.get_topic("news")
    topic.create(meta)
    subscription = subscribe(account, "routed", bindingKey=["1.*.0", "2.#"])

    topic.publish_message(message("a"), "1.any.0")
    topic.batch_publish_message([message("b")], routingKey="2")
    with refused(6030):
        topic.publish_message(message("c"), "3")
    with refused(4000):
        topic.publish_message(message("d"))

    assert [entry.msgBody for entry in queue.batch_receive_message(16, 0)] == ["a", "b"]
    assert subscription.get_attributes().bindingKey == ["1.*.0", "2.#"]
    changed = module("subscription").SubscriptionMeta()
    changed.bindingKey = ["#"]
    subscription.set_attributes(changed)
    assert subscription.get_attributes().bindingKey == ["#"]


def test_a_topic_keeps_messages_for_a_url_that_does_not_answer(account: Any) -> None:
    topic = account.get_topic("news")
    topic.create(module("topic").TopicMeta())
    # The broker refuses to post to its own machine unless it is told to; the message stays in the topic.
    subscribe(account, "hook", Endpoint="http://127.0.0.1:9/hook", Protocal="http")

    topic.publish_message(message("kept"))

    assert topic.get_attributes().msgCount == 1


# ---------------------------------------------------------------------- the client of the SDK


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
@pytest.mark.parametrize("keep_alive", [True, False])
def test_methods_signatures_and_connections_of_the_sdk(
    method: str, algorithm: str, keep_alive: bool, account: Any, queue: Any
) -> None:
    client = account.get_client()
    account.set_sign(algorithm)
    client.set_sign_method(algorithm)
    client.set_method(method)
    client.set_keep_alive(keep_alive)
    client.set_connection_timeout(60)

    queue.send_message(message("ein Käffchen"))

    assert queue.receive_message(0).msgBody == "ein Käffchen"


def test_a_wrong_secret_is_refused(account: Any, gateway: RunningGateway) -> None:
    other = module("account").Account(gateway.url, gateway.secret_id, "wrong")
    with refused(4100):
        other.list_queue()
    other.get_client().close_connection()
    unknown = module("account").Account(gateway.url, "AKIDunknown", "wrong")
    with refused(4100):
        unknown.list_queue()

    unknown.set_client(gateway.url, gateway.secret_id, gateway.secret_key)
    assert unknown.list_queue() == (0, [], "")
    unknown.get_client().close_connection()


def test_logs_and_debug_output_of_the_sdk_change_no_request(
    account: Any, queue: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    account.set_debug(True)
    account.debuginfo("id of a request")
    account.set_log_level(10)
    account.get_client().set_log_level(10)
    for handle in (queue, account.get_topic("news"), account.get_subscription("news", "sub")):
        handle.set_debug(True)
        handle.set_encoding(False)
    queue.send_message(message("logged"))
    account.close_log()
    account.get_client().close_log()

    assert queue.receive_message(0).msgBody == "logged"
    assert "id of a request" in capsys.readouterr().out


def test_the_encoding_of_this_version_of_the_sdk_signs_another_text_than_it_sends(queue: Any) -> None:
    # On Python 3 it signs the text "b'...'" around the encoded body. No server can verify that.
    queue.set_encoding(True)

    with refused(4100):
        queue.send_message(message(body=b"encoded"))  # pyright: ignore[reportArgumentType]


def test_these_tests_use_every_call_of_the_sdk() -> None:
    """Every public method of the classes with which programs work, and every action that the SDK knows."""
    text = Path(__file__).read_text()
    classes = [
        module("account").Account,
        module("queue").Queue,
        module("topic").Topic,
        module("subscription").Subscription,
    ]
    methods = {
        name for kind in classes for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")
    }
    used = set(re.findall(r"\.(\w+)\(", text))
    assert methods - used == set()

    source = inspect.getsource(module("cmq_client"))
    actions = set(re.findall(r"self\.request\('(\w+)'", source))
    reached = {
        "CreateQueue", "DeleteQueue", "ListQueue", "RewindQueue", "SetQueueAttributes", "GetQueueAttributes",
        "SendMessage", "BatchSendMessage", "ReceiveMessage", "BatchReceiveMessage", "DeleteMessage",
        "BatchDeleteMessage", "CreateTopic", "DeleteTopic", "ListTopic", "SetTopicAttributes", "GetTopicAttributes",
        "PublishMessage", "BatchPublishMessage", "Subscribe", "Unsubscribe", "ClearSubscriptionFilterTags",
        "ListSubscriptionByTopic", "SetSubscriptionAttributes", "GetSubscriptionAttributes",
    }  # fmt: skip
    assert actions == reached
