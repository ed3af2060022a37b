"""URLs and sessions of ``cmqd.engine.postgresql``."""

import pytest

from cmqd.engine.database import ConnectionLost
from cmqd.engine.postgresql.servers import PostgresDatabase
from cmqd.engine.postgresql.session import PostgresSession
from cmqd.log.values import CopyLag, Redundancy
from cmqd.settings import Settings
from support.postgresql.leaders import row_of, stored_lsns
from support.postgresql.servers import PostgresCluster

SHARD = 1 << 21


@pytest.mark.parametrize(
    "url", ["http://n1,n2/cmqd", "postgresql://n1,n2/cmqd?no_such_parameter=1", "postgresql://n1:x/"]
)
def test_a_url_that_is_none_of_libpq_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        PostgresDatabase(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://role:hush/moon@n1/cmqd",
        "postgresql://role:hush%zzmoon@n1/cmqd",
        "postgresql://n1/cmqd?password=hush%zzmoon",
        "host=n1 password='hushmoon",
    ],
)
def test_no_part_of_a_password_is_shown(url: str) -> None:
    with pytest.raises(ValueError, match="no URL of libpq") as refused:
        PostgresDatabase(url)

    shown = Settings(engine_url=url, redundancy=Redundancy.POSTGRESQL).as_table()["engine_url"]
    for text in (str(refused.value), str(refused.value.__cause__), str(shown)):
        assert "hush" not in text
        assert "moon" not in text


def test_no_server_in_reach() -> None:
    # Port 1 of loopback refuses; the domain is one that has no hosts.
    database = PostgresDatabase("postgresql://cmqd@127.0.0.1:1,no-such-host.invalid/postgres")
    assert database.primaries(lambda _timeline: True) == []
    assert list(database.unreached) == ["127.0.0.1:1", "no-such-host.invalid:5432"]
    assert "Connection refused" in database.unreached["127.0.0.1:1"]


@pytest.mark.system
@pytest.mark.postgresql
def test_a_role_that_may_not_read_lags_sees_the_second_copy(shared_cluster: PostgresCluster) -> None:
    shared_cluster.n1.ask("CREATE ROLE plain LOGIN")
    (session,) = PostgresDatabase(shared_cluster.url("plain", role="plain")).primaries(lambda _timeline: True)
    assert session.copies() == [CopyLag("n2", True, None, None), CopyLag("n3", False, None, None)]
    session.close()
    shared_cluster.n1.ask("DROP ROLE plain")


@pytest.mark.system
@pytest.mark.postgresql
def test_a_session_whose_commits_wait_for_no_standby_stores_nothing(shared_cluster: PostgresCluster) -> None:
    """The setting of the session was lost."""
    (session,) = PostgresDatabase(shared_cluster.url("broker"), SHARD + 1).primaries(lambda _timeline: True)
    assert isinstance(session, PostgresSession)
    session.begin()
    session.insert_fence(1)
    session.commit()
    for level in (b"off", b"local", b"remote_write"):
        session._ask(b"SET synchronous_commit = " + level)  # pyright: ignore[reportPrivateUsage]
        commits = [
            session.barrier(),
            session.append(1, [row_of(2, 1)]),
            session.append(1, [row_of(2, 1), row_of(3, 1)]),
        ]
        assert [(commit.changes, commit.is_safe_behind) for commit in commits] == [(0, False)] * 3
        assert not session.standby_is_named()
    session.close()


@pytest.mark.system
@pytest.mark.postgresql
def test_a_commit_is_unknown_if_the_look_behind_it_fails(
    shared_cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (session,) = PostgresDatabase(shared_cluster.url("broker"), SHARD + 2).primaries(lambda _timeline: True)
    session.begin()
    session.insert_fence(1)
    session.commit()
    monkeypatch.setattr("cmqd.engine.postgresql.session.LOOK_BEHIND", b"SELECT 1 / 0")

    with pytest.raises(ConnectionLost, match="division by zero"):
        session.append(1, [row_of(2, 1)])

    assert stored_lsns(shared_cluster.n1, SHARD + 2) == [1, 2]


@pytest.mark.system
@pytest.mark.postgresql
def test_standbys_and_silent_servers_are_left_out(shared_cluster: PostgresCluster) -> None:
    database = PostgresDatabase(shared_cluster.url("broker"))
    (session,) = database.primaries(lambda _timeline: True)
    assert session.timeline == 1
    assert set(database.unreached.values()) == {"a standby"}
    session.close()
    shared_cluster.n1.freeze()
    assert database.primaries(lambda _timeline: True) == []
    shared_cluster.n1.thaw()


@pytest.mark.system
@pytest.mark.postgresql
def test_a_page_of_rows_is_bounded_and_never_empty(shared_cluster: PostgresCluster) -> None:
    (session,) = PostgresDatabase(shared_cluster.url("broker"), SHARD).primaries(lambda _timeline: True)
    session.begin()
    session.insert_fence(1)
    session.commit()
    large, small = bytes(10 << 20), bytes(1 << 20)
    session.append(1, [row_of(2, 1, large), *(row_of(lsn, 1, small) for lsn in range(3, 9))])
    assert [row.lsn for row in session.rows(0, with_data=True)] == [1]
    assert [row.lsn for row in session.rows(1, with_data=True)] == [2]
    assert [row.lsn for row in session.rows(2, with_data=True)] == [3, 4, 5]
    assert [row.lsn for row in session.rows(0, with_data=False)] == list(range(1, 9))
    session.close()


@pytest.mark.system
@pytest.mark.postgresql
def test_a_session_that_lost_its_server_is_of_no_more_use(shared_cluster: PostgresCluster) -> None:
    (session,) = PostgresDatabase(shared_cluster.url("broker"), SHARD).primaries(lambda _timeline: True)
    session.kill()
    session.kill()
    with pytest.raises(ConnectionLost):
        session.barrier()
    session.close()
