"""Names of clients: in the hello, and stated in requests."""

from typing import Any

import msgspec
import pytest

from cmqd_protocol.events import Authenticated, ConnectionEnded
from cmqd_protocol.features import FIELD_FEATURES, ON_BEHALF_OF, made_for
from cmqd_protocol.messages import (
    MESSAGE_TYPES,
    DeleteMessages,
    Error,
    ListQueues,
    SendMessages,
    encoder,
    request_decoder,
)
from cmqd_types.actors import Actor, StatedClient
from support.protocol.connection_pair import ConnectionPair

REFUSED_NAMES = [
    "two\nlines",
    "tab\t",
    "\x7f",
    "\x9b1m",
    "right\u202eto left",
    "mark\u200f",
    "\u061c",
    "\u2028",
    "end\n",
]


def test_the_server_learns_the_name_of_the_hello() -> None:
    pair = ConnectionPair(client={"name": "checkout 3.2 böse 🜁", "product": "till/2"})

    pair.exchange()

    (event,) = pair.server_events
    assert isinstance(event, Authenticated)
    assert (event.name, event.product) == ("checkout 3.2 böse 🜁", "till/2")


def test_a_hello_with_the_longest_texts_fits_the_handshake() -> None:
    pair = ConnectionPair(client={"name": "🜁" * 128, "product": "🜁" * 128})

    pair.exchange()

    assert pair.client.is_open


@pytest.mark.parametrize("name", ["n" * 129, *REFUSED_NAMES])
def test_a_hello_with_another_name_is_refused_with_a_sentence(name: str) -> None:
    pair = ConnectionPair(client={"name": name})

    pair.exchange()

    ended = pair.client_events[-1]
    assert isinstance(ended, ConnectionEnded)
    assert (ended.name, ended.by_peer) == ("malformed_frame", True)
    why = "name has 129 characters; it must have at most 128" if len(name) > 128 else "name must be printable text"
    assert ended.text.startswith(f"in the hello, {why}")


@pytest.mark.parametrize("kind", [kind for kind, fields in FIELD_FEATURES.items() if ON_BEHALF_OF in fields])
def test_a_request_carries_the_stated_client_as_its_last_field(kind: Any) -> None:
    assert kind.__struct_fields__[-1] == ON_BEHALF_OF
    stated = StatedClient("worker-2", "2001:db8::7%eth0")
    required = {"queue": "q", "topic": "q", "bodies": [b"x"], "receipt_handles": [1], "reasons": [""]} | {
        "message_ids": [1],
        "decisions": [1],
        "visibility_timeout_ms": 0,
    }
    names = kind.__struct_fields__[1 : len(kind.__struct_fields__) - len(kind.__struct_defaults__)]
    request = kind(1, **{name: required[name] for name in names})

    assert getattr(request, ON_BEHALF_OF) is None
    carried: Any = request_decoder.decode(encoder.encode(made_for(request, stated)))

    assert carried == msgspec.structs.replace(request, on_behalf_of=stated)
    assert made_for(carried, None) == request


def test_all_other_requests_state_no_client() -> None:
    listing = ListQueues(1)

    assert made_for(listing, StatedClient("a")) is listing
    others = {kind for kind in MESSAGE_TYPES.values() if kind not in FIELD_FEATURES}
    assert not any(ON_BEHALF_OF in kind.__struct_fields__ for kind in others)


@pytest.mark.parametrize("name", REFUSED_NAMES)
def test_a_request_with_another_name_gets_its_own_error_and_the_connection_goes_on(name: str) -> None:
    pair = ConnectionPair.opened(server={"features": ["on_behalf_of"]})

    pair.client.send(SendMessages(1, "orders", [b"x"], on_behalf_of=StatedClient(name)))
    pair.client.send(DeleteMessages(2, "orders", [1], StatedClient("right", "192.0.2.7")))
    pair.exchange()

    _, replies = pair.take_events()
    (refusal,) = replies
    assert isinstance(refusal, Error)
    assert refusal.details is not None
    assert (refusal.request_id, refusal.name) == (1, "invalid_argument")
    assert refusal.text.startswith("on_behalf_of[0] must be printable text, without control characters")
    assert refusal.details["field"] == "on_behalf_of[0]"
    assert pair.server.outstanding == 1


@pytest.mark.parametrize("host", ["two words", "h\n", "<b>", "ü", "h" * 65])
def test_a_host_has_the_characters_of_addresses(host: str) -> None:
    payload = encoder.encode(DeleteMessages(1, "orders", [1], StatedClient("", host)))

    with pytest.raises(msgspec.ValidationError):
        request_decoder.decode(payload)


def test_an_actor_states_another_client_with_its_own_key() -> None:
    gateway = Actor("shop", "AKIDx", "cmqd-gateway@a", "10.0.0.1")

    assert gateway.stating(StatedClient("till", "192.0.2.7")) == Actor("shop", "AKIDx", "till", "192.0.2.7", "10.0.0.1")
    assert gateway.stating(StatedClient("till")) == Actor("shop", "AKIDx", "till", "10.0.0.1")
    assert gateway.stating(StatedClient("till", "10.0.0.1")).stated_by == ""
    assert gateway.stating(StatedClient()).name == ""
