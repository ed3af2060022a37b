"""The column of stamps in tables of older versions: the next leader adds it, or leads without it."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from cmqd.engine.postgresql.servers import PostgresDatabase
from cmqd.engine.postgresql.session import PostgresSession
from cmqd.engine.postgresql.stamps import STAMPS
from cmqd.ha.output import Output
from cmqd.ha.postgresql_check import check
from support.postgresql.leaders import Leader
from support.postgresql.servers import PostgresCluster

pytestmark = [pytest.mark.system, pytest.mark.postgresql]

OLD_INSERT = """
INSERT INTO cmqd_rows (shard, lsn, epoch, time_ms, messages, queues, meta, data)
VALUES (%s, %s, %s, 1000, 1, 'queues', 'meta', 'data')
"""
"""The rows of an older broker, whose fences name no columns."""


@pytest.fixture
def old(shared_cluster: PostgresCluster, request: pytest.FixtureRequest) -> Iterator[int]:
    """A shard in tables without the column, with a leader's row; returns its number."""
    shard = (1 << 22) + sum(request.node.name.encode())
    with Leader(shared_cluster, "a", shard) as leader:
        leader.take().result()
        leader.append().result()
    shared_cluster.n1.ask("ALTER TABLE cmqd_rows DROP COLUMN IF EXISTS stored_at")
    yield shard
    shared_cluster.n1.ask(STAMPS.statement)


@contextmanager
def plain_role(cluster: PostgresCluster) -> Generator[str]:
    """A role that may use the tables and does not own them."""
    cluster.n1.ask("CREATE ROLE plain LOGIN")
    cluster.n1.ask("GRANT SELECT, INSERT, UPDATE, DELETE ON cmqd_rows, cmqd_shards TO plain")
    yield "plain"
    cluster.n1.ask("DROP OWNED BY plain")
    cluster.n1.ask("DROP ROLE plain")


def stamped_lsns(cluster: PostgresCluster, shard: int) -> list[int]:
    rows = cluster.n1.ask("SELECT lsn FROM cmqd_rows WHERE shard = %s AND stored_at IS NOT NULL ORDER BY lsn", shard)
    return [lsn for (lsn,) in rows]


def has_column(cluster: PostgresCluster) -> bool:
    query = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'cmqd_rows'::regclass AND attname = 'stored_at'"
    return cluster.n1.ask(query) == [(1,)]


def test_the_next_leader_adds_the_column(shared_cluster: PostgresCluster, old: int) -> None:
    with Leader(shared_cluster, "a", old) as leader:
        taken = leader.run(leader.engine.take).result()
        leader.last_lsn, leader.epoch = taken.last_lsn, taken.epoch
        leader.append().result()

    assert taken.newest == (2, 1, 1002, None)
    assert taken.stamp_ms is not None
    assert stamped_lsns(shared_cluster, old) == [3, 4]


def test_a_role_without_the_right_leads_and_the_check_prints_the_statement(
    shared_cluster: PostgresCluster, old: int
) -> None:
    with plain_role(shared_cluster) as role:
        database = PostgresDatabase(shared_cluster.url("plain", role=role), old)
        (session,) = database.primaries(lambda _timeline: True)
        assert isinstance(session, PostgresSession)
        session.add_columns()
        session.begin()
        assert session.insert_fence(3) is None
        session.commit()
        assert session.newest_stamped() == (2, 1, 1002, None)
        session.close()

        lines: list[str] = []
        check(database, old, Output(lines.append, as_json=False))

    assert not has_column(shared_cluster)
    text = "\n".join(lines)
    assert "warning cmqd_rows" in text
    assert STAMPS.statement in text


def test_an_owner_without_the_language_of_blocks_leads_without_stamps(
    shared_cluster: PostgresCluster, old: int
) -> None:
    ask = shared_cluster.n1.ask
    ((owner,),) = ask("SELECT tableowner FROM pg_tables WHERE tablename = 'cmqd_rows'")
    with plain_role(shared_cluster) as role:
        ask(f"ALTER TABLE cmqd_rows OWNER TO {role}")
        ask("REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC")
        try:
            (session,) = PostgresDatabase(shared_cluster.url("plain", role=role), old).primaries(lambda _timeline: True)
            session.add_columns()
            session.begin()
            assert session.insert_fence(3) is None
            session.commit()
            session.close()
        finally:
            ask("GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC")
            ask(f"ALTER TABLE cmqd_rows OWNER TO {owner}")

    assert not has_column(shared_cluster)


def test_a_table_that_is_in_use_delays_a_leader_for_a_second(shared_cluster: PostgresCluster, old: int) -> None:
    with psycopg.connect(shared_cluster.n1.direct_url) as other, Leader(shared_cluster, "a", old) as leader:
        other.execute("SELECT FROM cmqd_rows LIMIT 1")
        taken = leader.run(leader.engine.take).result()

    assert (taken.epoch, taken.stamp_ms) == (3, None)
    assert not has_column(shared_cluster)


def test_an_older_broker_goes_on_beside_the_column(shared_cluster: PostgresCluster, old: int) -> None:
    with Leader(shared_cluster, "a", old) as leader:
        leader.take().result()
    shared_cluster.n1.ask("INSERT INTO cmqd_rows VALUES (%s, 4, 4, 0, 0, '', '', '')", old)
    shared_cluster.n1.ask(OLD_INSERT, old, 5, 4)

    with Leader(shared_cluster, "a", old) as leader:
        assert leader.run(leader.engine.take).result().newest == (5, 4, 1000, None)
    assert stamped_lsns(shared_cluster, old) == [3, 6]
