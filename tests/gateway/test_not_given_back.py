"""Messages of answers that were not written, and that the gateway could not give back: a line in the log."""

import pytest

from cmqd_client import Client
from cmqd_client.errors import ConnectionLost
from cmqd_gateway import gateway
from cmqd_gateway.broker.broker_connections import TooManyKeysInUse
from cmqd_gateway.process.gateway_logger import SPARSE_SECONDS, SparseWarning
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig, RigClock


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "messages_not_given_back" in record.getMessage()]


async def lose(client: Client) -> None:
    raise ConnectionLost("the broker is away")


async def test_a_failed_return_of_messages_is_logged(caplog: pytest.LogCaptureFixture):
    async with GatewayRig() as rig:
        rig.clock.hold()
        for _ in range(3):
            with rig.gateway.hand_over() as hand_over:
                hand_over.received(rig.own_key, lose)

        await eventually(lambda: len(lines(caplog)) == 1)
        assert "times=1" in lines(caplog)[0]
        assert "the broker is away" in lines(caplog)[0]
        assert rig.own_key.secret_key not in caplog.text

    # The end of the gateway writes the rest.
    assert len(lines(caplog)) == 2
    assert "times=2" in lines(caplog)[1]


async def test_a_gateway_without_a_free_connection_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gateway, "UNDO_PAUSE_SECONDS", 0.0)
    attempts = 0

    async def fill(client: Client) -> None:
        nonlocal attempts
        attempts += 1
        raise TooManyKeysInUse

    async with GatewayRig() as rig:
        with rig.gateway.hand_over() as hand_over:
            hand_over.received(rig.own_key, fill)

    assert attempts == gateway.UNDO_ATTEMPTS
    assert len(lines(caplog)) == 1
    assert "all connections of the gateway to the broker are in use" in lines(caplog)[0]


async def test_messages_that_were_given_back_are_not_in_the_log(caplog: pytest.LogCaptureFixture):
    given_back: list[Client] = []

    async def give_back(client: Client) -> None:
        given_back.append(client)

    async with GatewayRig() as rig:
        with rig.gateway.hand_over() as hand_over:
            hand_over.received(rig.own_key, give_back)

    assert len(given_back) == 1
    assert lines(caplog) == []


def test_the_lines_of_a_frequent_event_are_few(caplog: pytest.LogCaptureFixture):
    clock = RigClock()
    clock.hold()
    warning = SparseWarning("messages_not_given_back", clock)

    for _ in range(100):
        warning.note(reason="x")
    assert len(lines(caplog)) == 1
    clock.advance(SPARSE_SECONDS)
    warning.note(reason="y")
    warning.flush()

    assert len(lines(caplog)) == 2
    assert "times=100" in lines(caplog)[1]
