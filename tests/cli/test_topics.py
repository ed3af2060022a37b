"""``cmq topic``, ``cmq sub`` and ``cmq publish``."""

import json
import re
from pathlib import Path

import pytest

from cmq_cli.exitcodes import ExitCode
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.cases import each_case
from support.client.cmq_runs import Cmq, ThreadedServer
from support.eventually import eventually


@pytest.fixture
def shop(server: ThreadedServer) -> ThreadedServer:
    """A topic ``shop``, all of which goes to the queue ``orders``."""
    server.do(server.local.admin.create_topic, "shop")
    server.do(server.local.subscribe, "shop", "all", "orders")
    return server


def _bodies(server: ThreadedServer) -> list[bytes]:
    return server.do(server.local.bodies, "orders")


# ---------------------------------------------------------------------- topics


def test_a_topic_is_created_shown_changed_and_deleted(cmq_at: Cmq) -> None:
    made = cmq_at("topic", "create", "shop", "--filter-type", "routing", "--max-message-bytes", "4096")
    assert (made.code, made.out, made.err) == (0, "", "topic 'shop' created\n")

    shown = cmq_at("topic", "info", "shop").out
    assert "filter            routing\n" in shown
    assert "max message size  4 KiB\n" in shown
    assert "lifecycle         1 day\n" in shown
    changed = cmq_at("topic", "set", "shop", "--max-message-bytes", "2048", "--output", "json").json
    assert (changed["name"], changed["max_message_bytes"], changed["lifecycle"]) == ("shop", 2048, 86_400)

    assert cmq_at("topic", "delete", "shop", "--yes").err == "topic 'shop' deleted\n"
    gone = cmq_at("topic", "info", "shop")
    assert (gone.code, "does not exist" in gone.err) == (ExitCode.NOT_FOUND, True)


def test_a_topic_that_exists_is_refused_or_accepted(cmq_at: Cmq, shop: ThreadedServer) -> None:
    assert cmq_at("topic", "create", "shop").code == ExitCode.FAILED
    assert cmq_at("topic", "create", "shop", "--ensure").err == "topic 'shop' exists with the same attributes\n"
    assert cmq_at("topic", "create", "new", "--ensure", "--output", "json").json["created"] is True
    differs = cmq_at("topic", "create", "shop", "--ensure", "--filter-type", "routing")
    assert differs.code == ExitCode.FAILED
    assert differs.out.splitlines()[1].split() == ["filter", "type", "tag", "routing"]


def test_a_name_that_the_server_cut_is_told(cmq_at: Cmq) -> None:
    made = cmq_at("topic", "create", "n" * 70)

    assert made.err == f"the name was cut to 64 bytes\ntopic '{'n' * 64}' created\n"
    assert cmq_at("topic", "create", "m" * 70, "--output", "json").json["name"] == "m" * 64


def test_topics_are_listed_with_their_counts(cmq_at: Cmq, shop: ThreadedServer) -> None:
    shop.do(shop.local.admin.create_topic, "mail", filter_type="routing")

    table = cmq_at("topic", "list").out.splitlines()
    assert table[0].split() == ["name", "filter", "subscriptions", "retained", "oldest", "message"]
    assert table[1].split() == ["mail", "routing", "0", "0", "-"]
    assert table[2].split() == ["shop", "tag", "1", "0", "-"]
    found = cmq_at("topic", "list", "--search", "sho", "--output", "json").json
    assert (found["total"], found["topics"][0]["subscriptions"]) == (1, 1)
    assert "continue with --offset 1" in cmq_at("topic", "list", "--limit", "1").err


def test_a_topic_with_subscriptions_is_not_deleted(cmq_at: Cmq, shop: ThreadedServer) -> None:
    shop.do(shop.local.admin.create_topic, "mail")
    ran = cmq_at("topic", "delete", "mail", "shop", "--yes", "--output", "json")
    assert (ran.code, ran.json) == (ExitCode.PARTIAL, {"deleted": ["mail"], "failed": {"shop": "topic_in_use"}})


# ---------------------------------------------------------------------- subscriptions


