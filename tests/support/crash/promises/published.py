"""Publishes, arranged by message: the attempts of a publish, and its deliveries to every subscriber."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from support.crash.promises.history import DropDelivery, History, Publish, Pushed, SingleDelivery, Subscribe
from support.crash.promises.places import Message, MessageKey


@dataclass(slots=True, eq=False)
class PublishedMessage:
    """A body of a logical publish."""

    body: bytes
    tags: frozenset[str]
    subscriptions: Sequence[Subscribe]
    """The matching subscriptions."""
    attempts: list[Publish] = field(default_factory=list[Publish])
    ids: set[int] = field(default_factory=set[int])
    """From answers and pushes: no more than one, if all is well."""
    copies: list[Message] = field(default_factory=list[Message])
    """For the queues among the subscribers."""
    pushes: dict[str, list[Pushed]] = field(default_factory=dict[str, list[Pushed]])
    """By matching subscription, in the order of their begin."""
    singles: dict[str, list[SingleDelivery]] = field(default_factory=dict[str, list[SingleDelivery]])
    """Retries and drops of this message alone, by subscription, in the order of their calls."""

    @property
    def acknowledged(self) -> bool:
        return any(attempt.done for attempt in self.attempts)

    @property
    def stored(self) -> bool:
        """Acknowledged, or seen at any subscriber, or found there by a retry or drop."""
        found = any(single.done for singles in self.singles.values() for single in singles)
        return self.acknowledged or found or any(self.pushes.values()) or any(copy.places for copy in self.copies)

    def is_delivered(self, subscription: Subscribe) -> bool:
        return any(push.is_delivered for push in self.pushes[subscription.subscription])

    def drops(self, subscription: str) -> list[DropDelivery]:
        """The drops that were carried out, or may have been."""
        singles = self.singles.get(subscription, ())
        return [single for single in singles if isinstance(single, DropDelivery) and single.possible]

    def dropped_ns(self, subscription: str) -> int | None:
        """The time from which the message is surely dropped; None if no drop was acknowledged."""
        return min((drop.answered_ns for drop in self.drops(subscription) if drop.done), default=None)

    def __str__(self) -> str:
        ids = ", ".join(f"{number:#x}" for number in sorted(self.ids)) or "no id"
        return f"published message {self.body[:24]!r} ({ids})"


def arrange_published(history: History, copies: Mapping[MessageKey, Message]) -> list[PublishedMessage]:
    """Every message that was published, or perhaps was."""
    subscriptions = list(history.of_kind(Subscribe))
    messages: dict[bytes, PublishedMessage] = {}
    for publish in sorted(history.of_kind(Publish), key=lambda publish: publish.called_ns):
        for index, body in enumerate(publish.bodies):
            message = messages.get(body)
            if message is None:
                wanted = [one for one in subscriptions if one.queue == publish.queue and one.wants(publish.tags[index])]
                message = messages[body] = PublishedMessage(body, publish.tags[index], wanted)
                for subscription in wanted:
                    if subscription.is_push:
                        message.pushes[subscription.subscription] = []
                    else:
                        message.copies.append(copies[subscription.endpoint, body])
            message.attempts.append(publish)
            if publish.done:
                message.ids.add(publish.message_ids[index])
    for push in sorted(history.of_kind(Pushed), key=lambda push: (push.started_s, push.called_ns)):
        message = messages.get(push.body)
        if message is not None and push.subscription in message.pushes:
            message.pushes[push.subscription].append(push)
            message.ids.add(push.message_id)
    for single in sorted(history.of_kind(SingleDelivery), key=lambda single: single.called_ns):
        message = messages.get(single.body)
        if message is not None:
            message.singles.setdefault(single.subscription, []).append(single)
            message.ids.add(single.message_id)
    return list(messages.values())
