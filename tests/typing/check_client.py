"""The client as a type checker sees it; pyright reads this file, and no test runs it."""

from datetime import datetime, timedelta
from typing import assert_type

import msgspec

from cmqd_client import (
    BatchResult,
    Client,
    ConsumedMessage,
    Consumer,
    ConsumerStatistics,
    ContentFormat,
    FilterType,
    HalfMessage,
    HandleResult,
    Message,
    MessageId,
    Origin,
    Outgoing,
    Peeked,
    PeekPage,
    Published,
    Queue,
    QueueAttributes,
    QueueInfo,
    Redrive,
    Reject,
    Reply,
    Retry,
    RetryStrategy,
    Rewound,
    Sent,
    SentBatch,
    Subscription,
    SubscriptionInfo,
    Topic,
    TopicInfo,
    TransactionCheck,
    TransactionProducer,
    TransactionResult,
    TransactionStatus,
    connect,
    sync,
)
from cmqd_client.results import DecisionResult, Done, Listing, UndecidedPage
from cmqd_client.subscription import DeliveriesDone, RotatedSecret, SubscriptionPage
from cmqd_client.topic import TopicPage
from cmqd_types.topics import QueueSubscription, SubscriptionSummary


class Order(msgspec.Struct):
    number: int


def insert(message: HalfMessage, order: int) -> TransactionStatus:
    return TransactionStatus.COMMIT


async def insert_slowly(message: HalfMessage, order: int | None) -> TransactionStatus:
    return TransactionStatus.COMMIT


async def insert_all(messages: list[HalfMessage], order: int) -> list[TransactionStatus]:
    return [TransactionStatus.COMMIT] * len(messages)


def insert_order(message: HalfMessage[Order], number: int) -> TransactionStatus:
    return TransactionStatus.COMMIT if message.body.number == number else TransactionStatus.ROLLBACK


def was_ordered(check: TransactionCheck[Order]) -> TransactionStatus:
    return TransactionStatus.COMMIT if check.body.number else TransactionStatus.UNKNOWN


async def was_inserted(check: TransactionCheck) -> TransactionStatus:
    return TransactionStatus.UNKNOWN


