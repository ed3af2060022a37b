"""Every range at both ends: a value beyond is refused with field, value and limit, and the state does not change."""

from collections.abc import Callable

import pytest

from cmqd.core.domain_errors import (
    BacklogFull,
    BatchTooLarge,
    DomainError,
    InvalidArgument,
    MessageTooLarge,
    QueueNotFound,
    TooManyQueues,
)
from cmqd.core.limits import Limits, check_range
from cmqd.core.names import check_name, check_queue_name
from cmqd_types.attributes import QUEUE
from support.cases import each_case
from support.core.builders import ACCOUNT, Rig
from support.core.facts import facts

SPEC = {each.name: (each.low, each.high, int(str(each.default))) for each in QUEUE.values() if each.is_number}
"""Lowest, highest, default. ``tests/gateway/rest/openapi_shape.txt`` has the numbers themselves."""
TOGETHER: dict[str, dict[str, int | str]] = {
    "rewind_ms": {"retention_ms": 1_296_000_000},
    "dead_letter_max_receives": {"dead_letter_queue": "dlq"},
    "dead_letter_after_ms": {"dead_letter_queue": "dlq"},
}
"""Attributes that must be set along with an attribute that is not 0."""


def along_with(name: str, value: int) -> dict[str, int | str]:
    return {name: value, **(TOGETHER.get(name, {}) if value else {})}


def refused(rig: Rig, call: Callable[[], object], error: type[DomainError] = InvalidArgument) -> DomainError:
    """The error of a call that must be refused without any change."""
    before = facts(rig.broker)
    with pytest.raises(error) as raised:
        call()
    assert facts(rig.broker) == before
    return raised.value


def test_a_new_queue_has_the_declared_defaults():
    assert Rig().create().attributes() == {name: each.default for name, each in QUEUE.items()}


@each_case("name", SPEC)
def test_both_ends_of_an_attribute_are_taken(name: str):
    rig = Rig()
    low, high, _ = SPEC[name]
    rig.create("dlq")

    queue = rig.create("q", **along_with(name, low))
    assert queue.attributes()[name] == low
    rig.set("q", **along_with(name, high))
    assert queue.attributes()[name] == high


@each_case("name", SPEC)
@each_case("beyond", [-1, 1])
def test_beyond_an_end_an_attribute_is_refused_on_create_ensure_and_set(name: str, beyond: int):
    rig = Rig()
    rig.create("there")
    low, high, _ = SPEC[name]
    value = low - 1 if beyond < 0 else high + 1

    for call in (
        lambda: rig.broker.create_queue(ACCOUNT, "new", {name: value}, rig.now_ms),
        lambda: rig.broker.ensure_queue(ACCOUNT, "new", {name: value}, rig.now_ms),
        lambda: rig.broker.ensure_queue(ACCOUNT, "there", {name: value}, rig.now_ms),
        lambda: rig.broker.set_queue_attributes(ACCOUNT, "there", {"delay_ms": 1, name: value}, rig.now_ms),
    ):
        error = refused(rig, call)
        unit = "ms" if name.endswith("_ms") else "bytes" if name.endswith("_bytes") else None
        assert error.details == {
            "field": name,
            "value": value,
            "limit": f"an integer from {low} to {high}",
            "range": [low, high],
            **({} if unit is None else {"unit": unit}),
        }


@pytest.mark.parametrize("value", ["5", 5.0, True, None])
def test_an_attribute_that_is_no_integer_is_refused(value: object):
    rig = Rig()
    rig.create()

    refused(rig, lambda: rig.broker.set_queue_attributes(ACCOUNT, "q", {"delay_ms": value}, rig.now_ms))


def test_an_unknown_attribute_is_refused_naming_those_there_are():
    rig = Rig()

    error = refused(rig, lambda: rig.create(colour=1))

    assert (error.details["field"], error.details["value"]) == ("colour", 1)
    assert error.text.startswith("a queue has no attribute 'colour'; its attributes are ")
    assert "retention_ms" in error.details["limit"]


