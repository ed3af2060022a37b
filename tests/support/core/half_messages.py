"""A broker with a transactional queue, and decisions about its half messages."""

from collections.abc import Sequence
from typing import Any

from cmqd.core.domain_errors import (
    DomainError,
)
from cmqd.core.limits import Limits
from cmqd.core.outcome import Waiting
from cmqd_types.messages import HalfMessage
from support.core.builders import ACCOUNT, Rig
from support.core.invariants import check_broker


def transactional(limits: Limits | None = None, **attributes: int) -> Rig:
    rig = Rig(limits)
    rig.create("q", **{"transactional": True} | attributes)
    return rig


def decide(rig: Rig, *decisions: tuple[int, int]) -> list[tuple[int, DomainError]]:
    """The refused decisions, with their errors; decisions are (message id, decision), page-ins included."""
    waiter_id, reply = ask(rig, *decisions)
    if isinstance(reply, Waiting):
        rig.answer_reads(until=lambda: bool(rig.replies(waiter_id)))
        (reply,) = rig.replies(waiter_id)
    check_broker(rig.broker)
    return list(reply.failures)


def ask(rig: Rig, *decisions: tuple[int, int]) -> tuple[int, Any]:
    """The waiter and the reply (a ``Waiting`` if bodies must be read)."""
    waiter_id = rig._new_waiter()  # pyright: ignore[reportPrivateUsage]
    ids, what = [one for one, _ in decisions], [one for _, one in decisions]
    reply = rig.done(rig.broker.end_transactions(ACCOUNT, "q", waiter_id, ids, what, rig.now_ms))
    check_broker(rig.broker)
    return waiter_id, reply


def kinds(failures: Sequence[tuple[int, DomainError]]) -> list[tuple[int, type[DomainError]]]:
    return [(message_id, type(error)) for message_id, error in failures]


def listed(rig: Rig, start: int = 0, limit: int = 100) -> list[HalfMessage]:
    return rig.broker.list_half_messages(ACCOUNT, "q", start, limit).messages


def checkers(rig: Rig, there: bool = True) -> None:
    rig.broker.set_has_checkers(ACCOUNT, "q", there)


def asked(rig: Rig) -> list[tuple[bytes, int]]:
    """(body, attempt) of the checks sent since this was last called."""
    sent = [(check.message.body, check.attempt) for check in rig.checks]
    rig.checks.clear()
    return sent
