"""OpenTelemetry spans for sends, receives and settlements, by the semantic conventions for messaging.

    send orders         PRODUCER   its context travels in the headers ``traceparent`` and ``tracestate`` of each
                                   message; also ``publish`` (to a topic) and ``send_half`` (in a transaction)
    receive orders      CLIENT     with a link to the context of each message; a receive of no message makes no span
    delete orders       CLIENT     also ``change_visibility``, ``release`` and ``reject``: the lease ends, or is
                                   changed; and ``end_transactions``, the decisions about half messages
    process orders      CONSUMER   the work on a message: a child of the span of its send; see :meth:`Tracing.process`
    check orders        CONSUMER   a checker's work on a half message: a child of the span of the half send

The API (``opentelemetry-api``) is optional: a client traces, without a setting, if the API is installed and the program
has set up an SDK before it opens the client. This module is the only one that knows the API.
"""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from time import time_ns
from typing import Any, Protocol

from cmqd_client.messages.outgoing import headers_size
from cmqd_protocol.limits import MAX_BATCH_BYTES, MAX_HEADERS
from cmqd_types.messages import Headers

MAX_HEADERS_BYTES = 16 * 1024
"""Names and values of the headers of a message together (part of the protocol; see ``send_messages`` in SPEC)."""

SYSTEM = "cmqd"
"""``messaging.system`` of all spans."""


class TracedMessage(Protocol):
    """A received message, as far as tracing knows it."""

    @property
    def id(self) -> str: ...  # noqa: D102 - said above
    @property
    def headers(self) -> Headers: ...  # noqa: D102
    @property
    def raw_body(self) -> bytes: ...  # noqa: D102


class Tracing:
    """Makes the spans of a client."""

    __slots__ = ("_attributes", "_no_context", "_propagate", "_trace", "_tracer")

    def __init__(self, host: str, port: int) -> None:
        """Make the spans of a client of the server at this host and port.

        Raises:
            ImportError: the OpenTelemetry API is not installed.
        """
        self._trace: Any = import_module("opentelemetry.trace")
        self._propagate: Any = import_module("opentelemetry.propagate")
        self._no_context: Any = import_module("opentelemetry.context").Context()
        self._tracer: Any = self._trace.get_tracer_provider().get_tracer("cmqd_client")
        self._attributes: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "server.address": host,
            "server.port": port,
        }

    @contextmanager
    def send(self, destination: str, count: int, operation: str = "send") -> Generator[Any]:
        """Make the span of a send or publish of ``count`` messages; the span is current inside."""
        with self._span(operation, "send", destination, self._trace.SpanKind.PRODUCER) as span:
            if count != 1:
                span.set_attribute("messaging.batch.message_count", count)
            yield span

    def inject(self, bodies: Sequence[bytes], headers: Sequence[Headers | None] | None) -> list[Headers | None] | None:
        """Return the headers of the messages with the context of the current span.

        A context that the caller gave stays. Where the context would take the messages over a limit of the server, the
        headers are returned as they are: a send must not fail because it is traced.
        """
        carrier: Headers = {}
        self._propagate.inject(carrier)
        given: list[Headers | None] = [None] * len(bodies) if headers is None else list(headers)
        if not carrier:
            return None if headers is None else given
        injected: list[Headers | None] = [{**carrier, **(own or {})} for own in given]
        sizes = [headers_size(own) for own in injected if own is not None]
        if (
            max(sizes) > MAX_HEADERS_BYTES
            or any(own is not None and len(own) > MAX_HEADERS for own in injected)
            or (len(bodies) > 1 and sum(sizes) + sum(len(body) for body in bodies) > MAX_BATCH_BYTES)
        ):
            return None if headers is None else given
        return injected

    @contextmanager
    def settle(self, operation: str, destination: str, count: int) -> Generator[Any]:
        """Make the span of the request that settles ``count`` messages, or decides half messages."""
        with self._span(operation, "settle", destination, self._trace.SpanKind.CLIENT) as span:
            if count != 1:
                span.set_attribute("messaging.batch.message_count", count)
            yield span

    @contextmanager
    def process(self, destination: str, message: TracedMessage) -> Generator[Any]:
        """Make the span of the work on a message, as a child of the span of its send; current inside."""
        with self._work("process", destination, message) as span:
            yield span

    def current_elsewhere(self) -> AbstractContextManager[Any]:
        """Return a context manager that makes the current span current in another thread, without ending it there."""
        scope: AbstractContextManager[Any] = self._trace.use_span(
            self._trace.get_current_span(), end_on_exit=False, record_exception=False, set_status_on_exception=False
        )
        return scope

    @contextmanager
    def check(self, destination: str, check: TracedMessage) -> Generator[Any]:
        """Make the span of the answer to a check, as a child of the span of the half send; current inside."""
        with self._work("check", destination, check) as span:
            yield span

    @contextmanager
    def _work(self, name: str, destination: str, message: TracedMessage) -> Generator[Any]:
        context = self._propagate.extract(message.headers)
        with self._span(name, "process", destination, self._trace.SpanKind.CONSUMER, context) as span:
            span.set_attribute("messaging.message.id", message.id)
            span.set_attribute("messaging.message.body.size", len(message.raw_body))
            yield span

    def received(self, destination: str, messages: Sequence[TracedMessage], started_ns: int) -> None:
        """Make the span of a receive that returned messages; ``started_ns`` is its start by :func:`now_ns`.

        The span is made at the end, because links to messages belong to its start.
        """
        contexts = [self._context_of(message) for message in messages]
        links = [self._trace.Link(context) for context in contexts if context is not None]
        attributes = self._operation("receive", "receive", destination)
        if len(messages) == 1:
            attributes["messaging.message.id"] = messages[0].id
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        span = self._tracer.start_span(
            f"receive {destination}",
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes,
            links=links,
            start_time=started_ns,
        )
        span.end()

    def _context_of(self, message: TracedMessage) -> Any:
        """Return the span context in the headers of a message; None if there is none."""
        context = self._trace.get_current_span(
            self._propagate.extract(message.headers, self._no_context)
        ).get_span_context()
        return context if context.is_valid else None

    def _operation(self, name: str, kind: str, destination: str) -> dict[str, Any]:
        return {
            **self._attributes,
            "messaging.destination.name": destination,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
        }

    @contextmanager
    def _span(self, name: str, operation: str, destination: str, kind: Any, context: Any = None) -> Generator[Any]:
        attributes = self._operation(name, operation, destination)
        with self._tracer.start_as_current_span(
            f"{name} {destination}", context=context, kind=kind, attributes=attributes
        ) as span:
            try:
                yield span
            except Exception as error:
                # The API records the exception and sets the status; the convention wants the type as well.
                span.set_attribute("error.type", type(error).__qualname__)
                raise


def now_ns() -> int:
    """Return the start time of a receive."""
    return time_ns()


def tracing_if_set_up(host: str, port: int) -> Tracing | None:
    """Return the tracing of a client; None if the OpenTelemetry API is not installed, or has no SDK behind it."""
    try:
        trace = import_module("opentelemetry.trace")
    except ImportError:
        return None
    provider: Any = trace.get_tracer_provider()
    if type(provider).__module__ == trace.__name__:
        # The API's own provider discards all spans. Making these would double the CPU of a small message.
        return None
    return Tracing(host, port)
