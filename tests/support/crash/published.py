"""Publishes, arranged by message: the attempts of a publish, and its deliveries to every subscriber."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from support.crash.history import History, Publish, Pushed, Subscribe
from support.crash.places import Message, MessageKey


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

    @property
    def acknowledged(self) -> bool:
        return any(attempt.done for attempt in self.attempts)

    @property
    def stored(self) -> bool:
        """Acknowledged, or seen at any subscriber."""
        return self.acknowledged or any(self.pushes.values()) or any(copy.places for copy in self.copies)

    def is_delivered(self, subscription: Subscribe) -> bool:
        return any(push.is_delivered for push in self.pushes[subscription.subscription])

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
    return list(messages.values())
