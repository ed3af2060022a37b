"""Subscribers of the demo's topic: their binding keys, the matching as simply as possible, and their queues."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from cmqd_bench.demo.input import Source
from cmqd_bench.demo.traffic import longest_body
from cmqd_client import Client, Topic

MAX_KEY_BYTES = 64
MAX_DOTS = 15
TOPIC = "demo-topic"
EVERYTHING, EXACT, PATTERN, NOBODY = "everything", "exact", "pattern", "nobody"


def matches(binding_key: str, routing_key: str) -> bool:
    """Compare a routing key with a binding key word by word, as simply as possible."""
    return _match(binding_key.split("."), routing_key.split("."))


def _match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_match(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    if not words:
        return False
    fits = words[0] != "" if pattern[0] == "*" else words[0] == pattern[0]
    return fits and _match(pattern[1:], words[1:])


def choose_subscribers(keys: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Choose subscribers and their binding keys for the given routing keys."""
    counts = Counter(keys)
    commonest = counts.most_common(1)[0][0]
    first, _, rest = commonest.partition(".")
    unused = "nobody.publishes.this"
    while unused in counts:
        unused += ".either"
    return {
        EVERYTHING: ["#"],
        EXACT: [commonest],
        # Two keys that sometimes match the same message: the subscriber gets a single copy all the same.
        PATTERN: _legal([f"*.{rest}" if rest else "*", f"{first}.#"]),
        NOBODY: [unused],
    }


def _legal(keys: Sequence[str]) -> Sequence[str]:
    return [key for key in keys if len(key.encode()) <= MAX_KEY_BYTES and key.count(".") <= MAX_DOTS] or ["#"]


def queue_of(subscriber: str) -> str:
    """Return the name of a subscriber's queue."""
    return f"demo-{subscriber}"


async def create_topic(
    client: Client, source: Source, subscribers: Mapping[str, Sequence[str]], *, visibility_timeout: float
) -> Topic:
    """Create the topic, and a queue and a subscription per subscriber."""
    topic = await client.create_topic(TOPIC, filter_type="routing", max_message_bytes=longest_body(source))
    for name, binding_keys in subscribers.items():
        queue = await client.create_queue(
            queue_of(name), visibility_timeout=visibility_timeout, max_message_bytes=longest_body(source)
        )
        await topic.subscribe(name, queue=queue, binding_keys=binding_keys)
    return topic
