"""The error to any request is small, however long the names and values of the request are."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cmqd.core.domain_errors import DETAIL_CHARACTERS, SHOWN_CHARACTERS, InvalidArgument, shown
from cmqd.core.urls import check_url
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import REQUEST_TYPES, Error, Request
from support.costs.pattern_calls import pattern_calls
from support.server.server_rig import ServerRig

LONG = "a" * 200_000
EXISTING: dict[str, Any] = {
    "queue": "jobs",
    "topic": "news",
    "subscription": "copies",
    "schedule": "daily",
    "account": "admin",
    "target": "jobs",
}


def plain_value(field: str, kind: msgspec.inspect.Type) -> Any:
    """Return a value of a type that is as legal as the type alone can tell."""
    match kind:
        case msgspec.inspect.Metadata():
            return plain_value(field, kind.type)
        case msgspec.inspect.UnionType():
            return plain_value(field, kind.types[0])
        case msgspec.inspect.StrType():
            return EXISTING.get(field, "word")
        case msgspec.inspect.BytesType():
            return b"x"
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return [plain_value(field, kind.item_type)]
        case msgspec.inspect.DictType():
            return {}
        case _:
            return 1


def with_texts(field: str, kind: msgspec.inspect.Type, text: str) -> Iterator[Any]:
    """Yield the values of a type that have a text in each place for a text."""
    match kind:
        case msgspec.inspect.Metadata():
            yield from with_texts(field, kind.type, text)
        case msgspec.inspect.UnionType():
            for each in kind.types:
                yield from with_texts(field, each, text)
        case msgspec.inspect.StrType():
            yield text
        case msgspec.inspect.BytesType():
            yield text.encode()
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            for value in with_texts(field, kind.item_type, text):
                yield [value]
        case msgspec.inspect.DictType():
            yield {text: "x"}
            for name in ("dead_letter_queue", "endpoint", "filter_type", "cron", "zone", "queue", "delay_ms", "name"):
                yield {name: text}
                yield {name: [text] * 3}
        case _:
            return


def long_requests(kind: type[Request]) -> Iterator[Request]:
    """Yield requests with a long text in one place, and what exists in the others."""
    fields = [field for field in msgspec.structs.fields(kind) if field.name != "request_id"]
    types = {field.name: msgspec.inspect.type_info(field.type) for field in fields}
    plain = {field.name: plain_value(field.name, types[field.name]) for field in fields if field.required}
    for field in fields:
        for value in with_texts(field.name, types[field.name], LONG):
            yield kind(1, **(plain | {field.name: value}))


async def test_no_error_grows_with_a_value_of_its_request(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    await client.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    await client.expect(wire.SubscriptionInfo, wire.Subscribe, "news", "copies", {"endpoint": "jobs"})
    await client.expect(wire.ScheduleInfo, wire.CreateSchedule, "daily", {"queue": "jobs", "cron": "0 9 * * *"}, b"x")
    refused: set[str] = set()

    for kind in REQUEST_TYPES.values():
        for request in long_requests(kind):
            arguments = [getattr(request, name) for name in kind.__struct_fields__ if name != "request_id"]
            reply = await client.ask(kind, *arguments)
            if not isinstance(reply, Error):
                continue
            refused.add(kind.__name__)
            assert len(reply.text) < DETAIL_CHARACTERS + 500, (kind, reply.text[:2000])
            assert len(msgspec.msgpack.encode(reply)) < 4 * DETAIL_CHARACTERS, (kind, reply)

    assert len(refused) > 40, refused


def test_a_url_of_slashes_is_refused_without_a_pattern() -> None:
    """A pattern for the password of a URL once took the square of the URL's length, in the loop of the broker."""
    with pattern_calls() as calls, pytest.raises(InvalidArgument) as refused:
        check_url("http:" + "/" * 1_000_000, "endpoint")

    assert not calls
    assert len(refused.value.details["value"]) == SHOWN_CHARACTERS


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("https://user:secret@host/#", "'https://...@host/#'"),
        ("https://user:sec@ret@host/#", "'https://...@host/#'"),
        ("https://user:sec//ret@host/#", "'https://...@host/#'"),
        ("https://user:secret" + "x" * 3000 + "@host/", "'https://...@host/'"),
        ("https://@host/#", "'https://...@host/#'"),
        ("mailto:me@host#", "'mailto:me@host#'"),
    ],
)
def test_no_error_repeats_a_password(url: str, part: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_url(url, "endpoint")

    assert part in refused.value.text
    assert "secret" not in refused.value.text + str(refused.value.details)


@pytest.mark.parametrize("value", [LONG, LONG.encode(), [LONG] * 200, (LONG,), {"a": 1}, 5, None])
def test_a_shown_value_is_cut(value: object) -> None:
    assert len(shown(value)) <= SHOWN_CHARACTERS
