"""Standing pins in tables of an older version, which have no column for them."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from msgspec import structs

from cmqd.engine.engine_errors import NoPinsColumn
from cmqd.engine.interface import ImportedLog
from cmqd.engine.postgresql.added_columns import STANDING_PINS
from cmqd.engine.postgresql.servers import PostgresDatabase
from cmqd.ha.output import Output
from cmqd.ha.postgresql_check import check
from support.postgresql.leaders import Leader, stored_lsns
from support.postgresql.servers import PostgresCluster

pytestmark = [pytest.mark.system, pytest.mark.postgresql]


EMPTY = ImportedLog("imported", 0, lambda: iter(()), None, b"keys", b"[hourly]")


@contextmanager
def pinless_role(cluster: PostgresCluster) -> Generator[None]:
    """Make a role that may not change the tables."""
    ask = cluster.n1.ask
    ask("CREATE ROLE pinless LOGIN")
    ask("GRANT SELECT, INSERT, UPDATE, DELETE ON cmqd_rows, cmqd_shards TO pinless")
    try:
        yield
    finally:
        ask("DROP OWNED BY pinless")
        ask("DROP ROLE pinless")


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


def test_an_import_adds_the_column(shared_cluster: PostgresCluster, old: int) -> None:
    with Leader(shared_cluster, "a", old + 1) as importer:
        importer.run(lambda: importer.engine.import_log(EMPTY)).result()

        assert importer.run(importer.engine.load_standing_pins).result() == b"[hourly]"


def test_an_import_of_a_role_without_the_right_stores_nothing(shared_cluster: PostgresCluster, old: int) -> None:
    with pinless_role(shared_cluster), Leader(shared_cluster, "plain", old + 1, role="pinless") as importer:
        engine = importer.engine
        with pytest.raises(NoPinsColumn):
            importer.run(lambda: engine.import_log(EMPTY)).result()
        assert importer.run(engine.log_id).result() is None
        assert stored_lsns(shared_cluster.n1, old + 1) == []

        # Without pins the log needs no column.
        importer.run(lambda: engine.import_log(structs.replace(EMPTY, standing_pins=b""))).result()
        assert importer.run(engine.log_id).result() == "imported"
        assert importer.run(engine.load_standing_pins).result() is None


def test_a_role_without_the_right_keeps_none_and_the_check_prints_the_statement(
    shared_cluster: PostgresCluster, old: int
) -> None:
    with pinless_role(shared_cluster):
        database = PostgresDatabase(shared_cluster.url("plain", role="pinless"), old)
        (session,) = database.primaries(lambda _timeline: True)
        session.add_columns()
        assert session.standing_pins() is None
        session.close()
        lines: list[str] = []
        check(database, old, Output(lines.append, as_json=False))

    text = "\n".join(lines)
    assert "warning cmqd_shards" in text
    assert STANDING_PINS.statement in text
