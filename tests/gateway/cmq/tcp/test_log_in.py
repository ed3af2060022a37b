"""The log-in of CMQ's TCP protocol, and the end of connections whose key changes."""

import asyncio
import base64
from typing import Any

import pytest

from cmqd_client.errors import ServerUnreachable
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.api2.signature import sign as sign_request
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.connections import Connections
from cmqd_gateway.cmq.tcp.frames import to_frame
from cmqd_gateway.cmq.tcp.login import MAX_CLIENT_ID_BYTES
from cmqd_gateway.console.signed_texts import Purpose, sign
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_program import TcpProgram, signature_of


@pytest.mark.parametrize("method", ["HmacSHA1", "HmacSHA256"])
async def test_a_program_logs_in_with_either_signature(rig: GatewayRig, method: str) -> None:
    async with TcpProgram(rig) as program:
        reply = await program.log_in(method=method)

        assert (reply.cmd, reply.result, reply.error) == (commands.LOG_IN, 0, "")
        await program.ok(commands.SEND, queueName="orders", msgBody=b"x")


async def test_a_request_before_the_log_in_is_306_and_the_connection_stays(rig: GatewayRig) -> None:
    async with TcpProgram(rig) as program:
        early = await program.ask(commands.SEND, queueName="orders", msgBody=b"x")
        assert early.result == 306
        assert (await program.ask(commands.DELETE, queueName="orders", receiptHandle=1)).result == 306

        assert (await program.log_in()).result == 0
        await program.ok(commands.SEND, queueName="orders", msgBody=b"x")


async def test_a_second_log_in_with_the_same_key_is_307(program: TcpProgram) -> None:
    assert (await program.log_in(client_id="another@one")).result == 307

    await program.ok(commands.SEND, queueName="orders", msgBody=b"x")


async def test_a_second_log_in_with_another_key_is_refused_and_ends_the_connection(
    rig: GatewayRig, program: TcpProgram
) -> None:
    other = rig.add_key("other", "secret")

    reply = await program.log_in(other)

    assert reply.result == 4100
    await program.ended()


async def test_a_second_log_in_with_a_wrong_signature_ends_the_connection(program: TcpProgram) -> None:
    assert (await program.log_in(signature="x")).result == 4100

    await program.ended()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"signature": "c2lnbmF0dXJl"}, "(10030)authentication failed: the signature is wrong"),
        ({"signature": ""}, "the signature is wrong"),
        ({"signature": "é"}, "the signature is wrong"),
        ({"secretId": "nobody"}, "(10270)secret id is not existed"),
        ({"secretId": ""}, "(10270)"),
        ({"signatureMethod": "sha1"}, "signature_method must be one of HmacSHA1, HmacSHA256"),
        ({"signatureMethod": ""}, "signature_method must be one of"),
        # Signed with the other method.
        ({"signatureMethod": "HmacSHA256"}, "the signature is wrong"),
        ({"clientId": "10.0.0.8@DEFAULT"}, "the signature is wrong"),
    ],
)
async def test_a_wrong_log_in_is_refused_and_a_right_one_may_follow(
    rig: GatewayRig, changed: dict[str, Any], text: str
) -> None:
    async with TcpProgram(rig) as program:
        refused = await program.log_in(**changed)

        assert refused.result == 4100
        assert text in refused.error
        assert (await program.ask(commands.SEND, queueName="orders", msgBody=b"x")).result == 306
        assert (await program.log_in()).result == 0


@pytest.mark.parametrize(
    "client_id", ["a" * (MAX_CLIENT_ID_BYTES + 1), "é" * 65, "POST?", "a=b", "a&b", "a\0b", "a\nb", "a\x7fb"]
)
async def test_a_client_id_that_could_begin_another_signed_text_is_refused(rig: GatewayRig, client_id: str) -> None:
    async with TcpProgram(rig) as program:
        refused = await program.log_in(client_id=client_id)

        assert refused.result == 4100
        assert "client_id has" in refused.error


async def test_a_client_id_of_128_bytes_and_an_empty_one_are_accepted(rig: GatewayRig) -> None:
    for client_id in ("[2001:db8::1]@" + "é" * 57, ""):
        async with TcpProgram(rig) as program:
            assert (await program.log_in(client_id=client_id)).result == 0


