"""Names, options and the form of messages: pure."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from cmqd_kombu import envelope
from cmqd_kombu.names import EMPTY_KEY, dotted_key, exact_key, level_name, matches, subscription_name, topic_name
from cmqd_kombu.options import level_of, levels, parse_options
from support.cases import each_case

_TEXTS = ["orders", "Orders", "celery@host.celery.pidbox", "", "a.b", "a-b", "a b", "x" * 64, "x" * 65, "größe", "\x06"]


@pytest.mark.parametrize(
    "name_of",
    [topic_name, subscription_name, partial(subscription_name, "q" * 64), exact_key, partial(level_name, step=3)],
)
def test_different_texts_have_different_legal_names_in_any_case(name_of: Callable[[str], str]) -> None:
    names = {name_of(text).lower() for text in _TEXTS}
    assert len(names) == len(_TEXTS)
    assert not [name for name in names - {EMPTY_KEY} if not re.fullmatch("[a-z0-9_-]{3,64}", name)]


def test_every_level_is_a_queue_and_the_lowest_has_the_queues_name() -> None:
    assert level_name("Orders", 0) == "Orders"
    assert len({level_name("Orders", step) for step in (0, 3, 6, 9)}) == 4


def test_the_key_of_a_direct_exchange_has_no_wildcards() -> None:
    keys = ["", "empty.key", "a.*", "a.#", "a.b"]
    mapped = [exact_key(key) for key in keys]
    assert len(set(mapped)) == len(keys)
    assert not [key for key in mapped if "*" in key or "#" in key]


def test_a_key_that_is_too_long_is_refused() -> None:
    assert dotted_key("a.*.#") == "a.*.#"
    with pytest.raises(ValueError, match="65 bytes and 0 dots"):
        dotted_key("x" * 65)
    with pytest.raises(ValueError, match="16 dots"):
        dotted_key("a" + ".a" * 16)


@pytest.mark.parametrize(
    ("binding_key", "routing_key", "expected"),
    [
        ("t.*", "t.1", True),
        ("t.*", "t", False),
        ("t.*", "t.1.2", False),
        ("t.#", "t", True),
        ("#", "a.b.c", True),
        ("#.c", "a.b.c", True),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.b", False),
    ],
)
def test_binding_keys(binding_key: str, routing_key: str, expected: bool) -> None:
    assert matches(binding_key, routing_key) is expected


def test_levels_of_priority() -> None:
    assert levels({}) == (0,)
    assert levels({"x-max-priority": 10}) == (0, 3, 6, 9)
    assert levels({"x-max-priority": 5}) == (0, 3)
    assert [level_of(priority, (0, 3, 6, 9)) for priority in (None, 0, 2, 3, 8, 9, 200)] == [0, 0, 0, 3, 6, 9, 9]
    assert level_of(9, (0,)) == 0


def test_options_are_checked() -> None:
    assert parse_options({"lease": 10, "max_retries": 1}).lease == 10
    with pytest.raises(ValueError, match="leese"):
        parse_options({"leese": 10})
    with pytest.raises(ValueError, match="lease is 500 ms"):
        parse_options({"lease": 0.5})
    with pytest.raises(ValueError, match="retention is 10"):
        parse_options({"retention": 10})


def test_a_message_comes_back_as_it_was_packed() -> None:
    message: dict[str, Any] = {
        "body": b"\x80\n\x00",
        "content-type": "application/x-python-serialize",
        "content-encoding": "binary",
        "headers": {"eta": None, "argsrepr": "(1,)\n", "at": datetime(2026, 1, 2, tzinfo=UTC)},
        "properties": {"priority": 3, "signal": object()},  # the second is an argument of a publish, and no property
    }
    unpacked = envelope.unpack(envelope.pack(message), envelope.transport_headers(None, None))
    assert unpacked == envelope.Envelope(
        b"\x80\n\x00", "application/x-python-serialize", "binary", message["headers"], {"priority": 3}
    )


@pytest.mark.parametrize("headers", [{}, {"kombu": "1"}, {"kombu": "99"}])
def test_a_foreign_or_damaged_message_is_raw(headers: dict[str, str]) -> None:
    unpacked = envelope.unpack(b"one espresso", headers)
    assert (unpacked.body, unpacked.content_type) == (b"one espresso", "application/octet-stream")


@each_case(
    "damage",
    [
        b"[" * 30_000,
        b"9" * 5_000,
        b'["a/b","utf-8",{},{}',
        b'["a/b","utf-8",{}]',
        b"null",
        b"\xff",
        b'["a/b","utf-8",{"eta":{"__type__":"bytes","__value__":5}},{}]',
        b'["a/b","utf-8",{"eta":{"__type__":"decimal","__value__":"x"}},{}]',
        b'["a/b","utf-8",{"eta":{"__type__":[],"__value__":5}},{}]',
        b'["a/b","utf-8",{"eta":{"__type__":"uuid","__value__":{"no":1}}},{}]',
        b'[5,"utf-8",{},{}]',
        b'["a/b",[],{},{}]',
        b'["a/b","utf-8",[["a",1]],{}]',
        b'["a/b","utf-8",{},[["a",1]]]',
        b'["a/b","utf-8",{},{"delivery_info":5}]',
    ],
)
def test_any_damage_of_an_envelope_is_raw(damage: bytes) -> None:
    content = damage + b"\nbody"
    unpacked = envelope.unpack(content, {"kombu": "1"})
    assert unpacked == envelope.Envelope(content, "application/octet-stream", "binary", {"kombu": "1"}, {})


_TASK: dict[str, Any] = {"task": "shop.price", "id": "1a", "eta": None, "expires": None, "timelimit": [None, None]}
_ENDS_A_WORKER: dict[str, list[object]] = {
    "task": [None, 5, [], {}],
    "id": [None, "", 0, 5, 1.5, True, [], {}, "\ud800"],
    "shadow": [5, ["x"], {"a": 1}],
    "eta": [0, "", [], {}, False],
    "expires": [0, "", [], {}, False],
    "timelimit": [5, True, "10", [1], [1, 2, 3], {"a": 1}, ["1", "2"], [[], []], [float("nan"), 1], [10**400, None]],
    "stamped_headers": [7, True, [[]], [{}], {"a": 1}],
    "stamps": [7, ["a"]],
    "chain": [5, [5], [{}]],
    "errbacks": [5, [5]],
}
"""Values with which a worker of Celery 5.7 ends, found with the handler of its consumer and its solo pool."""


def test_a_task_with_headers_that_end_a_worker_is_raw() -> None:
    """Celery reads the headers of a task outside of any ``try``."""
    wholes: list[object] = []

    def is_raw(headers: dict[str, Any], content_type: str | None = "application/json") -> bool:
        content = json.dumps([content_type, "utf-8", headers, {}]).encode() + b"\nbody"
        unpacked = envelope.unpack(content, {"kombu": "1"})
        if raw := unpacked.content_type == "application/octet-stream":
            assert (unpacked.body, unpacked.headers) == (content, {"kombu": "1"})
        return raw

    for name, values in _ENDS_A_WORKER.items():
        wholes += [(name, value) for value in values if not is_raw({**_TASK, name: value})]
        # The same header of a program of kombu that sends no tasks.
        others = {header: value for header, value in _TASK.items() if header != "task"}
        assert name == "task" or not [value for value in values if is_raw({**others, name: value})]
    wholes += [content_type for content_type in (None, "", "application/data") if not is_raw(_TASK, content_type)]
    assert is_raw({"task": "shop.price"}), "without an id"
    assert wholes == []


def test_a_task_that_a_worker_can_read_is_whole() -> None:
    changed: tuple[dict[str, Any], ...] = (
        {},
        {"eta": "2026-01-02T00:00:00+00:00", "expires": "no date, which Celery reports itself"},
        {"eta": {"__type__": "datetime", "__value__": "2026-01-02T00:00:00"}},
        {"timelimit": [10, 9.5], "shadow": "name", "stamped_headers": ["customer"], "stamps": {"customer": 5}},
        {"timelimit": None, "shadow": "", "stamped_headers": [], "stamps": None, "chain": None, "errbacks": []},
        {"timelimit": [], "retries": "x", "group": 5, "argsrepr": []},
    )
    for changes in changed:
        content = json.dumps(["application/json", "utf-8", {**_TASK, **changes}, {}]).encode() + b"\nbody"
        assert envelope.unpack(content, {"kombu": "1"}).body == b"body", changes


def test_a_lack_of_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(text: str) -> object:
        raise MemoryError

    monkeypatch.setattr(envelope, "loads", loads)
    with pytest.raises(MemoryError):
        envelope.unpack(b'["a/b","utf-8",{},{}]\n', {"kombu": "1"})


def test_eta_and_expiration_are_read() -> None:
    assert envelope.eta_ms({"eta": "1970-01-01T00:01:00"}) == 60_000
    assert envelope.eta_ms({"eta": "1970-01-01T01:01:00+01:00"}) == 60_000
    assert envelope.eta_ms({"eta": None}) is None
    assert envelope.eta_ms({"eta": "soon"}) is None
    assert envelope.expiration_of({"expiration": "2000"}) == 2000
    assert envelope.expiration_of({}) is None

    headers = envelope.transport_headers(10_000, 500)
    assert envelope.remaining_ms(headers, 9_000) == 1_000
    assert envelope.remaining_ms(headers, 11_000) == 0
    assert not envelope.expired(headers, 1_000, 1_499)
    assert envelope.expired(headers, 1_000, 1_500)
    assert envelope.remaining_ms({"due_ms": "10000"}, 0) == 0  # from a foreign program


@pytest.mark.parametrize("digits", [16, 400, 5_000])
def test_a_time_of_too_many_digits_is_none(digits: int) -> None:
    headers = {"kombu": "1", "due_ms": "9" * digits, "expiration_ms": "9" * digits}
    assert envelope.remaining_ms(headers, 0) == 0
    assert not envelope.expired(headers, 0, 1)
    assert envelope.expiration_of({"expiration": "9" * digits}) is None
