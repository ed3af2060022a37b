"""Addresses that pushes may go to, and the look-up of names."""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Sequence

import pytest

from cmqd.server.push import allowed_addresses
from cmqd.server.push.allowed_addresses import (
    ANSWER_LIFE_S,
    AddressRefused,
    Allowed,
    CheckedResolver,
    NameNotFound,
    kind_of,
    refusal,
    refused_literal,
    system_lookup,
)
from support.cases import each_case

GLOBAL = ["1.1.1.1", "8.8.8.8", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "11.0.0.0", "223.255.255.255",
          "2606:4700::1111", "2a00::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1",
          "2001:200::1"]  # fmt: skip
KINDS = {
    "loopback": ["127.0.0.1", "127.255.255.255", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"],
    "private": ["10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "fc00::1",
                "fdff::1", "fec0::1", "64:ff9b:1::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1",
                "2002:c0a8:101::"],
    "link-local": ["169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "febf::1", "::ffff:169.254.169.254",
                   "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "::ffff:224.0.0.1"],
    "unspecified": ["0.0.0.0", "0.1.2.3", "::", "::ffff:0.0.0.0"],
    "reserved": ["240.0.0.1", "255.255.255.255", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
                 "192.88.99.1", "2001::1", "2001:db8::1", "3fff::1", "::2", "::7f00:1", "100::1", "4000::1",
                 "::ffff:0:7f00:1"],
}  # fmt: skip


@each_case("address", GLOBAL)
def test_global_addresses_are_taken(address: str) -> None:
    assert kind_of(ipaddress.ip_address(address)) is None
    assert refusal(address, Allowed()) is None


@each_case(("kind", "address"), [(kind, address) for kind in KINDS for address in KINDS[kind]])
def test_any_other_is_refused_unless_its_kind_is_allowed(kind: str, address: str) -> None:
    refused = f"address {address} is {kind}"
    if kind in ("private", "loopback"):
        refused += f" (the server's setting push_allow_{kind} is off)"

    assert refusal(address, Allowed()) == refused
    assert refusal(address, Allowed(private=True)) == (None if kind == "private" else refused)
    assert refusal(address, Allowed(loopback=True)) == (None if kind == "loopback" else refused)
    assert refusal(address, Allowed(True, True)) == (None if kind in ("private", "loopback") else refused)


def test_what_python_does_not_call_global_is_refused() -> None:
    for network in ["0.0.0.0/0", "::/3", "2000::/3", "e000::/3"]:
        first = ipaddress.ip_network(network)
        step = first.num_addresses // 4096
        for number in range(4096):
            address = first[number * step]
            # The anycast addresses of 192.0.0.0/24 are global and refused all the same; never the other way round.
            assert address.is_global or kind_of(address) is not None, address


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "127.1", "0177.0.0.1", "1.2.3.4.5", "", "::1", "fe80::1%1",
                                  "::ffff:127.0.0.1", "\u0967\u0968\u096d.1"])  # fmt: skip
def test_a_literal_is_refused_without_a_look_up_in_any_notation(host: str) -> None:
    assert refused_literal(host, Allowed()) is not None


@pytest.mark.parametrize("host", ["hooks.example", "localhost", "1.1.1.1", "2606:4700::1111", "0x7f.1", "0x7f000001"])
def test_names_are_left_to_the_look_up(host: str) -> None:
    assert refused_literal(host, Allowed()) is None


class Names:
    """A look-up in a table."""

    def __init__(self, **table: Sequence[str] | OSError) -> None:
        self.table: dict[str, Sequence[str] | OSError] = table
        self.asked: list[str] = []
        self.held = threading.Event()
        self.held.set()
        """Clear the event to make look-ups of names that begin with ``dead`` hang."""

    def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        if name.startswith("dead"):
            assert self.held.wait(240)
        found = self.table.get(name, ["1.1.1.1"])
        if isinstance(found, OSError):
            raise found
        return found


def a_resolver(names: Names, allowed: Allowed = Allowed()) -> CheckedResolver:  # noqa: B008 - it is immutable
    return CheckedResolver(asyncio.get_running_loop(), allowed, lookup=names)


