"""Secrets of keys: how long the gateway knows them, and how often it asks."""

import asyncio

import pytest

from cmqd_client.errors import ServerUnreachable
from cmqd_gateway.callers import key_secrets
from cmqd_gateway.callers.caller import NotAuthenticated, key_of_authorization
from cmqd_gateway.callers.key_secrets import (
    CONFIRMED_SECONDS,
    REFRESH_SECONDS,
    UNKNOWN_SECONDS,
    KeySecret,
    KeySecrets,
    TooManyUnknownIds,
)
from cmqd_gateway.callers.new_ids import NEW_IDS_PER_SECOND
from support.gateway.gateway_rig import KeyTable, RigClock

KEY = KeySecret("id", "secret")
ADDRESS = "192.0.2.1"


class Rig:
    def __init__(self) -> None:
        self.clock = RigClock()
        self.clock.hold()
        self.table = KeyTable()
        self.table.keys["id"] = KEY
        self.secrets = KeySecrets(self.table, self.clock)


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def idle() -> None:
    """Let the questions under way end."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_secret_is_known_for_a_second_without_a_question(rig: Rig):
    assert await rig.secrets.find("id", ADDRESS) is KEY
    rig.clock.advance(REFRESH_SECONDS * 0.99)
    assert await rig.secrets.find("id", ADDRESS) is KEY

    assert rig.table.questions == ["id"]


async def test_a_busy_key_is_confirmed_without_waiting(rig: Rig):
    await rig.secrets.find("id", ADDRESS)
    rig.clock.advance(REFRESH_SECONDS)

    assert await rig.secrets.find("id", ADDRESS) is KEY
    assert await rig.secrets.find("id", ADDRESS) is KEY
    await idle()
    rig.clock.advance(CONFIRMED_SECONDS * 0.99)
    assert await rig.secrets.find("id", ADDRESS) is KEY

    assert rig.table.questions == ["id", "id"]


async def test_a_secret_of_a_second_ago_is_not_used(rig: Rig):
    await rig.secrets.find("id", ADDRESS)
    rig.table.failure = ServerUnreachable("lost")
    rig.clock.advance(CONFIRMED_SECONDS)

    with pytest.raises(ServerUnreachable):
        await rig.secrets.find("id", ADDRESS)
    rig.table.failure = None
    del rig.table.keys["id"]
    assert await rig.secrets.find("id", ADDRESS) is None


async def test_a_secret_that_may_not_be_used_is_not_kept(rig: Rig):
    rig.table.keys["later"] = KeySecret("later", "s")
    await rig.secrets.find("id", ADDRESS)
    rig.clock.advance(CONFIRMED_SECONDS / 2)
    await rig.secrets.find("later", ADDRESS)
    rig.clock.advance(CONFIRMED_SECONDS / 2)
    assert len(rig.secrets) == 2

    rig.secrets.drop_unconfirmed()

    assert len(rig.secrets) == 1


async def test_a_change_forgets_the_key_at_once(rig: Rig):
    await rig.secrets.find("id", ADDRESS)
    rig.table.keys["id"] = changed = KeySecret("id", "another")
    rig.secrets.forget("id")

    assert await rig.secrets.find("id", ADDRESS) is changed


async def test_an_answer_that_crosses_a_change_is_not_remembered(rig: Rig):
    rig.secrets = KeySecrets(slow := SlowTable(), rig.clock)
    asking = asyncio.create_task(rig.secrets.find("id", ADDRESS))
    await idle()
    rig.secrets.forget("id")
    slow.answers.pop(0).set_result(KEY)
    await asking

    again = asyncio.create_task(rig.secrets.find("id", ADDRESS))
    await idle()
    slow.answers.pop(0).set_result(None)

    assert await again is None


async def test_requests_of_one_id_share_a_question(rig: Rig):
    rig.secrets = KeySecrets(slow := SlowTable(), rig.clock)
    asking = [asyncio.create_task(rig.secrets.find("id", ADDRESS)) for _ in range(100)]
    await idle()
    asking[0].cancel()
    await idle()

    assert len(slow.answers) == 1
    slow.answers[0].set_result(KEY)
    assert await asyncio.gather(*asking[1:]) == [KEY] * 99


async def test_an_unknown_id_is_remembered(rig: Rig):
    for _ in range(10):
        assert await rig.secrets.find("stranger", ADDRESS) is None
    assert rig.table.questions == ["stranger"]

    rig.clock.advance(UNKNOWN_SECONDS)
    rig.table.keys["stranger"] = KEY
    assert await rig.secrets.find("stranger", ADDRESS) is KEY


async def test_a_created_key_is_known_when_the_broker_says_so(rig: Rig):
    await rig.secrets.find("new", ADDRESS)
    rig.table.keys["new"] = KEY
    rig.secrets.forget("new")

    assert await rig.secrets.find("new", ADDRESS) is KEY


@pytest.mark.parametrize("secret_id", ["", "x" * 129, "é", "a\nb"])
async def test_ids_that_no_key_can_have_are_never_asked_for(rig: Rig, secret_id: str):
    assert await rig.secrets.find(secret_id, ADDRESS) is None
    assert rig.table.questions == []


async def test_strangers_with_many_ids_cannot_flood_the_broker(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(key_secrets, "MAX_UNKNOWN", 50)
    await rig.secrets.find("id", ADDRESS)
    refused = 0
    for number in range(10 * NEW_IDS_PER_SECOND):
        try:
            assert await rig.secrets.find(f"stranger-{number}", f"192.0.2.{number % 250}") is None
        except TooManyUnknownIds:
            refused += 1

    assert refused == 9 * NEW_IDS_PER_SECOND + 1
    assert len(rig.table.questions) == NEW_IDS_PER_SECOND
    # A key in use is confirmed all the same.
    rig.clock.advance(CONFIRMED_SECONDS)
    rig.table.questions.clear()
    assert await rig.secrets.find("id", ADDRESS) is KEY


@pytest.mark.parametrize("lost", [False, True], ids=["after a pause", "after a loss of the broker"])
async def test_valid_keys_take_nothing_from_the_rate_of_strangers(rig: Rig, lost: bool):
    secrets = KeySecrets(rig.table, rig.clock, new_ids_per_second=1)
    await secrets.find("id", ADDRESS)
    rig.clock.advance(CONFIRMED_SECONDS)
    secrets.drop_unconfirmed()
    if lost:
        secrets.forget()
    await secrets.find("stranger", ADDRESS)
    with pytest.raises(TooManyUnknownIds):
        await secrets.find("next stranger", ADDRESS)

    assert await secrets.find("id", ADDRESS) is KEY


async def test_known_keys_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(key_secrets, "MAX_KEYS", 3)
    for number in range(5):
        rig.table.keys[f"k{number}"] = KeySecret(f"k{number}", "s")
        await rig.secrets.find(f"k{number}", ADDRESS)
    rig.table.questions.clear()

    await rig.secrets.find("k4", ADDRESS)
    await rig.secrets.find("k0", ADDRESS)

    assert rig.table.questions == ["k0"]


def test_no_secret_is_shown():
    assert "secret-value" not in repr(KeySecret("id", "secret-value"))


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (None, "needs a key"),
        ("", "needs a key"),
        ("Digest x", "needs a key"),
        ("Basic !!!", "needs a key"),
        ("Basic aWQ=", "needs a key"),
        ("Basic /////w==", "needs a key"),
        ("Bearer id", "needs a key"),
        ("Bearer id:wrong", "no such key pair"),
        ("Bearer other:secret", "no such key pair"),
        ("Bearer id:secr\u00e9t", "no such key pair"),
        ("Bearer disabled:secret", "disabled"),
        ("Bearer disabled:wrong", "no such key pair"),
    ],
)
async def test_wrong_key_pairs_are_refused(rig: Rig, header: str | None, text: str):
    rig.table.keys["disabled"] = KeySecret("disabled", "secret", enabled=False)

    with pytest.raises(NotAuthenticated, match=text):
        await key_of_authorization(rig.secrets, header, ADDRESS)


@pytest.mark.parametrize("header", ["Bearer id:secret", "bearer id:secret", "Basic aWQ6c2VjcmV0", "BASIC aWQ6c2VjcmV0"])
async def test_key_pairs_are_accepted(rig: Rig, header: str):
    assert await key_of_authorization(rig.secrets, header, ADDRESS) is KEY


class SlowTable:
    """An origin of secrets with answers that the test gives."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[KeySecret | None]] = []

    async def fetch(self, secret_id: str) -> KeySecret | None:
        answer: asyncio.Future[KeySecret | None] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer
