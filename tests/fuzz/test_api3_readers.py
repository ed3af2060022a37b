# Invariant: the readers of API 3.0 refuse bytes of a stranger with a sentence, or read the bytes with their meaning:
# a JSON body as the decoder of Python reads the body, without a name twice; a form with its values; a header in full.
"""Mutations of requests of API 3.0 against the readers of its JSON bodies, its forms and the header of its signature.

In ``make test`` a few mutations of a fixed seed. ``make test-all PARTS=fuzz`` takes CMQD_FUZZ_SECONDS for each test,
and a seed of its own, which is printed; CMQD_FUZZ_SEED repeats it.
"""

import json
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast
from urllib.parse import urlencode

from cmqd_gateway.cmq.api2.form import form_steps
from cmqd_gateway.cmq.api3.actions import ACTIONS
from cmqd_gateway.cmq.api3.faults import Fault
from cmqd_gateway.cmq.api3.parameters import read_values
from cmqd_gateway.cmq.api3.request_values import MAX_DEPTH, Branch, form_values, json_steps
from cmqd_gateway.cmq.api3.tc3_signature import ALGORITHM, SignedRequest, is_signed, read_authorization
from cmqd_gateway.cmq.reasons import Refusal
from cmqd_gateway.http.turns import at_once
from cmqd_gateway.process.gateway_settings import Settings
from support.gateway.api3_requests import flat
from support.mutations import SECONDS, lines_of, mutated, rounds

FEW: Final = 600
READERS: Final = frozenset(
    str(sys.modules[function.__module__].__file__) for function in (form_values, read_values, read_authorization)
)
LONGEST_CPU_SECONDS: Final = 1.0
"""For a request of 4 MiB on a slow machine."""
SHOWN: Final = 700
"""Longest text of a refusal; the longest has the names of all parameters of an action."""
SETTINGS: Final = Settings(listen="127.0.0.1:0")
REQUESTS: Final[Sequence[dict[str, Any]]] = (
    {"QueueName": "orders", "MsgContent": 'a"b\\ é☕', "DelaySeconds": 5},
    {"QueueName": "orders", "DeadLetterQueueName": "dead", "Policy": 0, "MaxReceiveCount": 5, "Trace": False},
    {"TopicName": "news", "SubscriptionName": "sub", "Protocol": "queue", "Endpoint": "orders", "FilterTag": ["a"]},
    {"QueueNameList": ["a", "b"], "Filters": [{"Name": "tag", "Values": ["a", ":"]}], "IsTagFilter": None},
)
JSON_EDGES: Final = (
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b"null", b"true", b"-", b"1e400", b"NaN", b"\\u", b"\xff"),
    *(b'"QueueName":', b'\\u0061":', b"\\ud800", b"9223372036854775808", b"1.5", b"\0", b" ", b"{}", b"[[[[[["),
)
FORM_EDGES: Final = (
    *(b"&", b"=", b".", b"..", b".0", b".1=", b".01", b"%", b"%2e", b"%00", b"%ff", b"+", b"QueueName", b"-", b"\xff"),
    *(b"&Filters.0.Name=", b"&Filters.0.Values.0=", b"&Filters=", b"&QueueNameList.1="),
)
HEADER_EDGES: Final = (b",", b"=", b"/", b";", b" ", b"tc3_request", b"Credential=", b"Signature=", b"host", b"\xff")


def guided(name: str, corpus: list[bytes], edges: Sequence[bytes], read: Callable[[bytes], None]) -> None:
    """Read mutations of the corpus; a mutation that reaches further lines of the readers joins the corpus."""
    for data in corpus:
        read(data)
    recorded, seen = len(corpus), set[tuple[str, int]]()
    for chance in rounds(name, FEW):
        data = mutated(chance, chance.choice(corpus), corpus, edges)
        began = time.thread_time()
        try:
            lines = lines_of(READERS, lambda data=data: read(data))
        except BaseException as error:
            error.add_note(f"data: {data[:2_000]!r}")
            raise
        took = time.thread_time() - began
        assert not SECONDS or took < LONGEST_CPU_SECONDS, (took, data[:2_000])
        if not lines <= seen and len(data) < 65_536:
            seen |= lines
            corpus.append(data)
    print(f"corpus: {len(corpus)}, transitions: {len(seen)}")
    assert len(corpus) > recorded


@contextmanager
def refusals() -> Generator[None]:
    """Accept a refusal with a short sentence."""
    text = "a refusal"
    try:
        yield
    except (Fault, Refusal) as refusal:
        text = str(refusal)
    assert 0 < len(text) < SHOWN, text


def check_actions(values: dict[str, Any]) -> None:
    """Read the requests of all actions from values."""
    for action in ACTIONS:
        with refusals():
            action.read(values, SETTINGS)


# ---------------------------------------------------------------------- JSON


def pairs_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), names
    return dict(pairs)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(cast("dict[str, Any]", value).values())
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    return 1 + max(map(depth_of, entries), default=-1)


def read_json(raw: bytes) -> None:
    with refusals():
        values = at_once(json_steps(raw))
        assert values == json.loads(raw.decode(), object_pairs_hook=pairs_once)
        assert depth_of(values) <= MAX_DEPTH + 1
        check_actions(values)


def test_a_json_body_is_read_as_by_another_decoder_or_refused() -> None:
    guided("api3 json", [json.dumps(request).encode() for request in REQUESTS], JSON_EDGES, read_json)


# ---------------------------------------------------------------------- forms


def paths_of(branch: Branch, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for name, value in branch.items():
        if isinstance(value, Branch):
            yield from paths_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def read_form(query: bytes) -> None:
    with refusals():
        form = at_once(form_steps(query))
        values = form_values(form)
        assert isinstance(values, Branch)
        assert dict(paths_of(values)) == form
        check_actions(values)


def test_a_form_keeps_each_value_or_is_refused() -> None:
    guided("api3 form", [urlencode(flat(request)).encode() for request in REQUESTS], FORM_EDGES, read_form)


# ---------------------------------------------------------------------- the header of the signature


def read_header(header: bytes) -> None:
    text = header.decode(errors="surrogateescape")
    authorization = read_authorization(text)
    if authorization is None:
        return
    scope = f"{authorization.secret_id}/{authorization.date}/{authorization.service}/tc3_request"
    parts = f"Credential={scope}", f"SignedHeaders={authorization.signed_headers}", authorization.signature
    assert [part.strip(" ") for part in text.removeprefix(f"{ALGORITHM} ").split(",")] == [
        *parts[:2],
        f"Signature={parts[2]}",
    ]
    headers = dict.fromkeys(authorization.header_names, "x")
    request = SignedRequest("POST", "", headers, "0" * 64, "1700000000")
    assert not is_signed(authorization, request, "secret", ["gateway:5681"])


def test_the_header_of_a_signature_is_read_without_a_change_or_refused() -> None:
    scope = "AKID/with/slashes/2023-11-14/tdmq/tc3_request"
    headers = [
        f"{ALGORITHM} Credential={scope}, SignedHeaders=content-type;host, Signature={'0' * 64}",
        f"{ALGORITHM} Credential=AKID/2023-11-14/tdmq/tc3_request,SignedHeaders=host;x-tc-action,Signature=ff",
    ]
    guided("api3 header", [header.encode() for header in headers], HEADER_EDGES, read_header)
