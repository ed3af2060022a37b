"""The clients that records name: of every operation on messages, alone and joined."""

from collections.abc import Sequence
from typing import Any

import pytest

from cmqd.core.limits import Limits
from cmqd.core.operations.transactions.half_messages import COMMIT, ROLL_BACK, UNKNOWN
from cmqd.core.outcome import PublishRequest
from cmqd_segment.actor_runs import actor_numbers
from cmqd_segment.published import copies_of
from cmqd_segment.records import (
    ActorSeen,
    AnyRecord,
    LeasesEnded,
    MessagesDeadLettered,
    MessagesDeleted,
    MessagesMoved,
    MessagesPublished,
    MessagesReceived,
    MessagesReleased,
    MessagesSent,
    NumbersReserved,
    TransactionsEnded,
    TransactionsUndecided,
    VisibilityChanged,
    unpack_runs,
)
from cmqd_types.actors import NO_ACTOR, Actor
from support.core.alone import Half, Receive, Send
from support.core.builders import ACCOUNT, Rig

ANN = Actor(ACCOUNT, "AKIDann", "ann", "10.0.0.1")
BEN = Actor(ACCOUNT, "AKIDben", "ben", "10.0.0.2")
CLIO = Actor(ACCOUNT, "AKIDann", "clio", "10.0.0.3", "10.0.0.1")


def names(rig: Rig, kind: type[AnyRecord], place: int = -1) -> list[str]:
    """Names of the clients of each message of a record, by its row and all rows before it; empty = not known."""
    known = {0: ""}
    record: Any = None
    for _, each in rig.log.records():
        if isinstance(each, ActorSeen):
            assert each.number not in known, "a number was given twice"
            known[each.number] = each.actor.name
        elif isinstance(each, kind):
            # In front of the record, or a reader would not know the name.
            assert all(number in known for number in each.actors[1::2] or each.actors), each  # pyright: ignore
    found = [each for _, each in rig.log.records() if isinstance(each, kind)]
    record = found[place]
    count = len(record.sizes) if hasattr(record, "sizes") else len(unpack_runs(_numbers(record)))
    return [known[number] for number in actor_numbers(record.actors, count)]


def _numbers(record: Any) -> list[int]:
    return record.positions if hasattr(record, "positions") else record.leases


def send(rig: Rig, *bodies: bytes, actor: Actor = ANN) -> None:
    rig.done(rig.broker.send_all(ACCOUNT, "q", [Send(list(bodies))], rig.now_ms, [actor]))


def receive(rig: Rig, actor: Actor = ANN, most: int = 16) -> list[int]:
    outcome = rig.broker.receive_all(ACCOUNT, "q", [Receive(most)], [1], rig.now_ms, actors=[actor])
    (messages,) = rig.done(outcome)
    return [message.receipt_handle for message in messages]  # pyright: ignore


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.create()
    return rig


# ---------------------------------------------------------------------- sends


def test_a_lone_send_names_its_client_in_three_bytes(rig: Rig) -> None:
    send(rig, b"1")

    *_, seen, sent = [record for _, record in rig.log.records()]
    assert seen == ActorSeen(1, ANN)
    assert isinstance(sent, MessagesSent)
    assert sent.actors == [1]


def test_sends_of_several_clients_share_a_record(rig: Rig) -> None:
    requests = [Send([b"1"]), Send([b"2"]), Send([b"3"])]
    rig.done(rig.broker.send_all(ACCOUNT, "q", requests, rig.now_ms, [ANN, BEN, ANN]))

    assert names(rig, MessagesSent) == ["ann", "ben", "ann"]


def test_a_send_of_several_messages_has_them_all(rig: Rig) -> None:
    requests = [Send([b"1", b"2"]), Send([b"3"])]
    rig.done(rig.broker.send_all(ACCOUNT, "q", requests, rig.now_ms, [ANN, BEN]))

    assert names(rig, MessagesSent) == ["ann", "ann", "ben"]


