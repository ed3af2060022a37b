"""Messages that their consumer rejected, and a crash at each step: decided, read, written, answered."""

from collections.abc import Callable

from cmqd.core.domain_errors import ReceiptHandleInvalid
from cmqd.core.limits import Limits
from cmqd.core.outcome import WAITING, DeadLettersDone
from cmqd_segment.checkpoint import AnyPart
from support.cases import each_case
from support.core.builders import Rig, counts
from support.core.dead_letters import VISIBLE_MS, by_receives
from support.core.facts import facts
from support.core.invariants import check_broker

BODIES = [b"1", b"2", b"3"]
REASONS = ["first", "second", "third"]
STEPS = (
    # (rows of the request on the disk, messages that these rows moved)
    ("decided", 0, 0),
    ("first page read", 0, 0),
    ("first row written", 1, 2),
    ("second page read", 1, 2),
    ("second row written", 2, 3),
    ("answered", 2, 3),
)
"""A request for three messages, with pages of two. A row that was decided and not written is gone with the crash."""

Restart = Callable[[Rig, int, list[AnyPart]], Rig]


def from_log(rig: Rig, rows: int, _checkpoint: list[AnyPart]) -> Rig:
    return rig.crash_after_row(rows)


def from_checkpoint(rig: Rig, rows: int, checkpoint: list[AnyPart]) -> Rig:
    return rig.crash_after(checkpoint, rows)


def run_to(step: str) -> tuple[Rig, list[int], int, list[AnyPart]]:
    """The rig at a step of the request, the handles, the rows before the request, and a checkpoint taken on the way."""
    rig = by_receives(10, Limits(page_messages=2))
    rig.send(*BODIES)
    handles = [*rig.handles(most=2, visibility_timeout_ms=VISIBLE_MS), *rig.handles(visibility_timeout_ms=VISIBLE_MS)]
    before = len(rig.log.rows)
    waiter_id, reply = rig.reject_later(*handles, reasons=REASONS)
    assert reply is WAITING
    checkpoint = rig.checkpoint()
    pages = {"decided": 0, "first page read": 1, "first row written": 1}.get(step, 2)
    for _ in range(pages):
        rig.answer(rig.reads[0])
    if step == "answered":
        assert rig.replies(waiter_id) == [DeadLettersDone([], 3)]
    return rig, handles, before, checkpoint


@each_case("restart", [from_log, from_checkpoint])
@each_case(("step", "rows", "moved"), STEPS, ids=[step for step, _, _ in STEPS])
def test_after_a_crash_each_message_is_in_exactly_one_of_the_queues(
    step: str, rows: int, moved: int, restart: Restart
) -> None:
    rig, handles, before, checkpoint = run_to(step)

    again = restart(rig, before + rows, checkpoint)

    assert again.counts() == counts(in_flight=3 - moved)
    assert again.counts("dlq") == counts(active=moved)
    # A consumer that had no answer asks again: moved messages count as settled, the others move now.
    refused = again.reject(*handles, reasons=REASONS)
    assert {handle: type(why) for handle, why in refused.items()} == dict.fromkeys(
        handles[:moved], ReceiptHandleInvalid
    )
    check_broker(again.broker)
    dead = [*again.receive("dlq"), *again.receive("dlq")]
    assert [(one.body, one.origin.rejection) for one in dead if one.origin] == list(zip(BODIES, REASONS, strict=True))
    assert again.counts() == counts()
    assert facts(again.crash().broker) == facts(again.broker)


@each_case("restart", [from_log, from_checkpoint])
@each_case(("step", "rows", "moved"), STEPS, ids=[step for step, _, _ in STEPS])
def test_after_a_crash_the_lease_of_a_message_that_was_not_moved_ends_in_its_time(
    step: str, rows: int, moved: int, restart: Restart
) -> None:
    rig, _, before, checkpoint = run_to(step)

    again = restart(rig, before + rows, checkpoint)

    again.settle(VISIBLE_MS - 1)
    assert again.counts() == counts(in_flight=3 - moved)
    again.settle(101)
    assert again.counts() == counts(active=3 - moved)
    assert again.bodies() + again.bodies() == BODIES[moved:]
    check_broker(again.broker)


def test_a_checkpoint_between_the_rows_has_the_first_row() -> None:
    rig, handles, before, _ = run_to("first row written")
    checkpoint = rig.checkpoint()

    again = rig.crash_after(checkpoint, before + 1)

    assert facts(again.broker) == facts(rig.broker)
    assert again.reject(handles[2], reasons=["third"]) == {}
    assert again.counts("dlq") == counts(active=3)


def test_a_message_whose_lease_ended_during_the_downtime_is_active_and_its_handle_is_not_valid() -> None:
    rig, handles, before, _ = run_to("first page read")

    again = rig.crash_after_row(before)
    again.now_ms += 10 * VISIBLE_MS

    assert {type(why) for why in again.reject(*handles).values()} == {ReceiptHandleInvalid}
    again.settle()
    assert again.counts() == counts(active=3)


def test_a_message_that_expired_during_the_downtime_is_gone_from_both() -> None:
    rig, handles, before, _ = run_to("decided")

    again = rig.crash_after_row(before)
    again.settle(rig.queue().index.attributes.retention_ms + VISIBLE_MS)

    assert {type(why) for why in again.reject(*handles).values()} == {ReceiptHandleInvalid}
    assert again.counts() == again.counts("dlq") == counts()