def other_signed_texts(key: KeySecret) -> dict[str, tuple[str, str, str]]:
    """Return client id, method and signature of the texts with the SecretId at their end that other doors sign."""
    texts: dict[str, tuple[str, str, str]] = {}
    for purpose in Purpose:
        signed = sign(purpose, key.secret_id, key.secret_key, 1, 2, "nonce")
        client_id = "\0".join(["cmqd console", purpose, "1", "2", "nonce", ""])
        texts[purpose] = client_id, "HmacSHA256", base64.b64encode(bytes.fromhex(signed.mac)).decode()
    form = {"Action": b"ListQueue", "SecretId": b"x", "searchWord": key.secret_id.encode()}
    host = "gateway:5681/v2/index.php?Action=ListQueue&SecretId=x&searchWord="
    signature = sign_request(form, key.secret_key, method="GET", host="gateway:5681", path="/v2/index.php")
    texts["API 2.0"] = f"GET{host}", "HmacSHA1", signature
    return texts


async def test_no_text_that_another_door_signs_is_a_log_in(rig: GatewayRig) -> None:
    for name, (client_id, method, signature) in other_signed_texts(rig.own_key).items():
        # Equal to the signature of a log-in, so that the client id alone is in the way.
        algorithm = "sha256" if method == "HmacSHA256" else "sha1"
        assert signature == signature_of(client_id, rig.own_key, algorithm), name
        async with TcpProgram(rig) as program:
            refused = await program.log_in(client_id=client_id, method=method, signature=signature)
            assert refused.result == 4100, name
            assert "client_id has" in refused.error


async def test_a_disabled_key_is_refused_behind_its_signature(rig: GatewayRig) -> None:
    key = rig.add_key("worker", "secret", enabled=False)
    async with TcpProgram(rig) as program:
        assert "(10080)" in (await program.log_in(key)).error
        assert "(10030)" in (await program.log_in(key, signature="x")).error


async def test_the_broker_without_answer_is_a_failure_and_no_wrong_key(rig: GatewayRig) -> None:
    rig.table.failure = ServerUnreachable("away")
    async with TcpProgram(rig) as program:
        refused = await program.log_in()

        assert refused.result == 6000
        rig.table.failure = None
        assert (await program.log_in()).result == 0


async def test_a_wrong_signature_waits_before_its_answer_and_nothing_is_read_meanwhile() -> None:
    pause = 0.2
    settings: dict[str, Any] = {"listen_cmq_tcp": "127.0.0.1:0", "wrong_key_pause_seconds": pause}
    async with GatewayRig(**settings) as rig, TcpProgram(rig) as program:
        began = rig.clock()
        wrong: dict[str, Any] = {"secretId": rig.own_key.secret_id, "signature": "x"}
        wrong |= {"clientId": "c", "signatureMethod": "HmacSHA1"}
        log_ins = [program.send(commands.LOG_IN, **wrong) for _ in range(2)]
        behind = program.send(commands.SEND, queueName="orders", msgBody=b"x")

        replies = [await program.next() for _ in range(3)]

        assert [reply.seqno for reply in replies] == [*log_ins, behind]
        assert [reply.result for reply in replies] == [4100, 4100, 306]
        assert rig.clock() - began >= 2 * pause


async def test_too_many_unknown_ids_are_throttled(rig: GatewayRig) -> None:
    results: set[int] = set()
    rig.clock.hold()
    for number in range(60):
        async with TcpProgram(rig) as program:
            results.add((await program.log_in(KeySecret(f"id{number}", "s"))).result)

    assert results == {4100, 4420}


async def test_the_log_in_body_may_be_malformed(rig: GatewayRig) -> None:
    async with TcpProgram(rig) as program:
        # Without a body, with a cut body, with the body of a send.
        for seqno, payload in enumerate(("10fc07", "10fc07 ba0c02 0a05", "10fc07 c20c03 0a0161"), 1):
            program.write(to_frame(bytes([8, seqno]) + bytes.fromhex(payload)))
            reply = await program.answer(seqno)
            assert (reply.cmd, reply.result) == (commands.LOG_IN, 4000), reply
        assert (await program.log_in()).result == 0


