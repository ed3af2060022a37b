"""Half messages through the server: decisions, and checks pushed to registered connections."""

from typing import Any

import pytest

from cmqd.core.outcome import Check, Outcome
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import LogState
from cmqd.server.clients import transaction_checkers
from cmqd.server.clients.transaction_checkers import TransactionCheckers
from cmqd.server.monitoring.counters import Counters
from cmqd.server.replies.answering import Answering
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_segment.records import StoredMessage
from support.server.server_rig import RigClient, ServerRig, code_of

COMMIT, ROLL_BACK, UNKNOWN = wire.COMMIT, wire.ROLL_BACK, wire.UNKNOWN


async def a_producer(rig: ServerRig, queue: str = "pay") -> RigClient:
    """A client, and the transactional queue."""
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.EnsureQueue, queue, {"transactional": True})
    return client


async def a_checker(rig: ServerRig, queue: str = "pay") -> RigClient:
    client = await rig.client()
    await client.expect(wire.Done, wire.RegisterChecker, queue)
    return client


async def later(rig: ServerRig, ms: int, *clients: RigClient) -> None:
    """Time passes, due work happens, and the clients read."""
    rig.clock.advance(ms)
    for _ in range(4):
        await rig.tick()
        for client in clients:
            await client.settle()


async def test_the_life_of_a_half_message(rig: ServerRig) -> None:
    client = await a_producer(rig)

    committed, rolled_back, undecided = await client.send_half("pay", b"one", b"two", b"three")
    assert await client.receive("pay") == []
    assert (await client.counts("pay"))["half"] == 3
    ended = await client.expect(
        wire.TransactionsEnded,
        wire.EndTransactions,
        "pay",
        [committed, rolled_back, undecided, 77],
        [COMMIT, ROLL_BACK, UNKNOWN, COMMIT],
    )

    assert [(failure.message_id, failure.code) for failure in ended.failures] == [(77, ErrorCode.TRANSACTION_NOT_FOUND)]
    (message,) = await client.receive("pay")
    assert (message.message_id, message.body) == (committed, b"one")
    (left,) = (await client.expect(wire.HalfMessages, wire.ListHalfMessages, "pay")).messages
    assert (left.message_id, left.checks, left.last_answer) == (undecided, 0, "unknown")
    assert left.next_check_ms == left.enqueue_ms + 5_000
    (peeked,) = (await client.expect(wire.MessagesPeeked, wire.PeekMessages, "pay", 16, 0, ["half"])).messages
    assert (peeked.message_id, peeked.state, peeked.body) == (undecided, "half", b"three")
    rig.check()


async def test_the_first_decision_wins(rig: ServerRig) -> None:
    client = await a_producer(rig)
    one, two = await client.send_half("pay", b"one", b"two")
    await client.decide("pay", [one], COMMIT)
    await client.decide("pay", [two], ROLL_BACK)

    assert await client.decide("pay", [one], COMMIT) == []
    assert await client.decide("pay", [two], ROLL_BACK) == []
    assert [failure.code for failure in await client.decide("pay", [one], ROLL_BACK)] == [ErrorCode.ALREADY_COMMITTED]
    assert [failure.code for failure in await client.decide("pay", [two], COMMIT)] == [ErrorCode.ALREADY_ROLLED_BACK]


async def test_a_plain_queue_takes_no_half_messages_and_no_checkers(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "plain", {})

    for make, *arguments in (
        (wire.SendHalfMessages, [b"x"]),
        (wire.EndTransactions, [1], [COMMIT]),
        (wire.RegisterChecker,),
    ):
        refused = await client.expect(wire.Error, make, "plain", *arguments)
        assert (refused.name, refused.retryable, refused.details) == ("not_transactional", False, {"queue": "plain"})
    assert code_of(await client.ask(wire.RegisterChecker, "nowhere")) == "queue_not_found"
    await client.expect(wire.Done, wire.UnregisterChecker, "plain")
    assert len(rig.server.part(TransactionCheckers)) == 0


