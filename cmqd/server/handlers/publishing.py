"""Publishes: decided together as sends are, in slices if their plan is long.

A plan of the core changes nothing before the plan is applied. Therefore requests of other clients go on between two
slices, like requests that arrived sooner. Publishes to the same topic stand in line behind the plan, because a plan
relies on the dedup ids that the topic remembers. Topics take turns of a slice.

The connections of a publish in line are held (``Client.hold``). Therefore the requests of a client are carried out in
the order of sending, and a line has at most a single entry per connection. A publish in line is carried out even if
its connection is lost.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

from cmqd.core import domain_errors as domain
from cmqd.core.broker import Broker
from cmqd.core.operations.topics.publish import WHOLE
from cmqd.core.operations.topics.publish_plan import PublishPlan
from cmqd.core.outcome import Published, PublishRequest
from cmqd.server.admission.request_admission import Admission
from cmqd.server.clients.client import Client
from cmqd.server.monitoring.counters import Counters
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.reply_gate import Held
from cmqd.server.requests.collecting import CollectedOperation, Collector, Decided, Group, stored_bytes
from cmqd.server.requests.handler import handles
from cmqd_protocol import messages as wire
from cmqd_types.messages import Labels

SLICE_UNITS: Final = 1024
"""Work of a slice: usually 0.5 ms, at most about 2 ms."""


class _Publish:
    """Publishes to a topic that are decided together, and their plan. A publish behind others has no plan yet."""

    __slots__ = ("group", "plan")

    def __init__(self, group: Group, plan: PublishPlan | None) -> None:
        self.group = group
        self.plan = plan


@part
class Publishes:
    """Publishes to topics; see the module and ``collecting``."""

    broker: Broker
    answering: Answering
    admission: Admission
    collector: Collector
    counters: Counters
    schedule: Callable[[], None]

    def __post_init__(self) -> None:
        self._operation = CollectedOperation(1, "publish", self.decide, self.answer)
        self.lines: dict[tuple[str, str], deque[_Publish]] = {}
        """The publishes in line, by account and topic, in the order of the turns. No line is empty. Read-only outside:
        the end of every I/O batch reads whether a publish continues in slices."""

    @handles(wire.PublishMessages)
    def handle(self, client: Client, request: wire.PublishMessages) -> None:
        """Collect a publish."""
        if self.admission.refuses_bodies(client, request.request_id):
            return
        publish = PublishRequest(
            bodies=request.bodies,
            headers=request.headers,
            labels=_labels(request),
            session=request.session,
            sequence=request.sequence,
            dedup_ids=request.dedup_ids,
            after=request.after,
            all_or_none=request.all_or_none,
        )
        self.collector.collect(
            operation=self._operation,
            client=client,
            asked=request,
            name=request.topic,
            request=publish,
            count=len(request.bodies),
            size=stored_bytes(request),
        )

    def decide(self, group: Group, now_ms: int) -> Decided:
        """Plan the publishes, and apply the plan unless it needs more slices or waits behind an earlier publish."""
        plan = None
        _, account, topic = group.key
        key = (account, topic)
        if key not in self.lines:
            plan = self.broker.plan_publish(account, topic, group.requests, now_ms, group.actors)
            if plan.advance(SLICE_UNITS):
                return self.broker.apply_publish(plan, now_ms)
        self.lines.setdefault(key, deque()).append(_Publish(group, plan))
        self.admission.collected_bytes += group.size
        for client, _ in group.askers:
            client.hold()
        self.schedule()
        return None

    def answer(
        self, group: Group, results: Sequence[Published | domain.DomainError], lsn: int, held: list[Held]
    ) -> None:
        """Answer the publishes of a group with their message ids."""
        for (client, request_id), result in zip(group.askers, results, strict=True):
            if isinstance(result, Published):
                self.counters.published += len(result.message_ids)
                if 0 in result.matched:
                    self.counters.unmatched += result.matched.count(0)
                reply = wire.MessagesPublished(request_id, list(result.message_ids), list(result.matched))
                held.append((lsn, client, reply, None))
            else:
                self.answering.refuse(client, request_id, result, lsn)

    def go_on(self, units: int | None = None) -> bool:
        """Do a slice of the publish that has the turn; return True if that was its last slice."""
        units = SLICE_UNITS if units is None else units
        key = next(iter(self.lines))
        line = self.lines.pop(key)
        publish = line.popleft()
        if line:
            self.lines[key] = line

        def decide(group: Group, now_ms: int) -> Decided:
            plan = publish.plan
            if plan is None:
                _, account, topic = group.key
                plan = self.broker.plan_publish(account, topic, group.requests, now_ms, group.actors)
                publish.plan = plan
            return self.broker.apply_publish(plan, now_ms) if plan.advance(units) else None

        if not self.collector.carry_out(publish.group, decide):
            line.appendleft(publish)
            self.lines[key] = line
            return False
        self.admission.collected_bytes -= publish.group.size
        for client, _ in publish.group.askers:
            client.release()
        return True

    def finish(self) -> None:
        """Carry out every publish in line, without slices."""
        while self.lines:
            self.go_on(WHOLE)

    def drop_all(self, reason: str) -> None:
        """Answer every publish in line ``outcome_unknown``, without deciding it."""
        publishes = [publish for line in self.lines.values() for publish in line]
        self.lines.clear()
        for publish in publishes:
            self.admission.collected_bytes -= publish.group.size
            self.collector.leave_unknown(publish.group, reason)


def _labels(request: wire.PublishMessages) -> list[Labels] | None:
    """Return the tags or the routing keys of a request. The core knows the kind that the topic takes."""
    tags = cast("list[Labels] | None", request.tags)
    keys = cast("list[Labels] | None", request.routing_keys)
    if keys is None or tags is None:
        return tags if keys is None else keys
    if not any(tags):
        return keys
    if any(keys):
        raise domain.InvalidArgument(
            "a message has tags or a routing key, not both",
            field="routing_keys",
            value=keys,
            limit="empty if there are tags",
        )
    return tags
