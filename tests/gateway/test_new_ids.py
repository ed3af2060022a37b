"""The rate of new ids of keys: shares of addresses, and a gateway with valid keys during a flood of made-up ids."""

import contextlib

import aiohttp
import pytest

from cmqd_gateway.callers.key_secrets import KeySecret, KeySecrets, TooManyUnknownIds
from cmqd_gateway.callers.new_ids import NEW_IDS_PER_SECOND, NewIdRate
from support.gateway.cmq_requests import encoded
from support.gateway.gateway_rig import GatewayRig, KeyTable, RigClock


@pytest.fixture
def clock() -> RigClock:
    clock = RigClock()
    clock.hold()
    return clock


def taken(rate: NewIdRate, *addresses: str | None) -> list[int]:
    """Return the new ids that each address gets while all addresses ask in turn."""
    counts = [0] * len(addresses)
    for _ in range(2 * NEW_IDS_PER_SECOND):
        for index, address in enumerate(addresses):
            counts[index] += rate.take(address)
    return counts


def test_a_flooding_address_leaves_half_of_the_rate(clock: RigClock):
    rate = NewIdRate(clock)

    assert taken(rate, "192.0.2.1") == [50]
    assert taken(rate, "192.0.2.2") == [25]
    clock.advance(1.0)
    assert taken(rate, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4") == [20] * 4
    assert taken(rate, "192.0.2.5") == [10]


def test_all_addresses_share_the_rate(clock: RigClock):
    rate = NewIdRate(clock)
    for number in range(3 * NEW_IDS_PER_SECOND):
        rate.take(f"198.51.{number // 250}.{number % 250}")

    assert taken(rate, "192.0.2.1") == [0]
    clock.advance(1.0)
    assert taken(rate, "192.0.2.1") == [50]


@pytest.mark.parametrize(
    ("first", "second", "is_shared"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("192.0.2.1", "192.0.2.2", False),
        (None, None, True),
    ],
)
def test_a_network_of_ipv6_counts_as_an_address(
    clock: RigClock, first: str | None, second: str | None, is_shared: bool
):
    rate = NewIdRate(clock)
    assert taken(rate, first) == [50]

    assert taken(rate, second) == [0 if is_shared else 25]


async def test_valid_keys_are_let_in_during_a_flood_from_an_address(clock: RigClock):
    table = KeyTable()
    secrets = KeySecrets(table, clock)
    keys = [KeySecret(f"valid-{number}", "secret") for number in range(200)]
    table.keys = {key.secret_id: key for key in keys}
    let_in: set[str] = set()

    for second in range(8):
        for number in range(1_000):
            with contextlib.suppress(TooManyUnknownIds):
                assert await secrets.find(f"made-up-{second}-{number}", "192.0.2.1") is None
            if number % 5 == 0:
                key = keys[number // 5]
                with contextlib.suppress(TooManyUnknownIds):
                    assert await secrets.find(key.secret_id, f"198.51.100.{number // 5}") is key
                    let_in.add(key.secret_id)
        clock.advance(1.0)

    assert len(let_in) == 200


@pytest.mark.parametrize("api", ["API 2.0", "the JSON API", "metrics"])
async def test_requests_of_another_address_are_served_during_a_flood(api: str):
    async with GatewayRig() as rig:
        rig.clock.hold()
        stranger = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        async with aiohttp.ClientSession(connector=stranger) as session:
            for number in range(NEW_IDS_PER_SECOND + 10):
                if api == "API 2.0":
                    form = {**rig.sign({"Action": "ListQueue"}), "SecretId": f"made-up-{number}".encode()}
                    await session.post(f"http://{rig.host}/v2/index.php", data=encoded(form))
                else:
                    path = "/api/v1/queues" if api == "the JSON API" else "/metrics"
                    headers = {"Authorization": f"Bearer made-up-{number}:x"}
                    await session.get(f"http://{rig.host}{path}", headers=headers)
        assert len(rig.table.questions) == NEW_IDS_PER_SECOND // 2

        assert (await rig.call("ListQueue"))["code"] == 0
