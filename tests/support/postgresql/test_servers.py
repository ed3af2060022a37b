"""The servers of the tests fail as they are told."""

from collections.abc import Iterator

import psycopg
import pytest

from support.eventually import eventually_elsewhere
from support.postgresql.installation import Installation
from support.postgresql.servers import PostgresCluster

pytestmark = [pytest.mark.system, pytest.mark.postgresql]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster(Installation.of_session()) as cluster:
        yield cluster


def test_a_promotion_loses_what_no_standby_had_and_a_lost_server_can_join_again(cluster: PostgresCluster) -> None:
    n1, n2, n3 = cluster.servers.values()
    n1.ask("CREATE TABLE numbers (number int)")
    n1.ask("INSERT INTO numbers VALUES (1)")
    cluster.wait_until_followed(n1, "n2", "n3")
    cluster.isolate("n1")
    n1.ask("INSERT INTO numbers VALUES (2)")
    n1.kill()
    cluster.promote(n2)
    n1.start()
    cluster.mend()

    numbers = "SELECT number FROM numbers ORDER BY number"
    assert n1.ask(numbers) == [(1,), (2,)]
    cluster.wait_until_followed(n2, "n3")
    assert n3.ask(numbers) == [(1,)]
    n1.kill()
    cluster.rejoin(n1, n2)
    assert n1.ask(numbers) == [(1,)]


def test_a_cut_link_is_silent_until_it_is_mended(cluster: PostgresCluster) -> None:
    with psycopg.connect(cluster.url("broker", "n2"), autocommit=True) as connection:
        cluster.cut("broker", "n2")
        connection.pgconn.send_query(b"SELECT 1")
        assert cluster.n2.ask("SELECT 1") == [(1,)]

        def is_answered() -> bool:
            # ``get_result`` would wait with the interpreter, which the thread of the links needs.
            connection.pgconn.consume_input()
            return not connection.pgconn.is_busy()

        assert not is_answered()
        cluster.mend()
        eventually_elsewhere(is_answered)
        while connection.pgconn.get_result() is not None:
            pass