def test_a_repeated_send_and_a_refused_send_have_no_message_in_the_record(rig: Rig) -> None:
    requests = [
        Send([b"1"], session=7, sequence=1),
        Send([b"1"], session=7, sequence=1),
        Send([b""]),
        Send([b"2", b"3"], session=8, sequence=1),
    ]
    rig.done(rig.broker.send_all(ACCOUNT, "q", requests, rig.now_ms, [ANN, BEN, CLIO, BEN]))

    assert names(rig, MessagesSent) == ["ann", "ben", "ben"]
    assert CLIO not in {record.actor for _, record in rig.log.records() if isinstance(record, ActorSeen)}


def test_a_send_with_headers_stands_alone_between_plain_sends(rig: Rig) -> None:
    requests = [Send([b"1"]), Send([b"2"], headers=[{"a": "b"}]), Send([b"3"])]
    rig.done(rig.broker.send_all(ACCOUNT, "q", requests, rig.now_ms, [ANN, BEN, CLIO]))

    assert [names(rig, MessagesSent, place) for place in range(3)] == [["ann"], ["ben"], ["clio"]]


def test_a_refused_client_leaves_no_record(rig: Rig) -> None:
    before = rig.log.last_lsn
    rig.done(rig.broker.send_all(ACCOUNT, "q", [Send([b""])], rig.now_ms, [ANN]))
    receive(rig, BEN)

    assert rig.log.last_lsn == before


def test_without_clients_records_name_none(rig: Rig) -> None:
    rig.send(b"1")
    rig.delete(*[message.receipt_handle for message in rig.receive()])

    for kind in (MessagesSent, MessagesReceived, MessagesDeleted):
        assert names(rig, kind) == [""]
    assert not any(isinstance(record, ActorSeen) for _, record in rig.log.records())


# ---------------------------------------------------------------------- receives


def test_receives_of_several_clients_share_a_record(rig: Rig) -> None:
    send(rig, *[b"x"] * 5)
    requests = [Receive(2), Receive(2), Receive(16)]
    rig.done(rig.broker.receive_all(ACCOUNT, "q", requests, [1, 2, 3], rig.now_ms, actors=[ANN, BEN, CLIO]))

    assert names(rig, MessagesReceived) == ["ann", "ann", "ben", "ben", "clio"]


def test_a_send_and_the_receives_that_waited_name_all_clients_in_one_row(rig: Rig) -> None:
    requests = [Receive(1, wait_ms=1000), Receive(1, wait_ms=1000)]
    rig.done(rig.broker.receive_all(ACCOUNT, "q", requests, [1, 2], rig.now_ms, actors=[ANN, BEN]))
    send(rig, b"1", b"2", actor=CLIO)

    assert names(rig, MessagesSent) == ["clio", "clio"]
    assert names(rig, MessagesReceived) == ["ann", "ben"]
    assert sum(isinstance(record, ActorSeen) for record in rig.log.rows[-1]) == 3


def test_a_receive_that_waits_for_a_page_is_named_when_the_page_comes(rig: Rig) -> None:
    send(rig, b"1")
    rig = rig.crash()
    rig.done(rig.broker.receive_all(ACCOUNT, "q", [Receive(1)], [1], rig.now_ms, actors=[BEN]))
    rig.answer_reads()

    assert names(rig, MessagesReceived) == ["ben"]


# ---------------------------------------------------------------------- ends of leases


def test_deletes_of_several_clients_are_in_the_order_of_the_positions(rig: Rig) -> None:
    send(rig, *[b"x"] * 4)
    first, second, third, fourth = receive(rig)
    requests = [[fourth, second], [third], [first]]
    rig.done(rig.broker.delete_all(ACCOUNT, "q", requests, rig.now_ms, [ANN, BEN, CLIO]))

    assert names(rig, MessagesDeleted) == ["clio", "ann", "ben", "ann"]


def test_a_delete_that_came_too_late_is_not_named(rig: Rig) -> None:
    send(rig, b"1", b"2")
    first, second = receive(rig)
    rig.done(rig.broker.delete_all(ACCOUNT, "q", [[first], [first, second]], rig.now_ms, [ANN, BEN]))

    assert names(rig, MessagesDeleted) == ["ann", "ben"]


