"""The life of a message: events in order, over queues, and the honesty of a log with missing rows."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from cmqd.core.outcome import Outcome
from cmqd_reading import life as life_module
from cmqd_reading.births import birth_in, received_under
from cmqd_reading.life import REPLAY_MARK, Life
from cmqd_reading.life_events import MAX_EVENTS
from cmqd_reading.life_texts import life_text, place_text
from cmqd_reading.message_search import SentMessage, sent_with
from cmqd_segment.records import (
    ActorSeen,
    AnyRecord,
    LeasesEnded,
    MessagesDeleted,
    MessagesReceived,
    MessagesReleased,
    MessagesSent,
    VisibilityChanged,
)
from cmqd_segment.rows import encode_records
from cmqd_types.actors import Actor
from cmqd_types.histories import MessageHistory
from support.core.builders import ACCOUNT, Rig

URL = "http://127.0.0.1/hook"


class TimedRig(Rig):
    """A broker whose rows have the times of their appends."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[int] = []

    def done(self, outcome: Outcome[Any]) -> Any:
        reply = super().done(outcome)
        self.times += [self.now_ms] * (self.log.last_lsn - len(self.times))
        return reply


def life(rig: TimedRig, *path: int, missing: range = range(0)) -> MessageHistory:
    """The history of a message from the rows of a broker, without the missing rows."""
    found = Life(path)
    for lsn, (time_ms, records) in enumerate(zip(rig.times, rig.log.rows, strict=True), 1):
        if lsn in missing:
            found.miss(lsn, lsn)
        else:
            found.feed(lsn, time_ms, records)
    return found.result(rig.log.last_lsn, rig.now_ms)


def kinds(history: MessageHistory) -> list[tuple[str, str]]:
    return [(event.queue, event.kind) for event in history.events]


def texts(history: MessageHistory) -> list[str]:
    return [life_text(event) for event in history.events]


def test_a_message_is_followed_over_queues() -> None:
    rig = TimedRig()
    rig.create("orders-dead")
    rig.create("orders", dead_letter_queue="orders-dead", dead_letter_max_receives=5)
    (first,) = rig.send(b"0123456789", name="orders")
    rig.receive("orders", visibility_timeout_ms=1000)
    rig.settle(2000)
    (handle,) = rig.handles("orders", visibility_timeout_ms=30_000)
    rig.hide(handle, name="orders", timeout_ms=5000)
    rig.release(handle, name="orders")
    (handle,) = rig.handles("orders")
    rig.reject(handle, name="orders", reasons=["no such customer"])
    rig.redrive("orders-dead")
    rig.settle()
    rig.now_ms += 5583
    rig.delete(*rig.handles("orders"), name="orders")

    history = life(rig, first)

    assert kinds(history) == [
        ("orders", "sent"),
        ("orders", "received"),
        ("orders", "lease_ended"),
        ("orders", "received"),
        ("orders", "lease_changed"),
        ("orders", "released"),
        ("orders", "received"),
        ("orders-dead", "dead_lettered"),
        ("orders", "redriven"),
        ("orders", "received"),
        ("orders", "deleted"),
    ]
    assert texts(history) == [
        "sent, 10 bytes",
        "received, lease until +1 s",
        "lease ended without an answer",
        "received, lease until +30 s, receive 2",
        "lease changed, until +5 s",
        "given back",
        "received, lease until +30 s, receive 3",
        f'dead letter: rejected "no such customer", after 3 receives; now Msg-{history.events[7].message_id:016x}',
        f"redriven from orders-dead; now Msg-{history.events[8].message_id:016x}",
        "received, lease until +30 s",
        "deleted, 7.583 s after its send",
    ]
    # Asked by the last id, the path of ids is found by the births.
    last = history.events[-1].message_id
    dead = history.events[7].message_id
    births = [birth for records in rig.log.rows for each in (last, dead) if (birth := birth_in(records, each))]
    assert [birth.parent_id for birth in births] == [first, dead]
    assert life(rig, first, dead, last).events == history.events