@pytest.mark.parametrize("name", ["a", "A-z_09", "x" * 64, "-", "_"])
def test_legal_names_are_taken(name: str):
    assert check_queue_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a.b", "é", "a\n", "٣", "a/b", "\0"])
def test_other_names_are_refused(name: str):
    rig = Rig()

    error = refused(rig, lambda: rig.create(name))

    assert error.details["field"] == "queue"
    assert "64" in error.details["limit"]


@pytest.mark.parametrize(("field", "least"), [("topic", 3), ("subscription", 1), ("queue", 1)])
def test_names_of_topics_have_three_characters_at_least_and_other_names_one(field: str, least: int):
    assert check_name(field, "x" * least) == "x" * least
    assert check_name(field, "x" * 64) == "x" * 64
    for name in ("x" * (least - 1), "x" * 65, "a b"):
        with pytest.raises(InvalidArgument) as raised:
            check_name(field, name)
        assert raised.value.details["field"] == field
        assert raised.value.details["limit"].startswith(f"{least} to 64 ")


def test_a_long_value_is_shown_cut():
    with pytest.raises(InvalidArgument) as raised:
        check_range("field", "x" * 1000, 1, 2)

    assert len(raised.value.details["value"]) == 80
    assert raised.value.text == str(raised.value)


@pytest.mark.parametrize("count", [0, 257])
def test_a_batch_holds_1_to_256_bodies(count: int):
    rig = Rig()
    rig.create()
    rig.send(*[b"x"] * 256)
    rig.send(b"x")

    error = refused(rig, lambda: rig.send(*[b"x"] * count))

    assert error.details["field"] == "bodies"
    assert error.details["value"] == count


def test_a_body_has_1_byte_up_to_the_queues_limit():
    rig = Rig()
    rig.create(max_message_bytes=1024)
    rig.send(bytes(1), bytes(1024))

    error = refused(rig, lambda: rig.send(b"x", bytes(1025)), MessageTooLarge)
    assert error.details == {"field": "bodies", "index": 1, "value": 1025, "limit": 1024}

    error = refused(rig, lambda: rig.send(b"x", b""))
    assert error.text == "body 1 is empty; 'q' takes bodies of 1 byte to 1 KiB"
    assert error.details == {"field": "bodies", "index": 1, "value": 0, "limit": "1 to 1024 bytes"}


def test_a_batch_holds_one_mebibyte_of_bodies_and_headers_in_all():
    rig = Rig()
    rig.create(max_message_bytes=1_048_576)
    half = 524_288
    rig.send(bytes(half), bytes(half - 4), headers=[{"ab": "é"}, {}])

    error = refused(rig, lambda: rig.send(bytes(half), bytes(half - 3), headers=[{"ab": "é"}, {}]), BatchTooLarge)

    assert error.details == {"field": "bodies", "value": 1_048_577, "limit": 1_048_576}


def test_one_larger_message_alone_is_allowed():
    rig = Rig()
    rig.create(max_message_bytes=1_048_576)

    rig.send(bytes(1_048_576), headers=[{"name": "v" * 16_000}])

    assert len(rig.bodies()[0]) == 1_048_576


def test_a_message_has_at_most_32_headers_of_16_kib_in_all():
    rig = Rig()
    rig.create()
    many = {f"{number:02}": "v" for number in range(33)}
    rig.send(b"x", headers=[dict(list(many.items())[:32])])
    rig.send(b"x", headers=[{"name": "é" * 8190}])

    assert refused(rig, lambda: rig.send(b"x", headers=[many])).details["value"] == 33
    assert refused(rig, lambda: rig.send(b"x", headers=[{"name": "é" * 8190 + "x"}])).details["value"] == 16385
    assert refused(rig, lambda: rig.send(b"x", headers=[None, None])).details["field"] == "headers"


