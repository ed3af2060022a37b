"""Errors of all operations of the JSON API: what every operation must refuse."""

from pathlib import Path
from typing import Any

import msgspec

from cmqd_gateway.rest.operation import Operation
from cmqd_gateway.rest.table import OPERATIONS
from cmqd_protocol.protocol_errors import ErrorCode
from support.gateway.operation_checks import SCHEDULE, file_of_tag, half, topic
from support.gateway.rest_calls import BY_NAME, RestCalls

NAMES = {
    "queue": "missing",
    "topic": "missing",
    "subscription": "missing",
    "schedule": "missing",
    "secret_id": "AKIDmissing",
    "account": "missing",
    "message": "Msg-0000000000000001",
}
"""Names of things that do not exist, for every parameter of a path."""

BODIES: dict[str, Any] = {
    "send_message": {"body": "x"},
    "send_messages": {"messages": [{"body": "x"}]},
    "delete_message": {"receipt_handle": "1"},
    "delete_messages": {"receipt_handles": ["1"]},
    "change_visibility": {"receipt_handle": "1", "timeout": 5},
    "change_visibilities": {"receipt_handles": ["1"], "timeout": 5},
    "release_message": {"receipt_handle": "1"},
    "release_messages": {"receipt_handles": ["1"]},
    "reject_message": {"receipt_handle": "1"},
    "reject_messages": {"receipt_handles": ["1"]},
    "rewind_queue": {"ago": 5},
    "send_half_message": {"body": "x"},
    "send_half_messages": {"messages": [{"body": "x"}]},
    "decide_half_message": {"message_id": "Msg-0000000000000001", "decision": "commit"},
    "decide_half_messages": {"decisions": [{"message_id": "Msg-0000000000000001", "decision": "commit"}]},
    "set_topic": {"max_message_bytes": 2048},
    "publish_message": {"body": "x"},
    "publish_messages": {"messages": [{"body": "x"}]},
    "create_subscription": {"queue": "orders"},
    "ensure_subscription": {"queue": "orders"},
    "create_schedule": {"queue": "missing", "cron": "0 9 * * *", "body": "x"},
    "ensure_schedule": {"queue": "missing", "cron": "0 9 * * *", "body": "x"},
    "set_key": {"enabled": False},
    "set_key_roles": {"roles": ["send"], "names": None},
    "import_key": {"secret_key": "a-secret-of-a-test"},
}
"""A valid body for each operation that needs one."""


def needs(operation: Operation[Any, Any, Any], **changes: Any) -> dict[str, Any]:
    """Return a valid request of an operation, about things that do not exist."""
    names = {name: value for name, value in NAMES.items() if f"{{{name}}}" in operation.path}
    return {**names, "body": BODIES.get(operation.name), **changes}


def with_problem(name: str) -> list[str]:
    return [operation.name for operation in OPERATIONS if name in operation.problems]


def test_the_operations_of_each_tag_have_a_file() -> None:
    files = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {Path(__file__).name}

    assert {file_of_tag(operation.tag) for operation in OPERATIONS} == files


async def test_every_operation_refuses_a_request_without_its_key(rest: RestCalls):
    for operation in OPERATIONS:
        path = operation.path.format(**NAMES)
        for headers in ({}, {"Authorization": f"Bearer {rest.key.secret_id}:wrong"}):
            answer = await rest.send(operation.method, path, headers=headers)
            assert (answer.status, answer.problem().name) == (401, "unauthorized")
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="cmqd", Basic realm="cmqd", charset="UTF-8"'


async def test_every_operation_refuses_an_unknown_query_parameter(rest: RestCalls):
    for operation in OPERATIONS:
        problem = await rest.refused(operation.name, **needs(operation), query={"srch": "x"})
        assert (problem.status, problem.field) == (400, "srch")