def test_a_half_message_keeps_its_id_through_checks_and_commit() -> None:
    rig = TimedRig()
    rig.create("q", transactional=True, first_check_ms=1000)
    (first, second) = rig.send_half(b"a", b"b")
    rig.broker.set_has_checkers(ACCOUNT, "q", True)
    rig.settle(1500)
    rig.end(3, first)
    rig.end(1, first)
    rig.end(2, second)

    assert texts(life(rig, first)) == [
        "sent as a half message, 1 byte; first check +1 s",
        "producer asked for its decision, next check +2 s",
        "producer answered: not decided yet",
        "committed",
    ]
    assert [place.state for place in life(rig, first).places] == ["active"]
    assert texts(life(rig, second))[-1] == "rolled back, 1.5 s after its send"


def test_copies_that_end_one_by_one_make_few_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern for 500 queues takes some milliseconds to make, and each row can end a copy."""
    rig = TimedRig()
    rig.create_topic("news")
    queues = [f"queue-{number}" for number in range(40)]
    for queue in queues:
        rig.subscribe(queue)
    (message_id,) = rig.publish(b"p").message_ids
    for queue in queues:
        rig.done(rig.broker.clear_queue(ACCOUNT, queue, rig.now_ms))
    made: list[bytes] = []

    def compiled(pattern: bytes, flags: int) -> re.Pattern[bytes]:
        made.append(pattern)
        return re.compile(pattern, flags)

    monkeypatch.setattr(life_module, "re", SimpleNamespace(compile=compiled, escape=re.escape, DOTALL=re.DOTALL))
    found, fed = Life([message_id]), 0
    for lsn, (time_ms, records) in enumerate(zip(rig.times, rig.log.rows, strict=True), 1):
        if found.may_name(encode_records(records)):
            found.feed(lsn, time_ms, records)
            fed += 1

    assert found.is_over
    assert found.result(rig.log.last_lsn, rig.now_ms).events == life(rig, message_id).events
    assert fed >= 40
    assert 0 < len(made) <= 7


def test_a_publish_is_followed_to_its_copies_and_deliveries() -> None:
    rig = TimedRig()
    rig.create_topic()
    rig.subscribe("mails")
    rig.subscribe("audit")
    rig.subscribe(URL, name="web")
    published = rig.publish(b"p", b"q")
    rig.settle()
    (mine, *_) = [push for push in rig.pushes if push.message.position == 0]
    rig.end_push(mine, "it is not there")
    rig.settle(100_000)
    for push in list(rig.pushes):
        rig.end_push(push)
        rig.settle()
    message_id = published.message_ids[0]

    whole = life(rig, message_id)

    copies = [event.message_id for event in whole.events if event.kind == "copied"]
    assert kinds(whole)[:3] == [("news", "published"), ("mails", "copied"), ("audit", "copied")]
    assert texts(whole)[0] == "published, 1 byte, 2 copies in queues"
    assert texts(whole)[3].startswith("attempt 1 for subscription web failed, next +")
    assert texts(whole)[3].endswith(": it is not there")
    assert kinds(whole)[-1] == ("news", "delivered")
    # Asked for a copy, the other copies and the deliveries are left out.
    assert kinds(life(rig, message_id, copies[1])) == [("news", "published"), ("audit", "copied")]


def test_a_late_copy_is_told_once() -> None:
    rig = TimedRig()
    rig.create_topic()
    rig.subscribe("mails")
    rig.force("mails", max_backlog=1)
    published = rig.publish(b"p", b"q")
    rig.settle()
    rig.force("mails", max_backlog=1000)
    rig.settle(100_000)

    first, late = [life(rig, each) for each in published.message_ids]

    assert [kind for _, kind in kinds(first)] == ["published", "copied"]
    assert [kind for _, kind in kinds(late)] == ["published", "delivery_failed", "copied"]
    assert late.events[2].time_ms > late.events[0].time_ms


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("clear", "cleared with the queue, 1 s after its send"),
        ("delete", "gone with its queue, which was deleted, 1 s after its send"),
        ("expire", "expired: the retention ended, 1 min 5 s after its send"),
    ],
)
def test_a_record_of_all_messages_ends_a_life(end: str, text: str) -> None:
    rig = TimedRig()
    rig.create("q", retention_ms=60_000)
    (message_id,) = rig.send(b"a")
    rig.now_ms += 1000
    if end == "clear":
        rig.clear()
    elif end == "delete":
        rig.delete_queue()
    else:
        rig.settle(64_000)

    assert texts(life(rig, message_id)) == ["sent, 1 byte", text]


def test_a_rewind_brings_back_what_it_could_bring_back() -> None:
    rig = TimedRig()
    rig.create("q", rewind_ms=60_000)
    (old,) = rig.send(b"a")
    rig.delete(*rig.handles())
    rig.settle(100_000)
    start_ms = rig.now_ms
    (young,) = rig.send(b"b")
    rig.delete(*rig.handles())
    rig.rewind(start_ms - 1000)

    assert [kind for _, kind in kinds(life(rig, old))] == ["sent", "received", "deleted"]
    history = life(rig, young)
    assert [kind for _, kind in kinds(history)] == ["sent", "received", "deleted", "rewound"]
    assert (history.places[0].state, history.places[0].is_certain) == ("active", True)


def test_a_message_of_a_window_that_was_opened_later_does_not_come_back() -> None:
    rig = TimedRig()
    rig.create("q")
    (message_id,) = rig.send(b"a")
    rig.delete(*rig.handles())
    rig.set("q", rewind_ms=60_000)
    rig.send(b"b")
    rig.delete(*rig.handles())
    rig.rewind(rig.now_ms - 1000)

    assert [kind for _, kind in kinds(life(rig, message_id))] == ["sent", "received", "deleted"]


def test_delays_schedules_and_replays_are_told_with_the_send() -> None:
    rig = TimedRig()
    rig.create("q")
    (delayed,) = rig.send(b"a", delay_ms=5000)
    (replayed,) = rig.send(b"a", headers=[{REPLAY_MARK: "q/Msg-0000000000000001/2026"}])
    rig.settle(6000)

    assert texts(life(rig, delayed)) == ["sent, 1 byte, delayed until +5 s", "delay ended"]
    assert texts(life(rig, replayed)) == ["sent, 1 byte, replayed from q/Msg-0000000000000001/2026"]


def test_missing_rows_stand_where_events_follow_and_at_an_open_end() -> None:
    rig = TimedRig()
    rig.create("q")
    (message_id,) = rig.send(b"a")
    (handle,) = rig.handles()
    rig.release(handle)
    (handle,) = rig.handles()
    rows = rig.log.last_lsn
    rig.delete(handle)

    history = life(rig, message_id, missing=range(3, 5))

    assert [kind for _, kind in kinds(history)] == ["sent", "rows_missing", "received", "deleted"]
    assert (
        texts(history)[1]
        == "rows 3 to 4 of the log, after this time, are reclaimed or lost; events in them are not known"
    )
    # The number of the receive is not known: receives may be in the missing rows.
    assert history.events[2].receive_count == 0
    open_end = life(rig, message_id, missing=range(rows, rows + 2))
    assert kinds(open_end)[-1] == ("", "rows_missing")
    assert [place.is_certain for place in open_end.places] == [False]
    assert place_text(open_end.places[0]) == "waits for a consumer, unless missing rows changed that"


def test_a_floor_behind_missing_rows_is_no_certain_end() -> None:
    rig = TimedRig()
    rig.create("q", retention_ms=60_000)
    (message_id,) = rig.send(b"a")
    rig.delete(*rig.handles())
    rig.send(b"b")
    rig.settle(100_000)

    history = life(rig, message_id, missing=range(3, 5))

    assert (history.events[-1].kind, history.events[-1].is_certain) == ("expired", False)
    assert texts(history)[-1].endswith("or gone before in missing rows")


def test_a_dead_letter_tells_of_a_send_whose_row_is_gone() -> None:
    rig = TimedRig()
    rig.create("dead")
    rig.create("q", dead_letter_queue="dead", dead_letter_max_receives=5)
    (first,) = rig.send(b"a")
    store = rig.log.last_lsn
    sent_ms = rig.now_ms
    (handle,) = rig.handles()
    rig.now_ms += 1000
    rig.reject(handle, reasons=["no"])

    history = life(rig, first, missing=range(store, store + 1))

    assert [(event.kind, event.lsn > 0) for event in history.events] == [("sent", False), ("dead_lettered", True)]
    assert (history.events[0].time_ms, history.events[0].queue) == (sent_ms, "q")
    assert texts(history)[0] == ("sent; the row is not readable any more, and the receives in this queue are not known")


def test_a_long_life_is_cut_in_the_middle() -> None:
    rig = TimedRig()
    rig.create("q")
    (message_id,) = rig.send(b"a")
    found = Life([message_id])
    for lsn, records in enumerate(rig.log.rows, 1):
        found.feed(lsn, rig.now_ms, records)
    for number in range(MAX_EVENTS):
        received = MessagesReceived(rig.queue().queue_id, [0, 1], number, number, number + 1)
        found.feed(rig.log.last_lsn + 1 + number, number, [received])

    history = found.result(1, 1)

    assert (len(history.events), history.left_out) == (MAX_EVENTS, 1)
    assert history.events[0].kind == "sent"
    assert history.events[-1].receive_count == MAX_EVENTS


def test_messages_are_found_by_header_dedup_id_and_lease() -> None:
    records = [
        MessagesSent(3, 7, 100, 5, [1, 1], headers=[None, {"order": "4711"}], dedup_ids=["a", None]),
        MessagesReceived(3, [7, 2], 40, 6, 60),
    ]

    assert sent_with(9, records, header=("order", "4711")) == [SentMessage(3, 101, 5, 9, 1)]
    assert sent_with(9, records, dedup_id="a") == [SentMessage(3, 100, 5, 9, 0)]
    assert received_under(records, 41) == (3, 8)
    assert received_under(records, 42) is None


def test_clients_are_told_where_the_rows_name_them() -> None:
    worker = Actor("admin", "AKIDabcdefgh4e1", "worker-2", "10.0.0.2")
    runs = [1, 7, 1, 8]
    rows: list[list[AnyRecord]] = [
        [
            ActorSeen(7, Actor("admin", "AKIDabcdefgh17c")),
            ActorSeen(8, worker),
            MessagesSent(3, 0, 100, 10, [1, 1], actors=runs),
        ],
        [MessagesReceived(3, [0, 2], 40, 20, 1020, actors=[8])],
        [LeasesEnded(3, [40, 1])],
        [MessagesReceived(3, [0, 1], 42, 3000, 4000, actors=[9])],
        [VisibilityChanged(3, [42, 1], 9000, actors=[7])],
        [MessagesReleased(3, [42, 1], True, actors=[7])],
        [MessagesReceived(3, [0, 1], 43, 5000, 9000)],
        [MessagesDeleted(3, [0, 2], [41, 1, 1, 1], 6000, actors=runs)],
    ]
    seen: list[int] = []

    def find(number: int) -> Actor | None:
        seen.append(number)
        return Actor("admin", "AKID", f"client {number}")

    found = [Life([each], find_actor=find) for each in (100, 101)]
    for lsn, records in enumerate(rows, 1):
        for one in found:
            one.feed(lsn, 1000 * lsn, records)
    first, second = (one.result(len(rows), 9000) for one in found)

    assert texts(first) == [
        "sent, 1 byte, by key AKID...7c",
        'received by "worker-2" (AKID...e1), lease until +1 s',
        'lease ended without an answer of "worker-2" (AKID...e1)',
        'received by "client 9" (AKID), lease until +1 s, receive 2',
        "lease changed by key AKID...7c, until +4 s",
        "given back by key AKID...7c",
        "received, lease until +4 s, receive 3",
        "deleted by key AKID...7c, 5.99 s after its send",
    ]
    assert [event.actor for event in second.events] == [worker] * 3
    assert seen == [9]