def test_deletes_inside_receives_name_the_client_of_each_request(rig: Rig) -> None:
    send(rig, *[b"x"] * 4)
    first, second = receive(rig, most=2)
    requests = [Receive(1, acknowledge=[second]), Receive(1, acknowledge=[7]), Receive(1, acknowledge=[first])]
    rig.done(rig.broker.receive_all(ACCOUNT, "q", requests, [1, 2, 3], rig.now_ms, actors=[ANN, BEN, CLIO]))

    assert names(rig, MessagesDeleted) == ["clio", "ann"]
    assert names(rig, MessagesReceived) == ["ann", "ben"]


def test_changes_and_ends_of_visibility_name_their_client(rig: Rig) -> None:
    send(rig, b"1", b"2")
    handles = receive(rig)
    rig.done(rig.broker.change_visibility(ACCOUNT, "q", handles, 5000, rig.now_ms, actor=BEN))
    assert names(rig, VisibilityChanged) == ["ben", "ben"]

    rig.done(rig.broker.release(ACCOUNT, "q", handles[:1], False, rig.now_ms, actor=CLIO))
    rig.done(rig.broker.change_visibility(ACCOUNT, "q", handles[1:], 0, rig.now_ms, actor=ANN))
    assert [names(rig, MessagesReleased, place) for place in (0, 1)] == [["clio"], ["ann"]]


def test_a_release_by_the_broker_names_no_client(rig: Rig) -> None:
    send(rig, b"1")
    rig.done(rig.broker.release(ACCOUNT, "q", receive(rig), False, rig.now_ms))

    assert names(rig, MessagesReleased) == [""]


def test_rejections_of_several_clients_share_a_page(rig: Rig) -> None:
    rig.create("dlq")
    rig.set(dead_letter_queue="dlq", dead_letter_max_receives=5)
    send(rig, b"1", b"2", b"3")
    handles = receive(rig)
    # The first request has a page of its own; the others arrive while it is read.
    for place, actor in enumerate((ANN, BEN, CLIO)):
        rig.done(
            rig.broker.dead_letter(ACCOUNT, "q", 10 + place, [handles[2 - place]], ["no"], rig.now_ms, actor=actor)
        )
    rig.answer_reads()

    assert [names(rig, MessagesDeadLettered, place) for place in (0, 1)] == [["ann"], ["clio", "ben"]]
    assert names(rig, MessagesSent) == ["", ""]


def test_ends_of_time_and_moves_of_the_broker_name_no_client(rig: Rig) -> None:
    for kind in (LeasesEnded, MessagesMoved):
        assert "actors" not in kind.__struct_fields__


# ---------------------------------------------------------------------- transactions


def test_half_messages_and_decisions_name_their_clients() -> None:
    rig = Rig()
    rig.create(transactional=True)
    sent = rig.broker.send_half(ACCOUNT, "q", Half([b"1", b"2", b"3"]), rig.now_ms, actor=ANN)
    ids = list(rig.done(sent))
    assert names(rig, MessagesSent) == ["ann"] * 3

    decisions = [UNKNOWN, ROLL_BACK, COMMIT]
    rig.done(rig.broker.end_transactions(ACCOUNT, "q", 1, ids, decisions, rig.now_ms, actor=BEN))
    rig.answer_reads()

    assert names(rig, TransactionsUndecided) == ["ben"]
    assert [names(rig, TransactionsEnded, place) for place in (0, 1)] == [["ben"], ["ben"]]
    assert names(rig, MessagesSent) == ["ben"]


def test_commits_of_several_clients_share_a_page() -> None:
    rig = Rig()
    rig.create(transactional=True)
    ids = list(rig.done(rig.broker.send_half(ACCOUNT, "q", Half([b"1", b"2", b"3"]), rig.now_ms, actor=ANN)))
    rig = rig.crash()
    for place, actor in enumerate((ANN, BEN, CLIO)):
        message_id = ids[2 - place]
        rig.done(rig.broker.end_transactions(ACCOUNT, "q", place, [message_id], [COMMIT], rig.now_ms, actor=actor))
    rig.answer_reads()

    ended = [record for _, record in rig.log.records() if isinstance(record, TransactionsEnded)]
    by_position = {
        position: name
        for place, record in enumerate(ended)
        for position, name in zip(unpack_runs(record.positions), names(rig, TransactionsEnded, place), strict=True)
    }
    assert by_position == {0: "clio", 1: "ben", 2: "ann"}


