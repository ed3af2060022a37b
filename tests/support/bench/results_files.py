"""Builders of files of measurements, as ``cmqd_bench peers`` and ``curves`` write them."""

from collections.abc import Sequence

import msgspec

from cmqd_bench.figures.results import REFERENCE_PEER, Conditions, Gap, Peer, Results, Row, Scenario

CONDITIONS = Conditions(
    commit="0123456789",
    started="2026-01-02T03:04:05Z",
    cpu="a <fast> CPU",
    cores=2,
    kernel="6.1",
    python="3.11.7",
    sqlite="3.40.1",
    file_system="ext4",
    device="/dev/vda",
    load_average=0.1,
    load="C generator",
    seconds=4.0,
    turns=3,
)
CMQD_PEER = Peer(name="cmqd", title="cmqd", version="0.1.0", durability="fsync before the answer")
REFERENCE = Peer(
    name=REFERENCE_PEER, title="Redis Streams, always", version="7.0", durability="fsync before the answer"
)
SEND = Scenario(name="send", title="send, one at a time")
BATCH = Scenario(name="batch", title="best batches")


def row(cpu_us: float, **changes: object) -> Row:
    """Return a row of cmqd in the scenario ``send``; its rate belongs to a busy core."""
    fields: dict[str, object] = {"scenario": "send", "peer": "cmqd", "rate": 1e6 / cpu_us, "cpu_us": cpu_us}
    return msgspec.convert({**fields, **changes}, Row)


def turns_of(scenario: str, peer: str, costs: Sequence[float], *, x: float = 0.0, build: str = "") -> list[Row]:
    """Return a row with all figures per turn; latencies are in proportion to the cost."""
    return [
        row(
            cost,
            scenario=scenario,
            peer=peer,
            build=build or ("pure" if peer.startswith("cmqd") else "-"),
            turn=turn,
            x=x,
            p50_ms=cost / 100,
            p90_ms=cost / 50,
            p99_ms=cost / 20,
            p999_ms=cost / 10,
            load_us=1.0,
            rss_mib=80.0,
        )
        for turn, cost in enumerate(costs, 1)
    ]


def results_of(
    rows: Sequence[Row],
    *,
    kind: str = "peers",
    scenarios: Sequence[Scenario] = (SEND, BATCH),
    peers: Sequence[Peer] = (CMQD_PEER, REFERENCE),
    gaps: Sequence[Gap] = (),
) -> Results:
    """Return a file of results."""
    return Results(
        kind=kind, conditions=CONDITIONS, peers=list(peers), scenarios=list(scenarios), rows=list(rows), gaps=list(gaps)
    )