async def check() -> None:
    async with connect("cmq://id:key@host", request_timeout=timedelta(seconds=5)) as client:
        assert_type(client, Client)
        assert_type(client.queue("orders"), Queue)
        queue = await client.create_queue("orders", retention=timedelta(days=1), max_delayed=10)
        assert_type(queue, Queue)
        assert_type(await client.ensure_queue("orders", delay=1.5), Queue)
        # Unknown attributes and wrong types are caught.
        await client.ensure_queue("orders", colour="red")  # pyright: ignore[reportCallIssue]
        await client.ensure_queue("orders", max_delayed="1")  # pyright: ignore[reportArgumentType]

        sent = await queue.send(b"body", delay=1, headers={"k": "v"})
        assert_type(sent, Sent)
        assert_type(sent.id, MessageId)
        await queue.send("text")  # pyright: ignore[reportArgumentType]
        assert_type(await queue.send_batch([b"a", Outgoing(b"b", delay=timedelta(seconds=1))]), SentBatch)

        messages = await queue.receive(16, wait=20.0, visibility_timeout=timedelta(minutes=1))
        assert_type(messages, list[Message])
        message = messages[0]
        assert_type(message.body, bytes)
        assert_type(message.headers, dict[str, str])
        assert_type(message.receipt_handle, int)
        assert_type(message.enqueue_time, datetime)
        assert_type(await message.delete(), HandleResult)
        assert_type(await message.change_visibility(5), HandleResult)
        assert_type(await message.release(count_receive=False), HandleResult)
        assert_type(await message.reject("why"), HandleResult)
        assert_type(await queue.reject_batch([message, 7], ["a", "b"]), BatchResult)
        result = await queue.delete_batch([message, message.receipt_handle])
        assert_type(result, BatchResult)
        assert_type(result.done, list[int])

        @queue.consumer(concurrency=8, lease=timedelta(seconds=10), patience=None)
        async def handle(message: ConsumedMessage) -> None:
            assert_type(message.body, bytes)
            assert_type(message.lost, str | None)
            assert_type(await message.delete(), HandleResult)

        assert_type(handle, Consumer[ConsumedMessage[bytes]])
        assert_type(handle.statistics(), ConsumerStatistics)
        await client.run(handle, grace=10)

        typed = client.queue("orders", Order)

        @typed.consumer()
        async def handle_order(message: ConsumedMessage[Order]) -> None:
            assert_type(message.body, Order)
            raise Retry(after=5) if message.receive_count < 3 else Reject("no")

        assert_type(handle_order, Consumer[ConsumedMessage[Order]])
        # A handler of other bodies is caught.
        queue.consumer()(handle_order.handler)  # pyright: ignore[reportArgumentType]
        async for order in typed.consume(prefetch=3):
            assert_type(order, ConsumedMessage[Order])
            async with order.process():
                assert_type(order.body.number, int)

        page = await queue.peek()
        assert_type(page, PeekPage)
        for peeked in page:
            assert_type(peeked, Peeked)
        info = await queue.attributes()
        assert_type(info, QueueInfo)
        assert_type(info.attributes(), QueueAttributes)
        assert_type(await queue.set_attributes(**info.attributes()), QueueInfo)

        await queue.send(b"body", dedup_id="a")
        await queue.send_batch([b"a", Outgoing(b"b", dedup_id="b")], dedup_ids=["a", None])
        assert_type(message.origin, Origin | None)
        assert_type(await queue.rewind(datetime.now().astimezone(), strict=True), Rewound)
        assert_type(await queue.rewind(1_700_000_000.5), Rewound)
        await queue.rewind("now")  # pyright: ignore[reportArgumentType]
        assert_type(await queue.dead_letter_sources(), Listing[str])
        assert_type(await queue.redrive("orders", max_per_second=10), Redrive)
        assert_type(await queue.redrive_status(), Redrive)
        assert_type(await queue.cancel_redrive(), Redrive)
        half = await queue.half_messages()
        assert_type(half, UndecidedPage)
        ids = [one.id for one in half]
        assert_type(await queue.end_transactions(ids, TransactionStatus.COMMIT), DecisionResult)

        async with client.transaction_producer("orders", was_inserted) as producer:
            assert_type(producer, TransactionProducer)
            assert_type(await producer.send(b"body", insert, 7), TransactionResult)
            # The argument is of the kind that the local transaction takes.
            await producer.send(b"body", insert, "7")  # pyright: ignore[reportArgumentType]
            await producer.send(b"body", insert_slowly)
            await producer.send(b"body", lambda message, argument: TransactionStatus.ROLLBACK)
            await producer.send(b"body", lambda message, argument: True)  # pyright: ignore[reportArgumentType]
            assert_type(await producer.send_batch([b"a"], insert_all, 7), list[TransactionResult])
        TransactionProducer(queue, was_inserted, check_timeout=timedelta(seconds=5), checks_at_once=4)

        topic = await client.create_topic("shop", filter_type="tag", max_message_bytes=4096)
        assert_type(topic, Topic)
        assert_type(client.topic("shop"), Topic)
        assert_type(await client.ensure_topic("shop", filter_type=FilterType.ROUTING), Topic)
        await client.ensure_topic("shop", filter_type="colour")  # pyright: ignore[reportArgumentType]
        assert_type(await client.topics(search="s"), TopicPage)
        assert_type(await topic.attributes(), TopicInfo)
        assert_type(await topic.set_attributes(max_message_bytes=2048), TopicInfo)
        published = await topic.publish(b"body", tags=["red"], headers={"k": "v"}, dedup_id="a")
        assert_type(published, Published)
        assert_type(published.matched, int | None)
        assert_type(await topic.publish_batch([b"a", b"b"], tags=["red"]), list[Published])
        await topic.publish_batch([b"a", b"b"], tags=[["red"], []], headers=[None, {"k": "v"}])
        await topic.publish_batch([b"a", b"b"], routing_keys=["a", "b"], dedup_ids=["a", None])
        await topic.publish("text")  # pyright: ignore[reportArgumentType]
        subscription = await topic.subscribe("a", queue=queue, strategy=RetryStrategy.BACKOFF)
        assert_type(subscription, Subscription)
        assert_type(subscription.secret, str | None)
        await topic.subscribe("a", url="https://host", content_format=ContentFormat.SIMPLIFIED, ensure=True)
        await topic.subscribe("a", queue="orders", strategy="prayer")  # pyright: ignore[reportArgumentType]
        subscriptions = await topic.subscriptions()
        assert_type(subscriptions, SubscriptionPage)
        for summary in subscriptions:
            assert_type(summary, SubscriptionSummary)
        for to_queue in await queue.subscriptions(limit=10):
            assert_type(to_queue, QueueSubscription)
        assert_type(await subscription.info(), SubscriptionInfo)
        assert_type(await subscription.set(paused=True, filter_tags=()), SubscriptionInfo)
        assert_type(await subscription.retry_now(), DeliveriesDone)
        assert_type(await subscription.pause(), Done)
        assert_type(await subscription.rotate_secret(overlap=timedelta(hours=1)), RotatedSecret)

        orders = client.queue("orders", Order)
        assert_type(orders, Queue[Order])
        await orders.send(Order(7))
        await orders.send_batch([Order(7), Outgoing(Order(8), delay=1)])
        await orders.send(b"body")  # pyright: ignore[reportArgumentType]
        (order,) = await orders.receive()
        assert_type(order, Message[Order])
        assert_type(order.body, Order)
        assert_type(order.raw_body, bytes)
        assert_type(order.queue, Queue[Order])
        assert_type(await orders.delete_batch([order, message]), BatchResult)
        assert_type(client.topic("shop", Order), Topic[Order])
        await client.topic("shop", Order).publish(Order(7))
        await client.topic("shop", Order).publish_batch([Order(7)])
        await client.topic("shop", Order).publish(b"body")  # pyright: ignore[reportArgumentType]
        async with client.transaction_producer(orders, was_ordered) as typed:
            assert_type(typed, TransactionProducer[Order])
            assert_type(await typed.send(Order(7), insert_order, 7), TransactionResult)
            await typed.send(b"body", insert_order, 7)  # pyright: ignore[reportArgumentType]
            await typed.send(Order(7), insert, 7)  # pyright: ignore[reportArgumentType]
        client.transaction_producer("orders", was_ordered)  # pyright: ignore[reportCallIssue, reportArgumentType]
        assert_type(await client.request(orders, Order(7)), Reply)
        assert_type(await client.request("orders", b"body"), Reply)
        await client.request(orders, b"body")  # pyright: ignore[reportCallIssue, reportArgumentType]