async def test_every_operation_refuses_a_body_that_is_not_its_own(rest: RestCalls):
    json, bearer = {"Content-Type": "application/json"}, rest.bearer()
    for operation in OPERATIONS:
        name, request = operation.name, needs(operation)
        if not operation.body.__struct_fields__:
            none = await rest.refused(name, **needs(operation, body={"force": True}))
            assert none.status == 400
            assert "takes no body" in none.detail
            continue
        names: dict[str, Any] = {part: value for part, value in request.items() if part != "body"}
        unknown = await rest.refused(name, **names, body={"srch": 1})
        assert (unknown.status, unknown.field) == (400, "srch")
        path = operation.path.format(**names)
        malformed = (await rest.send(operation.method, path, b"{", bearer | json)).problem()
        assert (malformed.status, malformed.name) == (400, "malformed_json")
        text = msgspec.json.encode(request["body"] or {})
        form = (await rest.send(operation.method, path, text, bearer | {"Content-Type": "text/plain"})).problem()
        assert (form.status, form.name) == (415, "unsupported_media_type")
        untyped = (await rest.send(operation.method, path, text, bearer)).problem()
        assert (untyped.status, untyped.name) == (415, "unsupported_media_type")
        packed = await rest.send(operation.method, path, text, bearer | json | {"Content-Encoding": "gzip"})
        assert (packed.status, packed.problem().field) == (415, "Content-Encoding")


async def test_every_operation_about_a_missing_thing_is_answered_with_404(rest: RestCalls):
    for part, problem in (
        ("queue", "queue_not_found"),
        ("topic", "topic_not_found"),
        ("schedule", "schedule_not_found"),
        ("secret_id", "key_not_found"),
        ("account", "account_not_found"),
    ):
        names = [name for name in with_problem(problem) if f"{{{part}}}" in BY_NAME[name].path]
        assert names
        for name in names:
            refusal = await rest.refused(name, **needs(BY_NAME[name]))
            assert (refusal.status, refusal.name, refusal.code) == (404, problem, int(ErrorCode[problem.upper()])), name


async def test_an_operation_on_a_missing_subscription_is_answered_with_404(rest: RestCalls):
    await rest.ok("ensure_topic", topic="news", body={})
    for name in with_problem("subscription_not_found"):
        refusal = await rest.refused(name, **needs(BY_NAME[name], topic="news"))
        assert (refusal.status, refusal.name) == (404, "subscription_not_found"), name


async def test_half_messages_need_a_transactional_queue(rest: RestCalls):
    for name in with_problem("not_transactional"):
        refusal = await rest.refused(name, **needs(BY_NAME[name], queue="orders"))
        assert (refusal.status, refusal.name) == (409, "not_transactional"), name


async def test_a_missing_queue_of_a_body_is_answered_with_404(rest: RestCalls):
    await rest.ok("ensure_topic", topic="news", body={})
    for name in ("create_subscription", "ensure_subscription"):
        refusal = await rest.refused(name, topic="news", subscription="copies", body={"queue": "missing"})
        assert (refusal.status, refusal.name) == (404, "queue_not_found")
    for name in ("create_schedule", "ensure_schedule"):
        refusal = await rest.refused(name, schedule="daily", body=BODIES[name])
        assert (refusal.status, refusal.name) == (404, "queue_not_found")
    await rest.ok("create_schedule", schedule="daily", body=SCHEDULE)
    refusal = await rest.refused("set_schedule", schedule="daily", body={"queue": "missing"})
    assert (refusal.status, refusal.name) == (404, "queue_not_found")


async def test_a_nearly_full_disk_is_answered_with_503_and_a_time(rest: RestCalls):
    # The gateway would repeat each request after the time that the broker names.
    rest.rig.retries = 0
    await half(rest)
    await topic(rest)
    rest.rig.server.hold_moves()
    for name in with_problem("disk_nearly_full"):
        names = {"queue": "half" if "half" in name else "orders", "topic": "news"}
        request = needs(BY_NAME[name])
        request |= {part: value for part, value in names.items() if part in request}

        answer = await rest.answer(name, **request)

        problem = answer.problem()
        assert (problem.status, problem.name, problem.retryable) == (503, "disk_nearly_full", True)
        assert problem.retry_after is not None
        assert int(answer.headers["Retry-After"]) >= 1
