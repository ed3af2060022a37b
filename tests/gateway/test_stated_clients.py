"""The client behind a request over HTTP, as the gateway states it to the broker."""

import asyncio
from typing import Any

import pytest

from cmqd_gateway.callers.stated_clients import CMQ_HEADERS, client_of_headers, stated_client
from cmqd_protocol import messages as wire
from cmqd_types.actors import StatedClient
from support.eventually import eventually
from support.gateway.api3_requests import Api3Calls, old_form
from support.gateway.cmq_requests import encoded
from support.gateway.gateway_rig import GatewayRig
from support.gateway.rest_calls import RestCalls

TILL = StatedClient("till 3", "127.0.0.1")
NAMED = {"X-Cmqd-Client": "till 3"}


def stated(rig: GatewayRig) -> list[Any]:
    """Return the stated client of each request of the gateway's that changes messages."""
    made = [request for request in rig.server.link.handled if hasattr(request, "on_behalf_of")]
    return [getattr(request, "on_behalf_of", None) for request in made]


@pytest.mark.parametrize(
    ("name", "remote", "client"),
    [
        ("till 3", "192.0.2.7", StatedClient("till 3", "192.0.2.7")),
        ("", "fe80::1%eth0", StatedClient("", "fe80::1%eth0")),
        ("a\x07b\u202e", None, StatedClient("a?b?", "")),
        ("\udcff" + "n" * 200, "", StatedClient("?" + "n" * 127, "")),
        ("x", "/run/a socket", StatedClient("x", "")),
        ("x", "h" * 65, StatedClient("x", "")),
    ],
)
def test_any_text_becomes_a_name_that_the_broker_takes(name: str, remote: str | None, client: StatedClient) -> None:
    assert stated_client(name, remote) == client
    wire.request_decoder.decode(wire.encoder.encode(wire.DeleteMessages(1, "q", [1], stated_client(name, remote))))


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({}, ""),
        ({"User-Agent": "curl/8"}, "curl/8"),
        ({"User-Agent": "curl/8", "X-TC-RequestClient": "SDK_PYTHON_3"}, "SDK_PYTHON_3"),
        ({"User-Agent": "curl/8", "X-TC-RequestClient": "SDK_PYTHON_3", "X-Cmqd-Client": "till"}, "till"),
        ({"User-Agent": "curl/8", "X-TC-RequestClient": ""}, "curl/8"),
    ],
)
def test_the_first_header_that_is_there_has_the_name(headers: dict[str, str], name: str) -> None:
    assert client_of_headers(headers, None, CMQ_HEADERS).name == name
    assert client_of_headers(headers, None).name == headers.get("X-Cmqd-Client", "")


async def test_the_json_api_states_the_header_and_the_address(rig: GatewayRig, rest: RestCalls) -> None:
    await rig.gateway.secrets.find(rig.own_key.secret_id, None)
    for headers in (NAMED, {}):
        await rest.ok("send_message", queue="orders", body={"body": "x"}, headers=headers)
        (message,) = (await rest.ok("receive_messages", queue="orders", headers=headers)).messages
        handle = {"receipt_handle": message.receipt_handle}
        await rest.ok("change_visibility", queue="orders", body=handle | {"timeout": 60}, headers=headers)
        await rest.ok("delete_message", queue="orders", body=handle, headers=headers)

    assert stated(rig) == [TILL] * 4 + [StatedClient("", "127.0.0.1")] * 4


async def test_requests_of_several_clients_at_once_keep_their_names(rig: GatewayRig, rest: RestCalls) -> None:
    names = [f"client {number}" for number in range(20)]
    rig.server.link.hold()
    sends = [
        asyncio.create_task(
            rest.ok("send_message", queue="orders", body={"body": name}, headers={"X-Cmqd-Client": name})
        )
        for name in names
    ]
    await eventually(lambda: len(stated(rig)) == len(names))
    rig.server.link.let_go()
    await asyncio.gather(*sends)

    made = [request for request in rig.server.link.handled if isinstance(request, wire.SendMessages)]
    assert {(request.on_behalf_of.name, request.bodies[0].decode()) for request in made if request.on_behalf_of} == {
        (name, name) for name in names
    }


async def test_a_waiting_receive_is_listed_with_the_name_of_its_client(rig: GatewayRig, rest: RestCalls) -> None:
    receiving = asyncio.create_task(
        rest.ok("receive_messages", queue="orders", body={"wait": 20}, headers={"X-Cmqd-Client": "worker-2"})
    )
    while not (page := await rig.server.admin.waiting_receives()).receives:
        assert not receiving.done()

    assert [receive.name for receive in page] == ["worker-2"]
    await rig.server.put("orders", b"x")
    await receiving


async def test_messages_of_an_answer_that_was_not_written_go_back_for_their_client(rig: GatewayRig) -> None:
    _, writer = await rig.open_raw()
    key = rig.own_key
    body = b'{"wait": 20}'
    writer.write(
        f"POST /api/v1/queues/orders/receive HTTP/1.1\r\nHost: {rig.host}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key.secret_id}:{key.secret_key}\r\nX-Cmqd-Client: till 3\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await rig.server.link.wait_handled(wire.ReceiveMessages)
    rig.server.link.hold()
    await rig.server.put("orders", b"x")
    await eventually(lambda: rig.server.link.held)
    writer.close()
    rig.server.link.let_go()

    await rig.server.link.wait_handled(wire.ReleaseMessages)

    assert set(stated(rig)) == {TILL}


async def test_api_2_states_the_first_of_three_headers(rig: GatewayRig) -> None:
    form = rig.sign({"Action": "SendMessage", "queueName": "orders", "msgBody": "x"})
    await rig.post_raw(encoded(form), headers={"User-Agent": "cmq-sdk/1", "X-TC-RequestClient": "SDK_3"})
    received = await rig.call("ReceiveMessage", queueName="orders")
    delete = rig.sign({"Action": "DeleteMessage", "queueName": "orders", "receiptHandle": received["receiptHandle"]})
    assert (await rig.post_raw(encoded(delete), headers=NAMED))["code"] == 0

    first, _, last = stated(rig)
    assert (first, last) == (StatedClient("SDK_3", "127.0.0.1"), TILL)


async def test_api_3_states_the_first_of_three_headers(rig: GatewayRig) -> None:
    calls = Api3Calls(rig)
    message = {"QueueName": "orders", "MsgContent": "x"}
    for prepared in (
        calls.prepare("SendCmqMsg", message, X_Cmqd_Client="till 3"),
        old_form("SendCmqMsg", message, rig.own_key, rig.host),
    ):
        prepared.headers["X-TC-RequestClient"] = "SDK_GO_1"
        assert "Error" not in await calls.send(prepared)

    assert stated(rig) == [TILL, StatedClient("SDK_GO_1", "127.0.0.1")]
