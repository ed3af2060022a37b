"""Bodies of topics in memory, for deliveries that are about to be made; the log has all bodies."""

from collections import OrderedDict

from cmqd.core.runtime.window import cost
from cmqd_segment.records import StoredMessage


class TopicBodies:
    """Messages by topic and position, within a budget; the least recently used messages go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._messages: OrderedDict[tuple[int, int], StoredMessage] = OrderedDict()
        self.used = 0
        """Memory of all messages, in bytes, roughly."""

    def __len__(self) -> int:
        return len(self._messages)

    def keep(self, topic_id: int, message: StoredMessage) -> None:
        """Put a message in, in place of the least recently used messages if there is no room beside them."""
        size = cost(message)
        key = (topic_id, message.position)
        if size > self._limit or key in self._messages:
            return
        self._messages[key] = message
        self.used += size
        while self.used > self._limit:
            _, old = self._messages.popitem(last=False)
            self.used -= cost(old)

    def get(self, topic_id: int, position: int) -> StoredMessage | None:
        """Return the message, or None if it is not in memory."""
        key = (topic_id, position)
        message = self._messages.get(key)
        if message is not None:
            self._messages.move_to_end(key)
        return message

    def forget(self, topic_id: int, position: int) -> None:
        """Drop a message that no delivery needs any more."""
        message = self._messages.pop((topic_id, position), None)
        if message is not None:
            self.used -= cost(message)
