"""Standing pins in tables of an older version, which have no column for them."""

from collections.abc import Iterator

import pytest

from cmqd.engine.postgresql.added_columns import STANDING_PINS
from cmqd.engine.postgresql.servers import PostgresDatabase
from cmqd.ha.output import Output
from cmqd.ha.postgresql_check import check
from support.postgresql.leaders import Leader
from support.postgresql.servers import PostgresCluster

pytestmark = [pytest.mark.system, pytest.mark.postgresql]


@pytest.fixture
def old(shared_cluster: PostgresCluster, request: pytest.FixtureRequest) -> Iterator[int]:
    """A shard in tables without the column; returns its number."""
    shard = (1 << 23) + sum(request.node.name.encode())
    with Leader(shared_cluster, "a", shard) as leader:
        leader.take().result()
    shared_cluster.n1.ask("ALTER TABLE cmqd_shards DROP COLUMN standing_pins")
    yield shard
    shared_cluster.n1.ask(STANDING_PINS.statement)


def test_the_next_leader_adds_the_column(shared_cluster: PostgresCluster, old: int) -> None:
    with Leader(shared_cluster, "a", old) as leader:
        leader.run(leader.engine.take).result()
        leader.run(lambda: leader.engine.store_standing_pins(b"[hourly]")).result()

        assert leader.run(leader.engine.load_standing_pins).result() == b"[hourly]"


def test_a_role_without_the_right_keeps_none_and_the_check_prints_the_statement(
    shared_cluster: PostgresCluster, old: int
) -> None:
    ask = shared_cluster.n1.ask
    ask("CREATE ROLE pinless LOGIN")
    ask("GRANT SELECT, INSERT, UPDATE, DELETE ON cmqd_rows, cmqd_shards TO pinless")
    try:
        database = PostgresDatabase(shared_cluster.url("plain", role="pinless"), old)
        (session,) = database.primaries(lambda _timeline: True)
        session.add_columns()
        assert session.standing_pins() is None
        session.close()
        lines: list[str] = []
        check(database, old, Output(lines.append, as_json=False))
    finally:
        ask("DROP OWNED BY pinless")
        ask("DROP ROLE pinless")

    text = "\n".join(lines)
    assert "warning cmqd_shards" in text
    assert STANDING_PINS.statement in text