def test_a_subscription_to_a_queue_is_made_and_ended(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.admin.create_topic, "shop")

    made = cmq_at("sub", "create", "shop", "fruit", "--queue", "orders", "--filter-tag", "apple", "--filter-tag", "nut")

    assert (made.code, made.out, made.err) == (0, "", "subscription 'fruit' created\n")
    assert server.local.link.of(wire.Subscribe)[0].attributes == {
        "protocol": "queue",
        "endpoint": "orders",
        "filter_tags": ["apple", "nut"],
    }
    assert cmq_at("sub", "create", "shop", "fruit", "--queue", "orders").code == ExitCode.FAILED
    same = cmq_at("sub", "create", "shop", "fruit", "--queue", "orders", "--ensure")
    assert same.err == "subscription 'fruit' exists with the same attributes\n"
    differs = cmq_at("sub", "create", "shop", "fruit", "--queue", "orders", "--filter-tag", "pear", "--ensure")
    assert differs.code == ExitCode.FAILED
    assert differs.out.splitlines()[1].split() == ["filter", "tags", "apple,", "nut", "pear"]
    assert cmq_at("sub", "delete", "shop", "fruit", "--yes").err == "subscription 'fruit' deleted\n"
    assert cmq_at("sub", "info", "shop", "fruit").code == ExitCode.NOT_FOUND


def test_the_secret_of_a_subscription_to_a_url_is_shown_once(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.admin.create_topic, "shop", filter_type="routing")
    made = cmq_at(
        *("sub", "create", "shop", "hook", "--to-url", "https://shop.example", "--strategy", "backoff"),
        *("--content-format", "simplified", "--binding-key", "a.#"),
    )

    secret = re.fullmatch(r"secret  (whsec_\S+)\n", made.out)
    assert secret is not None
    assert "shown only now" in made.err
    (request,) = server.local.link.of(wire.Subscribe)
    assert request.attributes == {
        "endpoint": "https://shop.example",
        "binding_keys": ["a.#"],
        "strategy": "backoff",
        "content_format": "simplified",
    }
    options = ("--to-url", "https://shop.example", "--binding-key", "b", "--output", "json")
    document = cmq_at("sub", "create", "shop", "hook2", *options).json
    assert document["protocol"] == "https"
    assert document["secret"].startswith("whsec_")
    assert document["secret"] != secret[1]
    assert "whsec" not in cmq_at("sub", "info", "shop", "hook").out
    assert "secret" not in cmq_at("sub", "info", "shop", "hook", "--output", "json").json

    rotated = cmq_at("sub", "rotate-secret", "shop", "hook", "--overlap", "1h")
    second = re.match(r"secret         (whsec_\S+)\nold one until  20", rotated.out)
    assert second is not None
    assert second[1] != secret[1]
    assert server.local.link.of(wire.RotateSecret)[0].overlap_ms == 3_600_000
    again = cmq_at("sub", "rotate-secret", "shop", "hook", "--output", "json").json
    assert again["secret"] not in (secret[1], second[1])


@pytest.fixture
def hook(shop: ThreadedServer) -> ThreadedServer:
    """With a subscription of an endpoint that took seven messages, refused two, and has not answered to a third."""
    local = shop.local

    async def push() -> None:
        # Broker time stands: on a slow machine the first retry would be under way again before a test looks.
        local.broker.clock.stop()
        topic = local.admin.topic("shop")
        await topic.subscribe("hook", url="https://shop.example", filter_tags=["a"])
        for count, error in ((7, None), (2, "answered 500\n\x1b[2J")):
            await topic.publish_batch([b"x"] * count, tags=["a"])
            await eventually(lambda expected=count: len(local.pushes) == expected)
            await local.end_pushes(error)
        await topic.publish(b"x", tags=["a"])
        await local.admin.queue("orders").clear()

    shop.do(push)
    return shop