@pytest.mark.parametrize("delay_ms", [-1, 3_600_001, [0, 3_600_001], [0], [0, 0, 0], []])
def test_a_delay_is_0_to_3600_s_one_for_all_or_one_each(delay_ms: int | list[int]):
    rig = Rig()
    rig.create()
    rig.send(b"1", b"2", delay_ms=3_600_000)
    rig.send(b"1", b"2", delay_ms=[0, 3_600_000])

    assert refused(rig, lambda: rig.send(b"1", b"2", delay_ms=delay_ms)).details["field"] == "delay_ms"


@pytest.mark.parametrize(
    ("field", "most", "wait_ms", "timeout_ms"),
    [
        ("max_messages", 0, 0, None),
        ("max_messages", 257, 0, None),
        ("wait_ms", 1, -1, None),
        ("wait_ms", 1, 30_001, None),
        ("visibility_timeout_ms", 1, 0, 999),
        ("visibility_timeout_ms", 1, 0, 43_200_001),
    ],
)
def test_the_arguments_of_a_receive_have_their_ranges(field: str, most: int, wait_ms: int, timeout_ms: int | None):
    rig = Rig()
    rig.create()
    rig.wait(most=256, wait_ms=30_000, visibility_timeout_ms=1000)
    rig.wait(most=1, wait_ms=0, visibility_timeout_ms=43_200_000)

    error = refused(rig, lambda: rig.wait(most=most, wait_ms=wait_ms, visibility_timeout_ms=timeout_ms))

    assert error.details["field"] == field


def test_settling_takes_1_to_256_handles_and_visibility_up_to_12_hours():
    rig = Rig()
    rig.create()
    rig.send(b"x")
    (handle,) = rig.handles()

    assert refused(rig, lambda: rig.delete()).details["field"] == "receipt_handles"
    assert refused(rig, lambda: rig.release(*range(257))).details["value"] == 257
    assert refused(rig, lambda: rig.hide(handle, timeout_ms=43_200_001)).details["field"] == "visibility_timeout_ms"
    assert refused(rig, lambda: rig.hide(handle, timeout_ms=-1)).details["field"] == "visibility_timeout_ms"
    rig.hide(handle, timeout_ms=43_200_000)
    rig.delete(*range(255), handle)


def test_a_peek_has_its_ranges():
    rig = Rig()
    rig.create()

    for start, most in ((0, 0), (0, 257), (-1, 1), (2**62 + 1, 1)):
        refused(rig, lambda start=start, most=most: rig.broker.peek(ACCOUNT, "q", 1, start, most, rig.now_ms))


def test_beyond_its_backlog_a_queue_refuses_sends_and_takes_them_again_when_there_is_room():
    rig = Rig()
    rig.create()
    rig.force(max_backlog=3)
    rig.send(b"1")
    rig.send(b"2", delay_ms=1000)
    handles = rig.handles()

    error = refused(rig, lambda: rig.send(b"3", b"4"), BacklogFull)
    assert error.details == {"queue": "q", "value": 2, "limit": 3}
    assert error.retry_after_ms

    rig.delete(*handles)
    rig.send(b"3", b"4")


def test_an_account_has_its_limit_of_queues():
    rig = Rig(Limits(max_queues_per_account=2))
    rig.create("a")
    rig.create("b")

    error = refused(rig, lambda: rig.create("c"), TooManyQueues)

    assert error.details == {"account": ACCOUNT, "limit": 2}
    rig.broker.create_queue("other", "c", {}, rig.now_ms)
    rig.delete_queue("a")
    rig.create("c")


def test_every_operation_on_a_missing_queue_says_so():
    rig = Rig()
    rig.create("Q")

    for call in (
        lambda: rig.send(b"x"),
        lambda: rig.wait(),
        lambda: rig.delete(1),
        lambda: rig.release(1),
        lambda: rig.hide(1, timeout_ms=1),
        lambda: rig.clear(),
        lambda: rig.delete_queue(),
        lambda: rig.set(),
        lambda: rig.broker.peek(ACCOUNT, "q", 1, 0, 1, rig.now_ms),
        lambda: rig.broker.queue_info(ACCOUNT, "q"),
        lambda: rig.broker.queue_info("nobody", "q"),
    ):
        assert refused(rig, call, QueueNotFound).details == {"queue": "q"}
