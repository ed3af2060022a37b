"""The signature of API 3.0: the signed text, its headers and hosts, and the forms of the header."""

import hashlib
import hmac

import pytest

from cmqd_gateway.cmq.api3.tc3_signature import (
    Authorization,
    SignedRequest,
    is_signed,
    payload_hash,
    read_authorization,
    scope_date,
)
from support.cases import each_case

SECRET = "Gu5t9xGARNpq86cd98joQYCN3*******"
TIMESTAMP = "1551113065"
BODY = b'{"Limit": 1, "Filters": [{"Values": ["\\u672a\\u547d\\u540d"], "Name": "instance-name"}]}'
HEADERS = {"content-type": "application/json; charset=utf-8", "x-tc-action": "DescribeInstances"}


def expected(text: str, *, date: str = "2019-02-25", service: str = "cvm", secret: str = SECRET) -> str:
    """Return the signature of a canonical request, made step by step as the documents describe."""
    key = f"TC3{secret}".encode()
    for part in (date, service, "tc3_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signed = f"TC3-HMAC-SHA256\n{TIMESTAMP}\n{date}/{service}/tc3_request\n{hashlib.sha256(text.encode()).hexdigest()}"
    return hmac.new(key, signed.encode(), hashlib.sha256).hexdigest()


def authorization(signature: str, signed: str = "content-type;host", date: str = "2019-02-25") -> Authorization:
    return Authorization("AKID", date, "cvm", signed, signature, signed.split(";"))


def request(method: str = "POST", query: str = "", payload: bytes = BODY) -> SignedRequest:
    return SignedRequest(method, query, HEADERS, payload_hash(payload), TIMESTAMP)


def text(host: str, signed: str = "content-type;host", content_type: str = HEADERS["content-type"]) -> str:
    values = {"content-type": content_type, "host": host, "x-tc-action": "describeinstances"}
    headers = "".join(f"{name}:{values[name]}\n" for name in signed.split(";"))
    return f"POST\n/\n\n{headers}\n{signed}\n{hashlib.sha256(BODY).hexdigest()}"


def test_the_signed_text_is_that_of_the_documents():
    # The example of Tencent's page on the signature, whose secret ends with asterisks.
    known = "2230eefd229f582d8b1b891af7107b91597240707d778ab3738f756258d7652c"

    assert expected(text("cvm.tencentcloudapi.com")) == known
    assert is_signed(authorization(known), request(), SECRET, ["cvm.tencentcloudapi.com"])


@each_case("signed", ["content-type;host", "host;content-type", "host"])
def test_the_request_names_its_headers_and_their_order(signed: str):
    signature = expected(text("mq.example", signed))

    assert is_signed(authorization(signature, signed), request(), SECRET, ["other", "mq.example"])
    assert not is_signed(authorization(signature, "host;host"), request(), SECRET, ["mq.example"])


def test_values_are_signed_as_they_are_or_in_lower_case():
    # ``text`` has the action in lower case, as the documents have it.
    signed = "content-type;host;x-tc-action"
    assert is_signed(authorization(expected(text("mq.example", signed)), signed), request(), SECRET, ["mq.example"])
    for host in ("MQ.Example:5681", "mq.example:5681"):
        assert is_signed(authorization(expected(text(host))), request(), SECRET, ["MQ.Example:5681"])
    assert not is_signed(authorization(expected(text("MQ.EXAMPLE:5681"))), request(), SECRET, ["MQ.Example:5681"])


@each_case(
    "changed",
    [
        SignedRequest("GET", "", HEADERS, payload_hash(BODY), TIMESTAMP),
        SignedRequest("POST", "a=1", HEADERS, payload_hash(BODY), TIMESTAMP),
        SignedRequest("POST", "", HEADERS, payload_hash(b""), TIMESTAMP),
        SignedRequest("POST", "", HEADERS, payload_hash(BODY), "1551113066"),
        SignedRequest("POST", "", {"content-type": "text/plain"}, payload_hash(BODY), TIMESTAMP),
    ],
)
def test_a_change_of_the_request_makes_the_signature_wrong(changed: SignedRequest):
    header = authorization(expected(text("mq.example")))

    assert is_signed(header, request(), SECRET, ["mq.example"])
    assert not is_signed(header, changed, SECRET, ["mq.example"])


def test_another_secret_host_date_or_signature_is_wrong():
    right = expected(text("mq.example"))

    assert not is_signed(authorization(right), request(), "other", ["mq.example"])
    assert not is_signed(authorization(right), request(), SECRET, ["other"])
    assert not is_signed(authorization(right, date="2019-02-26"), request(), SECRET, ["mq.example"])
    for wrong in ("", right.upper(), right + "0", "\udcff"):
        assert not is_signed(authorization(wrong), request(), SECRET, ["mq.example"])


@pytest.mark.parametrize(
    "header",
    [
        "TC3-HMAC-SHA256 Credential=AKID/2019-02-25/cvm/tc3_request, SignedHeaders=content-type;host, Signature=ab",
        "TC3-HMAC-SHA256 Credential=AKID/2019-02-25/cvm/tc3_request,SignedHeaders=content-type;host,Signature=ab",
        "TC3-HMAC-SHA256  Credential=AKID/2019-02-25/cvm/tc3_request , SignedHeaders=content-type;host , Signature=ab ",
    ],
)
def test_blanks_of_the_header_vary(header: str):
    assert read_authorization(header) == Authorization(
        "AKID", "2019-02-25", "cvm", "content-type;host", "ab", ["content-type", "host"]
    )


def test_the_id_of_a_key_may_have_slashes():
    found = read_authorization(
        "TC3-HMAC-SHA256 Credential=a/b/2019-02-25/x/tc3_request, SignedHeaders=host, Signature="
    )

    assert found == Authorization("a/b", "2019-02-25", "x", "host", "", ["host"])


@each_case(
    "header",
    [
        "",
        "SKIP",
        "Basic YTpi",
        "tc3-hmac-sha256 Credential=a/b/c/tc3_request, SignedHeaders=host, Signature=x",
        "TC3-HMAC-SHA256 Credential=a/b/tc3_request, SignedHeaders=host, Signature=x",
        "TC3-HMAC-SHA256 Credential=a/b/c/aws4_request, SignedHeaders=host, Signature=x",
        "TC3-HMAC-SHA256 Credential=a/b/c/tc3_request, Signature=x, SignedHeaders=host",
        "TC3-HMAC-SHA256 Credential=a/b/c/tc3_request, SignedHeaders=host, Signature=x, more",
        "TC3-HMAC-SHA256 Credential=" + "/" * 16_000,
    ],
)
def test_other_headers_are_no_authorization(header: str):
    assert read_authorization(header) is None


def test_the_date_of_the_scope_is_the_day_of_the_time_stamp_in_utc():
    assert [scope_date(second) for second in (0, 1_551_139_199, 1_551_139_200)] == [
        "1970-01-01",
        "2019-02-25",
        "2019-02-26",
    ]
