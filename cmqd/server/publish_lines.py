"""Publishes with plans of several slices, in a line per topic.

A plan of the core changes nothing before the plan is applied. Therefore requests of other clients go on between two
slices, like requests that arrived sooner. Publishes to the same topic stand in line behind the plan, because a plan
relies on the dedup ids that the topic remembers. Topics take turns of a slice.

The connections of a publish in line are held (``Connection.hold``). Therefore the requests of a client are carried out
in the order of sending, and a line has at most a single entry per connection. A publish in line is carried out even if
its connection is lost: the line knows no connections.

Pure data.
"""

from collections import OrderedDict, deque
from typing import Final

from cmqd.core.operations.publish_plan import PublishPlan
from cmqd.server.collecting import Group

SLICE_UNITS: Final = 1024
"""Work of a slice: usually 0.5 ms, at most about 2 ms."""


class PlannedPublish:
    """Publishes to a topic that are decided together, and their plan. A publish behind others has no plan yet."""

    __slots__ = ("group", "plan")

    def __init__(self, group: Group, plan: PublishPlan | None) -> None:
        self.group = group
        self.plan = plan


class PublishLines:
    """The lines of all topics; see the module."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines: OrderedDict[tuple[str, str], deque[PlannedPublish]] = OrderedDict()
        """By account and topic, in the order of their turns. No line is empty. Read-only outside: the dispatcher looks
        at it at the end of every I/O batch.
        """

    def __len__(self) -> int:
        return sum(map(len, self.lines.values()))

    def has_line(self, account: str, topic: str) -> bool:
        """Return whether publishes to a topic stand in line."""
        return (account, topic) in self.lines

    def add(self, publish: PlannedPublish) -> None:
        """Put a publish at the end of its topic's line."""
        group = publish.group
        self.lines.setdefault((group.account, group.name), deque()).append(publish)

    def take(self) -> PlannedPublish:
        """Remove and return the publish that has the turn. The lines must not be empty."""
        key = next(iter(self.lines))
        line = self.lines[key]
        publish = line.popleft()
        if line:
            self.lines.move_to_end(key)
        else:
            del self.lines[key]
        return publish

    def put_back(self, publish: PlannedPublish) -> None:
        """Put a publish that needs a further slice in front of its line, and the line at the end of the turns."""
        key = (publish.group.account, publish.group.name)
        self.lines.setdefault(key, deque()).appendleft(publish)
        self.lines.move_to_end(key)

    def take_all(self) -> list[PlannedPublish]:
        """Remove and return every publish."""
        publishes = [publish for line in self.lines.values() for publish in line]
        self.lines.clear()
        return publishes
