# pyright: reportIncompatibleMethodOverride=false
# (Each broker of FastStream has arguments of its own for these methods.)
"""Routers: subscribers and publishers that a program declares apart from its broker."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from cmqd_faststream.configs import CmqBrokerConfig
from cmqd_faststream.registrator import CmqRegistrator


class CmqPublisher(ArgsContainer):
    """A publisher of a :class:`CmqRoute`."""

    def __init__(self, queue: str = "", **options: Any) -> None:
        """Keep the arguments of :meth:`CmqRegistrator.publisher`."""
        super().__init__(queue=queue, **options)


class CmqRoute(SubscriberRoute):
    """A handler of a router, with its subscriber and publishers."""

    def __init__(
        self, call: Callable[..., Any], queue: str, *, publishers: Iterable[CmqPublisher] = (), **options: Any
    ) -> None:
        """Keep a handler, and the arguments of :meth:`CmqRegistrator.subscriber`."""
        super().__init__(call, publishers=publishers, queue=queue, **options)


class CmqRouter(CmqRegistrator, BrokerRouter[Any, CmqBrokerConfig]):
    """Subscribers and publishers to include into a broker."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[CmqRoute] = (),
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[CmqRegistrator] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        """Make a router.

        Args:
            prefix: before the names of its queues and topics.
            handlers: handlers with their subscribers.
            dependencies: FastStream's, for all subscribers.
            middlewares: FastStream's, for all subscribers and publishers.
            routers: routers to include.
            parser: makes messages of deliveries.
            decoder: makes values of messages.
            codec: encodes and decodes; in place of ``decoder``.
            include_in_schema: show subscribers and publishers in the AsyncAPI page.
            ack_policy: of subscribers without a policy of their own.
        """
        super().__init__(
            handlers=handlers,
            config=CmqBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