async def test_only_allowed_addresses_are_given_in_numbers() -> None:
    names = Names(mixed=["10.0.0.1", "1.1.1.1", "::1", "2606:4700::1111"])
    resolver = a_resolver(names)

    found = await resolver.resolve("mixed", 443)

    assert [(each["host"], each["port"], each["family"]) for each in found] == [
        ("1.1.1.1", 443, socket.AF_INET),
        ("2606:4700::1111", 443, socket.AF_INET6),
    ]
    assert all(each["flags"] & socket.AI_NUMERICHOST for each in found)
    assert [each["host"] for each in await resolver.resolve("mixed", 443, socket.AF_INET)] == ["1.1.1.1"]
    await resolver.close()


async def test_a_name_with_refused_addresses_alone_says_which() -> None:
    resolver = a_resolver(Names(inside=["10.0.0.1", "::1"]))
    lenient = a_resolver(Names(inside=["10.0.0.1", "::1"]), Allowed(private=True))

    with pytest.raises(
        AddressRefused, match=r"^address 10\.0\.0\.1 is private \(the server.s setting push_allow_private is off\)$"
    ):
        await resolver.resolve("inside", 80)
    assert [each["host"] for each in await lenient.resolve("inside", 80)] == ["10.0.0.1"]
    await resolver.close()
    await lenient.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (socket.gaierror(socket.EAI_NONAME, "?"), "name gone does not resolve"),
        (socket.gaierror(socket.EAI_AGAIN, "?"), "name gone cannot be looked up now"),
        (OSError("?"), "name gone does not resolve"),
        ([], "name gone has no address"),
    ],
)
async def test_a_name_without_addresses(answer: Sequence[str] | OSError, text: str) -> None:
    resolver = a_resolver(Names(gone=answer))

    for _ in range(2):
        with pytest.raises(NameNotFound, match=f"^{text}$"):
            await resolver.resolve("gone", 80)
    await resolver.close()


async def test_an_answer_serves_for_a_while_and_concurrent_look_ups_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = Names(gone=OSError())
    resolver = a_resolver(names)

    await asyncio.gather(*(resolver.resolve("one", 80) for _ in range(20)))
    await resolver.resolve("one", 81)
    for _ in range(2):
        with pytest.raises(NameNotFound):
            await resolver.resolve("gone", 80)
    assert names.asked == ["one", "gone"]

    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now + ANSWER_LIFE_S + 1)
    names.table = {"one": ["127.0.0.1"]}
    with pytest.raises(AddressRefused):
        await resolver.resolve("one", 80)
    assert names.asked == ["one", "gone", "one"]
    await resolver.close()


async def test_a_caller_that_gives_up_leaves_the_look_up_to_the_others() -> None:
    names = Names()
    names.held.clear()
    resolver = a_resolver(names)
    first = asyncio.create_task(resolver.resolve("dead", 80))
    second = asyncio.create_task(resolver.resolve("dead", 80))
    await asyncio.sleep(0)

    first.cancel()
    names.held.set()

    assert [each["host"] for each in await second] == ["1.1.1.1"]
    assert first.cancelled()
    assert names.asked == ["dead"]
    await resolver.close()


async def test_a_hundred_names_that_hang_do_not_hold_up_known_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names()
    resolver = a_resolver(names)
    await resolver.resolve("alive", 80)
    names.held.clear()
    hanging = [asyncio.create_task(resolver.resolve(f"dead{number}", 80)) for number in range(100)]
    await asyncio.sleep(0)

    now = asyncio.get_running_loop().time()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "time", lambda: now + ANSWER_LIFE_S + 1)
        found = await resolver.resolve("alive", 80)

    assert [each["host"] for each in found] == ["1.1.1.1"]
    assert names.asked.count("alive") == 2
    names.held.set()
    await asyncio.gather(*hanging)
    await resolver.close()


async def test_names_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowed_addresses, "MAX_NAMES", 3)
    monkeypatch.setattr(allowed_addresses, "ANSWER_LIFE_S", 0.0)
    names = Names()
    resolver = a_resolver(names)

    for number in range(20):
        await resolver.resolve(f"n{number}", 80)

    assert len(resolver) <= 3
    await resolver.close()


def test_the_system_finds_this_machine() -> None:
    assert set(system_lookup("localhost")) <= {"127.0.0.1", "::1"}