def check_synchronously() -> None:
    with sync.connect("cmq://id:key@host", patience=None) as client:
        assert_type(client, sync.Client)
        queue = client.create_queue("orders")
        assert_type(queue, sync.Queue)
        assert_type(queue.receive()[0].body, bytes)
        orders = client.queue("orders", Order)
        assert_type(orders, sync.Queue[Order])
        orders.send(Order(7))
        orders.send_batch([Order(7), Outgoing(Order(8), delay=1)])
        orders.send(b"body")  # pyright: ignore[reportArgumentType]
        (order,) = orders.receive()
        assert_type(order, sync.Message[Order])
        assert_type(order.body, Order)
        assert_type(order.queue, sync.Queue[Order])
        assert_type(order.delete(), HandleResult)
        assert_type(orders.delete_batch([order, 7]), BatchResult)
        assert_type(client.request("orders", b"body"), Reply)
        assert_type(client.topic("shop").publish(b"body"), Published)
        assert_type(client.topic("shop").subscribe("a", queue=queue), sync.Subscription)

        @orders.consumer(concurrency=8)
        def handle(message: sync.ConsumedMessage[Order]) -> None:
            assert_type(message.body, Order)
            assert_type(message.delete(), HandleResult)

        assert_type(handle, sync.Consumer[sync.ConsumedMessage[Order]])
        assert_type(handle.statistics(), ConsumerStatistics)
        assert_type(client.run(handle), None)
        for message in orders.consume():
            assert_type(message, sync.ConsumedMessage[Order])
            with message.process():
                assert_type(message.body.number, int)

        def of_bytes(message: sync.ConsumedMessage) -> None: ...

        orders.consumer()(of_bytes)  # pyright: ignore[reportArgumentType]
