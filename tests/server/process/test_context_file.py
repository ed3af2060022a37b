"""The context file of a pair: the addresses in it, and a disk that refuses it."""

from pathlib import Path

import pytest

from cmqd.log.values import BrokerSeen, EngineView
from cmqd.server.access.accounts_file import Key, new_key
from cmqd.server.process.advertised_address import addresses_of_pair
from cmqd.server.process.context_file import addresses_in, write_context


@pytest.fixture
def key() -> Key:
    return new_key("admin", 5)


def view_of(*brokers: BrokerSeen) -> EngineView:
    return EngineView(1, 1, list(brokers), [])


def test_the_leader_is_first() -> None:
    view = view_of(BrokerSeen("a:1", "1@boot", 7, False), BrokerSeen("b:2", "2@boot", 5, True))

    assert addresses_of_pair(["b:2"], "b:2", view, 0) == ["b:2", "a:1"]
    assert addresses_of_pair(["b:2"], "a:1", None, 0) == ["b:2", "a:1"]
    assert addresses_of_pair([], "a:1", None, 0) == ["a:1"]


def test_an_address_that_postgresql_may_have_cut_is_left_out() -> None:
    # "cmqd 0 7 1@bootbook " has 20 bytes: 43 are left, and the last one says that no byte is missing.
    whole, cut = "b" * 37 + ":5680", "c" * 38 + ":5680"
    view = view_of(BrokerSeen(whole, "1@bootbook", 7, False), BrokerSeen(cut, "1@bootbook", 7, False))

    assert addresses_of_pair(["a:1"], "a:1", view, 0) == ["a:1", whole]
    # The offset of its clock is in the name too: "/-3".
    with_clock = view_of(BrokerSeen(whole, "1@bootbook", 7, False, -300))
    assert addresses_of_pair(["a:1"], "a:1", with_clock, 0) == ["a:1"]


def test_addresses_are_read_back(tmp_path: Path, key: Key) -> None:
    path = tmp_path / "admin.context.toml"
    assert addresses_in(path, key) == []

    write_context(path, key, ["a:1", "[::1]:2"], tls=True)
    assert addresses_in(path, key) == ["a:1", "[::1]:2"]

    assert addresses_in(path, new_key("admin", 5)) == [], "another key is another broker"
    path.write_bytes(b"\xff")
    assert addresses_in(path, key) == []