# ---------------------------------------------------------------------- changes of keys


async def change(rig: GatewayRig, key: KeySecret | None, secret_id: str = "worker") -> None:
    if key is None:
        del rig.table.keys[secret_id]
    else:
        rig.table.keys[secret_id] = key
    rig.key_changed(secret_id)


async def worker(rig: GatewayRig) -> KeySecret:
    created = await rig.server.admin.accounts.create_key()
    key = rig.table.keys["worker"] = KeySecret(created.secret_id, created.secret_key or "")
    rig.table.keys[created.secret_id] = key
    return key


@pytest.mark.parametrize("change_of", ["disabled", "another secret", "deleted"])
async def test_a_changed_key_ends_its_connections_and_no_other(
    rig: GatewayRig, connections: Connections, program: TcpProgram, change_of: str
) -> None:
    key = await worker(rig)
    async with TcpProgram(rig) as of_worker:
        assert (await of_worker.log_in(key)).result == 0
        changed = {
            "disabled": KeySecret(key.secret_id, key.secret_key, enabled=False),
            "another secret": KeySecret(key.secret_id, "new"),
            "deleted": None,
        }[change_of]

        await change(rig, changed, key.secret_id)

        await of_worker.ended()
        assert connections.ended["key changed"] == 1
        await program.ok(commands.SEND, queueName="orders", msgBody=b"x")


async def test_a_key_that_changes_during_its_log_in_is_asked_for_again(
    rig: GatewayRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await worker(rig)

    async def fetch(secret_id: str) -> KeySecret | None:
        rig.table.questions.append(secret_id)
        answer = rig.table.keys.get(secret_id)
        await rig.table.answers.wait()
        return answer

    monkeypatch.setattr(rig.table, "fetch", fetch)
    rig.table.answers.clear()
    async with TcpProgram(rig) as of_worker:
        log_in = asyncio.create_task(of_worker.log_in(key))
        await eventually(lambda: key.secret_id in rig.table.questions)
        await change(rig, KeySecret(key.secret_id, key.secret_key, enabled=False), key.secret_id)
        rig.table.answers.set()

        assert "(10080)" in (await log_in).error


async def test_a_key_that_is_reported_without_a_change_keeps_its_connections(
    rig: GatewayRig, program: TcpProgram
) -> None:
    asked = len(rig.table.questions)
    rig.key_changed(None)
    await eventually(lambda: len(rig.table.questions) > asked)

    await program.ok(commands.SEND, queueName="orders", msgBody=b"x")


async def test_a_change_while_the_broker_is_away_is_confirmed_by_a_later_check(
    rig: GatewayRig, connections: Connections
) -> None:
    key = await worker(rig)
    async with TcpProgram(rig) as of_worker:
        assert (await of_worker.log_in(key)).result == 0
        rig.table.failure = ServerUnreachable("away")
        asked = len(rig.table.questions)
        await change(rig, None, key.secret_id)
        await eventually(lambda: len(rig.table.questions) > asked)
        assert len(connections) == 1

        rig.table.failure = None
        await eventually(lambda: connections.check() or not len(connections))
        await of_worker.ended()


async def test_a_key_with_fewer_roles_ends_its_waiting_receive(rig: GatewayRig) -> None:
    created = await rig.server.admin.accounts.create_key(roles=["send", "consume"])
    key = rig.table.keys[created.secret_id] = KeySecret(created.secret_id, created.secret_key or "")
    async with TcpProgram(rig) as of_worker:
        assert (await of_worker.log_in(key)).result == 0
        waiting = of_worker.send(commands.RECEIVE, queueName="orders", pollingWaitSeconds=30)
        while await rig.server.status("waiting_receives") != 1:
            pass

        await rig.server.admin.accounts.set_key_roles(created.secret_id, roles=["send"])

        refused = await of_worker.answer(waiting)
        assert (refused.result, refused.error[:7]) == (4000, "(10461)")
        await of_worker.ok(commands.SEND, queueName="orders", msgBody=b"x")
