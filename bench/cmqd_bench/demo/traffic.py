"""Traffic of both demos: messages that carry their number."""

from collections.abc import Iterator, Sequence

from cmqd_bench.demo.input import Source
from cmqd_client import Message

NUMBER = "demo-number"
"""Header with the number of a message."""
REQUEST_BYTES = 512 * 1024


def longest_body(source: Source) -> int:
    """Return the attribute ``max_message_bytes`` of queue or topic."""
    return max(65_536, source.longest)


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
