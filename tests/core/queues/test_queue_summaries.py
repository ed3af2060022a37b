"""Lists of queues with their figures: equal to a sort of all queues, made in bounded steps."""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import InvalidArgument
from cmqd.core.names import every_name
from cmqd.core.operations.queues import queue_summaries
from cmqd.core.operations.queues.queue_summaries import MERGED_A_STEP, RANKED_A_STEP, SHOWN_A_STEP, QueueList
from cmqd_types.metrics import QueueMetrics
from cmqd_types.queues import QUEUE_SELECTIONS, QUEUE_SORTS, QueueSummary
from support.cases import each_case
from support.core.builders import ACCOUNT, Rig, end_of


def list_of(
    broker: Broker,
    search: str = "",
    sort: str = "name",
    descending: bool = False,
    selection: str = "all",
    offset: int = 0,
    limit: int = 1000,
    account: str = ACCOUNT,
    **named: Any,
) -> QueueList:
    return end_of(broker.queue_summaries(account, search, sort, descending, selection, offset, limit, **named))


def names_of(page: QueueList) -> list[str]:
    return [queue.queue for queue in page.queues]


def a_mix() -> Rig:
    """Queues in all states, of two accounts."""
    rig = Rig()
    rig.create("empty")
    rig.create("dead")
    rig.advance(1000)
    rig.create("busy", rewind_ms=60_000, dead_letter_queue="dead", dead_letter_max_receives=1)
    rig.send(*[b"%d" % number for number in range(6)], name="busy")
    rig.delete(*rig.handles(most=1, name="busy"), name="busy")
    rig.release(*rig.handles(most=1, name="busy"), name="busy")
    rig.settle()
    rig.handles(most=1, name="busy")
    rig.advance(1000)
    rig.create("late")
    rig.send(b"5", b"6", name="late", delay_ms=50_000)
    rig.create("pay", transactional=True)
    rig.send_half(b"7", name="pay")
    rig.wait("empty", wait_ms=5000)
    rig.create_topic()
    rig.subscribe("copies")
    rig.publish(b"8")
    rig.advance(1000)
    rig.publish(b"9")
    rig.done(rig.broker.create_queue("other", "theirs", {}, rig.now_ms))
    return rig


def test_a_queue_is_listed_with_its_figures():
    rig = a_mix()
    busy = rig.queue("busy")

    [summary] = list_of(rig.broker, "bus").queues

    assert summary == QueueSummary(
        queue="busy",
        queue_id=busy.queue_id,
        active=3,
        in_flight=1,
        delayed=0,
        half=0,
        rewindable=1,
        damaged=0,
        waiting_receives=0,
        oldest_message_ms=busy.facts()["oldest_message_ms"],
        created_ms=busy.created_ms,
        transactional=False,
        dead_letter_queue="dead",
        is_dead_letter_queue=False,
        arrived=6,
        deleted=1,
        dead_lettered=1,
    )
    [dead] = list_of(rig.broker, "dead").queues
    assert (dead.is_dead_letter_queue, dead.active, dead.arrived, dead.dead_letter_queue) == (True, 1, 1, "")
    [pay] = list_of(rig.broker, "pay").queues
    assert (pay.transactional, pay.half) == (True, 1)
    [copies] = list_of(rig.broker, "copies").queues
    assert (copies.active, copies.arrived) == (2, 2)
    assert list_of(rig.broker, "empty").queues[0].waiting_receives == 1
    assert list_of(rig.broker, "late").queues[0].delayed == 2


def test_counts_are_those_of_the_metrics():
    rig = a_mix()
    metrics, _ = rig.broker.queue_metrics(ACCOUNT, ("", ""), 1000)
    fields = [name for name in QueueSummary.__struct_fields__ if name in QueueMetrics.__struct_fields__]
    assert {"active", "in_flight", "delayed", "half", "rewindable", "damaged", "oldest_message_ms"} < set(fields)

    page = list_of(rig.broker)

    assert page.total == len(metrics)
    for summary, figures in zip(page.queues, metrics, strict=True):
        assert [getattr(summary, name) for name in fields] == [getattr(figures, name) for name in fields]


