"""The signature of API 2.0: the signed string, its variants, and the hosts that it may name."""

import base64
import hmac
from collections.abc import Sequence

import pytest

from cmqd_gateway.cmq.api2.signature import is_host, other_reading, signed_hosts, unsigned_names

KEY = "secret-key"


def form_of(**parameters: str) -> dict[str, bytes]:
    return {name: value.encode() for name, value in parameters.items()}


def with_signature(form: dict[str, bytes], text: str, algorithm: str = "sha1") -> dict[str, bytes]:
    return form | {"Signature": base64.b64encode(hmac.digest(KEY.encode(), text.encode(), algorithm))}


def unsigned(
    form: dict[str, bytes], *hosts: str, method: str = "POST", key: str = KEY, path: str = "/v2/index.php"
) -> Sequence[str] | None:
    return unsigned_names(form, key, method=method, hosts=hosts or ("h:1",), path=path)


def check(form: dict[str, bytes], *hosts: str, method: str = "POST", key: str = KEY) -> bool:
    return unsigned(form, *hosts, method=method, key=key) is not None


def test_names_are_sorted_by_their_bytes_and_underscores_become_dots_afterwards():
    form = form_of(b="2", B="1", a_b="3", aB="4", **{"m.10": "6", "m.2": "7", "a.b": "8"})
    # By bytes: upper case first, "." before digits and letters, "_" between upper and lower case.
    text = "POSTh:1/v2/index.php?B=1&a.b=8&aB=4&a.b=3&b=2&m.10=6&m.2=7"

    assert check(with_signature(form, text))


def test_values_are_signed_as_decoded_bytes():
    form = form_of(body="a+b c&d=é%")

    assert check(with_signature(form, "GETh:1/v2/index.php?body=a+b c&d=é%"), method="GET")


@pytest.mark.parametrize(
    ("method", "algorithm"),
    [
        ("HmacSHA256", "sha256"),
        ("sha256", "sha256"),
        ("HmacSHA1", "sha1"),
        ("sha1", "sha1"),
        ("", "sha1"),
        ("x", "sha1"),
    ],
)
def test_sha_256_is_by_name_and_all_else_is_sha_1(method: str, algorithm: str):
    form = form_of(a="1", SignatureMethod=method)

    assert check(with_signature(form, f"POSTh:1/v2/index.php?SignatureMethod={method}&a=1", algorithm))
    other = "sha1" if algorithm == "sha256" else "sha256"
    assert not check(with_signature(form, f"POSTh:1/v2/index.php?SignatureMethod={method}&a=1", other))


def test_on_post_values_that_begin_with_an_at_sign_may_be_left_out():
    form = form_of(a="1", body="@x", also="@", inside="x@")
    without = "h:1/v2/index.php?a=1&inside=x@"
    complete = "h:1/v2/index.php?a=1&also=@&body=@x&inside=x@"

    assert check(with_signature(form, f"POST{without}"))
    assert check(with_signature(form, f"POST{complete}"))
    assert check(with_signature(form, f"GET{complete}"), method="GET")
    assert not check(with_signature(form, f"GET{without}"), method="GET")
    assert list(unsigned(with_signature(form, f"POST{without}")) or ()) == ["also", "body"]
    assert list(unsigned(with_signature(form, f"POST{complete}")) or ()) == []
    # All such values or none.
    assert not check(with_signature(form, "POSTh:1/v2/index.php?a=1&also=@&inside=x@"))


def test_the_path_is_signed():
    form = with_signature(form_of(a="1"), "POSTh:1/?a=1")

    assert unsigned(form, path="/") == ()
    assert unsigned(form) is None


@pytest.mark.parametrize(
    ("form", "found"),
    [
        ({"msgBody": "a&queueName=b", "queueName": "q"}, None),
        ({"msgBody.1": "a", "r": "&queueName=q"}, "r"),
        ({"msgBody.1": "a", "r": "x&topicName=q"}, "r"),
        ({"msgBody": "a", "msgTag.1": "R&D", "endpoint": "http://h/?a=1&b=2"}, None),
        ({"msgBody": "a", "b=c": "d"}, "b=c"),
        ({"msgBody": "a", "b&c": "d"}, "b&c"),
        ({"endpoint": "http://h/?a=1&queueName=2"}, None),
    ],
)
def test_other_readings_of_the_text_of_a_send_are_found(form: dict[str, str], found: str | None):
    assert other_reading(form_of(**form)) == found


def test_a_host_has_no_part_of_a_path_or_a_query():
    assert all(map(is_host, ("h", "h:1", "[::1]:5681", "mq.example.com", "", "\udcff")))
    assert not any(map(is_host, ("h/", "h?a=b", "h:1/v2/index.php?a=b")))


def test_a_change_of_any_part_makes_the_signature_wrong():
    form = with_signature(form_of(a="1", b="2"), "POSTh:1/v2/index.php?a=1&b=2")

    assert check(form)
    assert not check(form | {"a": b"2"})
    assert not check(form | {"c": b""})
    assert not check({name: value for name, value in form.items() if name != "b"})
    assert not check(form, method="GET")
    assert not check(form, "h:2")
    assert not check(form, key="another")
    assert not check(form | {"Signature": form["Signature"].rstrip(b"=")})
    assert not check(form | {"Signature": b""})
    assert not check(form | {"Signature": "é".encode()})


def test_any_of_the_hosts_may_be_signed():
    form = with_signature(form_of(a="1"), "POSTmq.example.com/v2/index.php?a=1")

    assert check(form, "h:1", "mq.example.com", "h")
    assert not check(form, "h:1", "h")


@pytest.mark.parametrize(
    ("host", "public_names", "expected"),
    [
        ("h:5681", (), {"h:5681", "h"}),
        ("h", (), {"h", "h:5681", "h:80"}),
        ("h:5681", ("mq.example.com",), {"h:5681", "h", "mq.example.com", "mq.example.com:5681"}),
        ("h", ("mq:9000",), {"h", "h:5681", "h:80", "mq:9000", "mq"}),
        ("[::1]:5681", (), {"[::1]:5681", "[::1]"}),
    ],
)
def test_hosts_have_the_port_or_not(host: str, public_names: tuple[str, ...], expected: set[str]):
    assert set(signed_hosts(host, public_names, (5681, 80))) == expected


def test_a_signature_made_by_another_program_is_right():
    # printf 'POSTh:1/v2/index.php?a=1' | openssl dgst -sha1 -hmac secret-key -binary | base64
    assert check({"a": b"1", "Signature": b"MIVcelQ4WMc4msLN9qaBRh2+iAs="})


def test_a_host_that_is_no_text_is_not_signed():
    form = {"Action": b"ListQueue", "Signature": b"x"}

    # The byte 0xFF of a header as aiohttp gives it.
    assert unsigned(form, "\udcff", method="GET") is None
