"""Several brokers in a process: queues, numbers, memory and times are separate."""

from itertools import cycle, islice

from cmqd.core.broker import Broker
from cmqd.core.limits import Limits
from support.core.builders import ACCOUNT, KEY, Rig
from support.core.facts import facts
from support.core.invariants import check_broker

SMALL = Limits(window_bytes=2_000, page_messages=4, budget_bytes=4_000_000)


def work(rig: Rig, step: int) -> object:
    """A step of the same work on any broker; the result shows all that a client sees."""
    rig.now_ms += 700
    match step % 8:
        case 0:
            return rig.send(b"body-%d" % step * 20, b"x", session=7, sequence=step + 1)
        case 1:
            return rig.send(b"later", delay_ms=1_000)
        case 2:
            return [(message.message_id, message.body) for message in rig.receive(most=2)]
        case 3:
            handles = rig.handles(most=1)
            return rig.delete(*handles) if handles else "empty"
        case 4:
            published = rig.publish(b"news-%d" % step)
            return list(published.message_ids), list(published.matched)
        case 5:
            rig.settle(2_000)
            return rig.counts()
        case 6:
            return rig.wait("inbox", most=3, wait_ms=5_000)[1]
        case _:
            rig.settle()
            return [reply for _, reply in rig.woken]


def prepared(limits: Limits, shift: int) -> Rig:
    rig = Rig(limits, Broker(KEY, limits))
    rig.now_ms += shift
    rig.create(rewind_ms=600_000)
    rig.create_topic()
    rig.subscribe("inbox")
    return rig


def test_brokers_that_take_turns_in_a_process_give_the_results_of_brokers_that_are_alone():
    steps = 64
    alone = [[work(rig, step) for step in range(steps)] for rig in (prepared(SMALL, shift) for shift in (0, 50_000, 7))]

    together: list[list[object]] = [[], [], []]
    rigs = [prepared(SMALL, shift) for shift in (0, 50_000, 7)]
    for results, rig in islice(cycle(zip(together, rigs, strict=True)), 3 * steps):
        results.append(work(rig, len(results)))

    assert together == alone
    for rig in rigs:
        check_broker(rig.broker)
        assert facts(rig.crash().broker) == facts(rig.broker)


def test_a_queue_of_one_broker_is_unknown_to_another():
    one, two = Rig(), Rig()
    one.create("only-here")

    assert one.broker.list_queues(ACCOUNT, "", 0, 10)[0] == 1
    assert two.broker.list_queues(ACCOUNT, "", 0, 10)[0] == 0


def test_the_memory_that_one_broker_promised_is_not_taken_from_another():
    one, two = prepared(SMALL, 0), prepared(SMALL, 0)
    for session in range(1, 100):
        one.send(b"x", session=session, sequence=1)

    assert one.broker.facts.promises.memory.total_bytes > 0
    assert two.broker.facts.promises.memory.total_bytes == 0


def test_a_body_in_the_window_of_one_broker_takes_no_room_from_another():
    one, two = prepared(SMALL, 0), prepared(SMALL, 0)
    one.send(b"x" * 1_500)

    assert one.broker.runtime.budget.used > 0
    assert two.broker.runtime.budget.used == 0
