"""All peers by name."""

from collections.abc import Callable, Mapping, Sequence

from cmqd_bench.commands.arguments import WrongArguments
from cmqd_bench.peers.cmqd_peer import CmqdPeer
from cmqd_bench.peers.nats_peer import NatsPeer
from cmqd_bench.peers.peer import Peer
from cmqd_bench.peers.postgres_peer import PostgresPeer
from cmqd_bench.peers.rabbitmq_peer import RabbitPeer
from cmqd_bench.peers.redis_peer import RedisPeer

PEERS: Mapping[str, Callable[[], Peer]] = {
    "cmqd": CmqdPeer,
    "cmqd-inside": lambda: CmqdPeer(deletes_inside=True),
    "cmqd-rolling": lambda: CmqdPeer(is_rolling=True),
    "redis-always": lambda: RedisPeer("always"),
    "redis-everysec": lambda: RedisPeer("everysec"),
    "postgresql": PostgresPeer,
    "rabbitmq-classic": lambda: RabbitPeer("classic"),
    "rabbitmq-quorum": lambda: RabbitPeer("quorum"),
    "nats-always": lambda: NatsPeer(syncs=True),
    "nats": lambda: NatsPeer(syncs=False),
}


def catalog(names: Sequence[str], builds: Sequence[str] = ()) -> list[Peer]:
    """Return the peers with these names (all without names), and further installations of cmqd.

    A build is written ``NAME=INTERPRETER``.

    Raises:
        WrongArguments: a name is no peer's name, or a build is written in another way.
    """
    for name in names:
        if name not in PEERS:
            raise WrongArguments(f"{name!r} is no peer; the peers are {', '.join(PEERS)}")
    peers = [make() for name, make in PEERS.items() if not names or name in names]
    for build in builds:
        name, separator, python = build.partition("=")
        if not name or not separator or not python:
            raise WrongArguments(f"{build!r} is not NAME=INTERPRETER")
        peers.append(CmqdPeer(build=name, python=python))
    return peers