def test_subscriptions_are_listed_with_their_waiting_messages(
    cmq_at: Cmq, shop: ThreadedServer, hook: ThreadedServer
) -> None:
    table = cmq_at("sub", "list", "shop").out.splitlines()
    assert table[1].split() == ["all", "queue", "orders", "0", "0", "no", "-"]
    assert table[2].split()[:6] == ["hook", "https", "https://shop.example", "1", "2", "no"]
    assert table[2].endswith("answered 500 \\x1b[2J")
    found = cmq_at("sub", "list", "shop", "--search", "hoo", "--output", "json").json
    assert (found["topic"], found["total"], found["subscriptions"][0]["waiting"]) == ("shop", 1, 1)
    assert "1 of 2" in cmq_at("sub", "list", "shop", "--limit", "1").err
    assert cmq_at("sub", "list", "nowhere").code == ExitCode.NOT_FOUND


def test_the_subscriptions_to_a_queue_are_listed_by_topic(cmq_at: Cmq, shop: ThreadedServer) -> None:
    assert cmq_at("topic", "create", "art").code == ExitCode.OK
    assert cmq_at("sub", "create", "art", "more", "--queue", "orders").code == ExitCode.OK

    table = cmq_at("sub", "list", "--queue", "orders").out.splitlines()
    assert [line.split() for line in table] == [
        ["topic", "name", "waiting", "in", "retry", "paused", "last", "error"],
        ["art", "more", "0", "0", "no", "-"],
        ["shop", "all", "0", "0", "no", "-"],
    ]
    shown = cmq_at("sub", "list", "--queue", "orders", "--limit", "1", "--output", "json").json
    assert (shown["queue"], shown["total"], len(shown["subscriptions"])) == ("orders", 2, 1)
    assert shown["subscriptions"][0]["topic"] == "art"
    assert "continue with --offset 1" in cmq_at("sub", "list", "--queue", "orders", "--limit", "1").err
    assert cmq_at("sub", "list", "--queue", "nowhere").code == ExitCode.NOT_FOUND
    for wrong in ([], ["shop", "--queue", "orders"], ["--queue", "orders", "--search", "a"]):
        assert cmq_at("sub", "list", *wrong).code == ExitCode.USAGE
    shop.local.link.refuse(wire.ListQueueSubscriptions, ErrorCode.UNKNOWN_OPERATION, "operation 102 is not known")
    refused = cmq_at("sub", "list", "--queue", "orders")
    assert (refused.code, "operation 102 is not known" in refused.err) == (ExitCode.FAILED, True)


def test_a_subscription_is_shown(cmq_at: Cmq, hook: ThreadedServer) -> None:
    shown = cmq_at("sub", "info", "shop", "hook").out
    assert "filter tags     a\n" in shown
    assert "strategy        exponential_decay\n" in shown
    assert "in retry        2\n" in shown
    assert "last error      answered 500 \\x1b[2J\n" in shown
    assert "last error at   20" in shown
    document = cmq_at("sub", "info", "shop", "hook", "--output", "json").json
    assert (document["waiting"], document["delivered"], document["strategy"]) == (1, 7, "exponential_decay")


def test_a_subscription_is_changed(cmq_at: Cmq, shop: ThreadedServer, hook: ThreadedServer) -> None:
    changed = cmq_at("sub", "set", "shop", "hook", "--filter-tag", "b", "--strategy", "backoff", "--output", "json")
    assert (changed.json["filter_tags"], changed.json["strategy"]) == (["b"], "backoff")
    assert cmq_at("sub", "set", "shop", "hook", "--no-filter-tags", "--output", "json").json["filter_tags"] == []
    assert cmq_at("sub", "pause", "shop", "hook").err == "subscription 'hook' is paused\n"
    assert cmq_at("sub", "resume", "shop", "hook", "--output", "json").json["paused"] is False
    assert [request.attributes for request in shop.local.link.of(wire.SetSubscriptionAttributes)] == [
        {"filter_tags": ["b"], "strategy": "backoff"},
        {"filter_tags": []},
        {"paused": True},
        {"paused": False},
    ]