def figure(queue: QueueSummary, sort: str) -> Any:
    match sort:
        case "name":
            return queue.queue
        case "age":
            return -(1 << 62) if queue.oldest_message_ms is None else -queue.oldest_message_ms
        case "created":
            return queue.created_ms
        case _:
            return getattr(queue, sort)


@each_case("descending", [False, True])
@each_case("sort", QUEUE_SORTS)
def test_the_order_is_that_of_a_sort_of_all_queues(sort: str, descending: bool):
    rig = a_mix()
    by_name = list_of(rig.broker).queues
    assert [queue.queue for queue in by_name] == sorted(queue.queue for queue in by_name)

    expected = sorted(by_name, key=lambda queue: figure(queue, sort), reverse=descending)

    # A sort keeps the order of equal entries in both directions: equal queues stay in order of name.
    assert list_of(rig.broker, sort=sort, descending=descending).queues == expected


def test_every_sort_but_two_tells_queues_of_the_mix_apart():
    queues = list_of(a_mix().broker).queues

    alike = [sort for sort in QUEUE_SORTS if len({figure(queue, sort) for queue in queues}) == 1]

    assert alike == ["damaged"], "the order above would be right whatever such a sort did"


def test_damaged_messages_are_a_sort():
    rig = a_mix()
    rig.log.damaged.add((rig.queue("dead").queue_id, 0))
    rig = rig.crash()
    rig.receive("dead")

    first, *others = list_of(rig.broker, sort="damaged", descending=True).queues

    assert (first.queue, first.damaged, first.active) == ("dead", 1, 0)
    assert {queue.damaged for queue in others} == {0}


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ("all", ["busy", "copies", "dead", "empty", "late", "pay"]),
        ("with_messages", ["busy", "copies", "dead", "late", "pay"]),
        ("dead_letter_queues", ["dead"]),
        ("with_dead_letter_queue", ["busy"]),
        ("transactional", ["pay"]),
    ],
)
def test_a_selection_lists_and_counts_its_queues_only(selection: str, names: list[str]):
    page = list_of(a_mix().broker, selection=selection)

    assert (names_of(page), page.total) == (names, len(names))


def test_tables_know_every_sort_and_every_selection():
    assert tuple(queue_summaries.FIGURES) == QUEUE_SORTS
    assert tuple(queue_summaries.SELECTIONS) == QUEUE_SELECTIONS


def test_rewindable_messages_alone_are_no_messages_of_the_queue():
    rig = Rig()
    rig.create(rewind_ms=60_000)
    rig.send(b"1")
    rig.delete(*rig.handles())

    assert rig.counts()["rewindable"] == 1
    assert names_of(list_of(rig.broker, selection="with_messages")) == []


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("sort", ["name", "active"])
def test_pages_join_to_the_whole_list(sort: str, descending: bool):
    rig = Rig()
    names = [f"q{number:04}" for number in range(RANKED_A_STEP * 2 + 37)]
    for number, name in enumerate(names):
        rig.create(name)
        if number % 3:
            rig.send(*[b"1"] * (number % 5 + 1), name=name)
    whole = list_of(rig.broker, sort=sort, descending=descending)
    assert whole.total == len(names)

    pages = [
        list_of(rig.broker, sort=sort, descending=descending, offset=offset, limit=100)
        for offset in range(0, len(names), 100)
    ]

    assert [name for page in pages for name in names_of(page)] == names_of(whole)
    assert sorted(names_of(whole)) == names
    assert list_of(rig.broker, offset=len(names)) == QueueList(len(names), [])


def test_an_account_sees_its_own_queues():
    rig = a_mix()

    assert names_of(list_of(rig.broker, account="other")) == ["theirs"]
    assert list_of(rig.broker, account="nobody") == QueueList(0, [])


