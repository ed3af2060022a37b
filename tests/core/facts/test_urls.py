"""Legal URLs of subscriptions."""

import pytest

from cmqd.core.domain_errors import InvalidArgument
from cmqd.core.urls import MAX_URL_LENGTH, check_url
from support.cases import each_case

LEGAL = [
    "http://hooks.example",
    "https://hooks.example/orders?shop=1&x=%2F#"[:-1],
    "HTTPS://Hooks.Example:8443/a/../b",
    "http://localhost:1/",
    "http://some_service.internal./x",
    "http://10.0.0.1:65535/x",
    "http://[::1]/x",
    "http://[2001:db8::1]:8080",
    "http://[::ffff:127.0.0.1]/",
    "http://xn--bcher-kva.example/",
    "http://1.example/",
    "http://hooks.example/a@b:c",
    "http://hooks.example?x",
]

ILLEGAL = [
    "",
    "hooks.example/x",
    "//hooks.example/x",
    "ftp://hooks.example/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "http:hooks.example",
    "http:///x",
    "http://",
    "http://:80/",
    "http://user@hooks.example/",
    "http://user:password@hooks.example/",
    "http://@hooks.example/",
    "http://hooks.example/#part",
    "http://hooks.example/#",
    "http://hooks.example:0/",
    "http://hooks.example:65536/",
    "http://hooks.example:/",
    "http://hooks.example:+80/",
    "http://hooks.example:8_0/",
    "http://hooks.example:80:80/",
    "http://[::1/",
    "http://::1/",
    "http://[::1]x/",
    "http://[fe80::1%25eth0]/",
    "http://[v1.x]/",
    "http://hooks..example/",
    "http://.example/",
    "http://hooks.exa mple/",
    " http://hooks.example/",
    "http://hooks.example/a b",
    "http://hooks.example/a\nHost: x",
    "http://hooks.example/\t",
    "http://hooks.example\\@evil.example/",
    "http://hooks.example/ü",
    "http://b\u00fccher.example/",
    "http://hooks%2eexample/",
    "http://hooks.example/%zz",
    "http://" + "a" * 64 + ".example/",
    "http://" + "a." * 127 + "aa/",
    # Old notations of IPv4 addresses, accepted by some resolvers.
    "http://2130706433/",
    "http://127.1/",
    "http://0x7f.1/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://127.0.0.1./",
    "http://1.2.3.4.5/",
    "http://hooks.0x/",
]


@each_case("url", LEGAL)
def test_a_legal_url_is_taken_as_it_is(url: str) -> None:
    assert check_url(url, "endpoint") == url


@each_case("url", ILLEGAL)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_url(url, "endpoint")

    assert refused.value.details["field"] == "endpoint"


def test_a_long_url_is_refused() -> None:
    url = "http://hooks.example/"
    url += "x" * (MAX_URL_LENGTH - len(url))

    assert check_url(url, "endpoint") == url
    with pytest.raises(InvalidArgument, match="2048"):
        check_url(url + "x", "endpoint")


def test_a_password_is_not_repeated() -> None:
    for url in ("http://u:hush@hooks.example/", "http://u:hush@h/#x", "ftp://u:hush@h/", "http://u:hush@h/ x"):
        with pytest.raises(InvalidArgument) as refused:
            check_url(url, "endpoint")

        assert "hush" not in refused.value.text