def test_waiting_messages_are_tried_again_or_dropped(cmq_at: Cmq, hook: ThreadedServer) -> None:
    assert cmq_at("sub", "retry", "shop", "hook").err == "2 messages are retried\n"
    assert cmq_at("sub", "retry", "shop", "hook", "--output", "json").json == {"retried": 0}
    assert cmq_at("sub", "drop", "shop", "hook", "--yes", "--output", "json").json == {"dropped": 3}
    assert cmq_at("sub", "drop", "shop", "hook", "--yes").err == "0 messages dropped\n"


def test_one_message_is_shown_retried_and_dropped(cmq_at: Cmq, hook: ThreadedServer) -> None:
    document = cmq_at("sub", "peek", "shop", "hook", "--max", "2", "--bodies", "--output", "json").json
    first, second = document["messages"]
    assert (first["state"], first["attempts"], first["last_error"]) == ("in_retry", 1, "answered 500\n\x1b[2J")
    assert (second["body"], second["body_encoding"], second["headers"]) == ("x", "utf-8", {})
    assert document["next_start"] is not None
    shown = cmq_at("sub", "peek", "shop", "hook")
    assert shown.out.split()[:2] == ["id", "state"]
    assert first["id"] in shown.out
    assert "answered 500 \\x1b[2J" in shown.out
    assert "body" not in cmq_at("sub", "peek", "shop", "hook", "--output", "json").json["messages"][0]
    more = cmq_at("sub", "peek", "shop", "hook", "--max", "1", "--bodies")
    assert "--start" in more.err

    retried = cmq_at("sub", "retry", "shop", "hook", "--message", first["id"])
    assert retried.err == f"message {first['id']} is retried\n"
    dropped = cmq_at("sub", "drop", "shop", "hook", "--message", second["id"], "--output", "json")
    assert dropped.json == {"dropped": 1}
    again = cmq_at("sub", "drop", "shop", "hook", "--message", second["id"])
    assert again.code == ExitCode.NOT_FOUND
    assert "does not wait for subscription 'hook'" in again.err
    assert cmq_at("sub", "retry", "shop", "hook", "--message", "7").code == ExitCode.USAGE
    assert cmq_at("sub", "peek", "shop", "all").err == "no message waits for 'all'\n"


def test_the_deliveries_of_a_message_are_shown(cmq_at: Cmq, hook: ThreadedServer) -> None:
    message_id = cmq_at("sub", "peek", "shop", "hook", "--output", "json").json["messages"][0]["id"]

    shown = cmq_at("topic", "deliveries", "shop", message_id).out
    assert shown.splitlines()[0].split() == ["id", message_id]
    assert "delivered" in shown
    assert "in_retry" in shown
    document = cmq_at("topic", "deliveries", "shop", message_id, "--output", "json").json
    states = {one["subscription"]: one["state"] for one in document["deliveries"]}
    assert states == {"all": "delivered", "hook": "in_retry"}
    assert cmq_at("topic", "deliveries", "shop", "Msg-00000000000fffff").code == ExitCode.NOT_FOUND


def test_labels_are_tested_against_the_subscriptions(cmq_at: Cmq) -> None:
    cmq_at("topic", "create", "repository", "--filter-type", "routing")
    cmq_at("queue", "create", "builds")
    cmq_at("sub", "create", "repository", "all", "--queue", "builds", "--binding-key", "#")
    keys = ("--binding-key", "docs.*", "--binding-key", "src.core.#.py.*")
    cmq_at("sub", "create", "repository", "some", "--queue", "builds", *keys)

    shown = cmq_at("topic", "match", "repository", "--routing-key", "src.core.py")
    assert [line.rstrip().split(maxsplit=3) for line in shown.out.splitlines()[1:]] == [
        ["all", "stored", "builds", "#"],
        ["some", "no_match", "builds", "docs.* differs at 'src'; src.core.#.py.* has more words"],
    ]
    assert shown.err == "1 subscription of 2 would get the message\n"
    document = cmq_at("topic", "match", "repository", "--routing-key", "docs.md", "--output", "json").json
    assert (document["matched"], [one["matches"] for one in document["subscriptions"]]) == (2, [True, True])
    assert cmq_at("topic", "match", "repository", "--tag", "red").code == ExitCode.FAILED
    assert cmq_at("topic", "match", "nowhere").code == ExitCode.NOT_FOUND


