"""Pushes to URLs, byte for byte."""

import base64
import hashlib
import hmac
import json
from urllib.parse import unquote

import pytest

from cmqd import __version__
from cmqd.core.outcome import Push
from cmqd.server.push.webhooks import encoded, key_of, request_of, signature
from cmqd_segment.records import StoredMessage
from cmqd_types.messages import Labels

SECRET = "whsec_" + base64.b64encode(b"twenty-four secret bytes").decode()
OLDER = "whsec_" + base64.b64encode(b"and as many of the older").decode()
NOW_S = 1_700_000_015


def a_push(
    body: bytes = b"42 apples", *, content_format: str = "json", labels: Labels | None = None, account: str = "shop"
) -> Push:
    message = StoredMessage(7, 0x2A, 1_700_000_000_999, body, {"x-cmq-message-id": "forged", "a": "b"}, labels=labels)
    return Push(account, "orders", "north", 3, "http://hooks.example/", content_format, message, 1)


def expected_signature(secret: bytes, signed: bytes) -> str:
    """HMAC-SHA256 as in RFC 2104, without the module of the code under test."""
    key = secret.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + signed).digest()
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()
    return "v1," + base64.b64encode(outer).decode()


def test_json_byte_for_byte() -> None:
    headers, body = request_of(a_push(labels=["apple", "imac"]), [SECRET], NOW_S, "r-1")

    assert body == (
        b'{"TopicOwner":"shop","topicName":"orders","subscriptionName":"north","msgId":"Msg-000000000000002a",'
        b'"msgBody":"42 apples","publishTime":1700000000}'
    )
    signed = b"Msg-000000000000002a.1700000015." + body
    assert headers == {
        "Content-Type": "text/plain; charset=utf-8",
        "User-Agent": f"cmqd/{__version__}",
        "x-cmq-request-id": "r-1",
        "x-cmq-message-id": "Msg-000000000000002a",
        "x-cmq-message-tag": "apple,imac",
        "webhook-id": "Msg-000000000000002a",
        "webhook-timestamp": "1700000015",
        "webhook-signature": expected_signature(b"twenty-four secret bytes", signed),
    }


def test_simplified_byte_for_byte() -> None:
    everything = bytes(range(256))

    headers, body = request_of(
        a_push(everything, content_format="simplified", labels="orders.north"), [SECRET], NOW_S, "r-2"
    )

    assert body == everything
    signed = b"Msg-000000000000002a.1700000015." + everything
    assert headers == {
        "Content-Type": "text/plain; charset=utf-8",
        "User-Agent": f"cmqd/{__version__}",
        "x-cmq-request-id": "r-2",
        "x-cmq-message-id": "Msg-000000000000002a",
        "x-cmq-routing-key": "orders.north",
        "webhook-id": "Msg-000000000000002a",
        "webhook-timestamp": "1700000015",
        "webhook-signature": expected_signature(b"twenty-four secret bytes", signed),
    }


@pytest.mark.parametrize("text", ["", "ü", '"\\\n\t\0', "\u2028", "😀", "</script>", "\ufeffbom"])
def test_text_is_text_in_json(text: str) -> None:
    headers, body = request_of(a_push(text.encode()), [SECRET], NOW_S, "r")

    assert json.loads(body)["msgBody"] == text
    assert "x-cmq-body-encoding" not in headers


@pytest.mark.parametrize("raw", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", bytes(range(256))])
def test_a_body_that_is_not_utf_8_is_base64_in_json_and_marked(raw: bytes) -> None:
    headers, body = request_of(a_push(raw), [SECRET], NOW_S, "r")

    assert base64.b64decode(json.loads(body)["msgBody"], validate=True) == raw
    assert headers["x-cmq-body-encoding"] == "base64"


def test_a_rotated_secret_signs_too_while_it_counts() -> None:
    headers, body = request_of(a_push(), [SECRET, OLDER], NOW_S, "r")

    signed = b"Msg-000000000000002a.1700000015." + body
    assert headers["webhook-signature"] == " ".join(
        [
            expected_signature(b"twenty-four secret bytes", signed),
            expected_signature(b"and as many of the older", signed),
        ]
    )


def test_without_a_secret_there_is_no_signature() -> None:
    headers, _ = request_of(a_push(), [], NOW_S, "r")

    assert "webhook-signature" not in headers


def test_signatures_are_those_of_the_standard_library() -> None:
    key = bytes(range(24))
    secret = "whsec_" + base64.b64encode(key).decode()
    signed = b"msg_1.1614265330." + b'{"test": 2432232314}'

    digest = hmac.new(key, signed, hashlib.sha256).digest()

    assert signature(secret, signed) == "v1," + base64.b64encode(digest).decode() == expected_signature(key, signed)


def test_the_published_vector_of_standard_webhooks() -> None:
    signed = b'msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}'

    assert signature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", signed) == (
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!!!", "whsec_abc", "c2VjcmV0c2VjcmV0", "whsec_ü"])
def test_what_is_no_secret_is_refused_without_repeating_it(secret: str) -> None:
    with pytest.raises(ValueError, match=r"^a secret is 'whsec_' followed by base64$"):
        key_of(secret)


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("apple", "apple"),
        ("a.b.*#", "a.b.*#"),
        ("100%", "100%25"),
        ("a b", "a%20b"),
        ("苹果", "%E8%8B%B9%E6%9E%9C"),
        ("\r\nx: y", "%0D%0Ax:%20y"),
        ("\x7f\x00", "%7F%00"),
    ],
)
def test_what_a_header_cannot_carry_is_percent_encoded(text: str, header: str) -> None:
    assert encoded(text) == header
    assert unquote(header) == text


def test_tags_are_joined_by_commas_and_a_message_without_any_has_no_such_header() -> None:
    tagged, _ = request_of(a_push(labels=["苹果", "a"]), [], NOW_S, "r")
    plain, _ = request_of(a_push(labels=[]), [], NOW_S, "r")

    assert tagged["x-cmq-message-tag"] == "%E8%8B%B9%E6%9E%9C,a"
    assert not {"x-cmq-message-tag", "x-cmq-routing-key"} & plain.keys()


def test_headers_of_the_publisher_are_not_sent() -> None:
    headers, _ = request_of(a_push(), [], NOW_S, "r")

    assert "a" not in headers
    assert headers["x-cmq-message-id"] == "Msg-000000000000002a"