def test_names_are_selected_and_named_for_the_caller():
    rig = a_mix()

    def shows(name: str) -> bool:
        return name != "dead"

    def named(name: str) -> str:
        return name if shows(name) else "(hidden)"

    page = list_of(rig.broker, shows=shows, named=named)

    assert page.total == 5
    assert "dead" not in names_of(page)
    assert [queue.dead_letter_queue for queue in page.queues if queue.queue == "busy"] == ["(hidden)"]


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("sort", ("backlog", "all", 0, 1)),
        ("selection", ("name", "some", 0, 1)),
        ("offset", ("name", "all", -1, 1)),
        ("limit", ("name", "all", 0, 0)),
        ("limit", ("name", "all", 0, 1001)),
    ],
)
def test_arguments_out_of_range_are_refused(field: str, arguments: tuple[str, str, int, int]):
    with pytest.raises(InvalidArgument, match=field) as raised:
        Rig().broker.check_queue_summaries(*arguments)
    assert raised.value.details["field"] == field


def test_queues_may_come_and_go_between_the_steps():
    rig = Rig()
    names = [f"q{number:05}" for number in range(2 * RANKED_A_STEP + 1)]
    for name in names:
        rig.create(name)
    steps = rig.broker.queue_summaries(ACCOUNT, "", "active", True, "all", 0, 1000)
    next(steps)
    rig.delete_queue(names[0])
    rig.delete_queue(names[-1])
    rig.create("later")
    rig.create("again")
    page = end_of(steps)

    # The names of the new queues come before the names that the first step has examined.
    assert names_of(page) == names[1:-1]
    assert page.total == len(names) - 1, "the first queue was counted before its deletion"


def counted_calls(function: Callable[..., Any], counts: list[int]) -> Callable[..., Any]:
    """The function, with its calls counted in the last entry of a list."""

    def call(*arguments: Any) -> Any:
        counts[-1] += 1
        return function(*arguments)

    return call


def counted_steps(work: Generator[None, None, QueueList], counts: list[int]) -> None:
    """Carry out the steps, each with an entry of its own."""
    while True:
        try:
            next(work)
        except StopIteration:
            return
        counts.append(0)


def test_a_step_examines_merges_and_shows_a_bounded_number_of_queues(monkeypatch: pytest.MonkeyPatch):
    rig = Rig()
    for number in range(1000):
        rig.create(f"q{number:05}")
    steps: list[int] = [0]
    compared = counted_calls(every_name, steps)
    summary = counted_calls(rig.broker.parts.queue_summaries.summary, steps)
    monkeypatch.setattr(rig.broker.parts.queue_summaries, "summary", summary)

    counted_steps(rig.broker.queue_summaries(ACCOUNT, "", "active", True, "all", 0, 1000, shows=compared), steps)

    assert max(steps) == RANKED_A_STEP
    assert sum(steps) == 2000
    assert steps[:2] == [RANKED_A_STEP] * 2
    assert steps[3:].count(SHOWN_A_STEP) == 1000 // SHOWN_A_STEP
    assert steps.count(0) >= 1000 / MERGED_A_STEP


@pytest.mark.parametrize("sort", ["age", "active"])
def test_a_step_searches_fewer_queues_with_many_delayed_messages(sort: str):
    rig = Rig()
    delayed = 2
    for number in range(20):
        rig.create(f"q{number:05}")
        if number < delayed:
            for _ in range(100):
                rig.send(*[b"1"] * 256, name=f"q{number:05}", delay_ms=1000)
    steps: list[int] = [0]
    compared = counted_calls(every_name, steps)

    counted_steps(
        rig.broker.queue_summaries(ACCOUNT, "", sort, True, "all", 0, 1000, shows=compared, most_compared=20), steps
    )

    # 25,600 delayed messages weigh as much as 51 queues: more than a step.
    assert steps[:3] == ([1, 1, 18] if sort == "age" else [20, 0, 0])


def test_a_step_compares_as_few_names_as_the_caller_can_afford():
    rig = Rig()
    for number in range(100):
        rig.create(f"q{number:05}")
    steps: list[int] = [0]
    compared = counted_calls(every_name, steps)

    page = rig.broker.queue_summaries(ACCOUNT, "", "name", False, "all", 0, 1000, shows=compared, most_compared=7)
    counted_steps(page, steps)

    assert max(steps) == 7
    assert sum(steps) == 100
