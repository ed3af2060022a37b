"""Peers of a comparison: found on the machine, chosen by name, and their order."""

from itertools import pairwise
from pathlib import Path

import pytest

from cmqd_bench.peers.catalog import PEERS, catalog
from cmqd_bench.peers.cmqd_peer import CmqdPeer
from cmqd_bench.peers.nats_peer import NatsPeer
from cmqd_bench.peers.redis_peer import RedisPeer
from cmqd_bench.peers.works import WORKS, turn_order, works_of


def server_that_prints(folder: Path, command: str, line: str) -> None:
    program = folder / command
    program.write_text(f"#!/bin/sh\necho '{line}'\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nats-server: v2.15.1", ""),
        ("nats-server: v2.10.0", ""),
        ("nats-server: v2.9.10", "nats-server 2.9.10 has no sync_interval; 2.10 has"),
    ],
)
def test_a_server_that_a_package_put_beside_the_interpreter_is_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, reason: str
) -> None:
    # The shell of the program is not on this PATH, and need not be.
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    always = NatsPeer(syncs=True)
    absent = always.missing()
    server_that_prints(tmp_path, "nats-server", line)

    assert absent == "nats-server is not installed"
    assert always.missing() == reason
    assert always.version() == line.rpartition("v")[2]


def test_the_order_of_peers_changes_with_the_turn() -> None:
    orders = [turn_order(3, turn) for turn in range(1, 7)]
    assert {order[0] for order in orders} == {0, 1, 2}
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    followed = {(first, second) for order in orders for first, second in pairwise(order)}
    assert len(followed) == 6


def test_rows_are_chosen_by_name() -> None:
    assert list(works_of(())) == list(WORKS)
    assert [work.name for work in works_of(["cycle-64", "send-1x1"])] == ["send-1x1", "cycle-64"]
    rates = [work.name for work in works_of(["rates", "send-1x1"])]
    assert rates[0] == "send-1x1"
    assert {"rate-250", "rate-2000", "rate-16000"} < set(rates)
    assert len(rates) == len(set(rates)) == 9
    assert works_of(["rates"]) == [work for work in works_of(["table", "rates"]) if work.rate]
    with pytest.raises(ValueError, match="'send-2x2' is no row; the rows are send-1x1"):
        works_of(["send-2x2"])


def test_peers_are_chosen_by_name_and_builds_by_interpreter() -> None:
    assert [peer.name for peer in catalog(())] == list(PEERS)
    assert [peer.name for peer in catalog(["redis-always"])] == ["redis-always"]
    chosen = catalog(["cmqd"], ["before=/usr/bin/python3"])
    assert [(peer.name, peer.build) for peer in chosen] == [("cmqd", "pure"), ("cmqd", "before")]
    with pytest.raises(ValueError, match="'mq' is no peer"):
        catalog(["mq"])
    with pytest.raises(ValueError, match="NAME=INTERPRETER"):
        catalog(["cmqd"], ["before"])


def test_a_build_without_an_interpreter_is_missing() -> None:
    assert "no interpreter" in CmqdPeer(build="x", python="/nowhere/python").missing()


def test_only_cycles_bound_their_producers() -> None:
    assert {work.name: work.ahead for work in WORKS if work.ahead} == {"cycle-64": 1_024, "cycle-16-batch-16": 4_096}


def test_the_variants_of_redis_differ_in_durability() -> None:
    assert "before the answer" in RedisPeer("always").durability
    assert "once a second" in RedisPeer("everysec").durability