# ---------------------------------------------------------------------- topics


def publish(rig: Rig, requests: Sequence[PublishRequest], actors: Sequence[Actor]) -> None:
    rig.done(rig.broker.publish(ACCOUNT, "news", requests, rig.now_ms, actors))


def labelled(*bodies: bytes, tag: str = "a", session: int = 0) -> PublishRequest:
    return PublishRequest(list(bodies), None, [[tag]], session=session, sequence=1 if session else 0)


def test_publishes_of_several_clients_share_a_record() -> None:
    rig = Rig()
    rig.create_topic()
    rig.subscribe("q", filter_tags=["a"])
    # The second request matches no subscription, the fourth repeats the first, and the fifth is refused.
    requests = [
        labelled(b"1", b"2", session=7),
        labelled(b"3", tag="b"),
        labelled(b"4"),
        labelled(b"1", b"2", session=7),
        labelled(b""),
        labelled(b"5"),
    ]
    publish(rig, requests, [ANN, BEN, CLIO, BEN, BEN, ANN])

    assert names(rig, MessagesPublished) == ["ann", "ann", "clio", "ann"]
    (record,) = [record for _, record in rig.log.records() if isinstance(record, MessagesPublished)]
    assert [count for _, _, count in copies_of(record)] == [4]
    assert BEN not in {record.actor for _, record in rig.log.records() if isinstance(record, ActorSeen)}


def test_a_publish_that_is_refused_for_its_promises_leaves_the_messages_behind_it_with_their_clients() -> None:
    rig = Rig(Limits(max_sessions=1))
    rig.create_topic()
    rig.subscribe("q")
    publish(rig, [labelled(b"1", session=7), labelled(b"2", b"3", session=8), labelled(b"4")], [ANN, BEN, CLIO])

    assert names(rig, MessagesPublished) == ["ann", "clio"]


def test_late_copies_and_messages_of_schedules_name_no_client() -> None:
    rig = Rig()
    rig.create_topic()
    rig.subscribe("q")
    rig.force("q", max_backlog=1)
    publish(rig, [labelled(b"1"), labelled(b"2")], [ANN, ANN])
    publish(rig, [labelled(b"3")], [BEN])
    handles = receive(rig)
    rig.done(rig.broker.delete_all(ACCOUNT, "q", [handles], rig.now_ms, [BEN]))
    rig.settle(60_000)

    assert names(rig, MessagesSent) == [""]


# ---------------------------------------------------------------------- restarts


def test_a_start_from_the_log_or_a_checkpoint_goes_on_with_the_numbers(rig: Rig) -> None:
    send(rig, b"1")
    parts = rig.checkpoint()
    send(rig, b"2", actor=BEN)
    for restarted in (rig.crash(), rig.crash_after(parts)):
        send(restarted, b"3", actor=BEN)
        send(restarted, b"4", actor=CLIO)

        assert names(restarted, MessagesSent) == ["clio"]
        seen = [record for _, record in restarted.log.records() if isinstance(record, ActorSeen)]
        assert [(record.number, record.actor) for record in seen] == [(1, ANN), (2, BEN), (3, CLIO)]


def test_numbers_leap_after_a_loss_and_stay_beyond_it(rig: Rig) -> None:
    send(rig, b"1")
    broker = rig.crash().broker
    records = broker.recovered(lost=True)
    leap = next(record for record in records if isinstance(record, NumbersReserved))
    assert leap.actor_until > 1_000_000

    rig.log.append(records)
    again = rig.crash()
    send(again, b"2", actor=BEN)
    assert names(again, MessagesSent) == ["ben"]
    assert again.log.rows[-1][-2] == ActorSeen(leap.actor_until, BEN)


def test_a_client_that_is_not_known_leaves_no_actor(rig: Rig) -> None:
    send(rig, b"1", actor=NO_ACTOR)

    assert names(rig, MessagesSent) == [""]
