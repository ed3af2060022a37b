"""Single sends, receives and deletes, through the broker's forms for several clients: each is a call of its own."""

from collections.abc import Sequence
from typing import Any

import msgspec

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import DomainError
from cmqd.core.outcome import HandlesDone, Outcome, Waiting
from cmqd_types.messages import Headers, ReceivedMessage


class Send(msgspec.Struct, frozen=True):
    """A request of ``Broker.send_all``."""

    bodies: list[bytes]
    headers: list[Headers | None] | None = None
    delay_ms: int | list[int] | None = None
    session: int = 0
    sequence: int = 0
    dedup_ids: list[str | None] | None = None
    after: str | None = None
    at_ms: int | None = None
    all_or_none: bool = False


class Half(msgspec.Struct, frozen=True):
    """A request of ``Broker.send_half``."""

    bodies: list[bytes]
    headers: list[Headers | None] | None = None
    first_check_ms: int | None = None
    session: int = 0
    sequence: int = 0
    dedup_ids: list[str | None] | None = None
    all_or_none: bool = False


class Receive(msgspec.Struct, frozen=True):
    """A request of ``Broker.receive_all``."""

    max_messages: int = 1
    wait_ms: int | None = 0
    visibility_timeout_ms: int | None = None
    acknowledge: list[int] | None = None


def send(
    broker: Broker,
    account: str,
    name: str,
    bodies: list[bytes],
    headers: list[Headers | None] | None,
    delay_ms: int | list[int] | None,
    session: int,
    sequence: int,
    now_ms: int,
    dedup_ids: list[str | None] | None = None,
    after: str | None = None,
    at_ms: int | None = None,
    all_or_none: bool = False,
) -> Outcome[Sequence[int]]:
    """Send a batch; a refusal is raised."""
    request = Send(bodies, headers, delay_ms, session, sequence, dedup_ids, after, at_ms, all_or_none)
    return only(broker.send_all(account, name, [request], now_ms))


def send_half(
    broker: Broker,
    account: str,
    name: str,
    bodies: list[bytes],
    headers: list[Headers | None] | None,
    first_check_ms: int | None,
    session: int,
    sequence: int,
    now_ms: int,
    dedup_ids: list[str | None] | None = None,
    all_or_none: bool = False,
) -> Outcome[Sequence[int]]:
    """Send a batch of half messages."""
    request = Half(bodies, headers, first_check_ms, session, sequence, dedup_ids, all_or_none)
    return broker.send_half(account, name, request, now_ms)


def receive(
    broker: Broker,
    account: str,
    name: str,
    waiter_id: int,
    max_messages: int,
    wait_ms: int | None,
    visibility_timeout_ms: int | None,
    now_ms: int,
    acknowledge: list[int] | None = None,
) -> Outcome[list[ReceivedMessage] | Waiting]:
    """Receive; a refusal is raised."""
    request = Receive(max_messages, wait_ms, visibility_timeout_ms, acknowledge)
    return only(broker.receive_all(account, name, [request], [waiter_id], now_ms))


def delete(broker: Broker, account: str, name: str, handles: list[int], now_ms: int) -> Outcome[HandlesDone]:
    """Delete; a refusal is raised."""
    return only(broker.delete_all(account, name, [handles], now_ms))


def only(outcome: Outcome[Any]) -> Outcome[Any]:
    """The outcome with the reply of its only request; a refusal is raised."""
    (reply,) = outcome.reply
    if isinstance(reply, DomainError):
        raise reply
    return msgspec.structs.replace(outcome, reply=reply)