def test_tags_are_tested_against_the_subscriptions(cmq_at: Cmq) -> None:
    cmq_at("topic", "create", "shop")
    cmq_at("queue", "create", "orders")
    cmq_at("sub", "create", "shop", "all", "--queue", "orders")
    cmq_at("sub", "create", "shop", "some", "--queue", "orders", "--filter-tag", "paid", "--filter-tag", "new")

    shown = cmq_at("topic", "match", "shop", "--tag", "new", "--tag", "old").out.splitlines()
    assert [line.split()[3:] for line in shown[1:]] == [["every", "message"], ["new"]]
    shown = cmq_at("topic", "match", "shop").out.splitlines()
    assert shown[2].split()[3:] == ["none", "of", "paid,", "new"]


# ---------------------------------------------------------------------- publish


def test_a_message_is_published(cmq_at: Cmq, shop: ThreadedServer) -> None:
    ran = cmq_at("publish", "shop", "grüße", "--tag", "apple", "--tag", "nut", "--header", "k=v", "--dedup-id", "A")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("id       Msg-")
    assert ran.out.endswith("matched  1 subscription\n")
    (request,) = shop.local.link.of(wire.PublishMessages)
    assert (request.bodies, request.tags, request.headers) == (["grüße".encode()], [["apple", "nut"]], [{"k": "v"}])
    again = cmq_at("publish", "shop", "x", "--dedup-id", "A")
    assert "was published before" in again.out
    assert _bodies(shop) == ["grüße".encode()]


def test_an_unmatched_message_is_no_failure(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.admin.create_topic, "shop", filter_type="routing")
    ran = cmq_at("publish", "shop", "x", "--routing-key", "a.b")
    assert (ran.code, "no subscription; the message was discarded" in ran.out) == (0, True)
    assert cmq_at("publish", "shop", "x", "--routing-key", "a.b", "--output", "json").json["matched"] == 0
    assert cmq_at("publish", "nowhere", "x").code == ExitCode.NOT_FOUND


def test_a_copy_is_shown_with_its_published_message(cmq_at: Cmq, shop: ThreadedServer) -> None:
    published = cmq_at("publish", "shop", "x", "--tag", "red", "--output", "json").json

    shown = cmq_at("peek", "orders").out
    assert f"copy of {published['id']} · topic shop · subscription all · published " in shown
    assert " · tag red\n" in shown
    copy_of = cmq_at("receive", "orders", "--output", "json").json["copy_of"]
    assert (copy_of["topic"], copy_of["subscription"], copy_of["id"]) == ("shop", "all", published["id"])
    assert (copy_of["tags"], copy_of["routing_key"]) == (["red"], None)
    shop.do(shop.local.put, "orders", b"sent")
    assert "copy_of" not in cmq_at("receive", "orders", "--output", "json").json


