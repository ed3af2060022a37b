"""The runtime of a broker: all state that a restart forgets."""

from pyroaring import BitMap64

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.topic import Topic
from cmqd.core.runtime.agenda import Agenda
from cmqd.core.runtime.consumers import Consumers
from cmqd.core.runtime.counted_totals import CountedTotals
from cmqd.core.runtime.lookups import Lookups
from cmqd.core.runtime.pages import Pages
from cmqd.core.runtime.pending import PendingCommits, PendingDeadLetters, PendingDecisions, PendingRejections
from cmqd.core.runtime.push_slots import PushSlots
from cmqd.core.runtime.queue import QueueRuntimes
from cmqd.core.runtime.retry_bound import RetryBound
from cmqd.core.runtime.topic import TopicRuntime
from cmqd.core.runtime.topic_bodies import TopicBodies
from cmqd.core.runtime.waiters import Waiter
from cmqd.core.runtime.window import WindowBudget


class Gates:
    """Work that the edge can hold up."""

    def __init__(self) -> None:
        self.moves_held_up = ""
        """Reason for which no message is moved or copied for now; empty = moves go on."""
        self.is_log_behind = False
        """True while much waits for the disk: schedules wait too, because no refusal would slow them down."""
        self.pushing = True
        """A client of the core posts to URLs; while none does, messages for URLs wait."""
        self.listening_since_ms: int | None = 0
        """Time since which clients can reach the broker without a pause; None = they cannot. A queue is not unused at a
        time when no client can use it."""


class Runtime:
    """The parts of the runtime, handed to the operations."""

    def __init__(self, facts: Facts) -> None:
        limits = facts.limits
        self.queues = QueueRuntimes()
        self.topics: dict[int, TopicRuntime] = {}
        """By topic id."""
        self.consumers = Consumers()
        self.agenda = Agenda(limits, facts.queues)
        self.pages = Pages(limits)
        self.lookups = Lookups(self.pages)
        self.budget = WindowBudget(limits.window_bytes)
        self.topic_bodies = TopicBodies(limits.topic_bodies_bytes)
        self.waiters: dict[int, Waiter] = {}
        """Waiting receives by id; the lines of the queues have their order."""
        self.deciding: dict[int, PendingDecisions] = {}
        """Waiting requests to decide half messages, by waiter; a cancelled request is carried out all the same."""
        self.commits: dict[int, PendingCommits] = {}
        """By queue id; an entry means that a page for its commits is under way."""
        self.rejecting: dict[int, PendingDeadLetters] = {}
        """Waiting requests to move messages to the dead-letter queue, by waiter; a cancelled one is carried out all the
        same."""
        self.rejections: dict[int, PendingRejections] = {}
        """By queue id; an entry means that a page for its moves is under way."""
        self.once_more: dict[int, BitMap64] = {}
        """By queue id: half messages checked with a client that disconnected; another client may be asked."""
        self.push_slots = PushSlots(limits, facts.topics, self.agenda.deliveries_wanted)
        self.retries = RetryBound(limits)
        self.counted = CountedTotals()
        self.gates = Gates()

    def of_topic(self, topic: Topic) -> TopicRuntime:
        """Return the runtime of a topic."""
        topic_runtime = self.topics.get(topic.topic_id)
        if topic_runtime is None:
            topic_runtime = self.topics[topic.topic_id] = TopicRuntime(topic)
        return topic_runtime
