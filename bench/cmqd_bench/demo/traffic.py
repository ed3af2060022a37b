"""Traffic of both demos: a topic with a queue for each subscriber, and messages that carry their number."""

from collections.abc import Iterator, Mapping, Sequence

from cmqd_bench.demo.books import URL
from cmqd_bench.demo.input import Source
from cmqd_client import Client, Message, Topic

TOPIC = "demo-topic"
NUMBER = "demo-number"
"""Header with the number of a message."""
REQUEST_BYTES = 512 * 1024


def longest_body(source: Source) -> int:
    """Return the attribute ``max_message_bytes`` for queues and topic."""
    return max(65_536, source.longest)


def queue_of(subscriber: str) -> str:
    """Return the name of a subscriber's queue."""
    return f"demo-{subscriber}"


async def create_topic(
    client: Client, source: Source, subscribers: Mapping[str, Sequence[str]], *, visibility_timeout: float
) -> Topic:
    """Create the topic, and a queue and a subscription per subscriber; the subscriber ``URL`` is left to the caller."""
    topic = await client.create_topic(TOPIC, filter_type="routing", max_message_bytes=longest_body(source))
    for name, binding_keys in subscribers.items():
        if name != URL:
            queue = await client.create_queue(
                queue_of(name), visibility_timeout=visibility_timeout, max_message_bytes=longest_body(source)
            )
            await topic.subscribe(name, queue=queue, binding_keys=binding_keys)
    return topic


def next_batch(numbers: Iterator[int], source: Source, limit: int) -> list[int]:
    """Take the numbers of the messages of the next request: at most ``limit``, and no more bytes than a request has."""
    batch: list[int] = []
    size = 0
    for number in numbers:
        batch.append(number)
        size += len(source.body(number))
        # The next body is as long as the longest at worst.
        if len(batch) == limit or size + source.longest > REQUEST_BYTES:
            break
    return batch


def headers_of(numbers: Sequence[int]) -> list[dict[str, str]]:
    """Return the headers of messages."""
    return [{NUMBER: str(number)} for number in numbers]


def number_of(message: Message) -> int | None:
    """Return the number in a message's header; None for a message that no demo sent."""
    text = message.headers.get(NUMBER, "")
    return int(text) if text.isdigit() else None


def original_id(message: Message) -> str:
    """Return the id that the producer was answered: a copy has an id of its own."""
    return message.id if message.copy_of is None else message.copy_of.id
