"""Responses of handlers, and commands to publish."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from faststream.exceptions import SetupError
from faststream.response import PublishType, Response
from faststream.response.response import BatchPublishCommand, PublishCommand

from cmqd_client.durations import Duration

TIMEOUT = 30.0
"""Seconds for which a request waits for its reply, unless the caller says otherwise."""


class CmqPublishCommand(BatchPublishCommand):
    """A message, or a batch, on its way to a queue or topic; middlewares may change the command."""

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        _publish_type: PublishType,
        queue: str = "",
        topic: str = "",
        routing_key: str | None = None,
        tags: Iterable[str] | None = None,
        correlation_id: str | None = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        delay: Duration | None = None,
        at: datetime | float | None = None,
        dedup_id: str | None = None,
        timeout: Duration = TIMEOUT,
        request_id: str | None = None,
    ) -> None:
        if queue and topic:
            raise SetupError(f"a message goes to a queue or to a topic, not to queue {queue!r} and topic {topic!r}")
        super().__init__(
            message,
            *messages,
            _publish_type=_publish_type,
            correlation_id=correlation_id,
            reply_to=reply_to,
            destination=topic or queue,
            headers=headers,
        )
        self.is_topic: bool = bool(topic)
        """True if ``destination`` is a topic."""
        self.routing_key: str | None = routing_key
        self.tags: tuple[str, ...] = tuple(tags or ())
        self.delay: Duration | None = delay
        self.at: datetime | float | None = at
        self.dedup_id: str | None = dedup_id
        self.timeout: Duration = timeout
        self.request_id: str | None = request_id
        """Of a reply: the request's number at the requesting client."""

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> "CmqPublishCommand":
        """Make a command of a response of FastStream; return a command of this class unchanged."""
        if isinstance(cmd, CmqPublishCommand):
            return cmd
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *bodies,
            queue=cmd.destination,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )


class CmqResponse(Response):
    """The result of a handler, with options of its publish."""

    def __init__(
        self,
        body: Any = None,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        routing_key: str | None = None,
        tags: Iterable[str] | None = None,
        delay: Duration | None = None,
        at: datetime | float | None = None,
        dedup_id: str | None = None,
    ) -> None:
        """Make a response; options as for :meth:`cmqd_faststream.CmqBroker.publish`."""
        super().__init__(body=body, headers=headers, correlation_id=correlation_id)
        self._options: dict[str, Any] = {
            "routing_key": routing_key,
            "tags": tags,
            "delay": delay,
            "at": at,
            "dedup_id": dedup_id,
        }

    def as_publish_command(self) -> CmqPublishCommand:
        """Return a command without a destination; the publisher sets the destination."""
        return CmqPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
            **self._options,
        )