def test_a_file_is_published_whole(cmq_at: Cmq, shop: ThreadedServer, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\x00\xff\n\n")
    assert cmq_at("publish", "shop", "--file", str(tmp_path / "body")).code == 0
    assert cmq_at("publish", "shop", "--file", "-", stdin=b"a\nb\n").code == 0
    assert _bodies(shop) == [b"\x00\xff\n\n", b"a\nb\n"]
    assert "cannot be read" in cmq_at("publish", "shop", "--file", str(tmp_path / "none")).err


def test_lines_are_published_in_order_a_message_each(cmq_at: Cmq, shop: ThreadedServer) -> None:
    shop.do(shop.local.admin.create_queue, "orders2")
    shop.do(shop.local.subscribe, "shop", "red", "orders2", filter_tags=["red"])
    lines = [str(number).encode() for number in range(1000)]

    ran = cmq_at(
        *("publish", "shop", "--stdin", "--tag", "red", "--output", "json"),
        stdin=b"\n".join([*lines[:500], b"", *lines[500:]]),
    )

    assert ran.code == 0
    document = ran.json
    assert document.pop("seconds") >= 0
    assert document == {
        "published": 1000,
        "matched": 2000,
        "discarded": 0,
        "repeated": 0,
        "unanswered": 0,
        "empty_lines_skipped": 1,
        "error": None,
        "line": None,
    }
    assert _bodies(shop) == lines
    assert len(shop.local.link.of(wire.PublishMessages)) <= 5
    assert shop.local.link.of(wire.PublishMessages)[0].tags == [["red"]]


def test_the_summary_counts_copies_and_unmatched_messages(cmq_at: Cmq, shop: ThreadedServer) -> None:
    assert cmq_at("sub", "set", "shop", "all", "--filter-tag", "red").code == 0
    stream = b'{"t": "red"}\n\n{"t": ["blue"]}\n{}\n{"t": null}\n'

    ran = cmq_at("publish", "shop", "--ndjson", "--tag-field", "t", stdin=stream)

    assert (ran.code, ran.out) == (0, "")
    assert ran.err == (
        "4 published; 1 copy for subscriptions; 3 discarded without a matching subscription; 1 empty line left out\n"
    )
    assert _bodies(shop) == [b'{"t": "red"}']
    shop.do(shop.local.link.lose_answer, wire.PublishMessages)
    assert "1 repeated" in cmq_at("publish", "shop", "--stdin", "--tag", "red", stdin=b"x").err


def test_fields_of_a_json_line_become_body_tags_and_key(cmq_at: Cmq, shop: ThreadedServer, tmp_path: Path) -> None:
    lines = [
        {"body": {"a": [1, "ü"]}, "tags": ["red", "big"], "key": "x.y"},
        {"body": "plain\ntext", "tags": "blue", "key": "x"},
        {"body": 7, "key": "x.y"},
    ]
    (tmp_path / "events").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    options = ("--ndjson", "--file", str(tmp_path / "events"), "--body-field", "body")

    assert cmq_at("publish", "shop", *options, "--tag-field", "tags").code == 0
    shop.do(shop.local.admin.create_topic, "routes", filter_type="routing")
    assert cmq_at("publish", "routes", *options, "--key-field", "key").code == 0

    assert _bodies(shop) == ['{"a": [1, "ü"]}'.encode(), b"plain\ntext", b"7"]
    first, second = shop.local.link.of(wire.PublishMessages)
    assert (first.tags, first.routing_keys) == ([["red", "big"], ["blue"], []], None)
    assert (second.tags, second.routing_keys) == (None, ["x.y", "x", "x.y"])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"not json", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'{"t": "a"}', "no field 'b'"),
        (b'{"b": "x", "t": 7}', "the field 't' must be a string or a list of strings"),
        (b'{"b": "x", "t": ["a", null]}', "the field 't' must be"),
        (b'{"b": "\xff"}', "the field 'b' is not JSON"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(cmq_at: Cmq, shop: ThreadedServer, line: bytes, why: str) -> None:
    options = ("publish", "shop", "--ndjson", "--body-field", "b", "--tag-field", "t")

    ran = cmq_at(*options, stdin=b'{"b": "one"}\n\n' + line + b'\n{"b": "later"}\n')
    first = cmq_at(*options, "--output", "json", stdin=line)

    assert ran.code == ExitCode.PARTIAL
    assert "cmq: line 3: " in ran.err
    assert why in ran.err
    assert ran.err.startswith("1 published")
    assert _bodies(shop) == [b"one"]
    assert first.code == ExitCode.FAILED
    assert (first.json["error"], first.json["line"], first.json["published"]) == ("line_unusable", 1, 0)


def test_a_missing_key_is_named(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.do(server.local.admin.create_topic, "routes", filter_type="routing")
    ran = cmq_at("publish", "routes", "--ndjson", "--key-field", "k", stdin=b'{"k": "a"}\n{"k": null}\n')
    assert (ran.code, "line 2: the field 'k' must be a string" in ran.err) == (ExitCode.PARTIAL, True)


def test_a_line_that_the_server_refuses_is_named_and_those_before_it_are_published(
    cmq_at: Cmq, shop: ThreadedServer
) -> None:
    ran = cmq_at("publish", "shop", "--stdin", "--output", "json", stdin=b"a\nb\n\n" + b"x" * 70_000 + b"\nc\n")

    assert ran.code == ExitCode.PARTIAL
    assert (ran.json["published"], ran.json["error"], ran.json["line"]) == (2, "message_too_large", 4)
    assert ran.json_error["text"].startswith("line 4: body 0 has 70000 bytes")
    assert _bodies(shop) == [b"a", b"b"]


def test_a_stream_that_fails_says_how_far_it_came(cmq_at: Cmq, shop: ThreadedServer) -> None:
    shop.do(shop.local.link.refuse, wire.PublishMessages, ErrorCode.INTERNAL_ERROR, "no idea")

    ran = cmq_at("publish", "shop", "--stdin", "--output", "json", stdin=b"x\n" * 300)

    assert ran.code == ExitCode.FAILED
    assert (ran.json["published"], ran.json["error"], ran.json["line"]) == (0, "internal_error", None)
    assert "after 0 messages: no idea" in ran.err
    assert "connection" not in ran.err
    assert ran.json_error["retryable"] is False


def test_a_stream_that_fails_tells_the_numbers_of_the_request_if_asked(cmq_at: Cmq, shop: ThreadedServer) -> None:
    shop.do(shop.local.link.refuse, wire.PublishMessages, ErrorCode.INTERNAL_ERROR, "no idea")

    ran = cmq_at("publish", "shop", "--stdin", "--verbose", "--output", "json", stdin=b"x\n")

    assert {"request_id", "connection_id"} <= ran.json_error.keys()


@each_case(
    "arguments",
    [
        ("publish", "shop"),
        ("publish", "shop", "a", "--stdin"),
        ("publish", "shop", "a", "--file", "b"),
        ("publish", "shop", "a", "--ndjson"),
        ("publish", "shop", "--stdin", "--ndjson"),
        ("publish", "shop", "--stdin", "--file", "b"),
        ("publish", "shop", "a", "--tag", "a", "--routing-key", "b"),
        ("publish", "shop", "--ndjson", "--tag", "a", "--tag-field", "b"),
        ("publish", "shop", "--ndjson", "--routing-key", "a", "--key-field", "b"),
        ("publish", "shop", "--ndjson", "--tag-field", "a", "--key-field", "b"),
        ("publish", "shop", "--stdin", "--tag-field", "b"),
        ("publish", "shop", "--stdin", "--dedup-id", "b"),
        ("publish", "shop", "a", "--header", "novalue"),
        ("topic", "create", "shop", "--filter-type", "colour"),
        ("topic", "set", "shop"),
        ("topic", "delete"),
        ("sub", "create", "shop", "a"),
        ("sub", "create", "shop", "a", "--queue", "b", "--to-url", "http://c"),
        ("sub", "create", "shop", "a", "--queue", "b", "--filter-tag", "c", "--binding-key", "d"),
        ("sub", "create", "shop", "a", "--to-url", "ftp://c"),
        ("sub", "create", "shop", "a", "--queue", "b", "--strategy", "prayer"),
        ("sub", "set", "shop", "a"),
        ("sub", "set", "shop", "a", "--filter-tag", "b", "--no-filter-tags"),
        ("sub", "delete", "shop"),
    ],
)
def test_wrong_usage_has_its_own_exit_code(cmq_at: Cmq, server: ThreadedServer, arguments: tuple[str, ...]) -> None:
    ran = cmq_at(*arguments)

    assert ran.code == ExitCode.USAGE
    assert ran.err.startswith("cmq: ")
    assert ran.out == ""
    assert not server.local.link.handled


def test_the_server_of_a_queue_and_of_a_topic_is_shown(cmq_at: Cmq) -> None:
    cmq_at("queue", "create", "orders-here")
    cmq_at("topic", "create", "events-here")

    queue = cmq_at("queue", "locate", "orders-here", "--output", "json").json
    topic = cmq_at("topic", "locate", "events-here")

    assert (queue["shard"], queue["epoch"]) == (0, 0)
    assert queue["addresses"][0] in topic.out
    assert cmq_at("queue", "locate", "events-here").code == ExitCode.NOT_FOUND