async def test_checks_are_spread_over_the_registered_checkers(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    one, two = await a_checker(rig), await a_checker(rig)
    ids = await producer.send_half("pay", *(b"%d" % number for number in range(10)))

    await later(rig, 4_900, one, two)
    assert one.checks == two.checks == []
    await later(rig, 200, one, two)

    assert len(one.checks) == len(two.checks) == 5
    asked = {check.message_id: check for check in one.checks + two.checks}
    assert sorted(asked) == ids
    for number, message_id in enumerate(ids):
        check = asked[message_id]
        assert (check.queue, check.body, check.headers, check.attempt) == ("pay", b"%d" % number, None, 1)
        assert check.age_ms == 5_100
    rig.check()


async def test_an_answer_of_any_connection_settles_a_check(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    one = await a_checker(rig)
    first, second = await producer.send_half("pay", b"one", b"two")
    await later(rig, 5_000, one)
    assert one.take_checks() == [(first, 1), (second, 1)]

    await producer.decide("pay", [first], COMMIT)
    await one.decide("pay", [second], UNKNOWN)
    two = await a_checker(rig)
    one.transport.lose()
    await later(rig, 0, two)

    assert two.checks == []
    await later(rig, 10_000, two)
    assert two.take_checks() == [(second, 2)]
    rig.check()


async def test_what_one_left_unanswered_another_is_asked_at_once(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    one = await a_checker(rig)
    (message_id,) = await producer.send_half("pay", b"one")
    await later(rig, 5_000, one)
    assert one.take_checks() == [(message_id, 1)]
    two = await a_checker(rig)

    one.transport.lose()
    await later(rig, 0, two)

    assert two.take_checks() == [(message_id, 2)]
    await two.expect(wire.Done, wire.UnregisterChecker, "pay")
    three = await a_checker(rig)
    await later(rig, 0, three)
    assert three.take_checks() == [(message_id, 3)]
    assert two.checks == []
    rig.check()


async def test_no_check_is_counted_without_a_checker(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    (message_id,) = await producer.send_half("pay", b"one")

    await later(rig, 600_000)
    (left,) = (await producer.expect(wire.HalfMessages, wire.ListHalfMessages, "pay")).messages
    assert (left.checks, left.last_check_ms) == (0, 0)
    one = await a_checker(rig)
    await later(rig, 0, one)

    assert one.take_checks() == [(message_id, 1)]
    one.transport.lose()
    await later(rig, 600_000)
    (left,) = (await producer.expect(wire.HalfMessages, wire.ListHalfMessages, "pay")).messages
    assert left.checks == 1


async def test_after_the_last_check_no_check_is_sent(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    await producer.expect(wire.QueueInfo, wire.SetQueueAttributes, "pay", {"max_checks": 2})
    one = await a_checker(rig)
    (message_id,) = await producer.send_half("pay", b"one")

    await later(rig, 5_000, one)
    await later(rig, 10_000, one)
    await later(rig, 600_000, one)

    assert one.take_checks() == [(message_id, 1), (message_id, 2)]
    assert await one.decide("pay", [message_id], COMMIT) == []


async def test_one_that_does_not_read_is_not_asked(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    slow, other = await a_checker(rig), await a_checker(rig)
    await producer.expect(wire.QueueInfo, wire.CreateQueue, "big", {"max_message_bytes": 1_048_576})
    await producer.send("big", bytes(1_000_000))
    slow.transport.stuck = True
    slow.begin(wire.ReceiveMessages(slow.next_id(), "big"))
    await slow.settle()
    assert slow.connection.is_slow
    ids = await producer.send_half("pay", b"one", b"two")

    await later(rig, 5_000, other)
    assert [message_id for message_id, _ in other.take_checks()] == ids
    other.transport.lose()
    await later(rig, 100, producer)
    slow.transport.stuck = False
    slow.read()
    await later(rig, 0, slow)

    assert slow.take_checks() == [(ids[0], 2), (ids[1], 2)]
    rig.check()


async def test_a_check_leaves_only_when_it_is_durable_and_after_the_reply_before_it(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    one = await a_checker(rig)
    await producer.send_half("pay", b"one")
    rig.log.hold()
    asking = one.begin(wire.CreateQueue(one.next_id(), "other", {}))

    await later(rig, 5_000, one)
    assert one.checks == []
    rig.log.let_go()
    await later(rig, 0, one)

    assert asking in one.replies
    assert len(one.checks) == 1


async def test_a_deleted_queue_has_no_checkers_any_more(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    one = await a_checker(rig)
    await producer.send_half("pay", b"one")
    await producer.expect(wire.Done, wire.DeleteQueue, "pay")
    await producer.expect(wire.QueueInfo, wire.CreateQueue, "pay", {"transactional": True})
    await producer.send_half("pay", b"one")

    await later(rig, 5_000, one)

    assert one.checks == []
    assert len(rig.server.part(TransactionCheckers)) == 0
    one.transport.lose()
    await rig.turn()
    rig.check()


async def test_registrations_are_bounded(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checkers, "MAX_REGISTRATIONS", 1)
    client = await a_producer(rig)
    await a_producer(rig, "more")
    await client.expect(wire.Done, wire.RegisterChecker, "pay")

    refused = await client.expect(wire.Error, wire.RegisterChecker, "more")

    assert (refused.name, refused.retryable, refused.retry_after_ms) == ("too_many_requests", True, 1_000)
    await client.expect(wire.Done, wire.RegisterChecker, "pay")
    await client.expect(wire.Done, wire.UnregisterChecker, "pay")
    await client.expect(wire.Done, wire.RegisterChecker, "more")


async def test_a_nearly_full_disk_refuses_half_sends_and_commits_but_no_roll_backs(rig: ServerRig) -> None:
    client = await a_producer(rig)
    one, two = await client.send_half("pay", b"one", b"two")
    rig.log.report_state(LogState(True, "12 bytes are free", 12, 1, 1))
    await rig.turn()

    assert code_of(await client.ask(wire.SendHalfMessages, "pay", [b"x"])) == "disk_nearly_full"
    refused = await client.ask(wire.EndTransactions, "pay", [one, two], [ROLL_BACK, COMMIT])
    assert code_of(refused) == "disk_nearly_full"
    assert await client.decide("pay", [one], ROLL_BACK) == []
    assert await client.decide("pay", [two], UNKNOWN) == []
    rig.log.report_state(LogState(False, "", 1 << 30, 1, 1))
    await rig.turn()

    assert await client.decide("pay", [two], COMMIT) == []
    assert len(await client.receive("pay")) == 1


async def test_a_half_send_under_a_dedup_id_is_stored_once(rig: ServerRig) -> None:
    client = await a_producer(rig)
    make = wire.SendHalfMessages
    first = await client.expect(wire.MessagesSent, make, "pay", [b"a", b"b"], None, None, 0, 0, ["one", None])

    again = await client.expect(wire.MessagesSent, make, "pay", [b"a", b"b"], None, None, 0, 0, [None, "one"])

    assert again.message_ids[1] == first.message_ids[0]
    assert again.message_ids[0] not in first.message_ids
    assert (await client.counts("pay"))["half"] == 3


async def test_a_check_that_was_decided_for_a_client_that_ended_goes_to_another(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    one, two = await a_checker(rig), await a_checker(rig)
    (message_id,) = await producer.send_half("pay", b"one")
    rig.log.hold()
    producer.begin(wire.CreateQueue(producer.next_id(), "other", {}))
    await later(rig, 5_000, one)

    one.transport.lose()
    rig.log.let_go()
    await later(rig, 0, two)

    assert one.checks == []
    assert two.take_checks() == [(message_id, 2)]
    rig.check()


async def test_a_check_beside_a_cancelled_receive_still_leaves(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    one = await a_checker(rig)
    await producer.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    await producer.send("jobs", b"x")
    (message_id,) = await producer.send_half("pay", b"one")
    rig.log.hold()
    receiving = one.begin(wire.ReceiveMessages(one.next_id(), "jobs"))
    await later(rig, 5_000, producer)

    one.cancel(receiving)
    rig.log.let_go()
    await later(rig, 0, one)

    assert code_of(one.replies[receiving]) == "cancelled"
    assert one.take_checks() == [(message_id, 1)]
    assert (await producer.counts("jobs"))["active"] == 1


async def test_a_commit_is_busy_when_the_storage_is_behind(rig: ServerRig) -> None:
    client = await a_producer(rig)
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {"max_message_bytes": 1_048_576})
    (message_id,) = await client.send_half("pay", b"one")
    rig.log.hold()
    for _ in range(66):
        client.begin(wire.SendMessages(client.next_id(), "jobs", [bytes(1_048_576)]))
    await client.settle()
    await rig.wait_for_disk()
    await client.settle()

    assert code_of(await client.ask(wire.EndTransactions, "pay", [message_id], [COMMIT])) == "busy"
    assert code_of(await client.ask(wire.SendHalfMessages, "pay", [b"x"])) == "busy"
    rolling_back = client.begin(wire.EndTransactions(client.next_id(), "pay", [message_id], [ROLL_BACK]))
    rig.log.let_go()
    await client.settle()

    assert client.replies[rolling_back] == wire.TransactionsEnded(rolling_back, [])


async def test_the_status_counts_checkers_and_checks(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    one = await a_checker(rig)
    await producer.send_half("pay", b"one", b"two")
    await later(rig, 5_000, one)

    status = (await producer.expect(wire.ServerStatus, wire.GetServerStatus)).status

    assert status["checkers"] == 1
    assert (status["counters"]["half_sent"], status["counters"]["checks"]) == (2, 2)


async def test_after_a_failure_of_the_storage_a_checker_that_goes_changes_nothing(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    one = await a_checker(rig)
    await producer.send_half("pay", b"one")
    await later(rig, 5_000, one)

    rig.log.fail(LogFailed("fsync: I/O error"))
    await rig.turn()
    one.transport.lose()
    await rig.turn()

    assert [str(failure) for failure in rig.failures] == ["fsync: I/O error"]


async def test_a_check_whose_last_checker_goes_while_its_body_is_read_is_not_lost(rig: ServerRig) -> None:
    producer = await a_producer(rig)
    one = await a_checker(rig)
    (message_id,) = await producer.send_half("pay", b"one")
    broker: Any = rig.broker
    (queue,) = broker.queues.values()
    window = broker.runtime.queues[queue.queue_id].window
    broker.runtime.budget.drop_half(queue.queue_id, window, list(window.half))
    rig.log.hold()
    for name in ("one", "two"):
        producer.begin(wire.CreateQueue(producer.next_id(), name, {}))
        await rig.turn()
    await later(rig, 5_000, one)

    one.transport.lose()
    rig.log.let_go()
    await later(rig, 100, producer)
    (left,) = (await producer.expect(wire.HalfMessages, wire.ListHalfMessages, "pay")).messages
    assert left.checks == 0
    two = await a_checker(rig)
    await later(rig, 0, two)

    assert two.take_checks() == [(message_id, 1)]
    rig.check()


async def test_a_check_without_a_checker_goes_back_to_the_core(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[list[int]] = []

    def check_again(_account: str, _queue: str, message_ids: list[int], _now_ms: int) -> Outcome[None]:
        again.append(message_ids)
        return Outcome(None)

    monkeypatch.setattr(rig.broker, "check_again", check_again)
    check = Check("admin", "pay", StoredMessage(0, 7, 1, b"x"), 5_000, 1)

    rig.server.part(Answering).carry_out(Outcome(None, checks=[check]), rig.clock.now_ms())

    assert again == [[7]]
    assert rig.server.part(Counters).checks == 0
